//! `pmd-auto-lb`: queues that share a busy core are separated, without loss or reordering.
mod common;

use action::Op;
use common::*;
use datapath::{AutoLb, RxqAssign, Settings, WorkerId, now_ms};
use port::Service;

/// Packets of a queue per round.
const BURST: u16 = 40;
/// Rounds of five seconds: a minute of load, and the next.
const ROUNDS: u16 = 26;

fn worker_of(b: &Bed, port: u16, queue: usize) -> Option<WorkerId> {
    b.dp.rxq_info().into_iter().find(|q| (q.port, q.queue) == (port, queue))?.worker
}

/// Two queues of a port that one worker has.
fn together(b: &Bed, port: u16) -> [usize; 2] {
    let on = |q| worker_of(b, port, q);
    let pairs = (0..4).flat_map(|i| (i + 1..4).map(move |j| [i, j]));
    pairs.into_iter().find(|[i, j]| on(*i) == on(*j)).expect("four queues on two cores")
}

fn run(auto_lb: Option<AutoLb>) -> (bool, Bed) {
    let mut b = bed_with(2, true, &[0, 1]);
    b.dp.set_settings(Settings { rxq_assign: RxqAssign::Group, auto_lb, ..Settings::default() });
    let many = b.add_queues("many", Service::Poll, 4, 2);
    b.set_rules(vec![rule(&[], vec![Op::Output(1)], 1)]);
    b.run();
    let hot = together(&b, many);
    let start = now_ms();
    for round in 0..ROUNDS {
        for n in 0..BURST {
            for q in hot {
                b.peers[2].send_on(q, &udp(1, 2, q as u16, round * BURST + n, 64));
            }
        }
        b.dp.step();
        b.dp.poll(start + u64::from(round + 1) * 5000);
    }
    b.run();
    let out = b.peers[1].drain();
    assert_eq!(out.len(), usize::from(ROUNDS * BURST) * 2, "nothing is lost");
    for q in hot {
        let mine = out.iter().filter(|p| p[34..36] == (q as u16).to_be_bytes());
        let order: Vec<u16> = mine.map(|p| u16::from_be_bytes([p[36], p[37]])).collect();
        assert!(order.is_sorted(), "queue {q} stays in order");
    }
    let apart = worker_of(&b, many, hot[0]) != worker_of(&b, many, hot[1]);
    (apart, b)
}

#[test]
fn busy_queues_are_separated() {
    let always = AutoLb { load_threshold: 0, ..AutoLb::default() };
    let (apart, b) = run(Some(always));
    assert!(apart);
    b.assert_balanced();
}

#[test]
fn queues_stay_below_the_threshold_and_when_it_is_off() {
    assert!(!run(None).0);
    assert!(!run(Some(AutoLb { load_threshold: 101, ..AutoLb::default() })).0);
    assert!(!run(Some(AutoLb { load_threshold: 0, improvement: 101, ..AutoLb::default() })).0);
}
