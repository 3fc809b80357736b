//! Limits the work that the front-ends of a socket can cause: when the budget is used up, the
//! threads that serve them sleep.

use std::time::{Duration, Instant};

/// Units that can be used at once. The start of a guest with 64 queue pairs takes about 2000: six
/// messages for each ring, three of which take the ring from its worker and give it back.
const UNITS_MAX: u32 = 10_000;
/// Units added per second. A unit is a message, or a ring that is taken from the workers and given
/// back (some microseconds here, and on each core that polls): together a few percent of a core.
const UNITS_PER_SECOND: u32 = 2_000;

/// Units that a connection costs, whatever is sent on it: a thread starts and ends.
pub(crate) const CONNECTION_UNITS: u32 = 20;

/// Units left of the budget, and when units were last added.
pub(crate) struct Budget {
    left: f64,
    at: Instant,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { left: UNITS_MAX.into(), at: Instant::now() }
    }
}

impl Budget {
    /// Uses `units`; returns how long to sleep until the units used are available.
    pub fn spend(&mut self, units: u32, now: Instant) -> Option<Duration> {
        let came = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + came * f64::from(UNITS_PER_SECOND)).min(UNITS_MAX.into());
        self.left -= f64::from(units);
        (self.left < 0.0).then(|| Duration::from_secs_f64(-self.left / f64::from(UNITS_PER_SECOND)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_budget_is_waited_for() {
        let mut budget = Budget::default();
        let start = budget.at;
        for _ in 0..UNITS_MAX {
            assert_eq!(budget.spend(1, start), None);
        }
        let rest = budget.spend(UNITS_PER_SECOND, start).unwrap();
        assert!((rest.as_secs_f64() - 1.0).abs() < 1e-6, "{rest:?}");
        assert_eq!(budget.spend(1, start + Duration::from_secs(2)), None);
    }
}
