//! One port begins connections that are not answered, through `ct`.

use crate::lab::*;
use crate::measure::*;
use testkit::{Frame, L4, Net, Netns, Raw, Switch, V4, privileged};

/// Frames a second: each begins a connection, of a flow that was never seen.
const RATE: u32 = if cfg!(debug_assertions) { 1000 } else { 10_000 };
/// How many connections are begun.
const CONNECTIONS: u64 = 60_000;
/// Connections that there may be. A quarter of them may be half-open in one zone, and half of these
/// from one port.
const CONNECTIONS_MAX: usize = 8192;
const HALF_OPEN_MAX: usize = CONNECTIONS_MAX / 4 / 2;
const SYN: u16 = 2;

fn frame(n: u64) -> Vec<u8> {
    let from = [10, 1, (n >> 8) as u8, n as u8];
    let port = 1024 + (n >> 16) as u16;
    let ip = V4::new(from, [10, 0, 0, 4], L4::Tcp(port, 80, 1, 0, SYN, vec![]));
    Frame::new([2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4], Net::V4(ip)).bytes()
}

/// Everything that is IP goes through a zone.
fn track(sw: &Switch<'_>, bridge: &str, zone: u16) {
    ofctl(sw, &format!("add-flow {bridge} priority=1,arp,actions=normal"));
    ofctl(
        sw,
        &format!("add-flow {bridge} priority=2,ip,ct_state=-trk,actions=ct(table=1,zone={zone})"),
    );
    for (state, actions) in
        [("+new", format!("ct(commit,zone={zone}),normal")), ("+est", "normal".into())]
    {
        ofctl(sw, &format!("add-flow {bridge} table=1,ip,ct_state=+trk{state},actions={actions}"));
    }
}

/// Connections to an address.
fn connections(sw: &Switch<'_>, to: u8) -> usize {
    let all = appctl(sw, "dpctl/dump-conntrack");
    all.lines().filter(|c| c.contains(&format!(",dst=10.0.0.{to},"))).count()
}

/// The attacker is on this bridge, whose connections are in zone 1; the victim's are on bridge
/// `victim`, in its zone.
fn flood(what: &str, bridge: &str, zones: &[(&str, u16)]) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let victim = Victim::new(&ns, &sw);
    let [evil, _other] = [3, 4].map(|n| {
        let host = host(&ns, n);
        vsctl(&sw, &format!("add-port {bridge} v{n}"));
        host
    });
    zones.iter().for_each(|(bridge, zone)| track(&sw, bridge, *zone));
    appctl(&sw, &format!("dpctl/ct-set-maxconns {CONNECTIONS_MAX}"));
    let raw = || Raw::open(&evil, "eth0").unwrap();
    judge(
        what,
        &victim,
        || vec![Traffic::start(raw(), RATE, |i| frame(i % 4))],
        || vec![Traffic::start(raw(), RATE, |i| frame(i % CONNECTIONS))],
    );
    let (evil, good) = (connections(&sw, 4), connections(&sw, 2));
    println!("{what}: {evil} connections, beside {good} of the victim");
    assert!((HALF_OPEN_MAX / 2..=HALF_OPEN_MAX).contains(&evil), "{evil} connections");
    assert!(good > 0);
}

#[test]
fn another_zone_does_not_notice() {
    flood("SYN flood", "br0", &[("br0", 1), ("victim", 2)]);
}

#[test]
fn another_port_of_the_zone_does_not_notice() {
    flood("SYN flood in the victim's zone", "victim", &[("victim", 1)]);
}
