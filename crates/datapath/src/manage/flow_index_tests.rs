//! The index against looking at every megaflow.

use super::*;
use crate::batch::keys::Words;
use crate::lookup::table::Table;
use crate::manage::invalidate::overlapping;
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

/// What the index finds among the usable.
fn found(index: &mut Index, store: &Store, regions: &RegionSet) -> BTreeSet<u32> {
    let mut out = BTreeSet::new();
    index.overlapping(store, regions, &mut |i| {
        assert!(store.payload(i).usable(), "megaflows that went are not found");
        out.insert(i);
    });
    out
}

#[test]
fn equals_looking_at_every_megaflow() {
    for seed in 0..8 {
        let mut r = Rng(seed * 1_000_000);
        let (mut t, mut index, mut live) = (Table::new(4_000), Index::new(4_001), Vec::new());
        let store = t.store.clone();
        let (mut hits, mut indexed) = (0, 0);
        for round in 0..120 {
            for _ in 0..r.below(40) {
                if let Some(i) = t.put(&r.key(), &r.mask(), 1, 4_000) {
                    index.insert(&store, i);
                    live.push(i);
                }
            }
            // Megaflows go singly, and now and then all of them: masks change places.
            let all = r.below(30) == 0;
            let n = if all { live.len() as u64 } else { r.below(30).min(live.len() as u64) };
            for _ in 0..n {
                let i = live.swap_remove(r.below(live.len() as u64) as usize);
                t.unlink(i);
                index.remove(&store, i);
                t.release(i);
            }
            let regions: Vec<Region> = (0..r.below(5)).map(|_| r.region()).collect();
            let regions = RegionSet::of(&regions);
            let right = overlapping(&store, &regions);
            assert_eq!(found(&mut index, &store, &regions), right, "seed {seed} round {round}");
            hits += right.len();
            indexed += index
                .subtables
                .iter()
                .flat_map(|s| &s.indexes)
                .filter(|b| !b.heads.is_empty())
                .count();
        }
        assert!(hits > 100 && indexed > 100, "something was tried: {hits} {indexed}");
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
        found(index, &store, &RegionSet::of(&[region])).len()
    };
    (0..=INDEX_QUESTIONS_MIN as u64).for_each(|n| assert_eq!(ask(&mut index, n), 1));
    let start = std::time::Instant::now();
    (0..10_000).for_each(|_| assert_eq!(ask(&mut index, r.below(65_536)), 1));
    let took = start.elapsed();
    // Ten thousand scans of 64 Ki megaflows would take minutes here.
    assert!(took.as_secs() < 5, "{took:?}");
    println!("10,000 changes among 65,536 megaflows: {took:?}");
}
