//! The table against a linear scan, with more masks than the budget.

use super::*;
use crate::types::Tri;

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        fold(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Few distinct keys: every byte is 0..3, line 1 only sometimes.
fn key(r: &mut Rng) -> Words {
    let wide = r.next().is_multiple_of(4);
    std::array::from_fn(|w| match w {
        7 | 16.. => 0,
        8.. if !wide => 0,
        _ => r.next() & 0x0303_0303_0303_0303,
    })
}

fn mask(r: &mut Rng) -> Words {
    let mut m = [0; 32];
    for _ in 0..1 + r.next() % 4 {
        let w = (r.next() % 10) as usize;
        m[if w == 7 { 8 } else { w }] |= 0xff << (8 * (r.next() % 8));
    }
    m
}

fn fill(keys: &mut Keys, i: usize, k: &Words) {
    keys.line.0[i].copy_from_slice(&k[..8]);
    for l in 0..3 {
        keys.ext[i][l].copy_from_slice(&k[8 * (l + 1)..8 * (l + 2)]);
    }
    keys.have[i] = if k[8..].iter().any(|w| *w != 0) { 1 } else { 0 };
}

fn against_linear_scan(cache: Tri, seed: u64) {
    let (mut t, mut keys, mut r) = (Table::new(20_000), Keys::new(), Rng(seed));
    t.tune(cache, Tally::default());
    let mut live: Vec<u32> = Vec::new();
    for round in 0..70u32 {
        for _ in 0..20 {
            let (k, m) = (key(&mut r), mask(&mut r));
            fill(&mut keys, 0, &k);
            let mut todo = vec![0];
            t.classify(&mut keys, &mut todo);
            if !todo.is_empty() {
                live.push(t.put(&k, &m, round, 20_000).expect("room"));
            }
        }
        if round % 10 == 9 {
            t.tune(cache, Tally::default());
            for _ in 0..50 {
                let gone = live.swap_remove((r.next() % live.len() as u64) as usize);
                assert!(t.unlink(gone).is_some() && t.unlink(gone).is_none());
                t.release(gone);
            }
        }
        let batch: Vec<Words> = (0..VECTOR).map(|_| key(&mut r)).collect();
        batch.iter().enumerate().for_each(|(i, k)| fill(&mut keys, i, k));
        let mut todo: Vec<u8> = (0..=255).collect();
        t.classify(&mut keys, &mut todo);
        // Again: now the cache may know.
        todo = (0..=255).collect();
        t.classify(&mut keys, &mut todo);
        for (i, k) in batch.iter().enumerate().skip(round as usize % 16).step_by(16) {
            let matches = |idx: &&u32| {
                let m = t.store.mask(t.store.payload(**idx).mask());
                let rule = t.store.key_words(**idx, &m);
                (0..32).all(|w| (k[w] ^ rule[w]) & m[w] == 0)
            };
            let missed = todo.contains(&(i as u8));
            if missed {
                assert_eq!(live.iter().find(matches), None, "round {round}");
            } else {
                assert!(live.contains(&keys.rule[i]) && matches(&&keys.rule[i]), "round {round}");
            }
        }
    }
    assert!(t.masks() > 16 && t.masks() <= MASKS, "{}", t.masks());
    assert_eq!(t.live as usize, live.len());
    assert!(t.live > 500);
    let tally = t.take_tally();
    assert_eq!(tally.cache_hits > 1000, cache == Tri::On);
}

#[test]
fn table_equals_linear_scan() {
    against_linear_scan(Tri::Off, 1);
}

#[test]
fn cached_table_equals_linear_scan() {
    against_linear_scan(Tri::On, 2);
}

#[test]
fn one_mask_takes_everything() {
    let (mut t, mut keys) = (Table::new(30_000), Keys::new());
    let mut m = [0; 32];
    m[2] = u64::MAX;
    let keyed = |i: u64| {
        let mut k = [0; 32];
        k[2] = i;
        k
    };
    for i in 1..=30_000 {
        assert!(t.put(&keyed(i), &m, i as u32, u32::MAX).is_some(), "{i}");
    }
    assert_eq!(t.put(&keyed(30_001), &m, 1, u32::MAX), None, "no room for more");
    for first in (1..30_000).step_by(VECTOR) {
        (0..VECTOR).for_each(|n| fill(&mut keys, n, &keyed(first + n as u64)));
        let mut todo: Vec<u8> = (0..=255).collect();
        t.classify(&mut keys, &mut todo);
        let found = (0..VECTOR).filter(|n| !todo.contains(&(*n as u8)));
        found.for_each(|n| assert_eq!(keys.program[n] as u64, first + n as u64));
        assert!(todo.iter().all(|n| first + *n as u64 > 30_000));
    }
}

#[test]
fn a_decision_is_known_until_it_is_dead() {
    let mut t = Table::new(100);
    let (mut k, mut m) = ([0; 32], [0; 32]);
    (k[2], m[2]) = (7, u64::MAX);
    let idx = t.put(&k, &m, 5, 100).expect("room");
    k[3] = 9; // outside the mask
    let spot = t.spot(&k, &m);
    assert_eq!(t.known(&spot), Some((idx, 5)));
    t.store.kill(idx, t.store.payload(idx));
    assert_eq!(t.known(&spot), None);
    assert_eq!(t.take_dead(), [idx]);
}

#[test]
fn the_cache_pays_with_many_visits_only() {
    let t = |cache_hits, flow_hits, visits| Tally { cache_hits, flow_hits, visits, learned: 0 };
    assert!(!cache_pays(false, 2, t(0, 1000, 1500)));
    assert!(cache_pays(false, 12, t(0, 1000, 3600)));
    assert!(cache_pays(true, 12, t(900, 100, 600)));
    assert!(!cache_pays(true, 2, t(900, 100, 120)));
    assert!(!cache_pays(true, 12, t(100, 900, 5400)));
}

#[test]
fn the_cache_grows_only_when_packets_turn_it_over() {
    let mut table = Table::new(1 << 20);
    let flows = |t: &Table| t.cache.as_ref().unwrap().flows();
    let learned = |learned| Tally { learned, ..Tally::default() };
    table.tune(Tri::On, learned(0));
    let first = flows(&table);
    table.tune(Tri::On, learned(100));
    assert_eq!(flows(&table), first);
    table.tune(Tri::On, learned(first as u64));
    assert!(flows(&table) > first);
}
