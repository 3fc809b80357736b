//! What the control side may look at: cached flows, receive queues, workers.

use crate::settings::{RxqAssign, WorkerId};
use crate::stats::worker_stats::Perf;
use action::Op;
use flow::{Key, Mask, PortNo};
use std::sync::Arc;

/// Where receive queues of polled ports are polled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// How the queues that are not pinned were spread.
    pub how: RxqAssign,
    /// Core and NUMA node of each PMD thread.
    pub cores: Vec<(usize, usize)>,
    /// The queues, by their ports' numbers.
    pub queues: Vec<PolledQueue>,
}

/// A receive queue and where it is polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolledQueue {
    /// Its port's name.
    pub port: String,
    /// Its number there.
    pub queue: usize,
    /// NUMA node of the port.
    pub numa: usize,
    /// `pmd-rxq-affinity` says that it is polled there.
    pub pinned: bool,
    /// Core and NUMA node of the PMD thread; None: none can take it.
    pub core: Option<(usize, usize)>,
}

/// What `pmd-auto-lb` found when load had been high for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceCheck {
    /// An earlier check found one of the next two, and cores and queues are still the same.
    Unchanged,
    /// Queues are placed in turn, whatever they cost.
    RoundRobin,
    /// There are no two PMD threads that may take queues, one of which has several.
    TooFew,
    /// Queues would be polled from other NUMA nodes, where they cost an unknown amount.
    CrossNuma,
    /// The variance of the cores' load, and what it would be; both in percent squared.
    Compared {
        /// With the queues where they are.
        now: u64,
        /// With the queues placed again.
        then: u64,
        /// The difference, percent of `now`.
        improvement: u64,
        /// What it has to be, percent.
        threshold: u8,
    },
}

impl BalanceCheck {
    /// Do queues move because of it?
    pub fn moves_queues(self) -> bool {
        match self {
            BalanceCheck::Compared { improvement, threshold, .. } => {
                improvement >= u64::from(threshold)
            }
            _ => false,
        }
    }
}

/// A cached flow.
#[derive(Clone, Debug)]
pub struct FlowDump {
    /// The worker whose table it is in.
    pub worker: WorkerId,
    /// Values, masked.
    pub key: Key,
    /// The whole key of the packet that the flow was made for, if missed packets are reported.
    pub first_key: Option<Box<Key>>,
    /// The mask it is stored under.
    pub mask: Mask,
    /// What is done.
    pub ops: Arc<[Op]>,
    /// Packets so far.
    pub packets: u64,
    /// Bytes so far.
    pub bytes: u64,
    /// When it was last used (`now_ms`); 0: never.
    pub used_ms: u64,
    /// Marked dead by an invalidation, waiting to be unlinked.
    pub dead: bool,
    /// Where it is, for [`Datapath::megaflow`](crate::Datapath::megaflow).
    pub id: offload::FlowId,
    /// Packets of the last second that was sampled ([`Datapath::sample`](crate::Datapath::sample)).
    pub pps: u32,
}

/// A receive queue and the worker that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxqInfo {
    /// Port.
    pub port: PortNo,
    /// Port name.
    pub name: String,
    /// Queue.
    pub queue: usize,
    /// The worker that serves it; None: there is no PMD thread.
    pub worker: Option<WorkerId>,
    /// Pinned by affinity.
    pub pinned: bool,
    /// Cycles it cost since the counters were cleared.
    pub cycles: u64,
    /// Packets it brought since the counters were cleared.
    pub packets: u64,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmdInfo {
    /// Which.
    pub worker: WorkerId,
    /// NUMA node of its core.
    pub numa: usize,
    /// Serves only pinned queues.
    pub isolated: bool,
    /// Flows cached now.
    pub flows: u32,
    /// Masks in use now.
    pub masks: u32,
    /// Is the signature cache on?
    pub signature_cache: bool,
    /// What it did.
    pub perf: Perf,
}
