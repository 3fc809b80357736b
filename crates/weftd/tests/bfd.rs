//! BFD with ovs-vswitchd at the other end of a tunnel: sessions come up, find out that the path is
//! cut, and have groups choose another port; and a flood of control packets on one port ends
//! no session of another.

mod lab;

use lab::*;
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, Switch, SwitchConfig, privileged, veth};

/// Intervals that a busy machine keeps: a loss is found after two seconds.
const SETTINGS: &str = "bfd:enable=true bfd:min_rx=200 bfd:min_tx=200 bfd:mult=10";
const CUT: &str = "priority=9,udp,tp_dst=";

/// A hypervisor: an underlay `br-phy` on `nic0`, and `br-int` with a tunnel to the other.
fn hypervisor<'a>(ns: &'a Netns, config: SwitchConfig, n: u8, kind: &str) -> Switch<'a> {
    let sw = Switch::start(ns, config).unwrap();
    add_bridge(&sw, "br-phy");
    vsctl(&sw, "add-port br-phy nic0");
    ns.ip(&format!("addr add 10.1.1.{n}/24 dev br-phy")).unwrap();
    ns.ip("link set br-phy up").unwrap();
    add_bridge(&sw, "br-int");
    let options = format!("options:remote_ip=10.1.1.{} options:key=flow", 3 - n);
    vsctl(
        &sw,
        &format!(
            "add-port br-int tun -- set interface tun type={kind} ofport_request=1 {options} {SETTINGS}"
        ),
    );
    sw
}

/// A value of `bfd_status`; empty: there is none.
fn status(sw: &Switch, key: &str) -> String {
    let key = format!("bfd_status:{key}");
    let text = sw.vsctl(&["--if-exists", "get", "interface", "tun", &key]).unwrap();
    text.trim().trim_matches('"').to_string()
}

fn flaps(sw: &Switch) -> u64 {
    status(sw, "flap_count").parse().unwrap()
}

/// The status has these values.
fn becomes(sw: &Switch, what: &str, values: &[(&str, &str)]) {
    wait_for(what, || values.iter().all(|(key, value)| status(sw, key) == *value));
}

const UP: &[(&str, &str)] = &[("state", "up"), ("forwarding", "true"), ("remote_state", "up")];
const DOWN: &[(&str, &str)] = &[
    ("state", "down"),
    ("forwarding", "false"),
    ("remote_state", "down"),
    ("diagnostic", "Control Detection Time Expired"),
];

/// What `bfd/show` calls its values.
fn labels(sw: &Switch) -> Vec<String> {
    let text = appctl(sw, "bfd/show tun");
    text.lines().map(|l| l.split(": ").next().unwrap().to_string()).collect()
}

fn beside_ovs(kind: &str, udp: u16) {
    if !privileged() {
        return;
    }
    let (_turn, a, b) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    veth((&a, "nic0"), (&b, "nic0")).unwrap();
    let weft = hypervisor(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")), 1, kind);
    let ovs = hypervisor(&b, SwitchConfig::oracle(), 2, kind);
    let both = [&weft, &ovs];
    both.iter().for_each(|sw| becomes(sw, "a session", UP));
    assert_eq!(labels(&weft), labels(&ovs));
    assert!(flaps(&weft) % 2 == 1, "it forwards after an odd number of changes");
    // The tunnel while it forwards, else a cable to a host.
    let (host, guest) = (host(&a, 8), host(&a, 9));
    vsctl(&weft, "add-port br-int v8 -- set interface v8 ofport_request=8");
    vsctl(&weft, "add-port br-int v9 -- set interface v9 ofport_request=9");
    let group = "group_id=1,type=ff,bucket=watch_port:1,output:1,bucket=watch_port:8,output:8";
    ofctl(&weft, &format!("-O OpenFlow13 add-group br-int {group}"));
    ofctl(&weft, "-O OpenFlow13 add-flow br-int in_port=9,actions=group:1");
    let (from, second) = (Raw::open(&guest, "eth0").unwrap(), Raw::open(&host, "eth0").unwrap());
    let sent_second = || {
        from.send(&[&[2; 12][..], &[0x88, 0xb5], &[7; 46]].concat()).unwrap();
        let mine = |f: &[u8]| f[12..14] == [0x88, 0xb5];
        !second.collect(1, Instant::now() + QUIET, mine).is_empty()
    };
    assert!(!sent_second(), "the tunnel is the first choice");
    let cut = |way: &str| ofctl(&ovs, &format!("add-flow br-phy {CUT}{udp}{way},actions=drop"));
    let whole = || ofctl(&ovs, &format!("--strict del-flows br-phy {CUT}{udp}"));
    let before = flaps(&weft);
    cut("");
    both.iter().for_each(|sw| becomes(sw, "the loss to be found", DOWN));
    assert_eq!(flaps(&weft), before + 1);
    wait_for("the other choice", sent_second);
    whole();
    both.iter().for_each(|sw| becomes(sw, "the session again", UP));
    wait_for("the first choice", || !sent_second());
    // Only towards Weft: it hears nothing, and says so.
    cut(",in_port=LOCAL");
    becomes(&weft, "silence", &[("state", "down"), ("forwarding", "false")]);
    becomes(&ovs, "the peer's word", &[("forwarding", "false"), ("remote_state", "down")]);
    ofctl(&ovs, &format!("--strict del-flows br-phy {CUT}{udp},in_port=LOCAL"));
    both.iter().for_each(|sw| becomes(sw, "the session once more", UP));
    settings(&weft, &ovs);
}

/// What is set on one side, the other side notices.
fn settings(weft: &Switch, ovs: &Switch) {
    for (one, other) in [(ovs, weft), (weft, ovs)] {
        vsctl(one, "set interface tun bfd:cpath_down=true");
        let values = [("remote_diagnostic", "Concatenated Path Down"), ("forwarding", "false")];
        becomes(other, "cpath_down", &values);
        assert_eq!(status(other, "state"), "up");
        vsctl(one, "remove interface tun bfd cpath_down");
        becomes(other, "no cpath_down", UP);
        vsctl(one, "set interface tun bfd:min_tx=300 bfd:mult=7");
        wait_for("the peer's settings", || {
            let shown = appctl(other, "bfd/show tun");
            shown.contains("Remote Minimum TX Interval: 300ms")
                && shown.contains("Remote Detect Multiplier: 7")
        });
    }
    appctl(weft, "bfd/set-forwarding tun false");
    becomes(weft, "the command", &[("forwarding", "false"), ("state", "up")]);
    appctl(weft, "bfd/set-forwarding normal");
    becomes(weft, "the session's word", UP);
    assert!(weft.appctl(&["bfd/set-forwarding", "nosuch", "true"]).is_err());
    assert!(weft.appctl(&["bfd/show", "nosuch"]).is_err());
    // A daemon that comes back finds the session again.
    weft.kill_daemon();
    weft.start_daemon().unwrap();
    [weft, ovs].iter().for_each(|sw| becomes(sw, "a new daemon's session", UP));
    vsctl(ovs, "set interface tun bfd:enable=false");
    becomes(weft, "a peer that has none", DOWN);
    vsctl(weft, "set interface tun bfd:enable=false");
    wait_for("no status", || status(weft, "state").is_empty());
    assert_eq!(appctl(weft, "bfd/show"), "");
}

#[test]
fn over_geneve_beside_ovs() {
    beside_ovs("geneve", 6081);
}

#[test]
fn over_vxlan_beside_ovs() {
    beside_ovs("vxlan", 4789);
}

/// A control packet of a session that is down, by another sender.
fn forged(n: u32) -> Vec<u8> {
    let mut f = vec![0x00, 0x23, 0x20, 0x00, 0x00, 0x01, 2, 0, 0, 0, 0, 9, 8, 0];
    f.extend([0x45, 0xc0, 0, 52, 0, 0, 0, 0, 255, 17, 0x64, 0xfb, 169, 254, 1, 1, 169, 254, 1, 0]);
    f.extend([0xc0, 0, 0x0e, 0xc8, 0, 32, 0, 0, 0x20, 0x40, 3, 24]);
    f.extend([n + 1, 0, 100_000, 100_000, 0].map(u32::to_be_bytes).concat());
    f
}

#[test]
fn a_flood_on_one_interface_is_its_own_loss() {
    if !privileged() {
        return;
    }
    let (_turn, a, b) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    veth((&a, "nic0"), (&b, "nic0")).unwrap();
    let config = || SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    let (one, two) = (hypervisor(&a, config(), 1, "geneve"), hypervisor(&b, config(), 2, "geneve"));
    let attacker = host(&a, 9);
    vsctl(&one, "add-port br-int v9 -- set interface v9 bfd:enable=true");
    [&one, &two].iter().for_each(|sw| becomes(sw, "a session", UP));
    let before = flaps(&one);
    let runs_before = coverage(&one, "bfd_run");
    let start = Instant::now();
    let raw = Raw::open(&attacker, "eth0").unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    let mut sent = 0;
    while Instant::now() < end {
        sent += 1;
        // The cable's queue may be full.
        let _ = raw.send(&forged(sent));
    }
    wait_for("refused packets", || coverage(&one, "datapath_drop_punt_rate") > 1000);
    let runs = coverage(&one, "bfd_run") - runs_before;
    // Sixteen at once, and per second at most two that are heard, two looks whether more are, and
    // what the sessions send; the tunnel's hears seven.
    let allowed = 16 + 20 * (1 + start.elapsed().as_secs());
    assert!(runs <= allowed, "sessions run {runs} times, {allowed} are enough");
    assert_eq!(flaps(&one), before, "the tunnel's session, after {sent} forged packets");
    assert_eq!(status(&two, "state"), "up");
}
