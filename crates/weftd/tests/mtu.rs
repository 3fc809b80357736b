//! Frames longer than an output port's MTU end there by name, for kernel and DPDK ports, and a changed
//! MTU counts without the port being touched. Needs root; without it the test says so.

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
