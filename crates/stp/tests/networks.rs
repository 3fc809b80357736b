//! Networks come to one tree without a loop on the way: rings, meshes, and generated ones, whose
//! links fail and whose bridges change places.

mod net;

use net::{Bridge, Net};
use proptest::prelude::*;
use stp::bpdu::{Bpdu, Config, frame};
use stp::{BridgeId, State, Stp};

/// Until what was known is forgotten, and ports have listened and learned.
const SETTLES_S: u64 = 20 + 2 * 15 + 10;

fn pair(a: usize, b: usize) -> Vec<(usize, u16)> {
    vec![(a, 10), (b, 10)]
}

fn ring_of_three<B: Bridge>() -> Net<B> {
    // Behind the last bridge is a host: who serves nobody tells of no change.
    let lans = [pair(0, 1), pair(1, 2), pair(2, 0), vec![(2, 10)]];
    Net::new(&[1 << 48, 2 << 48, 3 << 48], &lans)
}

#[test]
fn a_ring_is_cut_at_one_port_and_closes_when_a_link_fails() {
    let mut net: Net<Stp> = ring_of_three();
    net.run(14);
    assert_eq!(net.state(0, 0), State::Listening);
    net.run(2);
    assert_eq!(net.state(0, 0), State::Learning);
    net.run(SETTLES_S);
    net.check();
    // Of the two ends of the link between the bridges that are not root, that of the worse one.
    assert_eq!([net.state(1, 0), net.state(1, 1)], [State::Forwarding, State::Blocking]);
    let before = net.flushes.clone();
    net.set_lan(2, false);
    net.run(31);
    net.check();
    assert_eq!(net.state(1, 1), State::Forwarding);
    net.run(SETTLES_S);
    assert!(net.flushes.iter().zip(&before).all(|(now, then)| now > then), "all forget addresses");
    net.set_lan(2, true);
    net.run(SETTLES_S);
    net.check();
    assert_eq!(net.state(1, 1), State::Blocking);
}

#[test]
fn two_links_between_two_bridges_are_one_and_the_root_moves() {
    let mut net: Net<Stp> = Net::new(&[1 << 48, 2 << 48], &[pair(0, 1), pair(0, 1)]);
    net.run(SETTLES_S);
    net.check();
    assert_eq!([net.state(0, 1), net.state(1, 1)], [State::Forwarding, State::Blocking]);
    net.set_id(1, 1);
    net.run(SETTLES_S);
    net.check();
    assert_eq!([net.state(1, 0), net.state(1, 1)], [State::Blocking, State::Forwarding]);
}

#[test]
fn a_bridge_with_two_ports_in_one_network_uses_one() {
    let mut net: Net<Stp> = Net::new(&[1 << 48], &[pair(0, 0)]);
    net.run(SETTLES_S);
    net.check();
    assert_eq!([net.state(0, 0), net.state(0, 1)], [State::Forwarding, State::Blocking]);
}

#[test]
fn work_is_bounded_by_ports() {
    const PORTS: u16 = 255;
    const STEPS_MAX: u64 = 16;
    let mut stp = <Stp as Bridge>::new(BridgeId(9 << 48));
    (1..=PORTS).for_each(|port| stp.add_port(port, 10, 0));
    (1..=PORTS).for_each(|port| stp.set_link(port, true, 0));
    let steps = |stp: &mut Stp, call: &mut dyn FnMut(&mut Stp)| {
        let before = stp.steps();
        call(stp);
        let bpdus = stp.sends().0.len();
        assert!(bpdus <= 2 * usize::from(PORTS), "{bpdus} BPDUs");
        (stp.steps() - before) / u64::from(PORTS)
    };
    for now in (0..4000).step_by(10) {
        // Each port has another root, and each is better than the one before.
        let port = 1 + (now / 10 % u64::from(PORTS)) as u16;
        let id = BridgeId(8 << 48 | (4000 - now));
        let config = Config { root: id, bridge: id, max_age: 512, ..Config::default() };
        let bytes = frame([2; 6], &Bpdu::Config(config));
        let received = steps(&mut stp, &mut |stp| Bridge::receive(stp, port, &bytes, now));
        let passed = steps(&mut stp, &mut |stp| Bridge::run(stp, now));
        assert!(received <= STEPS_MAX && passed <= STEPS_MAX, "{received} {passed}");
        assert!(received > 0 && passed > 0);
    }
}

/// A change of the network.
#[derive(Clone, Debug)]
enum Event {
    Cut(prop::sample::Index),
    Mend(prop::sample::Index),
    Renumber(prop::sample::Index, u64),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<prop::sample::Index>().prop_map(Event::Cut),
        any::<prop::sample::Index>().prop_map(Event::Mend),
        (any::<prop::sample::Index>(), 0u64..16)
            .prop_map(|(bridge, priority)| Event::Renumber(bridge, priority)),
        (0u64..40).prop_map(Event::Wait),
    ]
}

/// LANs of two to four ports.
fn lans(bridges: usize) -> impl Strategy<Value = Vec<Vec<(usize, u16)>>> {
    let port = (0..bridges, 1u16..30);
    let lan = prop_oneof![
        4 => prop::collection::vec(port.clone(), 2),
        1 => prop::collection::vec(port, 3..5),
    ];
    prop::collection::vec(lan, 1..12)
}

fn changes<B: Bridge>((n, lans): (usize, &[Vec<(usize, u16)>]), events: &[Event], settles_s: u64) {
    let ids: Vec<u64> = (0..n as u64).map(|i| 8 << 48 | i).collect();
    let mut net: Net<B> = Net::new(&ids, lans);
    net.run(settles_s);
    net.check();
    for event in events {
        match event {
            Event::Cut(lan) => net.set_lan(lan.index(lans.len()), false),
            Event::Mend(lan) => net.set_lan(lan.index(lans.len()), true),
            Event::Renumber(bridge, priority) => {
                let bridge = bridge.index(n);
                net.set_id(bridge, priority << 48 | bridge as u64);
            }
            Event::Wait(seconds) => net.run(*seconds),
        }
    }
    net.run(settles_s);
    net.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn generated_networks_become_trees(
        (n, lans) in (1usize..7).prop_flat_map(|n| (Just(n), lans(n))),
        events in prop::collection::vec(event(), 0..8),
    ) {
        changes::<Stp>((n, &lans), &events, SETTLES_S);
    }
}
