//! What the switch hands to the control side: events for controllers, regions for the datapath.

use crate::mac_changes::Macs;
use crate::outer_changes::OuterChanges;
use crate::types::BridgeId;
use action::{Decision, Region};
use openflow::{FlowRemoved, Instruction, MonitorUpdate, PacketOut, PortDesc, TableStats};
use std::ops::Range;

/// Something controllers may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A flow with SEND_FLOW_REM went.
    FlowRemoved(BridgeId, Box<FlowRemoved>),
    /// `reason`: 0 added, 1 deleted, 2 modified (`OFPPR_*`); with what a modified port was before.
    PortStatus(BridgeId, u8, Box<PortDesc>, Option<Box<PortDesc>>),
    /// The share of free places of a table fell below a controller's threshold (false), or rose
    /// above the upper one again (true).
    TableStatus(BridgeId, bool, Box<TableStats>),
    /// A flow changed, in a bridge that is monitored ([`crate::Switch::set_monitored`]).
    /// The instructions are those that a modified flow had before.
    Flow(BridgeId, Box<MonitorUpdate>, Vec<Instruction>),
}

/// A packet of a bundle and what is to be done with it.
pub struct StagedPacket {
    /// The message of the controller.
    pub packet_out: PacketOut,
    /// What to do with the packet; holds for it only.
    pub decision: Decision,
}

/// More regions than this (3 MB) are merged into one that covers them all. The packet side finds
/// the megaflows of a region without looking at others, so many narrow ones cost less than one
/// wide.
const REGIONS_MAX: usize = 4096;

/// Collected until the control side takes it.
#[derive(Default)]
pub(crate) struct Outbox {
    pub events: Vec<Event>,
    pub packets: Vec<StagedPacket>,
    regions: Regions,
    /// Addresses whose place in a MAC table changed.
    pub macs: Macs,
    /// Counters of misses in tables whose misses mean something else now.
    pub missed: Vec<Range<u32>>,
    /// Routes or next hops changed.
    pub underlay: bool,
    /// What may concern outer packets.
    pub outer: OuterChanges,
    /// Next hops changed that translation has not been shown.
    pub neighbours: bool,
}

impl Outbox {
    pub fn region(&mut self, region: Region) {
        self.regions.push(region);
    }

    pub fn take_regions(&mut self) -> Vec<Region> {
        std::mem::take(&mut self.regions).0
    }
}

/// Regions of one or more changes; a bounded number, however many flows change.
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
        for r in self.0.drain(..) {
            for i in 0..flow::WORDS {
                let differ = all.key.words[i] ^ r.key.words[i];
                all.mask.words[i] &= r.mask.words[i] & !differ;
                all.key.words[i] &= all.mask.words[i];
            }
        }
        self.0.push(all);
    }
}
