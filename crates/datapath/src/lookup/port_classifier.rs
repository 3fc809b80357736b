//! The part of a worker's table that belongs to one input port: which subtables have megaflows of
//! the port, and what is counted of its packets for `miss/policy.rs`. Masks, flows and cache of one
//! port never cost another port's packets anything.

use super::flow_store::MASKS;
use super::subtable::{Hasher, Subtable};
use crate::batch::keys::{KEY_WORDS, KeyRef, Line, Words};
use crate::miss::policy::{CacheUse, NEW_FLOWS_MIN, NewFlows, PortPolicy};
use crate::miss::rates::PortRates;
use crate::miss::seen_flows::FlowSamples;
use crate::parse::job::Matched;
use crate::settings::Tri;
use flow::PortNo;

/// Masks that one port may have, besides the full mask, while few ports share a table: other ports
/// find some left.
pub(super) const PORT_MASKS_MAX: usize = MASKS / 4 * 3;
/// Subtables in which a packet is looked up, at most: the most hit ones of its port, besides
/// predicted ones. A packet takes, with 8 masks and no signature cache, 133 and 137 cycles, and 165
/// and 169 with 8 subtables; with an access list of 10,000 rules 165 and 183, and 182 and 215 with
/// 16 subtables. With one subtable, two masks take up to 284 cycles instead of 120
/// (`bench/micro/datapath/miss.rs`).
pub(super) const SUBTABLES_PROBED_MAX: usize = 4;

/// Masks that each of `ports` ports may have: an even share, but no fewer than the subtables in
/// which a packet is looked up.
pub(super) fn port_masks_max(ports: usize) -> usize {
    ((MASKS - 1) / ports.max(1)).clamp(SUBTABLES_PROBED_MAX, PORT_MASKS_MAX)
}

/// The bits that some mask of a port has.
pub(super) struct Union {
    mask: Words,
    /// The hash of the signature cache, of these bits.
    pub hasher: Hasher,
    /// The bits as the parser wants them.
    pub matched: Matched,
}

impl Union {
    fn new(mask: Words, secret: u64) -> Self {
        let mut line: Line = *mask.first_chunk().expect("a line");
        line[KEY_WORDS] = !0;
        let ext = mask[line.len()..].iter().any(|word| *word != 0);
        Union { mask, hasher: Hasher::new(&mask, secret), matched: Matched { line, ext } }
    }
}

/// One input port's part of a worker's table.
pub(super) struct PortClassifier {
    port: PortNo,
    /// Numbers of the subtables with megaflows of the port, the most hit one first.
    pub order: Vec<u8>,
    /// Number of the port's megaflows, by subtable.
    megaflows: [u32; MASKS],
    /// Number of the port's megaflows.
    pub live: u32,
    /// Index of the megaflow that matches on nothing but the port; 0: none.
    port_only: u32,
    /// Hits of the port's packets by subtable; older ones count half.
    pub hits: [u64; MASKS],
    /// All bits that some mask of the port has.
    pub union: Union,
    /// The samples of the port's flows that are resolved with masks in direct mode.
    pub samples: FlowSamples,
    /// How the port's packets are treated until the next judgement.
    pub policy: PortPolicy,
    pub rates: PortRates,
    /// The rates of the last judgement.
    judged: PortRates,
    /// True if configuration, and not the policy, says whether the signature cache is used.
    forced: bool,
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
            union: Union::new([0; 32], secret),
            samples: FlowSamples::new(secret),
            policy: PortPolicy::default(),
            rates: PortRates::default(),
            judged: PortRates::default(),
            forced: false,
        }
    }

    /// True if the port has megaflows in this subtable.
    pub fn uses(&self, subtable: usize) -> bool {
        self.megaflows[subtable] > 0
    }

    /// Number of masks that count against the port's share.
    pub fn masks(&self) -> usize {
        self.order.iter().filter(|subtable| **subtable != 0).count()
    }

    /// Records that a megaflow was linked; true: the port's first in its subtable.
    pub fn link(&mut self, subtable: usize) -> bool {
        self.live += 1;
        self.megaflows[subtable] += 1;
        self.megaflows[subtable] == 1
    }

    /// Records that megaflow `idx`, which matches on nothing but the port, was linked.
    pub fn link_port_only(&mut self, idx: u32) {
        self.port_only = idx;
    }

    /// Records that megaflow `idx` was unlinked.
    pub fn unlink_port_only(&mut self, idx: u32) {
        if self.port_only == idx {
            self.port_only = 0;
        }
    }

    /// The port's only megaflow, if it matches on nothing but the port.
    #[inline]
    pub fn sole(&self) -> Option<u32> {
        (self.live == 1 && self.port_only != 0).then_some(self.port_only)
    }

    /// Records that a megaflow was unlinked; true: the port's last in its subtable.
    pub fn unlink(&mut self, subtable: usize) -> bool {
        self.live -= 1;
        self.megaflows[subtable] -= 1;
        self.megaflows[subtable] == 0
    }

    /// True if packets can find a megaflow in this subtable: they are looked up there, or in the
    /// cache.
    pub fn pays(&self, subtable: usize) -> bool {
        self.policy.cache == CacheUse::On
            || self.visited().iter().any(|visited| usize::from(*visited) == subtable)
    }

    /// The subtables in which the port's packets are looked up.
    pub fn visited(&self) -> &[u8] {
        &self.order[..SUBTABLES_PROBED_MAX.min(self.order.len())]
    }

    /// True if new flows are so many that not each is stored. They are counted from the first miss
    /// of an interval on, so this may change within it.
    pub fn stores_few(&self) -> bool {
        self.policy.new_flows != NewFlows::Stored || self.rates.new_flows >= NEW_FLOWS_MIN
    }

    /// True if this packet is of a port in direct mode, and its flow in neither sample.
    #[inline]
    pub fn is_direct(&self, key: &KeyRef<'_>) -> bool {
        self.policy.new_flows == NewFlows::Direct
            && self.samples.is_in_none(key, self.policy.interval)
    }

    /// Ranks the subtables by hits, and updates the union of their masks.
    pub fn reorder(&mut self, all: &[Option<Box<Subtable>>], secret: u64) {
        self.order.clear();
        self.order
            .extend((0..=u8::MAX).filter(|subtable| self.megaflows[usize::from(*subtable)] > 0));
        self.order.sort_by_key(|subtable| std::cmp::Reverse(self.hits[usize::from(*subtable)]));
        let mut union = [0; 32];
        for sub in self.order.iter().filter_map(|subtable| all[usize::from(*subtable)].as_ref()) {
            union.iter_mut().zip(&sub.mask).for_each(|(u, m)| *u |= m);
        }
        if union != self.union.mask {
            self.union = Union::new(union, secret);
            self.rates.union_changed = true;
        }
    }

    /// Judges the interval's rates and begins the next interval. `miss_cycles`: cycles of a miss.
    pub fn tune(&mut self, choice: Tri, miss_cycles: u64) {
        (self.rates.masks, self.rates.miss_cycles) = (self.order.len(), miss_cycles);
        self.policy = self.policy.next(&self.rates, choice);
        (self.judged, self.forced) = (self.rates, choice != Tri::Auto);
        self.rates.begin();
        self.hits.iter_mut().for_each(|h| *h /= 2);
    }

    /// A copy of the state for the control side.
    pub fn snapshot(&self) -> PortLookup {
        PortLookup {
            port: self.port,
            flows: self.live,
            masks: self.order.len() as u32,
            rates: self.judged,
            cache_forced: self.forced,
            policy: self.policy,
        }
    }
}

/// How a worker finds the megaflows of one input port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortLookup {
    /// The input port.
    pub port: PortNo,
    /// The port's megaflows.
    pub flows: u32,
    /// Masks of these megaflows.
    pub masks: u32,
    /// The rates of the last judgement.
    pub rates: PortRates,
    /// True if configuration, and not the policy, says whether the signature cache is used.
    pub cache_forced: bool,
    /// How the port's packets are treated now.
    pub policy: PortPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::miss::rates::LookupCounts;

    #[test]
    fn a_flow_saves_decisions_where_packets_are_looked_up() {
        let mut p = PortClassifier::new(1, 0);
        p.order = (3..=3 + SUBTABLES_PROBED_MAX as u8).collect();
        assert!(p.pays(3) && !p.pays(3 + SUBTABLES_PROBED_MAX));
        p.policy.cache = CacheUse::On;
        assert!(p.pays(3 + SUBTABLES_PROBED_MAX));
    }

    #[test]
    fn what_is_decided_is_shown_with_its_reason() {
        let mut p = PortClassifier::new(7, 0);
        p.order = vec![3, 4];
        p.rates.lookups = LookupCounts { flow_hits: 1000, visits: 1100, ..LookupCounts::default() };
        p.tune(Tri::Auto, 1000);
        let shown = p.snapshot();
        assert_eq!((shown.port, shown.masks, shown.rates.masks), (7, 2, 2));
        assert_eq!((shown.rates.lookups.flow_hits, shown.rates.lookups.visits), (1000, 1100));
        assert_eq!((shown.policy.cache, shown.cache_forced), (CacheUse::Off, false));
        assert_eq!(p.rates.lookups, LookupCounts::default());
        p.tune(Tri::On, 1000);
        assert!(p.snapshot().policy.cache == CacheUse::On && p.snapshot().cache_forced);
    }

    #[test]
    fn many_ports_have_smaller_shares() {
        assert_eq!([0, 1, 3, 4, 12, 100].map(port_masks_max), [192, 192, 85, 63, 21, 4]);
    }
}
