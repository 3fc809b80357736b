//! What a table keeps for each input port: which subtables have megaflows of it, and whether its
//! packets go through the signature cache. One port's masks, flows and cache never cost another
//! port's packets.

use super::flow_store::MASKS;
use super::predictor::PredictorTrial;
use super::subtable::{Hasher, Subtable};
use crate::miss::policy::DirectMode;
use crate::settings::{CacheState, PortLookup, Tri};
use flow::PortNo;

/// Masks a port may have (and the full mask), unless many ports share a table; others find some
/// left.
pub(super) const PORT_MASKS_MAX: usize = MASKS / 4 * 3;
/// Masks every port may have.
const PORT_MASKS_MIN: usize = 4;

/// Masks each of so many ports may have.
pub(super) fn port_masks_max(ports: usize) -> usize {
    ((MASKS - 1) / ports.max(1)).clamp(PORT_MASKS_MIN, PORT_MASKS_MAX)
}

/// A cache that was given up is tried again after 2, 4, ... at most so many judgements.
const CACHE_RETRY_INTERVALS_MAX: u32 = 64;
/// Lookups that a judgement needs.
const JUDGED_LOOKUPS_MIN: u64 = 256;

/// What a port's lookups did.
#[derive(Default, Clone, Copy)]
pub(crate) struct LookupCounts {
    pub cache_hits: u64,
    pub flow_hits: u64,
    pub visits: u64,
    /// Of them those by packets that found nothing.
    pub missed_visits: u64,
    /// Packets that the cache, being on, did not know.
    pub learned: u64,
    /// Packets whose megaflow was found by asking the pipeline.
    pub resolved: u64,
}

/// New flows of a port, lately, from which on few of those that were never seen before are stored.
const NEW_FLOWS_MIN: u64 = 1024;

/// Subtables that a packet is looked up in at most.
pub(super) const SUBTABLES_PROBED_MAX: usize = 16;

/// Visits of subtables that cost as much as asking the pipeline, with all that follows and in
/// direct mode.
const MISS_COST_VISITS: u64 = 32;
const DIRECT_COST_VISITS: u64 = 8;
/// What the cache costs each packet at most, in cycles.
const CACHE_COST_CYCLES: u64 = 256;

impl LookupCounts {
    pub fn hits(&self) -> u64 {
        self.cache_hits + self.flow_hits + self.resolved
    }

    /// What finding megaflows without the cache cost, in visits. What was not found costs as much
    /// with it.
    fn cost(&self) -> f64 {
        (self.visits - self.missed_visits + self.resolved * MISS_COST_VISITS) as f64
    }

    pub fn add(&mut self, t: LookupCounts) {
        self.cache_hits += t.cache_hits;
        self.flow_hits += t.flow_hits;
        self.visits += t.visits;
        self.missed_visits += t.missed_visits;
        self.learned += t.learned;
        self.resolved += t.resolved;
    }
}

/// See the module.
pub(super) struct PortClassifier {
    port: PortNo,
    /// Subtables with megaflows of the port, most hit first.
    pub order: Vec<u8>,
    /// Megaflows of the port, by subtable, and all.
    megaflows: [u32; MASKS],
    pub live: u32,
    /// The megaflow that looks at nothing but the port, if there is one; 0: none.
    port_only: u32,
    /// Its hits by subtable, decayed.
    pub hits: [u64; MASKS],
    /// Of the union of its masks: what the cache hashes.
    pub union: Hasher,
    pub cache_on: bool,
    /// In how many of `order` its packets are looked up: as far as that is likely to save a
    /// question to the pipeline, at most [`SUBTABLES_PROBED_MAX`].
    pub subtables_probed_max: usize,
    pub predictor: PredictorTrial,
    /// Decisions that were new, decayed.
    new_flows: u64,
    pub direct: DirectMode,
    /// What decisions cost is more than what the cache would.
    miss_cost_high: bool,
    /// Since the last judgement.
    pub recent: LookupCounts,
    /// What the last judgement went by.
    judged: LookupCounts,
    forced: bool,
    /// Judgements until the cache is tried again, and how many it will be next time.
    wait: u32,
    retry_after: u32,
}

impl PortClassifier {
    pub fn new(port: PortNo, secret: u64) -> Self {
        PortClassifier {
            port,
            order: Vec::new(),
            megaflows: [0; MASKS],
            live: 0,
            port_only: 0,
            hits: [0; MASKS],
            union: Hasher::new(&[0; 32], 0),
            cache_on: false,
            subtables_probed_max: SUBTABLES_PROBED_MAX,
            predictor: PredictorTrial::default(),
            new_flows: 0,
            direct: DirectMode::new(secret),
            miss_cost_high: false,
            recent: LookupCounts::default(),
            judged: LookupCounts::default(),
            forced: false,
            wait: 0,
            retry_after: 1,
        }
    }

    /// Has it megaflows in this subtable?
    pub fn uses(&self, slot: usize) -> bool {
        self.megaflows[slot] > 0
    }

    /// Masks that count against its share.
    pub fn masks(&self) -> usize {
        self.order.iter().filter(|slot| **slot != 0).count()
    }

    /// A megaflow was linked; true: the first in its subtable.
    pub fn link(&mut self, slot: usize) -> bool {
        self.live += 1;
        self.megaflows[slot] += 1;
        self.megaflows[slot] == 1
    }

    /// Megaflow `idx`, which looks at nothing but the port, was linked.
    pub fn link_port_only(&mut self, idx: u32) {
        self.port_only = idx;
    }

    /// Megaflow `idx` was unlinked.
    pub fn unlink_port_only(&mut self, idx: u32) {
        if self.port_only == idx {
            self.port_only = 0;
        }
    }

    /// The port's only megaflow, if that looks at nothing but the port.
    #[inline]
    pub fn sole(&self) -> Option<u32> {
        (self.live == 1 && self.port_only != 0).then_some(self.port_only)
    }

    /// A megaflow was unlinked; true: the last in its subtable.
    pub fn unlink(&mut self, slot: usize) -> bool {
        self.live -= 1;
        self.megaflows[slot] -= 1;
        self.megaflows[slot] == 0
    }

    /// A decision was made, and it was not there.
    pub fn count_new_flow(&mut self) {
        self.new_flows += 1;
    }

    /// Are new flows so many that it counts whether what is stored is used?
    pub fn new_flow_rate_high(&self) -> bool {
        self.new_flows >= NEW_FLOWS_MIN
    }

    /// Does a flow in this subtable save decisions? Where its packets are not looked up only the
    /// cache can know it.
    pub fn pays(&self, slot: usize) -> bool {
        self.cache_on
            || self.order.iter().take(self.subtables_probed_max).any(|s| usize::from(*s) == slot)
    }

    /// Would a flow save decisions that is where packets are not looked up? So it will if the cache
    /// is worth it.
    pub fn unprobed_pays(&self) -> bool {
        self.miss_cost_high
    }

    /// Ranks its subtables, and sees what the cache has to hash.
    pub fn reorder(&mut self, all: &[Option<Box<Subtable>>], secret: u64) {
        self.order.clear();
        self.order.extend((0..=u8::MAX).filter(|slot| self.megaflows[usize::from(*slot)] > 0));
        self.order.sort_by_key(|slot| std::cmp::Reverse(self.hits[usize::from(*slot)]));
        let mut union = [0; 32];
        for sub in self.order.iter().filter_map(|slot| all[usize::from(*slot)].as_ref()) {
            union.iter_mut().zip(&sub.mask).for_each(|(u, m)| *u |= m);
        }
        self.union = Hasher::new(&union, secret);
    }

    /// Sees how many subtables are worth a visit. Old hits count half; the cache is judged.
    /// `filling`: most of what the cache learns finds an empty place there. `decision`: the cycles
    /// of one.
    pub fn tune(&mut self, choice: Tri, filling: bool, decision: u64) {
        self.direct.judge(self.new_flow_rate_high());
        let packets = self.new_flows + self.hits.iter().sum::<u64>();
        self.miss_cost_high = self.new_flows * decision > packets * CACHE_COST_CYCLES;
        self.subtables_probed_max = self.worth_a_visit();
        self.predictor.judge();
        self.hits.iter_mut().for_each(|h| *h /= 2);
        self.new_flows /= 2;
        let recent = std::mem::take(&mut self.recent);
        self.forced = choice != Tri::Auto;
        if recent.hits() >= JUDGED_LOOKUPS_MIN {
            self.judged = recent;
        }
        self.cache_on = match choice {
            Tri::On => true,
            Tri::Off => false,
            Tri::Auto if recent.hits() < JUDGED_LOOKUPS_MIN => self.cache_on,
            Tri::Auto => self.judge(recent, filling),
        };
    }

    /// Subtables, the most hit first, of which a visit costs less than what it saves when the
    /// packet is found there and not by the pipeline.
    fn worth_a_visit(&self) -> usize {
        let hits = || self.order.iter().map(|slot| self.hits[usize::from(*slot)]);
        let mut left = self.new_flows + hits().sum::<u64>();
        if left < JUDGED_LOOKUPS_MIN {
            return self.subtables_probed_max;
        }
        let saved = if self.direct.on { DIRECT_COST_VISITS } else { MISS_COST_VISITS };
        let pays = |h: &u64| {
            let pays = h * saved >= left;
            left -= h;
            pays
        };
        hits().take(SUBTABLES_PROBED_MAX).take_while(pays).count().max(1)
    }

    /// A cache that did not pay is not tried again at once, and one that is being
    /// filled is judged by what it will save.
    fn judge(&mut self, t: LookupCounts, filling: bool) -> bool {
        let masks = self.order.len();
        if self.cache_on {
            let full = LookupCounts { cache_hits: 0, ..t };
            let on = saves(masks, t) > CacheState::STAYS
                || filling && saves(masks, full) > CacheState::PAYS;
            if on {
                self.retry_after = 1;
            } else {
                self.retry_after = (self.retry_after * 2).min(CACHE_RETRY_INTERVALS_MAX);
                self.wait = self.retry_after;
            }
            return on;
        }
        self.wait = self.wait.saturating_sub(1);
        self.wait == 0 && saves(masks, t) > CacheState::PAYS
    }

    /// What control may know.
    pub fn show(&self) -> PortLookup {
        PortLookup {
            port: self.port,
            flows: self.live,
            masks: self.order.len() as u32,
            lookups: self.judged.hits(),
            visits: self.judged.visits,
            cache_hits: self.judged.cache_hits,
            cache: CacheState {
                on: self.cache_on,
                forced: self.forced,
                saves: saves(self.order.len(), self.judged),
                wait: self.wait,
            },
            direct: self.direct.on,
        }
    }
}

/// Subtable visits per packet that a cache saves, or would save if it knew every packet. A hit
/// saves what lookups without the cache take on average; half the subtables if that was not
/// measured.
fn saves(masks: usize, t: LookupCounts) -> f64 {
    if t.cache_hits == 0 {
        return t.cost() / t.hits().max(1) as f64;
    }
    let rate = t.cache_hits as f64 / t.hits() as f64;
    let others = t.flow_hits + t.resolved;
    let visits = if others > 64 { t.cost() / others as f64 } else { masks as f64 / 2.0 };
    rate * visits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuned(p: &mut PortClassifier, cache_hits: u64, flow_hits: u64, visits: u64) -> bool {
        p.recent = LookupCounts { cache_hits, flow_hits, visits, ..LookupCounts::default() };
        p.tune(Tri::Auto, false, 0);
        p.cache_on
    }

    #[test]
    fn the_cache_pays_with_many_visits_only() {
        let mut p = PortClassifier::new(1, 0);
        p.order = (0..12).collect();
        assert!(!tuned(&mut p, 0, 1000, 1500));
        assert!(!tuned(&mut p, 0, 100, 3600), "too few packets say nothing");
        assert!(tuned(&mut p, 0, 1000, 3600));
        assert!(tuned(&mut p, 900, 100, 600));
        assert!(tuned(&mut p, 1000, 0, 0), "not measured: six visits");
        assert!(!tuned(&mut p, 900, 100, 120));
    }

    #[test]
    fn a_cache_that_is_being_filled_stays() {
        let mut p = PortClassifier::new(1, 0);
        p.order = (0..12).collect();
        assert!(tuned(&mut p, 0, 1000, 6000));
        for filling in [true, true, false] {
            p.recent = LookupCounts {
                cache_hits: 10,
                flow_hits: 990,
                visits: 6000,
                ..LookupCounts::default()
            };
            p.tune(Tri::Auto, filling, 0);
            assert_eq!(p.cache_on, filling);
        }
    }

    #[test]
    fn subtables_are_visited_as_far_as_that_pays() {
        let mut p = PortClassifier::new(1, 0);
        p.order = (0..4).collect();
        assert_eq!(p.worth_a_visit(), SUBTABLES_PROBED_MAX, "nothing is known yet");
        p.hits[..4].copy_from_slice(&[10_000, 500, 20, 10]);
        assert_eq!(p.worth_a_visit(), 4);
        p.new_flows = 10_000;
        assert_eq!(p.worth_a_visit(), 2);
        p.new_flows = 1_000_000;
        assert_eq!(p.worth_a_visit(), 1, "one in any case");
    }

    #[test]
    fn a_flow_saves_decisions_where_packets_are_looked_up() {
        let mut p = PortClassifier::new(1, 0);
        (p.order, p.subtables_probed_max) = (vec![3, 4], 1);
        assert!(p.pays(3) && !p.pays(4));
        p.cache_on = true;
        assert!(p.pays(4));
        for _ in 0..NEW_FLOWS_MIN {
            assert!(!p.new_flow_rate_high());
            p.count_new_flow();
        }
        assert!(p.new_flow_rate_high());
        p.tune(Tri::Off, false, 0);
        assert!(!p.new_flow_rate_high(), "it was long ago");
    }

    #[test]
    fn a_cache_that_does_not_pay_is_tried_less_and_less() {
        let mut p = PortClassifier::new(1, 0);
        p.order = (0..12).collect();
        // Every packet is a flow of its own: the cache would save visits, and knows nothing.
        let mut gaps = Vec::new();
        for _ in 0..200 {
            let mut gap = 0;
            while !tuned(&mut p, 0, 1000, 6000) {
                gap += 1;
            }
            gaps.push(gap);
            assert!(!tuned(&mut p, 10, 990, 6000));
        }
        assert_eq!(gaps[..7], [0, 1, 3, 7, 15, 31, 63]);
        assert_eq!(gaps.last(), Some(&63));
        // One success, and it is tried at once.
        while !tuned(&mut p, 0, 1000, 6000) {}
        assert!(tuned(&mut p, 900, 100, 600));
        assert!(!tuned(&mut p, 10, 990, 6000));
        assert!(!tuned(&mut p, 0, 1000, 6000) && tuned(&mut p, 0, 1000, 6000));
    }

    #[test]
    fn what_is_decided_is_shown_with_its_reason() {
        let mut p = PortClassifier::new(7, 0);
        p.order = vec![3, 4];
        tuned(&mut p, 0, 1000, 1500);
        let shown = p.show();
        assert_eq!((shown.port, shown.masks, shown.lookups, shown.visits), (7, 2, 1000, 1500));
        assert_eq!((shown.cache.on, shown.cache.forced, shown.cache.saves), (false, false, 1.5));
        p.tune(Tri::On, false, 0);
        assert!(p.show().cache.on && p.show().cache.forced);
    }

    #[test]
    fn many_ports_have_smaller_shares() {
        assert_eq!([0, 1, 3, 4, 12, 100].map(port_masks_max), [192, 192, 85, 63, 21, 4]);
    }
}
