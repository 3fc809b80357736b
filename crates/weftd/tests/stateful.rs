//! Flows that remember: connections, and pipelines that wait for a controller; driven by stock
//! ovs-ofctl.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Probe, Raw, Switch, SwitchConfig, privileged, veth};

/// How long a frame may take through a busy machine, and how long none must come.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);
const SILENCE: Duration = Duration::from_millis(500);

struct Rig<'a> {
    sw: Switch<'a>,
    probe: Probe,
}

impl<'a> Rig<'a> {
    /// A bridge with ports p1 and p2, stations h1 and h2 behind them.
    fn new(net: &'a Netns, hosts: &'a Netns) -> Rig<'a> {
        let sw = Switch::start(net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
        let words = "add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure";
        sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        let mut probe = Probe::new();
        for i in 1..3 {
            let (port, host) = (format!("p{i}"), format!("h{i}"));
            veth((net, &port), (hosts, &host)).unwrap();
            net.ipv6_off(&port).unwrap();
            hosts.ipv6_off(&host).unwrap();
            let of_port = format!("ofport_request={i}");
            sw.vsctl(&["add-port", "br0", &port, "--", "set", "interface", &port, &of_port])
                .unwrap();
            probe.add(hosts, &host).unwrap();
        }
        Rig { sw, probe }
    }

    fn flows(&self, flows: &str) {
        let words = ["-O", "OpenFlow15", "--bundle", "add-flows", "br0", "-"];
        self.sw.ofctl_stdin(&words, flows).unwrap();
    }

    /// Which stations get a datagram that one sends.
    fn send(&mut self, from: usize, wait: Duration) -> Vec<String> {
        let (me, other) = (from as u8, 3 - from as u8);
        let macs = ([2, 0, 0, 0, 0, me], [2, 0, 0, 0, 0, other]);
        let ports = if from == 1 { (4000, 53) } else { (53, 4000) };
        let frame =
            Frame::udp4(macs, ([10, 0, 0, me], [10, 0, 0, other]), ports, b"datagram").bytes();
        let got = self.probe.inject(&format!("h{from}"), &frame, wait).unwrap();
        got.into_keys().collect()
    }

    /// Sends until the other station gets it.
    fn passes(&mut self, from: usize) {
        let (deadline, other) = (Instant::now() + WAIT_TIME_MAX, format!("h{}", 3 - from));
        while self.send(from, SILENCE) != [other.clone()] {
            assert!(Instant::now() < deadline, "nothing came from h{from} to {other}");
        }
    }
}

const FIREWALL: &str = "\
table=0,udp,ct_state=-trk,actions=ct(table=1,zone=5)
table=1,in_port=1,udp,ct_state=+trk+new,actions=ct(commit,zone=5),output:2
table=1,in_port=1,udp,ct_state=+trk+est,actions=output:2
table=1,in_port=2,udp,ct_state=+trk+est,actions=output:1";

#[test]
fn answers_pass_until_a_controller_ends_the_connection() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let mut rig = Rig::new(&net, &hosts);
    rig.flows(FIREWALL);
    let none: [String; 0] = [];
    let ends: [&[&str]; 4] = [
        &["ct-flush-zone", "br0", "5"],
        &["ct-flush", "br0"],
        &["ct-flush", "br0", "zone=5", "ct_nw_src=10.0.0.1,ct_nw_proto=17"],
        &[
            "ct-flush",
            "br0",
            "zone=5",
            "ct_nw_src=10.0.0.1,ct_nw_dst=10.0.0.2,ct_nw_proto=17,ct_tp_src=4000,ct_tp_dst=53",
        ],
    ];
    for words in ends {
        assert_eq!(rig.send(2, SILENCE), none, "before {words:?}");
        rig.passes(1);
        rig.passes(2);
        rig.sw.ofctl(&["ct-flush", "br0", "zone=4"]).unwrap();
        rig.passes(2);
        rig.sw.ofctl(words).unwrap();
    }
    assert_eq!(rig.send(2, SILENCE), none);
}

/// Connections of two clients: more than one turn shows.
const BEGUN: [(u8, u16); 2] = [(1, 2000), (3, 3000)];

#[test]
fn thousands_of_connections_are_shown_and_ended_piece_by_piece() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let rig = Rig::new(&net, &hosts);
    rig.flows("udp,actions=ct(commit,zone=5)");
    let appctl = |words: &[&str]| rig.sw.appctl(words).unwrap();
    let shown = || appctl(&["dpctl/dump-conntrack", "zone=5"]);
    let raw = Raw::open(&hosts, "h1").unwrap();
    let deadline = Instant::now() + WAIT_TIME_MAX;
    // What a queue on the way dropped is sent again.
    while shown().lines().count() < 5000 {
        assert!(Instant::now() < deadline, "{}", appctl(&["dpctl/ct-stats-show"]));
        for (client, count) in BEGUN {
            for port in 1..=count {
                let (macs, ips) = (([2; 6], [4; 6]), ([10, 0, 0, client], [10, 0, 0, 2]));
                raw.send(&Frame::udp4(macs, ips, (port, 53), b"datagram").bytes()).unwrap();
            }
        }
    }
    let all = shown();
    assert_eq!(all.lines().collect::<BTreeSet<_>>().len(), 5000, "each once");
    assert_eq!(
        appctl(&["dpctl/ct-stats-show", "zone=5"]),
        "Connections Stats:\n    Total: 5000\n  UDP: 5000\n"
    );
    let buckets = appctl(&["dpctl/ct-bkts"]);
    assert!(buckets.contains("Current Connections: 5000\n"), "{buckets}");
    let client = |n| format!("ct_nw_src=10.0.0.{n},ct_nw_proto=17");
    rig.sw.ofctl(&["ct-flush", "br0", "zone=5", &client(1)]).unwrap();
    assert_eq!(shown().lines().filter(|c| c.contains("src=10.0.0.3,")).count(), 3000);
    assert_eq!(shown().lines().count(), 3000);
    appctl(&["dpctl/flush-conntrack", "zone=5", &client(3)]);
    assert_eq!(shown(), "");
}

/// Ends with its scope.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn zones_have_the_timeouts_of_their_policies() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let mut rig = Rig::new(&net, &hosts);
    let policy = "-- --id=@d create datapath datapath_version=0 -- set open . datapaths:netdev=@d \
                  -- add-zone-tp netdev zone=5 udp_first=2 udp_single=2";
    rig.sw.vsctl(&policy.split_whitespace().skip(1).collect::<Vec<_>>()).unwrap();
    rig.flows("udp,in_port=1,actions=ct(commit,zone=5),ct(commit,zone=6),output:2\n");
    let deadline = Instant::now() + WAIT_TIME_MAX;
    // Without a policy a connection without an answer lives a minute.
    for (wait, expected) in
        [(Duration::ZERO, [true, true]), (Duration::from_secs(3), [false, true])]
    {
        let zones = |rig: &mut Rig<'_>| {
            rig.send(1, Duration::from_millis(10));
            std::thread::sleep(wait);
            let all = rig.sw.appctl(&["dpctl/dump-conntrack"]).unwrap();
            ["zone=5", "zone=6"].map(|zone| all.contains(zone))
        };
        while zones(&mut rig) != expected {
            assert!(Instant::now() < deadline, "not yet {expected:?}");
        }
    }
}

#[test]
fn a_paused_packet_goes_on_when_a_controller_says_so() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let mut rig = Rig::new(&net, &hosts);
    rig.flows(
        "table=0,udp,actions=load:7->NXM_NX_REG3[],push:NXM_NX_REG3[],\
         controller(pause,userdata=01.02),pop:NXM_NX_REG4[],resubmit(,1)\n\
         table=1,udp,in_port=1,reg3=7,reg4=7,actions=output:2",
    );
    let none: [String; 0] = [];
    assert_eq!(rig.send(1, SILENCE), none, "it does not go on");
    let words = ["monitor", "br0", "resume", "-P", "nxt_packet_in2"];
    let monitor = rig.sw.command("ovs-ofctl").args(words).stderr(Stdio::null()).spawn().unwrap();
    let _monitor = Killed(monitor);
    rig.passes(1);
    assert_eq!(rig.send(2, SILENCE), none, "the table looks at the port");
}
