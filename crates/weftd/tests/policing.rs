//! `ingress_policing_*` limits what any type of port brings, QoS of type `egress-policer` what it
//! is sent; both are changed under traffic, and accounted for. Needs root.

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
fn refused(sw: &Switch, drop: &str) -> u64 {
    let counter = format!("datapath_drop_{drop}");
    sw.appctl(&["coverage/read-counter", &counter]).unwrap().trim().parse().unwrap()
}

/// Offers frames at `input`; what the counters grew by, and in how many seconds.
fn offer(input: &Raw, port: &str, counts: impl Fn() -> [u64; 2]) -> (u64, u64, f64) {
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

fn vsctl(sw: &Switch, words: &str) -> String {
    sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap()
}

/// A counter in `Interface.statistics`; 0 where it is not there.
fn statistic(sw: &Switch, port: &str, name: &str) -> u64 {
    let n = vsctl(sw, &format!("--if-exists get interface {port} statistics:{name}"));
    n.trim().parse().unwrap_or(0)
}

/// Waits until the counter in `Interface.statistics` is that.
fn wait_for_statistic(sw: &Switch, port: &str, name: &str, want: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while statistic(sw, port, name) != want {
        assert!(Instant::now() < end, "{port}: {name} is not {want}; {}", sw.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Ports with their far ends in the other namespace, by type: `p0` is beside them.
const PORTS: [(&str, &str); 4] = [("p1", "h1"), ("i2", "i2"), ("t3", "t3"), ("d4", "h4")];

fn switch_with_ports<'a>(net: &'a Netns, hosts: &Netns) -> Switch<'a> {
    let sw = Switch::start(net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    let vsctl = |words: &str| vsctl(&sw, words);
    for no in [0, 1, 4] {
        veth((net, &format!("p{no}")), (hosts, &format!("h{no}"))).unwrap();
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
    sw
}

#[test]
fn every_type_of_port_is_limited_at_run_time() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let sw = switch_with_ports(&net, &hosts);
    let vsctl = |words: &str| vsctl(&sw, words);
    for (port, far) in PORTS {
        sw.ofctl(&["add-flow", "br0", &format!("in_port={port},udp,actions=output:p0")]).unwrap();
        let input = Raw::open(&hosts, far).unwrap();
        let offer = || offer(&input, port, || [passed(&sw, port), refused(&sw, "policed")]);
        let limit = |rate: u32, kpkts: u32| {
            vsctl(&format!(
                "set interface {port} ingress_policing_rate={rate} ingress_policing_burst=80 \
                 ingress_policing_kpkts_rate={kpkts}"
            ))
        };
        let number = vsctl(&format!("get interface {port} ofport"));
        let (all, none, _) = offer();
        assert!(all > 100 && none == 0, "{port} without limit: {all} passed, {none} refused");
        limit(1000, 0);
        // Ten frames at once, then 125 in a second.
        let (few, many, took) = offer();
        let most = 10.0 + 125.0 * took + 1.0;
        assert!(few >= 10 && few as f64 <= most, "{port}: {few} passed in {took} s");
        assert!(many > 0 && few + many <= OFFERED as u64, "{port}: {many} refused");
        limit(0, 1);
        let (all, none, _) = offer();
        assert!(all > 100 && none == 0, "{port}, 16,000 packets: {all} passed, {none} refused");
        wait_for_statistic(&sw, port, "ovs_rx_qos_drops", many);
        assert!(statistic(&sw, port, "rx_dropped") >= many, "{port}");
        assert_eq!(vsctl(&format!("get interface {port} ofport")), number, "it was not reopened");
    }
    vsctl("add-port br0 q5 -- set interface q5 type=patch options:peer=q6 ingress_policing_rate=9");
    assert!(sw.log().contains("interface q5: ingress_policing is ignored"), "{}", sw.log());
}

#[test]
fn every_type_of_port_is_sent_no_more_than_its_egress_policer_lets_pass() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let sw = switch_with_ports(&net, &hosts);
    let qos = |port: &str, what: &str| {
        vsctl(&sw, &format!("set port {port} qos=@q -- --id=@q create qos {what}"))
    };
    let show = |port: &str| sw.appctl(&["qos/show", port]).unwrap();
    let input = Raw::open(&hosts, "h0").unwrap();
    for (port, far) in PORTS {
        sw.ofctl(&["add-flow", "br0", &format!("in_port=p0,udp,actions=output:{port}")]).unwrap();
        // Sent, and not sent.
        let offer = || {
            let counts = || [passed(&sw, "p0"), refused(&sw, "tx_policed")];
            let (all, many, took) = offer(&input, port, counts);
            (all - many, many, took)
        };
        let number = vsctl(&sw, &format!("get interface {port} ofport"));
        let (all, none, _) = offer();
        assert!(all > 100 && none == 0, "{port} without QoS: {all} sent, {none} refused");
        assert_eq!(show(port), format!("QoS not configured on {port}\n"));
        let uuid = qos(port, "type=egress-policer other-config:cir=125000 other-config:cbs=10000");
        let shown = format!("QoS: {port} egress-policer\ncir: 125000\ncbs: 10000\n");
        assert_eq!(show(port), shown);
        let types = sw.appctl(&["qos/show-types", port]).unwrap();
        // The kernel's devices have its own types besides.
        assert!(types.ends_with("QoS type: egress-policer\n"), "{types}");
        assert_eq!(types.lines().count(), if port == "d4" { 1 } else { 8 }, "{types}");
        // Ten frames at once, then 125 in a second.
        let end = Raw::open(&hosts, far).unwrap();
        let (few, many, took) = offer();
        let most = 10.0 + 125.0 * took + 1.0;
        assert!(few >= 10 && few as f64 <= most, "{port}: {few} sent in {took} s");
        assert!(many > 0 && few + many <= OFFERED as u64, "{port}: {many} refused");
        let came =
            end.collect(few as usize, Instant::now() + Duration::from_secs(10), |f| f == frame());
        assert_eq!((came.len() as u64, end.receive(Instant::now())), (few, None), "{port}");
        vsctl(&sw, &format!("set qos {uuid} other-config:cir=1000000000 other-config:cbs=2000000"));
        let (all, none, _) = offer();
        assert!(all > 100 && none == 0, "{port}, 1 GB/s: {all} sent, {none} refused");
        wait_for_statistic(&sw, port, "ovs_tx_qos_drops", many);
        assert!(statistic(&sw, port, "tx_dropped") >= many, "{port}");
        qos(port, "type=egress-policer other-config:cir=125000 other-config:cbs=900");
        assert_eq!(offer().0, 0, "longer than the burst");
        vsctl(&sw, &format!("clear port {port} qos"));
        let (all, none, _) = offer();
        assert!(all > 100 && none == 0, "{port} without QoS again: {all} sent, {none} refused");
        assert_eq!(vsctl(&sw, &format!("get interface {port} ofport")), number, "not reopened");
    }
    for (what, text) in [
        ("type=egress-policer other-config:cbs=1", "on port p1: Invalid argument (cir=0, cbs=1"),
        ("type=egress-policer other-config:cir=9 other-config:cbs=x", "(cir=9, cbs=0"),
        ("type=trtcm-policer", "port p1: qos: type=trtcm-policer is not supported"),
    ] {
        qos("p1", what);
        assert_eq!(sw.log().matches(text).count(), 1, "{what}: {}", sw.log());
        let shown = sw.appctl(&["qos/show", "p1"]);
        assert!(shown.is_err() || shown == Ok("QoS not configured on p1\n".into()), "{shown:?}");
    }
    vsctl(&sw, "add-port br0 q5 -- set interface q5 type=patch options:peer=q6");
    qos("q5", "type=egress-policer other-config:cir=1 other-config:cbs=1");
    assert!(sw.log().contains("interface q5: qos is ignored"), "{}", sw.log());
    let types = sw.appctl(&["qos/show-types", "q5"]).unwrap();
    assert_eq!(types, "No QoS types supported for interface: q5\n");
}
