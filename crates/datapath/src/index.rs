//! Control's index of one worker's rules: which of them overlap a change, without looking at all.
//!
//! A rule under mask M overlaps a region (values, mask R) if the two agree on the bits of M & R. So,
//! for regions alike (same R), the rules of one subtable are found by a hash of those bits. Such an
//! index is made once a subtable was scanned often enough for one M & R, and kept up to date as
//! rules come and go; until then the subtable's rules, and no others, are compared one by one.
//!
//! The twin that defines what is right is [`crate::invalidate::overlapping`].

use crate::invalidate::{Areas, Plan};
use crate::lookup::fold;
use crate::lookup::mask::Words;
use crate::lookup::store::{MASKS, PWORDS, Store};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Questions of one kind to a subtable after which an index pays.
const PAYS: usize = 8;
/// Indexes per subtable, the ones under trial included.
const MOST: usize = 8;
/// Rules per hash from which on an index of few bits is worth nothing.
const LONG: usize = 64;

/// The rules of one worker that control has heard of, by subtable.
pub(crate) struct Index {
    subtables: [Subtable; MASKS],
    /// Where a rule stands in its subtable's list, plus one; 0: nowhere.
    place: Vec<u32>,
    secret: u64,
    clock: u64,
}

#[derive(Default)]
struct Subtable {
    rules: Vec<u32>,
    mask: Words,
    by: Vec<By>,
}

/// Rules of a subtable by some bits at which it and a kind of region both look.
struct By {
    /// (word, mask) of those.
    bits: Vec<(u8, u64)>,
    /// Hash of those bits -> first rule; None until it pays.
    heads: Option<HashMap<u64, u32>>,
    /// By rule: (previous, next) of the same hash.
    links: Vec<(u32, u32)>,
    asked: usize,
    used: u64,
}

impl Index {
    pub fn new() -> Self {
        Index {
            subtables: std::array::from_fn(|_| Subtable::default()),
            place: Vec::new(),
            secret: RandomState::new().hash_one(0x5745_4654u32),
            clock: 0,
        }
    }

    /// A rule came (its line is readable until it is given back).
    pub fn insert(&mut self, store: &Store, idx: u32) {
        let i = idx as usize;
        if self.place.len() <= i {
            self.place.resize(i + 1, 0);
        }
        let m = store.payload(idx).mask();
        let sub = &mut self.subtables[m];
        if sub.rules.is_empty() {
            // The slot may have got another mask since its last rule.
            let mask = store.mask(m);
            if mask != sub.mask {
                (sub.mask, sub.by) = (mask, Vec::new());
            }
        }
        sub.rules.push(idx);
        self.place[i] = sub.rules.len() as u32;
        sub.by.iter_mut().for_each(|b| b.insert(store, self.secret, idx));
    }

    /// A rule went.
    pub fn remove(&mut self, store: &Store, idx: u32) {
        let Some(place) = self.place.get_mut(idx as usize).filter(|p| **p != 0) else { return };
        let at = std::mem::take(place) as usize - 1;
        let sub = &mut self.subtables[store.payload(idx).mask()];
        sub.by.iter_mut().for_each(|b| b.remove(store, self.secret, idx));
        sub.rules.swap_remove(at);
        if let Some(moved) = sub.rules.get(at) {
            self.place[*moved as usize] = at as u32 + 1;
        }
    }

    /// Every rule that overlaps one of these regions, to `each` (possibly more than once).
    pub fn overlapping(&mut self, store: &Store, areas: &Areas, each: &mut dyn FnMut(u32)) {
        self.clock += 1;
        for sub in self.subtables.iter_mut().filter(|s| !s.rules.is_empty()) {
            for (mask, keys) in areas.groups() {
                sub.overlapping(store, mask, keys, (self.secret, self.clock), each);
            }
        }
    }
}

impl Subtable {
    fn overlapping(
        &mut self,
        store: &Store,
        region: &Words,
        keys: &[Words],
        (secret, clock): (u64, u64),
        each: &mut dyn FnMut(u32),
    ) {
        let both: Vec<(u8, u64)> = (0..PWORDS)
            .map(|w| (w as u8, self.mask[w] & region[w]))
            .filter(|(_, m)| *m != 0)
            .collect();
        if both.is_empty() {
            return self.rules.iter().for_each(|i| each(*i));
        }
        if self.rules.len() <= PAYS {
            return self.scan(store, &both, keys, each);
        }
        let mut i = self.find(coarse(&both), clock);
        if self.by[i].is_poor(self.rules.len()) {
            i = self.find(both.clone(), clock);
        }
        self.by[i].asked = self.by[i].asked.saturating_add(keys.len());
        if self.by[i].heads.is_none() {
            if self.by[i].asked <= PAYS {
                return self.scan(store, &both, keys, each);
            }
            self.by[i].heads = Some(HashMap::with_capacity(self.rules.len()));
            let (by, rules) = (&mut self.by[i], &self.rules);
            rules.iter().for_each(|r| by.insert(store, secret, *r));
        }
        let by = &self.by[i];
        keys.iter().for_each(|k| by.lookup(store, secret, &Plan::new(&both, k), k, each));
    }

    /// The index on these bits, the least recently asked one making room for it.
    fn find(&mut self, bits: Vec<(u8, u64)>, clock: u64) -> usize {
        let i = self.by.iter().position(|b| b.bits == bits).unwrap_or_else(|| {
            if self.by.len() == MOST {
                let oldest = (0..MOST).min_by_key(|i| self.by[*i].used).unwrap_or(0);
                self.by.swap_remove(oldest);
            }
            self.by.push(By { bits, heads: None, links: Vec::new(), asked: 0, used: 0 });
            self.by.len() - 1
        });
        self.by[i].used = clock;
        i
    }

    fn scan(&self, store: &Store, both: &[(u8, u64)], keys: &[Words], each: &mut dyn FnMut(u32)) {
        let plans: Vec<Plan> = keys.iter().map(|k| Plan::new(both, k)).collect();
        let hit = |i: &&u32| plans.iter().any(|p| p.hits(store, **i));
        self.rules.iter().filter(hit).for_each(|i| each(*i));
    }
}

/// The bits to look rules up by: whole bytes of one IPv4 address if there are two or more, so that
/// regions of hundreds of masks share few indexes; else all of them.
fn coarse(both: &[(u8, u64)]) -> Vec<(u8, u64)> {
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

impl By {
    /// Do so many rules have so few hashes that looking one up finds too many?
    fn is_poor(&self, rules: usize) -> bool {
        self.heads.as_ref().is_some_and(|h| rules > h.len() * LONG)
    }

    fn hash(&self, secret: u64, word: impl Fn(usize) -> u64) -> u64 {
        self.bits.iter().fold(secret, |h, (w, m)| fold(h ^ (word(*w as usize) & m)))
    }

    fn hash_of(&self, store: &Store, secret: u64, idx: u32) -> u64 {
        self.hash(secret, |w| store.word(idx, w))
    }

    fn insert(&mut self, store: &Store, secret: u64, idx: u32) {
        if self.heads.is_none() {
            return;
        }
        let (i, h) = (idx as usize, self.hash_of(store, secret, idx));
        if self.links.len() <= i {
            self.links.resize(i + 1, (0, 0));
        }
        let Some(heads) = &mut self.heads else { return };
        let next = heads.insert(h, idx).unwrap_or(0);
        self.links[i] = (0, next);
        if next != 0 {
            self.links[next as usize].0 = idx;
        }
    }

    fn remove(&mut self, store: &Store, secret: u64, idx: u32) {
        if self.heads.is_none() {
            return;
        }
        let h = self.hash_of(store, secret, idx);
        let (before, after) = self.links[idx as usize];
        if after != 0 {
            self.links[after as usize].0 = before;
        }
        let Some(heads) = &mut self.heads else { return };
        match (before, after) {
            (0, 0) => drop(heads.remove(&h)),
            (0, next) => drop(heads.insert(h, next)),
            (before, next) => self.links[before as usize].1 = next,
        }
    }

    fn lookup(
        &self,
        store: &Store,
        secret: u64,
        plan: &Plan,
        key: &Words,
        each: &mut dyn FnMut(u32),
    ) {
        let h = self.hash(secret, |w| key[w]);
        let mut idx = self.heads.as_ref().and_then(|m| m.get(&h)).copied().unwrap_or(0);
        while idx != 0 {
            if plan.hits(store, idx) {
                each(idx);
            }
            idx = self.links[idx as usize].1;
        }
    }
}

#[cfg(test)]
mod tests;
