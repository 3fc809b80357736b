//! What the switch hands to the control side: events for controllers, regions for the datapath.

use crate::mac_changes::Macs;
use crate::outer_changes::OuterChanges;
use crate::port_changes::PortChanges;
use crate::types::BridgeId;
use action::{Decision, Region};
use openflow::{FlowRemoved, Instruction, MonitorUpdate, PacketOut, PortDesc, TableStats};
use std::ops::Range;
use std::sync::Arc;

/// An event that controllers may want to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A flow with SEND_FLOW_REM was removed.
    FlowRemoved(BridgeId, Box<FlowRemoved>),
    /// A port changed. The reason: 0 added, 1 deleted, 2 modified (`OFPPR_*`); a modified port's
    /// description before is added.
    PortStatus(BridgeId, u8, Box<PortDesc>, Option<Box<PortDesc>>),
    /// The share of free places of a table fell below a controller's lower threshold (false), or
    /// rose above the upper one (true).
    TableStatus(BridgeId, bool, Box<TableStats>),
    /// A flow of a monitored bridge changed ([`crate::Switch::set_monitored`]). The instructions
    /// are those that a modified flow had before.
    Flow(BridgeId, Box<MonitorUpdate>, Vec<Instruction>),
}

/// A packet of a bundle, and the decision about it.
pub struct StagedPacket {
    /// The message of the controller.
    pub packet_out: PacketOut,
    /// The decision, which holds for this packet only.
    pub decision: Decision,
}

/// Regions beyond this number (3 MB) are merged into one that covers them all. The packet half
/// finds the megaflows of a region without examining others, so many narrow regions cost less than
/// a wide one.
const REGIONS_MAX: usize = 4096;

/// What the control side has to take.
#[derive(Default)]
pub(crate) struct Outbox {
    pub events: Vec<Event>,
    pub packets: Vec<StagedPacket>,
    regions: Regions,
    /// Addresses whose port changed in a MAC table.
    pub macs: Macs,
    /// Counters of misses in tables whose misses are handled otherwise now.
    pub missed: Vec<Range<u32>>,
    /// Ports that changed.
    pub ports: PortChanges,
    /// True: routes or next hops changed.
    pub underlay: bool,
    /// Changes that may affect outer packets.
    pub outer: OuterChanges,
    /// True: next hops changed that are not published yet.
    pub neighbours: bool,
    /// True: more than flows and groups changed.
    pub reconfigured: bool,
}

impl Outbox {
    pub fn region(&mut self, region: Region) {
        self.regions.push(region);
    }

    pub fn take_regions(&mut self) -> Vec<Region> {
        std::mem::take(&mut self.regions).0
    }
}

/// The regions of one or more changes: a bounded number, however many flows change.
#[derive(Default)]
pub(crate) struct Regions(Vec<Region>);

impl Regions {
    pub fn push(&mut self, region: Region) {
        if self.0.last() == Some(&region) {
            return;
        }
        if self.0.len() >= REGIONS_MAX {
            self.merge();
        }
        self.0.push(region);
    }

    pub fn drain(&mut self) -> impl Iterator<Item = Region> + '_ {
        self.0.drain(..)
    }

    fn merge(&mut self) {
        let Some(mut all) = self.0.pop() else { return };
        let mut from = all.from.take();
        for r in self.0.drain(..) {
            from = from.zip(r.from).map(|(a, b)| match Arc::ptr_eq(&a, &b) {
                true => a,
                false => Arc::new(a.iter().chain(b.iter()).collect()),
            });
            for i in 0..flow::WORDS {
                let differ = all.key.words[i] ^ r.key.words[i];
                all.mask.words[i] &= r.mask.words[i] & !differ;
                all.key.words[i] &= all.mask.words[i];
            }
        }
        self.0.push(Region { from, ..all });
    }
}
