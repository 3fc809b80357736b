//! Captures: which packets are copied, what is said of them, and that traffic is not changed.
mod common;

use action::Op;
use common::*;
use datapath::{CaptureFilter, Captured, Fate, now_ms};
use flow::{Field, Key, at};
use port::Service;
use std::sync::atomic::Ordering;
use telemetry::Drop;

const SNAPLEN: usize = 100;

/// Packets of a port, or of all.
fn on_port(port: Option<u16>) -> CaptureFilter {
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    if let Some(no) = port {
        key.set_u16(at::IN_PORT, no);
        mask.set_u16(at::IN_PORT, u16::MAX);
    }
    CaptureFilter { key, mask, snaplen: SNAPLEN }
}

fn captured(b: &mut Bed) -> Vec<Captured> {
    b.dp.captured(usize::MAX).0.into_iter().map(|(_, one)| *one).collect()
}

/// `[Output(1)]`, say, or the reason of a drop.
fn fate(one: &Captured) -> String {
    match &one.fate {
        Fate::Unparsed(why) => why.name().into(),
        Fate::Decided { ops, drop, .. } if ops.is_empty() => drop.name().into(),
        Fate::Decided { ops, .. } => format!("{ops:?}"),
    }
}

/// The destination and the source port that the megaflow looks at.
fn megaflow(one: &Captured) -> Option<(u16, u16)> {
    let Fate::Decided { megaflow: Some(both), .. } = &one.fate else { return None };
    let (key, mask) = &**both;
    let port = |at| key.u16(at) & mask.u16(at);
    Some((port(at::TP_DST), port(at::TP_SRC)))
}

fn to(port: u128, ops: Vec<Op>) -> Rule {
    rule(&[(Field::EthType, 0x0800), (Field::IpProto, 17), (Field::UdpDst, port)], ops, 1)
}

#[test]
fn packets_come_with_their_megaflow_and_what_is_done() {
    let mut b = bed(3);
    b.add("k", Service::Kernel);
    b.set_rules(vec![to(2, vec![Op::Output(1)]), to(3, vec![Op::PopVlan, Op::Output(2)])]);
    b.dp.begin_capture(on_port(None), u64::MAX, 1000);
    let frames = [udp(1, 7, 5, 2, 300), udp(1, 7, 6, 3, 60), udp(1, 7, 5, 4, 60), vec![9; 13]];
    for from in [0, 3] {
        frames.iter().for_each(|f| b.peers[from].send(f));
        b.run();
        let all = captured(&mut b);
        let seen: Vec<_> = all.iter().map(|one| (fate(one), one.len, megaflow(one))).collect();
        let want = |fate: &str, len, megaflow| (fate.to_string(), len, megaflow);
        let mut seen = seen;
        seen.sort();
        let mut expected = [
            want("[Output(1)]", 300, Some((2, 0))),
            want("[PopVlan, Output(2)]", 60, Some((3, 0))),
            want("policy", 60, Some((4, 0))),
            want("truncated", 13, None),
        ];
        expected.sort();
        assert_eq!(seen, expected);
        assert!(all.iter().all(|one| usize::from(one.in_port) == from));
        let long = all.iter().find(|one| one.len == 300).unwrap();
        assert_eq!(long.bytes, frames[0][..SNAPLEN]);
        assert!(all.iter().all(|one| one.len > SNAPLEN || one.bytes.len() == one.len));
    }
    b.rules.cacheable.store(false, Ordering::Relaxed);
    b.set_rules(vec![to(2, vec![Op::Output(1)])]);
    b.peers[0].send(&frames[0]);
    b.run();
    let all = captured(&mut b);
    assert_eq!((fate(&all[0]), megaflow(&all[0])), ("[Output(1)]".into(), None));
    b.assert_balanced();
}

#[test]
fn only_what_matches_is_captured_also_where_the_way_is_known() {
    let mut b = bed(3);
    // Nothing but the port is looked at: without a capture packets are not parsed.
    b.set_rules(vec![rule(&[], vec![Op::Output(2)], 1)]);
    let send = |b: &mut Bed| {
        b.peers[0].send(&udp(1, 7, 5, 2, 60));
        b.peers[0].send(&udp(1, 8, 5, 2, 60));
        b.peers[0].send(&[9; 13]);
        b.peers[1].send(&udp(1, 7, 5, 2, 60));
        b.run();
        assert_eq!(b.peers[2].drain().len(), 3);
    };
    send(&mut b);
    b.dp.begin_capture(on_port(Some(0)), u64::MAX, 1000);
    send(&mut b);
    let fates: Vec<_> = captured(&mut b).iter().map(|one| (one.in_port, fate(one))).collect();
    let fates: Vec<_> = fates.iter().map(|(port, fate)| (*port, fate.as_str())).collect();
    assert_eq!(fates, [(0, "truncated"), (0, "[Output(2)]"), (0, "[Output(2)]")]);
    let mut filter = on_port(None);
    Field::Ipv4Dst.set(&mut filter.key, 7);
    Field::Ipv4Dst.unwildcard(&mut filter.mask);
    b.dp.begin_capture(filter, u64::MAX, 1000);
    send(&mut b);
    let mut ports: Vec<_> = captured(&mut b).iter().map(|one| one.in_port).collect();
    ports.sort();
    assert_eq!(ports, [0, 1]);
    b.dp.end_capture();
    send(&mut b);
    assert!(b.dp.captured(usize::MAX).0.is_empty());
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn counts_and_rates_bound_it() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    let mut clock = now_ms();
    let mut send = |b: &mut Bed, after_ms: u64| {
        clock += after_ms;
        b.dp.poll(clock);
        (0..20).for_each(|i| b.peers[0].send(&udp(i, 7, 1, 2, 60)));
        while b.dp.step() > 0 {}
        b.peers[1].drain();
        let (all, more) = b.dp.captured(usize::MAX);
        (all.len(), more)
    };
    send(&mut b, 0);
    b.dp.begin_capture(on_port(None), 17, 10);
    assert_eq!(send(&mut b, 0), (10, true), "a second's at once");
    assert_eq!(send(&mut b, 199), (1, true));
    assert_eq!(send(&mut b, 1), (1, true));
    assert_eq!(send(&mut b, 5000), (5, false), "all that were asked for");
    assert_eq!(send(&mut b, 5000), (0, false));
    assert_eq!(b.dp.beyond_capture(), 100 - 17);
    // Without anybody who reads: what a ring holds.
    b.dp.begin_capture(on_port(None), u64::MAX, 1_000_000);
    for i in 0..2000 {
        b.peers[0].send(&udp(i, 7, 1, 2, 60));
        b.dp.step();
    }
    assert_eq!(b.dp.captured(usize::MAX).0.len(), 1024);
    // Answers have a size.
    (0..2000).for_each(|i| b.peers[0].send(&udp(i, 7, 1, 2, 60)));
    while b.dp.step() > 0 {}
    let some = b.dp.captured(10_000).0.len();
    assert!((10..100).contains(&some), "{some}");
    assert_eq!(b.dp.totals().drops[Drop::RingFull as usize], 0);
    b.assert_balanced();
}
