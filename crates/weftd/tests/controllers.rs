//! Controllers of the test's own, byte by byte: connecting, losing them, roles, limits, bundles,
//! and what is no OpenFlow at all.

mod peer;

use peer::{Peer, kind};
use serde_json::Value;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, SwitchConfig, privileged, veth};

const PACKET: &str =
    "packet=ffffffffffff00000000000108004500001c00000000401166cf0a0000010a0000020001000200080000";

struct Lab<'a> {
    sw: Switch<'a>,
}

impl<'a> Lab<'a> {
    fn new(ns: &'a Netns, options: &str) -> Self {
        Lab::with(ns, options, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")))
    }

    fn with(ns: &'a Netns, options: &str, mut config: SwitchConfig) -> Self {
        config.args.push("--enable-dummy".into());
        let lab = Lab { sw: Switch::start(ns, config).unwrap() };
        lab.vsctl(&format!("add-br br0 -- set bridge br0 datapath_type=dummy {options}"));
        lab.vsctl("add-port br0 p1 -- set interface p1 type=dummy ofport_request=1");
        lab.vsctl("add-port br0 p2 -- set interface p2 type=dummy ofport_request=2");
        lab
    }

    fn vsctl(&self, words: &str) -> String {
        self.sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap().trim().into()
    }

    fn ofctl(&self, words: &str) -> String {
        self.sw.ofctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap()
    }

    fn trace(&self) -> String {
        self.sw.appctl(&["ofproto/trace", "br0", "in_port=1"]).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sw.dir().join(name)
    }

    /// A place for the switch to connect to.
    fn listen(&self, name: &str) -> (UnixListener, String) {
        let path = self.path(name);
        (UnixListener::bind(&path).unwrap(), format!("unix:{}", path.display()))
    }

    fn column(&self, column: &str) -> String {
        self.vsctl(&format!("--columns={column} --bare list controller"))
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_standalone_bridge_does_without_lost_controllers_until_one_is_back() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=standalone");
    assert!(lab.ofctl("--no-stats dump-flows br0").contains("priority=0 actions=NORMAL"));
    let (listener, target) = lab.listen("ctl");
    let times = "inactivity_probe=500 max_backoff=1000";
    lab.vsctl(&format!("set-controller br0 {target} -- set controller br0 {times}"));
    assert_eq!(lab.ofctl("--no-stats dump-flows br0").trim(), "", "a controller starts empty");
    let mut peer = Peer::accept(&listener, 4);
    until("is_connected", || lab.column("is_connected") == "true");
    peer.flow_mod(1, 2);
    peer.barrier();
    assert!(lab.trace().contains("Datapath actions: 2"), "{}", lab.trace());
    drop(peer);
    drop(listener);
    until("fail-open", || lab.trace().contains("priority 15790320\n    NORMAL"));
    lab.ofctl("add-flow br0 in_port=1,actions=drop");
    assert!(lab.trace().contains("NORMAL"), "whatever flows there are");
    assert!(!lab.ofctl("dump-flows br0").contains("NORMAL"), "it is no flow");
    assert_eq!(lab.column("is_connected"), "false");
    assert!(lab.column("status").contains("last_error="), "{}", lab.column("status"));
    std::fs::remove_file(lab.path("ctl")).unwrap();
    let (listener, _) = lab.listen("ctl");
    let peer = Peer::accept(&listener, 4);
    until("the flow again", || lab.trace().contains("Datapath actions: drop"));
    drop(peer);
    lab.vsctl("del-controller br0");
    assert_eq!(lab.ofctl("--no-stats dump-flows br0").trim(), "priority=0 actions=NORMAL");
}

#[test]
fn a_secure_bridge_keeps_its_flows_and_nothing_else() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let (listener, target) = lab.listen("ctl");
    lab.vsctl(&format!("set-controller br0 {target} -- set controller br0 inactivity_probe=300"));
    let mut peer = Peer::accept(&listener, 5);
    peer.flow_mod(1, 2);
    peer.barrier();
    drop((peer, listener));
    std::thread::sleep(Duration::from_millis(2200));
    assert!(lab.trace().contains("Datapath actions: 2"), "{}", lab.trace());
}

#[test]
fn silence_is_asked_about_and_then_ends_the_connection() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let (listener, target) = lab.listen("ctl");
    let probe = |ms: u32| format!("set controller br0 inactivity_probe={ms}");
    lab.vsctl(&format!("set-controller br0 {target} -- {}", probe(0)));
    let mut peer = Peer::accept(&listener, 4);
    peer.barrier();
    // The connection stays when its times change, and when another row takes its row's place.
    lab.vsctl(&probe(300));
    let echo = peer.expect(kind::ECHO_REQUEST);
    peer.send(kind::ECHO_REPLY, echo.xid, &echo.body);
    lab.vsctl(&format!("set-controller br0 {target} -- {}", probe(400)));
    peer.expect(kind::ECHO_REQUEST);
    assert!(peer.closed(), "no answer this time");
    let mut again = Peer::accept(&listener, 4);
    again.barrier();
}

#[test]
fn one_controller_leads() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let ((la, ta), (lb, tb)) = (lab.listen("a"), lab.listen("b"));
    lab.vsctl(&format!("set-controller br0 {ta} {tb}"));
    let (mut a, mut b) = (Peer::accept(&la, 5), Peer::accept(&lb, 4));
    assert_eq!(a.role(2, 10), Ok(2), "primary");
    assert_eq!(b.role(3, 9), Err((11, 0)), "stale");
    assert_eq!(b.role(2, 11), Ok(2));
    let status = a.expect(kind::ROLE_STATUS);
    assert_eq!(status.body[..5], [0, 0, 0, 3, 0], "secondary now, by another's request");
    assert_eq!(a.flow_mod_error(1, 2), Some((1, 10)), "OFPBRC_IS_SLAVE");
    assert_eq!(a.role(0, 0), Ok(3));
    until("roles", || {
        let mut roles: Vec<_> = lab.column("role").lines().map(str::to_string).collect();
        roles.retain(|r| !r.is_empty());
        roles.sort();
        roles == ["master", "slave"]
    });
    // A secondary hears of ports only.
    lab.ofctl("add-flow br0 in_port=1,actions=controller");
    lab.ofctl(&format!("packet-out br0 in_port=1,{PACKET},actions=table"));
    assert_eq!(b.expect(kind::PACKET_IN).kind, kind::PACKET_IN);
    lab.ofctl("mod-port br0 p1 no-flood");
    a.barrier();
    assert!(!a.seen.contains(&kind::PACKET_IN), "{:?}", a.seen);
    assert_eq!(a.role(1, 0), Ok(1), "equal again");
    assert_eq!(a.flow_mod_error(1, 2), None);
}

#[test]
fn misses_reach_who_expects_them() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let ((la, ta), (lb, tb)) = (lab.listen("a"), lab.listen("b"));
    lab.vsctl(&format!("set-controller br0 {ta} {tb}"));
    lab.vsctl("set bridge br0 protocols=OpenFlow10,OpenFlow13");
    let (mut old, mut new) = (Peer::accept(&la, 1), Peer::accept(&lb, 4));
    let frame = PACKET.trim_start_matches("packet=");
    lab.sw.appctl(&["netdev-dummy/receive", "p1", frame]).unwrap();
    let miss = old.expect(kind::PACKET_IN);
    assert_eq!(miss.body[..10], [0xff, 0xff, 0xff, 0xff, 0, 42, 0, 1, 0, 0], "whole, no match");
    new.barrier();
    assert!(!new.seen.contains(&kind::PACKET_IN), "1.3 has a table-miss flow for that");
    let out = format!("packet-out br0 in_port=1,{PACKET},actions=table");
    lab.ofctl("-O OpenFlow13 add-flow br0 priority=0,actions=controller");
    drop(old);
    lab.ofctl(&out);
    let sent = new.expect(kind::PACKET_IN);
    assert_eq!(sent.body[4..8], [0, 42, 1, 0], "by a packet-out: an action");
    drop((la, lb));
}

#[test]
fn a_rate_limit_holds_packet_ins_back() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let (listener, target) = lab.listen("ctl");
    lab.vsctl(&format!(
        "set-controller br0 {target} -- set controller br0 controller_rate_limit=100 \
         controller_burst_limit=25 max_backoff=1000"
    ));
    let mut peer = Peer::accept(&listener, 4);
    let mut actions = vec!["controller"; 200];
    actions.push("controller");
    let line = format!("packet-out br0 in_port=1,{PACKET},actions={}", actions.join(","));
    lab.ofctl(&line);
    std::thread::sleep(Duration::from_millis(100));
    peer.barrier();
    let got = peer.seen.iter().filter(|k| **k == kind::PACKET_IN).count();
    assert!((25..60).contains(&got), "{got}");
    let dropped = || {
        let status = lab.column("status");
        let n = status.split("packet-in-action-dropped=").nth(1)?;
        n.split_whitespace().next()?.parse::<usize>().ok()
    };
    until("the rest to be counted", || dropped() == Some(201 - got));
}

/// How many of 300 packet-ins a controller gets that reads nothing before all were sent, and how
/// many were dropped by the switch's own count.
fn unread(config: SwitchConfig, setting: &str) -> (usize, usize) {
    let ns = Netns::new().unwrap();
    let lab = Lab::with(&ns, "fail_mode=secure", config);
    let (listener, target) = lab.listen("ctl");
    lab.vsctl(&format!(
        "set-controller br0 {target} -- {setting} -- set controller br0 inactivity_probe=60000"
    ));
    let mut peer = Peer::accept(&listener, 4);
    peer.barrier();
    let (packet, actions) = (format!("{PACKET}{}", "00".repeat(1400)), ["controller"; 4].join(","));
    let line = format!("packet-out br0 in_port=1,{packet},actions={actions}");
    (0..75).for_each(|_| drop(lab.ofctl(&line)));
    let dropped = lab.sw.appctl(&["coverage/read-counter", "rconn_overflow"]).unwrap();
    peer.barrier();
    let got = peer.seen.iter().filter(|k| **k == kind::PACKET_IN).count();
    (got, dropped.trim().parse().unwrap())
}

#[test]
fn few_packet_ins_wait_for_a_controller_that_does_not_read() {
    if !privileged() {
        return;
    }
    let weft = || SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    let of_row = |n: u32| format!("set controller br0 controller_queue_size={n}");
    let of_bridge = "set bridge br0 other_config:controller-queue-size=50";
    for config in [weft, SwitchConfig::oracle] {
        let [few, some, many] =
            [&of_row(5), of_bridge, &of_row(120)].map(|setting| unread(config(), setting));
        for (got, dropped) in [few, some, many] {
            assert_eq!(got + dropped, 300);
        }
        // Some are in the socket; four come at once.
        assert!((40..=50).contains(&(some.0 - few.0)), "{few:?} {some:?}");
        assert!((65..=75).contains(&(many.0 - some.0)), "{some:?} {many:?}");
    }
}

#[test]
fn nonsense_harms_its_own_connection_only() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let passive = lab.path("br0.passive");
    lab.vsctl(&format!("set-controller br0 punix:{}", passive.display()));
    until("the socket", || passive.exists());
    let mut good = Peer::connect(&passive, 4);
    let mut noise = testkit::Noise::default();
    for length in [1usize, 7, 8, 100, 70_000] {
        let mut bytes = noise.bytes(length);
        let _ = UnixStream::connect(&passive).unwrap().write_all(&bytes);
        // The same behind a hello, as messages of every type with random bodies.
        let mut bad = Peer::connect(&passive, 4);
        for k in 0..40 {
            bytes.truncate(1000);
            bad.send(k, 7, &bytes);
        }
        good.barrier();
    }
    let mut cut = Peer::connect(&passive, 4);
    cut.raw(&[4, 14, 0, 80, 0, 0, 0, 1, 0, 0]);
    drop(cut);
    let mut half = Peer::connect(&passive, 4);
    half.raw(&[4, 20, 0, 8, 0]);
    good.barrier();
    half.raw(&[0, 0, 9]);
    half.expect(kind::BARRIER_REPLY);
    let mut small = Peer::connect(&passive, 4);
    small.raw(&[4, 20, 0, 3, 0, 0, 0, 1]);
    assert!(small.closed(), "an impossible length");
    let wrong = Peer::greet(&passive, 9);
    assert_eq!(wrong, Some(1), "an error: no version in common");
    good.barrier();
    assert!(lab.ofctl("--no-stats dump-flows br0").trim().is_empty());
    lab.vsctl("del-controller br0");
    assert!(good.closed(), "its row is gone");
}

#[test]
fn a_bundle_is_all_or_nothing_and_not_for_ever() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    lab.vsctl("set open . other_config:bundle-idle-timeout=1");
    let mut peer = Peer::connect(&lab.path("br0.mgmt"), 5);
    peer.bundle(1, 0);
    peer.bundle_add(1, &peer::flow_mod(5, 77, 1, 2));
    peer.bundle_add(1, &peer::flow_mod_to_group(5, 78, 2, 99));
    assert_eq!(peer.bundle_result(1, 4), Err(()), "an error in the middle");
    assert_eq!(lab.ofctl("--no-stats dump-flows br0").trim(), "");
    peer.bundle(2, 0);
    peer.bundle_add(2, &peer::flow_mod(5, 77, 1, 2));
    peer.bundle_add(2, &peer::flow_mod(5, 78, 2, 1));
    assert_eq!(lab.ofctl("--no-stats dump-flows br0").trim(), "", "nothing before the commit");
    assert_eq!(peer.bundle_result(2, 4), Ok(()));
    // The reply is a barrier too: the next packet sees the flows.
    assert!(lab.trace().contains("Datapath actions: 2"), "{}", lab.trace());
    peer.bundle(3, 0);
    peer.bundle_add(3, &peer::flow_mod(5, 77, 1, 1));
    let error = peer.expect(kind::ERROR);
    assert_eq!(error.body[..4], [0, 17, 0, 14], "OFPBFC_TIMEOUT");
    assert_eq!(peer.bundle_result(3, 4), Err(()));
    assert!(lab.trace().contains("Datapath actions: 2"));
}

/// A device is down when the reply to the commit comes, and stays up if the bundle fails.
/// ovs-vswitchd refuses port-mods in atomic bundles, which these are.
#[test]
fn a_bundle_takes_devices_down_and_up() {
    if !privileged() {
        return;
    }
    let (ns, far) = (Netns::new().unwrap(), Netns::new().unwrap());
    let lab = Lab::new(&ns, "fail_mode=secure");
    veth((&ns, "v3"), (&far, "e3")).unwrap();
    lab.vsctl("add-port br0 v3 -- set interface v3 ofport_request=3");
    let text = lab.vsctl("get interface v3 mac_in_use").replace('"', "");
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let mac: [u8; 6] = std::array::from_fn(|_| bytes.next().unwrap());
    let is_up = || ns.exec(&["ip", "link", "show", "v3"]).unwrap().contains(",UP");
    assert!(is_up());
    let mut peer = Peer::connect(&lab.path("br0.mgmt"), 5);
    for (id, down, group, up_then) in
        [(1, true, Some(99), true), (2, true, None, false), (3, false, None, true)]
    {
        peer.bundle(id, 0);
        peer.bundle_add(id, &peer::port_mod(5, 77, 3, mac, down));
        if let Some(group) = group {
            peer.bundle_add(id, &peer::flow_mod_to_group(5, 78, 2, group));
        }
        assert_eq!(peer.bundle_result(id, 4).is_ok(), group.is_none(), "{id}");
        assert_eq!(is_up(), up_then, "{id}");
    }
}

#[test]
fn packets_teach_while_bundles_are_open_and_committed() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let spec = "table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]";
    lab.ofctl(&format!("add-flow br0 in_port=1,actions=learn({spec})"));
    let mut sent = 0u32;
    let mut teach = || {
        sent += 1;
        let [_, _, a, b] = sent.to_be_bytes();
        let macs = format!("eth(src=02:00:00:00:{a:02x}:{b:02x},dst=02:00:00:00:ff:ff)");
        let packet = format!("in_port(1),{macs},eth_type(0x1234)");
        lab.sw.appctl(&["netdev-dummy/receive", "p1", &packet]).unwrap();
        sent as usize
    };
    let learned = || lab.ofctl("--no-stats dump-flows br0 table=1").lines().count();
    let mut peer = Peer::connect(&lab.path("br0.mgmt"), 5);
    peer.bundle(1, 0);
    peer.bundle_add(1, &peer::flow_mod(5, 77, 1, 2));
    (0..3).for_each(|_| _ = teach());
    until("what is taught while a bundle is open", || learned() == 3);
    // A commit that takes some time, and two that fail.
    let line =
        |i| format!("table=2,udp,tp_dst={},nw_tos={} actions=2\n", i % 10_000, i / 10_000 * 4);
    let (good, bad) = (lab.path("good"), lab.path("bad"));
    let flows = (0..30_000).map(line).collect::<String>();
    std::fs::write(&good, &flows).unwrap();
    std::fs::write(&bad, flows + "table=3 actions=group:99\n").unwrap();
    let all = std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            for file in [&bad, &good, &bad] {
                let words = ["--bundle", "add-flows", "br0", file.to_str().unwrap()];
                assert_eq!(lab.sw.ofctl(&words).is_ok(), file == &good, "{}", file.display());
            }
        });
        let mut all = teach();
        while !commits.is_finished() {
            all = teach();
        }
        all
    });
    until("what was taught meanwhile", || learned() == all);
    assert_eq!(lab.sw.appctl(&["coverage/read-counter", "flow_learning_limited"]).unwrap(), "0\n");
}

#[test]
fn a_snoop_sees_both_directions() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let mut early = UnixStream::connect(lab.path("br0.snoop")).unwrap();
    early.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let read = std::io::Read::read(&mut early, &mut [0; 8]);
    assert_eq!(read.unwrap(), 0, "there is no controller to listen to");
    assert!(lab.sw.log().contains("br0: no controller connection to snoop"));
    let (listener, target) = lab.listen("ctl");
    lab.vsctl(&format!("set-controller br0 {target}"));
    let mut peer = Peer::accept(&listener, 4);
    let mut snoop = Peer::connect(&lab.path("br0.snoop"), 4);
    peer.barrier();
    snoop.expect(kind::BARRIER_REQUEST);
    snoop.expect(kind::BARRIER_REPLY);
}

#[test]
fn who_reads_late_misses_nothing_and_disturbs_nobody() {
    if !privileged() {
        return;
    }
    const FLOWS: usize = 20_000;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let (listener, target) = lab.listen("ctl");
    // On a busy machine 20,000 flows take longer than the probe's five seconds.
    let probe = "-- set controller br0 inactivity_probe=120000";
    lab.vsctl(&format!("set-controller br0 {target} {probe}"));
    let mut late = Peer::accept(&listener, 4);
    late.barrier();
    let line = |i| {
        format!("send_flow_rem,udp,tp_dst={},nw_tos={} actions=2\n", i % 50_000, i / 50_000 * 4)
    };
    let file = lab.path("flows");
    std::fs::write(&file, (0..FLOWS).map(line).collect::<String>()).unwrap();
    lab.ofctl(&format!("--bundle add-flows br0 {}", file.display()));
    // Far more than sockets hold: 2 MB of flows, and then 2 MB of flow-removed messages.
    late.dump_flows();
    let mut prompt = Peer::connect(&lab.path("br0.mgmt"), 4);
    prompt.barrier();
    prompt.dump_flows();
    assert_eq!(prompt.count_flows(), FLOWS);
    assert_eq!(late.count_flows(), FLOWS);
    lab.ofctl("del-flows br0");
    prompt.barrier();
    prompt.dump_flows();
    assert_eq!(prompt.count_flows(), 0);
    for i in 0..FLOWS {
        let removed = late.expect(kind::FLOW_REMOVED);
        assert_eq!(removed.body[10], 2, "OFPRR_DELETE of flow {i}");
    }
    late.barrier();
}

#[test]
fn others_are_answered_while_a_big_table_is_dumped() {
    if !privileged() {
        return;
    }
    const FLOWS: usize = 60_000;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let line = |i| {
        format!(
            "udp,tp_dst={},nw_tos={} actions=note:{}02\n",
            i % 50_000,
            i / 50_000 * 4,
            "01.".repeat(100)
        )
    };
    let file = lab.path("flows");
    std::fs::write(&file, (0..FLOWS).map(line).collect::<String>()).unwrap();
    lab.ofctl(&format!("--bundle add-flows br0 {}", file.display()));
    let (text, took, longest) =
        beside_questions(&lab, || lab.sw.appctl(&["bridge/dump-flows", "br0"]).unwrap());
    assert_eq!(text.lines().count(), FLOWS);
    println!("dump {took:?}, no answer for {longest:?}");
    assert!(longest < took / 3, "no answer to others for {longest:?} of {took:?}");
}

#[test]
fn others_are_answered_while_many_addresses_are_shown() {
    if !privileged() {
        return;
    }
    const ADDRESSES: usize = 30_000;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure other_config:mac-table-size=100000");
    let mut stream = control_stream(&lab);
    for i in 0..ADDRESSES {
        let mac = format!("02:00:00:{:02x}:{:02x}:{:02x}", i >> 16, i >> 8 & 0xff, i & 0xff);
        call(&mut stream, "fdb/add", &["br0", "p1", "0", &mac]);
    }
    // On a busy machine clients may not run for as long as all of it takes: the best look counts.
    let look = |_| beside_questions(&lab, || lab.sw.appctl(&["fdb/show", "br0"]).unwrap());
    let best = (0..10).map(look).min_by_key(|(_, _, longest)| *longest);
    let (text, took, longest) = best.unwrap();
    let mut macs: Vec<_> = text.lines().skip(1).map(|l| &l[13..30]).collect();
    macs.sort_unstable();
    macs.dedup();
    assert_eq!((macs.len(), text.lines().count()), (ADDRESSES, ADDRESSES + 1));
    println!("shown in {took:?}, no answer for {longest:?}");
    assert!(longest < took / 3, "no answer to others for {longest:?} of {took:?}");
}

/// What `work` returns, and how long the control thread works meanwhile: altogether, and at most
/// without an answer to others. Its own time is counted, as the machine may take cores away. For
/// the same reason a client on each core asks, by one connection: one of them that does not run
/// hides nothing, as a tool does that must be started first.
fn beside_questions<T>(lab: &Lab, work: impl FnOnce() -> T) -> (T, Duration, Duration) {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let (done, answers) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let worked = || control_thread_worked(lab);
    std::thread::scope(|s| {
        for core in own_cores() {
            let (done, answers) = (&done, &answers);
            s.spawn(move || {
                stay_on(core);
                let mut stream = control_stream(lab);
                while !done.load(Relaxed) {
                    ask(&mut stream);
                    answers.lock().unwrap().push(worked());
                    // Questions are not to be most of what the thread does.
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let start = worked();
        let result = work();
        let end = worked();
        done.store(true, Relaxed);
        let mut all = answers.lock().unwrap().clone();
        all.retain(|at| (start..end).contains(at));
        all.extend([start, end]);
        all.sort_unstable();
        let longest = all.windows(2).map(|pair| pair[1] - pair[0]).max();
        (result, end - start, longest.unwrap())
    })
}

/// What `ovs-appctl version` does.
fn ask(stream: &mut UnixStream) {
    call(stream, "version", &[]);
}

/// Has the daemon carry out a command, without a process for it.
fn call(stream: &mut UnixStream, method: &str, params: &[&str]) {
    let request = serde_json::json!({ "id": 0, "method": method, "params": params });
    stream.write_all(request.to_string().as_bytes()).unwrap();
    let mut answers = serde_json::Deserializer::from_reader(stream).into_iter::<Value>();
    let answer = answers.next().unwrap().unwrap();
    assert!(answer["result"].is_string(), "{answer}");
}

fn control_stream(lab: &Lab) -> UnixStream {
    let path = format!("ovs-vswitchd.{}.ctl", lab.sw.daemon_pid().unwrap());
    UnixStream::connect(lab.path(&path)).unwrap()
}

/// How long the daemon's control thread has run.
fn control_thread_worked(lab: &Lab) -> Duration {
    let pid = lab.sw.daemon_pid().unwrap();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// Some cores on which this process may run.
fn own_cores() -> Vec<usize> {
    // SAFETY: a mask of bits, and the kernel writes no more than its size.
    let cores = unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&cores), &raw mut cores);
        cores
    };
    // SAFETY: numbers below the mask's size.
    let own = |core: &usize| unsafe { libc::CPU_ISSET(*core, &cores) };
    (0..libc::CPU_SETSIZE as usize).filter(own).take(4).collect()
}

/// This thread, and processes that it starts, run on that core.
fn stay_on(core: usize) {
    // SAFETY: a mask of bits, and the core is below its size.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut cores);
        libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores);
    }
}

/// A file of so many flows with these actions.
fn flows_file(lab: &Lab<'_>, flows: usize, actions: &str) -> std::path::PathBuf {
    let line = |i| {
        let (port, tos) = (i % 50_000, i / 50_000 * 4);
        format!("udp,tp_dst={port},nw_tos={tos} actions={actions}\n")
    };
    let file = lab.path("flows");
    std::fs::write(&file, (0..flows).map(line).collect::<String>()).unwrap();
    file
}

#[test]
fn others_are_answered_while_a_bridge_of_many_flows_goes() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    let file = flows_file(&lab, 100_000, "drop");
    lab.ofctl(&format!("--bundle add-flows br0 {}", file.display()));
    let work = || lab.sw.vsctl(&["del-br", "br0"]).unwrap();
    let (_, took, longest) = beside_questions(&lab, work);
    println!("del-br {took:?}, no answer for {longest:?}");
    assert!(longest < took / 2, "no answer to others for {longest:?} of {took:?}");
}

/// A bridge forgets its flows when its first controller comes, and when it has been without
/// controllers for a while, which those may arrange: others are answered meanwhile.
#[test]
fn others_are_answered_while_a_bridge_forgets_its_flows() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "");
    let file = flows_file(&lab, 60_000, "drop");
    let flows = || lab.ofctl("dump-aggregate br0").contains("flow_count=0") as usize;
    let fill = || lab.ofctl(&format!("--bundle add-flows br0 {}", file.display()));
    fill();
    let target = "set-controller br0 tcp:127.0.0.1:9";
    let work = || lab.vsctl(&format!("{target} -- set controller br0 inactivity_probe=600000"));
    let (_, took, longest) = beside_questions(&lab, work);
    println!("set-controller {took:?}, no answer for {longest:?}");
    assert_eq!(flows(), 1);
    assert!(longest < took * 3 / 4, "no answer to others for {longest:?} of {took:?}");
    // The controller never comes: after three probe intervals the bridge forgets its flows.
    fill();
    let fails_open = || {
        lab.vsctl("set controller br0 inactivity_probe=1");
        until("it fails open", || lab.sw.log().contains("failing open"));
        until("the flows are gone", || flows() == 1);
    };
    let (_, _, longest) = beside_questions(&lab, fails_open);
    println!("failing open, no answer for {longest:?}");
}

#[test]
fn others_are_answered_while_flows_go_with_their_group_or_meter() {
    if !privileged() {
        return;
    }
    const FLOWS: usize = 60_000;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns, "fail_mode=secure");
    lab.ofctl("-O OpenFlow13 add-meter br0 meter=1,pktps,bands=type=drop,rate=1000");
    lab.ofctl("-O OpenFlow13 add-group br0 group_id=1,type=all");
    let file = flows_file(&lab, FLOWS, "meter:1,group:1");
    for delete in ["del-meter br0 meter=1", "del-groups br0 group_id=1"] {
        // Without the meter the rest of the flows is the same.
        if delete.starts_with("del-groups") {
            let text = std::fs::read_to_string(&file).unwrap().replace("meter:1,", "");
            std::fs::write(&file, text).unwrap();
        }
        lab.ofctl(&format!("-O OpenFlow14 --bundle add-flows br0 {}", file.display()));
        let work = || lab.ofctl(&format!("-O OpenFlow13 {delete}"));
        let (_, took, longest) = beside_questions(&lab, work);
        println!("{delete} {took:?}, no answer for {longest:?}");
        assert_eq!(lab.ofctl("-O OpenFlow13 dump-flows br0").matches("actions").count(), 0);
        assert!(longest < took / 2, "no answer to others for {longest:?} of {took:?}");
    }
}
