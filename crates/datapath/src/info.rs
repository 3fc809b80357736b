//! What the control side can ask for: cached flows, receive queues, workers.

use crate::settings::{RxqAssign, WorkerId};
use crate::stats::worker_stats::Perf;
use action::Op;
use flow::{Key, Mask, PortNo};
use std::sync::Arc;

/// The cores on which the receive queues of polled ports are polled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// How queues that are not pinned were placed.
    pub how: RxqAssign,
    /// Core and NUMA node of each PMD thread.
    pub cores: Vec<(usize, usize)>,
    /// The queues, by port number.
    pub queues: Vec<PolledQueue>,
}

/// A receive queue and the core that polls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolledQueue {
    /// Name of the queue's port.
    pub port: String,
    /// Number of the queue within its port.
    pub queue: usize,
    /// NUMA node of the port.
    pub numa: usize,
    /// True if `pmd-rxq-affinity` says which core polls it.
    pub pinned: bool,
    /// Core and NUMA node of its PMD thread; None: no PMD thread can take it.
    pub core: Option<(usize, usize)>,
}

/// The result of a check by `pmd-auto-lb`, after load had been high for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceCheck {
    /// As the last check found [`BalanceCheck::RoundRobin`] or [`BalanceCheck::TooFew`], and cores
    /// and queues are unchanged.
    Unchanged,
    /// Queues are placed in turn, whatever they cost.
    RoundRobin,
    /// Fewer than two PMD threads may take queues, or none has several.
    TooFew,
    /// Queues would be polled from other NUMA nodes, where their cost is not known.
    CrossNuma,
    /// The variance of the cores' load now, and with queues placed again; both in percent squared.
    Compared {
        /// Variance with the queues where they are.
        now: u64,
        /// Variance with the queues placed again.
        then: u64,
        /// The difference, percent of `now`.
        improvement: u64,
        /// The improvement that is required, percent.
        threshold: u8,
    },
}

impl BalanceCheck {
    /// True if queues are moved as a result.
    pub fn moves_queues(self) -> bool {
        match self {
            BalanceCheck::Compared { improvement, threshold, .. } => {
                improvement >= u64::from(threshold)
            }
            _ => false,
        }
    }
}

/// A megaflow.
#[derive(Clone, Debug)]
pub struct FlowDump {
    /// The worker whose megaflow it is.
    pub worker: WorkerId,
    /// The megaflow's key, under its mask.
    pub key: Key,
    /// The whole key of the packet for which the megaflow was made, if missed packets are reported.
    pub first_key: Option<Box<Key>>,
    /// The megaflow's mask.
    pub mask: Mask,
    /// The megaflow's operations.
    pub ops: Arc<[Op]>,
    /// Packets so far.
    pub packets: u64,
    /// Bytes so far.
    pub bytes: u64,
    /// When the megaflow was last used (`now_ms`); 0: never.
    pub used_ms: u64,
    /// True if an invalidation marked it dead, and it is not unlinked yet.
    pub dead: bool,
    /// The megaflow's identity, for [`Datapath::megaflow`](crate::Datapath::megaflow).
    pub id: offload::FlowId,
    /// Packets in the last second that was sampled ([`Datapath::sample`](crate::Datapath::sample)).
    pub pps: u32,
}

/// A receive queue and the worker that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxqInfo {
    /// Number of the port.
    pub port: PortNo,
    /// Name of the port.
    pub name: String,
    /// Number of the queue within its port.
    pub queue: usize,
    /// The worker that serves it; None: there is no PMD thread.
    pub worker: Option<WorkerId>,
    /// True if the queue is pinned by affinity.
    pub pinned: bool,
    /// Cycles that the queue cost since the counters were cleared.
    pub cycles: u64,
    /// Packets received from the queue since the counters were cleared.
    pub packets: u64,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmdInfo {
    /// Which worker.
    pub worker: WorkerId,
    /// NUMA node of its core.
    pub numa: usize,
    /// True if it serves only pinned queues.
    pub isolated: bool,
    /// Megaflows now.
    pub flows: u32,
    /// Masks in use now.
    pub masks: u32,
    /// True if the signature cache is in use.
    pub signature_cache: bool,
    /// Counters.
    pub perf: Perf,
}
