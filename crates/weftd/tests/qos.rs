//! QoS of types `linux-*`: Weft and ovs-vswitchd make the same of the kernel's traffic control, and
//! say the same of it; what a shaped port sends is measured. Types that this kernel does not have
//! are refused alike. Needs root.

use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Raw, Switch, SwitchConfig, privileged, veth};

/// Ports that are compared.
const PORTS: [&str; 3] = ["p0", "i1", "t2"];

/// A namespace for Weft and one for ovs-vswitchd; None: this takes root.
fn nets() -> Option<[Netns; 2]> {
    privileged().then(|| [(); 2].map(|()| Netns::new().unwrap()))
}

fn switches([at_weft, at_ovs]: &[Netns; 2]) -> [Switch<'_>; 2] {
    let weft = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    [start(at_weft, weft), start(at_ovs, SwitchConfig::oracle())]
}

/// A switch with these ports; `p0`'s far end is `h0`, in the same namespace.
fn start(net: &Netns, config: SwitchConfig) -> Switch<'_> {
    veth((net, "p0"), (net, "h0")).unwrap();
    net.ipv6_off("p0").unwrap();
    net.ipv6_off("h0").unwrap();
    let sw = Switch::start(net, config).unwrap();
    vsctl(
        &sw,
        "add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure \
         -- add-port br0 p0 -- set interface p0 ofport_request=1 \
         -- add-port br0 i1 -- set interface i1 ofport_request=2 type=internal \
         -- add-port br0 t2 -- set interface t2 ofport_request=3 type=tap",
    );
    sw
}

fn vsctl(sw: &Switch, words: &str) -> String {
    sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap()
}

fn tc(net: &Netns, words: &str) -> String {
    let mut all = vec!["tc"];
    all.extend(words.split_whitespace());
    net.exec(&all).unwrap()
}

/// Gives a port QoS of rows that are made anew.
fn qos(sw: &Switch, port: &str, what: &str) {
    vsctl(
        sw,
        &format!("--if-exists clear port {port} qos -- --all destroy qos -- --all destroy queue"),
    );
    vsctl(sw, &format!("set port {port} qos=@q -- --id=@q create qos {what}"));
}

/// The lines without counters, sorted: ovs-vswitchd shows queues in no order.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.retain(|line| !line.contains("tx_"));
    lines.sort();
    lines
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

/// Traffic control of a device.
fn kernel(net: &Netns, port: &str) -> Vec<String> {
    let [qdisc, class] =
        ["qdisc", "class"].map(|what| tc(net, &format!("-d {what} show dev {port}")));
    sorted(&format!("{qdisc}{class}"))
}

/// Traffic control of a device, and what is said of its QoS. Without a queueing discipline of the
/// switch ovs-vswitchd may call it "linux-other".
fn state(net: &Netns, sw: &Switch, port: &str) -> Vec<String> {
    let mut all = kernel(net, port);
    if has(&all, " 1: ") {
        all.extend(sorted(&sw.appctl(&["qos/show", port]).unwrap()));
    }
    all
}

/// QoS rows one after the other, and changes of the last.
const STEPS: [&str; 14] = [
    "type=linux-htb other-config:max-rate=3000000 queues:0=@a queues:5=@b queues:2=@c \
     -- --id=@a create queue other_config:min-rate=2000000 other_config:max-rate=3000000 \
     other_config:burst=3000000 \
     -- --id=@b create queue other_config:priority=3 other_config:max-rate=1000000 \
     other_config:min-rate=10000 -- --id=@c create queue other_config:burst=8",
    "change qos other-config:max-rate=5000000",
    "change queue other_config:min-rate=800000 other_config:max-rate=900000",
    "change qos queues={}",
    "type=linux-htb",
    "type=linux-hfsc other-config:max-rate=3000000 queues:3=@a \
     -- --id=@a create queue other_config:min-rate=1000000",
    "change queue other_config:max-rate=2000000",
    "type=linux-sfq other-config:perturb=7",
    "type=linux-codel",
    "type=linux-codel other-config:target=700 other-config:limit=70 other-config:interval=7000",
    "type=linux-fq_codel",
    "type=linux-netem other-config:latency=5000 other-config:limit=10 other-config:loss=50",
    "type=linux-htb other-config:max-rate=99 queues:61439=@a queues:61440=@a \
     -- --id=@a create queue other_config:max-rate=100000",
    "type=egress-policer",
];

fn step(sw: &Switch, port: &str, words: &str) {
    let Some(change) = words.strip_prefix("change ") else { return qos(sw, port, words) };
    let (table, values) = change.split_once(' ').unwrap();
    for uuid in vsctl(sw, &format!("--bare --columns=_uuid list {table}")).split_whitespace() {
        vsctl(sw, &format!("set {table} {uuid} {values}"));
    }
}

#[test]
fn traffic_control_is_what_ovs_makes_of_it() {
    let Some(nets) = nets() else { return };
    let [at_weft, at_ovs] = &nets;
    let [weft, ovs] = switches(&nets);
    let both = [(at_weft, &weft), (at_ovs, &ovs)];
    for port in PORTS {
        let mut kinds = Vec::new();
        // The other ports' devices are as good as the first.
        let steps = if port == PORTS[0] { &STEPS[..] } else { &STEPS[..4] };
        for words in steps {
            both.iter().for_each(|(_, sw)| step(sw, port, words));
            let [ours, theirs] = both.map(|(net, sw)| state(net, sw, port));
            if words.contains("egress-policer") {
                // Ours; ovs-vswitchd leaves alone what there is.
                assert!(!has(&ours, "htb"), "{ours:?}");
                continue;
            }
            assert_eq!(ours, theirs, "{port}: {words}\n{}\n{}", weft.log(), ovs.log());
            kinds.extend(ours.iter().filter_map(|l| l.strip_prefix("qdisc ")).map(str::to_owned));
        }
        kinds.dedup();
        eprintln!("{port}: {kinds:#?}");
        assert!(kinds.iter().any(|kind| kind.starts_with("htb")), "the kernel has HTB");
        both.iter().for_each(|(_, sw)| drop(vsctl(sw, &format!("clear port {port} qos"))));
        let [ours, theirs] = both.map(|(net, _)| kernel(net, port));
        assert_eq!(ours, theirs, "{port} without QoS");
        assert!(!has(&ours, "htb"), "{ours:?}");
    }
    let types = both.map(|(_, sw)| sw.appctl(&["qos/show-types", "p0"]).unwrap());
    assert_eq!(types[0], format!("{}QoS type: egress-policer\n", types[1]));
}

/// Replies to requests for queues, or errors, without counters and durations.
fn queues(sw: &Switch) -> Vec<String> {
    let mut all = Vec::new();
    for version in ["OpenFlow10", "OpenFlow13", "OpenFlow14"] {
        for request in [
            "queue-stats br0",
            "queue-stats br0 1 5",
            "queue-stats br0 1 6",
            "queue-stats br0 2",
            "queue-stats br0 9",
            "queue-get-config br0",
            "queue-get-config br0 1",
            "queue-get-config br0 1 5",
            "queue-get-config br0 1 6",
            "queue-get-config br0 2 0",
            "queue-get-config br0 9 0",
        ] {
            let mut words = vec!["-O", version];
            words.extend(request.split(' '));
            let (Ok(text) | Err(text)) = sw.ofctl(&words);
            // The tool's path and options are in the texts of errors.
            let lines = text.lines().filter(|line| !line.contains("ovs-ofctl"));
            let kept = lines.map(|line| line.split(": bytes=").next().unwrap_or(line).to_owned());
            all.push(format!("{version} {request}: {}", kept.collect::<Vec<_>>().join("\n")));
        }
    }
    all
}

#[test]
fn queues_are_said_as_by_ovs_and_outlive_the_daemon() {
    let Some(nets) = nets() else { return };
    let [at_weft, at_ovs] = &nets;
    let [weft, ovs] = switches(&nets);
    let both = [(at_weft, &weft), (at_ovs, &ovs)];
    both.iter().for_each(|(_, sw)| qos(sw, "p0", STEPS[0]));
    let [ours, theirs] = both.map(|(_, sw)| queues(sw));
    assert_eq!(ours, theirs);
    assert!(ours.iter().any(|reply| reply.contains("port 1 queue 5")), "{ours:?}");
    let want = kernel(at_weft, "p0");
    for (net, sw) in both {
        sw.kill_daemon();
        assert_eq!(kernel(net, "p0"), want, "nothing changes while the daemon is away");
        tc(net, "qdisc replace dev p0 root handle 7: tbf rate 1mbit burst 10k latency 50ms");
        sw.start_daemon().unwrap();
        vsctl(sw, "set bridge br0 external_ids:x=1");
        assert_eq!(kernel(net, "p0"), want, "what another program made is replaced");
        sw.kill_daemon();
        sw.start_daemon().unwrap();
        vsctl(sw, "set bridge br0 external_ids:x=2");
        assert_eq!(kernel(net, "p0"), want, "what the last daemon made stays, or is made again");
        // Of a port with linux-noop nothing is touched; of one without QoS everything is.
        qos(sw, "p0", "type=linux-noop");
        tc(net, "qdisc replace dev p0 root handle 7: tbf rate 1mbit burst 10k latency 50ms");
        vsctl(sw, "set bridge br0 external_ids:x=3");
        sw.kill_daemon();
        sw.start_daemon().unwrap();
        vsctl(sw, "set bridge br0 external_ids:x=4");
        assert!(has(&kernel(net, "p0"), "qdisc tbf 7:"));
        vsctl(sw, "clear port p0 qos");
        sw.kill_daemon();
        sw.start_daemon().unwrap();
        vsctl(sw, "set bridge br0 external_ids:x=5");
        assert!(has(&kernel(net, "p0"), "noqueue"));
    }
    // Unlike with ovs-vswitchd the discipline goes with its port.
    qos(&weft, "p0", "type=linux-htb");
    assert!(has(&kernel(at_weft, "p0"), "qdisc htb"));
    vsctl(&weft, "del-port p0");
    assert!(has(&kernel(at_weft, "p0"), "noqueue"));
}

/// What becomes of the DSCP of a packet to each of these UDP ports; it comes with 7.
const MARKING: [(u16, &str); 7] = [
    (1, "actions=set_queue:5,output:p1"),
    (2, "actions=enqueue:p1:6,output:p1"),
    (3, "actions=set_queue:5,pop_queue,output:p1"),
    (4, "actions=output:p1"),
    (5, "actions=set_queue:6,ct(table=1)"),
    (6, "actions=set_queue:7,output:p1,set_queue:5,output:p1,mod_nw_tos:4,output:p1"),
    (7, "actions=set_queue:5,clone(set_queue:6,output:p1),output:p1"),
];

/// The DSCP, or ECN's bits with it, of the packets that come out at `h1`.
fn marked(net: &Netns, sw: &Switch) -> Vec<(u16, u8)> {
    veth((net, "p1"), (net, "h1")).unwrap();
    ["p1", "h1"].iter().for_each(|dev| net.ipv6_off(dev).unwrap());
    vsctl(sw, "add-port br0 p1 -- set interface p1 ofport_request=4");
    qos(
        sw,
        "p1",
        "type=linux-htb queues:5=@a queues:6=@b queues:7=@c -- --id=@a create queue dscp=10 \
         -- --id=@b create queue dscp=63 -- --id=@c create queue other_config:burst=8",
    );
    for (port, actions) in MARKING {
        let flow = format!("in_port=p0,udp,tp_dst={port},{actions}");
        sw.ofctl(&["add-flow", "br0", &flow]).unwrap();
    }
    sw.ofctl(&["add-flow", "br0", "table=1,actions=output:p1"]).unwrap();
    let (input, output) = (Raw::open(net, "h0").unwrap(), Raw::open(net, "h1").unwrap());
    let mut all = Vec::new();
    for (port, _) in MARKING {
        let macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut frame =
            Frame::udp4(macs, ([10, 0, 0, 1], [10, 0, 0, 2]), (4000, port), &[7; 40]).bytes();
        // DSCP 7 with ECN 1; the sum of the header follows.
        frame[15] = 7 << 2 | 1;
        let sum = u16::from_be_bytes([frame[24], frame[25]]);
        let sum = !(u32::from(!sum) + u32::from(frame[15]));
        frame[24..26].copy_from_slice(&(sum as u16).to_be_bytes());
        input.send(&frame).unwrap();
        let udp = |f: &[u8]| f.len() > 40 && f[23] == 17;
        let came = output.collect(9, Instant::now() + Duration::from_secs(1), udp);
        let header_is_valid = |f: &[u8]| {
            let words = f[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
            let sum: u32 = words.sum();
            (sum & 0xffff) + (sum >> 16) == 0xffff
        };
        assert!(came.iter().all(|f| header_is_valid(f)), "{came:?}");
        all.extend(came.iter().map(|f| (port, f[15])));
    }
    all
}

#[test]
fn queues_give_packets_their_dscp_as_with_ovs() {
    let Some(nets) = nets() else { return };
    let [at_weft, at_ovs] = &nets;
    let [weft, ovs] = switches(&nets);
    let [ours, theirs] = [(at_weft, &weft), (at_ovs, &ovs)].map(|(net, sw)| marked(net, sw));
    assert_eq!(ours, theirs);
    let [kept, five, six] = [7, 10, 63].map(|dscp| dscp << 2 | 1);
    let want = [
        (1, five),
        (2, six),
        (2, kept),
        (3, kept),
        (4, kept),
        (5, six),
        (6, kept),
        (6, five),
        (6, five),
        (7, six),
        (7, five),
    ];
    assert_eq!(ours, want);
}

/// Bytes of each frame.
const SIZE: usize = 1000;

/// Packets that the switch has sent to port p1.
fn sent(sw: &Switch) -> usize {
    let text = sw.ofctl(&["dump-ports", "br0", "p1"]).unwrap();
    let tx = text.split("tx pkts=").nth(1).and_then(|t| t.split(',').next());
    tx.and_then(|n| n.parse().ok()).unwrap()
}

/// Frames that are offered at once: a machine that takes the switch's core away for tenths of a
/// second may have it lose what is more than a vector.
const AT_ONCE: usize = 100;

/// Offers frames at one device and waits until all came out at another; seconds that it took.
fn take(sw: &Switch, input: &Raw, output: &Raw, frames: usize) -> f64 {
    let macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let ips = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let frame = Frame::udp4(macs, ips, (4000, 7777), &[7; SIZE - 42]).bytes();
    assert_eq!(frame.len(), SIZE);
    let began = Instant::now();
    let (mut offered, before) = (0, sent(sw));
    while offered < frames {
        let n = AT_ONCE.min(frames - offered);
        (0..n).for_each(|_| input.send(&frame).unwrap());
        offered += n;
        while offered < frames && sent(sw) < before + offered {
            assert!(began.elapsed() < Duration::from_secs(60), "they are not sent");
        }
    }
    let came = output.collect(frames, began + Duration::from_secs(60), |f| f == frame);
    assert_eq!(came.len(), frames, "a class holds a thousand");
    began.elapsed().as_secs_f64()
}

#[test]
fn a_shaped_port_sends_at_its_rate() {
    if !privileged() {
        return;
    }
    let net = Netns::new().unwrap();
    let sw = start(&net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    veth((&net, "p1"), (&net, "h1")).unwrap();
    net.ipv6_off("p1").unwrap();
    net.ipv6_off("h1").unwrap();
    vsctl(&sw, "add-port br0 p1");
    sw.ofctl(&["add-flow", "br0", "in_port=p0,udp,actions=set_queue:5,output:p1"]).unwrap();
    let (input, output) = (Raw::open(&net, "h0").unwrap(), Raw::open(&net, "h1").unwrap());
    // 2 Mbit/s are 250 frames per second; there are bursts of an MTU for each of two classes.
    let least = |frames: usize| (frames * SIZE - 2 * 1600) as f64 / 250_000.0;
    qos(
        &sw,
        "p1",
        "type=linux-htb other-config:max-rate=2000000 queues:5=@a \
         -- --id=@a create queue other_config:min-rate=10000",
    );
    let took = take(&sw, &input, &output, 500);
    assert!((least(500)..4.0 * least(500)).contains(&took), "{took} s, not {}", least(500));
    // The userspace datapath gives packets no class, here as in ovs-vswitchd: all go to queue 0.
    let stats = sw.ofctl(&["queue-stats", "br0", "p1"]).unwrap();
    for text in ["queue 0: bytes=500000, pkts=500, errors=0", "queue 5: bytes=0, pkts=0, errors=0"]
    {
        assert!(stats.contains(text), "{stats}");
    }
    let show = sw.appctl(&["qos/show", "p1"]).unwrap();
    assert!(show.contains("  tx_packets: 500\n  tx_bytes: 500000\n  tx_errors: 0\n"), "{show}");
    // At run time, to the hundredfold; the machine may be busy with something else for a while.
    let uuid = vsctl(&sw, "get port p1 qos");
    vsctl(&sw, &format!("set qos {} other-config:max-rate=200000000", uuid.trim()));
    let fast = (0..5).map(|_| take(&sw, &input, &output, 80)).fold(f64::MAX, f64::min);
    assert!(fast < least(80) / 2.0, "{fast} s at a hundredfold rate, {} before", least(80));
}

#[test]
fn what_is_not_supported_is_said_once() {
    if !privileged() {
        return;
    }
    let net = Netns::new().unwrap();
    let sw = start(&net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    vsctl(&sw, "set open . other_config:pmd-sleep-max=100");
    vsctl(&sw, "add-port br0 d3 -- set interface d3 type=dpdk options:dpdk-devargs=net_null3");
    for (port, what) in [("d3", "linux-htb"), ("p0", "trtcm-policer"), ("i1", "linux-other")] {
        qos(&sw, port, &format!("type={what} queues:7=@a -- --id=@a create queue dscp=1"));
        vsctl(&sw, &format!("set interface {port} external_ids:x=1"));
        vsctl(&sw, &format!("set interface {port} external_ids:x=2"));
        let text = format!("port {port}: qos: type={what} is not supported and has no effect");
        assert_eq!(sw.log().matches(&text).count(), 1, "{text}\n{}", sw.log());
        assert_eq!(sw.log().matches(&format!("port {port}: qos")).count(), 1, "{}", sw.log());
        vsctl(&sw, &format!("clear port {port} qos"));
    }
    assert_eq!(sw.appctl(&["qos/show-types", "d3"]).unwrap(), "QoS type: egress-policer\n");
}
