//! Lookup in the signature cache.

use super::compare::Probe;
use super::search::{Group, Search};
use super::signature_cache::SigCache;
use super::subtable::Hasher;
use super::table::Table;
use crate::batch::keys::{KeyRef, Keys};
use crate::mem::prefetch;
use crate::miss::policy::CacheUse;
use crate::miss::rates::{LookupCounts, Share};
use crate::miss::seen_flows::is_sampled;
use packet::VECTOR;

impl Table {
    /// The hasher of a port's keys, if its packets go through the signature cache.
    #[inline]
    pub(super) fn caching(&self, port: usize) -> Option<&Hasher> {
        self.classifier(port).filter(|p| p.policy.cache == CacheUse::On).map(|p| &p.union.hasher)
    }

    /// True if the group's packets go through the signature cache.
    #[inline]
    pub(super) fn caches(&self, g: &Group) -> bool {
        self.caching(g.port).is_some()
    }

    /// Hashes packets of ports that use the signature cache or may come to use it, and measures by
    /// a sample of flows whether packets come back.
    #[inline(always)]
    pub(super) fn hash_for_cache(&mut self, keys: &mut Keys, search: &Search) {
        for g in &search.groups {
            let Some(p) = self.classifiers.get_mut(g.port).and_then(Option::as_deref_mut) else {
                continue;
            };
            let (on, sampling) = (p.policy.cache == CacheUse::On, p.policy.is_sampling());
            if !on && !sampling {
                continue;
            }
            let packets = &search.todo[g.range()];
            match self.cache.as_ref().filter(|_| on) {
                Some(cache) => p.union.hasher.hash_all(keys, packets, |hash| cache.prefetch(hash)),
                None => p.union.hasher.hash_all(keys, packets, |_| {}),
            }
            if !sampling {
                continue;
            }
            for h in packets.iter().map(|i| keys.hash[usize::from(*i)]) {
                if is_sampled(h) {
                    let again = self.history.seen_flows.test_and_set(h);
                    p.rates.packets_returning.count(1, again.into());
                }
            }
        }
    }

    /// Looks up the groups whose ports use the signature cache; packets that are found leave them.
    #[inline(always)]
    pub(super) fn by_cache<P: Probe>(&mut self, keys: &mut Keys, search: &mut Search) {
        let Some(cache) = self.cache.take() else { return };
        let mut groups = std::mem::take(&mut search.groups);
        for g in groups.iter().filter(|g| self.caches(g)) {
            for i in search.todo[g.range()].iter().map(|i| usize::from(*i)) {
                let c = cache.candidate(keys.hash[i]);
                keys.megaflow[i] = c;
                self.prefetch_megaflow(c);
            }
        }
        for g in &mut groups {
            if !self.caches(g) {
                continue;
            }
            let before = g.end;
            let mut left = g.from;
            for n in g.range() {
                let i = search.todo[n];
                search.todo[left] = i;
                left += usize::from(!self.is_in_cache::<P>(&cache, keys, i.into()));
            }
            (g.end, g.unknown) = (left, left);
            self.count(
                g.port,
                LookupCounts { cache_hits: (before - left) as u64, ..LookupCounts::default() },
            );
        }
        search.groups = groups;
        self.cache = Some(cache);
    }

    /// True if the signature cache has the megaflow of packet `i`, whose first candidate is in
    /// `keys.megaflow`.
    #[inline(always)]
    fn is_in_cache<P: Probe>(&self, cache: &SigCache, keys: &mut Keys, i: usize) -> bool {
        let first = keys.megaflow[i];
        if first == 0 {
            return false;
        }
        if let Some(program) = self.covers::<P>(first, &keys.get(i)) {
            keys.program[i] = program;
            return true;
        }
        // Not a closure: that would be compiled without the level's instructions.
        let (mut ways, megaflows) = cache.ways(keys.hash[i]);
        while ways != 0 {
            let idx = megaflows.get(ways.trailing_zeros());
            ways &= ways - 1;
            if idx != 0
                && let Some(program) = self.covers::<P>(idx, &keys.get(i))
            {
                (keys.megaflow[i], keys.program[i]) = (idx, program);
                return true;
            }
        }
        false
    }

    /// The program of a megaflow, if it matches this key.
    #[inline(always)]
    pub(super) fn covers<P: Probe>(&self, idx: u32, key: &KeyRef<'_>) -> Option<u32> {
        let p = self.store.payload(idx);
        // SAFETY: the level's instructions are there.
        let ready = unsafe { P::mask(&self.masks[p.mask()]) };
        if !p.usable() || !self.verify::<P>(idx, p.mask(), ready, key) {
            return None;
        }
        prefetch(self.store.counters(idx));
        Some(p.program())
    }

    /// Records the megaflows that subtables found for these packets in the signature cache.
    #[inline(never)]
    pub(super) fn learn(&mut self, keys: &Keys, groups: &[Group], todo: &[u8; VECTOR]) {
        let Some(mut cache) = self.cache.take() else { return };
        for g in groups {
            let Some(union) = self.caching(g.port) else { continue };
            let mut learned = Share::default();
            let found = todo[g.from..g.unknown].iter().map(|i| usize::from(*i));
            for i in found.filter(|i| keys.megaflow[*i] != 0) {
                let no_other_lost = cache.insert(union.hash(&keys.get(i)), keys.megaflow[i]);
                learned.count(1, no_other_lost.into());
            }
            if let Some(p) = &mut self.classifiers[g.port] {
                p.rates.learned.count(learned.all, learned.good);
            }
        }
        self.cache = Some(cache);
    }
}
