//! Spanning trees: loops of patch ports, and of cables to ovs-vswitchd, carry each frame once, and
//! traffic finds another way; what is reported is what ovs-vswitchd reports; a flood of BPDUs on
//! one port is its own loss.

mod lab;

use lab::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testkit::{Frame, Net, Netns, Probe, Raw, Switch, SwitchConfig, privileged, veth};

/// How a protocol is set, and what it calls states.
#[derive(Clone, Copy)]
struct Protocol {
    name: &'static str,
    forwarding: &'static str,
    blocking: &'static str,
    /// Keys of a port's status that do not change by themselves.
    keys: &'static [&'static str],
}

const STP: Protocol = Protocol {
    name: "stp",
    forwarding: "forwarding",
    blocking: "blocking",
    keys: &["status:stp_port_id", "status:stp_state", "status:stp_role"],
};
const RSTP: Protocol = Protocol {
    name: "rstp",
    forwarding: "Forwarding",
    blocking: "Discarding",
    keys: &["rstp_status"],
};

fn weft() -> SwitchConfig {
    SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))
}

/// Gives a bridge a tree with times as short as the protocol allows. The last byte of its address
/// is `mac`.
fn grow(sw: &Switch, p: Protocol, name: &str, priority: u16, mac: u8) {
    let own = |key: &str, value: u16| format!("other_config:{}-{key}={value}", p.name);
    let hello = if p.name == "stp" { own("hello-time", 1) } else { String::new() };
    vsctl(
        sw,
        &format!(
            "set bridge {name} {}_enable=true other_config:hwaddr=02:00:00:00:00:{mac:02x} \
             {} {} {} {hello}",
            p.name,
            own("priority", priority),
            own("forward-delay", 4),
            own("max-age", 6),
        ),
    );
}

/// A bridge with a port that takes no part in the tree, at whose other end is the probe. It is
/// there before the tree: to one that comes later ovs-vswitchd floods nothing.
fn add_host(sw: &Switch, (ns, bridge): (&Netns, &str), near: &str, probe: (&mut Probe, &Netns)) {
    vsctl(sw, &format!("--may-exist add-br {bridge} -- set bridge {bridge} datapath_type=netdev"));
    let (probe, far) = probe;
    let end = near.replace('v', "e");
    veth((ns, near), (far, &end)).unwrap();
    ns.ipv6_off(near).unwrap();
    far.ipv6_off(&end).unwrap();
    probe.add(far, &end).unwrap();
    vsctl(
        sw,
        &format!(
            "add-port {bridge} {near} -- set port {near} other_config:stp-enable=false \
             other_config:rstp-enable=false"
        ),
    );
}

/// How many copies of a broadcast arrive at each end.
fn broadcast(probe: &Probe, from: &str) -> BTreeMap<String, usize> {
    broadcast_until(probe, from, QUIET)
}

/// How many copies of a broadcast arrive at each end until nothing came for `quiet`.
fn broadcast_until(probe: &Probe, from: &str, quiet: Duration) -> BTreeMap<String, usize> {
    static FRAMES: AtomicU32 = AtomicU32::new(0);
    let number = FRAMES.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let payload = Net::Raw(0x88b5, [&number[..], &[7; 100]].concat());
    let frame = Frame::new([2, 0, 0, 0, 9, from.as_bytes()[1]], [0xff; 6], payload);
    let out = probe.inject(from, &frame.bytes(), quiet).unwrap();
    // Kernels say things about their own addresses, too, and one before may be late.
    let mine = |all: Vec<Vec<u8>>| all.iter().filter(|f| f[14..18] == number).count();
    out.into_iter().map(|(dev, all)| (dev, mine(all))).filter(|(_, n)| *n > 0).collect()
}

/// Broadcasts get through in both directions before long, and never twice: there is no loop.
fn passes(what: &str, probe: &Probe) {
    for (from, to) in [("e1", "e2"), ("e2", "e1")] {
        wait_for(what, || {
            let copies = broadcast(probe, from);
            assert!(copies.values().all(|n| *n <= 1), "{what}: {copies:?}");
            copies == once(to)
        });
    }
}

fn once(end: &str) -> BTreeMap<String, usize> {
    [(end.to_string(), 1)].into()
}

/// A key of a port's status; empty: it is not there.
fn port_status(sw: &Switch, port: &str, key: &str) -> String {
    let text = sw.vsctl(&["--if-exists", "get", "port", port, key]).unwrap();
    text.trim().trim_matches('"').to_string()
}

impl Protocol {
    fn state(&self, sw: &Switch, port: &str) -> String {
        let key =
            if self.name == "stp" { "status:stp_state" } else { "rstp_status:rstp_port_state" };
        port_status(sw, port, key)
    }

    fn root(&self, sw: &Switch) -> String {
        let stp = "status:stp_designated_root";
        let key = if self.name == "stp" { stp } else { "rstp_status:rstp_root_id" };
        vsctl(sw, &format!("get bridge br0 {key}"))
    }

    /// True if three of the four ports forward, and this one does not.
    fn is_tree(&self, ports: &[(&Switch, &str)], blocks: (&Switch, &str)) -> bool {
        let forward = ports.iter().filter(|(sw, port)| self.state(sw, port) == self.forwarding);
        forward.count() == 3 && self.state(blocks.0, blocks.1) == self.blocking
    }
}

/// What two bridges of one switch are connected by.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Patch,
    Cable,
}

fn add_links(sw: &Switch, ns: &Netns, p: Protocol, link: Link) {
    for (a, b, number) in [("a0", "a1", 1), ("b0", "b1", 2)] {
        if link == Link::Cable {
            veth((ns, a), (ns, b)).unwrap();
            [a, b].iter().for_each(|end| ns.ipv6_off(end).unwrap());
        }
        for (bridge, port, peer) in [("br0", a, b), ("br1", b, a)] {
            let patch = if link == Link::Patch {
                format!("type=patch options:peer={peer}")
            } else {
                String::new()
            };
            vsctl(
                sw,
                &format!(
                    "add-port {bridge} {port} -- set interface {port} {patch} \
                     ofport_request=1{number} -- set port {port} other_config:{}-port-num={number}",
                    p.name
                ),
            );
        }
    }
}

/// What the switch says of its trees, without what depends on time.
fn reports(sw: &Switch, p: Protocol) -> Vec<String> {
    let mut all = Vec::new();
    for bridge in ["br0", "br1"] {
        let shown = appctl(sw, &format!("{}/show {bridge}", p.name));
        let mut lines: Vec<String> = shown.lines().map(str::to_string).collect();
        // ovs-vswitchd has ports of RSTP in no order.
        if p.name == "rstp" {
            lines.sort();
        }
        all.extend(lines);
        all.push(vsctl(sw, &format!("get bridge {bridge} status rstp_status")));
        let shown = ofctl(sw, &format!("show {bridge}"));
        let is_port = |l: &&str| l.contains("(a") || l.contains("(b0)") || l.contains("(b1)");
        let states = shown.lines().filter(|l| is_port(l) || l.contains("state:"));
        let states = states.map(|l| l.split(": addr").next().unwrap_or(l).trim().to_string());
        all.extend(states);
    }
    for port in ["a0", "a1", "b0", "b1", "br0"] {
        let keys: Vec<String> = p.keys.iter().map(|key| port_status(sw, port, key)).collect();
        let statistics = vsctl(sw, &format!("get port {port} statistics rstp_statistics"));
        let names: String = statistics.chars().filter(|c| !c.is_ascii_digit()).collect();
        all.push(format!("{port}: {keys:?} {names}"));
    }
    all
}

/// `ours`: it is Weft; ovs-vswitchd goes on flooding nothing to some ports when a tree has ended.
fn loop_of(link: Link, p: Protocol, config: SwitchConfig, ours: bool) -> Vec<String> {
    let (ns, far) = (Netns::new().unwrap(), Netns::new().unwrap());
    let sw = Switch::start(&ns, config).unwrap();
    let mut probe = Probe::new();
    add_host(&sw, (&ns, "br0"), "v1", (&mut probe, &far));
    add_host(&sw, (&ns, "br1"), "v2", (&mut probe, &far));
    grow(&sw, p, "br0", 0x1000, 1);
    grow(&sw, p, "br1", 0x2000, 2);
    add_links(&sw, &ns, p, link);
    let ports = ["a0", "a1", "b0", "b1"].map(|port| (&sw, port));
    if p.name == "stp" {
        assert_eq!(broadcast(&probe, "e1"), [].into(), "nothing passes before the tree is known");
    }
    wait_for("the tree", || p.is_tree(&ports, (&sw, "b1")));
    passes("a frame", &probe);
    wait_for("statistics", || {
        let text = |port: &str| vsctl(&sw, &format!("get port {port} statistics rstp_statistics"));
        ["a0", "a1", "b0", "b1"].iter().all(|port| text(port).contains("_tx_count"))
    });
    let reports = reports(&sw, p);
    vsctl(&sw, "del-port a0");
    passes("a frame by the other way", &probe);
    let name = p.name;
    assert!(sw.appctl(&[&format!("{name}/show"), "nosuch"]).is_err());
    assert!(sw.appctl(&[&format!("{name}/tcn"), "nosuch"]).is_err());
    assert_eq!(appctl(&sw, &format!("{name}/tcn")), "OK\n");
    vsctl(
        &sw,
        &format!("set bridge br0 {name}_enable=false -- set bridge br1 {name}_enable=false"),
    );
    wait_for("no status", || p.state(&sw, "b0").is_empty());
    assert_eq!(vsctl(&sw, "get bridge br0 status rstp_status"), "{}\n{}");
    assert_eq!(appctl(&sw, &format!("{name}/show")), "");
    if ours {
        vsctl(&sw, "del-port a1");
        passes("a frame without a tree", &probe);
    }
    reports
}

/// In a loop of two bridges each frame comes once; reports are as ovs-vswitchd's, if it is asked.
fn loops(link: Link, p: Protocol, compared: bool) {
    if !privileged() {
        return;
    }
    let _turn = turn();
    let ours = loop_of(link, p, weft(), true);
    if compared {
        assert_eq!(ours, loop_of(link, p, SwitchConfig::oracle(), false));
    }
}

#[test]
fn a_loop_of_patch_ports_carries_each_frame_once_and_reports_as_ovs() {
    loops(Link::Patch, STP, true);
}

/// ovs-vswitchd 3.1 stands still with RSTP on patch ports.
#[test]
fn a_loop_of_patch_ports_with_rstp_carries_each_frame_once() {
    loops(Link::Patch, RSTP, false);
}

#[test]
fn a_loop_of_cables_with_rstp_carries_each_frame_once_and_reports_as_ovs() {
    loops(Link::Cable, RSTP, true);
}

/// Weft and ovs-vswitchd with two cables; the root is that of the lower priority, then the other.
fn beside_ovs((ours_p, theirs_p): (Protocol, Protocol), weft_priority: u16, ovs_priority: u16) {
    if !privileged() {
        return;
    }
    let (_turn, a, b, far) =
        (turn(), Netns::new().unwrap(), Netns::new().unwrap(), Netns::new().unwrap());
    let ours = Switch::start(&a, weft()).unwrap();
    let theirs = Switch::start(&b, SwitchConfig::oracle()).unwrap();
    let mut probe = Probe::new();
    add_host(&ours, (&a, "br0"), "v1", (&mut probe, &far));
    add_host(&theirs, (&b, "br0"), "v2", (&mut probe, &far));
    grow(&ours, ours_p, "br0", weft_priority, 1);
    grow(&theirs, theirs_p, "br0", ovs_priority, 2);
    for (number, cable) in [(1, "x1"), (2, "x2")] {
        veth((&a, cable), (&b, cable)).unwrap();
        for (sw, p) in [(&ours, ours_p), (&theirs, theirs_p)] {
            vsctl(
                sw,
                &format!(
                    "add-port br0 {cable} -- set port {cable} other_config:{}-port-num={number}",
                    p.name
                ),
            );
        }
    }
    let ends = [(&ours, ours_p), (&theirs, theirs_p)];
    let tree = |blocks: usize| {
        let forward = ends.iter().flat_map(|(sw, p)| {
            ["x1", "x2"].into_iter().filter(move |port| p.state(sw, port) == p.forwarding)
        });
        let (sw, p) = ends[blocks];
        forward.count() == 3 && p.state(sw, "x2") == p.blocking
    };
    let other = usize::from(weft_priority < ovs_priority);
    wait_for("the tree", || tree(other));
    let is_root = |n: usize| ends[n].1.root(ends[n].0);
    let address = |text: String| text.trim_matches('"').rsplit('.').next().unwrap().to_string();
    assert_eq!(address(is_root(0)), address(is_root(1)));
    let states = ofctl(ends[other].0, "show br0");
    let blocks = usize::from(ends[other].1.name == "stp");
    assert_eq!(states.matches("STP_BLOCK").count(), blocks, "{states}");
    assert!(states.contains("STP_FORWARD"), "{states}");
    passes("a frame", &probe);
    // The best cable is cut, and mended.
    a.ip("link set x1 down").unwrap();
    let cut = Instant::now();
    passes("a frame by the other cable", &probe);
    if (ours_p.name, theirs_p.name) == ("rstp", "rstp") {
        assert!(cut.elapsed() < Duration::from_secs(4), "{:?}", cut.elapsed());
    }
    a.ip("link set x1 up").unwrap();
    wait_for("the tree as before", || tree(other));
    passes("a frame by the best cable", &probe);
    // The other one becomes root.
    for (n, priority) in [(0, ovs_priority), (1, weft_priority)] {
        let (sw, p) = ends[n];
        vsctl(sw, &format!("set bridge br0 other_config:{}-priority={priority}", p.name));
    }
    wait_for("another root", || tree(1 - other));
    assert_eq!(address(is_root(0)), address(is_root(1)));
    passes("a frame under another root", &probe);
    // A daemon that comes back has no loop meanwhile.
    ours.kill_daemon();
    ours.start_daemon().unwrap();
    passes("a frame after a restart", &probe);
}

#[test]
fn two_cables_to_ovs_with_stp() {
    beside_ovs((STP, STP), 0x1000, 0x2000);
}

#[test]
fn two_cables_to_ovs_with_rstp() {
    beside_ovs((RSTP, RSTP), 0x2000, 0x1000);
}

#[test]
fn rstp_falls_back_where_ovs_speaks_stp() {
    beside_ovs((RSTP, STP), 0x1000, 0x2000);
}

/// A configuration BPDU of a bridge that would be root, another one each time, or with a change of
/// the topology.
fn forged(n: u32) -> Vec<u8> {
    let mut f = vec![1, 0x80, 0xc2, 0, 0, 0, 2, 0, 0, 0, 0, 9, 0, 38, 0x42, 0x42, 3, 0, 0, 0, 0, 1];
    let id = (u64::from(0xffff_ffff - n)).to_be_bytes();
    f.extend([&id[..], &[0; 4], &id, &[0x80, 1, 0, 0, 20, 0, 2, 0, 15, 0]].concat());
    f.resize(60, 0);
    f
}

#[test]
fn a_flood_of_bpdus_on_one_port_is_its_own_loss() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let sw = Switch::start(&ns, weft()).unwrap();
    add_bridge(&sw, "br0");
    grow(&sw, STP, "br0", 0x1000, 1);
    // The victim's bridge is another one.
    let mut probe = Probe::new();
    add_host(&sw, (&ns, "br1"), "v1", (&mut probe, &far));
    add_host(&sw, (&ns, "br1"), "v2", (&mut probe, &far));
    let attacker = host(&ns, 9);
    vsctl(&sw, "add-port br0 v9");
    wait_for("a tree", || STP.state(&sw, "v9") == "forwarding");
    let raw = Raw::open(&attacker, "eth0").unwrap();
    let received = || {
        let text = vsctl(&sw, "get port v9 statistics:stp_rx_count");
        text.parse::<u64>().unwrap()
    };
    let (before, start, mut sent) = (received(), Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(5) {
        sent += 1;
        // The cable's queue may be full.
        let _ = raw.send(&forged(sent));
    }
    // Whoever forwards it may be without a core for longer than [`QUIET`].
    assert_eq!(broadcast_until(&probe, "e1", Duration::from_secs(2)), once("e2"));
    wait_for("refused packets", || coverage(&sw, "datapath_drop_punt_rate") > 1000);
    wait_for("the sum", || received() > before);
    std::thread::sleep(Duration::from_secs(6));
    // 32 at once, and 20 a second.
    let allowed = 32 + 20 * (1 + start.elapsed().as_secs());
    let heard = received() - before;
    assert!(heard <= allowed, "{heard} of {sent} BPDUs are heard, {allowed} are enough");
}
