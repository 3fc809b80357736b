//! Kernel ports to which sending takes long do not delay the packets of others.

mod common;

use action::Op;
use common::{Bed, bed, rule, udp};
use flow::Field;
use packet::VECTOR;
use port::Service;
use std::time::Duration;

/// What a packet to a slow port takes: a fifth of what all may take in an iteration.
const SLOW: Duration = Duration::from_micros(100);
/// Packets to slow ports that an iteration sends, at most, however long the last one took.
const SENT_PACKETS_MAX: usize = 7;

/// Kernel ports 0 to 3; packets with destination port `1000 + n` go to port `n`. Ports 2 and 3 are
/// slow, and known as such.
fn slow_bed() -> Bed {
    let mut b = bed(0);
    (0..4).for_each(|i| _ = b.add(&format!("k{i}"), Service::Kernel));
    let to = |n: u16| {
        rule(&[(Field::UdpDst, 1000 + u128::from(n))], vec![Op::Output(b.nos[n as usize])], 1)
    };
    b.set_rules((0..4).map(to).collect());
    for port in [2, 3] {
        b.peers[port].slow_down(SLOW);
        send(&b, 0, port, 1);
        b.run();
    }
    b.peers.iter().for_each(|peer| drop(peer.drain()));
    b
}

/// Sends `n` packets from port `from` to port `to`.
fn send(b: &Bed, from: usize, to: usize, n: usize) {
    (0..n).for_each(|_| b.peers[from].send(&udp(1, 2, 3, 1000 + to as u16, 100)));
}

/// Has iterations without packets, which pay for slow packets, until none waits.
fn rest(b: &mut Bed) {
    let waits = |b: &Bed| {
        let t = b.dp.totals();
        t.rx_packets > t.tx_packets + t.drops.iter().sum::<u64>()
    };
    for _ in 0..1_000_000 {
        if !waits(b) {
            break;
        }
        b.step(1);
    }
}

#[test]
fn an_iteration_sends_few_packets_to_slow_ports_and_all_to_others() {
    let mut b = slow_bed();
    // As many as one vector reads.
    send(&b, 0, 2, VECTOR / 2 - 1);
    for _ in 0..10 {
        send(&b, 1, 0, 10);
        b.step(1);
        assert_eq!(b.peers[0].drain().len(), 10, "they do not wait for another iteration");
        let sent = b.peers[2].drain().len();
        assert!(sent <= SENT_PACKETS_MAX, "{sent} packets to the slow port");
    }
    rest(&mut b);
    let drops = b.dp.totals().drops.iter().sum::<u64>();
    assert_eq!(drops, 0, "fewer than a vector wait");
    b.assert_balanced();
}

/// While others have packets, a slow port's packets have a sixteenth of the thread's time.
#[test]
fn a_slow_packet_is_paid_for_before_the_next_one() {
    let mut b = slow_bed();
    let began = std::time::Instant::now();
    let (mut sent, mut others, mut at_once, rounds) = (0, 0, 0, 200);
    for _ in 0..rounds {
        send(&b, 0, 2, 1);
        send(&b, 1, 0, 10);
        b.step(1);
        let now = b.peers[0].drain().len();
        (others, at_once) = (others + now, at_once + u32::from(now >= 10));
        sent += b.peers[2].drain().len() as u32;
    }
    // All of it is an iteration's at most, and a packet exceeds what it may take by four fifths.
    let paid = (began.elapsed().as_nanos() / 16 / 80_000) as u32;
    assert!(sent <= paid + 2 && sent < rounds / 2, "{sent} packets, {paid} were paid for");
    rest(&mut b);
    b.assert_balanced();
    // On a busy machine the others' port may seem slow now and then.
    others += b.peers[0].drain().len();
    assert!(others == 10 * rounds as usize && at_once > rounds / 2, "{others}, {at_once} at once");
}

#[test]
fn slow_ports_take_turns_and_what_exceeds_a_vector_is_dropped() {
    let mut b = slow_bed();
    let mut sent = [0, 0];
    for _ in 0..40 {
        send(&b, 0, 2, 64);
        send(&b, 1, 3, 2);
        b.step(1);
        let mut now = [0, 0];
        // Iterations without packets pay for one.
        for _ in 0..1_000_000 {
            [2, 3]
                .into_iter()
                .zip(&mut now)
                .for_each(|(i, n): (usize, _)| *n += b.peers[i].drain().len());
            if now != [0, 0] {
                break;
            }
            b.step(1);
        }
        assert_ne!(now, [0, 0], "idle iterations pay for a packet");
        sent = [sent[0] + now[0], sent[1] + now[1]];
    }
    assert!(sent[0] + sent[1] <= 40 * SENT_PACKETS_MAX, "{sent:?}");
    assert!(sent[1] >= 18, "the port with less is served in turn: {sent:?}");
    rest(&mut b);
    let full = b.dp.totals().drops[telemetry::Drop::TxFull as usize];
    assert!(full > 40 * 64 / 2, "{full} packets dropped");
    b.assert_balanced();
}

/// The cycles are charged to the slow port's own receive queue, and not to the senders'.
#[test]
fn a_slow_port_pays_for_what_sending_to_it_takes() {
    let mut b = slow_bed();
    b.peers[2].slow_down(SLOW * 100);
    send(&b, 0, 2, 30);
    b.step(30);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let paid = |b: &Bed| {
        let cycles = |no| b.dp.rxq_info().iter().find(|q| q.port == no).unwrap().cycles;
        (cycles(b.nos[0]), cycles(b.nos[2]))
    };
    while paid(&b).1 <= paid(&b).0 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
        b.dp.step();
    }
    let (sender, slow) = paid(&b);
    assert!(slow > sender, "the slow port {slow}, the sender {sender} cycles");
}
