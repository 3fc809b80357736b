//! Copies of an engine that fail. An engine may fail where a guest's memory has no page yet, or has
//! it no more: that is the guest's doing as likely as the engine's. So a port of whose copies too
//! many fail leaves its copies to the CPU for a while, and no other port loses the engine.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Failed copies of a ring in a [`WINDOW`] that do no harm, whatever share they are.
const FAILED_FREE: u64 = 100;
/// Beyond [`FAILED_FREE`], at most one copy in this many may fail.
const FAILED_ONE_OF: u64 = 100;
/// Time over which failures are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// How long the CPU then makes all copies of the port.
const BARRED_TIME: Duration = Duration::from_secs(60);

/// What became of a ring's copies.
#[derive(Default)]
pub(crate) struct Failures {
    /// Copies that the engine reported, made or failed.
    pub reported: u64,
    failed: u64,
    /// When the window began, and what was reported before.
    window: Option<(Instant, u64)>,
}

impl Failures {
    /// The next copy to be reported failed. Returns whether too many do.
    pub fn add(&mut self, now: Instant) -> bool {
        let (began, before) = *self.window.get_or_insert((now, self.reported));
        if now.duration_since(began) > WINDOW {
            (self.window, self.failed) = (Some((now, self.reported)), 1);
            return false;
        }
        self.failed += 1;
        let reported = self.reported + 1 - before;
        self.failed > FAILED_FREE && self.failed * FAILED_ONE_OF > reported
    }
}

/// Until when the CPU makes a port's copies, ms of this process; 0: it need not.
#[derive(Default)]
pub(crate) struct Barred(AtomicU64);

fn elapsed_ms(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(|| now);
    now.saturating_duration_since(start).as_millis() as u64
}

impl Barred {
    /// Takes note of the failure, which lasts from now on for a while. Returns false if it lasted
    /// already.
    pub fn begin(&self, now: Instant) -> bool {
        let until = elapsed_ms(now) + BARRED_TIME.as_millis() as u64;
        self.0.swap(until, Ordering::Relaxed) == 0
    }

    /// True if the failure lasts now.
    #[inline]
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.lasts(Instant::now())
    }

    #[cold]
    fn lasts(&self, now: Instant) -> bool {
        let lasts = elapsed_ms(now) < self.0.load(Ordering::Relaxed);
        if !lasts {
            self.0.store(0, Ordering::Relaxed);
        }
        lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_failures_or_a_small_share_do_no_harm() {
        let (now, mut few) = (Instant::now(), Failures::default());
        assert!((0..FAILED_FREE).all(|_| !few.add(now)));
        assert!(few.add(now));
        let later = now + WINDOW + Duration::from_millis(1);
        assert!(!few.add(later), "they are long ago");
        let mut share = Failures::default();
        for _ in 0..10 * FAILED_FREE {
            assert!(!share.add(now));
            share.reported += FAILED_ONE_OF + 1;
        }
    }

    #[test]
    fn a_port_gets_its_engine_back() {
        let (now, barred) = (Instant::now(), Barred::default());
        assert!(!barred.is() && barred.begin(now) && !barred.begin(now) && barred.is());
        assert!(barred.lasts(now + BARRED_TIME - Duration::from_millis(1)));
        assert!(!barred.lasts(now + BARRED_TIME + Duration::from_millis(1)));
        assert!(!barred.is());
    }
}
