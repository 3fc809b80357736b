//! Counters of moved packets, per queue handle.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sums over the queues of a socket since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets moved.
    pub packets: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Packets dropped. Received: chains that are larger than any buffer, bad buffers. Sent: no
    /// guest, or no queue enabled, or larger than the guest's buffers.
    pub dropped: u64,
    /// Further attempts because the guest's queue was full.
    pub retries: u64,
}

/// The counters of one queue handle; only its owner writes.
#[repr(align(128))]
#[derive(Default)]
pub struct Slot {
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
    retries: AtomicU64,
}

impl Slot {
    /// Adds to the counters. There is one writer, so plain loads and stores are enough.
    #[inline]
    pub fn count(&self, add: &Counters) {
        let bump = |counter: &AtomicU64, n: u64| {
            if n > 0 {
                counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
            }
        };
        bump(&self.packets, add.packets);
        bump(&self.bytes, add.bytes);
        bump(&self.dropped, add.dropped);
        bump(&self.retries, add.retries);
    }

    /// Adds the counters to a sum.
    pub fn add_to(&self, sum: &mut Counters) {
        sum.packets += self.packets.load(Ordering::Relaxed);
        sum.bytes += self.bytes.load(Ordering::Relaxed);
        sum.dropped += self.dropped.load(Ordering::Relaxed);
        sum.retries += self.retries.load(Ordering::Relaxed);
    }
}
