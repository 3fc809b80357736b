//! Costs of the classifier: `cargo run --release -p classifier --example lookup [rules]`.
//!
//! Prints nanoseconds per lookup for tables of 1, 8, 40 and 200 subtables, and for a table of many
//! 5-tuple rules (default one million) what inserting, finding, looking up and removing one cost,
//! with the bytes per rule as the allocator and as the kernel sees them.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use classifier::{Classifier, Rule};
use flow::{Field, Key, Mask};
use sync::{Domain, Guard};

const FIVE_TUPLE: [Field; 6] =
    [Field::EthType, Field::Ipv4Src, Field::Ipv4Dst, Field::IpProto, Field::TcpSrc, Field::TcpDst];

fn packet(i: u64) -> Key {
    let x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = Key::ZERO;
    let values = [0x0800, x >> 32, x & 0xffff_ffff, 6, i & 0xffff, x >> 48];
    FIVE_TUPLE.iter().zip(values).for_each(|(f, v)| f.set(&mut key, v.into()));
    key
}

fn five_tuple() -> Mask {
    let mut mask = Key::ZERO;
    FIVE_TUPLE.iter().for_each(|f| f.unwildcard(&mut mask));
    mask
}

/// The `n`th of many masks: prefixes of different lengths.
fn prefixes(n: usize) -> Mask {
    let mut mask = five_tuple();
    Field::Ipv4Dst.set(&mut mask, u128::from(u32::MAX << (n % 32)));
    Field::Ipv4Src.set(&mut mask, u128::from(u32::MAX << (n / 32 % 32)));
    mask
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|p| p.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

fn per(what: &str, n: usize, took: Duration) {
    println!("{what:<44}{:>9.1} ns", took.as_nanos() as f64 / n as f64);
}

/// Looks up `n` packets in turn, over and over.
fn time_lookups(table: &Classifier<u64>, guard: Guard<'_>, packets: &[Key], what: &str) {
    let rounds = 1 + 2_000_000 / packets.len() / table.subtables().max(1);
    let start = Instant::now();
    let mut hits = 0;
    for key in (0..rounds).flat_map(|_| packets) {
        let mut marked = Key::ZERO;
        let rule = table.lookup(guard, black_box(key), 0, &mut marked);
        hits += usize::from(rule.is_some());
        black_box(&marked);
    }
    per(
        &format!("{what} ({} % hits)", 100 * hits / rounds / packets.len()),
        rounds * packets.len(),
        start.elapsed(),
    );
}

fn subtables(count: usize) {
    let writer = Domain::new().writer();
    let table = Classifier::new(writer.domain().clone());
    for n in 0..count {
        for i in 0..1000 {
            let key = packet((n * 1000 + i) as u64);
            table.insert(Arc::new(Rule::new(&key, &prefixes(n), 10, 0)));
        }
    }
    let hits: Vec<Key> = (0..1000).map(|i| packet((i * count) as u64)).collect();
    let misses: Vec<Key> = (0..1000).map(|i| packet(1 << 40 | i)).collect();
    time_lookups(&table, writer.pin(), &hits, &format!("lookup, {count} subtables"));
    time_lookups(&table, writer.pin(), &misses, &format!("lookup, {count} subtables"));
}

fn many(rules: usize) {
    let mut writer = Domain::new().writer();
    let table = Classifier::new(writer.domain().clone());
    let mask = five_tuple();
    let before = resident();
    let all: Vec<_> =
        (0..rules as u64).map(|i| Arc::new(Rule::new(&packet(i), &mask, 10, i))).collect();
    let mut worst = Duration::ZERO;
    let start = Instant::now();
    for rule in &all {
        let one = Instant::now();
        table.insert(rule.clone());
        worst = worst.max(one.elapsed());
    }
    per(&format!("insert, {rules} rules"), rules, start.elapsed());
    println!("{:<44}{:>9.1} ms", "  slowest (the array grows)", worst.as_secs_f64() * 1e3);
    println!("{:<44}{:>9}", "bytes per rule, counted", table.bytes() / rules);
    println!("{:<44}{:>9}", "bytes per rule, resident", (resident() - before) / rules);
    let start = Instant::now();
    let found = |i: u64| table.find_exact(&packet(i), &mask, 10, 0).is_some();
    assert!((0..rules as u64).step_by(7).all(found));
    per("find_exact", rules.div_ceil(7), start.elapsed());
    let packets: Vec<Key> = (0..rules as u64).step_by(11).map(packet).collect();
    time_lookups(&table, writer.pin(), &packets, "lookup, rules out of cache");
    let start = Instant::now();
    for rule in &all {
        table.remove(rule);
    }
    per("remove", rules, start.elapsed());
    let start = Instant::now();
    writer.reclaim();
    per("reclaim", rules, start.elapsed());
}

fn main() {
    let rules = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    [1, 8, 40, 200].into_iter().for_each(subtables);
    many(100);
    many(rules);
}
