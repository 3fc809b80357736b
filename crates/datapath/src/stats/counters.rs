//! Counters with one writer: relaxed load and store, so a plain add; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter only its owner adds to.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds (owner only).
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
    /// Starts again (owner only).
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
    /// Reads (anyone).
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
