//! Bonds: LACP with ovs-vswitchd at the other end, packets spread over links and moved when one
//! fails, sources spread without a partner, and the commands' answers as ovs-vswitchd gives them.

mod lab;

use lab::*;
use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Probe, Raw, Switch, SwitchConfig, privileged, veth};

/// Two links n0 and n1 from here to there.
fn cables(here: &Netns, there: &Netns) {
    for dev in ["n0", "n1"] {
        veth((here, dev), (there, dev)).unwrap();
        [here, there].iter().for_each(|ns| ns.ipv6_off(dev).unwrap());
    }
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

/// A datagram of host 1 to host 2 from this port.
fn datagram(port: u16) -> Vec<u8> {
    let ips = ([10, 0, 0, 1], [10, 0, 0, 2]);
    Frame::udp4((mac(1), mac(2)), ips, (port, 4444), &[7; 40]).padded()
}

/// To port 4444.
fn is_datagram(f: &[u8]) -> bool {
    f[12..14] == [8, 0] && f[36..38] == 4444u16.to_be_bytes()
}

/// How many of 64 connections' datagrams arrive by each link, in frames that are `outer`, and how
/// many at host 2.
fn spread(hosts: [&Netns; 2], far: &Netns, outer: impl Fn(&[u8]) -> bool) -> ([usize; 2], usize) {
    let from = Raw::open(hosts[0], "eth0").unwrap();
    let at = [(far, "n0"), (far, "n1"), (hosts[1], "eth0")];
    let taps = at.map(|(ns, dev)| Raw::open(ns, dev).unwrap());
    (5000..5064).for_each(|port| from.send(&datagram(port)).unwrap());
    let [a, b, host] = taps;
    let links = [a, b].map(|tap| tap.collect(65, Instant::now() + QUIET, &outer).len());
    (links, host.collect(65, Instant::now() + QUIET, is_datagram).len())
}

fn negotiated(sw: &Switch, n: usize) -> bool {
    appctl(sw, "lacp/show bond").matches(": current attached").count() == n
        && appctl(sw, "bond/show bond").matches(": enabled").count() == n
}

/// What a text calls its values.
fn labels(text: &str) -> Vec<String> {
    text.lines().map(|l| l.split(": ").next().unwrap().to_string()).collect()
}

#[test]
fn lacp_beside_ovs() {
    if !privileged() {
        return;
    }
    let (_turn, a, b) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    cables(&a, &b);
    let weft = start_with_bridge(&a);
    let ovs = Switch::start(&b, SwitchConfig::oracle()).unwrap();
    add_bridge(&ovs, "br0");
    let (one, two) = (host_on(&a, &weft, 1), host_on(&b, &ovs, 2));
    let bond = "add-bond br0 bond n0 n1 bond_mode=balance-tcp other_config:lacp-time=fast lacp=";
    vsctl(&weft, &format!("{bond}active"));
    vsctl(&ovs, &format!("{bond}passive"));
    let agree = |n| wait_for("agreement", || negotiated(&weft, n) && negotiated(&ovs, n));
    agree(2);
    assert_eq!(labels(&appctl(&weft, "lacp/show")), labels(&appctl(&ovs, "lacp/show")));
    wait_for("the database", || iface(&weft, "n0", "lacp_current") == "true");
    let members = appctl(&weft, "weft/state bonds/bond/members");
    assert_eq!(members.matches("\"buckets\": 128").count(), 2, "{members}");
    ping(&one, 2);
    let both = || {
        wait_for("both links in use", || {
            let ([a, b], host) = spread([&one, &two], &b, is_datagram);
            a > 0 && b > 0 && (a + b, host) == (64, 64)
        })
    };
    both();
    b.ip("link set n0 down").unwrap();
    agree(1);
    wait_for("one link in use", || spread([&one, &two], &b, is_datagram) == ([0, 64], 64));
    ping(&two, 1);
    b.ip("link set n0 up").unwrap();
    agree(2);
    both();
    // A daemon that comes back agrees again.
    weft.kill_daemon();
    weft.start_daemon().unwrap();
    agree(2);
    ping(&one, 2);
    // Without LACP on the other side nothing is sent, but in active-backup mode.
    vsctl(&ovs, "set port bond lacp=off bond_mode=active-backup");
    wait_for("silence", || appctl(&weft, "bond/show").contains("lacp_status: configured"));
    wait_for("no packets", || spread([&one, &two], &b, is_datagram).0 == [0, 0]);
    vsctl(&weft, "set port bond other_config:lacp-fallback-ab=true");
    wait_for("one link", || {
        spread([&one, &two], &b, is_datagram).0.iter().filter(|n| **n == 64).count() == 1
    });
}

/// An LACPDU of a partner with this state, to this address.
fn lacpdu(dst: [u8; 6], state: u8) -> Vec<u8> {
    let info = |sys: [u8; 6], state: u8| {
        [&[0xff, 0xff][..], &sys, &[0, 1, 0xff, 0xff, 0, 1, state, 0, 0, 0]].concat()
    };
    let head = [&dst[..], &mac(8), &[0x88, 9, 1, 1, 1, 20]].concat();
    let mut out = [head, info(mac(8), state), vec![2, 20], info([0; 6], 0), vec![3, 16]].concat();
    out.resize(124, 0);
    out
}

/// A partner that says now this, now that costs the switch what one that keeps to the standard may.
#[test]
fn a_partner_that_floods_changes_little() {
    const SLOW_PROTOCOLS: [u8; 6] = [1, 0x80, 0xc2, 0, 0, 2];
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    cables(&ns, &far);
    vsctl(&sw, "add-bond br0 bond n0 n1 bond_mode=balance-tcp lacp=active");
    let partner = Raw::open(&far, "n0").unwrap();
    let (up, down) = (0x3f, 0x37);
    let received = || -> u64 {
        let text = appctl(&sw, "lacp/show-stats bond");
        let counts = text.lines().filter_map(|l| l.trim().strip_prefix("RX PDUs: "));
        counts.map(|n| n.parse::<u64>().unwrap()).sum()
    };
    // Whoever has a port of a switch between.
    for dst in [mac(9), [0xff; 6], [1, 0, 0x5e, 0, 0, 2]] {
        partner.send(&lacpdu(dst, up)).unwrap();
    }
    std::thread::sleep(QUIET);
    assert_eq!(received(), 0);
    wait_for("the bond", || {
        let _ = partner.send(&lacpdu(SLOW_PROTOCOLS, up));
        appctl(&sw, "bond/show bond").matches("member n0: enabled").count() == 1
    });
    let before = received();
    assert!(before <= 20, "{before}");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        for state in [down, up] {
            let _ = partner.send(&lacpdu(SLOW_PROTOCOLS, state));
        }
    }
    wait_for("refused packets", || coverage(&sw, "datapath_drop_punt_rate") > 1000);
    let allowed = 16 + 7 * (1 + start.elapsed().as_secs());
    let heard = received() - before;
    assert!(heard <= allowed, "{heard} were heard, {allowed} are enough");
    // The partner is heard when it is quiet again.
    wait_for("the bond", || {
        let _ = partner.send(&lacpdu(SLOW_PROTOCOLS, up));
        std::thread::sleep(Duration::from_millis(300));
        appctl(&sw, "bond/show bond").matches("member n0: enabled").count() == 1
    });
}

/// A hypervisor whose tunnel to the other leaves by the bond of `br-phy`, and its guest.
fn hypervisor<'a>(ns: &'a Netns, config: SwitchConfig, n: u8) -> (Switch<'a>, Netns) {
    let sw = Switch::start(ns, config).unwrap();
    add_bridge(&sw, "br-phy");
    // Else the address of OVS's bridge follows its members, and the other end may know an old one.
    vsctl(&sw, &format!("set bridge br-phy other_config:hwaddr=02:00:00:00:01:0{n}"));
    vsctl(
        &sw,
        "add-bond br-phy bond n0 n1 bond_mode=balance-tcp lacp=active other_config:lacp-time=fast",
    );
    ns.ip(&format!("addr add 10.1.1.{n}/24 dev br-phy")).unwrap();
    ns.ip("link set br-phy up").unwrap();
    add_bridge(&sw, "br0");
    let tunnel = format!("type=vxlan options:remote_ip=10.1.1.{}", 3 - n);
    vsctl(&sw, &format!("add-port br0 tun -- set interface tun {tunnel}"));
    let guest = host_on(ns, &sw, n);
    guest.ip("link set eth0 mtu 1400").unwrap();
    (sw, guest)
}

#[test]
fn a_tunnels_connections_are_spread() {
    if !privileged() {
        return;
    }
    let (_turn, a, b) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    cables(&a, &b);
    let (weft, one) = hypervisor(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")), 1);
    let (ovs, two) = hypervisor(&b, SwitchConfig::oracle(), 2);
    wait_for("agreement", || negotiated(&weft, 2) && negotiated(&ovs, 2));
    ping(&one, 2);
    let outer = |f: &[u8]| f[12..14] == [8, 0] && f[36..38] == 4789u16.to_be_bytes();
    wait_for("both links in use", || {
        let (links, guest) = spread([&one, &two], &b, outer);
        links.iter().all(|n| *n > 8) && (links[0] + links[1], guest) == (64, 64)
    });
    // A link less: the tunnel stays.
    b.ip("link set n1 down").unwrap();
    wait_for("one link", || negotiated(&weft, 1));
    ping(&one, 2);
}

/// A switch with a port whose end is e1 and a bond whose ends are n0 and n1, and what probes them.
fn bench<'a>(ns: &'a Netns, far: &Netns, mode: &str) -> (Switch<'a>, Probe) {
    let sw = start_with_bridge(ns);
    cables(ns, far);
    veth((ns, "v1"), (far, "e1")).unwrap();
    [(ns, "v1"), (far, "e1")].iter().for_each(|(ns, dev)| ns.ipv6_off(dev).unwrap());
    let mut probe = Probe::new();
    ["e1", "n0", "n1"].iter().for_each(|dev| probe.add(far, dev).unwrap());
    vsctl(&sw, "add-port br0 v1");
    vsctl(&sw, &format!("add-bond br0 bond n0 n1 bond_mode={mode}"));
    wait_for("both links", || appctl(&sw, "bond/show bond").matches(": enabled").count() == 2);
    (sw, probe)
}

/// Where a frame with this source and destination comes out that goes in at `dev`.
fn out(probe: &Probe, dev: &str, src: [u8; 6], dst: [u8; 6]) -> Vec<String> {
    let frame = [&dst[..], &src, &[0x88, 0xb5], &[7; 46]].concat();
    let mut all = probe.inject(dev, &frame, QUIET).unwrap();
    // Besides these the switch may still say where hosts are.
    all.values_mut().for_each(|frames| frames.retain(|f| *f == frame));
    all.iter().flat_map(|(dev, frames)| frames.iter().map(|_| dev.clone())).collect()
}

fn active(sw: &Switch) -> &'static str {
    let text = appctl(sw, "bond/show bond");
    let at = text.find("  active member\n").unwrap();
    if text[..at].rfind("member n0") > text[..at].rfind("member n1") { "n0" } else { "n1" }
}

#[test]
fn sources_are_spread_without_a_partner() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let (sw, probe) = bench(&ns, &far, "balance-slb");
    let hash = appctl(&sw, "bond/hash 02:00:00:00:00:05");
    for member in ["n1", "n0", "n1"] {
        appctl(&sw, &format!("bond/migrate bond {} {member}", hash.trim()));
        assert_eq!(out(&probe, "e1", mac(5), mac(9)), [member]);
    }
    // The same on its way back: it is not taken for a new place of its host.
    for member in ["n0", "n1"] {
        assert_eq!(out(&probe, member, mac(5), mac(1)), Vec::<String>::new());
    }
    assert_eq!(out(&probe, "n0", mac(7), mac(5)), ["e1"]);
    let backup = if active(&sw) == "n0" { "n1" } else { "n0" };
    assert_eq!(out(&probe, active(&sw), mac(7), [0xff; 6]), ["e1"]);
    assert!(out(&probe, backup, mac(7), [0xff; 6]).is_empty(), "it came by the other link too");
    far.ip("link set n1 down").unwrap();
    wait_for("the other link", || out(&probe, "e1", mac(5), mac(9)) == ["n0"]);
}

#[test]
fn one_interface_is_active() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let (sw, probe) = bench(&ns, &far, "active-backup");
    for name in ["n0", "n1"] {
        appctl(&sw, &format!("bond/set-active-member bond {name}"));
        assert_eq!(out(&probe, "e1", mac(5), mac(9)), [name]);
        let other = if name == "n0" { "n1" } else { "n0" };
        assert_eq!(out(&probe, name, mac(7), mac(5)), ["e1"]);
        assert!(out(&probe, other, mac(7), mac(5)).is_empty());
        let mac = iface(&sw, name, "mac_in_use");
        wait_for("the database", || vsctl(&sw, "get port bond bond_active_slave").contains(&mac));
    }
    far.ip("link set n1 down").unwrap();
    let failover = wait_for("the backup", || out(&probe, "e1", mac(5), mac(9)) == ["n0"]);
    // Whoever is on the other side hears by the new link where the host is.
    vsctl(&sw, "set port bond other_config:bond-primary=n1");
    probe.gather(QUIET);
    far.ip("link set n1 up").unwrap();
    let mut said = false;
    wait_for("a frame of the host", || {
        let frames = probe.gather(QUIET).remove("n1").unwrap_or_default();
        said |= frames.iter().any(|f| f[6..14] == [&mac(5)[..], &[0x80, 0x35]].concat());
        said
    });
    assert!(failover < Duration::from_secs(5), "{failover:?}");
    wait_for("the primary", || out(&probe, "e1", mac(5), mac(9)) == ["n1"]);
}

/// The answers of both switches to a command.
fn answers(both: [&Switch; 2], command: &str) -> [String; 2] {
    let words: Vec<&str> = command.split_whitespace().collect();
    both.map(|sw| match sw.appctl(&words) {
        Ok(text) => text,
        // Only the daemon's own words, behind the command line.
        Err(e) => e.lines().next().unwrap_or("").rsplit(": ").next().unwrap_or("").to_string(),
    })
}

/// Without addresses, times, and numbers that switches choose.
fn common(text: &str) -> Vec<String> {
    let keep = |l: &&str| !l.starts_with("active member mac") && !l.starts_with("next rebalance");
    let cut = |l: &str| l.split("Recirc-ID").next().unwrap().to_string();
    text.lines().filter(keep).map(cut).collect()
}

#[test]
fn commands_answer_as_in_ovs() {
    if !privileged() {
        return;
    }
    let (_turn, a, b) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    cables(&a, &b);
    let weft = start_with_bridge(&a);
    let ovs = Switch::start(&b, SwitchConfig::oracle()).unwrap();
    add_bridge(&ovs, "br0");
    let both = [&weft, &ovs];
    for sw in both {
        vsctl(sw, "add-bond br0 bond n0 n1 bond_mode=active-backup bond_updelay=0");
    }
    for mode in ["active-backup", "balance-slb", "balance-tcp"] {
        for sw in both {
            vsctl(sw, &format!("set port bond bond_mode={mode} other_config:bond-primary=n1"));
            wait_for("both links", || appctl(sw, "bond/show").matches(": enabled").count() == 2);
            appctl(sw, "bond/set-active-member bond n1");
        }
        for command in [
            "bond/show bond",
            "bond/show",
            "bond/show nosuch",
            "bond/set-active-member bond n1",
            "bond/set-active-member bond n7",
            "bond/set-active-member nosuch n1",
            "bond/migrate bond 3 n1",
            "bond/migrate bond x n1",
            "bond/migrate bond 3 n7",
            "bond/disable-member bond n7",
            "bond/hash nonsense",
            "bond/hash 02:00:00:00:00:01 x",
            "lacp/show",
            "lacp/show bond",
            "lacp/show-stats bond",
        ] {
            let [ours, theirs] = answers(both, command);
            assert_eq!(common(&ours), common(&theirs), "{mode}: {command}");
        }
    }
    for sw in both {
        vsctl(sw, "set port bond lacp=active bond_mode=balance-tcp other_config:lacp-time=fast");
        wait_for("agreement", || appctl(sw, "bond/show").contains("lacp_status: negotiated"));
    }
    wait_for("both", || both.iter().all(|sw| negotiated(sw, 2)));
    let [ours, theirs] = answers(both, "lacp/show-stats bond");
    assert_eq!(labels(&ours), labels(&theirs));
    let [ours, theirs] = answers(both, "bond/show bond");
    assert_eq!(labels(&ours).len(), labels(&theirs).len());
}
