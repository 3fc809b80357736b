//! An index of one worker's megaflows, kept by the control side: it finds the megaflows that
//! overlap a change without examining all.
//!
//! A megaflow with mask M overlaps a region (values, mask R) if the two agree on the bits of M & R.
//! All megaflows of one subtable have the same mask M. So for all regions with the same R, the
//! megaflows of a subtable that overlap them are found by a hash of the bits M & R. An index by
//! these bits is built once a subtable was scanned often enough for them, and is then kept up to
//! date. Until then all megaflows of that subtable, and no others, are compared.
//!
//! A search, and the building of an index, goes on in slices of few steps ([`Index::go_on`]), while
//! megaflows come and go. A list of megaflows is visited from its end to its beginning. When a
//! megaflow leaves the list, the last one takes its place: it was visited before, unless its new
//! place is yet to be visited.
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

/// Steps for a megaflow that is found: it is marked, and asked to go.
const HIT_STEPS: usize = 3;

/// The megaflows of one worker that were reported, by subtable.
pub(crate) struct Index {
    subtables: [Subtable; MASKS],
    /// Position of a megaflow in its subtable's list plus one, by megaflow; 0: it is in none.
    place: Column<u32>,
    secret: u64,
    clock: u64,
    progress: Progress,
}

/// How far a search is.
#[derive(Default)]
struct Progress {
    subtable: usize,
    /// The group of regions that are looked for in the subtable.
    group: usize,
    stage: Stage,
}

/// What a search does with a subtable and a group of regions.
#[derive(Clone, Copy, Default)]
enum Stage {
    /// It has not begun.
    #[default]
    Start,
    /// Megaflows before this position in the subtable's list are yet to be compared.
    Scan(usize),
    /// Megaflows before this position are yet to come into an index.
    Build { index: usize, left: usize },
    /// The megaflows under one head after the other; `next`: the next one of the key's head.
    Lookup { index: usize, key: usize, next: Option<u32> },
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
    /// All megaflows of the subtable are in it.
    is_whole: bool,
    /// Number of heads with megaflows.
    taken: usize,
    /// Previous and next megaflow under the same head, by megaflow; 0: there is none.
    links: Vec<[u32; 2]>,
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
            progress: Progress::default(),
        }
    }

    /// Adds a megaflow, whose line stays readable until its index is given back.
    pub fn insert(&mut self, store: &Store, idx: u32) {
        let i = idx as usize;
        let m = store.payload(idx).mask();
        let sub = &mut self.subtables[m];
        if sub.megaflows.is_empty() {
            // The subtable may have another mask than when it last had megaflows.
            let mask = store.mask(m);
            if mask != sub.mask {
                (sub.mask, sub.indexes) = (mask, Vec::new());
                if self.progress.subtable == m {
                    self.progress.stage = Stage::Start;
                }
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
        let m = store.payload(idx).mask();
        let sub = &mut self.subtables[m];
        if let Stage::Lookup { index, next: Some(next), .. } = &mut self.progress.stage
            && self.progress.subtable == m
            && *next == idx
        {
            *next = sub.indexes[*index].links[idx as usize][1];
        }
        sub.indexes.iter_mut().for_each(|b| b.remove(store, self.secret, idx));
        sub.megaflows.swap_remove(at);
        if let Some(moved) = sub.megaflows.get(at) {
            self.place[*moved as usize] = at as u32 + 1;
        }
    }

    /// Begins a search, which [`Index::go_on`] makes.
    pub fn begin(&mut self) {
        self.clock += 1;
        self.progress = Progress::default();
    }

    /// Goes on with a search: calls `each` with megaflows that overlap one of these regions,
    /// possibly more than once, until `steps` is 0. True: it is complete, for megaflows that were
    /// there when it began.
    pub fn go_on(
        &mut self,
        store: &Store,
        regions: &RegionSet,
        steps: &mut usize,
        each: &mut dyn FnMut(u32),
    ) -> bool {
        while *steps > 0 && self.progress.subtable < MASKS {
            let sub = &mut self.subtables[self.progress.subtable];
            let group = regions.groups().get(self.progress.group);
            let Some(group) = group.filter(|_| !sub.megaflows.is_empty()) else {
                *steps -= 1;
                self.progress =
                    Progress { subtable: self.progress.subtable + 1, ..Progress::default() };
                continue;
            };
            let mut search = Search { store, group, secret: self.secret, steps, each };
            match sub.go_on(&mut search, self.clock, self.progress.stage) {
                Some(stage) => self.progress.stage = stage,
                None => {
                    (self.progress.group, self.progress.stage) =
                        (self.progress.group + 1, Stage::Start);
                }
            }
        }
        self.progress.subtable == MASKS
    }
}

/// One group of regions, what is left of the slice, and whom to tell of megaflows.
struct Search<'a> {
    store: &'a Store,
    group: &'a RegionGroup,
    secret: u64,
    steps: &'a mut usize,
    each: &'a mut dyn FnMut(u32),
}

impl Search<'_> {
    fn pay(&mut self, steps: usize) {
        *self.steps = self.steps.saturating_sub(steps);
    }

    /// Reports a megaflow that overlaps the regions, if it has one of their ports.
    fn hit(&mut self, i: u32) {
        if self.group.has_port(self.store, i) {
            self.pay(HIT_STEPS);
            (self.each)(i);
        }
    }
}

impl Subtable {
    /// Goes on for what is left of the slice; None: nothing is left to do.
    fn go_on(&mut self, search: &mut Search<'_>, clock: u64, stage: Stage) -> Option<Stage> {
        search.pay(1);
        match stage {
            Stage::Start => Some(self.start(search, clock)),
            Stage::Scan(left) => self.scan(search, left),
            Stage::Build { index, left } => Some(self.build(search, index, left)),
            Stage::Lookup { index, key, next } => self.lookup(search, index, key, next),
        }
    }

    /// The bits that the subtable's mask and the regions' have, by word.
    fn both(&self, group: &RegionGroup) -> Vec<(u8, u64)> {
        let both = (0..PWORDS).map(|w| (w as u8, self.mask[w] & group.mask[w]));
        both.filter(|(_, m)| *m != 0).collect()
    }

    /// Chooses the way.
    fn start(&mut self, search: &Search<'_>, clock: u64) -> Stage {
        let both = self.both(search.group);
        let (megaflows, keys) = (self.megaflows.len(), search.group.keys.len());
        let scan = Stage::Scan(megaflows);
        if both.is_empty() || megaflows <= INDEX_QUESTIONS_MIN {
            return scan;
        }
        let mut index = self.find(coarse_bits(&both), clock);
        if self.indexes[index].is_poor(megaflows) {
            index = self.find(both, clock);
        }
        let it = &mut self.indexes[index];
        it.asked = it.asked.saturating_add(keys);
        if it.is_whole && it.heads.len() * HEAD_MEGAFLOWS_MAX >= megaflows {
            return Stage::Lookup { index, key: 0, next: None };
        }
        if it.asked <= INDEX_QUESTIONS_MIN {
            return scan;
        }
        it.begin(megaflows);
        Stage::Build { index, left: megaflows }
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

    /// Compares the megaflows before position `left` with all regions of the group.
    fn scan(&self, search: &mut Search<'_>, left: usize) -> Option<Stage> {
        let (store, both) = (search.store, self.both(search.group));
        let tests: Vec<OverlapTest> =
            search.group.keys.iter().map(|k| OverlapTest::new(&both, k)).collect();
        let cost = if both.is_empty() { 1 } else { tests.len() };
        search.pay(tests.len());
        for left in (0..left.min(self.megaflows.len())).rev() {
            let i = self.megaflows[left];
            if both.is_empty() || tests.iter().any(|p| p.hits(store, i)) {
                search.hit(i);
            }
            search.pay(cost);
            if *search.steps == 0 {
                return Some(Stage::Scan(left));
            }
        }
        None
    }

    /// Adds the megaflows before position `left` to an index.
    fn build(&mut self, search: &mut Search<'_>, index: usize, left: usize) -> Stage {
        let it = &mut self.indexes[index];
        for left in (0..left.min(self.megaflows.len())).rev() {
            it.insert(search.store, search.secret, self.megaflows[left]);
            search.pay(1);
            if *search.steps == 0 {
                return Stage::Build { index, left };
            }
        }
        it.is_whole = true;
        Stage::Lookup { index, key: 0, next: None }
    }

    /// Visits the megaflows under the heads of the group's keys from `key` on.
    fn lookup(
        &self,
        search: &mut Search<'_>,
        index: usize,
        key: usize,
        mut next: Option<u32>,
    ) -> Option<Stage> {
        let (it, both) = (&self.indexes[index], self.both(search.group));
        for (key, k) in search.group.keys.iter().enumerate().skip(key) {
            let test = OverlapTest::new(&both, k);
            let first = || it.heads[it.head(search.secret, |w| k[w])];
            let mut idx = next.take().unwrap_or_else(first);
            search.pay(1);
            while idx != 0 {
                if test.hits(search.store, idx) {
                    search.hit(idx);
                }
                search.pay(1);
                idx = it.links[idx as usize][1];
                if *search.steps == 0 {
                    return Some(Stage::Lookup { index, key, next: Some(idx) });
                }
            }
            if *search.steps == 0 {
                return Some(Stage::Lookup { index, key: key + 1, next: None });
            }
        }
        None
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

    /// Empties the index, to have room for twice as many megaflows.
    fn begin(&mut self, megaflows: usize) {
        self.heads = vec![0; megaflows.next_power_of_two()];
        self.links = Vec::new();
        (self.taken, self.is_whole) = (0, false);
    }

    /// True if the megaflow is in the index.
    fn has(&self, idx: u32, head: usize) -> bool {
        let links = self.links.get(idx as usize).copied().unwrap_or_default();
        links != [0, 0] || self.heads[head] == idx
    }

    /// Adds a megaflow, unless the index has it.
    fn insert(&mut self, store: &Store, secret: u64, idx: u32) {
        if self.heads.is_empty() {
            return;
        }
        let (i, head) = (idx as usize, self.head(secret, |w| store.word(idx, w)));
        if self.has(idx, head) {
            return;
        }
        if self.links.len() <= i {
            self.links.resize(i + 1, [0, 0]);
        }
        let next = std::mem::replace(&mut self.heads[head], idx);
        self.taken += usize::from(next == 0);
        self.links[i] = [0, next];
        if next != 0 {
            self.links[next as usize][0] = idx;
        }
    }

    /// Removes a megaflow, if it is in it.
    fn remove(&mut self, store: &Store, secret: u64, idx: u32) {
        if self.heads.is_empty() {
            return;
        }
        let head = self.head(secret, |w| store.word(idx, w));
        if !self.has(idx, head) {
            return;
        }
        let [before, after] = std::mem::take(&mut self.links[idx as usize]);
        if after != 0 {
            self.links[after as usize][0] = before;
        }
        if before != 0 {
            self.links[before as usize][1] = after;
            return;
        }
        self.heads[head] = after;
        self.taken -= usize::from(after == 0);
    }
}

#[cfg(test)]
#[path = "flow_index_tests.rs"]
mod tests;
