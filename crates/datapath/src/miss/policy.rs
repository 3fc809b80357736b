//! The policy for a port's packets, from what was measured of them: a pure function, called every
//! 100 ms for each port. `dpif-netdev/pmd-lookup-show` prints its input and its result.
//!
//! Costs are compared in subtable visits; the cost of a miss is measured.

use crate::miss::rates::{JUDGED_EVENTS_MIN, PortRates, Share};
use crate::miss::seen_flows::SAMPLE_FLOWS;
use crate::settings::Tri;

/// New flows of a port in an interval (older ones count half) from which on few flows are stored at
/// their first miss. That many make a sample that can be judged about once a second
/// (docs/decisions/0008-misses-without-a-flow.md).
pub(crate) const NEW_FLOWS_MIN: u64 = JUDGED_EVENTS_MIN * SAMPLE_FLOWS / 4;

/// Cycles of a subtable visit, to compare it with a miss: a miss of 2,200 cycles is worth 22
/// visits, one in direct mode of 380 cycles is worth three (`bench/micro/datapath/miss.rs`, every
/// packet a new flow).
pub(crate) const VISIT_COST_CYCLES: u64 = 96;

/// Subtable visits per packet that the signature cache must save to be switched on. Where a packet
/// takes 1.07 visits (1,000 L3 rules) it costs 91 to 93 cycles without the cache and 117 to 119
/// with it; with 1.36 visits (8 masks) 128 to 137 without and 84 with it.
pub const CACHE_SAVES_VISITS_MIN: f64 = 1.3;
/// Subtable visits per packet that the signature cache must save to stay on: a packet that is found
/// visits one at least.
pub const CACHE_STAYS_VISITS_MIN: f64 = (1.0 + CACHE_SAVES_VISITS_MIN) / 2.0;

/// Direct mode ends when one missed flow in this many comes back; it begins when half as many do,
/// and new flows are stored at once when twice as many do (docs/decisions/0009-direct-mode.md).
const RETURNING_FLOWS_RATIO: u64 = 4;

/// Intervals after which something that was given up because it failed (predictions, direct mode,
/// the signature cache) is tried again. An access list all of whose flows are new takes 454 and 500
/// cycles a packet, 707 and 815 with 64 intervals, 469 and 498 with 16.
pub(crate) const RETRY_INTERVALS: u32 = 32;

/// Intervals after which the changing sample is of other flows, and after which packets are sampled
/// again as to whether they come back.
pub(crate) const SAMPLE_INTERVALS: u32 = RETRY_INTERVALS / 8;

/// How the signature cache is used.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// No packet goes through the cache.
    #[default]
    Off,
    /// The cache would save visits if flows came back; now and then packets are sampled to see
    /// whether they do.
    Sampled,
    /// All packets go through it.
    On,
}

/// When packets are looked up in predicted subtables: before or after the most hit ones.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorUse {
    /// Never.
    Off,
    /// After the most hit subtables.
    #[default]
    Last,
    /// Before the most hit subtables.
    First,
}

/// What happens to flows without a megaflow.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewFlows {
    /// New flows are few: each is stored.
    #[default]
    Stored,
    /// New flows are many, and most come back: each is stored, except those of the fixed sample, by
    /// which that is measured.
    MostReturn,
    /// New flows are stored when they come a second time.
    SeenTwice,
    /// New flows are resolved in direct mode, except two samples of them.
    Direct,
}

/// How a port's packets are treated until the next judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPolicy {
    /// Whether packets go through the signature cache.
    pub cache: CacheUse,
    /// When packets are looked up in predicted subtables.
    pub predictor: PredictorUse,
    /// What happens to new flows.
    pub new_flows: NewFlows,
    /// Intervals since the cache was switched on, or its hash changed: at first it is being filled.
    pub cache_age: u32,
    /// The last sample showed that flows come back often enough for the cache.
    pub flows_return: bool,
    /// The cache was given up because the flows are too many for it; it is tried again.
    pub cache_refused: bool,
    /// Direct mode was given up because the pipeline did not answer; it is tried again.
    pub direct_refused: bool,
    /// Number of judgements so far.
    pub interval: u32,
}

impl Default for PortPolicy {
    fn default() -> Self {
        PortPolicy {
            cache: CacheUse::Off,
            predictor: PredictorUse::Last,
            new_flows: NewFlows::Stored,
            cache_age: 0,
            flows_return: true,
            cache_refused: false,
            direct_refused: false,
            interval: 0,
        }
    }
}

impl PortRates {
    /// The cost of a miss, in subtable visits.
    fn miss_visits(&self) -> u64 {
        (self.miss_cycles / VISIT_COST_CYCLES).max(1)
    }

    /// Visits that finding a megaflow costs without the cache; a megaflow that the pipeline named
    /// costs a miss.
    fn visits_per_hit(&self) -> f64 {
        let t = &self.lookups;
        match t.flow_hits + t.resolved {
            // Only the cache was asked: about half of the subtables would have been visited.
            0..JUDGED_EVENTS_MIN if t.cache_hits > 0 => self.masks as f64 / 2.0,
            n => {
                let visits = t.visits - t.missed_visits + t.resolved * self.miss_visits();
                visits as f64 / n.max(1) as f64
            }
        }
    }

    /// Visits per packet that the cache saves, or would save if `returning`, a share of all
    /// packets, were of known flows.
    pub fn cache_saves(&self, returning: f64) -> f64 {
        let t = &self.lookups;
        let packets = (t.cache_hits + t.flow_hits + t.missed).max(1) as f64;
        let found = (t.hits() as f64 / packets).min(returning);
        // The remaining packets are of flows that were seen before but are not stored.
        found * self.visits_per_hit() + (returning - found) * self.miss_visits() as f64
    }
}

impl PortPolicy {
    /// True if packets are sampled in this interval as to whether they come back.
    pub fn is_sampling(&self) -> bool {
        let now_and_then = self.interval.is_multiple_of(SAMPLE_INTERVALS);
        let filling = self.cache == CacheUse::On && self.cache_age < RETRY_INTERVALS;
        self.cache != CacheUse::Off && (now_and_then || filling)
    }

    /// The policy for the next interval, by what was measured in this one. `choice`: what
    /// configuration says of the signature cache.
    pub fn next(&self, r: &PortRates, choice: Tri) -> PortPolicy {
        let interval = self.interval.wrapping_add(1);
        let retry = interval.is_multiple_of(RETRY_INTERVALS);
        let refused = r.direct.good * 2 < r.direct.all || self.direct_refused && !retry;
        let mut next = *self;
        let t = &r.lookups;
        next.cache = match choice {
            Tri::On => CacheUse::On,
            Tri::Off => CacheUse::Off,
            Tri::Auto if t.hits() + t.missed < JUDGED_EVENTS_MIN => self.cache,
            Tri::Auto => next.next_cache(r, retry),
        };
        let stays = next.cache == CacheUse::On && self.cache == CacheUse::On && !r.union_changed;
        PortPolicy {
            cache_age: if stays { self.cache_age.saturating_add(1) } else { 0 },
            predictor: self.next_predictor(r, retry),
            new_flows: self.next_new_flows(r, refused),
            direct_refused: refused,
            interval,
            ..next
        }
    }

    /// How the cache is used next, for a port with enough lookups.
    fn next_cache(&mut self, r: &PortRates, retry: bool) -> CacheUse {
        let (t, on) = (&r.lookups, self.cache == CacheUse::On);
        let least = if on { CACHE_STAYS_VISITS_MIN } else { CACHE_SAVES_VISITS_MIN };
        let pays = |returning| r.cache_saves(returning) > least;
        let of_all = |n: u64| n as f64 / (t.cache_hits + t.flow_hits + t.missed).max(1) as f64;
        // More than a quarter of the entries that are learned replace others.
        let is_full = on && r.learned.all >= JUDGED_EVENTS_MIN && r.learned.part() < 0.75;
        let fails = is_full && !pays(of_all(t.cache_hits));
        self.cache_refused = fails || self.cache_refused && !retry;
        let is_known = self.cache == CacheUse::Sampled || on && self.cache_age >= RETRY_INTERVALS;
        if r.packets_returning.all >= JUDGED_EVENTS_MIN && is_known {
            self.flows_return = pays(r.packets_returning.part());
        }
        match self.cache {
            _ if !pays(1.0) => CacheUse::Off,
            _ if self.cache_refused || !self.flows_return => CacheUse::Sampled,
            // Whether missed packets come back is not known yet.
            CacheUse::Off if r.visits_per_hit() <= least => CacheUse::Sampled,
            CacheUse::Sampled if r.packets_returning.all < JUDGED_EVENTS_MIN => CacheUse::Sampled,
            _ => CacheUse::On,
        }
    }

    /// Predictions come first where they find packets with fewer visits than the most hit subtables
    /// do (docs/perf/heuristics.md). Now and then they come last: only then the two can be
    /// compared.
    fn next_predictor(&self, r: &PortRates, retry: bool) -> PredictorUse {
        use PredictorUse::*;
        let Share { all, good } = r.predictions;
        let visits = r.lookups.visits.saturating_sub(all);
        let hits = r.lookups.flow_hits.saturating_sub(good);
        match self.predictor {
            _ if all < JUDGED_EVENTS_MIN && retry => Last,
            before if all < JUDGED_EVENTS_MIN => before,
            _ if good * r.miss_visits() < all => Off,
            First if retry => Last,
            before if before == First || good * visits > hits * all => First,
            _ => Last,
        }
    }

    fn next_new_flows(&self, r: &PortRates, refused: bool) -> NewFlows {
        let Share { all, good } = r.misses_returning;
        let ends = match self.new_flows {
            NewFlows::Direct => RETURNING_FLOWS_RATIO,
            _ => 2 * RETURNING_FLOWS_RATIO,
        };
        match self.new_flows {
            _ if r.new_flows < NEW_FLOWS_MIN => NewFlows::Stored,
            NewFlows::MostReturn if all < JUDGED_EVENTS_MIN => NewFlows::MostReturn,
            NewFlows::Direct if all < JUDGED_EVENTS_MIN && !refused => NewFlows::Direct,
            _ if all < JUDGED_EVENTS_MIN => NewFlows::SeenTwice,
            _ if good * RETURNING_FLOWS_RATIO >= 2 * all => NewFlows::MostReturn,
            _ if good * ends <= all && !refused => NewFlows::Direct,
            _ => NewFlows::SeenTwice,
        }
    }
}
