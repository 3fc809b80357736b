//! Mirrors of a bridge: as configured in the database, as the control side keeps them, as
//! translation sees them.

use crate::types::VlanSet;
use std::collections::{BTreeSet, HashMap};

/// Mirrors of one bridge, at most: OVS's number, and the bits of a word.
pub const MIRRORS_MAX: usize = u32::BITS as usize;

/// A mirror of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSpec {
    /// Identity of the mirror: one that changes keeps its counters.
    pub id: u128,
    /// What all ports receive and send is copied; `received` and `sent` say nothing then.
    pub all: bool,
    /// Ports ([`crate::PortSpec::bundle`]) whose received packets are copied.
    pub received: BTreeSet<String>,
    /// Ports whose sent packets are copied.
    pub sent: BTreeSet<String>,
    /// Only packets of these VLANs are copied; None: all.
    pub vlans: Option<Box<VlanSet>>,
    /// Where the copies go.
    pub to: MirrorTo,
    /// Bytes to which copies are truncated; 0: not at all.
    pub snaplen: u16,
}

/// Where a mirror's copies go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorTo {
    /// Mirrored packets go to this port, which then sends and receives nothing else.
    Port(String),
    /// Mirrored packets go to all ports that carry this VLAN (RSPAN).
    Vlan(u16),
}

/// A mirror in its place, with the credit id of its copies.
pub(crate) struct Placed {
    pub spec: MirrorSpec,
    pub credit: u32,
}

/// A bridge's mirrors as the control side keeps them.
#[derive(Default)]
pub(crate) struct Places {
    /// A mirror's index is the number of its bit.
    pub placed: Vec<Option<Placed>>,
    /// The mirrors that copy all ports' packets, a bit each.
    all: u32,
    /// The mirrors that name ports, by the name of the port, a bit each. This is kept because
    /// mirrors change rarely, and each change of a port asks for it.
    named: HashMap<String, Mirrored>,
}

impl Places {
    pub fn new(placed: Vec<Option<Placed>>) -> Self {
        let (mut all, mut named) = (0, HashMap::<String, Mirrored>::new());
        for (i, placed) in placed.iter().enumerate() {
            let Some(Placed { spec, .. }) = placed else { continue };
            all |= u32::from(spec.all) << i;
            for port in spec.received.iter().filter(|_| !spec.all) {
                named.entry(port.clone()).or_default().received |= 1 << i;
            }
            for port in spec.sent.iter().filter(|_| !spec.all) {
                named.entry(port.clone()).or_default().sent |= 1 << i;
            }
        }
        Self { placed, all, named }
    }

    /// The mirrors that copy packets of a port.
    pub fn of(&self, port: &str) -> Mirrored {
        crate::work::step();
        let named = self.named.get(port).copied().unwrap_or_default();
        let (received, sent) = (named.received | self.all, named.sent | self.all);
        Mirrored { received, sent, output: 0 }
    }
}

/// A mirror as translation sees it.
pub(crate) struct MirrorView {
    pub vlans: Option<Box<VlanSet>>,
    pub to: Target,
    pub snaplen: u16,
    /// Credit id of the packets that it copied.
    pub credit: u32,
    /// The mirrors, a bit each, that send to the same port or VLAN, this one included: a packet
    /// that several of them mirror is copied there once.
    pub same: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Index of the bundle.
    Bundle(usize),
    Vlan(u16),
}

/// The mirrors of one port's packets, a bit each.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mirrored {
    pub received: u32,
    pub sent: u32,
    /// Mirrors whose output port this is: it sends and receives nothing else.
    pub output: u32,
}

/// The credit ids of a bridge's mirrors.
pub(crate) fn credits(places: &Places) -> impl Iterator<Item = u32> {
    places.placed.iter().flatten().map(|p| p.credit)
}
