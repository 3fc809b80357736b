//! Counters of ports and receive queues: of one worker, and summed over all workers.

use super::counters::Count;
use telemetry::Drop;

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
    /// Counts `n` packets that were dropped for this reason.
    #[inline]
    pub fn lost(&self, why: Drop, n: u64) {
        self.drops[why as usize].add(n);
    }

    /// The values of all counters.
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

/// The cost of one receive queue. The worker that serves the queue writes it.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct RxqCell {
    pub packets: Count,
    pub cycles: Count,
}

/// Counters of a port over all workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets that the port accepted for sending.
    pub tx_packets: u64,
    /// Bytes that the port accepted for sending.
    pub tx_bytes: u64,
    /// Bursts given to the port.
    pub tx_bursts: u64,
    /// How often a burst was held at the end of a vector, to wait for more packets.
    pub tx_held: u64,
    /// Dropped packets, by reason.
    pub drops: [u64; Drop::COUNT],
    /// Copies: outputs, punts and drops of a packet beyond its first.
    pub copies: u64,
    /// Packets punted to the control side.
    pub punted: u64,
    /// Packets that the control side injected.
    pub injected: u64,
}

impl Default for PortStats {
    fn default() -> Self {
        PortStats {
            rx_packets: 0,
            rx_bytes: 0,
            tx_packets: 0,
            tx_bytes: 0,
            tx_bursts: 0,
            tx_held: 0,
            drops: [0; Drop::COUNT],
            copies: 0,
            punted: 0,
            injected: 0,
        }
    }
}

impl PortStats {
    /// `(in, out)`: over all ports and with nothing in flight the two are equal.
    pub fn balance(&self) -> (u64, u64) {
        let drops: u64 = self.drops.iter().sum();
        (self.rx_packets + self.injected + self.copies, self.tx_packets + drops + self.punted)
    }

    /// Adds another port's counters.
    pub fn add(&mut self, o: &PortStats) {
        self.rx_packets += o.rx_packets;
        self.rx_bytes += o.rx_bytes;
        self.tx_packets += o.tx_packets;
        self.tx_bytes += o.tx_bytes;
        self.tx_bursts += o.tx_bursts;
        self.tx_held += o.tx_held;
        self.copies += o.copies;
        self.punted += o.punted;
        self.injected += o.injected;
        for (a, b) in self.drops.iter_mut().zip(&o.drops) {
            *a += b;
        }
    }
}
