//! Runs of packets that need one lookup together.
mod common;

use action::Op;
use common::*;
use flow::Field;
use std::sync::atomic::Ordering;

/// Packets that differ in nothing that flows of their port match on share a lookup. When a flow
/// matches on more, they are looked up alone again.
#[test]
fn packets_that_agree_on_what_flows_match_on_share_a_lookup() {
    let mut b = bed(3);
    let to = |dst, port| rule(&[(Field::Ipv4Dst, dst)], vec![Op::Output(port)], dst as u32);
    b.set_rules(vec![to(7, 1), to(8, 2)]);
    for dst in [7, 8] {
        b.peers[0].send(&udp(1, dst, 1, 2, 64));
    }
    b.run();
    b.dp.stats_clear(None);
    for i in 0..60 {
        b.peers[0].send(&udp(u32::from(i), 7 + u32::from(i) / 30, i, 2, 64));
    }
    b.run();
    assert_eq!((b.peers[1].drain().len(), b.peers[2].drain().len()), (31, 31));
    let perf = b.dp.perf();
    let hits: u64 = perf.iter().map(|(_, p)| p.flow_hits).sum();
    let lookups: u64 = perf.iter().map(|(_, p)| p.subtable_lookups).sum();
    assert!(hits == 60 && lookups <= 6, "{hits} hits by {lookups} lookups");

    let web = [(Field::Ipv4Dst, 7), (Field::UdpDst, 80)];
    b.set_rules(vec![rule(&web, vec![Op::Output(2)], 80), to(7, 1)]);
    for _ in 0..2 {
        for i in 0..60 {
            b.peers[0].send(&udp(u32::from(i), 7, i, if i % 3 == 0 { 80 } else { 81 }, 64));
        }
        b.run();
        assert_eq!((b.peers[1].drain().len(), b.peers[2].drain().len()), (40, 20));
    }
    b.assert_balanced();
}

#[test]
fn repeated_keys_are_each_decided_or_counted() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    for cacheable in [false, true, true] {
        b.rules.cacheable.store(cacheable, Ordering::Relaxed);
        for i in 0..90 {
            b.peers[0].send(&udp(1, 2, 1 + i / 30, 4, 64));
        }
        b.run();
        assert_eq!(b.peers[1].drain().len(), 90);
        assert_eq!(b.credits()[&1], (90, 90 * 64));
        let perf = b.dp.perf().iter().map(|(_, p)| p.misses).sum::<u64>();
        assert!(perf >= 90, "without a stored rule each packet is decided: {perf}");
    }
    b.assert_balanced();
}
