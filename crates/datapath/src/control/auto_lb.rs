//! How loaded PMD threads and receive queues were lately, and moving queues when that pays.

use crate::control::Datapath;
use crate::control::placement::variance;
use crate::settings::WorkerId;

/// Length of one sample.
const SAMPLE_MS: u64 = 5000;
/// Samples that are remembered: a minute.
const SAMPLES: usize = 12;

/// What a counter grew by in each of the last samples.
#[derive(Clone, Default)]
pub(crate) struct History {
    grown: [u64; SAMPLES],
    taken: usize,
    last: u64,
}

impl History {
    /// The counter stands at `now`.
    fn sample(&mut self, now: u64) {
        self.grown[self.taken % SAMPLES] = now.saturating_sub(self.last);
        self.taken += 1;
        self.last = now;
    }

    /// Growth in the last so many seconds (5 to 60, in steps of a sample); None without a sample.
    pub fn over(&self, seconds: u64) -> Option<u64> {
        let samples = (seconds * 1000).div_ceil(SAMPLE_MS).clamp(1, SAMPLES as u64) as usize;
        let have = samples.min(self.taken);
        let recent = (self.taken - have..self.taken).map(|i| self.grown[i % SAMPLES]);
        (have > 0).then(|| recent.sum())
    }
}

/// Cycles of one PMD thread.
#[derive(Clone, Default)]
pub(crate) struct Load {
    /// Of any kind.
    pub total: History,
    /// With packets.
    pub busy: History,
}

impl Load {
    /// Was it busy for at least this share of the last sample?
    fn is_high(&self, percent: u64) -> bool {
        let lately = 1; // second: the last sample
        match (self.busy.over(lately), self.total.over(lately)) {
            (Some(busy), Some(total)) => total > 0 && busy * 100 / total >= percent,
            _ => false,
        }
    }
}

/// The state of `pmd-auto-lb`.
#[derive(Default)]
pub(crate) struct AutoLb {
    sampled_ms: u64,
    /// Samples in a row with a PMD thread over the threshold.
    high: usize,
    /// When queues were last looked at.
    tried_ms: u64,
}

impl Datapath {
    /// Takes a sample when it is time, and moves queues if they should be.
    pub(crate) fn balance(&mut self, now_ms: u64) {
        if now_ms < self.auto_lb.sampled_ms + SAMPLE_MS {
            return;
        }
        self.auto_lb.sampled_ms = now_ms;
        for w in self.workers.iter_mut().flatten() {
            let p = w.shared.perf.read();
            w.load.busy.sample(p.busy_cycles);
            w.load.total.sample(p.busy_cycles + p.idle_cycles + p.sleep_cycles);
        }
        for q in self.ports.values_mut().flat_map(|p| &mut p.rxqs) {
            q.load.sample(q.cell.cycles.get());
        }
        self.auto_balance(now_ms);
    }

    fn auto_balance(&mut self, now_ms: u64) {
        let Some(s) = self.settings.auto_lb else { return };
        let pmds = self.workers.iter().flatten().filter(|w| w.id != WorkerId::Kernel);
        let high = pmds.filter(|w| w.load.is_high(u64::from(s.load_threshold))).count() > 0;
        self.auto_lb.high = if high { self.auto_lb.high + 1 } else { 0 };
        let due = now_ms >= self.auto_lb.tried_ms + s.interval_min * 60_000;
        if self.auto_lb.high < SAMPLES || !due {
            return;
        }
        (self.auto_lb.tried_ms, self.auto_lb.high) = (now_ms, 0);
        if self.would_improve() >= u64::from(s.improvement) {
            self.rebalance();
        }
    }

    /// By how many percent placing the queues anew would reduce the variance of the cores' load.
    pub(crate) fn would_improve(&self) -> u64 {
        let placement = self.placement(&[]);
        let at: Vec<_> = placement.queues.iter().map(|q| q.now).collect();
        let now = variance(&placement.queues, &placement.cores, &at);
        let then = variance(&placement.queues, &placement.cores, &placement.at);
        (now.saturating_sub(then) * 100).checked_div(now).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_forgets_after_a_minute() {
        let mut h = History::default();
        assert_eq!(h.over(60), None);
        (1..=20).for_each(|i| h.sample(i * i));
        assert_eq!(h.over(5), Some(400 - 361));
        assert_eq!(h.over(7), Some(400 - 324), "rounded up to samples");
        assert_eq!(h.over(60), Some(400 - 64));
        assert_eq!(h.over(600), Some(400 - 64));
    }
}
