//! The table against a linear scan, with more masks than the budget.

use super::flow_store::MASKS;
use super::table::*;
use super::*;
use crate::batch::keys::{KeyRef, Keys, Words};
use crate::cpu::Level;
use crate::lookup::port_classifier::SUBTABLES_PROBED_MAX;
use crate::mem::fold;
use crate::parse::job::port_word;
use crate::settings::Tri;
use crate::verify::levels::is_available;
use packet::VECTOR;

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        fold(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

fn available() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|l| is_available(*l))
}

/// Few distinct keys: every byte is 0..3, line 1 only sometimes, and recirculation ids are short.
fn key(r: &mut Rng) -> Words {
    let wide = r.next().is_multiple_of(4);
    std::array::from_fn(|w| match w {
        7 | 16.. => 0,
        8.. if !wide => 0,
        5 => r.next() & 0x0303_0000_0303_0303,
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

fn against_linear_scan(cache: Tri, level: Level, seed: u64) {
    let (mut t, mut keys, mut r) = (Table::new(20_000), Keys::new(), Rng(seed));
    t.level = level;
    t.tune(cache);
    t.exhaustive = true;
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
            t.tune(cache);
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
                let megaflow = t.store.key_words(**idx, &m);
                (0..32).all(|w| (k[w] ^ megaflow[w]) & m[w] == 0)
            };
            let missed = todo.contains(&(i as u8));
            if missed {
                assert_eq!(live.iter().find(matches), None, "round {round}");
            } else {
                assert!(
                    live.contains(&keys.megaflow[i]) && matches(&&keys.megaflow[i]),
                    "round {round}"
                );
            }
        }
    }
    assert!(t.masks() > 16 && t.masks() <= MASKS, "{}", t.masks());
    assert_eq!(t.live as usize, live.len());
    assert!(t.live > 500);
    let count = t.take_counts();
    assert_eq!(count.cache_hits > 1000, cache == Tri::On);
}

#[test]
fn table_equals_linear_scan() {
    available().for_each(|level| against_linear_scan(Tri::Off, level, 1));
}

#[test]
fn cached_table_equals_linear_scan() {
    available().for_each(|level| against_linear_scan(Tri::On, level, 2));
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
    let position = t.insert_position(&k, &m);
    assert_eq!(t.find_existing(&position), Some((idx, 5)));
    t.store.kill(idx, t.store.payload(idx));
    assert_eq!(t.find_existing(&position), None);
    assert_eq!(t.take_dead(), [idx]);
}

/// A key of a port: `n` in word 2.
fn of_port(port: u16, n: u64) -> Words {
    let mut k = [0; 32];
    (k[2], k[4]) = (n, port_word(port));
    k
}

fn look_up(t: &mut Table, keys: &mut Keys, packets: &[Words]) -> Vec<u8> {
    packets.iter().enumerate().for_each(|(i, k)| fill(keys, i, k));
    let mut todo: Vec<u8> = (0..packets.len()).map(|i| i as u8).collect();
    t.classify(keys, &mut todo);
    todo
}

#[test]
fn a_ports_masks_and_flows_cost_other_ports_nothing() {
    let (mut t, mut keys, mut r) = (Table::new(4096), Keys::new(), Rng(3));
    let mut m = [0; 32];
    m[2] = u64::MAX;
    (0..100).for_each(|n| assert!(t.put(&of_port(9, n), &m, 7, 4096).is_some()));
    // Port 1 wants all masks there are.
    for n in 0..3000 {
        let (mut k, m) = (key(&mut r), mask(&mut r));
        k[4] = port_word(1);
        let position = t.insert_position(&k, &m);
        if t.find_existing(&position).is_none() {
            t.put(&k, &m, n, 4096).expect("room");
        }
    }
    let attacker = t.snapshot().iter().find(|p| p.port == 1).unwrap().masks as usize;
    assert!(attacker > 20 && attacker <= port_classifier::PORT_MASKS_MAX + 1, "{attacker}");
    // Port 9's packets visit one subtable each, alone or between those of port 1.
    for mixed in [false, true] {
        let mut packets: Vec<_> = (0..VECTOR as u64).map(|n| of_port(9, n % 100)).collect();
        if mixed {
            let others = packets.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0);
            others.for_each(|(_, k)| *k = of_port(1, r.next()));
        }
        t.tune(Tri::Off);
        let missed = look_up(&mut t, &mut keys, &packets);
        assert!(missed.iter().all(|i| mixed && i % 3 == 0) && missed.is_sorted());
        assert!((0..VECTOR).filter(|i| !mixed || i % 3 != 0).all(|i| keys.program[i] == 7));
        let victim = t.classifiers[9].as_ref().unwrap().rates.lookups;
        assert_eq!((victim.visits, victim.cache_hits), (victim.flow_hits, 0));
        assert_eq!(
            victim.flow_hits,
            packets.iter().filter(|k| k[4] == packets[1][4]).count() as u64
        );
    }
    // Port 9 still gets a mask of its own, and loses no flow to port 1's.
    m[3] = 0xff;
    let masks = t.snapshot().iter().find(|p| p.port == 9).unwrap().masks;
    t.put(&of_port(9, 1000), &m, 7, 4096).expect("room");
    assert_eq!(t.snapshot().iter().find(|p| p.port == 9).unwrap().masks, masks + 1);
    for _ in 0..1000 {
        let victim = t.victim(0).expect("a megaflow");
        assert_eq!(port_of(t.store.word(victim, 4)), 1);
        t.unlink(victim);
        t.release(victim);
    }
}

#[test]
fn wrong_answers_are_told() {
    let mut t = Table::new(100);
    let mut m = [0; 32];
    m[2] = u64::MAX;
    let a = t.put(&of_port(5, 1), &m, 3, 100).expect("room");
    let b = t.put(&of_port(5, 2), &m, 4, 100).expect("room");
    let (line, ext) = (of_port(5, 1), [[0; 8]; 3]);
    let key = KeyRef { line: line.first_chunk().unwrap(), ext: &ext, have: 0 };
    assert_eq!(t.compare(&key, Some((a, 3))), None);
    for wrong in [Some((b, 4)), Some((a, 4)), None] {
        assert!(t.compare(&key, wrong).is_some_and(|how| how.starts_with("lookup: ")));
    }
    t.unlink(a);
    assert_eq!(t.compare(&key, None), None);
}

#[test]
fn vectors_of_every_size_and_every_position_of_an_odd_packet() {
    for level in available() {
        let (mut t, mut keys) = (Table::new(4096), Keys::new());
        t.level = level;
        let mut m = [0; 32];
        (m[1], m[2]) = (0xff, u64::MAX);
        (0..100).for_each(|n| assert!(t.put(&of_port(5, n), &m, 1, 4096).is_some()));
        let packets: Vec<_> = (0..VECTOR as u64).map(|n| of_port(5, n % 100)).collect();
        for n in 0..=VECTOR {
            assert_eq!(look_up(&mut t, &mut keys, &packets[..n]), [0; 0], "{} {n}", level.name());
        }
        for odd in [of_port(5, 100), of_port(6, 1)] {
            for at in 0..VECTOR {
                let mut packets = packets.clone();
                packets[at] = odd;
                let missed = look_up(&mut t, &mut keys, &packets);
                assert_eq!(missed, [at as u8], "{}", level.name());
            }
        }
    }
}

/// Megaflows in subtables beyond those that a packet is looked up in.
#[test]
fn what_is_beyond_the_walk_is_known_when_the_pipeline_says_its_mask() {
    let (mut t, mut keys) = (Table::new(1000), Keys::new());
    // Ever longer runs of whole bytes: 2 * SUBTABLES_PROBED_MAX masks, and keys that agree nowhere.
    let mask = |i: u32| -> Words {
        let mut m = [0; 32];
        m[1] = 0xffff_ffff;
        (0..i as usize).for_each(|n| m[8 + n / 8] |= 0xff << (8 * (n % 8)));
        m
    };
    let key = |i: u32| -> Words {
        let mut k = [0; 32];
        k[1] = u64::from(i + 1);
        k
    };
    let all = 2 * SUBTABLES_PROBED_MAX as u32;
    for i in 0..all {
        t.put(&key(i), &mask(i), i, 1000).expect("room");
    }
    assert_eq!(t.masks(), 2 * SUBTABLES_PROBED_MAX);
    let mut beyond = 0;
    for i in 0..all {
        fill(&mut keys, 0, &key(i));
        let mut todo = vec![0];
        t.classify(&mut keys, &mut todo);
        if todo.is_empty() {
            continue;
        }
        beyond += 1;
        let position = t.insert_position(&key(i), &mask(i));
        let (megaflow, program) = t.find_existing(&position).expect("stored");
        assert_eq!(program, i);
        t.tune(Tri::On);
        t.remember(&keys.get(0), megaflow);
        t.classify(&mut keys, &mut todo);
        assert_eq!((todo.len(), keys.megaflow[0]), (0, megaflow), "{i}");
        t.tune(Tri::Off);
    }
    assert!(beyond > 0);
}

#[test]
fn megaflows_in_second_buckets_are_found_with_the_others() {
    const MEGAFLOWS: u64 = 20_000;
    for level in available() {
        let (mut t, mut keys) = (Table::new(MEGAFLOWS as usize), Keys::new());
        t.level = level;
        let mut m = [0; 32];
        m[2] = u64::MAX;
        let put = |n| t.put(&of_port(5, n), &m, n as u32, MEGAFLOWS as u32).expect("room");
        let megaflows: Vec<u32> = (0..MEGAFLOWS).map(put).collect();
        // Every third packet has no megaflow.
        for from in (0..MEGAFLOWS).step_by(VECTOR) {
            let number =
                |n: u64| if n.is_multiple_of(3) { MEGAFLOWS + n } else { (from + n) % MEGAFLOWS };
            let packets: Vec<_> = (0..VECTOR as u64).map(|n| of_port(5, number(n))).collect();
            let missed = look_up(&mut t, &mut keys, &packets);
            assert_eq!(missed, (0..=u8::MAX).filter(|n| n.is_multiple_of(3)).collect::<Vec<_>>());
            for n in (0..VECTOR).filter(|n| !n.is_multiple_of(3)) {
                assert_eq!(
                    keys.megaflow[n],
                    megaflows[number(n as u64) as usize],
                    "{}",
                    level.name()
                );
                assert_eq!(keys.program[n], number(n as u64) as u32);
            }
        }
    }
}
