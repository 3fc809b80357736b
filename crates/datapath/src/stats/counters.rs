//! Counters with one writer: a plain addition, without an atomic read-modify-write. Any thread may
//! read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter to which only its owner adds.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds. Only the owner calls this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
    /// Sets the counter to 0. Only the owner calls this.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
    /// The value. Any thread may call this.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
