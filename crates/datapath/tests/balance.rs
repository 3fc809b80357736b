//! `pmd-auto-lb`: queues that share a busy core are separated, without loss or reordering.
mod common;

use action::Op;
use common::*;
use datapath::{AutoLb, BalanceCheck, RxqAssign, Settings, WorkerId, now_ms};
use port::Service;

/// Packets of a queue per round.
const BURST: u16 = 40;
/// Rounds of five seconds: a minute of load, and the next.
const ROUNDS: u16 = 26;

const ON: AutoLb = AutoLb { enabled: true, interval_min: 1, load_threshold: 95, improvement: 25 };

fn worker_of(b: &Bed, port: u16, queue: usize) -> Option<WorkerId> {
    b.dp.rxq_info().into_iter().find(|q| (q.port, q.queue) == (port, queue))?.worker
}

/// Two queues of a port that one worker has.
fn together(b: &Bed, port: u16) -> [usize; 2] {
    let on = |q| worker_of(b, port, q);
    let pairs = (0..4).flat_map(|i| (i + 1..4).map(move |j| [i, j]));
    pairs.into_iter().find(|[i, j]| on(*i) == on(*j)).expect("four queues on two cores")
}

fn run(auto_lb: AutoLb) -> (bool, Bed) {
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
    let (apart, mut b) = run(AutoLb { load_threshold: 0, ..ON });
    assert!(apart);
    let check = b.dp.take_balance_check().expect("the load was high");
    assert!(matches!(check, BalanceCheck::Compared { .. }), "{check:?}");
    b.assert_balanced();
}

#[test]
fn queues_stay_below_the_threshold_and_when_it_is_off() {
    assert!(!run(AutoLb { load_threshold: 0, ..AutoLb::default() }).0);
    assert!(!run(AutoLb { load_threshold: 101, ..ON }).0);
    let (apart, mut b) = run(AutoLb { load_threshold: 0, improvement: 101, ..ON });
    assert!(!apart && !b.dp.take_balance_check().unwrap().moves_queues());
}

/// One poll after load has been high for a minute.
fn check(b: &mut Bed, minute: &mut u64) -> Option<BalanceCheck> {
    *minute += 2;
    for sample in 0..12 {
        b.dp.poll(now_ms() + *minute * 60_000 + sample * 5000);
    }
    b.dp.take_balance_check()
}

#[test]
fn a_check_says_why_there_is_nothing_to_move() {
    let mut b = bed_with(1, true, &[0, 1]);
    let auto_lb = AutoLb { load_threshold: 0, ..ON };
    let with = |rxq_assign| Settings { rxq_assign, auto_lb, ..Settings::default() };
    b.dp.set_settings(with(RxqAssign::Group));
    let mut minute = 0;
    assert_eq!(check(&mut b, &mut minute), Some(BalanceCheck::TooFew), "one queue for each");
    assert_eq!(check(&mut b, &mut minute), Some(BalanceCheck::Unchanged));
    b.add_queues("many", Service::Poll, 3, 2);
    b.run();
    let found = check(&mut b, &mut minute).unwrap();
    assert!(matches!(found, BalanceCheck::Compared { .. }), "{found:?}");
    b.dp.set_settings(with(RxqAssign::RoundRobin));
    assert_eq!(check(&mut b, &mut minute), Some(BalanceCheck::RoundRobin));
}

#[test]
fn a_placement_is_told_when_it_changes_or_was_asked_for() {
    let mut b = bed_with(1, true, &[0, 1]);
    let first = b.dp.take_polling().expect("ports and threads came");
    assert_eq!(first.cores.len(), 2);
    assert!(first.queues.iter().all(|q| q.core.is_some() && !q.pinned));
    assert_eq!(b.dp.take_polling(), None);
    b.dp.rebalance();
    assert_eq!(b.dp.take_polling(), Some(first));
    let many = b.add_queues("many", Service::Poll, 2, 2);
    assert_eq!(b.dp.take_polling().unwrap().queues.last().unwrap().queue, 1);
    let pins = datapath::RxAffinity([(1, 1)].into());
    b.dp.set_affinity(many, pins).unwrap();
    let last = b.dp.take_polling().unwrap().queues.pop().unwrap();
    assert!(last.pinned && last.core.is_some_and(|(id, _)| id == 1));
}
