//! Mirrors of a bridge: as the database has them, as the control side keeps them, as translation
//! sees them.

use crate::types::VlanSet;
use std::collections::BTreeSet;

/// Mirrors of one bridge: OVS's number, and as many as a word has bits.
pub const MIRRORS_MAX: usize = u32::BITS as usize;

/// A mirror of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSpec {
    /// Tells it from others: a mirror that changes keeps its counters.
    pub id: u128,
    /// Ports ([`crate::PortSpec::bundle`]) whose received packets are mirrored.
    pub received: BTreeSet<String>,
    /// Ports to which packets are sent that are mirrored.
    pub sent: BTreeSet<String>,
    /// Only packets of these VLANs are mirrored; None: all.
    pub vlans: Option<Box<VlanSet>>,
    /// Where the copies go.
    pub to: MirrorTo,
    /// Copies are cut to this many bytes; 0: they are whole.
    pub snaplen: u16,
}

/// Where a mirror's copies go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorTo {
    /// To this port, which then sends and receives nothing else.
    Port(String),
    /// To all ports that carry this VLAN (RSPAN).
    Vlan(u16),
}

/// A mirror in its place, with the credit id of what it sent.
pub(crate) struct Placed {
    pub spec: MirrorSpec,
    pub credit: u32,
}

/// Mirrors of a bridge as the control side keeps them: a mirror's place is its bit.
pub(crate) type Places = Vec<Option<Placed>>;

/// A mirror as translation sees it.
pub(crate) struct MirrorView {
    pub vlans: Option<Box<VlanSet>>,
    pub to: Target,
    pub snaplen: u16,
    /// Counts the packets that it mirrored.
    pub credit: u32,
    /// Mirrors, a bit each, that send to the same port or VLAN as this one, itself included: a
    /// packet that several of them mirror is copied there once.
    pub same: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Index of the bundle.
    Bundle(usize),
    Vlan(u16),
}

/// The mirrors that a port takes part in, a bit each.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mirrored {
    pub received: u32,
    pub sent: u32,
    /// Mirrors whose output port it is; it sends and receives nothing else.
    pub output: u32,
}

/// The credit ids of a bridge's mirrors.
pub(crate) fn credits(places: &Places) -> impl Iterator<Item = u32> {
    places.iter().flatten().map(|p| p.credit)
}
