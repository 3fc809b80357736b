//! Counters of the daemon as they were in the last minute and hour.

use std::collections::{BTreeMap, VecDeque};

/// Seconds of history kept for the rates, and minutes.
const HISTORY: usize = 60;

/// Totals once a second over the last minute, and once a minute over the last hour.
#[derive(Default)]
pub struct Coverage {
    history: VecDeque<BTreeMap<String, u64>>,
    minutes: VecDeque<BTreeMap<String, u64>>,
    samples: usize,
}

impl Coverage {
    /// Call once a second with [`totals`].
    pub fn sample(&mut self, totals: BTreeMap<String, u64>) {
        self.samples += 1;
        if self.samples.is_multiple_of(60) {
            self.minutes.push_front(totals.clone());
            self.minutes.truncate(HISTORY);
        }
        self.history.push_front(totals);
        self.history.truncate(HISTORY + 1);
    }

    /// True if the counter is larger in `totals` than when it was sampled last.
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

    /// Average per second over the last hour. What was counted in a part of it, as the daemon is
    /// younger, is spread over the whole hour.
    pub fn hourly_rate(&self, name: &str, now: u64) -> f64 {
        let then = self.minutes.get(HISTORY - 1).and_then(|t| t.get(name)).copied().unwrap_or(0);
        now.saturating_sub(then) as f64 / 3600.0
    }
}

/// How many flows are cached in the long run.
#[derive(Default)]
pub struct Flows {
    /// The mean of the latest number and this mean before.
    pub mean: u64,
    /// The largest number.
    pub most: u64,
}

impl Flows {
    /// Call once a second with their number.
    pub fn sample(&mut self, flows: u64) {
        self.most = self.most.max(flows);
        self.mean = (self.mean + flows) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(n: u64) -> BTreeMap<String, u64> {
        BTreeMap::from([("x".into(), n)])
    }

    #[test]
    fn what_an_hour_saw_is_spread_over_it() {
        let mut c = Coverage::default();
        c.sample(totals(0));
        assert_eq!(c.hourly_rate("x", 7200), 2.0, "of a daemon that runs for a second");
        // Ten a second, for more than an hour.
        (1..=4000).for_each(|second| c.sample(totals(second * 10)));
        let rate = c.hourly_rate("x", 40_000);
        assert!((9.5..=10.5).contains(&rate), "{rate}");
        // Then nothing: the minute forgets it at once, the hour slowly.
        (0..120).for_each(|_| c.sample(totals(40_000)));
        assert_eq!(c.rate("x", 40_000, 60), 0.0);
        let rate = c.hourly_rate("x", 40_000);
        assert!((9.0..=9.9).contains(&rate), "{rate}");
    }
}
