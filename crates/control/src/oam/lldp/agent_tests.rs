//! What one interface hears and says.

use super::*;

/// A neighbour's data unit.
fn unit(port: &str, ttl: u16) -> Vec<u8> {
    let (mac, port) = ([2, 0, 0, 0, 0, 9], port.into());
    let own = LldpSelf { mac, port, ttl, description: "x\u{1b}[2Jy".into(), ..LldpSelf::default() };
    own.write().0
}

fn agent() -> Agent {
    let assignments = [(1, 10), (0xff_ffff, 4094)].into_iter().collect();
    Agent::new(LldpConf { name: "br".into(), description: "d".into(), assignments }, 1000)
}

#[test]
fn it_speaks_at_once_and_every_five_seconds() {
    let mut a = agent();
    let mut said = 0;
    for now in 1000..21_000 {
        if let Some((frame, left_out)) = a.transmit("p1", [2; 6], now) {
            let (read, unknown) = read_lldp(&frame);
            let unit = read.expect("a data unit");
            assert_eq!((unit.ttl, unit.assignments.len(), unknown, left_out), (TTL_S, 2, 0, 0));
            assert_eq!((now - 1000) % INTERVAL_MS, 0);
            said += 1;
        }
    }
    assert_eq!((said, a.counts.sent), (4, 4));
}

#[test]
fn neighbours_are_few_and_go_when_they_said() {
    let mut a = agent();
    let hear =
        |a: &mut Agent, port: &str, ttl, now| assert_eq!(a.receive(&unit(port, ttl), now), None);
    for n in 0..NEIGHBOURS_MAX + 3 {
        hear(&mut a, &format!("p{n}"), 10, 1000);
    }
    assert_eq!(a.neighbours.len(), NEIGHBOURS_MAX);
    assert_eq!((a.counts.inserted, a.counts.dropped), (NEIGHBOURS_MAX as u64, 3));
    hear(&mut a, "p0", 30, 5000);
    hear(&mut a, "p1", 0, 5000);
    assert_eq!((a.neighbours.len(), a.counts.deleted), (NEIGHBOURS_MAX - 1, 1));
    a.transmit("p", [2; 6], 10_990);
    assert_eq!(a.wake(10_990), 11_000, "when the first of them go");
    a.expire(10_999);
    assert_eq!(a.neighbours.len(), NEIGHBOURS_MAX - 1);
    a.expire(11_000);
    assert_eq!((a.neighbours.len(), a.counts.aged_out), (1, NEIGHBOURS_MAX as u64 - 2));
    assert!(a.show_servers().contains("Descr: x?[2Jy\n"), "{}", a.show_servers());
}

#[test]
fn who_says_too_much_is_not_heard() {
    let mut a = agent();
    let flood = |a: &mut Agent, now| {
        (0..1000).filter(|_| a.hears(now) && a.receive(&unit("p", 10), now).is_none()).count()
    };
    assert_eq!(flood(&mut a, 1000) as u64, HEARD_BURST);
    assert!(!a.hears(1000) && !a.gate().is_open(), "its worker drops the rest");
    assert_eq!(a.wake(1000).min(1000 + HEARD_PRICE_MS), a.wake(1000));
    let second: usize = (1001..=2000).map(|now| flood(&mut a, now)).sum();
    assert_eq!(second as u64, 1000 / HEARD_PRICE_MS);
    assert!(a.hears(1_000_000) && a.gate().is_open());
}

#[test]
fn what_is_none_is_counted_and_said_now_and_then() {
    let mut a = agent();
    let cut = &unit("p", 10)[..40];
    let said = (0..1000).filter(|_| a.receive(cut, 1000).is_some()).count();
    assert_eq!((said as u64, a.counts.discarded), (SAID_BURST, 1000));
    assert!(a.neighbours.is_empty());
    let text = a.show_statistics();
    assert!(text.contains("  rx cnt: 1000\n  rx discarded cnt: 1000\n"), "{text}");
}

#[test]
fn what_the_server_says_of_mappings_is_shown() {
    let mut a = agent();
    let rows = |a: &Agent| a.show_isids().lines().skip(2).map(str::to_owned).collect::<Vec<_>>();
    let pending = |isid, vlan| format!("{isid:<8} {vlan:<4} Switch      Pending    ");
    assert_eq!(rows(&a), [pending(1, 10), pending(0xff_ffff, 4094)]);
    let assignments = vec![(1, 10)];
    let own =
        LldpSelf { mac: [9; 6], port: "s".into(), ttl: 10, assignments, ..LldpSelf::default() };
    let (mut frame, _) = own.write();
    let at = frame.len() - 2 - 5;
    frame[at] |= 2 << 4;
    assert_eq!(a.receive(&frame, 1000), None);
    assert_eq!(rows(&a)[0], "1        10   Switch      Active     ");
}
