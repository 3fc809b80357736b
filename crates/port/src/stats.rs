//! Counters of queues, shared with the control side.

use crate::Counters;
use crate::netlink::KernelStats;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use telemetry::Drop as Reason;

/// Counters of one direction.
pub struct Direction {
    packets: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    drops: [AtomicU64; Reason::COUNT],
}

impl Default for Direction {
    fn default() -> Self {
        let [packets, bytes, errors] = Default::default();
        Direction { packets, bytes, errors, drops: [const { AtomicU64::new(0) }; Reason::COUNT] }
    }
}

impl Direction {
    /// Counts packets that were received or sent.
    pub fn pass(&self, packets: usize, bytes: usize) {
        self.packets.fetch_add(packets as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts packets that were dropped for this reason.
    pub fn drop(&self, reason: Reason, n: u64) {
        self.drops[reason as usize].fetch_add(n, Relaxed);
    }

    /// Counts an error of the device or the system that belongs to no packet.
    pub fn error(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    fn dropped(&self) -> u64 {
        self.drops.iter().map(|d| d.load(Relaxed)).sum()
    }

    fn write(&self, prefix: &str, out: &mut Counters) {
        let sums = [
            ("packets", self.packets.load(Relaxed)),
            ("bytes", self.bytes.load(Relaxed)),
            ("errors", self.errors.load(Relaxed)),
            ("dropped", self.dropped()),
        ];
        for (name, n) in sums {
            *out.entry(format!("{prefix}_{name}")).or_default() += n;
        }
        for &reason in Reason::ALL {
            match self.drops[reason as usize].load(Relaxed) {
                0 => {}
                n => drop(out.insert(format!("{prefix}_drop_{}", reason.name()), n)),
            }
        }
    }
}

/// Both directions, from the switch's point of view.
#[derive(Default)]
pub struct Stats {
    pub rx: Direction,
    pub tx: Direction,
}

impl Stats {
    /// The counters under OVSDB's names, with the kernel's own counters added. Each reason that
    /// occurred has its own `rx_drop_...` or `tx_drop_...`; `..._dropped` is their sum. The
    /// kernel's own `tx_dropped` is left out: such a packet is reported as an error of the send
    /// call, and counted here.
    pub fn counters(&self, kernel: &KernelStats) -> Counters {
        let named = [
            ("collisions", KernelStats::COLLISIONS),
            ("rx_crc_err", KernelStats::RX_CRC),
            ("rx_dropped", KernelStats::RX_DROPPED),
            ("rx_errors", KernelStats::RX_ERRORS),
            ("rx_frame_err", KernelStats::RX_FRAME),
            ("rx_missed_errors", KernelStats::RX_MISSED),
            ("rx_multicast_packets", KernelStats::MULTICAST),
            ("rx_over_err", KernelStats::RX_OVER),
            ("tx_errors", KernelStats::TX_ERRORS),
        ];
        let mut out: Counters = named.map(|(name, i)| (name.into(), kernel.0[i])).into();
        self.rx.write("rx", &mut out);
        self.tx.write("tx", &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_reasons() {
        let s = Stats::default();
        s.rx.pass(3, 180);
        s.tx.drop(Reason::TxDown, 2);
        s.tx.drop(Reason::TooLong, 1);
        let mut k = KernelStats::default();
        k.0[KernelStats::RX_DROPPED] = 10;
        let c = s.counters(&k);
        assert_eq!((c["rx_packets"], c["rx_bytes"], c["tx_dropped"]), (3, 180, 3));
        assert_eq!(c["rx_dropped"], 10);
        assert_eq!((c["tx_drop_tx_down"], c["tx_drop_too_long"]), (2, 1));
        assert_eq!(c.get("rx_drop_too_long"), None);
        assert_eq!(c.len(), 16);
    }
}
