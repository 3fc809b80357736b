//! VLAN modes, NORMAL learning and aging, FLOOD: raw frames between ports.

mod lab;

use lab::*;
use std::collections::BTreeMap;
use testkit::{Frame, L4, Net, Netns, Probe, Switch, V4, privileged};

/// A switch whose ports v1 to vN end at probes named after them.
struct Bench<'a> {
    sw: Switch<'a>,
    probe: Probe,
}

fn bench<'a>(ns: &'a Netns, far: &Netns, n: u32) -> Bench<'a> {
    let (sw, probe) = start_with_ports(ns, far, n);
    Bench { sw, probe }
}

impl Bench<'_> {
    /// Sends a frame into port `from`; the ports at which it comes out, and its VLAN tags there.
    fn send(&self, from: u8, frame: &Frame) -> BTreeMap<u8, Vec<u16>> {
        let out = self.probe.inject(&format!("e{from}"), &frame.bytes(), QUIET).unwrap();
        let mut seen = BTreeMap::new();
        for (dev, frames) in out {
            assert_eq!(frames.len(), 1, "{dev}: {frames:02x?}");
            let port = dev[1..].parse().unwrap();
            seen.insert(port, tags(&frames[0]));
        }
        seen
    }
}

/// VLAN ids from the outside in.
fn tags(frame: &[u8]) -> Vec<u16> {
    let mut at = 12;
    let mut out = Vec::new();
    while matches!(frame[at..at + 2], [0x81, 0] | [0x88, 0xa8]) {
        out.push(u16::from_be_bytes([frame[at + 2], frame[at + 3]]) & 0xfff);
        at += 4;
    }
    out
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, n]
}

/// From host `src` to host `dst` (0: all), in a VLAN unless it is 0.
fn frame(src: u8, dst: u8, vlan: u16) -> Frame {
    let to = if dst == 0 { [0xff; 6] } else { mac(dst) };
    let f = Frame::new(mac(src), to, Net::Raw(0x88b5, vec![7; 50]));
    if vlan == 0 { f } else { f.tagged(0x8100, vlan) }
}

fn seen<const N: usize>(ports: [(u8, &[u16]); N]) -> BTreeMap<u8, Vec<u16>> {
    ports.into_iter().map(|(p, t)| (p, t.to_vec())).collect()
}

#[test]
fn modes() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far, 6);
    vsctl(&b.sw, "set port v1 tag=10 -- set port v2 tag=20 -- set port v3 trunks=10,20");
    vsctl(&b.sw, "set port v4 vlan_mode=native-tagged tag=10 trunks=20");
    vsctl(&b.sw, "set port v5 vlan_mode=native-untagged tag=10 trunks=20");
    let none = BTreeMap::new();
    let cases = [
        // Access: untagged frames are in its VLAN, tagged ones are dropped.
        (1, 0, seen([(3, &[10]), (4, &[10]), (5, &[]), (6, &[10])])),
        (1, 10, none.clone()),
        (1, 20, none.clone()),
        (2, 0, seen([(3, &[20]), (4, &[20]), (5, &[20]), (6, &[20])])),
        // A trunk of two VLANs.
        (3, 10, seen([(1, &[]), (4, &[10]), (5, &[]), (6, &[10])])),
        (3, 20, seen([(2, &[]), (4, &[20]), (5, &[20]), (6, &[20])])),
        (3, 30, none.clone()),
        (3, 0, none.clone()),
        // Native VLANs: untagged frames are in it.
        (4, 0, seen([(1, &[]), (3, &[10]), (5, &[]), (6, &[10])])),
        (4, 10, seen([(1, &[]), (3, &[10]), (5, &[]), (6, &[10])])),
        (4, 20, seen([(2, &[]), (3, &[20]), (5, &[20]), (6, &[20])])),
        (4, 30, none.clone()),
        (5, 0, seen([(1, &[]), (3, &[10]), (4, &[10]), (6, &[10])])),
        (5, 20, seen([(2, &[]), (3, &[20]), (4, &[20]), (6, &[20])])),
        // A trunk of all.
        (6, 30, none.clone()),
        (6, 0, none),
        (6, 20, seen([(2, &[]), (3, &[20]), (4, &[20]), (5, &[20])])),
    ];
    for (from, vlan, expected) in cases {
        assert_eq!(b.send(from, &frame(from, 0, vlan)), expected, "port {from}, VLAN {vlan}");
    }
    // Two tags: the inner one is payload.
    let double = frame(3, 0, 77).tagged(0x8100, 10);
    let out = b.send(3, &double);
    assert_eq!(out[&6].len(), 2, "{out:?}");
    // A port's mode changes live.
    vsctl(&b.sw, "set port v1 tag=20");
    assert_eq!(b.send(2, &frame(2, 0, 0))[&1], Vec::<u16>::new());
    vsctl(&b.sw, "clear port v1 tag");
    assert_eq!(b.send(2, &frame(2, 0, 0))[&1], [20]);
}

#[test]
fn addresses_are_learned_per_vlan_and_forgotten() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far, 4);
    assert_eq!(b.send(1, &frame(1, 2, 0)).len(), 3, "unknown: to all");
    assert_eq!(b.send(2, &frame(2, 1, 0)), seen([(1, &[])]));
    assert_eq!(b.send(1, &frame(1, 2, 0)), seen([(2, &[])]), "learned");
    assert_eq!(b.send(1, &frame(1, 2, 5)).len(), 3, "not learned in this VLAN");
    assert_eq!(b.send(2, &frame(2, 1, 5)), seen([(1, &[5])]));
    let fdb = appctl(&b.sw, "fdb/show br0");
    let entry = |port: u8, vlan: u16, n: u8| {
        let mac = format!("02:00:00:00:01:{n:02x}");
        fdb.lines().any(|l| {
            let w: Vec<_> = l.split_whitespace().collect();
            w[..3] == [port.to_string(), vlan.to_string(), mac.clone()]
        })
    };
    assert!(entry(1, 0, 1) && entry(2, 0, 2) && entry(1, 5, 1) && entry(2, 5, 2), "{fdb}");
    assert!(appctl(&b.sw, "fdb/stats-show br0").contains("Current/maximum MAC entries"));
    // A station moves.
    assert_eq!(b.send(3, &frame(2, 1, 0)), seen([(1, &[])]));
    assert_eq!(b.send(1, &frame(1, 2, 0)), seen([(3, &[])]));
    // To itself: nowhere.
    assert_eq!(b.send(3, &frame(9, 2, 0)), seen([]));
    appctl(&b.sw, "fdb/flush br0");
    assert_eq!(b.send(1, &frame(1, 2, 0)).len(), 3, "flushed");
    // A port goes with its addresses.
    b.send(3, &frame(2, 1, 0));
    assert_eq!(b.send(1, &frame(1, 2, 0)), seen([(3, &[])]));
    vsctl(&b.sw, "del-port v3");
    assert_eq!(b.send(1, &frame(1, 2, 0)), seen([(2, &[]), (4, &[])]));
    // Aging, with the shortest time there is for it.
    vsctl(&b.sw, "set bridge br0 other_config:mac-aging-time=15");
    appctl(&b.sw, "fdb/flush br0");
    b.send(2, &frame(2, 1, 0));
    assert_eq!(b.send(1, &frame(1, 2, 0)), seen([(2, &[])]));
    let aged = wait_for("aging", || !appctl(&b.sw, "fdb/show br0").contains("01:02"));
    assert!(aged.as_secs() >= 13, "{aged:?}");
    assert_eq!(b.send(1, &frame(1, 2, 0)).len(), 2);
}

#[test]
fn flood_all_and_special_ports() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far, 4);
    let set = |actions: &str| {
        ofctl(&b.sw, "del-flows br0");
        ofctl(&b.sw, &format!("add-flow br0 actions={actions}"));
    };
    let everybody = seen([(2, &[]), (3, &[]), (4, &[])]);
    for actions in ["FLOOD", "ALL"] {
        set(actions);
        assert_eq!(b.send(1, &frame(1, 0, 0)), everybody);
    }
    ofctl(&b.sw, "mod-port br0 v3 no-flood");
    // The database knows nothing of this and must not undo it.
    vsctl(&b.sw, "set bridge br0 external_ids:x=y");
    assert_eq!(b.send(1, &frame(1, 0, 0)), everybody, "ALL does not care");
    set("FLOOD");
    assert_eq!(b.send(1, &frame(1, 0, 0)), seen([(2, &[]), (4, &[])]));
    set("in_port,output:2,1,mod_vlan_vid:9,4");
    assert_eq!(b.send(1, &frame(1, 0, 0)), seen([(1, &[]), (2, &[]), (4, &[9])]));
    ofctl(&b.sw, "mod-port br0 v2 no-forward");
    assert_eq!(b.send(1, &frame(1, 0, 0)), seen([(1, &[]), (4, &[9])]));
    ofctl(&b.sw, "mod-port br0 v1 no-receive");
    assert_eq!(b.send(1, &frame(1, 0, 0)), seen([]));
    ofctl(&b.sw, "mod-port br0 v1 receive");
    ofctl(&b.sw, "mod-port br0 v4 down");
    assert_eq!(b.send(1, &frame(1, 0, 0)), seen([(1, &[])]));
    wait_for("admin state", || iface(&b.sw, "v4", "admin_state") == "down");
    ofctl(&b.sw, "mod-port br0 v4 up");
    wait_for("admin state", || iface(&b.sw, "v4", "admin_state") == "up");
    assert_eq!(b.send(1, &frame(1, 0, 0)), seen([(1, &[]), (4, &[9])]));
}

/// A message of IGMP from a host, its checksum filled in.
fn igmp(host: u8, kind: u8, group: [u8; 4]) -> Frame {
    let mut message = [[kind, 0, 0, 0].as_slice(), &group].concat();
    let sum = wire::checksum::internet(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let ip = V4::new([10, 0, 0, host], group, L4::Other(2, message));
    Frame::new(mac(host), [1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]], Net::V4(ip))
}

#[test]
fn multicast_goes_to_members_and_routers() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far, 4);
    let group = [239, 94, 1, 1];
    let to = [1, 0, 0x5e, 94, 1, 1];
    let data = Frame::udp4((mac(1), to), ([10, 0, 0, 1], group), (5000, 5000), b"stream");
    assert_eq!(b.send(1, &data).len(), 3, "no bridge snoops unasked");
    assert!(
        b.sw.appctl(&["mdb/show", "br0"]).is_err() && b.sw.appctl(&["mdb/flush", "br0"]).is_err()
    );
    vsctl(&b.sw, "set bridge br0 mcast_snooping_enable=true");
    assert_eq!(b.send(1, &data).len(), 3, "unregistered");
    vsctl(&b.sw, "set bridge br0 other_config:mcast-snooping-disable-flood-unregistered=true");
    assert_eq!(b.send(1, &data), seen([]));
    assert_eq!(b.send(2, &igmp(2, 0x16, group)), seen([]), "there is no router");
    assert_eq!(b.send(1, &data), seen([(2, &[])]));
    assert_eq!(b.send(4, &igmp(4, 0x11, [224, 0, 0, 1])).len(), 3, "a query is for all");
    assert_eq!(b.send(1, &data), seen([(2, &[]), (4, &[])]));
    assert_eq!(b.send(3, &igmp(3, 0x16, group)), seen([(4, &[])]));
    let shown = appctl(&b.sw, "mdb/show br0");
    let lines: Vec<Vec<&str>> =
        shown.lines().map(|l| l.split_whitespace().take(3).collect()).collect();
    let (title, rest) = lines.split_first().unwrap();
    assert_eq!(title, &["port", "VLAN", "GROUP"]);
    assert_eq!(rest, [["2", "0", "239.94.1.1"], ["3", "0", "239.94.1.1"], ["4", "0", "querier"]]);
    assert_eq!(b.send(2, &igmp(2, 0x17, group)), seen([(4, &[])]));
    assert_eq!(b.send(1, &data), seen([(3, &[]), (4, &[])]));
    vsctl(&b.sw, "set port v2 other_config:mcast-snooping-flood=true");
    assert_eq!(b.send(1, &data), seen([(2, &[]), (3, &[]), (4, &[])]));
    vsctl(&b.sw, "remove port v2 other_config mcast-snooping-flood -- del-port v3");
    assert_eq!(b.send(1, &data), seen([(4, &[])]));
    assert_eq!(appctl(&b.sw, "mdb/flush"), "table successfully flushed\n");
    assert_eq!(b.send(1, &data), seen([]));
    vsctl(&b.sw, "set bridge br0 mcast_snooping_enable=false");
    assert_eq!(b.send(1, &data), seen([(2, &[]), (4, &[])]));
}
