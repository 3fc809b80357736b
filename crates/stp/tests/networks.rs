//! Networks come to one tree without a loop on the way: rings, meshes, and generated ones, whose
//! links fail and whose bridges change places.

mod net;

use net::{Bridge, Net};
use proptest::prelude::*;
use stp::bpdu::{Bpdu, Config, GROUP_MAC, Rst, frame};
use stp::{BridgeId, PortState, Rstp, Stp};

/// Until what was known is forgotten, and ports have listened and learned.
const SETTLES_S: u64 = 20 + 2 * 15 + 10;

fn pair(a: usize, b: usize) -> Vec<(usize, u16)> {
    vec![(a, 10), (b, 10)]
}

fn ring_of_three<B: Bridge>() -> Net<B> {
    Net::new(&[1 << 48, 2 << 48, 3 << 48], &[pair(0, 1), pair(1, 2), pair(2, 0)])
}

#[test]
fn a_ring_is_cut_at_one_port_and_closes_when_a_link_fails() {
    let mut net: Net<Stp> = ring_of_three();
    net.run(14);
    assert_eq!(net.state(0, 0), PortState::Listening);
    net.run(2);
    assert_eq!(net.state(0, 0), PortState::Learning);
    net.run(SETTLES_S);
    net.check();
    // Of the two ends of the link between the bridges that are not root, that of the worse one.
    assert_eq!([net.state(1, 0), net.state(1, 1)], [PortState::Forwarding, PortState::Blocking]);
    let before = net.flushes.clone();
    net.set_lan(2, false);
    net.run(31);
    net.check();
    assert_eq!(net.state(1, 1), PortState::Forwarding);
    net.run(SETTLES_S);
    assert!(net.flushes.iter().zip(&before).all(|(now, then)| now > then), "all forget addresses");
    net.set_lan(2, true);
    net.run(SETTLES_S);
    net.check();
    assert_eq!(net.state(1, 1), PortState::Blocking);
}

#[test]
fn two_links_between_two_bridges_are_one_and_the_root_moves() {
    let mut net: Net<Stp> = Net::new(&[1 << 48, 2 << 48], &[pair(0, 1), pair(0, 1)]);
    net.run(SETTLES_S);
    net.check();
    assert_eq!([net.state(0, 1), net.state(1, 1)], [PortState::Forwarding, PortState::Blocking]);
    net.set_id(1, 1);
    net.run(SETTLES_S);
    net.check();
    assert_eq!([net.state(1, 0), net.state(1, 1)], [PortState::Blocking, PortState::Forwarding]);
}

#[test]
fn a_bridge_with_two_ports_in_one_network_uses_one() {
    let mut net: Net<Stp> = Net::new(&[1 << 48], &[pair(0, 0)]);
    net.run(SETTLES_S);
    net.check();
    assert_eq!([net.state(0, 0), net.state(0, 1)], [PortState::Forwarding, PortState::Blocking]);
}

#[test]
fn a_ring_of_rapid_bridges_is_there_at_once_and_again() {
    let mut net: Net<Rstp> = ring_of_three();
    net.run(2);
    net.check();
    assert_eq!([net.state(1, 0), net.state(1, 1)], [PortState::Forwarding, PortState::Blocking]);
    net.set_lan(2, false);
    net.run(1);
    net.check();
    net.set_lan(2, true);
    net.run(3);
    net.check();
    assert_eq!(net.state(1, 1), PortState::Blocking);
}

#[test]
fn a_port_that_comes_forwards_when_no_bridge_was_heard_for_a_while() {
    let mut bridge = <Rstp as Bridge>::new(BridgeId(9 << 48));
    for port in [1, 2] {
        let up = 5000 * u64::from(port);
        bridge.add_port(port, 10, true);
        Bridge::set_link(&mut bridge, port, true, up);
        for now in (up..up + 3000).step_by(100) {
            Bridge::run(&mut bridge, now);
            assert_eq!(Bridge::state(&bridge, port), PortState::Blocking, "{now} ms");
        }
        Bridge::run(&mut bridge, up + 3000);
        assert_eq!(Bridge::state(&bridge, port), PortState::Forwarding);
    }
}

/// Ports visited per port of the bridge, at most, for one BPDU or one look at the clock: each port
/// has another root, and each is better than the one before.
fn steps_max<B: Bridge>(
    ports: u16,
    steps: impl Fn(&B) -> u64,
    make: impl Fn(Config) -> Bpdu,
) -> u64 {
    let mut bridge = B::new(BridgeId(9 << 48));
    (1..=ports).for_each(|port| bridge.add_port(port, 10, true));
    (1..=ports).for_each(|port| bridge.set_link(port, true, 0));
    let mut most = 0;
    let mut measure = |bridge: &mut B, call: &mut dyn FnMut(&mut B)| {
        let before = steps(bridge);
        call(bridge);
        let sent = bridge.sends().0.len();
        assert!(sent <= 4 * usize::from(ports), "{sent} BPDUs");
        let visited = (steps(bridge) - before) / u64::from(ports);
        assert!(visited > 0);
        most = most.max(visited);
    };
    for now in (0..8000).step_by(20) {
        let port = 1 + (now / 20 % u64::from(ports)) as u16;
        let id = BridgeId(8 << 48 | (8000 - now));
        let config = Config { root: id, bridge: id, max_age: 512, ..Config::default() };
        let bytes = frame([2; 6], &make(config));
        measure(&mut bridge, &mut |bridge| bridge.receive(port, &bytes, now));
        measure(&mut bridge, &mut |bridge| bridge.run(now));
    }
    most
}

#[test]
fn work_is_bounded_by_ports() {
    let rst = |config| {
        let rst = Rst::of_config(config);
        Bpdu::Rst(Rst { proposal: true, agreement: true, ..rst })
    };
    for ports in [4, 255] {
        let most = steps_max(ports, Stp::steps, Bpdu::Config);
        assert!(most <= 16, "{ports} ports: {most} by STP");
        for most in
            [steps_max(ports, Rstp::steps, rst), steps_max(ports, Rstp::steps, Bpdu::Config)]
        {
            assert!(most <= 200, "{ports} ports: {most} by RSTP");
        }
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

/// Frames that are BPDUs, more or less.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let head = [&GROUP_MAC[..], &[2; 6], &[0, 39, 0x42, 0x42, 3, 0, 0]].concat();
    let body = prop::collection::vec(any::<u8>(), 0..48);
    (0u8..4, prop_oneof![Just(0u8), Just(2), Just(0x80), any::<u8>()], body)
        .prop_map(move |(version, kind, body)| [&head[..], &[version, kind], &body].concat())
}

fn hears<B: Bridge>(frames: &[(u16, u64, Vec<u8>)]) {
    let (mut bridge, mut now) = (B::new(BridgeId(8 << 48)), 0);
    (1..=4).for_each(|port| bridge.add_port(port, 10, port > 2));
    (1..=4).for_each(|port| bridge.set_link(port, true, now));
    for (port, ms, frame) in frames {
        now += ms;
        bridge.run(now);
        bridge.receive(*port, frame, now);
        assert!(bridge.sends().0.len() <= 40);
    }
}

proptest! {
    #[test]
    fn whatever_is_heard_is_read(
        frames in prop::collection::vec((0u16..6, 0u64..4000, bytes()), 0..40),
    ) {
        hears::<Stp>(&frames);
        hears::<Rstp>(&frames);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn generated_networks_become_trees(
        (n, lans) in (1usize..7).prop_flat_map(|n| (Just(n), lans(n))),
        events in prop::collection::vec(event(), 0..8),
    ) {
        changes::<Stp>((n, &lans), &events, SETTLES_S);
        changes::<Rstp>((n, &lans), &events, SETTLES_S);
    }
}
