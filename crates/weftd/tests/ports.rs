//! Every type of port by ovs-vsctl: what works, what the database says of it, what goes wrong.

mod lab;

use lab::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::{Netns, Raw, Switch, SwitchConfig, privileged};

/// Adds an interface and looks at what the database says of it.
fn add(sw: &Switch, name: &str, settings: &str) -> u32 {
    vsctl(sw, &format!("add-port br0 {name} -- set interface {name} {settings}"));
    assert_eq!(iface(sw, name, "error"), "[]", "{name} {settings}");
    let ofport: i64 = iface(sw, name, "ofport").parse().unwrap();
    assert!((1..65280).contains(&ofport), "{name}: {ofport}");
    ofport as u32
}

#[test]
fn system_internal_and_tap() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    ping(&a, 2);
    add(&sw, "int0", "type=internal mtu_request=1400");
    add(&sw, "tap0", "type=tap");
    for (name, n) in [("br0", 10), ("int0", 11), ("tap0", 12)] {
        let inside = Netns::new().unwrap();
        if name != "br0" {
            // Moved to a namespace of its own, as containers use it.
            ns.ip(&format!("link set {name} netns {}", inside.path())).unwrap();
        }
        let at = if name == "br0" { &ns } else { &inside };
        at.ip(&format!("addr add 10.0.0.{n}/24 dev {name}")).unwrap();
        at.ip(&format!("link set {name} up")).unwrap();
        ping(&a, n);
        at.ping(addr(1), WAIT_TIME_MAX).unwrap();
    }
    columns_of_a_system_port(&sw, &ns);
}

/// The system provides memory for long frames to those ports only that receive some.
#[test]
fn an_idle_port_of_the_kernel_holds_little_memory() {
    const PORTS: u64 = 60;
    const PORT_KILOBYTES_MAX: u64 = 700;
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let resident = || {
        let pid = sw.daemon_pid().unwrap();
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find(|l| l.starts_with("RssAnon")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    let add = |i: u64| {
        ns.ip(&format!("link add idle{i} type veth peer name other{i}")).unwrap();
        format!("-- add-port br0 idle{i} ")
    };
    let all: String = (0..PORTS).map(add).collect();
    vsctl(&sw, &all);
    let grown = resident().saturating_sub(before);
    assert!(grown < PORTS * PORT_KILOBYTES_MAX, "{grown} kB for {PORTS} ports");
}

fn columns_of_a_system_port(sw: &Switch, ns: &Netns) {
    let link = ns.ip("-o link show v1").unwrap();
    let index = link.split(':').next().unwrap();
    assert_eq!(iface(sw, "v1", "ifindex"), index);
    assert!(link.contains(&iface(sw, "v1", "mac_in_use")), "{link}");
    assert_eq!(iface(sw, "v1", "mtu"), "1500");
    assert_eq!(iface(sw, "v1", "admin_state"), "up");
    assert_eq!(iface(sw, "v1", "link_state"), "up");
    assert_eq!(iface(sw, "v1", "duplex"), "full");
    assert_eq!(iface(sw, "v1", "link_speed"), "10000000000");
    assert!(iface(sw, "v1", "status").contains("driver_name=veth"));
    // An interface has statistics as soon as ovs-vsctl returns.
    vsctl(sw, "add-port br0 patch9 -- set interface patch9 type=patch options:peer=none");
    assert_eq!(statistic(sw, "patch9", "rx_packets"), Some(0));
    vsctl(sw, "del-port patch9");
    wait_for("statistics", || statistic(sw, "v1", "rx_packets") > Some(0));
    for key in [
        "collisions",
        "rx_bytes",
        "rx_crc_err",
        "rx_dropped",
        "rx_errors",
        "rx_frame_err",
        "rx_over_err",
        "rx_packets",
        "tx_bytes",
        "tx_dropped",
        "tx_errors",
        "tx_packets",
    ] {
        assert!(statistic(sw, "v1", key).is_some(), "{key}: {}", iface(sw, "v1", "statistics"));
    }
    let counters = ofctl(sw, "-OOpenFlow14 dump-ports br0 v1");
    assert!(!counters.contains("CUSTOM"), "kernel ports have none, as in OVS: {counters}");
    ns.ip("link set v2 down").unwrap();
    wait_for("link down", || iface(sw, "v2", "link_state") == "down");
    assert_eq!(iface(sw, "v2", "admin_state"), "down");
    ns.ip("link set v2 up").unwrap();
    wait_for("link up", || iface(sw, "v2", "link_state") == "up");
    assert!(iface(sw, "v2", "link_resets").parse::<u64>().unwrap() >= 1);
}

/// As in OVS: an interface record's MAC is for internal ports that are not the bridge's own.
#[test]
fn macs_are_set_on_internal_ports_only() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    let before = ["v1", "br0"].map(|name| iface(&sw, name, "mac_in_use"));
    let is_on = |name: &str, mac: &str| ns.ip(&format!("link show {name}")).unwrap().contains(mac);
    vsctl(&sw, "set interface v1 mac=\"02:11:22:33:44:55\"");
    vsctl(&sw, "set interface br0 mac=\"02:11:22:33:44:56\"");
    add(&sw, "int0", "type=internal mac=\"02:11:22:33:44:57\"");
    assert!(is_on("int0", "02:11:22:33:44:57"));
    vsctl(&sw, "set interface int0 mac=\"02:11:22:33:44:58\"");
    wait_for("the new address", || iface(&sw, "int0", "mac_in_use") == "02:11:22:33:44:58");
    vsctl(&sw, "set interface int0 mac=\"03:11:22:33:44:59\"");
    assert!(is_on("int0", "02:11:22:33:44:58"));
    for (name, mac) in ["v1", "br0"].iter().zip(&before) {
        assert!(is_on(name, mac) && iface(&sw, name, "mac_in_use") == *mac, "{name}");
    }
    for line in [
        "|ERR|interface br0: ignoring mac in Interface record (use Bridge record to set local \
         port's mac)",
        "|ERR|interface int0: cannot set MAC to multicast address",
    ] {
        assert_eq!(sw.log().matches(line).count(), 1, "{line}: {}", sw.log());
    }
    vsctl(&sw, "set bridge br0 other_config:hwaddr=\"02:11:22:33:44:60\"");
    wait_for("the bridge's address", || iface(&sw, "br0", "mac_in_use") == "02:11:22:33:44:60");
    assert!(is_on("br0", "02:11:22:33:44:60"));
    ping(&a, 2);
}

#[test]
fn patch_pairs_join_bridges() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host(&ns, 2));
    add_bridge(&sw, "br1");
    vsctl(&sw, "add-port br1 v2");
    vsctl(&sw, "add-port br0 p0 -- set interface p0 type=patch options:peer=p1");
    let missing = "No usable peer 'p1' exists in 'netdev' datapath.";
    assert_eq!(iface(&sw, "p0", "error"), missing);
    vsctl(&sw, "add-port br1 p1 -- set interface p1 type=patch options:peer=p0");
    ping(&a, 2);
    wait_for("a peer", || iface(&sw, "p0", "error") == "[]");
    for p in ["p0", "p1"] {
        assert_eq!(iface(&sw, p, "link_state"), "up");
        assert_eq!(iface(&sw, p, "admin_state"), "up");
        assert_eq!(iface(&sw, p, "mac_in_use").len(), 17);
        wait_for("what a patch port received", || statistic(&sw, p, "rx_packets") > Some(0));
        assert!(statistic(&sw, p, "tx_bytes") > Some(0));
    }
    vsctl(&sw, "del-port p1");
    assert!(a.ping(addr(2), Duration::from_millis(300)).is_err(), "nothing passes half a pair");
    vsctl(&sw, "add-port br1 p1 -- set interface p1 type=patch options:peer=p0");
    ping(&a, 2);
}

#[test]
fn virtual_dpdk_devices() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    ns.ip("link add k0 type veth peer name k1").unwrap();
    ns.ip("link set k0 up").unwrap();
    ns.ip("link set k1 up").unwrap();
    let sw = start_with_bridge(&ns);
    ofctl(&sw, "del-flows br0");
    let dir = sw.dir().display().to_string();
    pcap(&sw.dir().join("in.pcap"));
    let devices = [
        ("null0", "net_null0".to_string(), "net_null"),
        ("ring0", "net_ring0".to_string(), "net_ring"),
        ("pcap0", format!("net_pcap0,rx_pcap={dir}/in.pcap,tx_pcap={dir}/out.pcap"), "net_pcap"),
        ("afp0", "net_af_packet0,iface=k0".to_string(), "net_af_packet"),
        ("dtap0", "net_tap0,iface=dtap-dev".to_string(), "net_tap"),
        (
            "memif0",
            format!("net_memif0,role=server,socket={dir}/memif.sock,socket-abstract=no"),
            "net_memif",
        ),
    ];
    for (name, devargs, driver) in &devices {
        add(&sw, name, &format!("type=dpdk options:dpdk-devargs={devargs} options:n_rxq_desc=512"));
        assert_eq!(iface(&sw, name, "status:driver_name"), *driver);
        assert_eq!(iface(&sw, name, "admin_state"), "up");
        assert_eq!(iface(&sw, name, "mac_in_use").len(), 17);
        assert_eq!(iface(&sw, name, "mtu"), "1500", "{name}");
        let expected = if *name == "memif0" { "down" } else { "up" };
        wait_for("link state", || iface(&sw, name, "link_state") == expected);
        vsctl(&sw, &format!("del-port {name}"));
    }
    // All at once, a second time.
    for (name, devargs, _) in &devices {
        add(&sw, name, &format!("type=dpdk options:dpdk-devargs={devargs}"));
    }
    assert!(appctl(&sw, "dpif-netdev/pmd-rxq-show").contains("port: memif0"));
    vsctl(&sw, "del-br br0");
    assert!(ns.ip("link show dtap-dev").is_err(), "DPDK's TAP goes with its port");
}

#[test]
fn pcap_and_af_packet_carry_frames() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    ns.ip("link add k0 type veth peer name k1").unwrap();
    let far = Netns::new().unwrap();
    testkit::veth((&ns, "k2"), (&far, "far")).unwrap();
    for dev in ["k0", "k1"] {
        ns.ip(&format!("link set {dev} up")).unwrap();
        ns.ipv6_off(dev).unwrap();
    }
    far.ipv6_off("far").unwrap();
    let sw = start_with_bridge(&ns);
    pcap(&sw.dir().join("in.pcap"));
    add(&sw, "k2", "ofport_request=2");
    add(&sw, "afp0", "ofport_request=3 type=dpdk options:dpdk-devargs=net_af_packet0,iface=k0");
    let dir = sw.dir().display();
    add(
        &sw,
        "pcap0",
        &format!(
            "ofport_request=4 type=dpdk \
        options:dpdk-devargs=net_pcap0,rx_pcap={dir}/in.pcap,tx_pcap={dir}/out.pcap,infinite_rx=1"
        ),
    );
    ofctl(&sw, "del-flows br0");
    ofctl(&sw, "add-flow br0 in_port=2,actions=output:3");
    ofctl(&sw, "add-flow br0 in_port=3,actions=output:2");
    let frame = pcap_frame(7);
    let (far, near) = (Raw::open(&far, "far").unwrap(), Raw::open(&ns, "k1").unwrap());
    let comes = |end: &Raw, frame: &[u8], n| {
        let deadline = std::time::Instant::now() + WAIT_TIME_MAX;
        assert_eq!(end.collect(n, deadline, |f| f == frame).len(), n);
    };
    far.send(&frame).unwrap();
    comes(&near, &frame, 1);
    near.send(&frame).unwrap();
    comes(&far, &frame, 1);
    ofctl(&sw, "add-flow br0 in_port=4,actions=output:2");
    comes(&far, &pcap_frame(0), 100);
    ofctl(&sw, "add-flow br0 in_port=4,actions=drop");
}

fn pcap_frame(n: u8) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 0x88, 0xb5];
    f.resize(100, n);
    f
}

/// A capture of one frame.
fn pcap(path: &std::path::Path) {
    let mut b = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1, 0, 0, 100, 100] {
        b.extend(word.to_le_bytes());
    }
    b.extend(pcap_frame(0));
    std::fs::write(path, b).unwrap();
}

#[test]
fn afxdp_where_the_kernel_has_it() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, b) = (host(&ns, 1), host_on(&ns, &sw, 2));
    // AF_XDP's copy mode takes frames before the kernel has made their checksums.
    a.offloads_off("eth0").unwrap();
    b.offloads_off("eth0").unwrap();
    add(&sw, "v1", "type=afxdp");
    assert_eq!(iface(&sw, "v1", "status:driver_name"), "net_af_xdp");
    ping(&a, 2);
    ping(&b, 1);
    vsctl(&sw, "del-port v1 -- add-port br0 v1");
    ping(&a, 2);
}

/// All buffers of the device's pool go round, and the device can still receive.
#[test]
fn an_afxdp_device_goes_on_when_all_buffers_were_used() {
    const FRAMES: u64 = 40_000;
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, b) = (host(&ns, 1), host_on(&ns, &sw, 2));
    a.offloads_off("eth0").unwrap();
    b.offloads_off("eth0").unwrap();
    add(&sw, "v1", "type=afxdp");
    ping(&a, 2);
    let raw = testkit::Raw::open(&a, "eth0").unwrap();
    let to = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x12, 0x34];
    let frame = [&to[..], &[0; 50]].concat();
    let received = || statistic(&sw, "v1", "rx_packets").unwrap_or(0);
    wait_for("the frames are received", || {
        for _ in 0..100 {
            (0..20).for_each(|_| raw.send(&frame).unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
        received() > FRAMES
    });
    ping(&a, 2);
}

/// Another program of XDP (here: the socket of another port) is on the device: whatever else
/// changes in the database has that tried again some times only, as each attempt costs memory.
#[test]
fn an_afxdp_device_that_cannot_be_opened_is_tried_some_times() {
    const CHANGES: usize = 8;
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let _a = host(&ns, 1);
    let devargs = "options:dpdk-devargs=net_af_xdp_first,iface=v1";
    add(&sw, "x1", &format!("type=dpdk {devargs}"));
    let refused = |name| iface(&sw, name, "error").contains("cannot set up receive queue");
    let size = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", sw.daemon_pid().unwrap()));
        let rss = status.unwrap().lines().find_map(|l| l.strip_prefix("VmRSS:").map(str::to_owned));
        rss.unwrap().trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let second = devargs.replace("first", "second");
    for (name, set) in [("v1", "type=afxdp"), ("x2", &format!("type=dpdk {second}"))] {
        vsctl(&sw, &format!("--no-wait add-port br0 {name} -- set interface {name} {set}"));
        wait_for("the error", || refused(name));
        for i in 0..2 {
            add(&sw, &format!("{name}t{i}"), "type=internal");
        }
        let before = size();
        for i in 2..CHANGES {
            add(&sw, &format!("{name}t{i}"), "type=internal");
        }
        assert!(size() < before + (60 << 10), "{name}: {before} kB, then {} kB", size());
        assert!(refused(name));
    }
    vsctl(&sw, "del-port x1 -- del-port v1 -- del-port x2");
    add(&sw, "v1", "type=afxdp");
    assert_eq!(iface(&sw, "v1", "error"), "[]");
}

/// Whoever has the other end of a veth pair may delete both, and make another one: DPDK's driver
/// does not say so. As it does not give all memory back, that is followed twice.
#[test]
fn an_afxdp_device_that_comes_back_is_opened_again_some_times() {
    const ATTEMPTS: usize = 2;
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, b) = (host(&ns, 1), host_on(&ns, &sw, 2));
    b.offloads_off("eth0").unwrap();
    add(&sw, "v1", "type=afxdp");
    let mut a = Some(a);
    for n in 0..=ATTEMPTS {
        drop(a.take());
        wait_for("the device is gone", || iface(&sw, "v1", "ofport") == "-1");
        assert!(iface(&sw, "v1", "error").contains("v1 is gone"));
        let new = host(&ns, 1);
        new.offloads_off("eth0").unwrap();
        if n == ATTEMPTS {
            std::thread::sleep(Duration::from_secs(3));
            assert_eq!(iface(&sw, "v1", "ofport"), "-1", "it is enough");
            break;
        }
        wait_for("the device is back", || iface(&sw, "v1", "link_state") == "up");
        ping(&new, 2);
        a = Some(new);
    }
}

#[test]
fn numbers_of_ports() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    assert_eq!(iface(&sw, "br0", "ofport"), "65534");
    assert_eq!(add(&sw, "t1", "type=internal"), 1);
    assert_eq!(add(&sw, "t7", "type=internal ofport_request=7"), 7);
    assert_eq!(add(&sw, "t2", "type=internal"), 2);
    // A request for a number that another port has: another one is given.
    let other = add(&sw, "tx", "type=internal ofport_request=7");
    assert!(other != 7 && other != 1 && other != 2, "{other}");
    vsctl(&sw, "set interface t1 ofport_request=100");
    assert_eq!(iface(&sw, "t1", "ofport"), "100");
    vsctl(&sw, "clear interface t1 ofport_request");
    assert_eq!(iface(&sw, "t1", "ofport"), "100", "a number stays while no other is asked for");
    vsctl(&sw, "del-port t7 -- del-port t2");
    assert_eq!(iface(&sw, "t1", "ofport"), "100");
    let show = ofctl(&sw, "show br0");
    assert!(show.contains(" 100(t1): addr:"), "{show}");
    assert!(!show.contains("(t7)"), "{show}");
}

#[test]
fn bad_values_are_errors_of_their_interface_only() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    ping(&a, 2);
    let pinger = Pinger::start(&a, addr(2));
    let bad = [
        ("nosuchdev", "type=system", "No such device"),
        ("odd", "type=nonsense", "Address family not supported"),
        ("d1", "type=dpdk", "dpdk-devargs"),
        ("d2", "type=dpdk options:dpdk-devargs=net_nonsense0", "net_nonsense0"),
        ("d3", "type=dpdk options:dpdk-devargs=0000:ff:1f.7", "0000:ff:1f.7"),
        ("d4", "type=dpdk options:dpdk-devargs=net_pcap1,rx_pcap=/nonexistent/x.pcap", "net_pcap1"),
        ("d5", "type=dpdk options:dpdk-devargs=net_af_packet5,iface=nosuchdev", "net_af_packet5"),
        ("c1", "type=dpdkvhostuserclient", "vhost-server-path"),
        ("x1", "type=afxdp", "x1"),
        ("pp", "type=patch", "peer"),
        ("pq", "type=patch options:peer=pq", "patch peer must not be self"),
        ("lo", "type=internal", "lo"),
        ("a-name-of-more-than-15", "type=system", "a-name-of-more-than-15"),
    ];
    for (name, settings, word) in bad {
        vsctl(&sw, &format!("add-port br0 {name} -- set interface {name} {settings}"));
        let error = iface(&sw, name, "error");
        assert!(error.contains(word), "{name} {settings}: {error}");
        assert_eq!(iface(&sw, name, "ofport"), "-1");
        assert_eq!(iface(&sw, name, "link_state"), "[]");
    }
    // Values that make no sense but harm nothing.
    ofctl(&sw, "add-flow br0 priority=9,in_port=77,actions=drop");
    add(
        &sw,
        "null0",
        "type=dpdk options:dpdk-devargs=net_null9 options:n_rxq=-3 \
        options:n_rxq_desc=17 options:n_txq_desc=many other_config:pmd-rxq-affinity=x:y,7:99 \
        ofport_request=77",
    );
    vsctl(&sw, "del-port null0");
    add(&sw, "int9", "type=internal mac=\"01:00:00:00:00:01\" mtu_request=1400 other_config:x=y");
    for (name, ..) in bad {
        vsctl(&sw, &format!("del-port {name}"));
    }
    let (sent, answered) = pinger.stop();
    assert!(sent > 10 && answered + 1 >= sent, "{answered} of {sent}: others were disturbed");
    ping(&a, 2);
}

#[test]
fn what_dpdk_tells() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    add(&sw, "null0", "type=dpdk options:dpdk-devargs=net_null0,no-rx=1");
    for (command, word) in [
        ("dpdk/get-malloc-stats", "Alloc_size:"),
        ("dpdk/lcore-list", "role NON_EAL"),
        ("dpdk/log-list", "lib.vhost.config, level is info"),
        ("dpdk/log-set error lib.vhost.config:debug", ""),
        ("dpdk/log-list", "lib.vhost.config, level is debug"),
        ("dpdk/log-list", "lib.mbuf, level is error"),
        ("dpdk/log-set info", ""),
        ("netdev-dpdk/get-mempool-info", "mempool <weft"),
        ("netdev-dpdk/get-mempool-info null0", "mempool <weft"),
    ] {
        let said = appctl(&sw, command);
        assert!(said.contains(word) && said.is_empty() == word.is_empty(), "{command}: {said}");
    }
    for (command, why) in [
        ("dpdk/log-set pmd:loud", "invalid log level: 'loud'"),
        ("netdev-dpdk/get-mempool-info br0", "Not a DPDK Interface"),
        ("netdev-dpdk/set-admin-state br0 up", "Not a DPDK Interface"),
        ("netdev-dpdk/set-admin-state null0 sideways", "Invalid Admin State"),
        ("netdev-dpdk/detach net_null7", "Device 'net_null7' not found in DPDK"),
        ("netdev-dpdk/detach net_null0,no-rx=1", "used by the following interfaces: null0."),
    ] {
        let said = sw.appctl(&command.split(' ').collect::<Vec<_>>()).unwrap_err().to_string();
        assert!(said.contains(why), "{command}: {said}");
    }
    for state in ["down", "up"] {
        assert_eq!(appctl(&sw, &format!("netdev-dpdk/set-admin-state null0 {state}")).trim(), "OK");
        wait_for(state, || iface(&sw, "null0", "admin_state") == state);
    }
}

#[test]
fn one_port_in_two_bridges() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    add_bridge(&sw, "br1");
    let port = vsctl(&sw, "get port v2 _uuid");
    vsctl(&sw, &format!("add bridge br1 ports {port}"));
    ping(&a, 2);
    assert_eq!(iface(&sw, "v2", "error"), "[]", "it works in the first");
    assert_eq!(iface(&sw, "v2", "ofport"), "2");
    // It leaves the one: the other has it.
    vsctl(&sw, &format!("remove bridge br0 ports {port}"));
    assert!(a.ping(addr(2), Duration::from_millis(300)).is_err(), "it is in another bridge");
    assert_eq!(iface(&sw, "v2", "error"), "[]");
    assert!(ofctl(&sw, "show br1").contains("(v2)"));
}

#[test]
fn a_failed_device_works_once_it_is_there() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let a = host_on(&ns, &sw, 1);
    vsctl(&sw, "add-port br0 v2");
    assert_eq!(iface(&sw, "v2", "ofport"), "-1");
    let b = host(&ns, 2);
    wait_for("the port", || iface(&sw, "v2", "ofport") == "2");
    assert_eq!(iface(&sw, "v2", "error"), "[]");
    ping(&a, 2);
    let complaints =
        |log: &str| log.lines().filter(|l| l.contains("v2") && l.contains("|WARN|")).count();
    let before = complaints(&sw.log());
    ns.ip("link del v2").unwrap();
    drop(b);
    wait_for("the error", || iface(&sw, "v2", "ofport") == "-1");
    // Plug-ins of container systems look for the interfaces with this error.
    let gone = "could not open network device v2 (No such device)";
    assert_eq!(iface(&sw, "v2", "error"), gone);
    // That a device goes is no fault of the switch: suites that read its log allow no more.
    let log = sw.log();
    assert!(log.contains(&format!("|INFO|interface v2: {gone}")), "{log}");
    assert_eq!(complaints(&log), before, "{log}");
    let _b = host(&ns, 2);
    ping(&a, 2);
    assert_eq!(iface(&sw, "v2", "ofport"), "2", "the same number as before");
}

#[test]
fn ports_come_and_go_under_traffic() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
    let _c = host(&ns, 3);
    ping(&a, 2);
    let pinger = Pinger::start(&a, addr(2));
    for round in 0..5 {
        vsctl(&sw, "add-port br0 v3 -- add-port br0 i3 -- set interface i3 type=internal");
        if round == 0 {
            ping(&a, 3);
        }
        vsctl(&sw, "add-port br0 n3 -- set interface n3 type=dpdk options:dpdk-devargs=net_ring3");
        vsctl(&sw, "add-port br0 s3 -- set interface s3 type=dpdkvhostuser");
        vsctl(&sw, "del-port v3 -- del-port i3 -- del-port n3 -- del-port s3");
    }
    let (sent, answered) = pinger.stop();
    assert!(sent > 20 && answered + 1 >= sent, "{answered} of {sent}");
}

#[test]
fn a_bridge_leaves_nothing_behind() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start(&ns);
    let files = || {
        let names = std::fs::read_dir(sw.dir()).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<String> = names.map(|n| n.into_string().unwrap()).collect();
        names.retain(|n| n != "start.txt" && n != "stdin.txt");
        names.sort();
        names
    };
    let before = files();
    for _ in 0..2 {
        add_bridge(&sw, "br0");
        add(&sw, "int0", "type=internal");
        add(&sw, "tap0", "type=tap");
        add(&sw, "vhu0", "type=dpdkvhostuser");
        assert!(sw.dir().join("vhu0").exists() && sw.dir().join("br0.mgmt").exists());
        for dev in ["br0", "int0", "tap0"] {
            ns.ip(&format!("link show {dev}")).unwrap();
        }
        vsctl(&sw, "del-br br0");
        for dev in ["br0", "int0", "tap0"] {
            assert!(ns.ip(&format!("link show {dev}")).is_err(), "{dev} is still there");
        }
        assert_eq!(files(), before);
    }
}

/// The kernel keeps whoever closes a TAP device waiting for some milliseconds: ports that go
/// together are closed by many threads, or 500 of them would stop everything else for 9 s.
#[test]
fn ports_that_go_together_are_closed_side_by_side() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let tasks = format!("/proc/{}/task", sw.daemon_pid().unwrap());
    let threads = || std::fs::read_dir(&tasks).unwrap().count();
    let each = |f: &dyn Fn(u32) -> String| (0..100).map(f).collect::<Vec<_>>().join(" -- ");
    // Threads are there for a moment only: on a busy machine it may take some rounds to see them.
    wait_for("several threads that close ports", || {
        vsctl(&sw, &each(&|i| format!("add-port br0 i{i} -- set interface i{i} type=internal")));
        let before = threads();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                vsctl(&sw, &each(&|i| format!("del-port i{i}")));
                done.store(true, Ordering::Relaxed);
            });
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(threads());
            }
            most >= before + 4
        })
    });
    assert!(ns.ip("link show i0").is_err() && ns.ip("link show i99").is_err());
}

/// Others are answered while a configuration of many ports is applied, and who waits for it finds
/// all of it done.
#[test]
fn commands_are_answered_while_many_ports_come_and_go() {
    if !privileged() {
        return;
    }
    const PORTS: usize = 300;
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let links = || ns.ip("-o link show").unwrap().lines().count();
    let before = links();
    let there = || sw.appctl(&["dpctl/show"]).unwrap().matches("  port ").count();
    let own = there();
    assert!(own > 0);
    let words = |i, on| match on {
        true => format!("add-port br0 i{i} -- set interface i{i} type=internal"),
        false => format!("del-port br0 i{i}"),
    };
    for on in [true, false] {
        let all: Vec<String> = (0..PORTS).map(|i| words(i, on)).collect();
        let (done, seen) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    seen.lock().unwrap().push(there());
                }
            });
            vsctl(&sw, &all.join(" -- "));
            done.store(true, Ordering::Relaxed);
        });
        let (now, expected) = (links(), if on { before + PORTS } else { before });
        assert_eq!(now, expected, "devices when ovs-vsctl returns");
        let seen = seen.into_inner().unwrap();
        let part = |n: &usize| (own + 1..own + PORTS).contains(n);
        assert!(!on || seen.iter().any(part), "answers while ports came: {seen:?}");
    }
}

#[test]
fn commands_are_answered_while_many_bridges_go() {
    if !privileged() {
        return;
    }
    const BRIDGES: usize = 300;
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let mut config = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    config.args.push("--enable-dummy".into());
    let sw = Switch::start(&ns, config).unwrap();
    let there = || sw.appctl(&["ofproto/list"]).unwrap().lines().count();
    let add = |i| format!("add-br b{i} -- set bridge b{i} datapath_type=dummy");
    vsctl(&sw, &(0..BRIDGES).map(add).collect::<Vec<_>>().join(" -- "));
    assert_eq!(there(), BRIDGES);
    let (done, seen) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                seen.lock().unwrap().push(there());
            }
        });
        let all: Vec<String> = (0..BRIDGES).map(|i| format!("del-br b{i}")).collect();
        vsctl(&sw, &all.join(" -- "));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(there(), 0);
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().any(|n| (1..BRIDGES).contains(n)), "answers meanwhile: {seen:?}");
}
