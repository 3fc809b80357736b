//! Packets that go to very many ports, beside those of another port.
mod common;

use action::Op;
use common::{bed, rule, udp};
use flow::Field;
use telemetry::Drop;

/// What each of these packets costs as many others.
const COPIES: u64 = 2000;

/// A vector's half of packets to 2,000 ports would have the other port wait for 256,000 copies. In
/// each vector no more are made than a burst allows, and the other port's packets all go.
#[test]
fn packets_to_very_many_ports_wait_for_no_vector_of_them() {
    let mut b = bed(3);
    let many = (0..=COPIES).map(|_| Op::Output(2)).collect();
    b.set_rules(vec![
        rule(&[(Field::UdpSrc, 3)], many, 0),
        rule(&[(Field::UdpSrc, 7)], vec![Op::Output(2)], 0),
    ]);
    let mut copies = 0;
    for round in 0..20 {
        for _ in 0..100 {
            b.peers[0].send(&udp(1, 2, 3, 4, 60));
            b.peers[1].send(&udp(5, 6, 7, 8, 60));
        }
        b.dp.step();
        let s = b.dp.port_stats(0).unwrap();
        let made = s.copies - copies;
        copies = s.copies;
        // 2 ms, at 200 ns each: six packets, in builds for tests fewer.
        assert!(made <= 6 * COPIES, "round {round}: {made} copies");
        b.peers[2].drain();
    }
    b.run();
    let [flooding, other] = [0, 1].map(|port| b.dp.port_stats(port).unwrap());
    assert!(flooding.drops[Drop::ActionTime as usize] > 0 && copies > 0);
    assert_eq!((other.rx_packets, other.drops[Drop::ActionTime as usize]), (2000, 0));
    b.peers[2].drain();
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

/// Where no other port has packets, all are executed.
#[test]
fn alone_a_port_has_packets_to_many_ports_executed() {
    let mut b = bed(3);
    let many = (0..50).map(|_| Op::Output(2)).collect();
    b.set_rules(vec![rule(&[], many, 0)]);
    for _ in 0..20 {
        (0..16).for_each(|_| b.peers[0].send(&udp(1, 2, 3, 4, 60)));
        b.run();
        b.peers[2].drain();
    }
    let s = b.dp.port_stats(0).unwrap();
    assert_eq!((s.drops[Drop::ActionTime as usize], s.copies), (0, 20 * 16 * 49));
}
