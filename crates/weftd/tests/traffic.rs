//! TCP between hosts while flows and ports change, and the books afterwards: what came in went out
//! or was dropped by name.

mod lab;

use lab::*;
use std::collections::BTreeMap;
use testkit::{Frame, L4, Net, Netns, Raw, Switch, V4, privileged};

#[test]
fn tcp_goes_on_while_flows_and_ports_change() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, b, _c) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2), host(&ns, 3));
    ping(&a, 2);
    let idle = buffers(&sw);
    let bytes = transfer(&a, (&b, addr(2)), || {
        for round in 0..8 {
            ofctl(
                &sw,
                &format!("add-flow br0 priority={},tcp,tp_dst={round},actions=drop", 5 + round),
            );
            ofctl(&sw, "--bundle replace-flows br0 /dev/null");
            ofctl(&sw, "add-flow br0 actions=NORMAL");
            vsctl(&sw, "add-port br0 v3 -- add-port br0 i3 -- set interface i3 type=internal");
            ofctl(&sw, "add-flow br0 priority=3,in_port=1,actions=output:2");
            ofctl(&sw, "mod-flows br0 in_port=1,actions=mod_nw_tos:16,output:2");
            appctl(&sw, "fdb/flush br0");
            vsctl(&sw, "del-port v3 -- del-port i3");
        }
    });
    assert!(bytes > 1 << 20, "{bytes}");
    ping(&a, 2);
    wait_for("no buffer leaked", || buffers(&sw) <= idle);
}

#[test]
fn every_packet_is_accounted_for() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let hosts = [host(&ns, 1), host(&ns, 2)];
    for (n, h) in [1, 2].into_iter().zip(&hosts) {
        // Every frame that the kernel counts is one that we see, whole and not one too many.
        ns.ipv6_off(&format!("v{n}")).unwrap();
        h.ipv6_off("eth0").unwrap();
        h.offloads_off("eth0").unwrap();
        ns.offloads_off(&format!("v{n}")).unwrap();
        vsctl(&sw, &format!("add-port br0 v{n} -- set interface v{n} ofport_request={n}"));
    }
    ofctl(&sw, "del-flows br0");
    ofctl(&sw, "add-flow br0 priority=2,in_port=1,actions=2");
    ofctl(&sw, "add-flow br0 priority=2,in_port=2,actions=1");
    ofctl(&sw, "add-flow br0 priority=9,udp,actions=drop");
    ping(&hosts[0], 2);
    let before = settled(&sw);
    transfer(&hosts[0], (&hosts[1], addr(2)), || {
        let udp = hosts[0].run(|| std::net::UdpSocket::bind("10.0.0.1:0")).unwrap();
        for _ in 0..500 {
            udp.send_to(&[0; 100], "10.0.0.2:9").unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
    });
    let sum = |c: &BTreeMap<(u32, String), u64>, key: &str| -> u64 {
        c.iter().filter(|((_, k), _)| k == key).map(|(_, v)| v).sum()
    };
    let (mut rx, mut tx, mut dropped) = (0, 0, 0);
    wait_for("the books are level", || {
        let now = (port_counters(&sw), drops(&sw));
        let diff = |key| sum(&now.0, key) - sum(&before.0, key);
        (rx, tx) = (diff("rx pkts"), diff("tx pkts"));
        dropped = now.1 - before.1;
        rx > 600 && rx == tx + dropped
    });
    assert!(dropped >= 500, "{dropped}");
    // The flows' counters say the same.
    wait_for("flows", || {
        let flows = ofctl(&sw, "dump-flows br0");
        let n = flows.split("n_packets=").skip(1);
        n.map(|t| t.split(',').next().unwrap().parse::<u64>().unwrap()).sum::<u64>() >= rx
    });
}

#[test]
fn expired_packets_without_a_controller_count_as_expired() {
    const SENT: u64 = 20;
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    ofctl(&sw, "add-flow br0 priority=9,udp,actions=dec_ttl,NORMAL");
    let counted = || ["datapath_drop_ttl_expired", "datapath_punted"].map(|n| coverage(&sw, n));
    assert_eq!(counted(), [0, 0]);
    let ip = V4::new([10, 0, 0, 1], [10, 0, 0, 2], L4::Udp(1, 2, vec![0; 20]));
    let to = [2, 0, 0, 0, 0, 2];
    let frame = Frame::new([2, 0, 0, 0, 0, 1], to, Net::V4(V4 { ttl: 1, ..ip })).bytes();
    let raw = Raw::open(&a, "eth0").unwrap();
    (0..SENT).for_each(|_| raw.send(&frame).unwrap());
    wait_for("all of them", || counted()[0] >= SENT);
    assert_eq!(counted(), [SENT, 0]);
}

/// Counters of ports and of drops once two looks in a row agree: they are read one after the other,
/// and a packet on its way between the two would be in one only.
fn settled(sw: &Switch) -> (BTreeMap<(u32, String), u64>, u64) {
    let look = || (port_counters(sw), drops(sw));
    let mut last = look();
    wait_for("counters stand still", || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = look();
        std::mem::replace(&mut last, now.clone()) == now
    });
    last
}

/// Packets that were dropped for any reason.
fn drops(sw: &Switch) -> u64 {
    let names: Vec<&str> = telemetry::Drop::ALL.iter().map(|d| d.name()).collect();
    let text = appctl(sw, "coverage/show");
    let lines = text.lines().filter(|l| {
        let name = l.split_whitespace().next().unwrap_or("");
        name.strip_prefix("datapath_drop_").is_some_and(|n| names.contains(&n))
    });
    lines.filter_map(|l| l.rsplit("total: ").next()?.trim().parse::<u64>().ok()).sum()
}

/// `dump-ports` by port and counter: "rx pkts", "tx pkts", ...
fn port_counters(sw: &Switch) -> BTreeMap<(u32, String), u64> {
    let text = ofctl(sw, "dump-ports br0");
    let (mut out, mut port) = (BTreeMap::new(), None);
    for line in text.lines() {
        let mut rest = line.trim();
        if let Some(r) = rest.strip_prefix("port ") {
            let Some((name, r)) = r.split_once(": ") else { continue };
            port = Some(name.trim().parse().unwrap_or(65534));
            rest = r;
        }
        let (Some(n), Some((way, fields))) = (port, rest.split_once(' ')) else { continue };
        for (key, value) in fields.split(", ").filter_map(|f| f.split_once('=')) {
            if let Ok(v) = value.parse() {
                out.insert((n, format!("{way} {key}")), v);
            }
        }
    }
    out
}

#[test]
fn the_packet_that_teaches_an_address_leaves_a_cached_flow() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    let macs = ([2, 9, 9, 9, 9, 9], [2, 8, 8, 8, 8, 8]);
    let frame = Frame::udp4(macs, ([10, 9, 9, 1], [10, 9, 9, 2]), (1, 2), b"x").bytes();
    Raw::open(&a, "eth0").unwrap().send(&frame).unwrap();
    wait_for("a learned address", || appctl(&sw, "fdb/show br0").contains("02:09:09:09:09:09"));
    // A barrier: what the new address changes has changed.
    ofctl(&sw, "--strict del-flows br0 priority=7");
    let flows = appctl(&sw, "dpctl/dump-flows");
    assert!(flows.contains("eth(src=02:09:09:09:09:09,"), "{flows}");
    one_flow_is_found_by_its_identifier(&sw);
}

fn one_flow_is_found_by_its_identifier(sw: &Switch) {
    let all = appctl(sw, "dpctl/dump-flows -m");
    let line = all.lines().find(|l| l.contains("eth(src=02:09:09:09:09:09")).unwrap();
    let ufid = line.split(',').next().unwrap();
    for command in ["dpctl/get-flow", "offload/why"] {
        let said = appctl(sw, &format!("{command} {ufid}"));
        assert!(said.contains("eth(src=02:09:09:09:09:09"), "{command}: {said}");
    }
    let missing = "00000000-0000-0000-0000-000000000000";
    let said = sw.appctl(&["dpctl/get-flow", &format!("ufid:{missing}")]).unwrap_err();
    assert!(said.contains("No such file or directory"), "{said}");
    assert!(sw.appctl(&["offload/why", missing]).unwrap_err().contains("no such flow"));
    assert!(appctl(sw, "offload/show").contains("megaflows: "));
}
