//! `hw-offload` with the lab's emulated adapter: flows become rules, packets come marked, and
//! whatever the adapter does no packet goes elsewhere.

mod lab;

use lab::*;
use std::time::Instant;
use testkit::{Netns, Switch, privileged};

/// Rules need some seconds of traffic first.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// A switch that marks may help: `src` is a generator with these arguments; `a` and `b` take
/// packets.
fn bench<'a>(ns: &'a Netns, hw: &str) -> Switch<'a> {
    let sw = start(ns);
    let extra = format!("other_config:dpdk-extra=--no-pci -d {}", generator().display());
    sw.vsctl(&["set", "Open_vSwitch", ".", &extra, "other_config:hw-offload=true"]).unwrap();
    sw.stop_daemon().unwrap();
    sw.start_daemon().unwrap();
    add_bridge(&sw, "br0");
    ofctl(&sw, "del-flows br0");
    add_port(&sw, "a", 2, "net_weftgen1,order=sink");
    add_port(&sw, "b", 3, "net_weftgen2,order=sink");
    add_port(&sw, "src", 1, &format!("net_weftgen0,flows=1000,rules=20,rate=60000,{hw}"));
    sw
}

fn add_port(sw: &Switch, name: &str, number: u16, device: &str) {
    let devargs = format!("options:dpdk-devargs=\"vdev:{device}\"");
    let number = format!("ofport_request={number}");
    let kind = ["--", "set", "interface", name, "type=dpdk", &number, &devargs];
    let all: Vec<&str> = ["add-port", "br0", name].into_iter().chain(kind).collect();
    sw.vsctl(&all).unwrap();
}

/// Twenty flows, each with some thousand packets per second: even networks to one port, odd ones to
/// the other.
fn flows(even: u16, odd: u16) -> String {
    let one = |i: u16| {
        let out = if i.is_multiple_of(2) { even } else { odd };
        format!("ip,nw_dst=16.0.{i}.0/24,actions=output:{out}\n")
    };
    (0..20).map(one).collect()
}

fn wait_for(sw: &Switch, what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        let show = sw.appctl(&["offload/show"]).unwrap_or_default();
        assert!(began.elapsed() < LONG, "{what}: {show}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn partial(sw: &Switch) -> usize {
    let all = appctl(sw, "dpctl/dump-flows -m type=partially-offloaded");
    all.matches("offloaded:partial, dp:ovs, actions:").count()
}

/// A number behind a text in a command's answer.
fn number(sw: &Switch, command: &str, before: &str) -> u64 {
    let all = appctl(sw, command);
    let rest = all.split(before).nth(1).unwrap_or_else(|| panic!("{before}: {all}"));
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{before}: {all}"))
}

fn marked(sw: &Switch) -> u64 {
    number(sw, "dpif-netdev/pmd-stats-show", "phwol hits: ")
}

fn sent(sw: &Switch, port: &str) -> u64 {
    let all = ofctl(sw, &format!("dump-ports br0 {port}"));
    let tx = all.split("tx pkts=").nth(1).unwrap();
    tx.split(',').next().unwrap().parse().unwrap()
}

/// Packets that were lost or overtaken on their way to a port, as their stamps say; of all that
/// were sent by now.
fn disorder(sw: &Switch, port: &str) -> String {
    let now = sent(sw, port);
    wait_for(sw, "statistics", || {
        let known = sw.vsctl(&["get", "interface", port, "statistics:tx_packets"]);
        known.is_ok_and(|n| n.trim().parse::<u64>().unwrap() >= now)
    });
    iface(sw, port, "statistics:tx_sequence_lost_errors")
        + "/"
        + &iface(sw, port, "statistics:tx_sequence_reordered_errors")
}

#[test]
fn flows_are_offloaded_as_long_as_they_are_there() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = bench(&ns, "hw=full,hw_check=1");
    sw.ofctl_stdin(&["add-flows", "br0", "-"], &flows(2, 3)).unwrap();
    wait_for(&sw, "20 rules", || partial(&sw) == 20);
    let before = marked(&sw);
    wait_for(&sw, "marks", || marked(&sw) > before + 20_000);
    assert_eq!(number(&sw, "dpctl/offload-stats-show", "Inserted offloads: "), 20);
    assert_eq!(number(&sw, "upcall/show", "offloaded flows : "), 20);
    assert!(!appctl(&sw, "dpctl/dump-flows -m type=non-offloaded").contains("in_port(src)"));
    assert!(appctl(&sw, "offload/why 16.0.7.0").starts_with("offloaded-partially: "));
    reasons_add_up(&sw);
    let bad = sw.appctl(&["dpctl/dump-flows", "type=nonsense"]).unwrap_err();
    assert!(bad.contains("Failed to parse type (nonsense)"), "{bad}");
    // What a rule change makes of marks: after the barrier nothing goes to the old port.
    for round in 0..6u16 {
        let (even, odd) = if round % 2 == 0 { (3, 3) } else { (2, 2) };
        sw.ofctl_stdin(&["add-flows", "br0", "-"], &flows(even, odd)).unwrap();
        let quiet = if even == 3 { "a" } else { "b" };
        // What was on its way out when the barrier was answered is out now.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (still, then) = (sent(&sw, quiet), marked(&sw));
        std::thread::sleep(std::time::Duration::from_millis(400));
        assert_eq!(sent(&sw, quiet), still, "round {round}");
        assert!(round == 0 || then > 0);
    }
    wait_for(&sw, "20 rules again", || partial(&sw) == 20);
    // Flows that end take their rules along.
    ofctl(&sw, "del-flows br0 ip,nw_dst=16.0.4.0/24");
    wait_for(&sw, "a rule less", || {
        number(&sw, "dpctl/offload-stats-show", "Inserted offloads: ") == 19
            || !appctl(&sw, "offload/why").contains("16.0.4.0/255.255.255.0")
    });
    sw.vsctl(&["set", "Open_vSwitch", ".", "other_config:hw-offload=false"]).unwrap();
    let off = sw.appctl(&["dpctl/offload-stats-show"]).unwrap_err();
    assert!(off.contains("retrieving offload statistics (Invalid argument)"), "{off}");
    assert_eq!(partial(&sw), 0);
    let still = marked(&sw);
    let before = sent(&sw, "a");
    wait_for(&sw, "packets", || sent(&sw, "a") > before + 10_000);
    assert_eq!(marked(&sw), still);
    sw.vsctl(&["set", "Open_vSwitch", ".", "other_config:hw-offload=true"]).unwrap();
    wait_for(&sw, "rules again", || partial(&sw) >= 19);
}

/// A small table, slow, whose marks of before keep coming: everything arrives, in order.
#[test]
fn a_full_and_slow_adapter_loses_nothing() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = bench(&ns, "hw=full,hw_rules=8,hw_rate=200,hw_lag=2000,hw_full_error=ENOSPC");
    sw.ofctl_stdin(&["add-flows", "br0", "-"], &flows(2, 3)).unwrap();
    wait_for(&sw, "8 rules", || partial(&sw) == 8);
    wait_for(&sw, "a full table", || {
        let show = appctl(&sw, "offload/show");
        show.contains("room: 8") && show.contains("table-full")
    });
    reasons_add_up(&sw);
    // Decisions come and go, and their rules with them.
    for _ in 0..6 {
        sw.appctl(&["revalidator/purge"]).unwrap();
        let before = marked(&sw);
        wait_for(&sw, "marks", || marked(&sw) > before + 1000);
    }
    for port in ["a", "b"] {
        assert_eq!(disorder(&sw, port), "0/0", "{port}: {}", appctl(&sw, "offload/show"));
    }
    // The port goes under load, and comes back.
    vsctl(&sw, "del-port src");
    add_port(&sw, "src", 1, "net_weftgen0,flows=1000,rules=20,rate=60000,hw=full,hw_rules=12");
    wait_for(&sw, "12 rules", || partial(&sw) == 12);
    reasons_add_up(&sw);
}

/// Without rules in the driver nothing is lost but the gain, and it is said.
#[test]
fn an_adapter_without_rules() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = bench(&ns, "order=seq");
    sw.ofctl_stdin(&["add-flows", "br0", "-"], &flows(2, 3)).unwrap();
    wait_for(&sw, "packets", || sent(&sw, "a") > 20_000);
    reasons_add_up(&sw);
    let why = appctl(&sw, "offload/why 16.0.7.0");
    assert!(why.starts_with("port-type: the port has no adapter"), "{why}");
    assert_eq!(marked(&sw), 0);
}

/// What else an adapter does only when it is asked: it checks checksums, and pauses its link.
#[test]
fn an_adapter_is_asked_for_checksums_and_flow_control() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start(&ns);
    let loud = "--no-pci --log-level=info --log-level=pmd.net.weftgen:info -d";
    let extra = format!("other_config:dpdk-extra=\"{loud} {}\"", generator().display());
    sw.vsctl(&["set", "Open_vSwitch", ".", &extra]).unwrap();
    sw.stop_daemon().unwrap();
    sw.start_daemon().unwrap();
    add_bridge(&sw, "br0");
    add_port(&sw, "src", 1, "net_weftgen0,rate=1000");
    // The control thread writes DPDK's lines when it has written its own.
    let says = |what: &str| wait_for(&sw, what, || sw.log().matches(what).count() == 1);
    says("|dpdk|INFO|net_weftgen: port 0: checksums are checked");
    assert!(!sw.log().contains("flow control"), "it has none, and none was asked for");
    vsctl(&sw, "set interface src options:rx-flow-ctrl=true options:flow-ctrl-autoneg=true");
    says("flow control tx_pause, autoneg 1");
    vsctl(&sw, "set interface src options:tx-flow-ctrl=true");
    says("flow control full, autoneg 1");
    vsctl(&sw, "remove interface src options rx-flow-ctrl tx-flow-ctrl flow-ctrl-autoneg");
    says("flow control none, autoneg 0");
    add_port(&sw, "none", 2, "net_null0");
    vsctl(&sw, "set interface none options:tx-flow-ctrl=true");
    says("|WARN|none: Flow control is not supported.");
    says("checksums are checked");
}
