//! LLDP and Auto Attach with ovs-vswitchd at the other end of a cable; and a flood of frames on one
//! port is its own loss.

mod lab;

use lab::*;
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, Switch, SwitchConfig, privileged, veth};

/// A count of `autoattach/statistics`, of an interface.
fn counted(sw: &Switch, iface: &str, what: &str) -> u64 {
    let text = appctl(sw, "autoattach/statistics");
    let of = text.split("Statistics: ").find(|part| part.lines().next() == Some(iface));
    let line =
        of.and_then(|part| part.lines().find_map(|l| l.strip_prefix(&format!("  {what} cnt: "))));
    line.unwrap_or_else(|| panic!("no {what} of {iface}: {text}")).parse().unwrap()
}

#[test]
fn beside_ovs() {
    if !privileged() {
        return;
    }
    let (_turn, a, b) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    veth((&a, "nic0"), (&b, "nic0")).unwrap();
    let weft = Switch::start(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    let ovs = Switch::start(&b, SwitchConfig::oracle()).unwrap();
    let mac = |sw: &Switch| iface(sw, "nic0", "mac_in_use");
    for sw in [&weft, &ovs] {
        add_bridge(sw, "br0");
        vsctl(sw, "add-port br0 nic0 -- set interface nic0 lldp:enable=true");
        vsctl(sw, "add-aa-mapping br0 9 40 -- add-aa-mapping br0 16777215 41");
        vsctl(sw, "set autoattach . system_description=what-it-is system_name=someone");
    }
    for sw in [&weft, &ovs] {
        wait_for("a neighbour", || counted(sw, "nic0", "insert") == 1);
        wait_for("trunks", || vsctl(sw, "get port nic0 trunks").trim() == "[40, 41]");
        assert_eq!(counted(sw, "nic0", "rx discarded"), 0);
    }
    // Each shows the other one in the same words.
    let shown = |sw: &Switch, other: &Switch| {
        let text = appctl(sw, "autoattach/status");
        assert!(text.contains("Descr: what-it-is"), "{text}");
        text.replace(&mac(other), "MAC")
    };
    assert_eq!(shown(&weft, &ovs), shown(&ovs, &weft));
    let rows = |sw: &Switch| {
        let text = appctl(sw, "autoattach/show-isid");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[3..].sort();
        lines
    };
    // The other end is no server: it says nothing of mappings but its own.
    let [ours, theirs] = [&weft, &ovs].map(rows);
    assert_eq!((ours.len(), &ours[..3]), (5, &theirs[..3]));
    for sw in [&weft, &ovs] {
        vsctl(sw, "del-aa-mapping br0 9 40");
        wait_for("a trunk less", || vsctl(sw, "get port nic0 trunks").trim() == "[41]");
        assert_eq!(vsctl(sw, "get port nic0 vlan_mode").trim(), "trunk");
        vsctl(sw, "set interface nic0 lldp:enable=false");
    }
    assert_eq!(appctl(&weft, "autoattach/status"), "");
}

/// A frame of neighbour `n`, which says that it holds for a minute.
fn forged(n: u32) -> Vec<u8> {
    let mut frame = [&[1, 0x80, 0xc2, 0, 0, 0x0e][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xcc]].concat();
    frame.extend([2, 7, 4, 2, 0, 0, 0, 0, 9, 4, 5, 5]);
    frame.extend(n.to_be_bytes());
    frame.extend([6, 2, 0, 60, 0, 0]);
    frame.resize(60, 0);
    frame
}

#[test]
fn a_flood_on_one_interface_is_its_own_loss() {
    if !privileged() {
        return;
    }
    let (_turn, ns, peer) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let sw = Switch::start(&ns, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    add_bridge(&sw, "br0");
    for n in 0..2 {
        veth((&ns, &format!("nic{n}")), (&peer, &format!("eth{n}"))).unwrap();
        vsctl(&sw, &format!("add-port br0 nic{n} -- set interface nic{n} lldp:enable=true"));
    }
    let [evil, good] = ["eth0", "eth1"].map(|name| Raw::open(&peer, name).unwrap());
    let (runs_before, start) = (coverage(&sw, "lldp_run"), Instant::now());
    let (mut sent, mut said) = (0, 0);
    while start.elapsed() < Duration::from_secs(5) {
        // The cable's queue may be full.
        let _ = evil.send(&forged(sent));
        sent += 1;
        if start.elapsed().as_secs() >= said {
            good.send(&forged(7)).unwrap();
            said += 1;
        }
    }
    let (runs, seconds) = (coverage(&sw, "lldp_run") - runs_before, start.elapsed().as_secs() + 1);
    assert!(coverage(&sw, "datapath_drop_punt_rate") > 1000, "of {sent}");
    let heard = counted(&sw, "nic0", "rx");
    assert!(heard <= 16 + 4 * seconds, "{heard} in {seconds} s");
    assert_eq!(counted(&sw, "nic0", "insert"), 8);
    assert_eq!(counted(&sw, "nic0", "drop"), heard - 8);
    wait_for("the neighbour's frames", || counted(&sw, "nic1", "rx") >= said);
    assert_eq!((counted(&sw, "nic1", "insert"), counted(&sw, "nic1", "rx discarded")), (1, 0));
    // Four looks a second whether more is heard, and what is sent.
    assert!(runs <= 10 * seconds, "{runs} runs in {seconds} s");
}
