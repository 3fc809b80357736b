//! An open change: its items, what is staged, and how to undo it.

use crate::events::{Regions, StagedPacket};
use crate::groups::group::GroupRec;
use crate::groups::liveness::Groups;
use crate::learned::Place;
use crate::published::BridgeView;
use crate::tables::counters::FlowRec;
use crate::tables::table::{FlowRule, Tables};
use crate::types::{BridgeId, PortSpec};
use openflow::{
    FlowMod, GROUP_ANY, GroupMod, Instruction, Match, OfError, OfPort, PortMod, Removed, TABLE_ALL,
    port,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use sync::Grace;

/// One step of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
// Nearly all are flow-mods, and each lives for its step only.
#[allow(missing_docs, clippy::large_enum_variant)]
pub enum BundleItem {
    Flow(FlowMod),
    Group(GroupMod),
    Port(PortMod),
    /// The flows that use a meter (or any: [`openflow::meter_id::ALL`]) go, so that the meter can.
    MeterUsers(u32),
    /// A packet-out, with the packet's key as parsed: decided with the flows and groups as the
    /// steps before leave them, and left to the caller to execute
    /// ([`crate::Switch::take_packets`]).
    PacketOut(Box<(openflow::PacketOut, flow::Key)>),
}

/// The steps of a bundle, made when they are needed; or why one of them is invalid.
pub type Items = Box<dyn Iterator<Item = Result<BundleItem, OfError>>>;

/// The outcome of a change: an error says which item failed.
pub type Outcome = Result<(), (usize, OfError)>;

/// Identity of a change that was begun.
#[derive(Debug, PartialEq, Eq)]
pub struct Change(pub(crate) u64);

/// What happens to a removed rule's record (counters, timeouts) when no reader sees the rule any
/// more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Goes,
    /// Another rule has the record now.
    Stays,
}

/// How to undo a step.
pub(crate) enum Undo {
    /// Remove a rule that no packet has seen.
    Added(u8, Arc<FlowRule>),
    /// Keep a rule that is still visible in the current version.
    Removed(u8, Arc<FlowRule>, Record),
    /// Restore a record.
    Record(u32, Box<FlowRec>),
    Group(Box<GroupUndo>),
    Port(Box<PortSpec>),
}

/// A change of one flow, for flow monitors.
pub(crate) enum MonitorEvent {
    Added(Arc<FlowRule>),
    /// The rule as it is, and as it was before.
    Modified(Arc<FlowRule>, Arc<FlowRule>),
    Deleted(Arc<FlowRule>, Removed),
}

/// Flows that the current item still has to change.
pub(crate) enum Remaining {
    Nothing,
    Remove(std::vec::IntoIter<(u8, Arc<FlowRule>)>, Removed),
    Modify(std::vec::IntoIter<(u8, Arc<FlowRule>)>, Rewrite),
    /// Flows that name what goes, by their numbers.
    RemoveUsers(std::collections::btree_set::IntoIter<u32>, Removed),
    /// The flows are being searched.
    Select(Box<Selecting>),
}

/// What a search is for.
pub(crate) enum Purpose {
    /// The flows that this flow-mod, for this table, concerns; its match as rules have it.
    FlowMod(Box<FlowMod>, u8, Box<Match>),
    /// The flows at these places, which are to go.
    Unlearn(BTreeSet<Place>),
}

/// What a search found.
#[derive(Default)]
pub(crate) struct Concerned {
    /// The selected flows, with their tables.
    pub rules: Vec<(u8, Arc<FlowRule>)>,
    /// True if the flow-mod's match overlaps another flow of its priority.
    pub overlaps: bool,
    /// How many flows there are at each place.
    pub places: BTreeMap<Place, u32>,
}

/// A search through all flows.
pub(crate) struct Selecting {
    pub purpose: Purpose,
    pub found: Concerned,
    /// The records that are left.
    pub numbers: Range<u32>,
}

/// Changes of one bridge, staged for the next version.
pub(crate) struct Txn {
    pub bridge: BridgeId,
    pub version: u64,
    pub now: u64,
    pub undo: Vec<Undo>,
    /// Removed flows with SEND_FLOW_REM: credit id and reason of each.
    pub removed: Vec<(u32, Removed)>,
    pub regions: Regions,
    /// True: the regions cover the current item already.
    pub covered: bool,
    pub monitor_events: Vec<MonitorEvent>,
    pub packets: Vec<StagedPacket>,
    pub remaining: Remaining,
    /// The bridge as this slice's packets see it, but for its groups.
    pub view: Option<Box<BridgeView>>,
    /// Steps that the last items took beyond one each.
    pub cost: usize,
    /// Steps that all items took beyond one each.
    pub extra_steps: usize,
    /// Bytes that the packets keep, about.
    pub packet_bytes: usize,
    /// The groups after the change, if it changes any.
    pub groups: Option<Groups>,
}

/// The open change.
pub(crate) struct Open {
    pub change: u64,
    pub txn: Txn,
    pub items: Items,
    /// Number of items that were begun.
    pub taken: usize,
    /// Which item failed and why; what was done is being undone.
    pub failed: Option<(usize, OfError)>,
    /// True: packets see the change; events and freeing are left.
    pub committed: bool,
    pub monitor_events: std::vec::IntoIter<MonitorEvent>,
    pub removed: std::vec::IntoIter<(u32, Removed)>,
}

impl Open {
    pub fn new(change: u64, txn: Txn, items: Items, taken: usize) -> Self {
        let (monitor_events, removed) = Default::default();
        let (failed, committed) = (None, false);
        Open { change, txn, items, taken, failed, committed, monitor_events, removed }
    }
}

/// The flows that a request selects.
pub(crate) struct Select<'a> {
    pub table: u8,
    pub matching: &'a Match,
    /// Strict: the flow with this very match and priority.
    pub priority: Option<u16>,
    pub cookie: u64,
    pub cookie_mask: u64,
    pub out_port: OfPort,
    pub out_group: u32,
}

impl<'a> Select<'a> {
    /// Selects all flows, of all tables, with at least this match.
    pub fn all(matching: &'a Match) -> Self {
        Select {
            table: TABLE_ALL,
            matching,
            priority: None,
            cookie: 0,
            cookie_mask: 0,
            out_port: port::ANY,
            out_group: GROUP_ANY,
        }
    }
}

/// How a modification changes the flows that it selects.
pub(crate) struct Rewrite {
    pub instructions: Arc<[Instruction]>,
    /// The new cookie; None: each flow keeps its own.
    pub cookie: Option<u64>,
    /// True: the flows' counters are set to 0.
    pub reset: bool,
}

/// A group as it was before a change.
pub(crate) struct GroupUndo {
    pub id: u32,
    pub old: Option<GroupRec>,
    /// Credit ids that the change allocated.
    pub taken: Vec<u32>,
    /// Credit ids to be freed when no packet sees the old group any more.
    pub freed: Vec<u32>,
}

/// What a change left behind: no new packet sees it, but a reader may still use it.
pub(crate) struct DeferredFree {
    pub grace: Grace,
    pub tables: Arc<Tables>,
    /// When the change was made, ns.
    pub now: u64,
    pub steps: std::vec::IntoIter<Undo>,
}

/// The changes of a switch: the open one, those that ended, and what they left behind.
#[derive(Default)]
pub(crate) struct Changes {
    /// The open change.
    pub open: Option<Open>,
    /// Number of changes so far.
    pub begun: u64,
    /// Outcomes of changes that others ran to their end.
    pub outcomes: Vec<(u64, Outcome)>,
    /// What is to be freed, oldest first.
    pub deferred: VecDeque<DeferredFree>,
    /// Memory for the regions of one change, kept so that the heap stays compact.
    pub spare_regions: Regions,
    /// Number of changes and cleanup turns: retired memory is freed after some of them.
    pub count: u32,
}
