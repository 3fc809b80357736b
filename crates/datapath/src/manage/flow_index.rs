//! An index of one worker's megaflows, kept by the control side: it finds the megaflows that
//! overlap a change without examining all.
//!
//! A megaflow with mask M overlaps a region (values, mask R) if the two agree on the bits of M & R.
//! For all regions with the same R, the megaflows of one subtable, which all have mask M, are found
//! by a hash of the bits M & R. Such an index is built once a subtable was scanned often enough
//! for one M & R, and then kept up to date. Until then all megaflows of that subtable, and no
//! others, are compared.
//!
//! The twin is `invalidate::overlapping`.

use crate::batch::keys::{PWORDS, Words};
use crate::lookup::flow_store::{Column, MASKS, Store};
use crate::manage::invalidate::{OverlapTest, RegionGroup, RegionSet};
use crate::mem::fold;
use std::hash::{BuildHasher, RandomState};

/// Scans of a subtable for the same bits after which an index is built.
const INDEX_QUESTIONS_MIN: usize = 8;
/// Indexes of a subtable, including those that are not built yet.
const SUBTABLE_INDEXES_MAX: usize = 8;
/// Megaflows per head beyond which an index is rebuilt with more heads, when it is next used.
const HEAD_MEGAFLOWS_MAX: usize = 4;
/// Megaflows per hash beyond which an index is not worth keeping.
const HASH_MEGAFLOWS_MAX: usize = 64;

/// The megaflows of one worker that were reported, by subtable.
pub(crate) struct Index {
    subtables: [Subtable; MASKS],
    /// Position of a megaflow in its subtable's list plus one, by megaflow; 0: it is in none.
    place: Column<u32>,
    secret: u64,
    clock: u64,
}

#[derive(Default)]
struct Subtable {
    megaflows: Vec<u32>,
    mask: Words,
    indexes: Vec<BitsIndex>,
}

/// An index of a subtable's megaflows by bits that both its mask and a kind of region have.
#[derive(Default)]
struct BitsIndex {
    /// The bits: word number and mask.
    bits: Vec<(u8, u64)>,
    /// First megaflow by the hash of those bits, modulo the number of heads; 0: none. Empty until
    /// the index is built.
    heads: Vec<u32>,
    /// Number of heads with megaflows.
    taken: usize,
    /// Previous and next megaflow under the same head, by megaflow.
    links: Vec<(u32, u32)>,
    asked: usize,
    used: u64,
}

impl Index {
    /// An empty index for megaflow indices below `room`.
    pub fn new(room: usize) -> Self {
        Index {
            subtables: std::array::from_fn(|_| Subtable::default()),
            place: Column::new(room),
            secret: RandomState::new().hash_one(0x5745_4654u32),
            clock: 0,
        }
    }

    /// Adds a megaflow, whose line stays readable until its index is given back.
    pub fn insert(&mut self, store: &Store, idx: u32) {
        let i = idx as usize;
        let m = store.payload(idx).mask();
        let sub = &mut self.subtables[m];
        if sub.megaflows.is_empty() {
            // The slot may have another mask than when it last had megaflows.
            let mask = store.mask(m);
            if mask != sub.mask {
                (sub.mask, sub.indexes) = (mask, Vec::new());
            }
        }
        sub.megaflows.push(idx);
        self.place[i] = sub.megaflows.len() as u32;
        sub.indexes.iter_mut().for_each(|b| b.insert(store, self.secret, idx));
    }

    /// Removes a megaflow.
    pub fn remove(&mut self, store: &Store, idx: u32) {
        let Some(place) = self.place.get_mut(idx as usize).filter(|p| **p != 0) else { return };
        let at = std::mem::take(place) as usize - 1;
        let sub = &mut self.subtables[store.payload(idx).mask()];
        sub.indexes.iter_mut().for_each(|b| b.remove(store, self.secret, idx));
        sub.megaflows.swap_remove(at);
        if let Some(moved) = sub.megaflows.get(at) {
            self.place[*moved as usize] = at as u32 + 1;
        }
    }

    /// Calls `each` with every megaflow that overlaps one of these regions, possibly more than
    /// once.
    pub fn overlapping(&mut self, store: &Store, regions: &RegionSet, each: &mut dyn FnMut(u32)) {
        self.clock += 1;
        for sub in self.subtables.iter_mut().filter(|s| !s.megaflows.is_empty()) {
            for group in regions.groups() {
                sub.overlapping(store, group, (self.secret, self.clock), &mut |i| {
                    if group.has_port(store, i) {
                        each(i);
                    }
                });
            }
        }
    }
}

impl Subtable {
    fn overlapping(
        &mut self,
        store: &Store,
        RegionGroup { mask: region, keys, .. }: &RegionGroup,
        (secret, clock): (u64, u64),
        each: &mut dyn FnMut(u32),
    ) {
        let both: Vec<(u8, u64)> = (0..PWORDS)
            .map(|w| (w as u8, self.mask[w] & region[w]))
            .filter(|(_, m)| *m != 0)
            .collect();
        if both.is_empty() {
            return self.megaflows.iter().for_each(|i| each(*i));
        }
        if self.megaflows.len() <= INDEX_QUESTIONS_MIN {
            return self.scan(store, &both, keys, each);
        }
        let mut i = self.find(coarse_bits(&both), clock);
        if self.indexes[i].is_poor(self.megaflows.len()) {
            i = self.find(both.clone(), clock);
        }
        self.indexes[i].asked = self.indexes[i].asked.saturating_add(keys.len());
        if self.indexes[i].heads.len() * HEAD_MEGAFLOWS_MAX < self.megaflows.len() {
            if self.indexes[i].asked <= INDEX_QUESTIONS_MIN {
                return self.scan(store, &both, keys, each);
            }
            self.indexes[i].build(store, secret, &self.megaflows);
        }
        let indexes = &self.indexes[i];
        keys.iter()
            .for_each(|k| indexes.lookup(store, secret, &OverlapTest::new(&both, k), k, each));
    }

    /// The index on these bits; a new one replaces the least recently used if there are too many.
    fn find(&mut self, bits: Vec<(u8, u64)>, clock: u64) -> usize {
        let i = self.indexes.iter().position(|b| b.bits == bits).unwrap_or_else(|| {
            if self.indexes.len() == SUBTABLE_INDEXES_MAX {
                let oldest =
                    (0..SUBTABLE_INDEXES_MAX).min_by_key(|i| self.indexes[*i].used).unwrap_or(0);
                self.indexes.swap_remove(oldest);
            }
            self.indexes.push(BitsIndex { bits, ..BitsIndex::default() });
            self.indexes.len() - 1
        });
        self.indexes[i].used = clock;
        i
    }

    fn scan(&self, store: &Store, both: &[(u8, u64)], keys: &[Words], each: &mut dyn FnMut(u32)) {
        let tests: Vec<OverlapTest> = keys.iter().map(|k| OverlapTest::new(both, k)).collect();
        let hit = |i: &&u32| tests.iter().any(|p| p.hits(store, **i));
        self.megaflows.iter().filter(hit).for_each(|i| each(*i));
    }
}

/// The bits by which megaflows are found: whole bytes of one IPv4 address if there are two or more,
/// so that regions with hundreds of masks share few indexes; otherwise all bits.
fn coarse_bits(both: &[(u8, u64)]) -> Vec<(u8, u64)> {
    const WORD: u8 = (flow::at::IP_SRC / 8) as u8;
    let bits = both.iter().find(|(w, _)| *w == WORD).map_or(0, |(_, m)| *m).to_ne_bytes();
    let whole = |at: usize| bits[at..at + 4].iter().take_while(|b| **b == 0xff).count();
    let (src, dst) = (whole(0), whole(4));
    let (at, bytes) = if dst >= src { (4, dst) } else { (0, src) };
    if bytes < 2 {
        return both.to_vec();
    }
    let mut only = [0; 8];
    only[at..at + bytes].fill(0xff);
    vec![(WORD, u64::from_ne_bytes(only))]
}

impl BitsIndex {
    /// True if there are so few different hashes that a lookup would find too many megaflows.
    fn is_poor(&self, megaflows: usize) -> bool {
        !self.heads.is_empty() && megaflows > self.taken * HASH_MEGAFLOWS_MAX
    }

    fn hash(&self, secret: u64, word: impl Fn(usize) -> u64) -> u64 {
        self.bits.iter().fold(secret, |h, (w, m)| fold(h ^ (word(*w as usize) & m)))
    }

    /// The head of a megaflow, or of the megaflows that may overlap a region.
    fn head(&self, secret: u64, word: impl Fn(usize) -> u64) -> usize {
        self.hash(secret, word) as usize & (self.heads.len() - 1)
    }

    /// Builds the index again, with room for twice as many megaflows.
    fn build(&mut self, store: &Store, secret: u64, megaflows: &[u32]) {
        self.heads = vec![0; megaflows.len().next_power_of_two()];
        self.taken = 0;
        megaflows.iter().for_each(|r| self.insert(store, secret, *r));
    }

    fn insert(&mut self, store: &Store, secret: u64, idx: u32) {
        if self.heads.is_empty() {
            return;
        }
        let (i, head) = (idx as usize, self.head(secret, |w| store.word(idx, w)));
        if self.links.len() <= i {
            self.links.resize(i + 1, (0, 0));
        }
        let next = std::mem::replace(&mut self.heads[head], idx);
        self.taken += usize::from(next == 0);
        self.links[i] = (0, next);
        if next != 0 {
            self.links[next as usize].0 = idx;
        }
    }

    fn remove(&mut self, store: &Store, secret: u64, idx: u32) {
        if self.heads.is_empty() {
            return;
        }
        let (before, after) = self.links[idx as usize];
        if after != 0 {
            self.links[after as usize].0 = before;
        }
        if before != 0 {
            self.links[before as usize].1 = after;
            return;
        }
        let head = self.head(secret, |w| store.word(idx, w));
        self.heads[head] = after;
        self.taken -= usize::from(after == 0);
    }

    fn lookup(
        &self,
        store: &Store,
        secret: u64,
        test: &OverlapTest,
        key: &Words,
        each: &mut dyn FnMut(u32),
    ) {
        let mut idx = self.heads[self.head(secret, |w| key[w])];
        while idx != 0 {
            if test.hits(store, idx) {
                each(idx);
            }
            idx = self.links[idx as usize].1;
        }
    }
}

#[cfg(test)]
#[path = "flow_index_tests.rs"]
mod tests;
