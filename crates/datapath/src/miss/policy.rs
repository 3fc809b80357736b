//! What the packets of a port do next, from what they did lately: a pure function, asked every
//! 100 ms for each port. `dpif-netdev/pmd-lookup-show` prints what goes in and what comes out.
//!
//! Costs are compared in subtable visits; what a miss costs is measured.

use crate::miss::rates::{JUDGED_EVENTS_MIN, PortRates, SUBTABLES_PROBED_MAX, Share};
use crate::miss::seen_flows::SAMPLE_FLOWS;
use crate::settings::Tri;

/// New flows of a port (older ones count half) from which on few of those that were never seen are
/// stored: their sample can be judged about every second. See
/// docs/decisions/0008-misses-without-a-flow.md.
pub(crate) const NEW_FLOWS_MIN: u64 = JUDGED_EVENTS_MIN * SAMPLE_FLOWS / 4;

/// What a visit costs, to compare it with a miss: one of 2,200 cycles is worth 22 visits, a direct
/// one of 380 three (`bench/micro/datapath/miss.rs`, every packet a new flow).
pub(crate) const VISIT_COST_CYCLES: u64 = 96;

/// The signature cache is switched on when it saves more visits per packet than this: asking and
/// filling it cost as much.
pub const CACHE_SAVES_VISITS_MIN: f64 = 1.75;
/// The signature cache stays on while it saves more visits per packet than this.
pub const CACHE_STAYS_VISITS_MIN: f64 = 0.75 * CACHE_SAVES_VISITS_MIN;

/// Direct mode ends when one missed flow in this many comes back; it begins when half as many do,
/// and new flows are stored at once when twice as many do: docs/decisions/0009-direct-mode.md.
const RETURNING_FLOWS_RATIO: u64 = 4;

/// What was given up because it failed (predictions, direct mode) is tried again after this many
/// intervals.
pub(crate) const RETRY_INTERVALS: u32 = 32;

/// Intervals until other flows are the changing sample, and until it is looked at again whether
/// packets come back.
pub(crate) const SAMPLE_INTERVALS: u32 = RETRY_INTERVALS / 8;

/// How the signature cache is used.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// Not at all.
    #[default]
    Off,
    /// The cache would save visits if flows came back; whether they do is sampled now and then.
    Sampled,
    /// All packets go through it.
    On,
}

/// When packets are looked up in predicted subtables, besides those that are hit most.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorUse {
    /// Not at all.
    Off,
    /// After those that are hit most.
    #[default]
    Last,
    /// Before them.
    First,
}

/// What becomes of flows that were not there.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewFlows {
    /// New flows are few: each is stored.
    #[default]
    Stored,
    /// New flows are many, and most come back: each is stored, except the sample by which that is
    /// seen.
    MostReturn,
    /// New flows are stored when they come again.
    SeenTwice,
    /// New flows are in direct mode, except two samples of them.
    Direct,
}

/// What a port's packets do until the next judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPolicy {
    /// Do they go through the signature cache?
    pub cache: CacheUse,
    /// In how many of the most hit subtables they are looked up.
    pub subtables_probed_max: usize,
    /// When they are looked up in predicted subtables.
    pub predictor: PredictorUse,
    /// What is done with new flows.
    pub new_flows: NewFlows,
    /// Intervals since the cache was switched on, or its hash changed: it is being filled.
    pub cache_age: u32,
    /// Flows came back, as far as known, often enough for the cache.
    pub flows_return: bool,
    /// The cache is given up, as flows are too many for it, until it is tried again.
    pub cache_refused: bool,
    /// Direct mode is given up, as the pipeline does not answer, until it is tried again.
    pub direct_refused: bool,
    /// Judgements so far.
    pub interval: u32,
}

impl Default for PortPolicy {
    fn default() -> Self {
        PortPolicy {
            cache: CacheUse::Off,
            subtables_probed_max: SUBTABLES_PROBED_MAX,
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
    /// What a miss costs, in visits.
    fn miss_visits(&self) -> u64 {
        (self.miss_cycles / VISIT_COST_CYCLES).max(1)
    }

    /// Visits that finding a megaflow costs without the cache, the pipeline's answers included.
    fn visits_per_hit(&self) -> f64 {
        let t = &self.lookups;
        match t.flow_hits + t.resolved {
            // Nothing but the cache was asked: half of the subtables.
            0..JUDGED_EVENTS_MIN if t.cache_hits > 0 => self.masks as f64 / 2.0,
            n => {
                let visits = t.visits - t.missed_visits + t.resolved * self.miss_visits();
                visits as f64 / n.max(1) as f64
            }
        }
    }

    /// Visits per packet that the cache saves, or would save if it knew all flows seen before.
    pub fn cache_saves(&self, returning: f64) -> f64 {
        let t = &self.lookups;
        let packets = (t.cache_hits + t.flow_hits + t.missed).max(1) as f64;
        let found = (t.hits() as f64 / packets).min(returning);
        // The others were seen before, and are not stored.
        found * self.visits_per_hit() + (returning - found) * self.miss_visits() as f64
    }
}

impl PortPolicy {
    /// Are packets looked at as to whether they come back?
    pub fn is_sampling(&self) -> bool {
        let now_and_then = self.interval.is_multiple_of(SAMPLE_INTERVALS);
        let filling = self.cache == CacheUse::On && self.cache_age < RETRY_INTERVALS;
        self.cache != CacheUse::Off && (now_and_then || filling)
    }

    /// What comes after this, by what was measured meanwhile; `choice` is the operator's about the
    /// cache.
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
            subtables_probed_max: self.next_subtables(r),
            predictor: self.next_predictor(r, retry),
            new_flows: self.next_new_flows(r, refused),
            direct_refused: refused,
            interval,
            ..next
        }
    }

    /// What comes next of the cache's use, for a port that had lookups enough.
    fn next_cache(&mut self, r: &PortRates, retry: bool) -> CacheUse {
        let (t, on) = (&r.lookups, self.cache == CacheUse::On);
        let least = if on { CACHE_STAYS_VISITS_MIN } else { CACHE_SAVES_VISITS_MIN };
        let pays = |returning| r.cache_saves(returning) > least;
        let of_all = |n: u64| n as f64 / (t.cache_hits + t.flow_hits + t.missed).max(1) as f64;
        // More than a quarter of what is learned takes the place of others.
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
            // At first nothing is known of what missed.
            CacheUse::Off if r.visits_per_hit() <= least => CacheUse::Sampled,
            CacheUse::Sampled if r.packets_returning.all < JUDGED_EVENTS_MIN => CacheUse::Sampled,
            _ => CacheUse::On,
        }
    }

    /// Subtables, the most hit first, of which a visit costs less than what it saves when the
    /// packet is found there and not by the pipeline.
    fn next_subtables(&self, r: &PortRates) -> usize {
        let mut left = r.new_flows + r.all_hits;
        if left < JUDGED_EVENTS_MIN {
            return self.subtables_probed_max;
        }
        let pays = |hits: &&u64| {
            let pays = **hits * r.miss_visits() >= left;
            left -= **hits;
            pays
        };
        r.hits.iter().take(r.masks).take_while(pays).count().max(1)
    }

    /// Predictions come first where they find packets with fewer visits than the subtables that are
    /// hit most (docs/perf/heuristics.md); now and then last, as only then those are compared.
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
