//! Readers that never wait against a writer that never rests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use classifier::{Classifier, NEVER, Rule};
use flow::{Field, Key, Mask, at};
use sync::{Domain, Writer};

struct Shared {
    table: Classifier<u64>,
    version: AtomicU64,
    stop: AtomicBool,
    lookups: AtomicU64,
}

/// Key and mask of a rule; `listed`: of an access list.
fn exact(i: u32, listed: bool) -> (Key, Mask) {
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    Field::EthType.set(&mut key, 0x0800);
    Field::Ipv4Dst.set(&mut key, u128::from(i));
    Field::Ipv4Dst.unwildcard(&mut mask);
    if listed {
        Field::EthType.unwildcard(&mut mask);
    }
    (key, mask)
}

/// At every version exactly one of two rules answers for key 1, and it carries the version.
fn read(shared: &Shared, domain: &Domain) {
    let mut reader = domain.reader();
    let (key, _) = exact(1, true);
    while !shared.stop.load(Ordering::Relaxed) {
        let version = shared.version.load(Ordering::Acquire);
        let mut marked = Key::ZERO;
        let rule = shared.table.lookup(reader.pin(), &key, version, &mut marked);
        assert_eq!(rule.map(|r| *r.value()), Some(version));
        let (mut near, n) = (key, shared.lookups.load(Ordering::Relaxed));
        near.set_u32(at::IP_DST, 1 ^ 1 << (n % 32));
        let mut marked = Key::ZERO;
        let rule = shared.table.lookup(reader.pin(), &near, version, &mut marked);
        // Keys whose answer differs from that of key 1.
        let same = rule.is_some_and(|r| *r.value() == version);
        assert!(same || near.masked(&marked) != key.masked(&marked), "{near:?} {marked:?}");
        shared.lookups.fetch_add(1, Ordering::Relaxed);
        reader.quiescent();
    }
}

fn wait(domain: &Domain) {
    let grace = domain.grace();
    while !domain.passed(grace) {
        std::thread::yield_now();
    }
}

/// Adds and removes rules that no lookup meets, of many masks and prefixes around key 1, so that
/// arrays, tries and the list of subtables grow, shrink and are replaced under the readers.
fn noise(table: &Classifier<u64>, round: u64) {
    let rules: Vec<_> = (0..40)
        .map(|i| {
            let (key, mut mask) = exact(i, !round.is_multiple_of(4));
            Field::Ipv4Dst.set(&mut mask, u128::from(u32::MAX << ((u64::from(i) + round) % 9)));
            if i % 3 == 0 {
                Field::Ipv4Src.set(&mut mask, u128::from(u32::MAX << (round % 25)));
            }
            if i % 4 == 0 {
                Field::TcpDst.set(&mut mask, 0xffff << (round % 16) & 0xffff);
            }
            Arc::new(Rule::with_version(&key, &mask, (round % 1000) as u16, NEVER, 0))
        })
        .collect();
    rules.iter().for_each(|r| table.insert(r.clone()));
    rules.iter().for_each(|r| assert!(table.remove(r)));
}

/// Replaces the answer for key 1, now under a higher and now under a lower priority or mask.
/// Goes on until readers and the writer have met often enough.
fn write(shared: &Shared, writer: &mut Writer) {
    let mut old: Option<Arc<Rule<u64>>> = None;
    let mut next = 0;
    while next < 200 || shared.lookups.load(Ordering::Relaxed) < 1000 {
        let (key, exact_mask) = exact(1, next % 2 == 0);
        let mask = if next % 3 == 0 { Key::ZERO } else { exact_mask };
        let priority = [5, 500, 50][next as usize % 3];
        let rule = Arc::new(Rule::with_version(&key, &mask, priority, next, next));
        shared.table.insert(rule.clone());
        if let Some(old) = &old {
            old.set_remove_version(next);
        }
        shared.version.store(next, Ordering::Release);
        noise(&shared.table, next);
        wait(writer.domain());
        if let Some(old) = old.replace(rule) {
            assert!(shared.table.remove(&old));
        }
        writer.reclaim();
        next += 1;
    }
}

#[test]
fn every_reader_sees_its_version() {
    let domain = Domain::new();
    let mut writer = domain.writer();
    let shared = Arc::new(Shared {
        table: Classifier::new(domain.clone()),
        version: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        lookups: AtomicU64::new(0),
    });
    let first = Arc::new(Rule::new(&Key::ZERO, &Key::ZERO, 0, 0));
    shared.table.insert(first);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (shared, domain) = (shared.clone(), domain.clone());
            std::thread::spawn(move || read(&shared, &domain))
        })
        .collect();
    write(&shared, &mut writer);
    shared.stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|r| r.join().unwrap());
    drop(shared);
    assert_eq!(writer.reclaim(), 0);
}

/// Rules under one mask that stay are found while others come and go, so that the hash table of
/// this mask is split into parts and these are joined again.
#[test]
fn a_rule_is_found_while_its_table_is_split_and_joined() {
    let domain = Domain::new();
    let mut writer = domain.writer();
    let table = Classifier::new(domain.clone());
    let rules = |range: std::ops::Range<u32>| {
        let rule = |i| {
            let (key, mask) = exact(i, false);
            Arc::new(Rule::new(&key, &mask, 1, u64::from(i)))
        };
        range.map(rule).collect::<Vec<_>>()
    };
    rules(0..100).into_iter().for_each(|r| table.insert(r));
    let (stop, lookups) = (AtomicBool::new(false), AtomicU64::new(0));
    let look = || {
        let mut reader = domain.reader();
        while !stop.load(Ordering::Relaxed) {
            for i in 0..100 {
                let rule = table.lookup(reader.pin(), &exact(i, false).0, 0, &mut Key::default());
                assert_eq!(rule.map(|r| *r.value()), Some(u64::from(i)));
            }
            lookups.fetch_add(100, Ordering::Relaxed);
            reader.quiescent();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(look);
        let mut rounds = 0;
        while rounds < 3 || lookups.load(Ordering::Relaxed) < 10_000 {
            let others = rules(100..20_000);
            others.iter().for_each(|r| table.insert(r.clone()));
            writer.reclaim();
            others.iter().for_each(|r| assert!(table.remove(r)));
            writer.reclaim();
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
}
