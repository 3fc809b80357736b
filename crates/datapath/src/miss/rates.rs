//! What is measured of a port for `policy.rs`.

/// Length of an interval, milliseconds: how often each port's rates are judged. An access list all
/// of whose flows are new takes 454 and 500 cycles a packet; with intervals of 200 ms 589 and 650,
/// of 50 ms 487 and 454 (`bench/micro/datapath/miss.rs`, as the figures of the other constants of
/// the miss path).
pub(crate) const INTERVAL_MS: u64 = 100;

/// Events from which on a share can be judged; fewer are added to those of the next interval. With
/// 16 to 256 as this minimum, six mixes of rules and flows cost the same.
pub(crate) const JUDGED_EVENTS_MIN: u64 = 64;

/// When the table is full, one new flow in this many is stored, and it replaces the least recently
/// used of as many megaflows. With 64,000 flows and room for 20,000 a packet takes 1,554 and 1,665
/// cycles; 2,293 and 2,386 where each new flow is stored, 1,590 and 1,407 where one in 32 is.
pub(crate) const FULL_TABLE_FLOWS_RATIO: u32 = 8;

/// Packets about which the pipeline is asked at once, at most. Their memory accesses overlap: those
/// of all 16 without masks, of eight at a time with masks. 32 gain nothing (docs/perf/tried.md).
pub(crate) const RESOLVE_PACKETS_MAX: usize = 16;

/// Counts of a port's lookups.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct LookupCounts {
    /// Packets whose megaflow was in the signature cache.
    pub cache_hits: u64,
    /// Packets whose megaflow was in a subtable.
    pub flow_hits: u64,
    /// Visits of subtables.
    pub visits: u64,
    /// Visits by packets without a megaflow.
    pub missed_visits: u64,
    /// Packets without a megaflow in the signature cache and the subtables.
    pub missed: u64,
    /// Missed packets for which the table had a megaflow after all, by the pipeline's mask.
    pub resolved: u64,
}

impl LookupCounts {
    /// Packets with a megaflow.
    pub fn hits(&self) -> u64 {
        self.cache_hits + self.flow_hits + self.resolved
    }

    /// Subtables visited for each packet with a megaflow.
    pub fn visits_per_hit(&self) -> f64 {
        self.visits as f64 / self.hits().max(1) as f64
    }

    /// Adds other counts to these.
    pub fn add(&mut self, t: LookupCounts) {
        self.cache_hits += t.cache_hits;
        self.flow_hits += t.flow_hits;
        self.visits += t.visits;
        self.missed_visits += t.missed_visits;
        self.missed += t.missed;
        self.resolved += t.resolved;
    }
}

/// A number of events, and how many of them had the good outcome.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Events.
    pub all: u64,
    /// Events with the good outcome.
    pub good: u64,
}

impl Share {
    /// Counts `all` events, of which `good` had the good outcome.
    #[inline]
    pub fn count(&mut self, all: u64, good: u64) {
        self.all += all;
        self.good += good;
    }

    /// The share of events with the good outcome, 0 to 1.
    pub fn part(&self) -> f64 {
        self.good as f64 / self.all.max(1) as f64
    }

    /// Begins a new interval; events that are too few to be judged stay.
    fn begin(&mut self) {
        if self.all >= JUDGED_EVENTS_MIN {
            *self = Share::default();
        }
    }
}

/// What is measured of a port during an interval. "Good" is the good outcome of a [`Share`].
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct PortRates {
    /// Counts of lookups.
    pub lookups: LookupCounts,
    /// Number of masks.
    pub masks: usize,
    /// Decisions about new flows; older ones count half.
    pub new_flows: u64,
    /// The bits that the signature cache hashes changed.
    pub union_changed: bool,
    /// A sample of the packets that were looked up; good: the packet's flow was seen before.
    pub packets_returning: Share,
    /// Flows that the signature cache learned; good: no other lost its entry.
    pub learned: Share,
    /// A sample of the missed flows; good: if the flow were stored, packets would find it.
    pub misses_returning: Share,
    /// Visits of predicted subtables; good: the packet's megaflow was there.
    pub predictions: Share,
    /// Misses in direct mode; good: the pipeline answered.
    pub direct: Share,
    /// Cycles of a miss on this worker.
    pub miss_cycles: u64,
}

impl PortRates {
    /// Begins a new interval.
    pub fn begin(&mut self) {
        if self.lookups.hits() + self.lookups.missed >= JUDGED_EVENTS_MIN {
            self.lookups = LookupCounts::default();
        }
        self.new_flows /= 2;
        self.union_changed = false;
        self.packets_returning.begin();
        self.misses_returning.begin();
        self.learned.begin();
        self.predictions.begin();
        self.direct = Share::default();
    }
}
