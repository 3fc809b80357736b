//! What OpenFlow and control connections may cost, and whom: turns, bytes, places, modes of
//! sockets, counters.

#[allow(dead_code)]
mod peer;

use peer::{Peer, kind};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, SwitchConfig, privileged};

const PACKET: &str =
    "packet=ffffffffffff00000000000108004500001c00000000401166cf0a0000010a0000020001000200080000";

struct Lab<'a> {
    sw: Switch<'a>,
}

impl<'a> Lab<'a> {
    fn new(ns: &'a Netns) -> Self {
        let mut config = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
        config.args.push("--enable-dummy".into());
        let lab = Lab { sw: Switch::start(ns, config).unwrap() };
        lab.vsctl("add-br br0 -- set bridge br0 datapath_type=dummy fail_mode=secure");
        lab.vsctl("add-port br0 p1 -- set interface p1 type=dummy ofport_request=1");
        lab
    }

    fn vsctl(&self, words: &str) -> String {
        self.sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap().trim().into()
    }

    fn ofctl(&self, words: &str) -> String {
        self.sw.ofctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sw.dir().join(name)
    }

    fn counter(&self, name: &str) -> u64 {
        self.sw.appctl(&["coverage/read-counter", name]).unwrap().trim().parse().unwrap()
    }

    /// Bytes that are kept for connections.
    fn held(&self) -> usize {
        let text = self.sw.appctl(&["memory/show"]).unwrap();
        let held = text.split("ofconn bytes:").nth(1).and_then(|t| t.split(' ').next());
        held.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn header(kind: u8, len: usize) -> Vec<u8> {
    let mut m = vec![4, kind];
    m.extend((len as u16).to_be_bytes());
    m.extend([0, 0, 0, 9]);
    m
}

#[test]
fn the_type_of_a_controller_decides_what_it_is_sent_unasked() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let active = lab.path("ctl");
    let listener = UnixListener::bind(&active).unwrap();
    let passive = lab.path("br0.passive");
    let targets = [format!("unix:{}", active.display()), format!("punix:{}", passive.display())];
    lab.vsctl(&format!("set-controller br0 {}", targets.join(" ")));
    lab.ofctl("add-flow br0 actions=controller");
    let out = format!("packet-out br0 in_port=1,{PACKET},actions=table");
    let rows = lab.vsctl("--bare --columns=_uuid,target list controller");
    let uuid = |prefix: &str| {
        let lines: Vec<_> = rows.lines().filter(|l| !l.is_empty()).collect();
        let at = lines.iter().position(|l| l.starts_with(prefix)).unwrap();
        lines[at - 1].to_string()
    };
    let (active_row, passive_row) = (uuid("unix:"), uuid("punix:"));
    for (types, expected) in [
        (["[]", "[]"], [true, false]),
        (["service", "primary"], [false, true]),
        (["primary", "service"], [true, false]),
    ] {
        lab.vsctl(&format!(
            "set controller {active_row} type={} -- set controller {passive_row} type={}",
            types[0], types[1]
        ));
        let mut first = Peer::accept(&listener, 4);
        until("the socket", || UnixStream::connect(&passive).is_ok());
        let mut second = Peer::connect(&passive, 4);
        lab.ofctl("add-flow br0 actions=controller");
        first.barrier();
        second.barrier();
        lab.ofctl(&out);
        // The packet comes to the one, and has not come to the other then.
        let (notified, silent) = match expected {
            [true, _] => (&mut first, &mut second),
            _ => (&mut second, &mut first),
        };
        notified.expect(kind::PACKET_IN);
        silent.barrier();
        assert!(!silent.seen.contains(&kind::PACKET_IN), "types {types:?}: {:?}", silent.seen);
        drop((first, second));
    }
    // Services are no controllers that a bridge waits for: it forwards on its own.
    lab.vsctl("set bridge br0 fail_mode=standalone");
    lab.vsctl(&format!(
        "set controller {active_row} type=service -- set controller {passive_row} type=service"
    ));
    until("NORMAL", || lab.ofctl("--no-stats dump-flows br0").contains("actions=NORMAL"));
}

/// How many flows there are, out of the answer to an aggregate request.
fn aggregate(m: &peer::Message) -> u32 {
    u32::from_be_bytes(m.body[24..28].try_into().unwrap())
}

#[test]
fn connections_take_turns_of_a_bounded_number_of_messages() {
    if !privileged() {
        return;
    }
    const FLOWS: u16 = 6000;
    const QUESTIONS: usize = 600;
    /// Messages of a turn.
    const TURN: u32 = 50;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let mgmt = lab.path("br0.mgmt");
    let (mut flood, mut other) = (Peer::connect(&mgmt, 4), Peer::connect(&mgmt, 4));
    flood.barrier();
    other.barrier();
    let mut flows = Vec::new();
    for n in 0..FLOWS {
        let mut flow = peer::flow_mod(4, 7, u32::from(n) + 1, 1);
        flow[11] = 1;
        flows.extend(flow);
    }
    let mut question = vec![0, 2, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0];
    question.extend([0xff; 8]);
    question.extend([0; 4 + 16]);
    question.extend([0, 1, 0, 4, 0, 0, 0, 0]);
    let one: Vec<u8> =
        [header(kind::MULTIPART_REQUEST, 8 + question.len()), question.clone()].concat();
    let questions = one.repeat(QUESTIONS);
    let flooding = std::thread::spawn(move || {
        flood.raw(&flows);
        flood.barrier();
        flood
    });
    until("the flood", || {
        other.raw(&one);
        aggregate(&other.expect(kind::MULTIPART_REPLY)) > 0
    });
    other.raw(&questions);
    let counts: Vec<u32> =
        (0..QUESTIONS).map(|_| aggregate(&other.expect(kind::MULTIPART_REPLY))).collect();
    drop(flooding.join().unwrap());
    // Between two answers is nothing or two turns of the flood (who yields last is woken first);
    // more where the questions had to be waited for.
    let steps: Vec<u32> = counts.windows(2).map(|w| w[1] - w[0]).filter(|n| *n > 0).collect();
    let long = steps.iter().filter(|n| **n > 2 * TURN).count();
    assert!(steps.len() >= 3, "the flood was over too soon: {counts:?}");
    assert!(long * 4 <= steps.len(), "more than two turns {long} times: {steps:?}");
    assert!(steps.iter().all(|n| *n <= 4 * TURN), "{steps:?}");
}

#[test]
fn who_does_not_read_is_kept_a_bounded_amount_for_and_disturbs_nobody() {
    if !privileged() {
        return;
    }
    const BOUND: usize = (8 << 20) + (4 << 20);
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let mgmt = lab.path("br0.mgmt");
    let mut deaf = UnixStream::connect(&mgmt).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    deaf.write_all(&header(kind::HELLO, 8)).unwrap();
    let echo = [header(kind::ECHO_REQUEST, 60_008), vec![0; 60_000]].concat();
    let mut sent = 0;
    let blocked = (0..1000).any(|_| {
        sent += echo.len();
        let end = deaf.write_all(&echo);
        matches!(end, Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    });
    assert!(blocked, "{sent} bytes were taken from who reads nothing");
    assert!(lab.held() <= BOUND, "{}", lab.held());
    let mut other = Peer::connect(&mgmt, 4);
    (0..20).for_each(|_| other.barrier());
    drop(deaf);
    until("what was kept is free", || lab.held() < 2 << 20);
}

#[test]
fn places_at_a_listener_are_bounded() {
    if !privileged() {
        return;
    }
    const MOST: usize = 512;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let mgmt = lab.path("br0.mgmt");
    // Another process, from which nothing is heard for longest.
    let mut quiet = lab
        .sw
        .command("ovs-ofctl")
        .args(["monitor", &format!("unix:{}", mgmt.display())])
        .spawn()
        .unwrap();
    until("a connection of another process", || lab.held() >= 256 << 10);
    let mut peers: Vec<_> = (0..MOST + 40).map(|_| Peer::connect(&mgmt, 4)).collect();
    peers.drain(..41);
    // Who said something last stays longest.
    peers[0].barrier();
    assert!(lab.ofctl("show br0").contains("dpid"), "one that is idle makes room");
    assert_eq!(quiet.try_wait().unwrap(), None, "the flood is one process's, and its own end");
    assert!(lab.sw.log().contains("another connection gets its place, disconnecting"));
    assert_eq!(lab.counter("ofconn_not_served"), 0);
    peers[0].barrier();
    peers.last_mut().unwrap().barrier();
    assert_eq!(quiet.try_wait().unwrap(), None);
    quiet.kill().unwrap();
    quiet.wait().unwrap();
    // Readers of a bridge without controllers are sent away at once.
    lab.vsctl("set-controller br0 tcp:127.0.0.1:9");
    let mut first = UnixStream::connect(lab.path("br0.snoop")).unwrap();
    let _snoops: Vec<_> =
        (0..MOST).map(|_| UnixStream::connect(lab.path("br0.snoop")).unwrap()).collect();
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(first.read_to_end(&mut Vec::new()).is_ok(), "a reader makes room for another, too");
    // The control socket, where clients hang on: the first makes room.
    let control = std::fs::read_dir(lab.sw.dir()).unwrap();
    let control = control.filter_map(|f| Some(f.ok()?.path()));
    let control = control.into_iter().find(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("ovs-vswitchd.") && name.ends_with(".ctl")
    });
    let control = control.unwrap();
    let mut clients: Vec<_> = (0..64).map(|_| UnixStream::connect(&control).unwrap()).collect();
    lab.sw.appctl(&["version"]).unwrap();
    clients[0].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(clients[0].read(&mut [0; 8]).unwrap(), 0, "its place was another's");
    clients[63].set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(clients[63].read(&mut [0; 8]).is_err(), "it still has its place");
}

#[test]
fn malformed_and_refused_messages_are_counted_and_logged() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let mut peer = Peer::connect(&lab.path("br0.mgmt"), 4);
    peer.send(99, 7, &[]);
    peer.send(kind::FLOW_MOD, 7, &[0; 3]);
    peer.raw(&peer::flow_mod_to_group(4, 7, 1, 99));
    peer.barrier();
    assert_eq!([lab.counter("ofconn_malformed"), lab.counter("ofconn_refused")], [2, 1]);
    drop(peer);
    let log = |line: &str| lab.sw.log().contains(line);
    until("the end", || log("2 malformed messages, 1 refused ones"));
    assert!(log("sending OFPBRC_BAD_LEN error reply to OFPT_FLOW_MOD message"));
    assert!(log("sending OFPBRC_BAD_TYPE error reply to invalid message"));
    assert_eq!([lab.counter("ofconn_malformed"), lab.counter("ofconn_refused")], [2, 1]);
}

#[test]
fn who_says_no_hello_goes() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let mut silent = UnixStream::connect(lab.path("br0.mgmt")).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut said = Vec::new();
    silent.read_to_end(&mut said).unwrap();
    assert_eq!(said.first(), Some(&6), "a hello, and then the end");
}

#[test]
fn sockets_have_ovs_mode_from_the_beginning_whatever_the_umask() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    // The daemon again, by way of a shell that leaves all permissions to it.
    let script = lab.path("weftd.sh");
    let weftd = env!("CARGO_BIN_EXE_weftd");
    std::fs::write(&script, format!("#!/bin/sh\numask 0\nexec {weftd} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let other = Netns::new().unwrap();
    let mut config = SwitchConfig::new(&script);
    config.args.push("--enable-dummy".into());
    let sw = Switch::start(&other, config).unwrap();
    let paths = ["br9.mgmt", "br9.snoop", "br9.passive"].map(|name| sw.dir().join(name));
    let watched = paths.clone();
    // Looks all the time, and remembers what each socket had when it was seen first.
    let watcher = std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(20);
        let mut seen = [None; 3];
        while seen.contains(&None) && Instant::now() < end {
            for (path, mode) in watched.iter().zip(&mut seen).filter(|(_, mode)| mode.is_none()) {
                *mode = path.metadata().ok().map(|m| m.permissions().mode() & 0o777);
            }
        }
        seen
    });
    let words = format!(
        "add-br br9 -- set bridge br9 datapath_type=dummy -- set-controller br9 punix:{}",
        paths[2].display()
    );
    sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    assert_eq!(watcher.join().unwrap(), [Some(0o770); 3]);
    let control = std::fs::read_dir(sw.dir()).unwrap().filter_map(|f| Some(f.ok()?.path()));
    let control: Vec<_> = control.filter(|p| p.to_string_lossy().ends_with(".ctl")).collect();
    let modes = control.iter().filter(|p| p.to_string_lossy().contains("ovs-vswitchd"));
    for path in modes {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o770);
    }
}

/// A message of a table features request that names tables (OFPTFC_MODIFY, no properties).
fn names(more: bool, tables: &[(u8, &str)]) -> Vec<u8> {
    let mut body = vec![0, 12, 0, u8::from(more), 0, 0, 0, 0];
    for (table, name) in tables {
        body.extend([0, 64, *table, 1, 0, 0, 0, 0]);
        body.extend(name.bytes().chain(std::iter::repeat(0)).take(32));
        body.extend([0xff; 16]);
        body.extend([0; 4]);
        body.extend(1_000_000u32.to_be_bytes());
    }
    body
}

#[test]
fn tables_are_named_when_all_of_a_request_has_come() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let is_named = |name: &str| lab.ofctl("dump-tables br0").contains(name);
    let mut peer = Peer::connect(&lab.path("br0.mgmt"), 6);
    let send = |peer: &mut Peer, xid, more, tables: &[(u8, &str)]| {
        peer.send(kind::MULTIPART_REQUEST, xid, &names(more, tables));
    };
    let refused = |peer: &mut Peer, xid: u32, error: [u8; 4]| {
        let m = peer.expect(kind::ERROR);
        assert_eq!((m.xid, &m.body[..4]), (xid, &error[..]));
    };
    send(&mut peer, 1, true, &[(3, "three")]);
    send(&mut peer, 2, true, &[(4, "four")]);
    refused(&mut peer, 2, [0, 1, 0, 13]);
    assert!(!is_named("three"), "before its last message");
    send(&mut peer, 1, true, &[(5, "five")]);
    send(&mut peer, 1, false, &[]);
    assert_eq!(peer.expect(kind::MULTIPART_REPLY).xid, 1);
    assert!(is_named("three") && is_named("five") && !is_named("four"));
    // What is wrong with a part is said once, at the end, and nothing is done.
    send(&mut peer, 3, true, &[(6, "six")]);
    send(&mut peer, 3, true, &[(6, "another"), (255, "all")]);
    send(&mut peer, 3, true, &[(255, "all")]);
    peer.barrier();
    assert!(!peer.seen.ends_with(&[kind::ERROR, kind::BARRIER_REPLY]), "{:?}", peer.seen);
    send(&mut peer, 3, false, &[(7, "seven")]);
    refused(&mut peer, 3, [0xff, 0xff, 0, 44]);
    peer.barrier();
    assert!(!is_named("six") && !is_named("seven"));
    // One whose end does not come is given up.
    lab.vsctl("set open . other_config:bundle-idle-timeout=1");
    send(&mut peer, 4, true, &[(8, "eight")]);
    refused(&mut peer, 4, [0, 1, 0, 14]);
    send(&mut peer, 5, true, &[(8, "eight")]);
    peer.barrier();
    drop(peer);
    let mut peer = Peer::connect(&lab.path("br0.mgmt"), 6);
    assert_eq!(peer.role(3, 0), Ok(3), "secondary");
    send(&mut peer, 5, false, &[(9, "nine")]);
    refused(&mut peer, 5, [0, 1, 0, 10]);
    send(&mut peer, 5, false, &[]);
    assert_eq!(peer.expect(kind::MULTIPART_REPLY).xid, 5, "it may ask");
    assert!(!is_named("eight") && !is_named("nine"));
}

#[test]
fn what_takes_many_turns_is_answered_in_order() {
    if !privileged() {
        return;
    }
    /// More than one turn looks at.
    const FLOWS: u32 = 10_000;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    let mut peer = Peer::connect(&lab.path("br0.mgmt"), 4);
    let flows: Vec<u8> = (1..=FLOWS).flat_map(|port| peer::flow_mod(4, 7, port, 1)).collect();
    peer.raw(&flows);
    peer.barrier();
    let select = [&[0xff, 0, 0, 0][..], &[0xff; 8], &[0; 20], &[0, 1, 0, 4, 0, 0, 0, 0]].concat();
    for (xid, request) in [(20, 2), (21, 1)] {
        let head = [0, request, 0, 0, 0, 0, 0, 0];
        peer.send(kind::MULTIPART_REQUEST, xid, &[&head, &select[..]].concat());
    }
    peer.send(kind::BARRIER_REQUEST, 22, &[]);
    let sums = peer.expect(kind::MULTIPART_REPLY);
    assert_eq!((sums.xid, aggregate(&sums)), (20, FLOWS));
    let mut ports = Vec::new();
    loop {
        let part = peer.expect(kind::MULTIPART_REPLY);
        assert_eq!(part.xid, 21);
        let mut rest = &part.body[8..];
        while let [a, b, ..] = *rest {
            // The only field: OXM_OF_IN_PORT.
            ports.push(u32::from_be_bytes([rest[56], rest[57], rest[58], rest[59]]));
            rest = &rest[usize::from(u16::from_be_bytes([a, b]))..];
        }
        if part.body[3] & 1 == 0 {
            break;
        }
    }
    assert_eq!(peer.expect(kind::BARRIER_REPLY).xid, 22, "after all of it");
    assert!(ports.iter().copied().eq(1..=FLOWS), "each once, as they came: {}", ports.len());
}

/// A request for so many flow monitors (Nicira's, of OpenFlow 1.0), which want all changes.
fn monitors(ids: std::ops::Range<u32>) -> Vec<u8> {
    let mut body = vec![0xff, 0xff, 0, 0, 0, 0, 0x23, 0x20, 0, 0, 0, 2, 0, 0, 0, 0];
    for id in ids {
        body.extend(id.to_be_bytes());
        body.extend([0, 0x0e, 0xff, 0xff, 0, 0, 0xff, 0, 0, 0, 0, 0]);
    }
    let mut message = vec![1, 16];
    message.extend((8 + body.len() as u16).to_be_bytes());
    message.extend([0, 0, 0, 9]);
    message.extend(body);
    message
}

#[test]
fn flow_monitors_of_a_bridge_are_bounded() {
    if !privileged() {
        return;
    }
    /// Monitors of a connection, and of a bridge, at most.
    const MOST: [u32; 2] = [1024, 4096];
    const STATS_REPLY: u8 = 17;
    let ns = Netns::new().unwrap();
    let lab = Lab::new(&ns);
    lab.vsctl("add-br br1 -- set bridge br1 datapath_type=dummy fail_mode=secure");
    let mgmt = lab.path("br0.mgmt");
    let ask = |peer: &mut Peer, ids| {
        peer.raw(&monitors(ids));
        peer.next_of(&[STATS_REPLY, kind::ERROR])
    };
    let mut peers = Vec::new();
    for _ in 0..MOST[1] / MOST[0] {
        let mut peer = Peer::connect(&mgmt, 1);
        assert_eq!(ask(&mut peer, 0..MOST[0]), STATS_REPLY);
        assert_eq!(ask(&mut peer, MOST[0]..MOST[0] + 1), kind::ERROR);
        peers.push(peer);
    }
    let mut another = Peer::connect(&mgmt, 1);
    assert_eq!(ask(&mut another, 0..1), kind::ERROR);
    let mut elsewhere = Peer::connect(&lab.path("br1.mgmt"), 1);
    assert_eq!(ask(&mut elsewhere, 0..1), STATS_REPLY, "other bridges have their own");
    drop(peers);
    until("there is room again", || ask(&mut another, 0..1) == STATS_REPLY);
}
