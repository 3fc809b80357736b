//! What is measured of a port, for `policy.rs` to judge.

/// How often a port's rates are judged, milliseconds.
pub(crate) const INTERVAL_MS: u64 = 100;

/// Events of which a share is worth judging, at least; fewer are added to those of the next
/// interval.
pub(crate) const JUDGED_EVENTS_MIN: u64 = 64;

/// Subtables that a packet is looked up in at most, besides those that are predicted.
pub(crate) const SUBTABLES_PROBED_MAX: usize = 16;

/// Of flows for which there is no room, or no use yet, one in this many is stored, in place of
/// the least recently used one of as many.
pub(crate) const FULL_TABLE_FLOWS_RATIO: u32 = 8;

/// Packets that the pipeline is asked about at once, at most: their memory accesses overlap, of all
/// of them without masks, of eight at a time with masks. No gain from 32 (docs/perf/tried.md).
pub(crate) const RESOLVE_PACKETS_MAX: usize = 16;

/// What a port's lookups did.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct LookupCounts {
    /// Packets that the signature cache knew, and that subtables had megaflows for.
    pub cache_hits: u64,
    /// See `cache_hits`.
    pub flow_hits: u64,
    /// Subtables visited, and of them those by packets that found nothing.
    pub visits: u64,
    /// See `visits`.
    pub missed_visits: u64,
    /// Packets that neither found, and of them those for which the pipeline named a megaflow.
    pub missed: u64,
    /// See `missed`.
    pub resolved: u64,
}

impl LookupCounts {
    /// Packets with a megaflow.
    pub fn hits(&self) -> u64 {
        self.cache_hits + self.flow_hits + self.resolved
    }

    /// Subtables visited for each of them.
    pub fn visits_per_hit(&self) -> f64 {
        self.visits as f64 / self.hits().max(1) as f64
    }

    /// Adds others.
    pub fn add(&mut self, t: LookupCounts) {
        self.cache_hits += t.cache_hits;
        self.flow_hits += t.flow_hits;
        self.visits += t.visits;
        self.missed_visits += t.missed_visits;
        self.missed += t.missed;
        self.resolved += t.resolved;
    }
}

/// A count of events, and how many of them were as hoped for.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Events.
    pub all: u64,
    /// As hoped for.
    pub good: u64,
}

impl Share {
    /// Counts events.
    #[inline]
    pub fn count(&mut self, all: u64, good: u64) {
        self.all += all;
        self.good += good;
    }

    /// How many of all were.
    pub fn part(&self) -> f64 {
        self.good as f64 / self.all.max(1) as f64
    }

    /// A new interval begins: what was too few to judge stays.
    fn begin(&mut self) {
        if self.all >= JUDGED_EVENTS_MIN {
            *self = Share::default();
        }
    }
}

/// What is measured of a port, in an interval if nothing else is said.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct PortRates {
    /// What lookups did.
    pub lookups: LookupCounts,
    /// Its masks.
    pub masks: usize,
    /// Hits of the subtables that are hit most, in this order, and of all; older ones count half.
    pub hits: [u64; SUBTABLES_PROBED_MAX],
    /// See `hits`.
    pub all_hits: u64,
    /// Decisions that were new; older ones count half.
    pub new_flows: u64,
    /// The bits that the signature cache hashes changed.
    pub union_changed: bool,
    /// A sample of the packets that were looked up; good: their flow was seen before.
    pub packets_returning: Share,
    /// Flows that the signature cache learned; good: no other lost its place.
    pub learned: Share,
    /// A sample of the missed flows; good: the flow would have hits if it were stored.
    pub misses_returning: Share,
    /// Visits of predicted subtables; good: the megaflow was there.
    pub predictions: Share,
    /// Misses that went direct; good: the pipeline answered.
    pub direct: Share,
    /// What a miss costs this worker, in cycles.
    pub miss_cycles: u64,
}

impl PortRates {
    /// A new interval begins.
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
