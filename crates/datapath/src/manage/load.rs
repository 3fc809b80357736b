//! Load of PMD threads and receive queues over the last minute, in samples of five seconds.

use crate::info::BalanceCheck;

/// Length of a sample, milliseconds.
pub(crate) const SAMPLE_MS: u64 = 5000;
/// Samples that are kept: those of a minute.
pub(crate) const SAMPLES_COUNT: usize = 12;

/// The growth of a counter in each of the last samples.
#[derive(Clone, Default)]
pub(crate) struct History {
    grown: [u64; SAMPLES_COUNT],
    taken: usize,
    last: u64,
}

impl History {
    /// Adds a sample: the counter's value is `now`.
    pub fn sample(&mut self, now: u64) {
        self.grown[self.taken % SAMPLES_COUNT] = now.saturating_sub(self.last);
        self.taken += 1;
        self.last = now;
    }

    /// Growth in the last seconds (5 to 60, in steps of a sample); None: there is no sample.
    pub fn over(&self, seconds: u64) -> Option<u64> {
        let samples = (seconds * 1000).div_ceil(SAMPLE_MS).clamp(1, SAMPLES_COUNT as u64) as usize;
        let have = samples.min(self.taken);
        let recent = (self.taken - have..self.taken).map(|i| self.grown[i % SAMPLES_COUNT]);
        (have > 0).then(|| recent.sum())
    }
}

/// The load of one PMD thread, in cycles.
#[derive(Clone, Default)]
pub(crate) struct Load {
    /// Cycles in total.
    pub total: History,
    /// Cycles of iterations with packets.
    pub busy: History,
}

impl Load {
    /// True if at least this share of the last sample was busy.
    pub fn is_high(&self, percent: u64) -> bool {
        let lately = 1; // second: the last sample
        match (self.busy.over(lately), self.total.over(lately)) {
            (Some(busy), Some(total)) => (busy * 100).checked_div(total).unwrap_or(0) >= percent,
            _ => false,
        }
    }
}

/// The state of `pmd-auto-lb`.
#[derive(Default)]
pub(crate) struct AutoLb {
    pub sampled_ms: u64,
    /// Number of the last samples in a row in which a PMD thread was over the threshold.
    pub high: usize,
    /// When the balance was last checked, milliseconds.
    pub tried_ms: u64,
    /// True if no load can make queues move while cores and queues stay as they are.
    pub pointless: bool,
    /// The result of the last check, for [`super::Datapath::take_balance_check`].
    pub check: Option<BalanceCheck>,
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
