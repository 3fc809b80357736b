//! The atomics and cells that the lock-free code of this crate uses. The models in `tests/model.rs`
//! compile the same code with another module of this name, whose types try every order of loads and
//! stores.

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use std::sync::{Arc, Mutex};

/// Failed attempts after which the core is yielded: about a microsecond. The thread that is waited
/// for may have lost its core by then.
const SPINS_MAX: usize = 64;

/// [`std::cell::UnsafeCell`] with the interface that a model can watch.
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer to the content, which no other thread uses meanwhile.
    #[inline(always)]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Waits after a failed attempt, of which there were `attempts` before. Every [`SPINS_MAX`]th time
/// it yields the core.
pub(crate) fn wait(attempts: usize) {
    match attempts % SPINS_MAX {
        0 => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}
