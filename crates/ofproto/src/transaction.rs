//! A change on its way: its items, what is staged, and how to take it back.

use crate::events::{Regions, StagedPacket};
use crate::groups::group::GroupRec;
use crate::groups::liveness::Groups;
use crate::tables::counters::FlowRec;
use crate::tables::table::{FlowRule, Tables};
use crate::types::{BridgeId, PortSpec};
use openflow::{
    FlowMod, GROUP_ANY, GroupMod, Instruction, Match, OfError, OfPort, PortMod, Removed, TABLE_ALL,
    port,
};
use std::collections::VecDeque;
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
    /// A packet-out, with the packet's key as the parser made it: decided by the flows and groups
    /// as the steps before leave them, and left to the caller to execute
    /// ([`Switch::take_packets`]).
    PacketOut(Box<(openflow::PacketOut, flow::Key)>),
}

/// The steps of a bundle as they are needed; or why one of them is none.
pub type Items = Box<dyn Iterator<Item = Result<BundleItem, OfError>>>;

/// How a change ended: an error names the item that failed.
pub type Outcome = Result<(), (usize, OfError)>;

/// A change that was begun.
#[derive(Debug, PartialEq, Eq)]
pub struct Change(pub(crate) u64);

/// What becomes of a removed rule's record (counters, timeouts) once no reader sees the rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Goes,
    /// Another rule has it now.
    Stays,
}

/// How to take a step back.
pub(crate) enum Undo {
    /// A rule that no packet saw yet.
    Added(u8, Arc<FlowRule>),
    /// A rule that still lives in the current version.
    Removed(u8, Arc<FlowRule>, Record),
    /// A record as it was.
    Record(u32, Box<FlowRec>),
    Group(Box<GroupUndo>),
    Port(Box<PortSpec>),
}

/// A change of one flow, for flow monitors.
pub(crate) enum MonitorEvent {
    Added(Arc<FlowRule>),
    /// The rule as it is, and as it was.
    Modified(Arc<FlowRule>, Arc<FlowRule>),
    Deleted(Arc<FlowRule>, Removed),
}

/// Flows that the item at hand still has to change.
pub(crate) enum Remaining {
    Nothing,
    Remove(std::vec::IntoIter<(u8, Arc<FlowRule>)>, Removed),
    Modify(std::vec::IntoIter<(u8, Arc<FlowRule>)>, Rewrite),
}

/// Changes of one bridge on their way to the next version.
pub(crate) struct Txn {
    pub bridge: BridgeId,
    pub version: u64,
    pub now: u64,
    pub undo: Vec<Undo>,
    /// Removed flows with SEND_FLOW_REM: credit id and reason of each.
    pub removed: Vec<(u32, Removed)>,
    pub regions: Regions,
    /// The regions cover the item at hand already.
    pub covered: bool,
    pub monitor_events: Vec<MonitorEvent>,
    pub packets: Vec<StagedPacket>,
    pub remaining: Remaining,
    /// The groups as the change leaves them, if it changes any.
    pub groups: Option<Groups>,
}

/// A change under way.
pub(crate) struct Open {
    pub change: u64,
    pub txn: Txn,
    pub items: Items,
    /// Items taken so far.
    pub taken: usize,
    /// True once packets see the change; events and freeing are left.
    pub committed: bool,
    pub monitor_events: std::vec::IntoIter<MonitorEvent>,
    pub removed: std::vec::IntoIter<(u32, Removed)>,
}

/// The flows that a request selects.
pub(crate) struct Select<'a> {
    pub table: u8,
    pub matching: &'a Match,
    /// Strict: exactly this match and priority.
    pub priority: Option<u16>,
    pub cookie: u64,
    pub cookie_mask: u64,
    pub out_port: OfPort,
    pub out_group: u32,
}

impl<'a> Select<'a> {
    /// All flows, of all tables, with at least this match.
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

/// What a modification makes of the flows that it means.
pub(crate) struct Rewrite {
    pub instructions: Arc<[Instruction]>,
    /// None: each flow keeps its cookie.
    pub cookie: Option<u64>,
    /// The counters of the flows start again at 0.
    pub reset: bool,
}

/// A group as it was before a change.
pub(crate) struct GroupUndo {
    pub id: u32,
    pub old: Option<GroupRec>,
    /// Credit ids that the change gave out.
    pub taken: Vec<u32>,
    /// Credit ids that are free once no packet sees the old group.
    pub freed: Vec<u32>,
}

/// What a change left behind: no new packet sees it, but a reader may still be looking at it.
pub(crate) struct DeferredFree {
    pub grace: Grace,
    pub tables: Arc<Tables>,
    /// When the change was made, ns.
    pub now: u64,
    pub steps: std::vec::IntoIter<Undo>,
}

/// The changes of a switch: the one under way, those that ended, and what they left behind.
#[derive(Default)]
pub(crate) struct Changes {
    /// The change under way.
    pub open: Option<Open>,
    /// Numbers changes.
    pub begun: u64,
    /// How changes ended that others ran to their end.
    pub outcomes: Vec<(u64, Outcome)>,
    /// What is freed later, oldest first.
    pub deferred: VecDeque<DeferredFree>,
    /// A buffer for the regions of one change, kept so that the heap stays compact.
    pub spare_regions: Regions,
    /// Counts changes and turns of cleaning up, to reclaim retired memory now and then.
    pub count: u32,
}
