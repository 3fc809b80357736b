//! What the end-to-end tests share: a switch in a namespace of its own, hosts on cables, guests,
//! and the stock tools in short form.

#![allow(dead_code, unused_imports)]

mod adapter;
mod dissect;
mod guest;
mod linux;
mod traffic;

pub use adapter::{generator, reasons_add_up};
pub use dissect::dissect;
pub use guest::{BareGuests, Guest, Ring};
pub use linux::{Linux, MEMORY, Machine};
pub use traffic::{Pinger, transfer};

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testkit::{Netns, Probe, Switch, SwitchConfig, veth};

/// How long something that happens by itself may take on a busy machine.
pub const WAIT_TIME_MAX: Duration = Duration::from_secs(40);
/// Silence after which no more frames are expected.
pub const QUIET: Duration = Duration::from_millis(250);

/// One test of a program at a time: two switches that poll would fight for the same cores.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A daemon and its database in this namespace.
pub fn start(ns: &Netns) -> Switch<'_> {
    Switch::start(ns, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap()
}

/// A switch whose ports v1 to v`ports` end at probes e1 to e`ports`, with NORMAL as its only flow.
pub fn start_with_ports<'a>(ns: &'a Netns, far: &Netns, ports: u32) -> (Switch<'a>, Probe) {
    let sw = start_with_bridge(ns);
    let mut probe = Probe::new();
    for i in 1..=ports {
        let (near, end) = (format!("v{i}"), format!("e{i}"));
        veth((ns, &near), (far, &end)).unwrap();
        ns.ipv6_off(&near).unwrap();
        far.ipv6_off(&end).unwrap();
        probe.add(far, &end).unwrap();
        vsctl(&sw, &format!("add-port br0 {near} -- set interface {near} ofport_request={i}"));
    }
    (sw, probe)
}

/// [`start_with_ports`], of which v1 and v2 send to each other and no other flow is there.
pub fn start_with_probes<'a>(ns: &'a Netns, far: &Netns, ports: u32) -> (Switch<'a>, Probe) {
    let (sw, probe) = start_with_ports(ns, far, ports);
    ofctl(&sw, "del-flows br0");
    ofctl(&sw, "add-flow br0 in_port=1,actions=2");
    ofctl(&sw, "add-flow br0 in_port=2,actions=1");
    (sw, probe)
}

/// [`start`] with bridge `br0`.
pub fn start_with_bridge(ns: &Netns) -> Switch<'_> {
    start_with_bridge_in(ns, &[])
}

/// [`start_with_bridge`] with these variables in the daemon's environment.
pub fn start_with_bridge_in<'a>(ns: &'a Netns, env: &[(&str, &str)]) -> Switch<'a> {
    let mut config = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    config.env.extend(env.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    let sw = Switch::start(ns, config).unwrap();
    add_bridge(&sw, "br0");
    sw
}

/// Lets PMD threads sleep while little comes: one that never does leaves a guest, which polls too
/// and goes last, so small a part of its core that answers take longer than they are waited for.
pub fn let_pmd_threads_sleep(sw: &Switch) {
    vsctl(sw, "set Open_vSwitch . other_config:pmd-sleep-max=100");
}

/// Adds a bridge.
pub fn add_bridge(sw: &Switch, name: &str) {
    vsctl(sw, &format!("add-br {name} -- set bridge {name} datapath_type=netdev"));
}

/// `ovs-vsctl ARGS`, arguments separated by spaces.
pub fn vsctl(sw: &Switch, args: &str) -> String {
    let words: Vec<&str> = args.split_whitespace().collect();
    sw.vsctl(&words).unwrap().trim().to_string()
}

/// `ovs-ofctl ARGS`, arguments separated by spaces.
pub fn ofctl(sw: &Switch, args: &str) -> String {
    let words: Vec<&str> = args.split_whitespace().collect();
    sw.ofctl(&words).unwrap()
}

/// `ovs-appctl ARGS`, arguments separated by spaces.
pub fn appctl(sw: &Switch, args: &str) -> String {
    let words: Vec<&str> = args.split_whitespace().collect();
    sw.appctl(&words).unwrap()
}

/// A column of an interface, without the quotes around a text.
pub fn iface(sw: &Switch, name: &str, column: &str) -> String {
    let text = sw.vsctl(&["get", "interface", name, column]).unwrap();
    text.trim().trim_matches('"').to_string()
}

/// A number in an interface's `statistics` column, if it is there.
pub fn statistic(sw: &Switch, name: &str, key: &str) -> Option<u64> {
    let key = format!("statistics:{key}");
    let text = sw.vsctl(&["--if-exists", "get", "interface", name, &key]).unwrap();
    text.trim().parse().ok()
}

/// Tries until it holds; says what was waited for when it does not in time.
pub fn wait_for(what: &str, holds: impl FnMut() -> bool) -> Duration {
    wait_within(what, WAIT_TIME_MAX, holds)
}

/// Waits until it holds, for as long as `limit`; returns how long that took.
pub fn wait_within(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

/// A host: a namespace whose `eth0` has address 10.0.0.N/24 and a cable to device `vN` in `at`.
pub fn host(at: &Netns, n: u8) -> Netns {
    let ns = Netns::new().unwrap();
    veth((at, &format!("v{n}")), (&ns, "eth0")).unwrap();
    ns.ip(&format!("addr add 10.0.0.{n}/24 dev eth0")).unwrap();
    ns.ip(&format!("link set eth0 address 02:00:00:00:00:{n:02x}")).unwrap();
    ns
}

/// A host whose cable is a port of `br0` of the same name.
pub fn host_on(at: &Netns, sw: &Switch, n: u8) -> Netns {
    let ns = host(at, n);
    vsctl(sw, &format!("add-port br0 v{n}"));
    ns
}

/// The address of host N.
pub fn addr(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

/// Host N answers.
pub fn ping(from: &Netns, n: u8) -> Duration {
    from.ping(addr(n), WAIT_TIME_MAX).unwrap()
}

/// Counters of `coverage/show` by name.
pub fn coverage(sw: &Switch, name: &str) -> u64 {
    let text = appctl(sw, "coverage/show");
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name));
    line.and_then(|l| l.rsplit("total: ").next()?.trim().parse().ok()).unwrap_or(0)
}

/// Packet buffers that the switch holds.
pub fn buffers(sw: &Switch) -> u64 {
    let text = appctl(sw, "memory/show");
    let word = text.split_whitespace().find_map(|w| w.strip_prefix("packets:"));
    word.expect("memory/show tells packets").parse().unwrap()
}
