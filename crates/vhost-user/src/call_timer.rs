//! Measures what a guest's violations cost: the cycles of calls on its rings.
//!
//! Reading the clock costs as much as a packet. So calls on a ring are timed only for a while after
//! a call with a violation; that first call itself is not measured.

use sync::cycles;
use vhost::Moved;

/// Calls on a ring that are timed after a call with a violation.
const CALLS_TIMED: u32 = 256;

/// Decides which calls on a ring are timed.
#[derive(Default)]
pub(crate) struct CallTimer {
    /// Calls left to be timed.
    left: u32,
}

impl CallTimer {
    /// A call begins. Returns the time if the call is timed.
    #[inline]
    pub fn begin(&self) -> Option<u64> {
        (self.left > 0).then(cycles)
    }

    /// A call that began at `began` ended with the result `moved`. Returns the cycles lost: those
    /// of the whole call if it met a violation, or read as many descriptors as a call may.
    #[inline]
    pub fn end(&mut self, began: Option<u64>, moved: &Moved) -> u64 {
        let wrong = moved.has_errors || moved.exhausted;
        if began.is_none() && !wrong { 0 } else { self.settle(began, wrong) }
    }

    #[cold]
    fn settle(&mut self, began: Option<u64>, wrong: bool) -> u64 {
        if !wrong {
            self.left -= 1;
            return 0;
        }
        self.left = CALLS_TIMED;
        began.map_or(0, |began| cycles().saturating_sub(began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_timed_for_a_while_after_a_violation() {
        let (mut timer, good) = (CallTimer::default(), Moved::default());
        for wrong in [Moved { has_errors: true, ..good }, Moved { exhausted: true, ..good }] {
            assert!(timer.begin().is_none(), "honest guests are not timed");
            assert_eq!(timer.end(None, &wrong), 0);
            for _ in 0..CALLS_TIMED {
                let began = timer.begin();
                assert!(began.is_some());
                assert_eq!(timer.end(began, &good), 0, "what is right costs the guest nothing");
            }
        }
        timer.end(None, &Moved { has_errors: true, ..good });
        let began = timer.begin().map(|_| 1);
        assert!(timer.end(began, &Moved { has_errors: true, ..good }) > 0);
    }
}
