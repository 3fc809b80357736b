//! Mirrors: copies of packets at another port or in another VLAN, their counters, and
//! `ovs-tcpdump`, which makes one.

mod lab;

use lab::*;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use testkit::{Frame, Net, Netns, Probe, Switch, privileged};

struct Bench<'a> {
    sw: Switch<'a>,
    probe: Probe,
}

/// Ports v1 to v4 end at probes e1 to e4; v1 and v2 send to each other, v4 sends nowhere.
fn bench<'a>(ns: &'a Netns, far: &Netns) -> Bench<'a> {
    let (sw, probe) = start_with_probes(ns, far, 4);
    Bench { sw, probe }
}

impl Bench<'_> {
    /// Sends a frame of 214 bytes into a port; where it comes out, and how long it is there.
    fn send(&self, from: u8, vlan: u16) -> BTreeMap<String, Vec<usize>> {
        let frame = frame(from);
        let frame = if vlan == 0 { frame } else { frame.tagged(0x8100, vlan) };
        let out = self.probe.inject(&format!("e{from}"), &frame.bytes(), QUIET).unwrap();
        out.into_iter().map(|(dev, all)| (dev, all.iter().map(Vec::len).collect())).collect()
    }

    fn mirror(&self, set: &str) {
        vsctl(&self.sw, "clear bridge br0 mirrors");
        let ports = "--id=@v1 get port v1 -- --id=@v2 get port v2 -- --id=@v3 get port v3";
        vsctl(
            &self.sw,
            &format!("{ports} -- --id=@m create mirror name=m {set} -- set bridge br0 mirrors=@m"),
        );
    }
}

fn frame(from: u8) -> Frame {
    Frame::new([2, 0, 0, 0, 1, from], [2, 0, 0, 0, 2, from], Net::Raw(0x88b5, vec![7; 200]))
}

fn seen<const N: usize>(ends: [(&str, usize); N]) -> BTreeMap<String, Vec<usize>> {
    ends.into_iter().map(|(dev, len)| (dev.to_string(), vec![len])).collect()
}

#[test]
fn copies_come_out_where_the_database_says() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    assert_eq!(b.send(1, 0), seen([("e2", 214)]));
    b.mirror("select_src_port=@v1 output_port=@v3");
    assert_eq!(b.send(1, 0), seen([("e2", 214), ("e3", 214)]));
    assert_eq!(b.send(2, 0), seen([("e1", 214)]));
    b.mirror("select_dst_port=@v1 output_port=@v3");
    assert_eq!(b.send(1, 0), seen([("e2", 214)]));
    assert_eq!(b.send(2, 0), seen([("e1", 214), ("e3", 214)]));
    b.mirror("select_all=true select_vlan=9 snaplen=100 output_port=@v3");
    assert_eq!(b.send(1, 8), seen([("e2", 218)]));
    assert_eq!(b.send(1, 9), seen([("e2", 218), ("e3", 100)]));
    assert_eq!(b.send(3, 0), seen([]), "the mirror's port is the mirror's");
    assert_eq!(dropped(&b.sw, "mirror_port"), 1);
    vsctl(&b.sw, "set port v4 tag=12 -- set port v2 trunks=1");
    b.mirror("select_src_port=@v1 output_vlan=12");
    let mut remote = seen([("e1", 218), ("e3", 218), ("e4", 214)]);
    remote.insert("e2".into(), vec![214]);
    assert_eq!(b.send(1, 0), remote);
    vsctl(&b.sw, "clear bridge br0 mirrors");
    assert_eq!(b.send(1, 0), seen([("e2", 214)]));
}

/// A counter of dropped packets.
fn dropped(sw: &Switch, reason: &str) -> u64 {
    appctl(sw, &format!("coverage/read-counter datapath_drop_{reason}")).trim().parse().unwrap()
}

#[test]
fn what_was_mirrored_is_counted_and_what_is_wrong_is_said() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    b.mirror("select_src_port=@v1 output_port=@v3");
    for _ in 0..3 {
        b.send(1, 0);
    }
    wait_for("the mirror's statistics", || {
        vsctl(&b.sw, "get mirror m statistics") == "{tx_bytes=642, tx_packets=3}"
    });
    // The port goes, and with it, in the database, the mirror's output.
    vsctl(&b.sw, "del-port v3");
    b.send(1, 0);
    vsctl(&b.sw, "add-br br1 -- --id=@p get port br1 -- set mirror m output_port=@p");
    let log = b.sw.log();
    for text in [
        "|ERR|bridge br0: mirror m does not specify output; ignoring",
        "|ERR|bridge br0: mirror m outputs to port not on bridge",
    ] {
        assert_eq!(log.matches(text).count(), 1, "{text}\n{log}");
    }
}

/// `ovs-tcpdump -i PORT` until it has seen `n` packets.
fn tcpdump(b: &Bench, port: &str, n: usize) -> Child {
    let mut c = b.sw.command("ovs-tcpdump");
    c.args(["-i", port, "-c", &n.to_string(), "-n", "-e"]).stdout(Stdio::piped());
    let child = c.spawn().expect("ovs-tcpdump (Debian: openvswitch-common)");
    wait_for("the mirror", || vsctl(&b.sw, "--columns=name list mirror").contains(port));
    child
}

/// Sends what makes packets pass until it has seen enough; what it printed.
fn watch(b: &Bench, mut dump: Child, mut send: impl FnMut()) -> String {
    let end = Instant::now() + Duration::from_secs(60);
    while dump.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "ovs-tcpdump sees nothing");
        send();
    }
    let text = String::from_utf8(dump.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(vsctl(&b.sw, "list mirror"), "", "it leaves no mirror");
    assert!(!vsctl(&b.sw, "list-ports br0").contains("mi"), "and no port");
    text
}

#[test]
fn ovs_tcpdump_sees_both_ways_of_a_system_and_an_internal_port() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    let both = || {
        b.send(1, 0);
        b.send(2, 0);
    };
    let text = watch(&b, tcpdump(&b, "v1", 6), both);
    for from in ["02:00:00:00:01:01 >", "02:00:00:00:01:02 >"] {
        assert!(text.contains(from), "{text}");
    }
    // The bridge's own port: the host's packets, and those for it.
    ns.exec(&["ip", "addr", "add", "10.77.0.1/24", "dev", "br0"]).unwrap();
    ns.exec(&["ip", "link", "set", "br0", "up"]).unwrap();
    ofctl(&b.sw, "add-flow br0 in_port=local,actions=2");
    let dump = tcpdump(&b, "br0", 2);
    let text = watch(&b, dump, || {
        let _ = ns.exec(&["ping", "-c1", "-W1", "10.77.0.2"]);
    });
    assert!(text.contains("ARP") && text.contains("10.77.0.2"), "{text}");
}

#[test]
fn ovs_tcpdump_sees_both_ways_of_a_guests_port() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    let_pmd_threads_sleep(&b.sw);
    let socket = b.sw.dir().join("guest.sock");
    let guest =
        "add-port br0 guest -- set interface guest type=dpdkvhostuserclient ofport_request=7";
    vsctl(&b.sw, &format!("{guest} options:vhost-server-path={}", socket.display()));
    ofctl(&b.sw, "add-flow br0 priority=40000,in_port=1,actions=7");
    ofctl(&b.sw, "add-flow br0 in_port=7,actions=1");
    let ring = Ring { queues: 1, server: true, ..Ring::default() };
    let _guest = Guest::start(&socket, ring, "macswap");
    let up = || iface(&b.sw, "guest", "link_state") == "up";
    wait_within("the guest", 3 * WAIT_TIME_MAX, up);
    wait_within("its answers", 3 * WAIT_TIME_MAX, || b.send(1, 0).contains_key("e1"));
    let dump = tcpdump(&b, "guest", 6);
    // The next packet goes when the one before was answered: a guest that has to wait for a core
    // would answer all of them behind the last one that ovs-tcpdump waits for.
    let text = watch(&b, dump, || {
        let mut answered = b.send(1, 0).contains_key("e1");
        wait_within("its answer", 3 * WAIT_TIME_MAX, || {
            answered |= b.probe.gather(QUIET).contains_key("e1");
            answered
        });
    });
    for way in ["02:00:00:00:01:01 > 02:00:00:00:02:01", "02:00:00:00:02:01 > 02:00:00:00:01:01"] {
        assert!(text.contains(way), "{text}");
    }
}
