//! Time: the cycle counter for costs, the coarse monotonic clock for ages.

pub use sync::cycles;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Cycles per second. Measured at the first call, which takes 10 ms.
pub fn cycles_per_second() -> u64 {
    static HZ: OnceLock<u64> = OnceLock::new();
    *HZ.get_or_init(|| {
        let (t, c) = (Instant::now(), cycles());
        std::thread::sleep(Duration::from_millis(10));
        let (dt, dc) = (t.elapsed(), cycles() - c);
        (dc as f64 / dt.as_secs_f64()) as u64
    })
}

/// A value of [`cycles`] in nanoseconds.
pub(crate) fn nanoseconds(cycles: u64) -> u64 {
    (u128::from(cycles) * 1_000_000_000 / u128::from(cycles_per_second())) as u64
}

fn monotonic(clock: libc::clockid_t) -> Duration {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place; the call is answered by the vDSO, not the kernel.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32)
}

/// Milliseconds of the monotonic clock: the unit and origin of every `*_ms` in this crate.
pub fn now_ms() -> u64 {
    let base = match STOPPED_AT.load(Relaxed) {
        0 => monotonic(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u64,
        at => at,
    };
    base + WARPED.load(Relaxed)
}

/// The time at which the clock was stopped, milliseconds; 0: it runs.
static STOPPED_AT: AtomicU64 = AtomicU64::new(0);
/// Milliseconds by which the clock was put forward.
static WARPED: AtomicU64 = AtomicU64::new(0);

/// Stops [`now_ms`], which from then on changes by [`warp_clock`] only. For test suites that
/// control time.
pub fn stop_clock() {
    STOPPED_AT.store(now_ms() - WARPED.load(Relaxed), Relaxed);
}

/// Milliseconds by which the clock may be put forward in all: nanoseconds still have 63 bits then.
const WARPED_MS_MAX: u64 = 1 << 43;

/// Puts [`now_ms`] forward by `ms`, whether it runs or is stopped, or as far as it goes.
pub fn warp_clock(ms: u64) {
    let sum = WARPED.load(Relaxed).saturating_add(ms);
    WARPED.store(sum.min(WARPED_MS_MAX), Relaxed);
}
