//! Waiting for workers to follow.

use crate::control::Datapath;
use crate::settings::WorkerId;
use std::time::{Duration, Instant};

/// Longest wait for a worker to follow a command.
const LONGEST: Duration = Duration::from_secs(20);
/// The first wait that is told of; then twice as long, and so on.
const NOTED: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(20);
/// What one look counts for at most: who did not run himself has not waited for others.
const LOOK: Duration = Duration::from_millis(1);

/// How long control waited, by its own looks.
struct Patience {
    looked: Instant,
    waited: Duration,
    noted: Duration,
}

impl Patience {
    fn new() -> Patience {
        Patience { looked: Instant::now(), waited: Duration::ZERO, noted: NOTED }
    }

    fn look(&mut self) {
        let now = Instant::now();
        self.waited += (now - self.looked).min(LOOK);
        self.looked = now;
    }

    /// Is it time to tell of the wait?
    fn is_noted(&mut self) -> bool {
        let due = self.waited >= self.noted;
        if due {
            self.noted *= 2;
        }
        due
    }
}

impl Datapath {
    /// Waits until all workers did what they were told. A thread that gets no CPU is waited for; one
    /// that stays away is given up, until it answers again.
    pub(crate) fn settle(&mut self) {
        let mut patience = Patience::new();
        loop {
            self.pump();
            let late = self.late();
            if late.is_empty() {
                break;
            }
            if self.config.manual {
                self.step();
            } else {
                std::thread::sleep(PAUSE);
            }
            patience.look();
            if patience.waited > LONGEST {
                self.give_up(&late);
            } else if patience.is_noted() {
                let ms = patience.waited.as_millis();
                for (_, id) in late {
                    (self.config.warn)(&format!("blocked {ms} ms waiting for {id}"));
                }
            }
        }
        // What they told while they were looked at.
        self.pump();
    }

    /// Workers that are waited for: they have not done what they were told, or owe a receive queue.
    fn late(&mut self) -> Vec<(usize, WorkerId)> {
        let queues = self.ports.values().flat_map(|p| &p.rxqs);
        let owing: Vec<usize> = queues.filter(|q| q.moving).filter_map(|q| q.at).collect();
        let workers = self.workers.iter_mut().enumerate();
        let late = workers.filter_map(|(slot, w)| w.as_mut().map(|w| (slot, w)));
        late.filter_map(|(slot, w)| {
            let late = !w.settled() || owing.contains(&slot);
            (late && !w.stuck).then_some((slot, w.id))
        })
        .collect()
    }

    fn give_up(&mut self, late: &[(usize, WorkerId)]) {
        for (slot, id) in late {
            if let Some(Some(w)) = self.workers.get_mut(*slot) {
                w.stuck = true;
                (self.config.warn)(&format!("{id} does not answer: changes go on without it"));
            }
        }
    }
}
