//! Resets and removals of a port's adapter, as its driver reports them: rules that were there are
//! gone.

use dpdk_sys as sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A device's counter, written by EAL's interrupt thread while the device is watched.
#[derive(Default)]
pub(crate) struct Upsets {
    count: Arc<AtomicU32>,
    watched: bool,
}

impl Upsets {
    /// The counter; it counts from the first call on.
    pub fn watch(&mut self, port: u16) -> Arc<AtomicU32> {
        if !self.watched {
            // SAFETY: the counter lives until `end`.
            self.watched = unsafe { sys::weft_eth_watch(port, self.count.as_ptr()) } == 0;
        }
        self.count.clone()
    }

    /// How many so far.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Nothing is counted any more. To be called before the device is closed.
    pub fn end(&mut self, port: u16) {
        if std::mem::take(&mut self.watched) {
            // SAFETY: registered by `watch` with the same counter.
            unsafe { sys::weft_eth_unwatch(port, self.count.as_ptr()) };
        }
    }
}
