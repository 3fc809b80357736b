//! PMD threads come and go while packets pass between ports: no packet is lost.
mod common;

use action::Op;
use common::*;
use datapath::testing::Peer;
use datapath::{RxAffinity, Settings};
use flow::Field;
use port::Service;
use std::time::{Duration, Instant};

/// Cores in turn: each time threads come, leave, or all are others.
const CORES: [&[usize]; 6] = [&[0], &[0, 1], &[1], &[], &[1, 0], &[2, 3]];
/// From which port to which one packets go. Ports 0 and 1 are polled, 2 and 3 kernel ports.
const WAYS: [(usize, usize); 6] = [(0, 1), (1, 0), (2, 1), (0, 3), (3, 2), (1, 1)];
/// A test that waits longer failed.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

/// Four ports with so many transmit queues each. The destination port of a packet says where it
/// goes.
fn bed(manual: bool, queues: usize) -> Bed {
    let mut b = bed_with(0, manual, CORES[0]);
    for service in [Service::Poll, Service::Poll, Service::Kernel, Service::Kernel] {
        b.add_queues("port", service, 1, queues);
    }
    let to = |to: u16| {
        let fields = [(Field::EthType, 0x800), (Field::IpProto, 17), (Field::UdpDst, to.into())];
        rule(&fields, vec![Op::Output(to)], 1)
    };
    b.rules.list.publish((0..4).map(to).collect());
    b
}

/// Sends `n` packets each way; returns how many that are.
fn send(peers: &[Peer], n: usize) -> usize {
    for (from, to) in WAYS {
        (0..n).for_each(|i| peers[from].send(&udp(1, 2, i as u16, to as u16, 64)));
    }
    n * WAYS.len()
}

/// Takes what came out; returns how many packets that are.
fn take(peers: &[Peer]) -> usize {
    peers.iter().map(|p| p.drain().len()).sum()
}

#[test]
fn no_packet_is_lost_while_threads_come_and_go() {
    for queues in [1, 2, 3, 5] {
        let mut b = bed(true, queues);
        let (mut sent, mut came) = (0, 0);
        for round in 0..60 {
            for _ in 0..3 {
                sent += send(&b.peers, 8);
                b.step(round % 3);
            }
            b.dp.set_pmd_cores(CORES[round % CORES.len()]).unwrap();
            b.step(round % 4);
        }
        b.dp.set_pmd_cores(CORES[0]).unwrap();
        for _ in 0..20 {
            b.step(1);
            came += take(&b.peers);
        }
        assert_eq!(came, sent, "{queues} queues: {:?}", b.dp.totals().drops);
        b.assert_balanced();
        assert_eq!(b.pool.in_use(), 0);
    }
}

/// Packets beyond a worker's budget of misses wait for its next vectors.
#[test]
fn no_missed_packet_is_lost_while_threads_come_and_go() {
    let mut b = bed(true, 1);
    b.dp.set_settings(Settings { miss_budget: 32, ..Settings::default() });
    let mut rules = vec![rule(&[(Field::EthType, 0x800)], vec![Op::Output(1)], 1)];
    rules.push(rule(
        &[(Field::EthType, 0x800), (Field::IpProto, 17), (Field::UdpSrc, 9)],
        vec![],
        1,
    ));
    rules.reverse();
    b.rules.list.publish(rules);
    let mut sent = 0;
    for round in 0..60 {
        for _ in 0..100 {
            b.peers[0].send(&udp(1, 2, 100 + sent as u16, 3, 64));
            sent += 1;
        }
        b.step(1 + round % 2);
        b.dp.set_pmd_cores(CORES[round % CORES.len()]).unwrap();
    }
    b.dp.set_pmd_cores(CORES[0]).unwrap();
    b.step(100);
    assert_eq!(b.peers[1].drain().len(), sent, "{:?}", b.dp.totals().drops);
    b.assert_balanced();
}

/// Ports that others use, pins and queues' places change, too.
#[test]
fn no_packet_is_lost_while_other_ports_come_and_go() {
    for seed in 0..8 {
        let mut b = bed(true, 1 + seed % 3);
        let (mut sent, mut came, mut others) = (0, 0, Vec::new());
        let mut random = seed as u64;
        let mut pick = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % n
        };
        for _ in 0..100 {
            sent += send(&b.peers[..4], 4);
            b.step(pick(3) as usize);
            match pick(6) {
                0 => {
                    let service = [Service::Poll, Service::Kernel][pick(2) as usize];
                    others.push(b.add_queues("other", service, 1 + pick(3) as usize, 1));
                }
                1 if !others.is_empty() => {
                    let no = others.swap_remove(pick(others.len() as u64) as usize);
                    drop(b.dp.del_port(no));
                }
                2 => b.dp.rebalance(),
                3 => {
                    let pin = RxAffinity([(0, pick(3) as usize)].into());
                    b.dp.set_affinity(pick(2) as u16, pin).unwrap();
                }
                _ => b.dp.set_pmd_cores(CORES[pick(6) as usize]).unwrap(),
            }
        }
        (0..2).for_each(|no| b.dp.set_affinity(no, RxAffinity::default()).unwrap());
        b.dp.set_pmd_cores(CORES[0]).unwrap();
        for _ in 0..20 {
            b.step(1);
            came += take(&b.peers[..4]);
        }
        assert_eq!(came, sent, "seed {seed}: {:?}", b.dp.totals().drops);
        b.assert_balanced();
    }
}

/// The ring to another thread may hold more packets for a port than that takes in an iteration.
#[test]
fn a_port_gets_no_packets_that_were_handed_over_for_another_one() {
    let mut b = bed_with(1, false, &[0]);
    let slow = b.add_queues("slow", Service::Kernel, 1, 1);
    b.peers[1].slow_down(Duration::from_micros(10));
    let from = |port: u16, to: Vec<Op>| {
        let mut rule = rule(&[], to, 1);
        rule.key.set_u16(flow::at::IN_PORT, port);
        rule.mask.set_u16(flow::at::IN_PORT, 0xffff);
        rule
    };
    let rules = vec![from(0, vec![Op::Output(2); 8]), from(slow, vec![Op::Output(slow)])];
    b.rules.list.publish(rules);
    for round in 0..20 {
        let old = b.add_queues("old", Service::Kernel, 1, 1);
        assert_eq!(old, 2);
        (0..20_000).for_each(|i| b.peers[1].send(&udp(1, 2, i as u16, 4, 64)));
        (0..3 * packet::VECTOR).for_each(|i| b.peers[0].send(&udp(1, 2, i as u16, 4, 64)));
        while b.peers[0].pending() > 0 {
            std::thread::yield_now();
        }
        drop(b.dp.del_port(old).unwrap());
        let new = b.add_queues("new", Service::Kernel, 1, 1);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(new, old, "the number is used again");
        assert_eq!(b.peers.last().unwrap().offered(), 0, "round {round}: packets for the old port");
        drop(b.dp.del_port(new).unwrap());
        b.peers.truncate(2);
        b.peers[1].drain();
    }
    b.dp.shutdown();
    b.assert_balanced();
}

/// Real threads in place of steps.
#[test]
fn no_packet_is_lost_while_real_threads_come_and_go() {
    for queues in [1, 2] {
        let mut b = bed(false, queues);
        b.dp.set_settings(Settings { pmd_sleep_max_us: 100, ..Settings::default() });
        // Afterwards all threads know the ports.
        b.dp.set_pmd_cores(&[]).unwrap();
        for round in 0..40 {
            let sent = send(&b.peers, 8);
            b.dp.set_pmd_cores(CORES[round % 3]).unwrap();
            let (mut came, end) = (0, Instant::now() + WAIT_TIME_MAX);
            while came < sent && b.dp.totals().drops.iter().all(|n| *n == 0) {
                assert!(Instant::now() < end, "{came} of {sent}");
                came += take(&b.peers);
                std::thread::sleep(Duration::from_micros(100));
            }
            assert_eq!(came, sent, "{queues} queues: {:?}", b.dp.totals().drops);
        }
        b.assert_balanced();
    }
}
