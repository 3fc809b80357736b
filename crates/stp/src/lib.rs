//! Spanning trees: which ports of a bridge forward, so that bridges and links form a tree.
//!
//! Place: on the control path. The caller hands over BPDUs, the time, links and settings, and takes
//! BPDUs to send, states of ports and the wish to flush learned addresses ([`Output`]).
//!
//! Does not know: sockets, clocks (time is an argument, in milliseconds), OpenFlow, the database.
//!
//! Invariants: a call visits each port a fixed number of times ([`Stp::steps`] and [`Rstp::steps`]
//! count; `work_is_bounded_by_ports`). Bridges that are connected agree on one root and one tree
//! (`tests/networks.rs`).
//!
//! Limits: [`STP_PORTS_MAX`] ports of a bridge, or [`RSTP_PORTS_MAX`].

pub mod bpdu;
mod classic;
mod rapid;
mod timer;

pub use classic::{Stp, StpConf, StpPort, StpPortConf};
pub use rapid::{RSTP_PORTS_MAX, Rstp, RstpConf, RstpPort, RstpPortConf};

/// Ports of a bridge that speaks STP: a number has eight bits, and 0 is none.
pub const STP_PORTS_MAX: u16 = 255;

/// Milliseconds by which a BPDU's age grows at each bridge (IEEE 802.1D-1998, 8.10.2).
pub(crate) const AGE_PER_BRIDGE_MS: u64 = 1000;

/// A bridge's identifier (IEEE 802.1D-1998, 9.2.5): 16 bits of priority, then its MAC address. The
/// lowest one is the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BridgeId(pub u64);

impl BridgeId {
    /// An identifier from priority and MAC address.
    pub fn new(priority: u16, mac: [u8; 6]) -> BridgeId {
        BridgeId(mac.iter().fold(u64::from(priority), |id, byte| id << 8 | u64::from(*byte)))
    }

    /// The priority.
    pub fn priority(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The MAC address.
    pub fn mac(self) -> [u8; 6] {
        let [_, _, mac @ ..] = self.0.to_be_bytes();
        mac
    }
}

impl std::fmt::Display for BridgeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}.{:012x}", self.priority(), self.0 & 0xffff_ffff_ffff)
    }
}

/// What a port does with frames that are no BPDUs (IEEE 802.1D-1998, 8.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// The port takes no part in the tree: its link is down.
    #[default]
    Disabled,
    /// It ends frames, and sends no BPDUs.
    Blocking,
    /// It ends frames, and waits for other bridges to object.
    Listening,
    /// It learns addresses and ends frames.
    Learning,
    /// The port forwards.
    Forwarding,
}

impl PortState {
    /// As Open vSwitch writes it.
    pub fn name(self) -> &'static str {
        match self {
            PortState::Disabled => "disabled",
            PortState::Blocking => "blocking",
            PortState::Listening => "listening",
            PortState::Learning => "learning",
            PortState::Forwarding => "forwarding",
        }
    }

    /// As Open vSwitch writes it of RSTP.
    pub fn rapid_name(self) -> &'static str {
        match self {
            PortState::Disabled => "Disabled",
            PortState::Blocking | PortState::Listening => "Discarding",
            PortState::Learning => "Learning",
            PortState::Forwarding => "Forwarding",
        }
    }
}

/// A port's place in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeRole {
    /// The port takes no part.
    Disabled,
    /// It leads to the root.
    Root,
    /// Its network reaches the root by it.
    Designated,
    /// It leads to the root, and another port does so better.
    Alternate,
    /// It leads to this bridge itself (RSTP).
    Backup,
}

impl TreeRole {
    /// As Open vSwitch writes it.
    pub fn name(self) -> &'static str {
        match self {
            TreeRole::Disabled => "disabled",
            TreeRole::Root => "root",
            TreeRole::Designated => "designated",
            TreeRole::Alternate => "alternate",
            TreeRole::Backup => "backup",
        }
    }

    /// As Open vSwitch writes it of RSTP.
    pub fn rapid_name(self) -> &'static str {
        match self {
            TreeRole::Disabled => "Disabled",
            TreeRole::Root => "Root",
            TreeRole::Designated => "Designated",
            TreeRole::Alternate => "Alternate",
            TreeRole::Backup => "Backup",
        }
    }
}

/// What a call leaves the caller to do.
#[derive(Debug, Default)]
pub struct Output {
    /// BPDUs to send, by number of the port.
    pub bpdus: Vec<(u16, bpdu::Bpdu)>,
    /// Learned addresses of the bridge are to be forgotten.
    pub flush: bool,
    /// A change of the topology was found here, which the log says.
    pub changed: bool,
}
