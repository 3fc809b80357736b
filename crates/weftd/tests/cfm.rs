//! CFM with ovs-vswitchd at the other end of a cable: both hear one another in each mode, and find
//! out that the other one is silent or down; and a flood of messages on one port is no fault of
//! another.

mod lab;

use lab::*;
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, Switch, SwitchConfig, privileged, veth};

/// An interval that a busy machine keeps: a silent point is found after up to seven seconds.
const INTERVAL: &str = "other_config:cfm_interval=1000";

/// A column of an interface's row.
fn column(sw: &Switch, iface: &str, name: &str) -> String {
    sw.vsctl(&["get", "interface", iface, name]).unwrap().trim().to_string()
}

fn becomes(sw: &Switch, what: &str, values: &[(&str, &str)]) {
    wait_for(what, || values.iter().all(|(name, value)| column(sw, "nic0", name) == *value));
}

/// The lines of `cfm/show` but for times and for what was heard since a time.
fn shown(sw: &Switch) -> Vec<String> {
    let text = appctl(sw, "cfm/show nic0");
    let fixed =
        |l: &&str| !l.contains("next ") && !l.contains("recv since") && !l.contains("health");
    text.lines()
        .filter(fixed)
        .map(|l| l.replace("MPID 7", "MPID N").replace("MPID 8", "MPID N"))
        .collect()
}

/// The database has what a warp of the clock brought about when the command ends.
#[test]
fn a_warp_is_in_the_database_at_once() {
    if !privileged() {
        return;
    }
    let (_turn, net) = (turn(), Netns::new().unwrap());
    let mut config = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    config.args.push("--enable-dummy".into());
    let sw = Switch::start(&net, config).unwrap();
    add_bridge(&sw, "br0");
    vsctl(
        &sw,
        "add-port br0 nic0 -- set interface nic0 type=gre options:remote_ip=192.0.2.3 \
         other_config:cfm_interval=300 other_config:cfm_extended=true",
    );
    appctl(&sw, "time/stop");
    let fault = |then: &str| {
        vsctl(&sw, then);
        appctl(&sw, "time/warp 1500 100");
        column(&sw, "nic0", "cfm_fault")
    };
    for _ in 0..10 {
        assert_eq!(fault("set interface nic0 cfm_mpid=1"), "true");
        assert_eq!(fault("remove interface nic0 cfm_mpid 1"), "[]");
    }
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
    for (sw, mpid) in [(&weft, 7), (&ovs, 8)] {
        add_bridge(sw, "br0");
        vsctl(sw, &format!("add-port br0 nic0 -- set interface nic0 cfm_mpid={mpid} {INTERVAL}"));
    }
    let sound = [("cfm_fault", "false"), ("cfm_fault_status", "[]")];
    for extended in [false, true] {
        // A VLAN and a priority say nothing about who hears.
        let tag =
            if extended { "other_config:cfm_ccm_vlan=5 other_config:cfm_ccm_pcp=6" } else { "" };
        for sw in [&weft, &ovs] {
            vsctl(sw, &format!("set interface nic0 other_config:cfm_extended={extended} {tag}"));
        }
        let state = if extended { "up" } else { "[]" };
        for (sw, remote) in [(&weft, "[8]"), (&ovs, "[7]")] {
            let heard = [("cfm_remote_mpids", remote), ("cfm_remote_opstate", state)];
            becomes(sw, "a remote point", &[&sound[..], &heard].concat());
        }
        assert_eq!(shown(&weft), shown(&ovs));
    }
    // What one says of itself, the other one knows.
    for (one, other) in [(&weft, &ovs), (&ovs, &weft)] {
        vsctl(one, "set interface nic0 other_config:cfm_opstate=down");
        becomes(other, "a point that is down", &[("cfm_remote_opstate", "down")]);
        vsctl(one, "remove interface nic0 other_config cfm_opstate");
        becomes(other, "a point that is up", &[("cfm_remote_opstate", "up")]);
    }
    assert_eq!(appctl(&weft, "cfm/set-fault nic0 true").trim(), "OK");
    becomes(&weft, "the command", &[("cfm_fault", "true"), ("cfm_fault_status", "[override]")]);
    appctl(&weft, "cfm/set-fault normal");
    becomes(&weft, "what is heard", &sound);
    vsctl(&ovs, "clear interface nic0 cfm_mpid");
    becomes(&weft, "silence", &[("cfm_fault", "true"), ("cfm_fault_status", "[recv]")]);
    vsctl(&weft, "set interface nic0 cfm_mpid=9000 other_config:cfm_extended=false");
    becomes(&weft, "no CFM", &[("cfm_fault", "[]"), ("cfm_remote_mpids", "[]")]);
    let log = weft.log();
    assert!(log.contains("cfm_mpid=9000 is not 1 to 8191"), "{log}");
    assert!(weft.appctl(&["cfm/show", "nic0"]).is_err());
}

/// A continuity check message of the point with this MPID.
fn forged(n: u32) -> Vec<u8> {
    let mut frame = [&[1, 0x80, 0xc2, 0, 0, 0x30][..], &[2, 0, 0, 0, 0, 9], &[0x89, 0x02]].concat();
    let mpid = (n % 8000 + 100) as u16;
    frame.extend([0, 1, 4, 70, 0, 0, 0, 1]);
    frame.extend(mpid.to_be_bytes());
    frame.extend([4, 3, b'o', b'v', b's', 2, 3, b'o', b'v', b's']);
    frame.resize(14 + 75, 0);
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
    vsctl(&sw, "add-br br1");
    let patch = "type=patch options:peer";
    let mut all = String::from("add-port br0 pa -- add-port br1 pb ");
    for (name, other, mpid) in [("pa", "pb", 1), ("pb", "pa", 2)] {
        all += &format!("-- set interface {name} {patch}={other} cfm_mpid={mpid} {INTERVAL} ");
    }
    vsctl(&sw, &all);
    veth((&ns, "nic0"), (&peer, "eth0")).unwrap();
    vsctl(&sw, &format!("add-port br0 nic0 -- set interface nic0 cfm_mpid=3 {INTERVAL}"));
    wait_for("a session", || column(&sw, "pa", "cfm_remote_mpids") == "[2]");
    let flaps = column(&sw, "pa", "cfm_flap_count");
    let raw = Raw::open(&peer, "eth0").unwrap();
    let (runs_before, start) = (coverage(&sw, "cfm_run"), Instant::now());
    let mut sent = 0;
    while start.elapsed() < Duration::from_secs(10) {
        // The cable's queue may be full.
        let _ = raw.send(&forged(sent));
        sent += 1;
    }
    let runs = coverage(&sw, "cfm_run") - runs_before;
    assert!(coverage(&sw, "datapath_drop_punt_rate") > 1000, "of {sent}");
    // Per second a message of each of three interfaces, looks at remote points, and 21 looks
    // whether more messages are heard.
    let allowed = 30 * (1 + start.elapsed().as_secs());
    assert!(runs <= allowed, "sessions run {runs} times, {allowed} are enough");
    assert_eq!(column(&sw, "pa", "cfm_flap_count"), flaps);
    let remotes = column(&sw, "nic0", "cfm_remote_mpids");
    assert!(remotes.split(',').count() <= 256, "{remotes}");
    assert!(column(&sw, "nic0", "cfm_fault_status").contains("overflow"));
}
