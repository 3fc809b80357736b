//! Ports whose only megaflow looks at nothing but the port: what their packets skip is neither seen
//! outside nor in any counter.
mod common;

use action::Op;
use common::*;
use datapath::{Event, Settings};
use flow::Field;
use std::sync::atomic::Ordering;
use telemetry::Drop;

/// Frames of many kinds, in turn: UDP of several lengths, ARP, and what is no protocol.
fn frames(n: usize) -> Vec<Vec<u8>> {
    let frame = |i: usize| match i % 4 {
        0 | 1 => udp(i as u32, 7, 1, 2, 60 + i),
        2 => [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6][..], &[i as u8; 46]].concat(),
        _ => vec![i as u8; 14 + i],
    };
    (0..n).map(frame).collect()
}

/// All frames are sent again and again, and all that the switch sends; what it says of it.
fn outcome(rules: &[Rule], validate: bool) -> (Vec<Vec<u8>>, String) {
    let mut b = bed(3);
    b.dp.set_settings(Settings { validate, ..Settings::default() });
    b.set_rules(rules.to_vec());
    let mut out = Vec::new();
    for round in 0..6 {
        // A rule that looks at packets comes and goes.
        if round == 2 || round == 4 {
            let first = rule(&[(Field::EthType, 0x0806)], vec![Op::Output(2)], 9);
            let others = if round == 2 { vec![first] } else { vec![] };
            b.set_rules([others, rules.to_vec()].concat());
        }
        frames(300).iter().for_each(|frame| b.peers[0].send(frame));
        // Not a frame.
        b.peers[0].send(&[1, 2, 3]);
        b.run();
        (1..3).for_each(|i| out.extend(b.peers[i].drain()));
    }
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
    let totals = b.dp.totals();
    assert_eq!(totals.drops[Drop::Truncated as usize], 6);
    let said = format!("{:?} {:?} {totals:?}", b.credits(), b.dp.port_stats(0).unwrap().rx_bytes);
    b.dp.drain_events(usize::MAX, &mut |e| {
        if let Event::Differs(how) = e {
            panic!("{how}");
        }
        1
    });
    (out, said)
}

/// With `validate` every packet is parsed and looked up.
#[test]
fn what_is_skipped_is_not_seen() {
    let sends = rule(&[], vec![Op::Output(1)], 1);
    for rules in [vec![sends], vec![rule(&[], vec![], 2)]] {
        assert_eq!(outcome(&rules, false), outcome(&rules, true));
    }
}

/// Packets for a port that has no room end before they are worked on, as the drops that they are;
/// as soon as there is room it is used.
#[test]
fn what_has_no_room_is_refused() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    let send = |b: &mut Bed, n: usize| {
        (0..n).for_each(|i| b.peers[0].send(&udp(i as u32, 7, 1, 2, 100)));
        b.run();
    };
    b.peers[1].limit_tx(10);
    send(&mut b, 50);
    let offered = b.peers[1].offered();
    assert_eq!((offered, b.peers[1].sent()), (50, 10));
    send(&mut b, 1000);
    assert_eq!(b.peers[1].offered(), offered, "no attempt to send them");
    b.peers[1].limit_tx(5);
    send(&mut b, 20);
    assert_eq!((b.peers[1].offered(), b.peers[1].sent()), (offered + 5, 15));
    b.peers[1].limit_tx(40);
    send(&mut b, 200);
    assert_eq!((b.peers[1].offered(), b.peers[1].sent()), (offered + 45, 55), "several bursts");
    b.peers[1].limit_tx(usize::MAX);
    send(&mut b, 600);
    assert_eq!((b.peers[1].sent(), b.peers[1].drain().len()), (655, 655));
    let totals = b.dp.totals();
    assert_eq!(totals.drops[Drop::TxFull as usize], 40 + 1000 + 15 + 160);
    assert_eq!(b.credits()[&1], (1870, 187_000), "refused packets are the flow's");
    assert_eq!(b.dp.port_stats(0).unwrap().rx_packets, 1870);
    assert_eq!(b.rules.resolved.load(Ordering::Relaxed), 1);
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}
