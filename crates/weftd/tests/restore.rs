//! `other_config:flow-restore-wait`: a restart that restores flows forwards nothing before they are
//! there.

mod lab;

use lab::*;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;
use testkit::{Netns, Switch, privileged};

/// How many pings of `from` were sent and answered in half a second.
fn pings(from: &Netns, to: u8) -> (u64, u64) {
    let pinger = Pinger::start(from, addr(to));
    std::thread::sleep(Duration::from_millis(500));
    pinger.stop_at_once()
}

/// The daemon goes without a word, as in an upgrade, and the next one waits for flows.
fn restart_waiting(sw: &Switch) {
    vsctl(sw, "--no-wait set open_vswitch . other_config:flow-restore-wait=true");
    sw.kill_daemon();
    sw.start_daemon().unwrap();
}

fn nothing_passes(sw: &Switch, from: &Netns, to: u8) {
    let dropped = coverage(sw, "datapath_drop_flow_restore_wait");
    let (sent, answered) = pings(from, to);
    assert!(sent > 5 && answered == 0, "{answered} of {sent}");
    wait_for("packets to be counted", || coverage(sw, "datapath_drop_flow_restore_wait") > dropped);
}

#[test]
fn the_default_flow_forwards_nothing_before_the_wait_is_over() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    ping(&a, 2);
    restart_waiting(&sw);
    assert!(ofctl(&sw, "dump-flows br0").contains("actions=NORMAL"), "as in OVS it is there");
    nothing_passes(&sw, &a, 2);
    assert_eq!(appctl(&sw, "fdb/show br0").lines().count(), 1, "nothing is learned");
    vsctl(&sw, "set open_vswitch . other_config:flow-restore-wait=false");
    ping(&a, 2);
    // It is about the start only.
    vsctl(&sw, "set open_vswitch . other_config:flow-restore-wait=true");
    ping(&a, 2);
    let (sent, answered) = pings(&a, 2);
    assert!(answered > 0, "0 of {sent}");
}

#[test]
fn flows_are_restored_before_packets_and_controllers_come() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b, c) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2), host_on(&ns, &sw, 3));
    let controller = ns.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    controller.set_nonblocking(true).unwrap();
    let target = format!("tcp:{}", controller.local_addr().unwrap());
    vsctl(&sw, &format!("set-fail-mode br0 secure -- set-controller br0 {target}"));
    wait_for("a connection", || controller.accept().is_ok());
    // Hosts 1 and 2 are one tenant, host 3 is another.
    for (from, to) in [(1, 2), (2, 1)] {
        ofctl(&sw, &format!("add-flow br0 in_port={from},actions=output:{to}"));
    }
    ping(&a, 2);
    let saved = ofctl(&sw, "--no-names --no-stats dump-flows br0");
    restart_waiting(&sw);
    while controller.accept().is_ok() {}
    for to in [2, 3] {
        nothing_passes(&sw, &a, to);
    }
    sw.ofctl_stdin(&["add-flows", "br0", "-"], &saved).unwrap();
    nothing_passes(&sw, &a, 2);
    assert!(controller.accept().is_err(), "a controller finds the flows complete");
    vsctl(&sw, "remove open_vswitch . other_config flow-restore-wait");
    ping(&a, 2);
    let sorted = |text: &str| text.lines().map(String::from).collect::<BTreeSet<_>>();
    assert_eq!(sorted(&ofctl(&sw, "--no-names --no-stats dump-flows br0")), sorted(&saved));
    assert_eq!(pings(&a, 3).1, 0, "tenants are apart");
    assert_eq!(pings(&c, 1).1, 0);
    wait_for("the controller's connection", || controller.accept().is_ok());
}
