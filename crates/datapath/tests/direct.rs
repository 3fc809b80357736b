//! Ports whose new flows hardly ever come back.
mod common;

use action::Op;
use common::*;
use datapath::{Event, Perf, Settings, WorkerId};
use flow::Field;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A test that waits longer failed.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

const OTHERS: u32 = 100;

/// Ports 0 and 1, and rules that look at the whole source address.
fn switch() -> Bed {
    let mut b = bed(2);
    let source = [(Field::EthType, 0x0800), (Field::Ipv4Src, 1)];
    let ip = [(Field::EthType, 0x0800)];
    b.set_rules(vec![rule(&source, vec![], 5), rule(&ip, vec![Op::Output(1)], 7)]);
    b
}

fn perf(b: &Bed) -> Perf {
    let mut all = b.dp.perf().into_iter();
    all.find(|(w, _)| *w != WorkerId::Kernel).expect("a PMD thread").1
}

/// Packets of which a megaflow was found; in the signature cache too: it is on where a miss takes
/// long.
fn hits(b: &Bed) -> u64 {
    let p = perf(b);
    p.flow_hits + p.cache_hits
}

/// Sends `n` packets of flows that were never seen; every third one is of a kind that the pipeline
/// does not decide about alone.
fn send_new(b: &mut Bed, sent: &mut u32, n: u32) {
    for _ in 0..n {
        *sent += 1;
        b.peers[0].send(&udp(0x0b00_0000 + *sent, 9, 1, (80 + *sent % 3) as u16, 64));
    }
}

/// Sends new flows until direct mode took some of them; how many packets that was.
fn until_direct(b: &mut Bed) -> u32 {
    let (end, mut sent) = (Instant::now() + WAIT_TIME_MAX, 0);
    while perf(b).direct < 10_000 {
        assert!(Instant::now() < end, "{:?}", perf(b));
        send_new(b, &mut sent, 400);
        b.run();
        assert_eq!(b.peers[1].drain().len(), 400);
    }
    sent
}

#[test]
fn flows_that_do_not_come_back_are_decided_about_and_counted() {
    let mut b = switch();
    let sent = until_direct(&mut b);
    let p = perf(&b);
    assert_eq!(p.direct, b.rules.alone.load(Ordering::Relaxed));
    assert_eq!(p.misses - p.direct, b.rules.resolved.load(Ordering::Relaxed));
    assert!(p.direct < u64::from(sent / 3 * 2), "some flows are looked at");
    let sent = u64::from(sent);
    assert_eq!(b.credits(), [(7, (sent, 64 * sent))].into());
    b.assert_balanced();
}

#[test]
fn flows_that_begin_to_come_back_are_stored() {
    let mut b = switch();
    let (end, mut sent) = (Instant::now() + WAIT_TIME_MAX, until_direct(&mut b));
    loop {
        send_new(&mut b, &mut sent, OTHERS);
        b.run();
        let before = hits(&b);
        (0..OTHERS).for_each(|i| b.peers[0].send(&udp(0x0c00_0000 + i, 9, 1, 80, 64)));
        b.run();
        if hits(&b) - before == u64::from(OTHERS) {
            break;
        }
        assert!(Instant::now() < end, "{:?}", perf(&b));
    }
}

#[test]
fn flows_that_come_back_late_are_stored() {
    const FLOWS: u32 = 20_000;
    let mut b = switch();
    until_direct(&mut b);
    let hits = (0..12).map(|_| {
        let before = hits(&b);
        for first in (0..FLOWS).step_by(OTHERS as usize) {
            for i in first..first + OTHERS {
                b.peers[0].send(&udp(0x0c00_0000 + i, 9, 1, 80, 64));
            }
            b.run();
            // They come back when the changing sample is another.
            std::thread::sleep(Duration::from_millis(3));
        }
        hits(&b) - before
    });
    let hits: Vec<_> = hits.take_while(|hits| *hits < u64::from(FLOWS) * 9 / 10).collect();
    assert!(hits.len() < 12, "{hits:?} of {FLOWS}: {:?}", perf(&b));
}

/// Ever more flows that come back at once, beside as many packets of others. Those in the sample
/// that stays must not be cured alone: few of it would be missed at any time.
#[test]
fn flows_that_come_back_beside_new_ones_are_stored() {
    const FLOWS: usize = 2_000;
    const EACH: usize = 4 * OTHERS as usize;
    const ROUNDS: usize = 1000;
    let mut b = switch();
    let (mut sent, mut next) = (until_direct(&mut b), 0);
    let hits = (1..=ROUNDS).map(|round| {
        let before = hits(&b);
        for _ in 0..EACH / OTHERS as usize {
            for _ in 0..OTHERS {
                next = (next + 1) % FLOWS.min(40 * round);
                b.peers[0].send(&udp(0x0c00_0000 + next as u32, 9, 1, 80, 64));
            }
            send_new(&mut b, &mut sent, OTHERS);
            b.run();
        }
        (round, hits(&b) - before)
    });
    let open = |(round, hits): &(usize, u64)| 40 * round < FLOWS || *hits < EACH as u64 * 9 / 10;
    let hits: Vec<_> = hits.take_while(open).collect();
    assert!(hits.len() < ROUNDS, "{:?} of {EACH}: {:?}", hits.last(), perf(&b));
}

/// Differences that validation found, in words.
fn differences_found(b: &mut Bed) -> Vec<String> {
    let mut found = Vec::new();
    b.dp.drain_events(usize::MAX, &mut |e| {
        if let Event::Differs(how) = e {
            found.push(how.to_string());
        }
        1
    });
    found
}

#[test]
fn what_is_decided_alone_is_validated() {
    let mut b = switch();
    b.dp.set_settings(Settings { validate: true, ..Settings::default() });
    let mut sent = until_direct(&mut b);
    let p = perf(&b);
    assert_eq!(
        (p.direct_validated, p.differences),
        (p.direct, 0),
        "{:?}",
        differences_found(&mut b)
    );
    b.rules.lie.store(100, Ordering::Relaxed);
    while perf(&b).direct < p.direct + 200 {
        send_new(&mut b, &mut sent, 100);
        b.run();
    }
    let now = perf(&b);
    assert_eq!(now.direct_validated, now.direct);
    assert_eq!(now.differences, now.direct.div_ceil(100) - p.direct.div_ceil(100));
    let found = differences_found(&mut b);
    assert_eq!(found.len() as u64, now.differences);
    assert!(
        found[0].starts_with("direct: [Output(1)], None, credits [7, 99], no effects instead"),
        "{found:?}"
    );
}
