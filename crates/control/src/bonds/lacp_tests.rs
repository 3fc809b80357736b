use super::super::pdu;
use super::*;

fn conf(id: u8, active: bool) -> Conf {
    Conf { active, fast: true, system_id: [id; 6], system_priority: 65534, fallback_ab: false }
}

/// A port whose interfaces have these names, with their links up.
fn port(conf: Conf, names: &[&str]) -> Lacp {
    let mut lacp = Lacp::new(conf);
    for (n, name) in (1..).zip(names) {
        lacp.set_member(name, MemberConf { port_id: n, priority: 65535, key: 7 }, 0);
        lacp.set_carrier(name, true, 0);
    }
    lacp
}

/// Delivers what each end sends at `now`: `join` says to which end an interface's link leads, whose
/// interface there has the same name.
fn exchange(ends: &mut [&mut Lacp], now: u64, join: impl Fn(usize, &str) -> Option<usize>) {
    for end in ends.iter_mut() {
        end.run(now);
    }
    let sent: Vec<_> = ends.iter_mut().map(|end| end.transmit(now)).collect();
    for (i, all) in sent.into_iter().enumerate() {
        for (name, actor, partner) in all {
            let frame = pdu::frame([1; 6], &actor, &partner);
            if let Some(to) = join(i, &name) {
                assert_eq!(ends[to].receive(&name, &pdu::read(&frame), now), None);
            }
        }
    }
    for end in ends.iter_mut() {
        end.run(now);
    }
}

fn talk(a: &mut Lacp, b: &mut Lacp, times: std::ops::Range<u64>) {
    times.for_each(|t| exchange(&mut [a, b], t * 100, |i, _| Some(1 - i)));
}

fn works(lacp: &Lacp, names: &[&str]) -> bool {
    lacp.is_negotiated() && names.iter().all(|n| lacp.may_enable(n) && lacp.is_current(n))
}

const BOTH: &[&str] = &["p1", "p2"];

#[test]
fn two_ports_agree() {
    for (a, b) in [(true, true), (true, false), (false, true)] {
        let (mut one, mut two) = (port(conf(1, a), BOTH), port(conf(2, b), BOTH));
        talk(&mut one, &mut two, 0..12);
        assert!(works(&one, BOTH) && works(&two, BOTH), "{}{}", one.show("a"), two.show("b"));
    }
    let (mut one, mut two) = (port(conf(1, false), BOTH), port(conf(2, false), BOTH));
    talk(&mut one, &mut two, 0..50);
    assert!(!one.is_negotiated() && !two.is_negotiated(), "neither begins");
}

#[test]
fn a_partner_that_falls_silent_is_left() {
    let (mut one, mut two) = (port(conf(1, true), BOTH), port(conf(2, true), BOTH));
    talk(&mut one, &mut two, 0..12);
    let cut = |i: usize, name: &str| (name == "p2").then_some(1 - i);
    (12..50).for_each(|t| exchange(&mut [&mut one, &mut two], t * 100, cut));
    assert!(!one.may_enable("p1") && one.may_enable("p2"), "{}", one.show("a"));
    assert!(one.show("a").contains("member: p1: expired"));
    (50..90).for_each(|t| exchange(&mut [&mut one, &mut two], t * 100, cut));
    assert!(one.show("a").contains("member: p1: defaulted detached"), "{}", one.show("a"));
    // Neither hurries to talk to one that is not there.
    talk(&mut one, &mut two, 90..390);
    assert!(works(&one, BOTH) && works(&two, BOTH));
    let stats = one.show_stats("a");
    assert!(stats.contains("Link Expired: 1") && stats.contains("Link Defaulted: 1"), "{stats}");
}

#[test]
fn links_to_two_systems_are_no_aggregate() {
    let mut one = port(conf(1, true), BOTH);
    let (mut two, mut three) = (port(conf(2, true), BOTH), port(conf(3, true), BOTH));
    let join = |i: usize, name: &str| match (i, name) {
        (0, "p1") => Some(1),
        (0, _) => Some(2),
        (1, "p1") | (2, "p2") => Some(0),
        _ => None,
    };
    (0..20).for_each(|t| exchange(&mut [&mut one, &mut two, &mut three], t * 100, join));
    assert_eq!(BOTH.iter().filter(|n| one.may_enable(n)).count(), 1, "{}", one.show("a"));
}

#[test]
fn an_own_link_is_found_out() {
    let mut one = port(conf(1, true), BOTH);
    for t in 0..20 {
        one.run(t * 100);
        for (name, actor, partner) in one.transmit(t * 100) {
            let other = if name == "p1" { "p2" } else { "p1" };
            one.receive(other, &Pdu::Lacp { actor, partner }, t * 100);
        }
    }
    assert!(one.take_loop() && !one.take_loop());
    assert!(BOTH.iter().all(|n| !one.may_enable(n)));
}

#[test]
fn without_a_partner_an_interface_may_work_alone() {
    let mut one = port(Conf { fallback_ab: true, ..conf(1, true) }, BOTH);
    (0..100).for_each(|t| exchange(&mut [&mut one], t * 100, |_, _| None));
    assert!(!one.is_negotiated() && BOTH.iter().all(|n| one.may_enable(n)));
    let mut one = port(conf(1, true), BOTH);
    (0..100).for_each(|t| exchange(&mut [&mut one], t * 100, |_, _| None));
    assert!(BOTH.iter().all(|n| !one.may_enable(n)));
}

/// However much comes in, no more goes out than the protocol's rate and what a change asks for.
#[test]
fn a_partner_that_changes_its_mind_causes_one_answer_per_packet() {
    let mut one = port(conf(1, true), &["p1"]);
    one.run(0);
    one.transmit(0);
    let mut sent = 0;
    let gate = one.gate("p1").cloned().unwrap();
    for n in 0..1000u16 {
        if !one.hears("p1", 10) {
            break;
        }
        let actor = Info { sys_id: [2; 6], key: n, ..Info::default() };
        let pdu = Pdu::Lacp { actor, partner: Info { key: n, ..Info::default() } };
        assert_eq!(one.receive("p1", &pdu, 10), None);
        one.run(10);
        sent += one.transmit(10).len();
    }
    assert_eq!((sent, gate.is_open()), (16, false));
    // Six a second are heard after that, however many come.
    let heard = (10..10_010)
        .filter(|now| one.hears("p1", *now) && one.receive("p1", &Pdu::Marker, *now).is_none());
    assert_eq!(heard.count(), 60);
    one.run(11_000);
    assert!(gate.is_open(), "without a packet, too");
    assert_eq!(one.receive("p1", &Pdu::Bad, 10), Some("received an unparsable LACP PDU."));
    assert_eq!(one.receive("nosuch", &Pdu::Bad, 10), None);
}
