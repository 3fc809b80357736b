//! Frames longer than an output port's MTU end there by name, for kernel and DPDK ports, and a
//! changed MTU counts without the port being touched; jumbo frames pass every type of kernel port.
//! Needs root.

use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Raw, Switch, SwitchConfig, privileged, veth};

fn sized(n: usize) -> Vec<u8> {
    let macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    Frame::udp4(macs, ([10, 0, 0, 1], [10, 0, 0, 2]), (4000, 7777), &vec![7; n - 42]).bytes()
}

/// Sends one frame of each length and returns which came out.
fn through(input: &Raw, output: &Raw, lengths: &[usize]) -> Vec<usize> {
    lengths.iter().for_each(|n| input.send(&sized(*n)).unwrap());
    let ours = |f: &[u8]| f.len() > 42 && f[36..38] == 7777u16.to_be_bytes();
    let last = Instant::now() + Duration::from_millis(700);
    output.collect(lengths.len(), last, ours).iter().map(Vec::len).collect()
}

#[test]
fn longer_frames_are_dropped_by_name_and_a_changed_mtu_counts() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let sw = Switch::start(&net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    let vsctl = |words: &str| sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    for no in 1..=3 {
        veth((&net, &format!("p{no}")), (&hosts, &format!("h{no}"))).unwrap();
        net.ipv6_off(&format!("p{no}")).unwrap();
        hosts.ipv6_off(&format!("h{no}")).unwrap();
    }
    net.ip("link set p2 mtu 1000").unwrap();
    vsctl("set open . other_config:pmd-sleep-max=100");
    vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
    vsctl("add-port br0 p1 -- add-port br0 p2");
    vsctl(
        "add-port br0 d3 -- set interface d3 type=dpdk mtu_request=1200 \
         options:dpdk-devargs=net_af_packet0,iface=p3",
    );
    let [h1, h2, h3] = ["h1", "h2", "h3"].map(|h| Raw::open(&hosts, h).unwrap());
    let drops = || -> u64 {
        let n = sw.appctl(&["coverage/read-counter", "datapath_drop_too_long"]).unwrap();
        n.trim().parse().unwrap()
    };
    let to = |port: &str| {
        sw.ofctl(&["add-flow", "br0", &format!("in_port=p1,udp,actions=output:{port}")]).unwrap()
    };
    to("p2");
    assert_eq!(through(&h1, &h2, &[60, 1014, 1019, 1300, 61]), [60, 1014, 61]);
    assert_eq!(drops(), 2);
    net.ip("link set p2 mtu 1500").unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while through(&h1, &h2, &[1300]).is_empty() {
        assert!(Instant::now() < end, "the new MTU never counts");
    }
    to("d3");
    let before = drops();
    assert_eq!(vsctl("get interface d3 mtu"), "1200\n", "{}", sw.log());
    assert_eq!(through(&h1, &h3, &[60, 1214, 1219, 1300, 61]), [60, 1214, 61]);
    assert_eq!(drops() - before, 2);
}

/// The stock ping with a full frame for this MTU, not to be fragmented; true if every answer came.
fn full_pings(from: &Netns, to: &str, mtu: usize) -> Result<(), String> {
    let (size, end) = ((mtu - 28).to_string(), Instant::now() + Duration::from_secs(10));
    let words = ["ping", "-n", "-c3", "-i0.2", "-W2", "-Mdo", "-s", &size, to];
    loop {
        // The first tries may ask for the neighbour while links come up.
        match from.exec(&words) {
            Ok(said) if said.contains(" 3 received") => return Ok(()),
            Ok(said) if Instant::now() > end => return Err(said),
            Err(e) if Instant::now() > end => return Err(e),
            _ => {}
        }
    }
}

#[test]
fn jumbo_frames_pass_every_type_of_kernel_port() {
    if !privileged() {
        return;
    }
    let net = Netns::new().unwrap();
    let sw = Switch::start(&net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    let vsctl = |words: &str| sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    let hosts = [1, 2].map(|no| {
        let host = Netns::new().unwrap();
        veth((&net, &format!("p{no}")), (&host, "eth0")).unwrap();
        host.ip(&format!("addr add 10.0.0.{no}/24 dev eth0")).unwrap();
        host
    });
    vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
    vsctl("add-port br0 p1 -- add-port br0 p2");
    vsctl("add-port br0 i3 -- set interface i3 type=internal");
    vsctl("add-port br0 t4 -- set interface t4 type=tap");
    // Ports that the switch makes, each in a namespace of its own.
    let made = [("i3", Netns::new().unwrap()), ("t4", Netns::new().unwrap())];
    for (no, (dev, host)) in (3..).zip(&made) {
        net.ip(&format!("link set {dev} netns {}", host.path())).unwrap();
        host.ip(&format!("addr add 10.0.0.{no}/24 dev {dev}")).unwrap();
        host.ip(&format!("link set {dev} up")).unwrap();
    }
    full_pings(&hosts[0], "10.0.0.2", 1500).unwrap();
    vsctl("add-port br0 i5 -- set interface i5 type=internal mtu_request=1400");
    let mtu = |port: &str| vsctl(&format!("get interface {port} mtu")).trim().to_owned();
    let until = |ports: &[&str], want: &str| {
        let end = Instant::now() + Duration::from_secs(20);
        while ports.iter().any(|port| mtu(port) != want) {
            let all = vsctl("--columns=name,mtu list interface");
            assert!(Instant::now() < end, "{ports:?} are not at {want}: {all}\n{}", sw.log());
        }
    };
    // One port as the database wants it, one as the kernel was asked for, while both are in use.
    // Those that the switch makes follow, unless they are to have another one.
    vsctl("set interface p1 mtu_request=9000");
    net.ip("link set p2 mtu 9000").unwrap();
    hosts.iter().for_each(|h| drop(h.ip("link set eth0 mtu 9000").unwrap()));
    until(&["p1", "p2", "br0", "i3", "t4"], "9000");
    for to in 2..=4 {
        full_pings(&hosts[0], &format!("10.0.0.{to}"), 9000).unwrap_or_else(|e| {
            let all = vsctl("--columns=name,statistics list interface");
            panic!("to port {to}: {e}\n{all}\n{}", sw.log())
        });
    }
    full_pings(&made[0].1, "10.0.0.4", 9000).unwrap();
    vsctl("set interface p1 mtu_request=2000");
    until(&["p1", "br0", "i3", "t4"], "2000");
    full_pings(&hosts[0], "10.0.0.2", 2000).unwrap();
    assert_eq!(mtu("i5"), "1400");
    vsctl("clear interface i5 mtu_request");
    until(&["i5"], "2000");
    // What a user sets stays as long as the other ports keep theirs.
    net.ip("link set br0 mtu 1300").unwrap();
    until(&["br0"], "1300");
    vsctl("add-port br0 i6 -- set interface i6 type=internal");
    until(&["i6"], "2000");
    assert_eq!(mtu("br0"), "1300");
    vsctl("del-port p1");
    until(&["br0", "i3", "t4", "i5", "i6"], "9000");
}

/// As with ovs-vswitchd: the device stays, with its MTU, hardware address and the user's addresses.
#[test]
fn a_device_that_refuses_an_mtu_goes_on_as_it_is() {
    if !privileged() {
        return;
    }
    for config in [SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")), SwitchConfig::oracle()] {
        let net = Netns::new().unwrap();
        let sw = Switch::start(&net, config).unwrap();
        veth((&net, "v0"), (&net, "v1")).unwrap();
        let vsctl = |words: &str| sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        vsctl("add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 v0");
        vsctl("add-port br0 i1 -- set interface i1 type=internal mtu_request=9000");
        let mac = |mac: &str| vsctl(&format!("set interface i1 mac=\"{mac}\""));
        mac("02:00:00:00:00:15");
        net.ip("addr add 10.9.9.9/24 dev i1").unwrap();
        let device = || net.ip("-br addr show i1").unwrap() + &net.ip("-br link show i1").unwrap();
        let before = device();
        assert!(before.contains("10.9.9.9/24") && before.contains("02:00:00:00:00:15"), "{before}");
        for refused in ["10", "65536", "70000"] {
            vsctl(&format!("set interface i1 mtu_request={refused}"));
            vsctl(&format!("set interface v0 mtu_request={refused}"));
            assert_eq!(device(), before, "{refused}");
            assert_eq!(vsctl("get interface i1 mtu error").trim(), "9000\n[]");
            assert_eq!(vsctl("get interface v0 mtu error").trim(), "1500\n[]");
        }
        // What else is asked for is done.
        mac("02:00:00:00:00:16");
        assert!(device().contains("02:00:00:00:00:16") && device().contains("10.9.9.9/24"));
        vsctl("set interface i1 mtu_request=2000");
        assert_eq!(vsctl("get interface i1 mtu").trim(), "2000");
        assert_eq!(sw.log().matches("added interface i1 on port").count(), 1);
    }
}

/// As with ovs-vswitchd: what the database asks for comes back, whatever else changes a device.
#[test]
fn a_device_that_others_change_gets_back_what_it_is_to_have() {
    if !privileged() {
        return;
    }
    for config in [SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")), SwitchConfig::oracle()] {
        let net = Netns::new().unwrap();
        let sw = Switch::start(&net, config).unwrap();
        let vsctl = |words: &str| sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        vsctl(
            "add-br br0 -- set bridge br0 datapath_type=netdev other-config:hwaddr=02:00:00:00:00:01",
        );
        vsctl(
            "add-port br0 i1 -- set interface i1 type=internal mtu_request=1600 mac=\"02:00:00:00:00:15\"",
        );
        vsctl("add-port br0 i2 -- set interface i2 type=internal");
        let has = |name: &str, what: &str| {
            let end = Instant::now() + Duration::from_secs(10);
            while !net.ip(&format!("link show {name}")).unwrap().contains(what) {
                assert!(Instant::now() < end, "{name}: {what}");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        net.ip("link set i1 address 02:00:00:00:00:99").unwrap();
        has("i1", "02:00:00:00:00:15");
        net.ip("link set br0 address 02:00:00:00:00:98").unwrap();
        has("br0", "02:00:00:00:00:01");
        net.ip("link set i1 mtu 1400").unwrap();
        has("i1", "mtu 1600");
        // The database says nothing about these.
        net.ip("link set i2 address 02:00:00:00:00:97").unwrap();
        net.ip("link set i2 mtu 1300").unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        has("i2", "02:00:00:00:00:97");
        has("i2", "mtu 1300");
    }
}

/// A guest's port without a guest: what is said in the log, and of the MTU that ovs-vswitchd takes
/// and of one that it refuses.
#[test]
fn a_port_of_dpdk_keeps_its_mtu_when_asked_for_too_much() {
    if !privileged() {
        return;
    }
    let net = Netns::new().unwrap();
    let sw = Switch::start(&net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    let vsctl = |words: &str| sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    let socket = sw.dir().join("guest");
    vsctl(&format!(
        "add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 g -- set interface g \
         type=dpdkvhostuserclient mtu_request=9702 options:vhost-server-path={}",
        socket.display()
    ));
    let shows = |mtu: &str| sw.appctl(&["dpctl/show"]).unwrap().contains(&format!("mtu={mtu},"));
    assert!(shows("9702"));
    for refused in ["9703", "67"] {
        vsctl(&format!("set interface g mtu_request={refused}"));
        assert!(shows("9702") && sw.log().contains(&format!("g: unsupported MTU {refused}\n")));
    }
    vsctl("set interface g mtu_request=68");
    assert!(shows("68"));
    let log = sw.log();
    let made = "vHost User device 'g' created in 'client' mode, using client socket '";
    for line in [made, "vhost-user client: socket created", "reconnecting..."] {
        assert!(log.contains(line), "{line}");
    }
}
