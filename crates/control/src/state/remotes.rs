//! In-band control of a bridge.

use ofproto::InBand;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};

/// What a bridge's hidden flows are made of.
#[derive(Debug, Default)]
pub struct Remotes {
    /// Controllers and managers that are reached in-band.
    pub all: BTreeSet<SocketAddrV4>,
    /// The queue of their packets.
    pub queue: Option<u32>,
    /// What the flows that are there were made of.
    pub applied: InBand,
    /// Addresses of controllers and managers to which the kernel has no route; the log has named
    /// each of these once.
    pub unreachable: BTreeSet<Ipv4Addr>,
}

impl Remotes {
    /// True if there are hidden flows, or some are missing.
    pub fn is_used(&self) -> bool {
        !self.all.is_empty() || !self.applied.remotes.is_empty()
    }
}
