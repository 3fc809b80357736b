//! The index against looking at every megaflow.

use super::*;
use crate::batch::keys::Words;
use crate::lookup::table::Table;
use crate::manage::invalidate::{REGION_STEPS_MAX, overlapping};
use crate::mem::fold;
use action::Region;
use flow::Key;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where the input port is in word 4 of a key.
const PORT_SHIFT: usize = flow::at::IN_PORT % 8 * 8;

struct Rng(u64);
impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 += 1;
        fold(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % n
    }
    /// Few distinct keys, with something beyond line 0.
    fn key(&mut self) -> Words {
        let mut key =
            std::array::from_fn(|w| if w == 7 || w > 10 { 0 } else { self.below(3) * 0x0101 });
        key[4] <<= PORT_SHIFT;
        key
    }
    /// One of few masks, which have the input port as all megaflows' do.
    fn mask(&mut self) -> Words {
        let (mut m, bits) = ([0; 32], self.below(12));
        m[4] = 0xffff << PORT_SHIFT;
        for w in 0..4 {
            let word = [0, 2, 3, 8][w];
            m[word] = if bits >> w & 1 != 0 { 0xffff } else { 0 };
        }
        m
    }
    fn region(&mut self) -> Region {
        let (k, mut m) = (self.key(), self.mask());
        m[4] = [0, 0xffff << PORT_SHIFT][self.below(2) as usize];
        let mut r = Region::new(Key::ZERO, Key::ZERO);
        r.key.words[..32].copy_from_slice(&k);
        r.mask.words[..32].copy_from_slice(&m);
        (0..32).for_each(|w| r.key.words[w] &= m[w]);
        // Few ports, or so many that they are not looked for one by one.
        let most = [4, 4000][self.below(2) as usize];
        match self.below(2) {
            0 => {
                let some = (0..most).filter(|_| self.below(3) > 0).map(|port| port % 4 * 0x0101);
                r.from_ports(&Arc::new(some.chain(4000..4000 + most).collect()))
            }
            _ => r,
        }
    }
}

/// What the index finds among the usable, in slices of so many steps.
fn found(
    index: &mut Index,
    store: &Store,
    regions: &RegionSet,
    steps: &mut dyn FnMut() -> usize,
) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    index.begin();
    while !index.go_on(store, regions, &mut steps(), &mut |i| {
        assert!(store.payload(i).usable(), "megaflows that went are not found");
        out.insert(i);
    }) {}
    out
}

/// Megaflows that come and go.
struct Flock {
    t: Table,
    index: Index,
    live: Vec<u32>,
}

impl Flock {
    fn new(room: u32) -> Flock {
        let (t, index) = (Table::new(room as usize), Index::new(room as usize + 1));
        Flock { t, index, live: Vec::new() }
    }

    fn come(&mut self, r: &mut Rng) {
        if let Some(i) = self.t.put(&r.key(), &r.mask(), 1, 4_000) {
            self.index.insert(&self.t.store, i);
            self.live.push(i);
        }
    }

    fn go(&mut self, at: usize) {
        let i = self.live.swap_remove(at);
        self.t.unlink(i);
        self.index.remove(&self.t.store, i);
        self.t.release(i);
    }
}

#[test]
fn equals_looking_at_every_megaflow() {
    for seed in 0..8 {
        let mut r = Rng(seed * 1_000_000);
        let mut all = Flock::new(4_000);
        let store = all.t.store.clone();
        let (mut hits, mut indexed) = (0, 0);
        for round in 0..120 {
            (0..r.below(40)).for_each(|_| all.come(&mut r));
            // Megaflows go singly, and now and then all of them: masks change places.
            let live = all.live.len() as u64;
            let n = if r.below(30) == 0 { live } else { r.below(30).min(live) };
            for _ in 0..n {
                let at = r.below(all.live.len() as u64) as usize;
                all.go(at);
            }
            let regions: Vec<Region> = (0..r.below(5)).map(|_| r.region()).collect();
            let regions = RegionSet::of(&regions);
            let right = overlapping(&store, &regions);
            let most = [1 + r.below(20), 100_000][r.below(2) as usize];
            let found = found(&mut all.index, &store, &regions, &mut || most as usize);
            assert_eq!(found, right, "seed {seed} round {round}");
            hits += right.len();
            indexed += all
                .index
                .subtables
                .iter()
                .flat_map(|s| &s.indexes)
                .filter(|b| !b.heads.is_empty())
                .count();
        }
        assert!(hits > 100 && indexed > 100, "something was tried: {hits} {indexed}");
    }
}

/// Between two slices of a search megaflows come and go, all of a mask among them: those that were
/// there when it began, and still are, are found.
#[test]
fn a_search_in_slices_misses_none_that_stay() {
    let mut searched_while = 0;
    for seed in 0..6 {
        let (mut r, mut all) = (Rng(seed * 1_000_000), Flock::new(4_000));
        let store = all.t.store.clone();
        (0..600).for_each(|_| all.come(&mut r));
        for round in 0..60 {
            let regions: Vec<Region> = (0..1 + r.below(12)).map(|_| r.region()).collect();
            let regions = RegionSet::of(&regions);
            let mut wanted = overlapping(&store, &regions);
            let mut found = BTreeSet::new();
            all.index.begin();
            let most = 1 + r.below(60) as usize;
            let mut each = |i| {
                found.insert(i);
            };
            while !all.index.go_on(&store, &regions, &mut { most }, &mut each) {
                searched_while += 1;
                let leave = if r.below(200) == 0 { 500 } else { r.below(3) };
                for _ in 0..leave.min(all.live.len() as u64) {
                    let at = r.below(all.live.len() as u64) as usize;
                    wanted.remove(&all.live[at]);
                    all.go(at);
                }
                let come = if all.live.len() < 300 { 40 } else { r.below(3) };
                (0..come).for_each(|_| all.come(&mut r));
            }
            assert!(found.is_superset(&wanted), "seed {seed} round {round}");
        }
    }
    assert!(searched_while > 3_000, "{searched_while}");
}

/// However many megaflows a change concerns, and of however many no index tells: a slice visits
/// few.
#[test]
fn no_slice_of_a_search_visits_many_megaflows() {
    let (mut t, mut index) = (Table::new(60_000), Index::new(60_001));
    let store = t.store.clone();
    let mut mask = [0; 32];
    (mask[2], mask[3]) = (u64::MAX, u64::MAX);
    for n in 0..60_000u64 {
        let mut key = [0; 32];
        (key[2], key[3]) = (n, n & 7);
        index.insert(&store, t.put(&key, &mask, 1, 60_000).unwrap());
    }
    let (mut hits_all, mut hits_none) = (Region::ALL, Region::ALL);
    (hits_all.key.words[3], hits_all.mask.words[3]) = (0, u64::MAX << 3);
    (hits_none.key.words[3], hits_none.mask.words[3]) = (8, u64::MAX << 3);
    for (region, all) in [(hits_none, 0), (hits_all, 60_000), (Region::ALL, 60_000)] {
        let regions = RegionSet::of(&[region]);
        for question in 0..2 + INDEX_QUESTIONS_MIN {
            let (mut slices, mut found, mut is_over) = (0, 0, false);
            index.begin();
            while !is_over {
                let before = found;
                let steps = &mut { REGION_STEPS_MAX };
                is_over = index.go_on(&store, &regions, steps, &mut |_| found += 1);
                assert!(found - before <= REGION_STEPS_MAX / HIT_STEPS, "{found} after {before}");
                slices += 1;
            }
            assert_eq!(found, all);
            // An index is built at one of them, and knows that there is none from then on.
            let least = if all == 0 { 1 } else { 60_000 * (1 + HIT_STEPS) / REGION_STEPS_MAX };
            assert!(slices >= least && slices <= 60, "{slices} slices at question {question}");
            if all == 0 {
                let most = if question <= INDEX_QUESTIONS_MIN { 16 } else { 1 };
                assert!(slices <= most && (question > INDEX_QUESTIONS_MIN || slices > 14));
            }
        }
    }
}

/// With one megaflow changed, and then another, the cost must not grow with the megaflows that are
/// cached.
#[test]
fn a_change_costs_the_megaflows_it_hits() {
    let mut r = Rng(7);
    let (mut t, mut index) = (Table::new(70_000), Index::new(70_001));
    let store = t.store.clone();
    let mut mask = [0; 32];
    (mask[2], mask[3]) = (u64::MAX, u64::MAX);
    for n in 0..65_536u64 {
        let mut key = [0; 32];
        (key[2], key[3]) = (n, n & 7);
        index.insert(&store, t.put(&key, &mask, 1, 70_000).unwrap());
    }
    let ask = |index: &mut Index, n: u64| {
        let mut region = Region::new(Key::ZERO, Key::ZERO);
        (region.key.words[2], region.mask.words[2]) = (n, u64::MAX);
        found(index, &store, &RegionSet::of(&[region]), &mut || REGION_STEPS_MAX).len()
    };
    (0..=INDEX_QUESTIONS_MIN as u64).for_each(|n| assert_eq!(ask(&mut index, n), 1));
    let start = std::time::Instant::now();
    (0..10_000).for_each(|_| assert_eq!(ask(&mut index, r.below(65_536)), 1));
    let took = start.elapsed();
    // Ten thousand scans of 64 Ki megaflows would take minutes here.
    assert!(took.as_secs() < 5, "{took:?}");
    println!("10,000 changes among 65,536 megaflows: {took:?}");
}
