//! Ports and their queues: descriptions, changes, statistics.

use crate::OfPort;

/// `OFPPC_*` bits (1.1+).
#[allow(missing_docs)]
pub mod port_config {
    pub const PORT_DOWN: u32 = 1;
    pub const NO_STP: u32 = 2;
    pub const NO_RECV: u32 = 4;
    pub const NO_RECV_STP: u32 = 8;
    pub const NO_FLOOD: u32 = 16;
    pub const NO_FWD: u32 = 32;
    pub const NO_PACKET_IN: u32 = 64;
}

/// `OFPPS_*` bits (1.1+).
#[allow(missing_docs)]
pub mod port_state {
    pub const LINK_DOWN: u32 = 1;
    pub const BLOCKED: u32 = 2;
    pub const LIVE: u32 = 4;
    // 1.0 only: a number of two bits.
    pub const STP_LISTEN: u32 = 0;
    pub const STP_LEARN: u32 = 1 << 8;
    pub const STP_FORWARD: u32 = 2 << 8;
    pub const STP_BLOCK: u32 = 3 << 8;
    pub const STP_MASK: u32 = 3 << 8;
}

/// `OFPPF_*` bits (1.1+) that are no plain speed, and the speed of 10 Gbit/s.
#[allow(missing_docs)]
pub mod port_features {
    pub const FD_10GB: u32 = 1 << 6;
    pub const COPPER: u32 = 1 << 11;
    pub const FIBER: u32 = 1 << 12;
    pub const AUTONEG: u32 = 1 << 13;
    pub const PAUSE: u32 = 1 << 14;
    pub const PAUSE_ASYM: u32 = 1 << 15;
}

/// A port's description. Speeds in kbit/s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortDesc {
    pub port: OfPort,
    pub hw_addr: [u8; 6],
    pub name: String,
    pub config: u32,
    pub state: u32,
    pub curr: u32,
    pub advertised: u32,
    pub supported: u32,
    pub peer: u32,
    pub curr_speed: u32,
    pub max_speed: u32,
}

/// A port's counters; u64::MAX: not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortStats {
    pub port: OfPort,
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_frame_err: u64,
    pub rx_over_err: u64,
    pub rx_crc_err: u64,
    pub collisions: u64,
    pub duration_ns: u64,
    /// Counters with names of their own (1.4+).
    pub custom: Vec<(String, u64)>,
}

/// A queue of a port, in descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Queue {
    pub port: OfPort,
    pub id: u32,
}

/// A queue's counters; u64::MAX: not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QueueStats {
    pub queue: Queue,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
    /// How long it has been there, ns; u64::MAX: not known.
    pub duration_ns: u64,
}

/// A port-mod. `config`/`mask` are [`port_config`] bits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortMod {
    pub port: OfPort,
    pub hw_addr: [u8; 6],
    pub config: u32,
    pub mask: u32,
    pub advertise: u32,
}
