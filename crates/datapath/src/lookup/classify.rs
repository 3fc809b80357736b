//! Looks up the packets of a vector in a table: a group for each stretch of packets of one input
//! port. All groups take each step together, so that a step prefetches the cache lines that the
//! next one reads, for the whole vector.
//!
//! The loop is generic over how keys are compared; each [`Level`] is one instance of it.

use super::compare::{Probe, Scalar};
use super::port_classifier::PortClassifier;
use super::predictor::PREDICTIONS_MAX;
use super::search::Search;
use super::table::{Table, port_of};
use crate::batch::keys::{KeyRef, Keys};
use crate::cpu::Level;
use crate::mem::prefetch;
use crate::miss::policy::{CacheUse, NewFlows, PredictorUse};
use crate::miss::rates::LookupCounts;

/// Up to this many packets are first looked up without groups, in the first subtable of their port:
/// 720 cycles for an iteration with one packet, and 954 with groups (docs/perf/latency.md).
const FEW_PACKETS_MAX: usize = 8;

impl Table {
    /// Looks up the packets whose numbers are in `todo`; leaves there those without a megaflow, in
    /// order.
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
        let caching = self.any_port.cached && search.groups.iter().any(|g| self.caches(g));
        if self.any_port.hashed {
            self.hash_for_cache(keys, &search);
        }
        if caching {
            self.by_cache::<P>(keys, &mut search);
        }
        let unknown = caching.then_some(search.todo);
        self.predict::<P>(keys, &mut search, PredictorUse::First);
        for round in 0.. {
            if !self.open_round(&mut search, round) {
                break;
            }
            self.by_subtable::<P>(keys, &mut search);
        }
        self.predict::<P>(keys, &mut search, PredictorUse::Last);
        if let Some(unknown) = unknown
            && search.groups.iter().any(|g| g.unknown > g.from)
        {
            self.learn(keys, &search.groups, &unknown);
        }
        self.count_missed_visits(&search);
        search.rest(todo);
        self.search = Some(search);
    }

    /// Looks up a few packets, each in the first subtable that its port's packets visit, and there
    /// only their first candidate. Leaves those without a megaflow in `todo`, in order; for these
    /// nothing is counted.
    #[inline(always)]
    fn by_first_subtable<P: Probe>(&mut self, keys: &mut Keys, todo: &mut Vec<u8>) {
        let mut subtables = [None; FEW_PACKETS_MAX];
        for (i, subtable) in todo.iter().zip(&mut subtables) {
            *subtable = self.first_subtable(keys, *i);
            if let Some(sub) = subtable.and_then(|subtable| self.subtables[subtable].as_deref()) {
                sub.hash_all(keys, &[*i]);
            }
        }
        for (i, subtable) in todo.iter().map(|i| usize::from(*i)).zip(subtables) {
            if let Some(sub) = subtable.and_then(|subtable| self.subtables[subtable].as_deref()) {
                (keys.megaflow[i], _) = sub.first_buckets().candidate(keys.hash[i]);
                self.prefetch_megaflow(keys.megaflow[i]);
            }
        }
        let mut left = 0;
        for n in 0..todo.len() {
            let i = todo[n];
            todo[left] = i;
            left += usize::from(
                !subtables[n].is_some_and(|subtable| self.is_in_first::<P>(keys, i, subtable)),
            );
        }
        todo.truncate(left);
    }

    /// The first subtable that packet `i` visits; None if the signature cache comes first.
    #[inline(always)]
    fn first_subtable(&self, keys: &Keys, i: u8) -> Option<usize> {
        let port = port_of(keys.line.0[usize::from(i)][4]);
        let p = self
            .classifier(port.into())
            .filter(|p| !self.any_port.cached || p.policy.cache != CacheUse::On)?;
        self.visited(p).first().map(|subtable| usize::from(*subtable))
    }

    /// True if packet `i`'s candidate in its port's first subtable is its megaflow; counts the hit.
    #[inline(always)]
    fn is_in_first<P: Probe>(&mut self, keys: &mut Keys, i: u8, subtable: usize) -> bool {
        let (i, port) = (usize::from(i), usize::from(port_of(keys.line.0[usize::from(i)][4])));
        let m = &self.masks[subtable];
        // SAFETY: the level's instructions are there.
        let ready = unsafe { P::mask(m) };
        if !self.is_candidate::<P>(self.store.lines(), keys, i, (subtable, ready, m.ext)) {
            return false;
        }
        self.count(port, LookupCounts { visits: 1, flow_hits: 1, ..LookupCounts::default() });
        if let Some(p) = &mut self.classifiers[port] {
            p.hits[subtable] += 1;
        }
        true
    }

    /// Counts the visits of packets without a megaflow.
    fn count_missed_visits(&mut self, search: &Search) {
        for g in search.groups.iter().filter(|g| g.from < g.end) {
            let missed = (g.end - g.from) as u64;
            let visited = self.classifier(g.port).map_or(0, |p| self.visited(p).len()) as u64;
            let predicted = if g.predicted { search.predictions(*g) } else { 0 };
            let missed_visits = visited * missed + predicted;
            self.count(g.port, LookupCounts { missed, missed_visits, ..LookupCounts::default() });
        }
    }

    pub(super) fn classifier(&self, port: usize) -> Option<&PortClassifier> {
        self.classifiers.get(port)?.as_deref()
    }

    /// The subtables in which packets of a port are looked up, in order.
    pub(super) fn visited<'a>(&self, p: &'a PortClassifier) -> &'a [u8] {
        #[cfg(test)]
        if self.exhaustive {
            return &p.order;
        }
        p.visited()
    }

    /// Adds to the counts of a port and of the table.
    pub(super) fn count(&mut self, port: usize, t: LookupCounts) {
        self.counts.add(t);
        if let Some(p) = self.classifiers.get_mut(port).and_then(Option::as_deref_mut) {
            p.rates.lookups.add(t);
        }
    }

    /// Gives each group that has packets left the next subtable of its port. False: no group has
    /// both packets and subtables left.
    fn open_round(&self, search: &mut Search, round: usize) -> bool {
        search.round.clear();
        for (n, g) in search.groups.iter_mut().enumerate().filter(|(_, g)| g.from < g.end) {
            if let Some(subtable) = self.classifier(g.port).and_then(|p| self.visited(p).get(round))
            {
                g.subtable = usize::from(*subtable);
                search.round.push(n as u8);
            }
        }
        !search.round.is_empty()
    }

    /// Looks up each group of the round in its subtable.
    #[inline(always)]
    fn by_subtable<P: Probe>(&mut self, keys: &mut Keys, search: &mut Search) {
        for n in search.round.iter() {
            let g = search.groups[usize::from(*n)];
            let sub = self.subtables[g.subtable].as_deref().expect("ordered subtables exist");
            sub.hash_all(keys, &search.todo[g.range()]);
        }
        for n in search.round.iter() {
            let g = search.groups[usize::from(*n)];
            let sub = self.subtables[g.subtable].as_deref().expect("ordered subtables exist");
            let (first, megaflows) = (sub.first_buckets(), self.store.lines());
            for i in search.todo[g.range()].iter().map(|i| usize::from(*i)) {
                let (c, more) = first.candidate(keys.hash[i]);
                (keys.megaflow[i], search.more[i]) = (c, more);
                prefetch(megaflows.line(c));
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
                p.hits[g.subtable] += hits;
            }
        }
    }

    /// Looks up the remaining packets of ports that predict at this time (`when`): each packet in
    /// the subtables where flows near it were found.
    #[inline(always)]
    fn predict<P: Probe>(&mut self, keys: &mut Keys, search: &mut Search, when: PredictorUse) {
        for at in 0..search.groups.len() {
            let g = search.groups[at];
            let now = |p: &PortClassifier| {
                p.policy.predictor == when && p.policy.new_flows != NewFlows::Direct
            };
            if g.from == g.end || !self.classifier(g.port).is_some_and(now) {
                continue;
            }
            for i in search.todo[g.range()].iter().map(|i| usize::from(*i)) {
                search.near[i] = self.history.predictor.get(keys.line.0[i][2]);
            }
            search.groups[at].predicted = true;
            for n in 0..PREDICTIONS_MAX {
                self.by_prediction::<P>(keys, search, at, n);
            }
        }
    }

    /// Looks up each packet of group `at` in its `n`th predicted subtable.
    #[inline(always)]
    fn by_prediction<P: Probe>(
        &mut self,
        keys: &mut Keys,
        search: &mut Search,
        at: usize,
        n: usize,
    ) {
        let g = search.groups[at];
        let sub = |subtable: u8| {
            self.subtables[usize::from(subtable)].as_deref().filter(|_| subtable > 0)
        };
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
                let first = sub.first_buckets();
                (keys.megaflow[i], search.more[i]) = first.candidate(keys.hash[i]);
                self.prefetch_megaflow(keys.megaflow[i]);
            }
        }
        let mut left = g.from;
        for m in g.range() {
            let i = usize::from(search.todo[m]);
            search.todo[left] = i as u8;
            let subtable = usize::from(search.near[i][n]);
            // SAFETY: the level's instructions are there.
            let ready = unsafe { P::mask(&self.masks[subtable]) };
            let found = match sub(subtable as u8) {
                Some(sub) => self.is_there::<P>(keys, search, i, (sub, subtable, ready)),
                None => false,
            };
            left += usize::from(!found);
        }
        search.groups[at].end = left;
        let hits = (g.end - left) as u64;
        self.count(g.port, LookupCounts { visits, flow_hits: hits, ..LookupCounts::default() });
        if let Some(p) = &mut self.classifiers[g.port] {
            p.rates.predictions.count(visits, hits);
        }
    }

    /// Compares a lookup's answer (megaflow and program) with the table; returns the difference in
    /// words.
    pub fn compare(&self, key: &KeyRef<'_>, answer: Option<(u32, u32)>) -> Option<String> {
        let words = key.words();
        let Some((idx, program)) = answer else {
            let p = self.classifier(port_of(words[4]).into())?;
            let mut subtables = self.visited(p).iter().map(|subtable| usize::from(*subtable));
            let (subtable, (idx, _)) = subtables.find_map(|subtable| {
                let sub = self.subtables[subtable].as_deref()?;
                let hit = self.search_all(sub, subtable, sub.hash(key), key, &mut Vec::new());
                (hit.0 != 0).then_some((subtable, hit))
            })?;
            return Some(format!(
                "lookup: nothing instead of megaflow {idx} of mask {subtable} for {words:x?}"
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
}
