//! The state of a translation, in one struct for each concern; [`super::xlate::Xlate`] has them
//! all.

use super::effects::Effects;
use super::failure::Failure;
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

/// Depth to which tables that lead back, groups and patch ports may nest: OVS's limit.
pub(super) const DEPTH_MAX: usize = 64;

/// What a translation reads: the tables that were published when it began.
pub(super) struct Snapshot<'a> {
    pub shared: &'a Shared,
    pub guard: Guard<'a>,
    pub published: &'a PublishedState,
    pub underlay: &'a Underlay,
    /// The version of flow tables and groups that is used.
    pub version: u64,
}

/// The tunnel from which the packet came, and the outer header that it may get.
pub(super) struct Outer<'o> {
    /// The address to which the packet's tunnel came: no packet is sent there.
    pub dst: IpAddr,
    /// The packet was decapsulated.
    pub received: bool,
    /// Tables see the outer packet now.
    pub encapsulated: bool,
    /// Bytes of headers that the outer packet has more than the one that was received.
    pub header_bytes: u32,
    /// Geneve options of the received outer header.
    pub options: &'o [u8],
    /// Fields `tun_metadataN`, as the actions made them.
    pub fields: Vec<TunMetadata>,
    /// Fields `tun_metadataN` of the received packet, for `ofproto/trace`.
    pub first: Vec<TunMetadata>,
    /// Bits of the fields `tun_metadataN` that were read, for `ofproto/trace`.
    pub wc: Vec<TunMetadata>,
    /// The other fields of the received outer header.
    pub outer: frozen::Outer,
}

/// The rule whose actions are executed.
pub(super) struct Running {
    pub table: u8,
    pub cookie: u64,
    /// The rule's credit id.
    pub rule: Option<u32>,
    /// True: no flow matched, and controllers get the packet.
    pub no_flow: bool,
    /// True: the rule is the table-miss flow (priority 0, matches everything).
    pub miss_flow: bool,
    /// The cookie of the first rule in this bridge, under which the action set is executed.
    pub first_cookie: Option<u64>,
    /// What the actions belong to: a packet-out, buckets, the action set.
    pub origin: Origin,
}

/// Whether execution has ended, why, and what is left to do later.
#[derive(Default)]
pub(super) struct End<'a> {
    /// The rest of this action list is skipped, and of all lists that led to it.
    pub exit: bool,
    /// The rest of this action list is skipped, but not of the lists that led to it (expired TTL).
    pub stopped: bool,
    /// An exit action or a pause ended the list, which also ends the list around a clone.
    pub exited: bool,
    /// The packet is dropped for this reason, and no action is executed any more.
    pub failed: Option<Drop>,
    /// Instructions for after the recirculation, collected while lists end.
    pub rest: Option<Vec<Instruction>>,
    /// What the log is to say of this translation.
    pub failure: Option<Box<Failure>>,
    /// What pauses the pipeline until a controller resumes it.
    pub paused: Option<Pause<'a>>,
}

/// The action `controller(pause)`, and the rule that has it, which the packet-in names.
pub(super) struct Pause<'a> {
    pub action: &'a Action,
    pub table: u8,
    pub cookie: u64,
    /// As in [`Running`].
    pub miss_flow: bool,
}

/// The state of connection tracking.
pub(super) struct CtState {
    /// The packet was tracked, and tables may match on its `ct` fields.
    pub tracked: bool,
    /// The next lookup uses the connection's original addresses.
    pub original: bool,
}

/// The headers between Ethernet and the network layer.
#[derive(Default)]
pub(super) struct Layers {
    /// Number of tags under two others, for which the key has no room.
    pub hidden: usize,
    /// Number of MPLS label stack entries in the key.
    pub labels: u8,
    /// The packet must be parsed again before its upper layers are valid.
    pub was_mpls: bool,
    /// Operations in front of this one do not change any more: copies of the packet share them.
    pub sealed: usize,
    /// Headers in the key that actions added.
    pub own: Option<Box<Own>>,
}

/// State of the packet at this point, besides its key.
pub(super) struct PacketState<'a> {
    /// Its action set.
    pub set: Vec<&'a Action>,
    /// What `push` saved: values, and their lengths in bits.
    pub stack: Vec<(u128, u16)>,
    pub ct: CtState,
    pub layers: Layers,
}

/// The result of a translation.
pub(super) struct Answer<'o> {
    pub decision: &'o mut Decision,
    pub effects: Effects,
    /// The `ports_credit` of bridges of which the decision depends on which ports they have.
    pub asked: Vec<u32>,
    /// The `ports_credit` of bridges to which the packet came from other bridges.
    pub visited: Vec<u32>,
    /// Frozen states that the decision names, and the one with which it began.
    pub holds: Vec<Arc<Kept>>,
    /// What collectors are to know of the decision's packets.
    pub export: Exporting,
}

/// Which mirrors have got the packet.
#[derive(Default)]
pub(super) struct Mirroring {
    /// Mirrors of what the input port receives have not got the packet yet.
    pub fresh: bool,
    /// Mirrors that have got the packet in this bridge, a bit each.
    pub met: u32,
    /// The packet that is sent now is a mirror's copy.
    pub copying: bool,
    /// Bytes to which the copy is truncated; 0: not at all.
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
            header_bytes: 0,
            options: &[],
            fields: Vec::new(),
            first: Vec::new(),
            wc: Vec::new(),
            outer: frozen::outer(key),
        }
    }
}

/// The packet's state, to be restored after a clone, a bucket or another bridge.
pub(super) struct Saved {
    pub key: Key,
    pub was_mpls: bool,
    pub labels: u8,
    pub exit: bool,
    pub tracked: bool,
    pub tun: Vec<TunMetadata>,
}

/// Where the actions that are executed come from, for the reason of packet-ins (OpenFlow 1.4 and
/// later).
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

/// How much of its budget a translation has used.
#[derive(Default)]
pub(super) struct Spent {
    /// Number of tables that lead back, groups and patch ports around the present point.
    pub depth: usize,
    /// The first table was looked up, or a controller's actions are executed.
    pub begun: bool,
    pub resubmits: usize,
    pub nesting: usize,
    pub steps: usize,
    pub ops: usize,
}

/// Headers that actions put in front of the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Headers {
    /// MPLS label stack entries, behind the packet's Ethernet header.
    Entry,
    /// An Ethernet header and MPLS label stack entries, in front of the whole frame.
    Frame,
    /// A network service header, and what follows, in front of the whole packet.
    Nsh,
}

impl Headers {
    /// Bytes of line 0 of the key that are theirs alone. Line 1 is theirs, too.
    pub fn bytes(self) -> Range<usize> {
        match self {
            Headers::Entry => at::IP_SRC..at::VLAN1,
            Headers::Frame => at::ETH_DST..at::IN_PORT,
            // A decision depends on addresses that are written to the packet, as in OVS.
            Headers::Nsh => at::ETH_TYPE..at::IN_PORT,
        }
    }
}

/// Headers that the actions added, and the bits that had been read before.
pub(super) struct Own {
    pub headers: Headers,
    pub seen: Mask,
}

/// What is known for collectors so far.
pub(super) struct Exporting {
    /// True: the packet was just received, or is a controller's, and samples may be taken.
    pub fresh: bool,
    /// The key of the received packet.
    pub first: Key,
    /// The OpenFlow port on which it came in.
    pub from: OfPort,
    /// Number of ports to which it was sent.
    pub outputs: u32,
    /// The last of these ports.
    pub last: Option<PortNo>,
    /// The flow, if NetFlow reports it.
    pub flow: Option<Box<IpFlow>>,
    pub tcp_flags: u8,
    /// Where the packet went, in NetFlow's terms.
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

/// What happens if no flow of a table matches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Miss {
    /// What the bridge is configured to do.
    Honor,
    /// Nothing: a resubmit returns.
    Ignore,
}
