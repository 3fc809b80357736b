//! Megaflows whose packets adapters may have: what the control side keeps of them.

use crate::manage::flow_stats::FlowStats;
use offload::FlowId;
use std::collections::HashMap;

/// A megaflow whose packets an adapter may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub(crate) u64);

/// One of them. It outlives the megaflow: the adapter's last packets come late.
pub(crate) struct Watch {
    pub flow: FlowId,
    /// Of the megaflow, as long as it is there.
    pub serial: u64,
    pub account: u32,
    pub outer_bytes: u64,
}

/// Of the whole packet side.
#[derive(Default)]
pub(crate) struct Watches {
    pub all: HashMap<WatchId, Watch>,
    pub next: u64,
    /// Of workers that are gone.
    pub ended: Vec<FlowId>,
    /// Of all packets until then the control side reported; None: no adapter has packets.
    pub known_ms: Option<u64>,
}

/// What an adapter did for a megaflow.
#[derive(Clone, Copy, Default)]
pub(crate) struct Forwarded {
    pub packets: u64,
    pub bytes: u64,
    pub used_ms: u64,
    pub serial: u64,
}

/// Megaflows that came and were not asked for yet, at most; others are found by the next sample.
const CAME_MAX: usize = 1024;

/// Of one worker's megaflows.
#[derive(Default)]
pub(crate) struct FlowWatches {
    pub flows: HashMap<u32, Forwarded>,
    pub ended: Vec<u32>,
    /// Watches that came; None: they are not collected.
    pub came: Option<Vec<u32>>,
}

impl FlowWatches {
    /// A megaflow came.
    pub fn came(&mut self, idx: u32) {
        if let Some(came) = self.came.as_mut().filter(|c| c.len() < CAME_MAX) {
            came.push(idx);
        }
    }

    /// A megaflow is dead, or ended: no rule may do what it did.
    pub fn ended(&mut self, idx: u32) {
        if !self.flows.is_empty() && self.flows.remove(&idx).is_some() {
            self.ended.push(idx);
        }
    }

    /// What an adapter did for a megaflow.
    pub fn forwarded(&self, idx: u32) -> Forwarded {
        self.flows.get(&idx).copied().unwrap_or_default()
    }

    /// When a megaflow was used last, which a worker says was at `used_ms`.
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
    /// A worker is gone, and its megaflows are.
    pub fn forget(&mut self, slot: usize, flows: &mut FlowWatches) {
        let worker = slot as u32;
        self.ended.extend(flows.ended.drain(..).map(|megaflow| FlowId { worker, megaflow }));
        self.all.retain(|_, w| w.flow.worker != worker);
    }
}
