//! Real threads: traffic while ports, cores and tables come and go.
mod common;

use action::{Op, Region};
use common::*;
use datapath::{RxAffinity, Settings, WorkerId, now_ms};
use flow::Field;
use port::Service;
use std::time::{Duration, Instant};
use telemetry::Drop;

fn live(n: usize, cores: &[usize]) -> Bed {
    let mut b = bed_with(n, false, cores);
    // Two cores must do for everybody who tests here.
    b.dp.set_settings(Settings { pmd_sleep_max_us: 100, ..Settings::default() });
    b
}

/// A test that waits longer failed.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

/// Polls until `done`; false: in vain.
fn until(b: &mut Bed, mut done: impl FnMut(&mut Bed) -> bool) -> bool {
    let end = Instant::now() + WAIT_TIME_MAX;
    while Instant::now() < end {
        b.dp.poll(now_ms());
        if done(b) {
            return true;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    false
}

fn publish(b: &mut Bed, rules: Vec<Rule>) -> Duration {
    b.rules.list.publish(rules);
    let start = Instant::now();
    let t = b.dp.invalidate(&[Region::ALL]);
    while !b.dp.ticket_done(t) {
        assert!(start.elapsed() < WAIT_TIME_MAX);
        std::thread::yield_now();
    }
    start.elapsed()
}

fn from(port: u16, ops: Vec<Op>) -> Rule {
    let mut r = rule(&[], ops, port as u32);
    r.key.set_u16(flow::at::IN_PORT, port);
    r.mask.set_u16(flow::at::IN_PORT, 0xffff);
    r
}

#[test]
fn kernel_and_polled_ports_reach_each_other() {
    let mut b = live(2, &[0]);
    let k = b.add_queues("veth", Service::Kernel, 1, 1);
    publish(
        &mut b,
        vec![from(0, vec![Op::Output(1), Op::Output(k)]), from(k, vec![Op::Output(0)])],
    );
    for i in 0..300 {
        b.peers[0].send(&udp(1, 2, i, 4, 64));
        b.peers[2].send(&udp(3, 4, i, 4, 80));
    }
    let all =
        |b: &mut Bed| [b.peers[0].sent(), b.peers[1].sent(), b.peers[2].sent()] == [300, 300, 300];
    assert!(until(&mut b, all), "{:?}", b.dp.totals());
    assert_eq!(b.dp.port_stats(k).unwrap().tx_packets, 300);
    b.assert_balanced();
    b.peers.iter().for_each(|p| drop(p.drain()));
    assert!(until(&mut b, |b| b.pool.in_use() == 0));
}

#[test]
fn a_port_leaves_and_returns_under_traffic() {
    let mut b = live(2, &[0, 1]);
    publish(&mut b, vec![from(0, vec![Op::Output(1)]), from(1, vec![Op::Output(0)])]);
    let (p0, stop) =
        (b.peers[0].clone(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let ended = stop.clone();
    let sender = std::thread::spawn(move || {
        let mut n = 0u64;
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            if p0.pending() < 500 {
                for i in 0..32 {
                    p0.send(&udp(1, 2, i, 4, 64));
                    n += 1;
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        n
    });
    for round in 0..10 {
        assert!(until(&mut b, |b| b.peers.last().unwrap().sent() > 100), "round {round}");
        let port = b.dp.del_port(1).unwrap();
        let peer = b.peers.pop().unwrap();
        assert_eq!(peer.queues_alive(), 0);
        drop(port);
        peer.drain();
        let gone = b.dp.totals().drops[Drop::NoPort as usize];
        assert!(until(&mut b, |b| b.dp.totals().drops[Drop::NoPort as usize] > gone));
        let (port, peer) = datapath::testing::ring_port("p1", Service::Poll, 1, 1, b.pool.clone());
        b.dp.add_port_at(1, port, RxAffinity::default()).unwrap();
        b.peers.push(peer);
        b.dp.set_pmd_cores(if round % 2 == 0 { &[1] } else { &[0, 1] }).unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let sent = sender.join().unwrap();
    assert!(until(&mut b, |b| b.peers[0].pending() == 0 && b.dp.totals().rx_packets == sent));
    assert!(
        until(&mut b, |b| {
            let (i, o) = b.dp.totals().balance();
            i == o
        }),
        "{:?}",
        b.dp.totals()
    );
    let mut credited = 0;
    assert!(
        until(&mut b, |b| {
            b.dp.collect(&mut |u| credited += u.packets);
            credited == sent
        }),
        "{credited} of {sent}"
    );
    b.peers.iter().for_each(|p| drop(p.drain()));
    assert!(until(&mut b, |b| b.pool.in_use() == 0), "{} leaked", b.pool.in_use());
}

#[test]
fn queues_are_placed_pinned_and_moved() {
    let mut b = live(0, &[0, 1]);
    let no = b.add_queues("nic", Service::Poll, 4, 4);
    assert!(until(&mut b, |b| b.dp.rxq_info().iter().all(|q| q.worker.is_some())));
    let on = |b: &Bed, core| {
        b.dp.rxq_info().iter().filter(|q| q.worker == Some(WorkerId::Pmd(core))).count()
    };
    assert_eq!((on(&b, 0), on(&b, 1)), (2, 2));
    b.dp.set_affinity(no, RxAffinity([(3, 1)].into())).unwrap();
    assert!(until(&mut b, |b| (on(b, 0), on(b, 1)) == (3, 1)));
    assert!(b.dp.pmd_info().iter().any(|p| p.worker == WorkerId::Pmd(1) && p.isolated));
    b.dp.set_pmd_cores(&[0]).unwrap();
    assert_eq!((on(&b, 0), on(&b, 1)), (4, 0));
    b.dp.set_affinity(no, RxAffinity::default()).unwrap();
    b.dp.set_pmd_cores(&[]).unwrap();
    assert!(b.dp.rxq_info().iter().all(|q| q.worker.is_none()));
    b.dp.set_pmd_cores(&[1]).unwrap();
    publish(&mut b, vec![from(no, vec![Op::Output(no)])]);
    (0..4).for_each(|q| b.peers[0].send_on(q, &udp(1, 2, 3, 4, 64)));
    assert!(until(&mut b, |b| b.peers[0].sent() == 4), "{:?} {:?}", b.dp.totals(), b.dp.rxq_info());
}

#[test]
fn an_idle_change_is_quick_and_a_busy_one_exact() {
    let mut b = live(3, &[0]);
    let idle = (0..20).map(|_| publish(&mut b, vec![from(0, vec![Op::Output(1)])])).min().unwrap();
    assert!(idle < Duration::from_millis(2), "{idle:?}");
    for round in 0..100 {
        let (port, old) = (1 + round % 2, 2 - round % 2);
        let quiet = b.peers[old].sent();
        let to = rule(&[(Field::EthType, 0x800)], vec![Op::Output(port as u16)], 1);
        publish(&mut b, vec![to]);
        let before = b.peers[port].sent();
        for i in 0..8 {
            b.peers[0].send(&udp(1, 2, i, 4, 64));
        }
        assert!(until(&mut b, |b| b.peers[port].sent() == before + 8), "round {round}");
        assert_eq!(b.peers[old].sent(), quiet, "round {round}");
    }
}

#[test]
fn shutdown_returns_everything() {
    let mut b = live(2, &[0, 1]);
    publish(&mut b, vec![from(0, vec![Op::Output(1)])]);
    for i in 0..100 {
        b.peers[0].send(&udp(1, 2, i, 4, 64));
    }
    assert!(until(&mut b, |b| b.peers[1].sent() == 100));
    b.dp.shutdown();
    assert!(b.peers.iter().all(|p| p.queues_alive() == 0));
    let mut n = 0;
    b.dp.collect(&mut |u| n += u.packets);
    assert_eq!(n, 100);
    b.assert_balanced();
    b.peers[1].drain();
    assert_eq!(b.pool.in_use(), 0);
}
