//! Counters with one writer: relaxed load and store, so a plain add; any thread may read.

use crate::settings::PortStats;
use std::sync::atomic::{AtomicU64, Ordering};
use telemetry::Drop;

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

/// One worker's counters of one port.
#[repr(align(64))]
pub(crate) struct PortCell {
    pub rx_packets: Count,
    pub rx_bytes: Count,
    pub tx_packets: Count,
    pub tx_bytes: Count,
    pub tx_bursts: Count,
    pub tx_held: Count,
    pub copies: Count,
    pub punted: Count,
    pub injected: Count,
    drops: [Count; Drop::COUNT],
}

impl Default for PortCell {
    fn default() -> Self {
        PortCell {
            rx_packets: Count::default(),
            rx_bytes: Count::default(),
            tx_packets: Count::default(),
            tx_bytes: Count::default(),
            tx_bursts: Count::default(),
            tx_held: Count::default(),
            copies: Count::default(),
            punted: Count::default(),
            injected: Count::default(),
            drops: std::array::from_fn(|_| Count::default()),
        }
    }
}

impl PortCell {
    /// `n` packets ended for this reason.
    #[inline]
    pub fn lost(&self, why: Drop, n: u64) {
        self.drops[why as usize].add(n);
    }

    /// All counters as they are now.
    pub fn read(&self) -> PortStats {
        PortStats {
            rx_packets: self.rx_packets.get(),
            rx_bytes: self.rx_bytes.get(),
            tx_packets: self.tx_packets.get(),
            tx_bytes: self.tx_bytes.get(),
            tx_bursts: self.tx_bursts.get(),
            tx_held: self.tx_held.get(),
            drops: std::array::from_fn(|i| self.drops[i].get()),
            copies: self.copies.get(),
            punted: self.punted.get(),
            injected: self.injected.get(),
        }
    }
}

/// One receive queue's cost, written by whoever serves it.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct RxqCell {
    pub packets: Count,
    pub cycles: Count,
}
