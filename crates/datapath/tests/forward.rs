//! Packets through a stepped datapath.
mod common;

use action::{CachedDecision, Op, Punt, PuntClass, Region, Rewrite};
use common::*;
use datapath::testing::ring_port;
use datapath::{Bond, BondHash, Event, RxAffinity, Settings, Tri, WorkerId};
use flow::{Field, Key, at};
use port::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use telemetry::Drop;

#[test]
fn forwards_counts_and_leaks_nothing() {
    let mut b = bed(2);
    b.set_rules(vec![
        rule(&[(Field::EthType, 0x0800), (Field::Ipv4Dst, 7)], vec![Op::Output(1)], 5),
        rule(&[], vec![], 6),
    ]);
    for i in 0..1000 {
        b.peers[0].send(&udp(1, 7 + i % 2, 1, 2, 64));
    }
    b.run();
    let out = b.peers[1].drain();
    assert_eq!(out.len(), 500);
    assert_eq!(out[0], udp(1, 7, 1, 2, 64));
    let credits = b.credits();
    assert_eq!(credits[&5], (500, 500 * 64));
    assert_eq!(credits[&6], (500, 500 * 64));
    assert_eq!(b.rules.resolved.load(Ordering::Relaxed), 2);
    let s = b.dp.port_stats(0).unwrap();
    assert_eq!((s.rx_packets, s.drops[Drop::Policy as usize]), (1000, 500));
    assert_eq!(b.dp.port_stats(1).unwrap().tx_packets, 500);
    b.assert_balanced();
    assert_eq!(b.credits().len(), 0, "a second collect brings nothing");
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn several_outputs_and_full_queues_are_accounted_for() {
    let mut b = bed(3);
    b.set_rules(vec![rule(&[], vec![Op::Output(1), Op::Output(2), Op::Output(9)], 1)]);
    b.peers[2].limit_tx(10);
    for _ in 0..50 {
        b.peers[0].send(&udp(1, 2, 3, 4, 100));
    }
    b.run();
    assert_eq!((b.peers[1].drain().len(), b.peers[2].drain().len()), (50, 10));
    let t = b.dp.totals();
    assert_eq!(t.drops[Drop::TxFull as usize], 40);
    assert_eq!(t.drops[Drop::NoPort as usize], 50);
    assert_eq!(t.copies, 100);
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

/// A change that is not over when a port goes is over before another one has its number.
#[test]
fn a_port_gets_nothing_of_the_one_that_had_its_number() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    b.peers[0].send(&udp(1, 2, 3, 4, 100));
    b.run();
    assert_eq!(b.peers[1].drain().len(), 1);
    b.rules.list.publish(vec![]);
    b.dp.invalidate(&[Region::ALL]);
    b.dp.del_port(1).unwrap();
    assert_eq!(b.add("other", Service::Poll), 1);
    b.peers[0].send(&udp(1, 2, 3, 4, 100));
    b.step(4);
    assert_eq!(b.peers[2].drain().len(), 0);
}

/// For a log that wants misses, and is not written for a while.
#[test]
fn keys_of_missed_packets_are_kept_up_to_a_bound() {
    const MISSES: u32 = 3000;
    const KEPT_MAX: usize = 1024;
    let mut b = bed(2);
    let debug = datapath::FlowDebug { report_misses: true, ..Default::default() };
    b.dp.set_settings(Settings { debug, ..b.dp.settings().clone() });
    b.set_rules(vec![rule(&[(Field::Ipv4Src, 0xffff_ffff)], vec![], 1), rule(&[], vec![], 2)]);
    for i in 0..MISSES {
        b.peers[0].send(&udp(i, 2, 3, 4, 100));
        b.step(1);
        b.dp.poll(0);
    }
    assert_eq!(b.dp.take_missed().len(), KEPT_MAX);
    assert!(b.dp.take_missed().is_empty());
    b.peers[0].send(&udp(MISSES, 2, 3, 4, 100));
    b.run();
    assert_eq!(b.dp.take_missed().len(), 1);
    // Who does not want them has none kept.
    b.dp.set_settings(Settings { debug: Default::default(), ..b.dp.settings().clone() });
    b.peers[0].send(&udp(MISSES + 1, 2, 3, 4, 100));
    b.run();
    assert!(b.dp.take_missed().is_empty());
}

/// Each wait for the workers has them go through an iteration or more.
#[test]
fn workers_are_waited_for_once_for_all_ports_that_go_together() {
    const PORTS: u16 = 200;
    let iterations = |b: &common::Bed| b.dp.perf().iter().map(|(_, p)| p.iterations).sum::<u64>();
    let mut b = bed(usize::from(PORTS) + 2);
    let before = iterations(&b);
    assert_eq!(b.dp.del_ports([PORTS + 1]).len(), 1);
    let alone = iterations(&b) - before;
    let before = iterations(&b);
    let gone = b.dp.del_ports((1..=PORTS).chain([1, 999]));
    assert_eq!(gone.len(), usize::from(PORTS), "twice the same and one that is not there");
    let together = iterations(&b) - before;
    assert!(alone > 0 && together <= 3 * alone, "{together} iterations, for one port {alone}");
    assert_eq!(b.dp.ports().collect::<Vec<_>>(), [0]);
    // Numbers and workers are as good as new.
    assert_eq!(b.add("another", Service::Poll), 1);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    b.peers[0].send(&udp(1, 2, 3, 4, 100));
    b.run();
    assert_eq!(b.peers.last_mut().unwrap().drain().len(), 1);
}

/// A bond whose packets leave by this port.
fn bond(port: u16) -> Arc<Bond> {
    let bond = Bond::new(BondHash::Source, 0);
    (0..=u8::MAX).for_each(|bucket| bond.set(bucket, Some(port)));
    Arc::new(bond)
}

#[test]
fn a_bond_gets_nothing_of_the_one_that_had_its_number() {
    let mut b = bed(3);
    let no = b.dp.put_bond(None, &bond(1)).unwrap();
    b.set_rules(vec![rule(&[], vec![Op::Output(no)], 1)]);
    b.peers[0].send(&udp(1, 2, 3, 4, 100));
    b.run();
    assert_eq!(b.peers[1].drain().len(), 1);
    b.rules.list.publish(vec![]);
    b.dp.invalidate(&[Region::ALL]);
    b.dp.del_bond(no);
    assert_eq!(b.dp.put_bond(None, &bond(2)), Some(no));
    b.peers[0].send(&udp(1, 2, 3, 4, 100));
    b.step(4);
    assert_eq!(b.peers[2].drain().len(), 0);
}

/// Who changes the underlay has all decisions looked at, but not all in one turn.
#[test]
fn stale_decisions_are_looked_for_piece_by_piece() {
    const FLOWS: u32 = 10_000;
    /// Decisions that one turn looks at.
    const TURN_MAX: usize = 4096;
    /// It took 16 to 52 s beside 8 or 16 busy loops on two CPUs.
    const STORING_TIME_MAX: Duration = Duration::from_secs(300);
    let mut b = bed(2);
    b.rules.effects.store(true, Ordering::Relaxed);
    let never = rule(&[(Field::EthType, 0x0800), (Field::Ipv4Src, 0xffff_ffff)], vec![], 1);
    b.set_rules(vec![never, rule(&[], vec![Op::Output(1)], 2)]);
    // Flows that many new ones come beside are not stored at once.
    let start = Instant::now();
    while b.dp.flows().len() <= 2 * TURN_MAX {
        assert!(start.elapsed() < STORING_TIME_MAX, "{}", b.dp.flows().len());
        for src in 0..FLOWS {
            b.peers[0].send(&udp(src, 2, 3, 4, 100));
            if src % 256 == 0 {
                b.run();
                b.peers[1].drain();
            }
        }
        b.run();
    }
    let cached = b.dp.flows().len();
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    let stale = move |_: &CachedDecision<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        true
    };
    let first = b.dp.invalidate_stale(Box::new(stale));
    // What comes after it is not done before it.
    let r = rule(&[(Field::Ipv4Dst, 9)], vec![], 1);
    let next = b.dp.invalidate(&[Region::new(r.key, r.mask)]);
    for turn in 1.. {
        let before = looks.load(Ordering::Relaxed);
        let done = b.dp.ticket_done(next);
        let looked = looks.load(Ordering::Relaxed) - before;
        assert!(looked <= TURN_MAX, "{looked} in turn {turn}");
        if done {
            break;
        }
        b.dp.step();
    }
    assert!(b.dp.ticket_done(first));
    assert_eq!(looks.load(Ordering::Relaxed), cached);
    b.run();
    assert_eq!(b.dp.flows().len(), 0);
}

/// The other side of a port is notified of few packets at once, of full vectors after some, and of
/// what is left in the end.
#[test]
fn the_other_side_is_notified() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    for (packets, steps) in [(5, 1), (256, 2), (256 * 5, 5), (256 * 2 + 130, 4)] {
        (0..packets).for_each(|i| b.peers[0].send(&udp(1, 2, i, 4, 100)));
        for _ in 0..steps {
            b.dp.step();
        }
        b.peers[1].drain();
        let pending_notify = [0, 1].map(|i| b.peers[i].pending_notify());
        assert!(pending_notify.iter().all(|n| *n <= 256 * 3), "{packets}: {pending_notify:?}");
    }
    b.run();
    assert_eq!([0, 1].map(|i| b.peers[i].pending_notify()), [0, 0]);
}

/// Whole bursts wait for the end of the vector, but not more than half a vector of packets.
#[test]
fn queues_take_turns_for_whole_bursts() {
    let mut b = bed(1);
    let (port, peer) = ring_port("turns", Service::Poll, 1, 4, b.pool.clone());
    peer.set_phases();
    b.nos.push(b.dp.add_port(port, RxAffinity::default()).unwrap());
    b.peers.push(peer);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    let mut bursts = 0;
    for (packets, more) in [(5, 1), (100, 1), (256, 2)] {
        let sent: Vec<_> = (0..packets).map(|i| udp(1, 2, i, 4, 100)).collect();
        sent.iter().for_each(|p| b.peers[0].send(p));
        b.run();
        assert_eq!(b.peers[1].drain(), sent);
        bursts += more;
        assert_eq!(b.dp.port_stats(1).unwrap().tx_bursts, bursts, "{packets}");
    }
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

/// Another thread has the queue: packets wait in order; what finds no room any more ends by name.
#[test]
fn packets_wait_for_a_queue_that_another_thread_has() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    let send = |b: &Bed, numbers: std::ops::Range<u16>| {
        numbers.for_each(|i| b.peers[0].send(&udp(1, 2, i, 4, 100)));
    };
    let drops = |b: &Bed| b.dp.totals().drops[Drop::TxBusy as usize];
    b.peers[1].make_tx_busy(true);
    for first in [0, 7, 50, 120] {
        send(&b, first..first + 7);
        b.dp.step();
    }
    send(&b, 200..250);
    for _ in 0..5 {
        b.dp.step();
    }
    assert_eq!((b.peers[1].sent(), drops(&b)), (0, 0));
    b.peers[1].make_tx_busy(false);
    b.run();
    let expected: Vec<_> = [0..14, 50..57, 120..127, 200..250].into_iter().flatten().collect();
    let expected: Vec<_> = expected.into_iter().map(|i| udp(1, 2, i, 4, 100)).collect();
    assert_eq!(b.peers[1].drain(), expected);
    b.peers[1].make_tx_busy(true);
    send(&b, 0..300);
    for _ in 0..5 {
        b.dp.step();
    }
    b.peers[1].make_tx_busy(false);
    b.run();
    assert_eq!((b.peers[1].drain().len() as u64, drops(&b)), (256, 44));
    let s = b.dp.port_stats(1).unwrap();
    assert_eq!((s.tx_packets, s.tx_bytes), (78 + 256, (78 + 256) * 100));
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn busy_queues_share_a_vector() {
    let mut b = bed(3);
    b.set_rules(vec![rule(&[], vec![Op::Output(2)], 1)]);
    for port in [0, 1] {
        (0..1000).for_each(|_| b.peers[port].send(&udp(1, 2, 3, 4, 100)));
    }
    // One is found to be busy, then the other.
    b.dp.step();
    b.dp.step();
    let seen = |b: &Bed| [0, 1].map(|port| b.dp.port_stats(port).unwrap().rx_packets);
    let first = seen(&b);
    b.dp.step();
    let second = seen(&b);
    for port in [0, 1] {
        assert_eq!(second[port] - first[port], packet::VECTOR as u64 / 2, "{first:?} {second:?}");
    }
    b.run();
    assert_eq!(seen(&b), [1000, 1000]);
    b.peers[2].drain();
    b.assert_balanced();
}

#[test]
fn frames_longer_than_the_port_takes_are_dropped_by_name() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[(Field::InPort, 0)], vec![Op::Output(1)], 0)]);
    // An Ethernet header and one VLAN tag go beyond the MTU.
    let lengths = [60, 1518, 1519, 64, 1600];
    let send = |b: &mut Bed| -> Vec<usize> {
        lengths.iter().for_each(|n| b.peers[0].send(&udp(1, 2, 3, 4, *n)));
        b.run();
        b.peers[1].drain().iter().map(Vec::len).collect()
    };
    assert_eq!(send(&mut b), [60, 1518, 64]);
    b.peers[1].set_mtu(1582);
    b.dp.update_limit(1);
    assert_eq!(send(&mut b), [60, 1518, 1519, 64, 1600], "live");
    b.peers[1].set_mtu(100);
    b.dp.update_limit(1);
    assert_eq!(send(&mut b), [60, 64], "down as well");
    let s = b.dp.port_stats(1).unwrap();
    assert_eq!((s.drops[Drop::TooLong as usize], s.tx_packets), (5, 10));
    assert_eq!(s.tx_bytes, 3 * (60 + 64) + 2 * 1518 + 1519 + 1600);
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn receive_queues_that_come_later_are_served() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    b.peers[0].add_rxq();
    b.peers[0].send_on(1, &udp(1, 2, 3, 4, 64));
    b.run();
    assert_eq!(b.peers[1].drain().len(), 0, "the port was not asked yet");
    b.dp.refresh(0);
    b.dp.refresh(0);
    b.run();
    assert_eq!(b.peers[1].drain().len(), 1);
    assert_eq!(b.dp.rxq_info().iter().filter(|q| q.port == 0).count(), 2);
    b.dp.del_port(0).unwrap();
    assert_eq!(b.peers[0].queues_alive(), 0);
    b.assert_balanced();
}

#[test]
fn a_change_takes_effect_and_spares_the_rest() {
    let mut b = bed(3);
    let to = |dst, port| rule(&[(Field::Ipv4Dst, dst)], vec![Op::Output(port)], dst as u32);
    b.set_rules(vec![to(7, 1), to(8, 1)]);
    for dst in [7, 8] {
        b.peers[0].send(&udp(1, dst, 1, 2, 64));
    }
    b.run();
    assert_eq!(b.rules.resolved.load(Ordering::Relaxed), 2);
    b.rules.list.publish(vec![to(7, 2), to(8, 1)]);
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    Field::Ipv4Dst.set(&mut key, 7);
    Field::Ipv4Dst.unwildcard(&mut mask);
    let t = b.dp.invalidate(&[Region::new(key, mask)]);
    assert!(!b.dp.ticket_done(t), "a worker is still to pass a quiescent point");
    b.wait(t);
    for dst in [7, 8] {
        b.peers[0].send(&udp(1, dst, 1, 2, 64));
    }
    b.run();
    assert_eq!((b.peers[1].drain().len(), b.peers[2].drain().len()), (3, 1));
    assert_eq!(b.rules.resolved.load(Ordering::Relaxed), 3, "only the changed one asked again");
    assert_eq!(b.credits()[&7], (2, 128), "the dead rule's packet is not lost");
}

#[test]
fn uncacheable_decisions_and_a_full_table_count() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[(Field::UdpSrc, 0)], vec![], 2), rule(&[], vec![Op::Output(1)], 1)]);
    b.rules.cacheable.store(false, Ordering::Relaxed);
    for i in 0..100 {
        b.peers[0].send(&udp(1, 2, 1 + i, 4, 64));
    }
    b.run();
    assert_eq!(b.peers[1].drain().len(), 100);
    assert_eq!(b.dp.flows().len(), 0);
    assert_eq!(b.credits()[&1], (100, 6400));
    b.rules.cacheable.store(true, Ordering::Relaxed);
    b.dp.set_settings(Settings { flow_limit: 16, ..Settings::default() });
    for round in 0..20 {
        for i in 0..100 {
            b.peers[0].send(&udp(1, 2, 1 + round + i, 4, 64));
        }
        b.run();
        assert!(b.dp.flows().len() <= 16);
    }
    assert_eq!(b.peers[1].drain().len(), 2000);
    assert_eq!(b.credits()[&1], (2000, 128_000));
    b.assert_balanced();
}

#[test]
fn punts_recirculation_and_injection() {
    let mut b = bed(2);
    let punt = Arc::new(Punt {
        class: PuntClass::Controller,
        max_len: 20,
        wanted: None,
        context: Box::new(77u32),
    });
    let mut second = rule(&[(Field::EthType, 0x0800)], vec![Op::Output(1)], 2);
    second.key.set_u32(flow::at::RECIRC, 9);
    second.mask.set_u32(flow::at::RECIRC, !0);
    let first = rule(&[], vec![Op::Punt(punt), Op::Recirc(9)], 1);
    b.set_rules(vec![second, first]);
    for _ in 0..10 {
        b.peers[0].send(&udp(1, 2, 3, 4, 64));
    }
    b.run();
    assert_eq!(b.peers[1].drain().len(), 10);
    let mut n = 0;
    b.dp.drain_events(usize::MAX, &mut |e| {
        if let Event::Punt(p) = e {
            assert_eq!((p.packet.len(), p.total_len, p.in_port), (20, 64, 0));
            assert_eq!(p.punt.context.downcast_ref(), Some(&77u32));
            n += 1;
        }
        1
    });
    assert_eq!(n, 10);
    let c = b.credits();
    assert_eq!((c[&1].0, c[&2].0), (10, 10));
    b.dp.execute(&udp(5, 6, 7, 8, 80), flow::NO_PORT, &[Op::Output(0), Op::Output(1)]).unwrap();
    b.run();
    assert_eq!(b.peers[0].drain(), [udp(5, 6, 7, 8, 80)]);
    assert_eq!(b.peers[1].drain().len(), 1);
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

/// What is done with packets of which some are sampled, and where packets go then, of 64.
fn sampled(rest: Vec<Op>) -> (usize, usize, [usize; 2]) {
    let mut b = bed(2);
    let (class, context) = (PuntClass::Sample, Box::new(()));
    let punt = Op::Punt(Arc::new(Punt { class, max_len: 20, wanted: None, context }));
    let sample = Op::Sample { chance: u32::MAX / 4, ops: Box::new([punt]) };
    b.set_rules(vec![rule(&[], [vec![sample], rest].concat(), 1)]);
    let (mut samples, mut out) = (0, [0; 2]);
    for _ in 0..100 {
        (0..64).for_each(|_| b.peers[0].send(&udp(1, 2, 3, 4, 64)));
        b.run();
        (0..2).for_each(|i| out[i] += b.peers[i].drain().len());
        b.dp.drain_events(usize::MAX, &mut |e| {
            if let Event::Punt(p) = e {
                assert_eq!((p.packet.len(), p.total_len), (20, 64));
                samples += 1;
            }
            1
        });
    }
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
    let dropped = b.dp.totals().drops[Drop::Policy as usize] as usize;
    (samples, dropped, out)
}

#[test]
fn some_packets_are_sampled_and_all_go_their_way() {
    let clone = Op::Clone([Op::PopVlan, Op::Output(0)].into());
    for (rest, dropped, out) in [
        (vec![Op::Output(1)], 0, [0, 6400]),
        (vec![], 6400, [0, 0]),
        (vec![Op::PushVlan { tpid: 0x8100, tci: 5 }, Op::Output(1)], 0, [0, 6400]),
        // By the interpreter.
        (vec![clone, Op::Output(1)], 0, [6400, 6400]),
    ] {
        let text = format!("{rest:?}");
        let (samples, ended, went) = sampled(rest);
        assert_eq!((ended, went), (dropped, out), "{text}");
        // Five standard deviations on both sides.
        assert!(samples.abs_diff(1600) < 175, "{text}: {samples} samples");
    }
}

#[test]
fn what_no_controller_wants_ends_for_its_reason() {
    let mut b = bed(1);
    let wanted = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let punt = Punt {
        class: PuntClass::Controller,
        max_len: 64,
        wanted: Some(wanted.clone()),
        context: Box::new(()),
    };
    b.set_rules(vec![rule(&[], vec![Op::Punt(Arc::new(punt))], 1)]);
    *b.rules.why.lock().unwrap() = Some(Drop::TtlExpired);
    for on in [false, true] {
        wanted.store(on, Ordering::Relaxed);
        b.peers[0].send(&udp(1, 2, 3, 4, 64));
        b.run();
        let t = b.dp.totals();
        assert_eq!((t.drops[Drop::TtlExpired as usize], t.punted), (1, u64::from(on)));
    }
    b.assert_balanced();
}

#[test]
fn endless_recirculation_ends() {
    let mut b = bed(1);
    b.set_rules(vec![rule(&[], vec![Op::Recirc(1)], 1)]);
    b.peers[0].send(&udp(1, 2, 3, 4, 64));
    b.run();
    assert_eq!(b.dp.totals().drops[Drop::RecircLimit as usize], 1);
    b.assert_balanced();
}

#[test]
fn copies_that_are_copied_again_and_again_have_a_limit() {
    let mut b = bed(1);
    let again = Op::Clone([Op::Recirc(1)].into());
    b.set_rules(vec![rule(&[], vec![again; 100], 1)]);
    b.peers[0].send(&udp(1, 2, 3, 4, 64));
    b.run();
    let perf = b.dp.perf().iter().map(|(_, p)| p.recirculated).sum::<u64>();
    assert!((256..7 * 4096).contains(&perf), "{perf} packets instead of 10^12");
    let drops = b.dp.totals().drops;
    let dropped = [Drop::RecircLimit, Drop::ActionTime].map(|why| drops[why as usize]);
    assert!(dropped.iter().sum::<u64>() >= 100, "{dropped:?}");
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn packets_go_by_their_length() {
    let mut b = bed(4);
    let ops = |port| vec![Op::PopVlan, Op::Output(port)].into();
    let by_length = Op::CheckLen { size: 200, more: ops(1), others: ops(2) };
    b.set_rules(vec![rule(&[], vec![by_length, Op::Output(3)], 1)]);
    let frames: Vec<_> = [199, 200, 201].map(|len| udp(1, 2, 3, 4, len)).into();
    frames.iter().for_each(|frame| b.peers[0].send(frame));
    b.run();
    let got = |port: usize| b.peers[port].drain().iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!((got(1), got(2), got(3)), (vec![201], vec![199, 200], vec![199, 200, 201]));
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn what_a_decision_holds_lives_as_long_as_its_flow() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    b.rules.holding.store(true, Ordering::Relaxed);
    let held = b.rules.held.clone();
    b.peers[0].send(&udp(1, 2, 3, 4, 64));
    b.run();
    assert_eq!((b.dp.flows().len(), Arc::strong_count(&held)), (1, 3));
    b.dp.poll(datapath::now_ms() + 60_000);
    b.run();
    assert_eq!((b.dp.flows().len(), Arc::strong_count(&held)), (0, 2), "idle");
    b.rules.cacheable.store(false, Ordering::Relaxed);
    b.peers[0].send(&udp(1, 2, 3, 4, 64));
    b.run();
    assert_eq!(b.peers[1].drain().len(), 2);
    assert_eq!(Arc::strong_count(&held), 2, "not stored");
}

#[test]
fn rewrites_keep_checksums_right() {
    let mut b = bed(2);
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    let edits = [
        (Field::EthDst, 0x0a0b_0c0d_0e0f),
        (Field::Ipv4Src, 0x0102_0304),
        (Field::IpTtl, 3),
        (Field::IpTos, 0x48),
        (Field::UdpDst, 999),
    ];
    for (f, v) in edits {
        f.set(&mut key, v);
        f.unwildcard(&mut mask);
    }
    let set = Op::Set(Box::new(Rewrite { key, mask }));
    b.set_rules(vec![rule(&[], vec![set, Op::Output(1)], 1)]);
    b.peers[0].send(&udp(0x0a00_0001, 0x0a00_0002, 3, 4, 75));
    b.run();
    let out = b.peers[1].recv().unwrap();
    let k = datapath::extract(&out, 0, 1).unwrap();
    for (f, v) in edits {
        assert_eq!(f.get(&k), v, "{f:?}");
    }
    assert_eq!(sum(&out[14..34], 0), 0xffff);
    assert_eq!(l4_sum(&out), u16::from_be_bytes([out[40], out[41]]));
}

#[test]
fn misses_over_budget_wait_in_order() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[(Field::UdpSrc, 0)], vec![], 2), rule(&[], vec![Op::Output(1)], 1)]);
    b.dp.set_settings(Settings { miss_budget: 3, ..Settings::default() });
    for i in 0..200u16 {
        b.peers[0].send(&udp(1, 2, 1 + i / 2, i, 64));
    }
    b.run();
    let out = b.peers[1].drain();
    assert_eq!(out.len(), 200);
    for pair in out.chunks(2) {
        assert_eq!(pair[0][34..36], pair[1][34..36], "a flow stays together");
        assert!(pair[0][36..38] < pair[1][36..38], "and in order");
    }
    b.assert_balanced();
}

#[test]
fn idle_flows_leave_and_slots_come_back() {
    let mut b = bed(2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    b.dp.set_settings(Settings {
        max_idle_ms: 5_000,
        signature_cache: Tri::On,
        ..Settings::default()
    });
    for round in 1..4 {
        b.peers[0].send(&udp(1, 2, 3, 4, 64));
        b.run();
        assert_eq!(b.dp.flows().len(), 1);
        b.dp.poll(datapath::now_ms() + 10_000 * round);
        b.run();
        assert_eq!(b.dp.flows().len(), 0);
    }
    assert_eq!(b.credits()[&1].0, 3);
}

/// What a port's other side costs by violations is charged to its own queue, whoever sends to it
/// and whether it sends anything itself.
#[test]
fn violations_are_paid_for_by_their_own_port() {
    /// More than any vector here takes.
    const LOST: u64 = 1 << 40;
    let mut b = bed(3);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    let cycles = |b: &Bed| -> Vec<u64> { b.dp.rxq_info().iter().map(|q| q.cycles).collect() };
    let send = |b: &mut Bed| {
        (0..100).for_each(|i| b.peers[0].send(&udp(1, 2, i, 4, 100)));
        b.run();
        assert_eq!(b.peers[1].drain().len(), 100);
    };
    send(&mut b);
    let honest = cycles(&b);
    assert!(honest[0] > 0 && honest[1] == 0, "the sender pays: {honest:?}");
    b.peers[1].lose(LOST);
    send(&mut b);
    b.peers[1].lose(0);
    // Until the queues are asked what they owe, some times per second.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while cycles(&b)[1] == 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(5));
        b.dp.step();
    }
    let after = cycles(&b);
    assert!(after[1] >= LOST && after[1].is_multiple_of(LOST), "{after:?}");
    assert_eq!((after[0], after[2]), (honest[0], honest[2]), "no other port pays");
    // The thread that did nothing else was busy.
    assert!(b.dp.perf()[0].1.idle_cycles < LOST);
}

/// One iteration, however often packets are recirculated, with the keys that they would have if
/// they were parsed again; in order, also those that are beyond the miss budget at their second
/// lookup.
#[test]
fn recirculated_packets_go_out_with_their_vector() {
    let mut b = bed(2);
    let tag = Op::PushVlan { tpid: 0x8100, tci: 7 };
    let pass = |id, fields: &[(Field, u128)], ops| {
        let mut rule = rule(fields, ops, id);
        rule.key.set_u32(at::RECIRC, id);
        rule.mask.set_u32(at::RECIRC, u32::MAX);
        rule
    };
    b.set_rules(vec![
        pass(0, &[], vec![tag, Op::Recirc(1)]),
        pass(1, &[], vec![Op::PopVlan, Op::Recirc(2)]),
        pass(2, &[(Field::VlanTci, 0)], vec![Op::Recirc(3)]),
        pass(3, &[(Field::UdpSrc, 0)], vec![]),
        pass(3, &[], vec![Op::Output(1)]),
    ]);
    let packet = |i: u16| udp(1, 2, 1 + i % 5, i, 64);
    for budget in [packet::VECTOR, 5] {
        let settings = Settings { miss_budget: budget, validate: true, ..Settings::default() };
        b.dp.set_settings(settings);
        b.run();
        (0..200).for_each(|i| b.peers[0].send(&packet(i)));
        b.dp.step();
        let first = b.peers[1].drain();
        assert_eq!(first.len() == 200, budget > 200, "{}", first.len());
        b.run();
        let mut all = [first, b.peers[1].drain()].concat();
        all.sort_by_key(|p| p[35]);
        let mut sent: Vec<_> = (0..200).map(packet).collect();
        sent.sort_by_key(|p| p[35]);
        assert_eq!(all, sent, "each flow in order");
        let t = b.dp.invalidate(&[Region::ALL]);
        b.wait(t);
    }
    let perf = b.dp.perf().into_iter().map(|(_, p)| p);
    let (again, differences) =
        perf.fold((0, 0), |(a, d), p| (a + p.recirculated, d + p.differences));
    assert!(again >= 3 * 400, "{again}");
    assert_eq!(differences, 0);
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn kernel_ports_pay_for_what_they_refuse() {
    let mut b = bed(1);
    // Its queue is asked and brings nothing, as one whose frames are all refused.
    let kernel = b.add("k", Service::Kernel);
    b.dp.step();
    let before = b.dp.pmd_info();
    for _ in 0..10 {
        b.dp.step();
    }
    let cycles = |port| b.dp.rxq_info().iter().find(|q| q.port == port).unwrap().cycles;
    assert!(cycles(kernel) > 0);
    assert_eq!(cycles(0), 0, "polling costs a PMD thread the same with and without packets");
    let busy = |all: &[datapath::PmdInfo], worker| {
        all.iter().find(|p| p.worker == worker).unwrap().perf.busy_cycles
    };
    let after = b.dp.pmd_info();
    assert!(busy(&after, WorkerId::Kernel) > busy(&before, WorkerId::Kernel));
    assert_eq!(busy(&after, WorkerId::Pmd(0)), 0);
}

#[test]
fn cached_flows_are_shown_piece_by_piece() {
    const FLOWS: usize = 300;
    const PIECE: usize = 32;
    let mut b = bed(2);
    b.set_rules((0..FLOWS).map(|i| to_port(i as u16)).collect());
    (0..FLOWS).for_each(|i| b.peers[0].send(&udp(1, 2, 3, i as u16, 64)));
    b.run();
    let all: Vec<_> = b.dp.flows().iter().map(|f| f.id).collect();
    let (mut from, mut shown) = (Some(0), Vec::new());
    while let Some(at) = from {
        let mut piece = Vec::new();
        from = b.dp.flows_of(WorkerId::Pmd(0), at, PIECE, &mut piece);
        assert!(piece.len() <= PIECE && from.is_none_or(|next| next == at + PIECE));
        shown.extend(piece.iter().map(|f| f.id));
    }
    assert!(all.len() >= FLOWS, "{}", all.len());
    assert_eq!(shown, all);
    assert_eq!(b.dp.flows_of(WorkerId::Pmd(7), 0, PIECE, &mut Vec::new()), None);
}

/// The control side that asks for new flows gets a bounded number of those since it asked last;
/// else none are kept.
#[test]
fn new_flows_are_kept_for_who_asks_and_not_many() {
    const KEPT_MAX: usize = 1024;
    let mut b = bed(2);
    let rules = |ports: std::ops::Range<u16>| ports.map(to_port).collect();
    b.set_rules(rules(0..4000));
    let send = |b: &mut Bed, ports: std::ops::Range<u16>| {
        ports.for_each(|dst| b.peers[0].send(&udp(1, 2, 3, dst, 64)));
        b.run();
    };
    send(&mut b, 0..10);
    assert_eq!(b.dp.new_flows(true).len(), 0, "they had not been asked for");
    send(&mut b, 10..30);
    assert_eq!(b.dp.new_flows(true).len(), 20);
    // On a slow machine some are stored only when they come again.
    let mut rounds = (100..3000).step_by(1000).cycle().take(30);
    while b.dp.flows().len() <= 2 * KEPT_MAX {
        let from = rounds.next().expect("flows that come again are stored");
        send(&mut b, from..from + 1000);
    }
    assert_eq!(b.dp.new_flows(false).len(), KEPT_MAX);
    send(&mut b, 30..50);
    assert_eq!(b.dp.new_flows(false).len(), 0);
}

fn to_port(dst: u16) -> Rule {
    rule(&[(Field::InPort, 0), (Field::UdpDst, dst.into())], vec![Op::Output(1)], 0)
}
