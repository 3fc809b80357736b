//! Watches: megaflows whose packets an adapter may forward.

use crate::manage::flow_stats::FlowStats;
use offload::FlowId;
use std::collections::HashMap;

/// Identity of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub(crate) u64);

/// A watch. It outlives its megaflow: the adapter's last packets are reported late.
pub(crate) struct Watch {
    pub flow: FlowId,
    /// Serial number of the megaflow's watch, while the megaflow exists.
    pub serial: u64,
    pub account: u32,
    pub outer_bytes: u64,
}

/// The watches of all workers.
#[derive(Default)]
pub(crate) struct Watches {
    pub all: HashMap<WatchId, Watch>,
    pub next: u64,
    /// Watched megaflows of workers that ended.
    pub ended: Vec<FlowId>,
    /// Time up to which all forwarded packets are reported, milliseconds; None: no adapter forwards
    /// packets.
    pub credited_ms: Option<u64>,
}

/// The packets of a megaflow that an adapter forwarded.
#[derive(Clone, Copy, Default)]
pub(crate) struct Forwarded {
    pub packets: u64,
    pub bytes: u64,
    pub used_ms: u64,
    pub serial: u64,
}

/// New megaflows that are collected, at most; others are found by the next sample.
const CAME_MAX: usize = 1024;

/// The watches of one worker's megaflows.
#[derive(Default)]
pub(crate) struct FlowWatches {
    pub flows: HashMap<u32, Forwarded>,
    pub ended: Vec<u32>,
    /// New megaflows since they were last taken; None: they are not collected.
    pub came: Option<Vec<u32>>,
}

impl FlowWatches {
    /// Records a new megaflow.
    pub fn came(&mut self, idx: u32) {
        if let Some(came) = self.came.as_mut().filter(|c| c.len() < CAME_MAX) {
            came.push(idx);
        }
    }

    /// Records that a megaflow was marked dead or ended: no adapter's rule may replace it any more.
    pub fn ended(&mut self, idx: u32) {
        if !self.flows.is_empty() && self.flows.remove(&idx).is_some() {
            self.ended.push(idx);
        }
    }

    /// The packets of a megaflow that an adapter forwarded.
    pub fn forwarded(&self, idx: u32) -> Forwarded {
        self.flows.get(&idx).copied().unwrap_or_default()
    }

    /// When a megaflow was last used, by a worker (`used_ms`) or an adapter.
    pub fn used_ms(&self, idx: u32, used_ms: u64) -> u64 {
        if self.flows.is_empty() { used_ms } else { used_ms.max(self.forwarded(idx).used_ms) }
    }

    pub fn credit(
        &mut self,
        w: &Watch,
        stats: &mut FlowStats,
        packets: u64,
        bytes: u64,
        used_ms: u64,
    ) {
        let bytes = bytes.saturating_sub(packets * w.outer_bytes);
        if packets > 0 {
            stats.credit(w.account, packets, bytes, used_ms);
        }
        if let Some(f) = self.flows.get_mut(&w.flow.megaflow).filter(|f| f.serial == w.serial) {
            (f.packets, f.bytes, f.used_ms) = (f.packets + packets, f.bytes + bytes, used_ms);
        }
    }
}

impl Watches {
    /// Forgets the watches of a worker that ended, and its megaflows.
    pub fn forget(&mut self, worker_no: usize, flows: &mut FlowWatches) {
        let worker = worker_no as u32;
        self.ended.extend(flows.ended.drain(..).map(|megaflow| FlowId { worker, megaflow }));
        self.all.retain(|_, w| w.flow.worker != worker);
    }
}
