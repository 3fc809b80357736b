//! How busy receive queues and workers were lately: counters as they were, every five seconds of
//! the last minute.

use datapath::{PmdInfo, RxqInfo, WorkerId};
use std::collections::VecDeque;

/// Seconds between two samples.
const INTERVAL: u64 = 5;
/// Samples of a minute, as long as OVS looks back.
const SAMPLES: usize = 12;

/// Counters at one time.
#[derive(Clone, Default)]
pub struct Sample {
    /// Receive queues, with the cycles that each took.
    pub queues: Vec<RxqInfo>,
    /// Workers, with the cycles that each had.
    pub pmds: Vec<PmdInfo>,
}

/// The last minute.
#[derive(Default)]
pub struct Usage {
    /// Oldest first.
    samples: VecDeque<Sample>,
    /// When the last one was due; None: it was not looked at the time yet.
    sampled_ms: Option<u64>,
}

impl Usage {
    /// Notes the counters, if it is time to.
    pub fn sample(&mut self, now_ms: u64, counters: impl FnOnce() -> Sample) {
        let last_ms = *self.sampled_ms.get_or_insert(now_ms);
        if now_ms < last_ms + INTERVAL * 1000 {
            return;
        }
        self.sampled_ms = Some(now_ms);
        self.samples.push_back(counters());
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    /// True if there is a sample with this worker. Without one, the worker is too young to say how
    /// busy it is.
    pub fn knows(&self, worker: WorkerId) -> bool {
        self.samples.back().is_some_and(|s| s.pmds.iter().any(|p| p.worker == worker))
    }

    /// What `now` has more than `secs` seconds ago, or since the first sample; counters that were
    /// cleared meanwhile count from then on.
    pub fn since(&self, secs: u64, mut now: Sample) -> Sample {
        let back = (secs / INTERVAL) as usize;
        let Some(then) = self.samples.get(self.samples.len().saturating_sub(back)) else {
            return now;
        };
        for q in &mut now.queues {
            let same = |t: &&RxqInfo| (t.port, t.queue, t.worker) == (q.port, q.queue, q.worker);
            if let Some(t) = then.queues.iter().find(same) {
                q.cycles = since(q.cycles, t.cycles);
            }
        }
        for p in &mut now.pmds {
            if let Some(t) = then.pmds.iter().find(|t| t.worker == p.worker) {
                p.perf.busy_cycles = since(p.perf.busy_cycles, t.perf.busy_cycles);
                p.perf.idle_cycles = since(p.perf.idle_cycles, t.perf.idle_cycles);
            }
        }
        now
    }
}

fn since(now: u64, then: u64) -> u64 {
    now.checked_sub(then).unwrap_or(now)
}

/// `-secs N` as OVS takes it: whole intervals, a minute at most; a minute where it says nothing
/// useful.
pub fn seconds(args: &[String]) -> u64 {
    let given = args.iter().position(|a| a == "-secs").and_then(|i| args.get(i + 1));
    let longest = INTERVAL * SAMPLES as u64;
    match given.and_then(|n| n.parse::<u64>().ok()) {
        Some(n) if (1..=longest).contains(&n) => n.next_multiple_of(INTERVAL),
        _ => longest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_whole_intervals() {
        let args = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        // As the installed ovs-vswitchd 3.1 answers.
        for (text, want) in [
            ("", 60),
            ("-secs 0", 60),
            ("-secs 1", 5),
            ("-secs 6", 10),
            ("-secs 59", 60),
            ("-secs 61", 60),
            ("-secs x", 60),
            ("-secs", 60),
            ("-pmd 0 -secs 7", 10),
        ] {
            assert_eq!(seconds(&args(text)), want, "{text}");
        }
    }

    fn counters(cycles: u64) -> Sample {
        let queue = RxqInfo {
            port: 1,
            name: "p".into(),
            queue: 0,
            worker: Some(WorkerId::Pmd(1)),
            pinned: false,
            cycles,
            packets: 0,
        };
        Sample { queues: vec![queue], pmds: Vec::new() }
    }

    #[test]
    fn usage_is_that_of_the_last_seconds() {
        let mut usage = Usage::default();
        let of = |u: &Usage, secs, now| u.since(secs, counters(now)).queues[0].cycles;
        assert_eq!(of(&usage, 60, 7), 7, "nothing to compare with");
        for i in 1..=20u64 {
            usage.sample(i * 5000, || counters(i * i));
            usage.sample(i * 5000 + 4000, || panic!("too early"));
        }
        assert_eq!(of(&usage, 5, 405), 405 - 20 * 20);
        assert_eq!(of(&usage, 10, 405), 405 - 19 * 19);
        assert_eq!(of(&usage, 60, 405), 405 - 9 * 9);
        assert_eq!(of(&usage, 60, 5), 5, "cleared");
        assert!(!usage.knows(WorkerId::Pmd(1)), "no sample has it");
    }
}
