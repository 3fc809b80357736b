//! What the lock-free code is made of. The models in `tests/model.rs` compile the same code with another
//! module of this name, whose types try every order of loads and stores.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Attempts between two that yield the core.
const SPINS_MAX: usize = 32;

/// Passes the time after a failed attempt, of which there were `attempts` before.
pub(crate) fn wait(attempts: usize) {
    match (attempts + 1) % SPINS_MAX {
        0 => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}

/// Asks for a cache line.
#[inline]
pub(crate) fn prefetch(line: &Line) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint; any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// A cache line of eight words.
#[repr(C, align(64))]
pub(crate) struct Line(pub [AtomicU64; 8]);

/// Lines that are all zero. Their memory is not touched: pages come when they are used.
pub(crate) fn lines(n: usize) -> Box<[Line]> {
    // SAFETY: a line is eight atomic words, for which all-zero bytes are the value 0.
    unsafe { Box::<[Line]>::new_zeroed_slice(n).assume_init() }
}
