//! The kit itself, tried with the installed ovs-vswitchd. Needs root.

use std::path::Path;
use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Probe, Raw, Switch, SwitchConfig, privileged, veth};

const QUIET: Duration = Duration::from_millis(150);

fn usable() -> bool {
    let there = Path::new(&SwitchConfig::oracle().daemon).exists();
    privileged() && testkit::available(there, "the package openvswitch-switch")
}

/// A raw socket keeps 500 frames until the test reads them: on a busy machine a test may get no
/// core for a while.
#[test]
fn a_socket_keeps_what_is_not_read_yet() {
    if !privileged() {
        return;
    }
    let net = Netns::new().unwrap();
    veth((&net, "left"), (&net, "right")).unwrap();
    let (left, right) = (Raw::open(&net, "left").unwrap(), Raw::open(&net, "right").unwrap());
    let frame = Frame::udp4(([2; 6], [4; 6]), ([10, 1, 0, 1], [10, 1, 0, 2]), (1, 2), &[7; 1400]);
    let frame = frame.bytes();
    (0..500).for_each(|_| left.send(&frame).unwrap());
    let came = right.collect(500, Instant::now() + Duration::from_secs(5), |f| f == frame);
    assert_eq!(came.len(), 500);
}

#[test]
fn namespaces_and_cables() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    veth((&a, "left"), (&b, "right")).unwrap();
    a.ip("addr add 10.1.0.1/24 dev left").unwrap();
    b.ip("addr add 10.1.0.2/24 dev right").unwrap();
    b.ip("addr add fd01::2/64 dev right").unwrap();
    a.ip("addr add fd01::1/64 dev left").unwrap();
    let wait_max = Duration::from_secs(5);
    for to in ["10.1.0.2", "fd01::2"] {
        a.ping(to.parse().unwrap(), wait_max).unwrap();
    }
    let error = a.ping("10.1.0.3".parse().unwrap(), QUIET).unwrap_err();
    assert!(error.contains("no answer from 10.1.0.3"), "{error}");
    let error = a.ip("link show right").unwrap_err();
    assert!(error.contains("does not exist"), "{error}");
    assert!(a.run(|| Raw::here("right")).is_err());
}

#[test]
fn raw_ends_see_frames_with_tags() {
    if !privileged() {
        return;
    }
    let ns = Netns::new().unwrap();
    veth((&ns, "e0"), (&ns, "e1")).unwrap();
    let (a, b) = (Raw::open(&ns, "e0").unwrap(), Raw::open(&ns, "e1").unwrap());
    let f = Frame::arp_request([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], [10, 0, 0, 2]);
    let tagged = f.clone().tagged(0x8100, 5).tagged(0x88a8, 6).padded();
    a.send(&f.padded()).unwrap();
    a.send(&tagged).unwrap();
    let deadline = Instant::now() + Duration::from_secs(2);
    assert_eq!(b.collect(2, deadline, |_| true), [f.padded(), tagged]);
    assert_eq!(a.receive(Instant::now() + QUIET), None, "own frames are not seen");
}

#[test]
fn a_switch_starts_forwards_restarts_and_leaves_nothing() {
    if !usable() {
        return;
    }
    let (host, outside) = (Netns::new().unwrap(), Netns::new().unwrap());
    let switch = Switch::start(&host, SwitchConfig::oracle()).unwrap();
    let mut probe = Probe::new();
    switch
        .vsctl(&[
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
            "fail-mode=secure",
        ])
        .unwrap();
    for i in 1..=3 {
        let (near, far) = (format!("p{i}"), format!("e{i}"));
        veth((&host, &near), (&outside, &far)).unwrap();
        let request = format!("ofport_request={i}");
        switch
            .vsctl(&["add-port", "br0", &near, "--", "set", "interface", &near, &request])
            .unwrap();
        probe.add(&outside, &far).unwrap();
    }
    switch.ofctl_stdin(&["add-flows", "br0", "-"], "in_port=1 actions=2,3\n").unwrap();
    let frame = Frame::arp_request([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], [10, 0, 0, 2]).padded();
    let got = probe.inject("e1", &frame, QUIET).unwrap();
    assert_eq!(got.keys().collect::<Vec<_>>(), ["e2", "e3"]);
    assert_eq!((&got["e2"], &got["e3"]), (&vec![frame.clone()], &vec![frame.clone()]));
    assert!(switch.appctl(&["dpif/show"]).unwrap().contains("br0"));
    let error = switch.ofctl(&["show", "no-such-bridge"]).unwrap_err();
    assert!(error.contains("no-such-bridge"), "{error}");

    let before = switch.daemon_pid().expect("it runs");
    switch.kill_daemon();
    assert_eq!(switch.daemon_pid(), None);
    switch.start_daemon().unwrap();
    assert_ne!(switch.daemon_pid().expect("it runs again"), before);
    assert_eq!(switch.vsctl(&["list-ports", "br0"]).unwrap(), "p1\np2\np3\n");
    switch.stop_daemon().unwrap();

    let (dir, db) = (switch.dir().to_owned(), switch.db_pid().unwrap());
    drop(switch);
    assert!(!dir.exists());
    let left = std::fs::read_to_string(format!("/proc/{db}/cmdline")).unwrap_or_default();
    assert_eq!(left, "", "ovsdb-server is gone, or a zombie that init has yet to reap");
}
