//! Peers that have a thread wait which must not.
//!
//! Memory that a peer shares can have whoever touches it wait in the kernel: while the peer
//! punches a hole into its file, a page fault in the hole waits until all of its pages are gone,
//! which takes some tenths of a second for a gigabyte. Nothing prevents that, so the peer pays: it
//! is left alone for sixteen times as long as it had a thread wait. To read the clock at each call
//! on a ring would cost as much as a packet, so a thread does so only for a while after it was
//! found to have waited somewhere; the kernel counts how often it has.

use crate::cpu::cycles;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shorter waits cost the peer nothing: about a millisecond.
const WAIT_CYCLES_MIN: u64 = 1 << 21;
/// How long calls are timed after a wait: about a minute.
const WATCH_CYCLES: u64 = 1 << 37;
/// A peer rests so many times as long as it had a thread wait, and no longer than a minute.
const REST_WAITS: u64 = 16;
const REST_CYCLES_MAX: u64 = WATCH_CYCLES;

/// What is known of this thread's waits.
struct Thread {
    is_watched: Cell<bool>,
    /// Cycle at which that ends.
    until: Cell<u64>,
    /// How often the thread had given up its core by itself, when that was last asked for.
    switches: Cell<i64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread { is_watched: Cell::new(false), until: Cell::new(0), switches: Cell::new(0) }
    };
}

impl Thread {
    /// True if the thread has waited since the last call.
    fn has_waited(&self) -> bool {
        let now = switches();
        self.switches.replace(now) != now
    }

    fn watch(&self, until: u64) {
        self.is_watched.set(true);
        self.until.set(until);
    }
}

/// How often this thread has given up its core by itself, as it does to wait.
fn switches() -> i64 {
    // SAFETY: plain data, for which zero is valid, and which the call writes.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nvcsw
    }
}

/// For a thread that must not wait to call now and then. `is_late`: it took unusually long since
/// the last call; if it has waited meanwhile, calls on peers' memory are timed from now on.
pub fn look(is_late: bool) {
    THREAD.with(|t| {
        if is_late && t.has_waited() {
            t.watch(cycles() + WATCH_CYCLES);
        } else if t.is_watched.get() && cycles() >= t.until.get() {
            t.is_watched.set(false);
        }
    });
}

/// This thread has slept because it had nothing to do.
pub fn slept() {
    THREAD.with(|t| {
        if t.is_watched.get() {
            t.has_waited();
        }
    });
}

/// The time at which a call on a peer's memory begins, if such calls are timed; for
/// [`Rest::ended`].
#[inline]
pub fn begin() -> Option<u64> {
    THREAD.with(|t| t.is_watched.get()).then(cycles)
}

/// Whether a peer is left alone.
#[derive(Default)]
pub struct Rest {
    /// Cycle at which that ends; 0: it is not.
    until: AtomicU64,
}

impl Rest {
    /// True if the peer's memory is not to be used at present.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0 && self.goes_on()
    }

    #[cold]
    fn goes_on(&self) -> bool {
        let goes_on = cycles() < self.until.load(Ordering::Relaxed);
        if !goes_on {
            self.until.store(0, Ordering::Relaxed);
        }
        goes_on
    }

    /// A call on the peer's memory ends that began at `began` ([`begin`]). If the thread waited in
    /// it for long, the peer is left alone.
    #[inline]
    pub fn ended(&self, began: Option<u64>) {
        if let Some(began) = began {
            self.judge(began);
        }
    }

    #[cold]
    fn judge(&self, began: u64) {
        let now = cycles();
        let took = now.saturating_sub(began);
        if took < WAIT_CYCLES_MIN || !THREAD.with(Thread::has_waited) {
            return;
        }
        let until = now + took.saturating_mul(REST_WAITS).min(REST_CYCLES_MAX);
        self.until.store(until, Ordering::Relaxed);
        THREAD.with(|t| t.watch(until + WATCH_CYCLES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn wait() -> Instant {
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        began
    }

    #[test]
    fn who_has_a_thread_wait_is_left_alone_for_long() {
        let (guilty, other) = (Rest::default(), Rest::default());
        THREAD.with(Thread::has_waited);
        look(true);
        assert!(begin().is_none(), "it has not waited");
        wait();
        look(false);
        assert!(begin().is_none(), "nor taken long");
        look(true);
        let call = begin();
        assert!(call.is_some());
        other.ended(call);
        assert!(!other.is_on());
        let (call, began) = (begin(), wait());
        guilty.ended(call);
        let waited = began.elapsed();
        assert!(guilty.is_on() && !other.is_on());
        while guilty.is_on() {}
        let rested = began.elapsed() - waited;
        assert!(rested >= 15 * Duration::from_millis(20), "{rested:?}");
        assert!(rested <= 17 * waited + Duration::from_millis(20), "{rested:?} of {waited:?}");
    }

    /// Other work of the core, and sleep, are no peer's fault.
    #[test]
    fn who_is_only_late_is_not_left_alone() {
        let rest = Rest::default();
        wait();
        look(true);
        wait();
        slept();
        let (call, began) = (begin(), Instant::now());
        while began.elapsed() < Duration::from_millis(20) {}
        rest.ended(call);
        assert!(call.is_some() && !rest.is_on());
    }
}
