//! What a translation keeps, a struct for each concern; [`super::xlate::Xlate`] has them all.

use super::effects::Effects;
use super::frozen;
use super::frozen_store::Kept;
use crate::published::{PublishedState, Shared};
use crate::tunnel as outer;
use crate::tunnel::Underlay;
use action::Decision;
use export::netflow::{IpFlow, output};
use flow::{Key, Mask, PortNo, TunMetadata, at};
use openflow::{Action, Instruction, OfPort, Reason, port};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use sync::Guard;
use telemetry::Drop;

/// How deep tables that lead back, groups and patch ports nest: as deep as in OVS.
pub(super) const DEPTH_MAX: usize = 64;

/// What a translation reads: what was published when it began.
pub(super) struct Snapshot<'a> {
    pub shared: &'a Shared,
    pub guard: Guard<'a>,
    pub published: &'a PublishedState,
    pub underlay: &'a Underlay,
    /// The version of flow tables and groups.
    pub version: u64,
}

/// What is known of the tunnel that the packet came out of, and of the outer header that it may
/// get.
pub(super) struct Outer<'o> {
    /// Where the packet's tunnel ended: no packet is sent there.
    pub dst: IpAddr,
    /// The packet came out of a tunnel.
    pub received: bool,
    /// Tables see the outer packet now.
    pub encapsulated: bool,
    /// Options of the outer header as they came.
    pub options: &'o [u8],
    /// Fields `tun_metadataN` as the actions made them.
    pub fields: Vec<TunMetadata>,
    /// Fields `tun_metadataN` as the packet brought them; for `ofproto/trace`.
    pub first: Vec<TunMetadata>,
    /// Bits of the fields `tun_metadataN` that were looked at; for `ofproto/trace`.
    pub wc: Vec<TunMetadata>,
    /// The outer header's other fields as they came.
    pub outer: frozen::Outer,
}

/// The rule whose actions run.
pub(super) struct Running {
    pub table: u8,
    pub cookie: u64,
    /// Its credit id.
    pub rule: Option<u32>,
    /// No flow matched, and controllers get the packet.
    pub no_flow: bool,
    /// True if the rule is the table-miss flow: priority 0, matches everything.
    pub miss_flow: bool,
    /// The cookie of the first rule met in this bridge: the action set is executed under it.
    pub first_cookie: Option<u64>,
    /// What the actions belong to: a packet-out, buckets, the action set.
    pub origin: Origin,
}

/// Whether the actions have ended, why, and what is left to do when the translation goes on later.
#[derive(Default)]
pub(super) struct End<'a> {
    /// The rest of this action list is skipped, and of all that led to it.
    pub exit: bool,
    /// The rest of this action list is skipped, but not of those that led to it (expired TTL).
    pub stopped: bool,
    /// Skipped because of an exit action, which also ends the list around a clone.
    pub exited: bool,
    /// The packet is dropped for this reason, and nothing more runs.
    pub failed: Option<Drop>,
    /// Instructions for after the recirculation, while unwinding to it.
    pub rest: Option<Vec<Instruction>>,
    /// A controller is to say when they run.
    pub paused: Option<&'a Action>,
}

/// What connection tracking said.
pub(super) struct CtState {
    /// Connection tracking saw the packet, and tables may match what it said.
    pub tracked: bool,
    /// The next lookup is with the connection's original addresses.
    pub original: bool,
}

/// Headers between Ethernet's and the network layer's.
#[derive(Default)]
pub(super) struct Layers {
    /// Tags pushed over two others, out of the key's sight.
    pub hidden: usize,
    /// MPLS label stack entries that the key knows.
    pub labels: u8,
    /// The packet must be parsed again before its upper layers mean anything.
    pub was_mpls: bool,
    /// Headers in the key that no packet brought.
    pub own: Option<Box<Own>>,
}

/// What belongs to the packet at this point of its way, besides its key.
pub(super) struct PacketState<'a> {
    /// Its action set.
    pub set: Vec<&'a Action>,
    /// What `push` saved: values and their bits.
    pub stack: Vec<(u128, u16)>,
    pub ct: CtState,
    pub layers: Layers,
}

/// What the caller gets at the end.
pub(super) struct Answer<'o> {
    pub decision: &'o mut Decision,
    pub effects: Effects,
    /// Frozen states that the decision names, and the one that it began with.
    pub holds: Vec<Arc<Kept>>,
    /// What collectors are to get of the packets of this decision.
    pub export: Exporting,
}

/// What mirrors have seen of the packet.
#[derive(Default)]
pub(super) struct Mirroring {
    /// The mirrors of the port that the packet came in on have not got it yet.
    pub fresh: bool,
    /// Mirrors that have got the packet in this bridge, a bit each.
    pub met: u32,
    /// What is sent now is a mirror's copy.
    pub copying: bool,
    /// The copy is cut to this many bytes; 0: it is whole.
    pub snaplen: u16,
}

impl Default for Running {
    fn default() -> Self {
        let (rule, first_cookie, origin) = (None, None, Origin::default());
        Running {
            table: 0,
            cookie: u64::MAX,
            rule,
            no_flow: false,
            miss_flow: false,
            first_cookie,
            origin,
        }
    }
}

impl Outer<'_> {
    pub fn of(key: &Key) -> Self {
        Outer {
            dst: outer::destination(key),
            received: key.u8(at::FLAGS) & flow::flag::TUNNEL != 0,
            encapsulated: false,
            options: &[],
            fields: Vec::new(),
            first: Vec::new(),
            wc: Vec::new(),
            outer: frozen::outer(key),
        }
    }
}

/// A packet's state while a copy of it goes through a clone, a bucket or another bridge.
pub(super) struct Saved {
    pub key: Key,
    pub was_mpls: bool,
    pub labels: u8,
    pub exit: bool,
    pub tracked: bool,
    pub tun: Vec<TunMetadata>,
}

/// Where the actions that run now come from, for the reason of packet-ins (1.4 and later).
#[derive(Clone, Copy, Default)]
pub(super) struct Origin {
    pub packet_out: bool,
    pub groups: u32,
    pub set: bool,
}

impl Origin {
    pub fn reason(self) -> Reason {
        match self {
            Origin { packet_out: true, .. } => Reason::PacketOut,
            Origin { groups: 1.., .. } => Reason::Group,
            Origin { set: true, .. } => Reason::ActionSet,
            _ => Reason::Action,
        }
    }
}

/// What a translation has used up.
#[derive(Default)]
pub(super) struct Spent {
    /// Tables that lead back, groups and patch ports that the translation is within.
    pub depth: usize,
    /// The first table was looked up, or actions of a controller's packet run.
    pub begun: bool,
    pub resubmits: usize,
    pub nesting: usize,
    pub steps: usize,
    pub ops: usize,
}

/// What is in front of what the packet brought.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Headers {
    /// MPLS entries, behind the packet's Ethernet header.
    Entry,
    /// A whole frame with MPLS entries.
    Frame,
}

impl Headers {
    /// Their bytes in line 0 of the key. Line 1 is theirs, too.
    pub fn bytes(self) -> Range<usize> {
        match self {
            Headers::Entry => at::IP_SRC..at::VLAN1,
            Headers::Frame => at::ETH_DST..at::IN_PORT,
        }
    }
}

/// Headers that a packet got by its own actions, and the bits that were looked at before that.
pub(super) struct Own {
    pub headers: Headers,
    pub seen: Mask,
}

/// What was found out for collectors so far.
pub(super) struct Exporting {
    /// The packet is fresh from a port, or from a controller, and samples may be taken of it.
    pub fresh: bool,
    /// The packet as it came.
    pub first: Key,
    /// The OpenFlow port that it came from.
    pub from: OfPort,
    /// Ports that it was sent to.
    pub outputs: u32,
    /// The last of them.
    pub last: Option<PortNo>,
    /// The flow, if NetFlow is to report it.
    pub flow: Option<Box<IpFlow>>,
    pub tcp_flags: u8,
    /// Where the packet went, as NetFlow says it.
    pub output: u16,
}

impl Default for Exporting {
    fn default() -> Self {
        Exporting {
            fresh: false,
            first: Key::ZERO,
            from: port::ANY,
            outputs: 0,
            last: None,
            flow: None,
            tcp_flags: 0,
            output: output::DROP,
        }
    }
}

/// What a table without a match means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Miss {
    /// The bridge's rule for misses.
    Honor,
    /// Nothing (resubmit).
    Ignore,
}
