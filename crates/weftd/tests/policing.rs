//! `ingress_policing_*` limits what any type of port brings, is changed under traffic, and is
//! accounted for. Needs root.

use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Raw, Switch, SwitchConfig, privileged, veth};

/// Frames that each port is offered at once.
const OFFERED: usize = 1_000;
/// Bytes behind the Ethernet header of each.
const SIZE: usize = 1_000;

fn frame() -> Vec<u8> {
    let macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let body = vec![7; SIZE - 28];
    Frame::udp4(macs, ([10, 0, 0, 1], [10, 0, 0, 2]), (4000, 7777), &body).bytes()
}

/// Frames that passed the port's limit, by its flow's counter.
fn passed(sw: &Switch, port: &str) -> u64 {
    let flows = sw.ofctl(&["dump-flows", "br0", &format!("in_port={port},udp")]).unwrap();
    let n = flows.split("n_packets=").nth(1).and_then(|rest| rest.split(',').next());
    n.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no counter in {flows}"))
}

/// Frames that were refused at any port.
fn refused(sw: &Switch) -> u64 {
    let n = sw.appctl(&["coverage/read-counter", "datapath_drop_policed"]).unwrap();
    n.trim().parse().unwrap()
}

/// Offers frames at `input`, the far end of `port`; how many passed, how many did not, and in how
/// many seconds.
fn offer(sw: &Switch, input: &Raw, port: &str) -> (u64, u64, f64) {
    let counts = || [passed(sw, port), refused(sw)];
    let (began, before) = (Instant::now(), counts());
    (0..OFFERED).for_each(|_| input.send(&frame()).unwrap());
    // Not all that was offered need reach the switch, as the kernel has queues of its own: until
    // nothing comes.
    let (mut last, mut took) = (before, began.elapsed());
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = counts();
        if now == last && now != before {
            break;
        }
        (last, took) = (now, began.elapsed());
        assert!(took < Duration::from_secs(20), "{port}: {now:?}");
    }
    (last[0] - before[0], last[1] - before[1], took.as_secs_f64())
}

#[test]
fn every_type_of_port_is_limited_at_run_time() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let sw = Switch::start(&net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    let vsctl = |words: &str| sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    for no in [0, 1, 4] {
        veth((&net, &format!("p{no}")), (&hosts, &format!("h{no}"))).unwrap();
        net.ipv6_off(&format!("p{no}")).unwrap();
        hosts.ipv6_off(&format!("h{no}")).unwrap();
    }
    vsctl("set open . other_config:pmd-sleep-max=100");
    vsctl("add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure");
    vsctl("add-port br0 p0 -- add-port br0 p1");
    vsctl("add-port br0 i2 -- set interface i2 type=internal");
    vsctl("add-port br0 t3 -- set interface t3 type=tap");
    vsctl(
        "add-port br0 d4 -- set interface d4 type=dpdk options:dpdk-devargs=net_af_packet4,iface=p4",
    );
    for dev in ["i2", "t3"] {
        net.ip(&format!("link set {dev} netns {}", hosts.path())).unwrap();
        hosts.ipv6_off(dev).unwrap();
        hosts.ip(&format!("link set {dev} up")).unwrap();
    }
    for (port, far) in [("p1", "h1"), ("i2", "i2"), ("t3", "t3"), ("d4", "h4")] {
        sw.ofctl(&["add-flow", "br0", &format!("in_port={port},udp,actions=output:p0")]).unwrap();
        let input = Raw::open(&hosts, far).unwrap();
        let statistic = |name: &str| -> u64 {
            let n = vsctl(&format!("--if-exists get interface {port} statistics:{name}"));
            n.trim().parse().unwrap_or(0)
        };
        let limit = |rate: u32, kpkts: u32| {
            vsctl(&format!(
                "set interface {port} ingress_policing_rate={rate} ingress_policing_burst=80 \
                 ingress_policing_kpkts_rate={kpkts}"
            ))
        };
        let number = vsctl(&format!("get interface {port} ofport"));
        let (all, none, _) = offer(&sw, &input, port);
        assert!(all > 100 && none == 0, "{port} without limit: {all} passed, {none} refused");
        limit(1000, 0);
        // Ten frames at once, then 125 in a second.
        let (few, many, took) = offer(&sw, &input, port);
        let most = 10.0 + 125.0 * took + 1.0;
        assert!(few >= 10 && few as f64 <= most, "{port}: {few} passed in {took} s");
        assert!(many > 0 && few + many <= OFFERED as u64, "{port}: {many} refused");
        limit(0, 1);
        let (all, none, _) = offer(&sw, &input, port);
        assert!(all > 100 && none == 0, "{port}, 16,000 packets: {all} passed, {none} refused");
        let end = Instant::now() + Duration::from_secs(10);
        while statistic("ovs_rx_qos_drops") != many {
            assert!(Instant::now() < end, "{port}: {many} refused; {}", sw.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(statistic("rx_dropped") >= many, "{port}");
        assert_eq!(vsctl(&format!("get interface {port} ofport")), number, "it was not reopened");
    }
    vsctl("add-port br0 q5 -- set interface q5 type=patch options:peer=q6 ingress_policing_rate=9");
    assert!(sw.log().contains("interface q5: ingress_policing is ignored"), "{}", sw.log());
}
