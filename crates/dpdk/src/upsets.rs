//! Resets and removals of a port's adapter, as its driver reports them: rules that were there are
//! gone, and after a reset the device neither receives nor sends until it is opened again.

use dpdk_sys as sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A device's counters, written by EAL's interrupt thread while they are watched.
#[derive(Default)]
pub(crate) struct Upsets {
    /// Resets and removals.
    all: Counter<1>,
    /// Resets alone.
    resets: Counter<0>,
}

/// A counter of resets, and with `REMOVALS` 1 of removals, too.
#[derive(Default)]
struct Counter<const REMOVALS: libc::c_int> {
    count: Arc<AtomicU32>,
    watched: bool,
}

impl<const REMOVALS: libc::c_int> Counter<REMOVALS> {
    fn watch(&mut self, port: u16) -> Arc<AtomicU32> {
        if !self.watched {
            // SAFETY: the counter lives until `end`.
            let ret = unsafe { sys::weft_eth_watch(port, REMOVALS, self.count.as_ptr()) };
            self.watched = ret == 0;
        }
        self.count.clone()
    }

    fn end(&mut self, port: u16) {
        if std::mem::take(&mut self.watched) {
            // SAFETY: registered by `watch` with the same counter.
            unsafe { sys::weft_eth_unwatch(port, REMOVALS, self.count.as_ptr()) };
        }
    }
}

impl Upsets {
    /// The counter of resets and removals; it counts from the first call on.
    pub fn watch(&mut self, port: u16) -> Arc<AtomicU32> {
        self.all.watch(port)
    }

    /// The counter of resets; it counts from the first call on.
    pub fn watch_resets(&mut self, port: u16) -> Arc<AtomicU32> {
        self.resets.watch(port)
    }

    /// Resets and removals so far.
    pub fn count(&self) -> u32 {
        self.all.count.load(Ordering::Acquire)
    }

    /// Nothing is counted any more. To be called before the device is closed.
    pub fn end(&mut self, port: u16) {
        self.all.end(port);
        self.resets.end(port);
    }
}
