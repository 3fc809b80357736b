//! How much work the front-ends of a socket may cause: their own threads rest when that is used up.

use std::time::{Duration, Instant};

/// Units that may be used at once. The start of a guest with 64 queue pairs takes about 2000: six
/// messages for each ring, three of which move it.
const UNITS_MAX: u32 = 10_000;
/// Units that come per second. A unit is a message, or a ring that is taken from the workers and
/// given back (some microseconds here, one on each core that polls): together some percent of a
/// core.
const UNITS_PER_SECOND: u32 = 2_000;

/// Units that a connection costs, whatever it says: a thread starts and ends.
pub(crate) const CONNECTION_UNITS: u32 = 20;

/// Units that are left.
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
    /// Uses `units`; returns how long to rest until what was used is there.
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
