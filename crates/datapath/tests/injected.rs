//! Packets of the control side, of which each turn of the worker executes some operations.
mod common;

use action::Op;
use common::*;
use flow::{Field, NO_PORT, at};
use telemetry::Drop;

/// Operations of a turn.
const TURN: usize = 256;

fn outputs(to: u16, n: usize) -> Vec<Op> {
    vec![Op::Output(to); n]
}

/// Steps until nothing is left of what was injected; at most how many copies a step made, and how
/// many steps it took. What is on the wire says less: sends wait where they take long.
fn inject(b: &mut Bed, mut each: impl FnMut(&mut Bed)) -> (u64, usize) {
    let (mut most, mut steps) = (0, 0);
    while steps == 0 || !b.dp.has_injected(b.dp.injected()) {
        each(b);
        let before = b.dp.totals().copies;
        b.step(1);
        most = most.max(b.dp.totals().copies - before);
        steps += 1;
    }
    (most, steps)
}

/// All that is sent to a port until nothing moves any more, and there is something.
fn all_sent(b: &mut Bed, peer: usize, at_least: usize) -> Vec<Vec<u8>> {
    let (mut all, mut more) = (Vec::new(), true);
    while more || all.len() < at_least {
        b.run();
        let some = b.peers[peer].drain();
        more = !some.is_empty();
        all.extend(some);
    }
    all
}

#[test]
fn a_packet_of_very_many_outputs_goes_in_turns_and_others_go_meanwhile() {
    const OUTPUTS: usize = 4000;
    let mut b = bed(4);
    b.set_rules(vec![rule(&[(Field::InPort, 0)], vec![Op::Output(3)], 1)]);
    b.dp.execute(&udp(1, 2, 3, 4, 80), NO_PORT, &outputs(1, OUTPUTS)).unwrap();
    b.dp.execute(&udp(1, 2, 3, 4, 80), NO_PORT, &outputs(2, 1)).unwrap();
    assert!(!b.dp.takes_packets());
    let mut others = 0;
    let (most, steps) = inject(&mut b, |b| {
        assert!(b.peers[2].drain().is_empty(), "packets are sent in their order");
        others += b.peers[3].drain().len();
        b.peers[0].send(&udp(5, 6, 7, 8, 64));
    });
    assert!(most <= TURN as u64 && steps >= OUTPUTS / TURN, "{most} a step, {steps} steps");
    // A queue that had nothing may be polled later.
    assert!(others >= steps / 2, "{others} of {steps}");
    assert!(b.dp.takes_packets());
    assert_eq!(all_sent(&mut b, 1, OUTPUTS).len(), OUTPUTS);
    assert_eq!(all_sent(&mut b, 2, 1).len(), 1);
    all_sent(&mut b, 3, steps - others);
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

fn below(r: &mut u64, n: u64) -> u64 {
    *r = r.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*r >> 33) % n
}

/// A list of about so many operations, and lists inside it.
fn list(r: &mut u64, n: usize, depth: usize) -> Vec<Op> {
    let mut ops = Vec::new();
    while ops.len() < n {
        match below(r, 40) {
            0 => ops.push(Op::PushVlan { tpid: 0x8100, tci: below(r, 4096) as u16 }),
            1 => ops.push(Op::PopVlan),
            2 => ops.extend([Op::Truncate(14 + below(r, 40) as u32), Op::Output(1)]),
            3 if depth > 0 => {
                let (size, len) = (below(r, 120) as u16, below(r, 200) as usize);
                let [more, others] = [0, 1].map(|_| list(r, len, depth - 1).into());
                ops.push(Op::CheckLen { size, more, others });
            }
            4 if depth > 0 => {
                let len = below(r, 200) as usize;
                ops.push(Op::Clone(list(r, len, depth - 1).into()));
            }
            _ => ops.push(Op::Output(1)),
        }
    }
    ops
}

#[test]
fn what_is_done_in_turns_is_what_is_done_at_once() {
    for seed in 0..6 {
        let (mut r, mut b) = (seed, bed(2));
        let ops = list(&mut r, 700, 3);
        b.set_rules(vec![rule(&[], ops.clone(), 1)]);
        let packet = udp(1, 2, 3, 4, 80);
        b.peers[0].send(&packet);
        let mut at_once = all_sent(&mut b, 1, 1);
        b.dp.execute(&packet, NO_PORT, &ops).unwrap();
        let (most, steps) = inject(&mut b, |_| {});
        assert!(most <= TURN as u64 && steps > 1, "seed {seed}: {most} a step, {steps} steps");
        let mut sent = all_sent(&mut b, 1, at_once.len());
        // Copies for lists in lists go on before the rest of the list around them, or after it.
        sent.sort();
        at_once.sort();
        assert!(sent == at_once, "seed {seed}: {} and {}", sent.len(), at_once.len());
        b.assert_balanced();
        assert_eq!(b.pool.in_use(), 0);
    }
}

#[test]
fn lists_that_are_nested_too_deep_to_pause_in_end_there() {
    let mut b = bed(2);
    let deep = (0..6).fold(outputs(1, 1000), |ops, _| vec![Op::Clone(ops.into()), Op::PopVlan]);
    b.dp.execute(&udp(1, 2, 3, 4, 80), NO_PORT, &[deep, outputs(1, 1)].concat()).unwrap();
    b.run();
    let sent = all_sent(&mut b, 1, TURN - 10).len();
    assert!((TURN - 10..TURN + 10).contains(&sent), "{sent}");
    assert!(b.dp.totals().drops[Drop::ResubmitLimit as usize] > 0);
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

/// A packet that is looked up again is done when it is where it goes.
#[test]
fn a_packet_that_is_looked_up_again_is_done_afterwards() {
    let pass = |id: u32, ops| {
        let mut rule = rule(&[], ops, id);
        rule.key.set_u32(at::RECIRC, id);
        rule.mask.set_u32(at::RECIRC, u32::MAX);
        rule
    };
    for busy in [false, true] {
        let mut b = bed(3);
        b.set_rules(vec![
            pass(0, vec![Op::Recirc(2)]),
            pass(1, vec![Op::Recirc(2)]),
            pass(2, vec![Op::Output(1)]),
        ]);
        b.dp.execute(&udp(1, 2, 3, 4, 80), NO_PORT, &[Op::Recirc(1)]).unwrap();
        let (_, steps) = inject(&mut b, |b| {
            (0..300).for_each(|_| {
                if busy {
                    b.peers[0].send(&udp(5, 6, 7, 8, 64))
                }
            });
        });
        assert!(steps <= 8, "{steps}");
        let own = b.peers[1].drain().into_iter().filter(|p| p.len() == 80).count();
        assert_eq!(own, 1, "after {steps} steps, busy: {busy}");
        b.run();
        b.assert_balanced();
    }
}

#[test]
fn a_port_gets_no_packets_that_were_for_another_one() {
    let mut b = bed(2);
    b.dp.execute(&udp(1, 2, 3, 4, 80), NO_PORT, &outputs(1, 1000)).unwrap();
    b.step(1);
    b.dp.del_port(1).unwrap();
    let no = b.add("new", port::Service::Poll);
    assert_eq!(no, 1, "the number is used again");
    b.run();
    assert_eq!((b.peers[1].drain().len(), b.peers[2].drain().len()), (1000, 0));
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}
