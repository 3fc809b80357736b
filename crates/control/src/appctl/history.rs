//! Counters of the daemon as they were in the last minute.

use std::collections::{BTreeMap, VecDeque};

/// Seconds of history kept for the rates.
const HISTORY: usize = 60;

/// Totals now and, once a second, over the last minute.
#[derive(Default)]
pub struct Coverage {
    history: VecDeque<BTreeMap<String, u64>>,
}

impl Coverage {
    /// Call once a second with [`totals`].
    pub fn sample(&mut self, totals: BTreeMap<String, u64>) {
        self.history.push_front(totals);
        self.history.truncate(HISTORY + 1);
    }

    /// Is the counter larger in `totals` than when they were sampled last?
    pub fn has_grown(&self, name: &str, totals: &BTreeMap<String, u64>) -> bool {
        let before = self.history.front().and_then(|t| t.get(name)).copied().unwrap_or(0);
        totals.get(name).is_some_and(|now| *now > before)
    }

    /// Average per second over the last `seconds`.
    pub fn rate(&self, name: &str, now: u64, seconds: usize) -> f64 {
        let back = self.history.get(seconds - 1).or(self.history.back());
        let then = back.and_then(|t| t.get(name)).copied().unwrap_or(0);
        now.saturating_sub(then) as f64 / seconds as f64
    }
}
