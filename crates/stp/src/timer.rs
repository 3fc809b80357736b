//! Timers that are looked at, and never ring.

/// When something began, in milliseconds; None: the timer does not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timer(Option<u64>);

impl Timer {
    /// Begins anew at `now`.
    pub fn start(&mut self, now: u64) {
        self.0 = Some(now);
    }

    /// Begins as if `age` had passed already.
    pub fn start_at_age(&mut self, now: u64, age: u64) {
        self.0 = Some(now.saturating_sub(age));
    }

    pub fn stop(&mut self) {
        self.0 = None;
    }

    pub fn runs(self) -> bool {
        self.0.is_some()
    }

    /// Time since the beginning, 0 of a timer that does not run.
    pub fn age(self, now: u64) -> u64 {
        self.0.map_or(0, |since| now.saturating_sub(since))
    }

    /// True once, when `limit` has passed; the timer does not run then.
    pub fn expires(&mut self, now: u64, limit: u64) -> bool {
        let over = self.runs() && self.age(now) >= limit;
        if over {
            self.stop();
        }
        over
    }
}
