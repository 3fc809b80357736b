//! The way of packets through a table: a group per stretch of packets of one input port, and all
//! groups side by side, so that each step asks for the cache lines of the next for the whole
//! vector.
//!
//! One loop, generic over how keys are compared; a [`Level`] is one instance of it.

use super::compare::{Probe, Scalar};
use super::port_classifier::PortClassifier;
use super::predictor::PREDICTIONS_MAX;
use super::signature_cache::SigCache;
use super::subtable::{Hasher, Subtable};
use super::table::{Table, port_of};
use crate::batch::keys::{KeyRef, Keys};
use crate::cpu::Level;
use crate::lookup::compare::MaskLine;
use crate::mem::prefetch;
use crate::miss::policy::{CacheUse, NewFlows};
use crate::miss::rates::{LookupCounts, RESOLVE_PACKETS_MAX, Share};
use crate::miss::seen_flows::is_sampled;
use packet::VECTOR;

/// Up to this many packets are first looked up without groups, in the first subtable of their port.
const FEW_PACKETS_MAX: usize = RESOLVE_PACKETS_MAX / 2;

/// Packets of one port that are looked up together.
#[derive(Clone, Copy, Default)]
pub(super) struct Group {
    port: usize,
    /// The subtable of this round.
    slot: usize,
    /// Their numbers are here in `Search::todo`; those that are found leave it.
    from: usize,
    end: usize,
    /// Where they ended when the cache had been asked.
    unknown: usize,
}

impl Group {
    fn range(&self) -> std::ops::Range<usize> {
        self.from..self.end
    }
}

/// The working memory of a search, kept from one vector to the next.
pub(super) struct Search {
    /// Numbers of packets, group by group.
    todo: [u8; VECTOR],
    groups: Vec<Group>,
    /// Groups that take part in this round.
    round: Vec<u8>,
    /// Subtables in which the predictor expects each packet.
    near: [[u8; PREDICTIONS_MAX]; VECTOR],
    /// For each packet: other megaflows than the candidate may cover it.
    more: [bool; VECTOR],
    /// Numbers of packets of a group whose megaflows may be further away.
    far: [u8; VECTOR],
    pub dead: Vec<u32>,
}

impl Search {
    pub fn new() -> Self {
        Search {
            todo: [0; VECTOR],
            groups: Vec::with_capacity(VECTOR),
            round: Vec::with_capacity(VECTOR),
            near: [[0; PREDICTIONS_MAX]; VECTOR],
            more: [false; VECTOR],
            far: [0; VECTOR],
            dead: Vec::new(),
        }
    }

    /// Takes over the packets, and groups them by port.
    fn begin(&mut self, keys: &Keys, todo: &[u8]) {
        self.todo[..todo.len()].copy_from_slice(todo);
        self.groups.clear();
        let mut from = 0;
        while from < todo.len() {
            let port = |i: &u8| port_of(keys.line.0[usize::from(*i)][4]);
            let first = port(&todo[from]);
            let end = from + todo[from..].iter().take_while(|i| port(i) == first).count();
            self.groups.push(Group { port: first.into(), from, end, ..Group::default() });
            from = end;
        }
    }

    /// Writes the packets that were not found to `todo`, in order.
    fn rest(&self, todo: &mut Vec<u8>) {
        todo.clear();
        for g in self.groups.iter().filter(|g| g.from < g.end) {
            todo.extend_from_slice(&self.todo[g.range()]);
        }
    }
}

impl Table {
    /// Looks up the packets whose numbers are in `todo`; leaves those it did not find, in order.
    pub fn classify(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        match self.level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a level is used only where `is_available` found it.
            Level::Avx512 => unsafe { self.classify_avx512(keys, todo) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 => unsafe { self.classify_avx2(keys, todo) },
            _ => self.classify_by::<Scalar>(keys, todo),
        }
    }

    /// # Safety
    /// AVX2, BMI1 and BMI2 are there.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    unsafe fn classify_avx2(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        self.classify_by::<super::compare::Avx2>(keys, todo);
    }

    /// # Safety
    /// AVX-512 F, BW and VL, AVX2, BMI1 and BMI2 are there.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,bmi2")]
    unsafe fn classify_avx512(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        self.classify_by::<super::compare::Avx512>(keys, todo);
    }

    #[inline(always)]
    fn classify_by<P: Probe>(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        if todo.len() <= FEW_PACKETS_MAX {
            self.by_first_subtable::<P>(keys, todo);
            if todo.is_empty() {
                return;
            }
        }
        let mut search =
            std::mem::take(&mut self.search).unwrap_or_else(|| Box::new(Search::new()));
        search.begin(keys, todo);
        let caching = self.some_port.cached && search.groups.iter().any(|g| self.caches(g));
        if self.some_port.hashed {
            self.hash_for_cache(keys, &search);
        }
        if caching {
            self.by_cache::<P>(keys, &mut search);
        }
        let unknown = caching.then_some(search.todo);
        for round in 0.. {
            if !self.open_round(&mut search, round) {
                break;
            }
            self.by_subtable::<P>(keys, &mut search);
        }
        self.predict::<P>(keys, &mut search);
        if let Some(unknown) = unknown
            && search.groups.iter().any(|g| g.unknown > g.from)
        {
            self.learn(keys, &search.groups, &unknown);
        }
        self.count_missed_visits(&search.groups);
        search.rest(todo);
        self.search = Some(search);
    }

    /// Looks up a few packets in the first subtable that their ports' packets visit, the first
    /// candidate only; leaves those that it did not find, in order. Nothing is counted for them.
    #[inline(always)]
    fn by_first_subtable<P: Probe>(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        let mut slots = [None; FEW_PACKETS_MAX];
        for (i, slot) in todo.iter().zip(&mut slots) {
            *slot = self.first_slot(keys, *i);
            if let Some(sub) = slot.and_then(|slot| self.subtables[slot].as_deref()) {
                sub.hash_all(keys, &[*i]);
            }
        }
        for (i, slot) in todo.iter().map(|i| usize::from(*i)).zip(slots) {
            if let Some(sub) = slot.and_then(|slot| self.subtables[slot].as_deref()) {
                (keys.megaflow[i], _) = sub.candidate(keys.hash[i]);
                self.prefetch_megaflow(keys.megaflow[i]);
            }
        }
        let mut left = 0;
        for n in 0..todo.len() {
            let i = todo[n];
            todo[left] = i;
            left += usize::from(!slots[n].is_some_and(|slot| self.is_in_first::<P>(keys, i, slot)));
        }
        todo.truncate(left);
    }

    /// The first subtable that packets of this packet's port visit, unless the cache comes first.
    #[inline(always)]
    fn first_slot(&self, keys: &Keys, i: u8) -> Option<usize> {
        let port = port_of(keys.line.0[usize::from(i)][4]);
        let p = self
            .classifier(port.into())
            .filter(|p| !self.some_port.cached || p.policy.cache != CacheUse::On)?;
        self.visited(p).first().map(|slot| usize::from(*slot))
    }

    /// Is a packet's megaflow its candidate of its port's first subtable? Counted if so.
    #[inline(always)]
    fn is_in_first<P: Probe>(&mut self, keys: &mut Keys, i: u8, slot: usize) -> bool {
        let (i, port) = (usize::from(i), usize::from(port_of(keys.line.0[usize::from(i)][4])));
        let m = &self.masks[slot];
        // SAFETY: the level's instructions are there.
        let ready = unsafe { P::mask(m) };
        if !self.is_candidate::<P>(keys, i, (slot, ready, m.ext)) {
            return false;
        }
        self.count(port, LookupCounts { visits: 1, flow_hits: 1, ..LookupCounts::default() });
        if let Some(p) = &mut self.classifiers[port] {
            p.hits[slot] += 1;
        }
        true
    }

    /// Counts the visits of packets that found nothing.
    fn count_missed_visits(&mut self, groups: &[Group]) {
        for g in groups.iter().filter(|g| g.from < g.end) {
            let visits = self.classifier(g.port).map_or(0, |p| self.visited(p).len()) as u64;
            let missed = (g.end - g.from) as u64;
            let missed_visits = visits * missed;
            self.count(g.port, LookupCounts { missed, missed_visits, ..LookupCounts::default() });
        }
    }

    /// What the cache hashes of a port's keys, if its packets go through the cache.
    pub(super) fn caching(&self, port: usize) -> Option<&Hasher> {
        self.classifier(port).filter(|p| p.policy.cache == CacheUse::On).map(|p| &p.union)
    }

    fn classifier(&self, port: usize) -> Option<&PortClassifier> {
        self.classifiers.get(port)?.as_deref()
    }

    /// The subtables that packets of a port are looked up in, in order.
    fn visited<'a>(&self, p: &'a PortClassifier) -> &'a [u8] {
        if self.exhaustive { &p.order } else { p.visited() }
    }

    fn caches(&self, g: &Group) -> bool {
        self.caching(g.port).is_some()
    }

    /// Adds to the counts of a port.
    pub(super) fn count(&mut self, port: usize, t: LookupCounts) {
        self.counts.add(t);
        if let Some(p) = self.classifiers.get_mut(port).and_then(Option::as_deref_mut) {
            p.rates.lookups.add(t);
        }
    }

    /// Gives each group that has packets left the next subtable of its port; false: no group has
    /// packets and subtables left.
    fn open_round(&self, search: &mut Search, round: usize) -> bool {
        search.round.clear();
        for (n, g) in search.groups.iter_mut().enumerate().filter(|(_, g)| g.from < g.end) {
            if let Some(slot) = self.classifier(g.port).and_then(|p| self.visited(p).get(round)) {
                g.slot = usize::from(*slot);
                search.round.push(n as u8);
            }
        }
        !search.round.is_empty()
    }

    /// Hashes packets of ports that use the cache or may, and sees of a sample whether they come
    /// back.
    #[inline(always)]
    fn hash_for_cache(&mut self, keys: &mut Keys, search: &Search) {
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
                Some(cache) => p.union.hash_all(keys, packets, |hash| cache.prefetch(hash)),
                None => p.union.hash_all(keys, packets, |_| {}),
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

    #[inline(always)]
    fn by_cache<P: Probe>(&mut self, keys: &mut Keys, search: &mut Search) {
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
                left += usize::from(!self.known_to_cache::<P>(&cache, keys, i.into()));
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

    #[inline(always)]
    fn known_to_cache<P: Probe>(&self, cache: &SigCache, keys: &mut Keys, i: usize) -> bool {
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

    /// The program of a megaflow, if it is for packets with this key.
    #[inline(always)]
    fn covers<P: Probe>(&self, idx: u32, key: &KeyRef<'_>) -> Option<u32> {
        let p = self.store.payload(idx);
        // SAFETY: the level's instructions are there.
        let ready = unsafe { P::mask(&self.masks[p.mask()]) };
        if !p.usable() || !self.verify::<P>(idx, p.mask(), ready, key) {
            return None;
        }
        prefetch(self.store.counters(idx));
        Some(p.program())
    }

    #[inline(always)]
    fn prefetch_megaflow(&self, idx: u32) {
        if idx != 0 {
            prefetch(self.store.line_ptr(idx));
        }
    }

    #[inline(always)]
    fn verify<P: Probe>(&self, idx: u32, slot: usize, mask: P::Mask, key: &KeyRef<'_>) -> bool {
        // SAFETY: the level's instructions are there; a megaflow's line.
        let same = unsafe { P::equal(key.line, mask, self.store.line_ptr(idx).cast()) };
        same && (!self.masks[slot].ext || self.verify_ext(idx, slot, key))
    }

    #[inline(never)]
    pub(super) fn verify_ext(&self, idx: u32, slot: usize, key: &KeyRef<'_>) -> bool {
        let Some(sub) = &self.subtables[slot] else { return false };
        let megaflow = self.store.ext(idx);
        (8..32).all(|w| (key.word(w) ^ megaflow[(w - 8) / 8][w % 8]) & sub.mask[w] == 0)
    }

    /// One subtable for each group of the round.
    #[inline(always)]
    fn by_subtable<P: Probe>(&mut self, keys: &mut Keys, search: &mut Search) {
        for n in search.round.iter() {
            let g = search.groups[usize::from(*n)];
            let sub = self.subtables[g.slot].as_deref().expect("ordered subtables exist");
            sub.hash_all(keys, &search.todo[g.range()]);
        }
        for n in search.round.iter() {
            let g = search.groups[usize::from(*n)];
            let sub = self.subtables[g.slot].as_deref().expect("ordered subtables exist");
            for i in search.todo[g.range()].iter().map(|i| usize::from(*i)) {
                let (c, more) = sub.candidate(keys.hash[i]);
                (keys.megaflow[i], search.more[i]) = (c, more);
                self.prefetch_megaflow(c);
            }
        }
        for n in 0..search.round.len() {
            let at = usize::from(search.round[n]);
            let g = search.groups[at];
            let left = self.verify_candidates::<P>(keys, search, g);
            search.groups[at].end = left;
            let (visits, hits) = ((g.end - g.from) as u64, (g.end - left) as u64);
            self.count(g.port, LookupCounts { visits, flow_hits: hits, ..LookupCounts::default() });
            if let Some(p) = &mut self.classifiers[g.port] {
                p.hits[g.slot] += hits;
            }
        }
    }

    /// Verifies a group's candidates; says where the numbers of those that are left end.
    #[inline(always)]
    fn verify_candidates<P: Probe>(&self, keys: &mut Keys, search: &mut Search, g: Group) -> usize {
        let m: &MaskLine = &self.masks[g.slot];
        // SAFETY: the level's instructions are there.
        let ready = unsafe { P::mask(m) };
        let (mut left, mut far) = (g.from, 0);
        for n in g.range() {
            let i = usize::from(search.todo[n]);
            let found = self.is_candidate::<P>(keys, i, (g.slot, ready, m.ext));
            (search.todo[left], search.far[far]) = (i as u8, i as u8);
            left += usize::from(!found);
            far += usize::from(!found & search.more[i]);
        }
        if far > 0 {
            self.verify_second_buckets(keys, search, Group { end: left, ..g }, far)
        } else {
            left
        }
    }

    /// Searches a group's packets that may have megaflows further away; says where the numbers of
    /// those that are left end.
    #[inline(never)]
    fn verify_second_buckets(
        &self,
        keys: &mut Keys,
        search: &mut Search,
        g: Group,
        far: usize,
    ) -> usize {
        let sub = self.subtables[g.slot].as_deref().expect("ordered subtables exist");
        let far = search.far[..far].iter().map(|i| usize::from(*i));
        far.clone().for_each(|i| self.prefetch_megaflow(sub.second_candidate(keys.hash[i])));
        for i in far {
            let (hash, key) = (keys.hash[i], keys.get(i));
            (keys.megaflow[i], keys.program[i]) =
                self.search_all(sub, g.slot, hash, &key, &mut search.dead);
        }
        let mut left = g.from;
        for n in g.range() {
            let i = search.todo[n];
            search.todo[left] = i;
            left += usize::from(keys.megaflow[usize::from(i)] == 0);
        }
        left
    }

    /// Is a packet's candidate its megaflow? It has none if not.
    #[inline(always)]
    fn is_candidate<P: Probe>(
        &self,
        keys: &mut Keys,
        i: usize,
        (slot, ready, ext): (usize, P::Mask, bool),
    ) -> bool {
        let c = keys.megaflow[i];
        if c == 0 {
            return false;
        }
        let p = self.store.payload(c);
        // SAFETY: the level's instructions are there; a megaflow's line.
        let same = unsafe { P::equal(&keys.line.0[i], ready, self.store.line_ptr(c).cast()) };
        if same && p.usable() && (!ext || self.verify_ext(c, slot, &keys.get(i))) {
            prefetch(self.store.counters(c));
            keys.program[i] = p.program();
            return true;
        }
        keys.megaflow[i] = 0;
        false
    }

    /// Verifies a packet's candidate, or looks further: is a megaflow for it in this subtable?
    #[inline(always)]
    fn is_there<P: Probe>(
        &self,
        keys: &mut Keys,
        search: &mut Search,
        i: usize,
        (sub, slot, ready): (&Subtable, usize, P::Mask),
    ) -> bool {
        if self.is_candidate::<P>(keys, i, (slot, ready, self.masks[slot].ext)) {
            return true;
        }
        if !search.more[i] {
            return false;
        }
        let (hash, key, dead) = (keys.hash[i], keys.get(i), &mut search.dead);
        (keys.megaflow[i], keys.program[i]) = self.search_all(sub, slot, hash, &key, dead);
        keys.megaflow[i] != 0
    }

    /// Looks the packets that are left up where others near them were found, each in subtables of
    /// its own.
    #[inline(always)]
    fn predict<P: Probe>(&mut self, keys: &mut Keys, search: &mut Search) {
        for at in 0..search.groups.len() {
            let g = search.groups[at];
            let predictor =
                |p: &PortClassifier| p.policy.predictor && p.policy.new_flows != NewFlows::Direct;
            if g.from == g.end || !self.classifier(g.port).is_some_and(predictor) {
                continue;
            }
            for i in search.todo[g.range()].iter().map(|i| usize::from(*i)) {
                search.near[i] = self.history.predictor.get(keys.line.0[i][2]);
            }
            for n in 0..PREDICTIONS_MAX {
                self.by_prediction::<P>(keys, search, at, n);
            }
        }
    }

    /// Tries the `n`th predicted subtable of each packet of a group.
    #[inline(always)]
    fn by_prediction<P: Probe>(
        &mut self,
        keys: &mut Keys,
        search: &mut Search,
        at: usize,
        n: usize,
    ) {
        let g = search.groups[at];
        let sub = |slot: u8| self.subtables[usize::from(slot)].as_deref().filter(|_| slot > 0);
        let mut visits = 0;
        for i in search.todo[g.range()].iter().map(|i| usize::from(*i)) {
            if let Some(sub) = sub(search.near[i][n]) {
                visits += 1;
                keys.hash[i] = sub.hash(&keys.get(i));
                sub.prefetch(keys.hash[i]);
            }
        }
        for i in search.todo[g.range()].iter().map(|i| usize::from(*i)) {
            if let Some(sub) = sub(search.near[i][n]) {
                (keys.megaflow[i], search.more[i]) = sub.candidate(keys.hash[i]);
                self.prefetch_megaflow(keys.megaflow[i]);
            }
        }
        let mut left = g.from;
        for m in g.range() {
            let i = usize::from(search.todo[m]);
            search.todo[left] = i as u8;
            let slot = usize::from(search.near[i][n]);
            // SAFETY: the level's instructions are there.
            let ready = unsafe { P::mask(&self.masks[slot]) };
            let found = match sub(slot as u8) {
                Some(sub) => self.is_there::<P>(keys, search, i, (sub, slot, ready)),
                None => false,
            };
            left += usize::from(!found);
        }
        search.groups[at].end = left;
        let hits = (g.end - left) as u64;
        let missed_visits = visits - hits;
        self.count(
            g.port,
            LookupCounts { visits, missed_visits, flow_hits: hits, ..LookupCounts::default() },
        );
        if let Some(p) = &mut self.classifiers[g.port] {
            p.rates.predictions.count(visits, hits);
        }
    }

    /// Every place of a subtable where the megaflow of a key may be: its index and program, 0 when
    /// there is none.
    #[inline(never)]
    pub(super) fn search_all(
        &self,
        sub: &Subtable,
        slot: usize,
        hash: u64,
        key: &KeyRef<'_>,
        dead: &mut Vec<u32>,
    ) -> (u32, u32) {
        let mut hit = (0, 0);
        sub.search(hash, |idx| {
            let p = self.store.payload(idx);
            if !self.verify::<Scalar>(idx, slot, self.masks[slot].words, key) {
                return false;
            }
            if !p.usable() {
                dead.push(idx);
                return false;
            }
            prefetch(self.store.counters(idx));
            hit = (idx, p.program());
            true
        });
        hit
    }

    /// What is wrong with a lookup's answer (megaflow and program) about a key, in words.
    pub fn compare(&self, key: &KeyRef<'_>, answer: Option<(u32, u32)>) -> Option<String> {
        let words = key.words();
        let Some((idx, program)) = answer else {
            let p = self.classifier(port_of(words[4]).into())?;
            let mut slots = self.visited(p).iter().map(|slot| usize::from(*slot));
            let (slot, (idx, _)) = slots.find_map(|slot| {
                let sub = self.subtables[slot].as_deref()?;
                let hit = self.search_all(sub, slot, sub.hash(key), key, &mut Vec::new());
                (hit.0 != 0).then_some((slot, hit))
            })?;
            return Some(format!(
                "lookup: nothing instead of megaflow {idx} of mask {slot} for {words:x?}"
            ));
        };
        let p = self.store.payload(idx);
        let mask = self.store.mask(p.mask());
        let megaflow = self.store.key_words(idx, &mask);
        let covers = (0..words.len()).all(|w| (words[w] ^ megaflow[w]) & mask[w] == 0);
        (!covers || p.program() != program).then(|| {
            format!("lookup: megaflow {idx}, program {program}: {megaflow:x?} for {words:x?}")
        })
    }

    /// Puts megaflows into the cache that subtables found for these packets.
    #[inline(never)]
    fn learn(&mut self, keys: &Keys, groups: &[Group], todo: &[u8; VECTOR]) {
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
