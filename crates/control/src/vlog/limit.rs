//! The limit on messages from one place in the source: a token bucket.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Messages in a row that pass.
pub const BURST: u32 = 200;
/// Messages per second that pass after that.
pub const RATE: u32 = 5;

/// One place that logs; the macros keep one for each of their uses.
pub struct Site {
    state: Mutex<State>,
}

struct State {
    burst: u32,
    rate: u32,
    tokens: f64,
    last: Option<Instant>,
    dropped: u32,
    first_dropped: Option<Instant>,
    last_dropped: Option<Instant>,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) admitted: bool,
    pub(super) dropped: Option<Dropped>,
}

/// Messages that were left out before one that passes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dropped {
    count: u32,
    since: Duration,
    latest: Duration,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Dropped {} log messages in last {} seconds (most recently, {} seconds ago) due to excessive rate",
            self.count,
            self.since.as_secs(),
            self.latest.as_secs()
        )
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    /// A place that has not logged yet.
    pub const fn new() -> Self {
        Self::with_limit(BURST, RATE)
    }

    /// A place that logs `burst` messages in a row, and `rate` a second after that.
    pub const fn with_limit(burst: u32, rate: u32) -> Self {
        Self {
            state: Mutex::new(State {
                burst,
                rate,
                tokens: burst as f64,
                last: None,
                dropped: 0,
                first_dropped: None,
                last_dropped: None,
            }),
        }
    }

    pub(super) fn admit(&self, now: Instant) -> Verdict {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(last) = state.last.replace(now) {
            let earned = now.saturating_duration_since(last).as_secs_f64() * f64::from(state.rate);
            state.tokens = (state.tokens + earned).min(f64::from(state.burst));
        }
        if state.tokens < 1.0 {
            state.dropped += 1;
            state.first_dropped.get_or_insert(now);
            state.last_dropped = Some(now);
            return Verdict { admitted: false, dropped: None };
        }
        state.tokens -= 1.0;
        Verdict { admitted: true, dropped: state.take_dropped(now) }
    }
}

impl State {
    fn take_dropped(&mut self, now: Instant) -> Option<Dropped> {
        let (first, last) = (self.first_dropped.take()?, self.last_dropped.take()?);
        let count = std::mem::take(&mut self.dropped);
        let ago = |then| now.saturating_duration_since(then);
        Some(Dropped { count, since: ago(first), latest: ago(last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let site = Site::new();
        let start = Instant::now();
        let admitted = (0..1000).filter(|_| site.admit(start).admitted).count();
        assert_eq!(admitted, BURST as usize);
        let later = site.admit(start + Duration::from_secs(2));
        assert!(later.admitted);
        let text = later.dropped.unwrap().to_string();
        assert!(text.starts_with("Dropped 800 log messages in last 2 seconds"), "{text}");
        let then = start + Duration::from_secs(2);
        assert_eq!((0..100).filter(|_| site.admit(then).admitted).count(), 2 * RATE as usize - 1);
    }
}
