//! Verification: is a candidate, named by a subtable, the signature cache or a prediction, the
//! megaflow of its packet?

use super::compare::{MaskLine, Probe, Scalar};
use super::flow_store::StoredLines;
use super::search::{Group, Search};
use super::subtable::Subtable;
use super::table::Table;
use crate::batch::keys::{KeyRef, Keys, Line};
use crate::mem::prefetch;

impl Table {
    /// Prefetches the line of a megaflow.
    #[inline(always)]
    pub(super) fn prefetch_megaflow(&self, idx: u32) {
        prefetch(self.store.line_ptr(idx));
    }

    /// True if a key matches megaflow `idx`, whose mask is number `subtable`.
    #[inline(always)]
    pub(super) fn verify<P: Probe>(
        &self,
        idx: u32,
        subtable: usize,
        mask: P::Mask,
        key: &KeyRef<'_>,
    ) -> bool {
        // SAFETY: the level's instructions are there; a megaflow's line.
        let same = unsafe { P::equal(key.line, mask, self.store.line_ptr(idx).cast()) };
        same && (!self.masks[subtable].ext || self.verify_ext(idx, subtable, key))
    }

    /// True if a key matches a megaflow in lines 1 to 3. Lines in which the mask has no bits are
    /// not read.
    #[inline(never)]
    pub(super) fn verify_ext(&self, idx: u32, subtable: usize, key: &KeyRef<'_>) -> bool {
        let Some(sub) = &self.subtables[subtable] else { return false };
        let megaflow = self.store.ext(idx);
        (0..megaflow.len()).filter(|l| sub.ext & 1 << l != 0).all(|l| {
            let mask: &Line = sub.mask[8 * (l + 1)..].first_chunk().expect("a line");
            let has = if key.have & 1 << l != 0 { u64::MAX } else { 0 };
            let differ = |w: usize| ((key.ext[l][w] & has) ^ megaflow[l][w]) & mask[w];
            (0..mask.len()).fold(0, |d, w| d | differ(w)) == 0
        })
    }

    /// Verifies the candidates of a group's packets. Packets whose candidate is their megaflow
    /// leave `Search::todo`; returns the end of the group's remaining part.
    #[inline(always)]
    pub(super) fn verify_candidates<P: Probe>(
        &self,
        keys: &mut Keys,
        search: &mut Search,
        g: Group,
    ) -> usize {
        let m: &MaskLine = &self.masks[g.subtable];
        // SAFETY: the level's instructions are there.
        let (ready, ext) = (unsafe { P::mask(m) }, m.ext);
        let megaflows = self.store.lines();
        let (mut left, mut far) = (g.from, 0);
        for n in g.range() {
            let i = usize::from(search.todo[n]);
            let found = self.is_candidate::<P>(megaflows, keys, i, (g.subtable, ready, ext));
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

    /// Searches the second buckets for the packets of `Search::far`, whose megaflows may be there.
    /// Packets that are found leave `Search::todo`; returns the end of the group's remaining part.
    #[inline(never)]
    fn verify_second_buckets(
        &self,
        keys: &mut Keys,
        search: &mut Search,
        g: Group,
        far: usize,
    ) -> usize {
        let sub = self.subtables[g.subtable].as_deref().expect("ordered subtables exist");
        let far = search.far[..far].iter().map(|i| usize::from(*i));
        far.clone().for_each(|i| self.prefetch_megaflow(sub.second_candidate(keys.hash[i])));
        for i in far {
            let (hash, key) = (keys.hash[i], keys.get(i));
            (keys.megaflow[i], keys.program[i]) =
                self.search_all(sub, g.subtable, hash, &key, &mut search.dead);
        }
        let mut left = g.from;
        for n in g.range() {
            let i = search.todo[n];
            search.todo[left] = i;
            left += usize::from(keys.megaflow[usize::from(i)] == 0);
        }
        left
    }

    /// True if packet `i`'s candidate is its megaflow; if not, the packet has no megaflow
    /// afterwards.
    #[inline(always)]
    pub(super) fn is_candidate<P: Probe>(
        &self,
        megaflows: StoredLines<'_>,
        keys: &mut Keys,
        i: usize,
        (subtable, ready, ext): (usize, P::Mask, bool),
    ) -> bool {
        let c = keys.megaflow[i];
        if c == 0 {
            return false;
        }
        let p = megaflows.payload(c);
        // SAFETY: the level's instructions are there; a megaflow's line.
        let same = unsafe { P::equal(&keys.line.0[i], ready, megaflows.line(c).cast()) };
        if same && p.usable() && (!ext || self.verify_ext(c, subtable, &keys.get(i))) {
            prefetch(megaflows.counters(c));
            keys.program[i] = p.program();
            return true;
        }
        keys.megaflow[i] = 0;
        false
    }

    /// True if a subtable has a megaflow for packet `i`: its candidate, or any other.
    #[inline(always)]
    pub(super) fn is_there<P: Probe>(
        &self,
        keys: &mut Keys,
        search: &mut Search,
        i: usize,
        (sub, subtable, ready): (&Subtable, usize, P::Mask),
    ) -> bool {
        let mask = (subtable, ready, self.masks[subtable].ext);
        if self.is_candidate::<P>(self.store.lines(), keys, i, mask) {
            return true;
        }
        if !search.more[i] {
            return false;
        }
        let (hash, key, dead) = (keys.hash[i], keys.get(i), &mut search.dead);
        (keys.megaflow[i], keys.program[i]) = self.search_all(sub, subtable, hash, &key, dead);
        keys.megaflow[i] != 0
    }

    /// Searches every place of a subtable where the megaflow of a key may be. Returns its index and
    /// program; 0 and 0 if there is none.
    #[inline(never)]
    pub(super) fn search_all(
        &self,
        sub: &Subtable,
        subtable: usize,
        hash: u64,
        key: &KeyRef<'_>,
        dead: &mut Vec<u32>,
    ) -> (u32, u32) {
        let mut hit = (0, 0);
        sub.search(hash, |idx| {
            let p = self.store.payload(idx);
            if !self.verify::<Scalar>(idx, subtable, self.masks[subtable].words, key) {
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
}
