//! [`Datapath`]: waiting for workers.

use crate::manage::Datapath;
use crate::settings::WorkerId;
use std::time::{Duration, Instant};

/// Longest wait for a worker to execute a command.
const WORKER_WAIT_MAX: Duration = Duration::from_secs(20);
/// A wait of this length is the first that is warned of; then one twice as long, and so on.
const WARN_WAIT_MIN: Duration = Duration::from_secs(1);
/// Time between two checks of the workers.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);
/// Time that one check counts for at most, so that time in which the control side itself did not
/// run does not count as waiting.
const LOOK_COUNTED_MAX: Duration = Duration::from_millis(1);

/// The time that the control side has waited, by its own checks.
struct Backoff {
    looked: Instant,
    waited: Duration,
    warn_at: Duration,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { looked: Instant::now(), waited: Duration::ZERO, warn_at: WARN_WAIT_MIN }
    }

    fn look(&mut self) {
        let now = Instant::now();
        self.waited += (now - self.looked).min(LOOK_COUNTED_MAX);
        self.looked = now;
    }

    /// True if a warning of the wait is due.
    fn warns(&mut self) -> bool {
        let due = self.waited >= self.warn_at;
        if due {
            self.warn_at *= 2;
        }
        due
    }
}

impl Datapath {
    /// Waits until all workers have executed their commands. A thread that gets no CPU is waited
    /// for; one that does not answer for long is given up, until it answers again.
    pub(crate) fn wait_for_workers(&mut self) {
        let mut backoff = Backoff::new();
        loop {
            self.read_all_reports();
            let lagging = self.lagging();
            if lagging.is_empty() {
                break;
            }
            if self.config.manual {
                self.step();
            } else {
                std::thread::sleep(LOOK_INTERVAL);
            }
            backoff.look();
            if backoff.waited > WORKER_WAIT_MAX {
                self.give_up(&lagging);
            } else if backoff.warns() {
                let ms = backoff.waited.as_millis();
                for (_, id) in lagging {
                    (self.config.warn)(&format!("blocked {ms} ms waiting for {id}"));
                }
            }
        }
        // Reports that came during the last check.
        self.read_all_reports();
    }

    /// Waits until no packet meets a decision from before the changes so far. Does not wait for a
    /// worker that was given up.
    pub(crate) fn complete_changes(&mut self) {
        let mut backoff = Backoff::new();
        let grace = self.config.domain.grace();
        while !self.config.domain.passed(grace) {
            let stuck = self.workers.iter().flatten().any(|w| w.stuck);
            if stuck || backoff.waited > WORKER_WAIT_MAX {
                return;
            }
            self.look(&mut backoff);
        }
        self.drive_tickets();
        while self.tickets.searching().is_some() {
            self.drive_tickets();
        }
    }

    /// Lets workers run until the next check.
    fn look(&mut self, backoff: &mut Backoff) {
        match self.config.manual {
            true => drop(self.step()),
            false => std::thread::sleep(LOOK_INTERVAL),
        }
        backoff.look();
    }

    /// Waits until workers are done with packets that the control side gave them
    /// ([`Datapath::execute`], [`port::Port::inject`]), at most a second. For test suites that
    /// check at once what happened to a packet.
    pub fn finish_packets(&mut self) {
        self.wait_for_workers();
        let mut backoff = Backoff::new();
        let mut grace = None;
        while backoff.waited < WARN_WAIT_MIN {
            let taken = self.ports.values().all(|p| p.port.all_taken());
            // The worker that took the last packet is online until it has sent the packet.
            match grace.filter(|_| taken) {
                None => grace = taken.then(|| self.config.domain.grace()),
                Some(grace) if self.config.domain.passed(grace) => break,
                Some(_) => {}
            }
            match self.config.manual {
                true => drop(self.step()),
                false => std::thread::sleep(LOOK_INTERVAL),
            }
            backoff.look();
        }
        self.read_all_reports();
    }

    /// Workers that have commands to execute, or a receive queue to give back.
    fn lagging(&mut self) -> Vec<(usize, WorkerId)> {
        let queues = self.ports.values().flat_map(|p| &p.rxqs);
        let owing: Vec<usize> = queues.filter(|q| q.moving).filter_map(|q| q.owner).collect();
        let workers = self.workers.iter_mut().enumerate();
        let lagging = workers.filter_map(|(worker_no, w)| w.as_mut().map(|w| (worker_no, w)));
        lagging
            .filter_map(|(worker_no, w)| {
                let lagging = !w.is_settled() || owing.contains(&worker_no);
                (lagging && !w.stuck).then_some((worker_no, w.id))
            })
            .collect()
    }

    fn give_up(&mut self, lagging: &[(usize, WorkerId)]) {
        for (worker_no, id) in lagging {
            if let Some(Some(w)) = self.workers.get_mut(*worker_no) {
                w.stuck = true;
                (self.config.warn)(&format!("{id} does not answer: changes go on without it"));
            }
        }
    }
}
