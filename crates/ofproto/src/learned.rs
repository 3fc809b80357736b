//! Learned flows, the counts of a bridge's learn actions, and the limits of ports.

use crate::types::BridgeId;
use flow::PortNo;
use openflow::FlowMod;
use rpds::HashTrieMapSync;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use sync::{Domain, Published};

/// Flows that a port's packets may teach per second, and at once: more than the control side
/// executes in that time. A flow beyond that is taught again when its megaflow's counters are next
/// folded.
pub(crate) const PORT_FLOWS_RATE: u64 = 50_000;

pub(crate) const PORT_FLOWS_BURST: u64 = 65_536;

/// Flows that packets taught and that are still there, at most: about 700 MB. Of one port as many
/// as the others have left of these, so that one alone has half of them.
pub(crate) const TAUGHT_FLOWS_MAX: u32 = 1 << 20;

/// How many flows the packets of each port taught that are still there.
#[derive(Default)]
pub(crate) struct Taught {
    by_port: HashMap<PortNo, u32>,
    total: u32,
}

impl Taught {
    /// True if packets of this port may teach another flow.
    pub fn has_room(&self, port: PortNo) -> bool {
        let own = self.by_port.get(&port).copied().unwrap_or(0);
        own < TAUGHT_FLOWS_MAX - self.total
    }

    /// Records that a flow comes that a packet of this port taught; None: no packet taught it.
    pub fn add(&mut self, port: Option<PortNo>) {
        let Some(port) = port else { return };
        *self.by_port.entry(port).or_default() += 1;
        self.total += 1;
    }

    /// Records that a flow goes that a packet of this port taught; None: no packet taught it.
    pub fn remove(&mut self, port: Option<PortNo>) {
        let Some(port) = port else { return };
        self.total -= 1;
        if let Some(n) = self.by_port.get_mut(&port) {
            *n -= 1;
            if *n == 0 {
                self.by_port.remove(&port);
            }
        }
    }
}

/// A flow that a packet teaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LearnedFlow {
    pub bridge: u32,
    /// The datapath port on which the packet came in.
    pub port: PortNo,
    pub limit: u32,
    /// A strict modification, which adds the flow if there is none.
    pub flow: FlowMod,
}

/// A rule whose timeouts are reduced, because a TCP connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fin {
    /// The rule's credit id.
    pub rule: u32,
    pub idle: u16,
    pub hard: u16,
}

/// A table, and a cookie.
pub(crate) type Place = (u8, u64);

/// Number of flows at each place that some learn action limits.
pub(crate) type Counts = HashTrieMapSync<Place, Arc<AtomicU32>>;

/// What a bridge knows of its learn actions.
pub(crate) struct Learning {
    /// Number of flows that own what they taught: it is deleted with them.
    pub owners: HashMap<Place, u32>,
    /// Number of learn actions that limit a place's flows.
    pub limits: HashMap<Place, u32>,
    pub counts: Counts,
    pub published: Arc<Published<Counts>>,
}

impl Learning {
    pub fn new(domain: Domain) -> Learning {
        let published = Arc::new(Published::new(domain, Counts::default()));
        Learning {
            owners: HashMap::new(),
            limits: HashMap::new(),
            counts: Counts::default(),
            published,
        }
    }
}

/// The token bucket of a port.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: u64,
    at_ns: u64,
}

/// Flows that may wait for the end of a change of many steps.
pub(crate) const DEFERRED_FLOWS_MAX: usize = 4096;

/// Flows that wait for the end of a change of many steps, oldest first, with the time of their
/// packets, ns. A port may have as many as are free for the others.
#[derive(Default)]
pub(crate) struct Deferred {
    flows: VecDeque<(LearnedFlow, u64)>,
    by_port: BTreeMap<PortNo, usize>,
}

impl Deferred {
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Adds a flow; false: its port has no room for another.
    pub fn push(&mut self, l: &LearnedFlow, used: u64) -> bool {
        let own = self.by_port.entry(l.port).or_default();
        let has_room = *own < DEFERRED_FLOWS_MAX - self.flows.len();
        if has_room {
            *own += 1;
            self.flows.push_back((l.clone(), used));
        }
        has_room
    }

    pub fn pop(&mut self) -> Option<(LearnedFlow, u64)> {
        let next = self.flows.pop_front();
        match &next {
            Some((l, _)) => *self.by_port.entry(l.port).or_default() -= 1,
            None => self.by_port.clear(),
        }
        next
    }

    /// Forgets the flows of learn actions that were removed.
    pub fn forget(&mut self, bridge: BridgeId, places: &BTreeSet<Place>) {
        let by_port = &mut self.by_port;
        self.flows.retain(|(l, _)| {
            let place = (l.flow.table, l.flow.cookie);
            let goes = l.bridge == bridge.0 && places.contains(&place);
            if goes {
                *by_port.entry(l.port).or_default() -= 1;
            }
            !goes
        });
    }
}

/// What learning knows over all bridges.
#[derive(Default)]
pub(crate) struct Learned {
    buckets: BTreeMap<PortNo, Bucket>,
    pub deferred: Deferred,
    /// The port whose packet teaches the flow that is being made.
    pub teacher: Option<PortNo>,
    /// Number of flows that were not learned: too many of their port, at once or in all, or during
    /// a change.
    pub limited: u64,
    /// Places whose last owner was removed.
    pub dead: Vec<(BridgeId, Place)>,
    /// Places that have lost their last owner by the flow-mod that is staged.
    pub unowned: Vec<(BridgeId, Place)>,
    /// Places whose flows are counted, maybe for no learn action any more.
    pub unlimited: Vec<(BridgeId, Place)>,
}

impl Learned {
    pub(crate) fn admits(&mut self, port: PortNo, now: u64) -> bool {
        let full = Bucket { tokens: PORT_FLOWS_BURST, at_ns: now };
        let b = self.buckets.entry(port).or_insert(full);
        let fresh = now.saturating_sub(b.at_ns).saturating_mul(PORT_FLOWS_RATE) / 1_000_000_000;
        if fresh > 0 {
            *b = Bucket { tokens: (b.tokens + fresh).min(PORT_FLOWS_BURST), at_ns: now };
        }
        let admitted = b.tokens > 0;
        b.tokens -= u64::from(admitted);
        self.limited += u64::from(!admitted);
        admitted
    }
}
