//! Packets without an Ethernet header in tunnels: GTP-U, layer 3 GRE, VXLAN-GPE.

use super::*;

/// A tunnel that carries IP alone: flows write the addresses of the frames that come out of it, and
/// match on `fields` then. `f` gets the switches of both ends, the second of which has no guest but
/// its own port, and their namespaces.
fn with_l3(
    tunnel: impl Fn(u8) -> String,
    fields: &str,
    peer: SwitchConfig,
    f: impl FnOnce([&Switch; 2], [&Netns; 2]),
) {
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let (guest, far) = (Netns::new().unwrap(), Netns::new().unwrap());
    veth((&ns, "nic0"), (&far, "eth0")).unwrap();
    veth((&ns, "g0"), (&guest, "eth0")).unwrap();
    let (sw, peer) = (start(&ns), Switch::start(&far, peer).unwrap());
    endpoint(&sw, &ns, "nic0", 1, &tunnel(2));
    endpoint(&peer, &far, "eth0", 2, &tunnel(1));
    vsctl(&sw, "add-port br-int g0");
    let ends = [(&sw, &guest, "eth0", "g0"), (&peer, &far, "br-int", "LOCAL")];
    let macs = ends.map(|(_, ns, dev, _)| {
        let shown = ns.ip(&format!("-br link show dev {dev}")).unwrap();
        shown.split_whitespace().nth(2).unwrap().to_string()
    });
    for (i, (sw, ns, dev, port)) in ends.into_iter().enumerate() {
        let (own, other, far) = (i + 1, 2 - i, &macs[1 - i]);
        ns.ip(&format!("addr add 192.168.0.{own}/24 dev {dev}")).unwrap();
        ns.ip(&format!("link set {dev} mtu 1400 up")).unwrap();
        ns.ip(&format!("neigh replace 192.168.0.{other} lladdr {far} dev {dev}")).unwrap();
        ofctl(sw, "del-flows br-int");
        ofctl(sw, &format!("add-flow br-int in_port={port},ip,actions=vx"));
        let came = format!("in_port=vx,ip{fields}");
        let to = format!("mod_dl_dst:{},{port}", macs[i]);
        ofctl(sw, &format!("add-flow br-int {came},dl_src=00:00:00:00:00:00,actions={to}"));
    }
    f([&sw, &peer], [&guest, &far]);
}

fn with_gtpu(net: &str, peer: SwitchConfig, f: impl FnOnce([&Switch; 2], [&Netns; 2])) {
    let tunnel = |n| format!("type=gtpu options:remote_ip={net}{n} options:dst_port=2153");
    with_l3(tunnel, ",tun_gtpu_flags=0x30,tun_gtpu_msgtype=255", peer, f);
}

#[test]
fn gtpu_carries_tcp() {
    if !privileged() {
        return;
    }
    for net in ["10.1.1.", "fd00::"] {
        let weft = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
        with_gtpu(net, weft, |[sw, _], [guest, far]| tcp_passes(sw, guest, far));
    }
}

/// Only one way: the UDP checksums that ovs-vswitchd 3.1 writes are wrong, since it fills in the
/// length of the GTP-U header after them.
#[test]
fn ovs_understands_our_gtpu() {
    if !privileged() {
        return;
    }
    with_gtpu("fd00::", SwitchConfig::oracle(), |[_, ovs], [guest, far]| {
        let inside = Raw::open(far, "br-int").unwrap();
        let wire = Raw::open(far, "eth0").unwrap();
        let _ = guest.ping(inner(2), SOON);
        let is_echo = |f: &[u8]| f.len() > 34 && f[12..14] == [8, 0] && f[23] == 1 && f[34] == 8;
        let frames = inside.collect(1, Instant::now() + SOON, is_echo);
        assert_eq!(frames.len(), 1, "{}", ofctl(ovs, "dump-flows br-int"));
        assert_eq!((&frames[0][6..12], &frames[0][26..30]), (&[0; 6][..], &[192, 168, 0, 1][..]));
        let ours = |f: &[u8]| f[12] == 0x86 && f[20] == 17 && f[6..12] == [0xaa, 0x55, 0, 0, 0, 1];
        let mut frames = wire.collect(1, Instant::now() + SOON, ours);
        // That tshark knows what it is.
        frames.iter_mut().for_each(|f| f[56..58].copy_from_slice(&2152u16.to_be_bytes()));
        let lines = dissect(&frames, &["gtp.flags.version", "gtp.message", "gtp.teid"]);
        assert_eq!(lines, ["1\t0xff\t0x0000002a"]);
    });
}

/// True if it is a frame of this kind.
type IsFrame = fn(&[u8]) -> bool;

/// Tunnels for packets without an Ethernet header: types and options, and which of the peer's
/// frames are theirs.
const L3_TUNNELS: [(&str, IsFrame); 2] = [
    ("gre", |f| f[23] == 47 && f[36..38] == [8, 0]),
    ("vxlan options:exts=gpe", |f| f[36..38] == [0x12, 0xb5] && f[42..46] == [0xc, 0, 0, 1]),
];

#[test]
fn packets_go_without_their_ethernet_header() {
    if !privileged() {
        return;
    }
    for (net, (kind, _)) in [("10.1.1.", L3_TUNNELS[0]), ("fd00::", L3_TUNNELS[1])] {
        let tunnel =
            |n| format!("type={kind} options:remote_ip={net}{n} options:packet_type=legacy_l3");
        let weft = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
        with_l3(tunnel, "", weft, |[sw, _], [guest, far]| tcp_passes(sw, guest, far));
    }
}

/// Both ways: what OVS sends is what we understand, and ours what OVS does.
#[test]
fn ovs_understands_our_packets_without_ethernet_header() {
    if !privileged() {
        return;
    }
    for (kind, is_its) in L3_TUNNELS {
        let tunnel =
            |n| format!("type={kind} options:remote_ip=10.1.1.{n} options:packet_type=legacy_l3");
        with_l3(tunnel, "", SwitchConfig::oracle(), |[sw, _], [guest, far]| {
            let wire = Raw::open(far, "eth0").unwrap();
            tcp_passes(sw, guest, far);
            let frames = wire.collect(20, Instant::now() + SOON, is_its);
            assert_eq!(frames.len(), 20, "{kind}");
            let flows = appctl(sw, "dpctl/dump-flows");
            assert!(flows.contains("packet_type(ns=1,id=0x800),eth_type(0x0800)"), "{flows}");
            assert!(flows.contains("actions:push_eth(src=00:00:00:00:00:00,dst="), "{flows}");
            assert!(flows.contains("actions:pop_eth,tnl_push("), "{flows}");
        });
    }
}

/// Network service headers by VXLAN-GPE, around frames and around IP packets, both ways: what OVS
/// sends is what we understand, and ours what OVS does.
#[test]
fn ovs_understands_our_service_headers_in_vxlan_gpe() {
    if !privileged() {
        return;
    }
    let tunnel = |n| {
        format!("type=vxlan options:remote_ip=10.1.1.{n} options:exts=gpe options:packet_type=ptap")
    };
    let around_ip = "decap(),encap(nsh(md_type=2,tlv(0x1000,10,0x123456)))";
    for (around, np) in [("encap(nsh(md_type=1))", 3), (around_ip, 1)] {
        with_l3(tunnel, "", SwitchConfig::oracle(), |[sw, peer], [guest, far]| {
            for (sw, ns, dev, port) in [(sw, guest, "eth0", "g0"), (peer, far, "br-int", "LOCAL")] {
                let shown = ns.ip(&format!("-br link show dev {dev}")).unwrap();
                let mac = shown.split_whitespace().nth(2).unwrap();
                let add = |flow: &str| ofctl(sw, &format!("-O OpenFlow13 add-flow br-int {flow}"));
                ofctl(sw, "del-flows br-int");
                add(&format!("in_port={port},ip,actions={around},set_field:0x1234->nsh_spi,vx"));
                let named = format!("packet_type=(1,0x894f),nsh_np={np},nsh_spi=0x1234");
                add(&format!("in_port=vx,{named},actions=decap(),resubmit(,1)"));
                let to = format!("set_field:{mac}->eth_dst,{port}");
                add(&format!("table=1,ip,actions={to}"));
                add(&format!("table=1,packet_type=(1,0x800),actions=encap(ethernet),{to}"));
            }
            let wire = Raw::open(far, "eth0").unwrap();
            tcp_passes(sw, guest, far);
            let is_its = |f: &[u8]| f.len() > 58 && f[42..46] == [0xc, 0, 0, 4] && f[53] == np;
            let frames = wire.collect(20, Instant::now() + SOON, is_its);
            assert_eq!(frames.len(), 20, "{around}");
            let flows = appctl(sw, "dpctl/dump-flows");
            let came =
                format!("packet_type(ns=1,id=0x894f),eth_type(0x894f),nsh(np={np},spi=0x1234)");
            assert!(flows.contains(&came), "{flows}");
            assert!(flows.contains("actions:pop_nsh(),recirc("), "{flows}");
        });
    }
}

/// The kernel's device for VXLAN-GPE has no Ethernet header at all.
#[test]
fn the_kernel_understands_our_vxlan_gpe() {
    let tunnel = "type=vxlan options:remote_ip=10.1.1.2 options:exts=gpe \
         options:packet_type=legacy_l3";
    with_ends(tunnel, |sw, guest, peer| {
        underlay(peer, "eth0", 2);
        peer.ip("link add vx type vxlan dstport 4789 external gpe").unwrap();
        peer.ip("addr add 192.168.0.2/24 dev vx").unwrap();
        peer.ip("link set vx mtu 1400 up").unwrap();
        let route = format!("192.168.0.1/32 encap ip id {VNI} dst 10.1.1.1 dev vx");
        peer.ip(&format!("route add {route}")).unwrap();
        guest.ip("addr add 192.168.0.1/24 dev eth0").unwrap();
        guest.ip("link set eth0 mtu 1400 address 02:00:00:00:00:11 up").unwrap();
        guest.ip("neigh replace 192.168.0.2 lladdr 02:00:00:00:00:12 dev eth0").unwrap();
        ofctl(sw, "del-flows br-int");
        ofctl(sw, "add-flow br-int in_port=g0,ip,actions=vx");
        let to = "mod_dl_dst:02:00:00:00:00:11,mod_dl_src:02:00:00:00:00:12,g0";
        ofctl(sw, &format!("add-flow br-int in_port=vx,ip,actions={to}"));
        tcp_passes(sw, guest, peer);
        // Packets are counted without the header that they came without.
        let wire = Raw::open(guest, "eth0").unwrap();
        let before = received(sw);
        guest.ping(inner(2), SOON).unwrap();
        let is_reply = |f: &[u8]| f[12..14] == [8, 0] && f[23] == 1 && f[34] == 0;
        let reply = wire.collect(1, Instant::now() + SOON, is_reply);
        let bytes = reply[0].len() as u64 - 14;
        wait_for("the counters", || received(sw) > before);
        assert_eq!(received(sw), [before[0] + 1, before[1] + bytes]);
    });
}

/// Packets and bytes that came out of the tunnel.
fn received(sw: &Switch) -> [u64; 2] {
    appctl(sw, "revalidator/wait");
    let text = ofctl(sw, "dump-ports br-int vx");
    ["rx pkts=", "bytes="].map(|name| {
        let rest = text.split(name).nth(1).unwrap_or_default();
        rest.split(',').next().unwrap().parse().unwrap_or_else(|_| panic!("{text}"))
    })
}

/// One port carries frames and packets without an Ethernet header, each as what it is.
#[test]
fn a_port_aware_of_packet_types_carries_both() {
    if !privileged() {
        return;
    }
    for (kind, is_bare) in L3_TUNNELS {
        let tunnel =
            |n| format!("options:remote_ip=10.1.1.{} type={kind} options:packet_type=ptap", 3 - n);
        with_peer(tunnel, None, |sw, guest, peer, ovs| {
            let ends = [(sw, "g0"), (ovs.unwrap(), "LOCAL")];
            for (sw, port) in ends {
                ofctl(sw, "del-flows br-int");
                let flow =
                    |text: &str| drop(ofctl(sw, &format!("-OOpenFlow13 add-flow br-int {text}")));
                flow(&format!("in_port={port},actions=vx"));
                flow(&format!("priority=40000,in_port={port},ip,actions=decap(),vx"));
                flow(&format!("in_port=vx,arp,actions={port}"));
            }
            let macs = [(guest, "eth0"), (peer, "br-int")].map(|(ns, dev)| {
                let shown = ns.ip(&format!("-br link show dev {dev}")).unwrap();
                shown.split_whitespace().nth(2).unwrap().to_string()
            });
            for ((sw, port), mac) in ends.into_iter().zip(&macs) {
                let header = format!("encap(ethernet),set_field:{mac}->eth_dst");
                let flow = format!("packet_type=(1,0x800),in_port=vx,actions={header},{port}");
                ofctl(sw, &format!("-OOpenFlow13 add-flow br-int {flow}"));
            }
            let wire = Raw::open(peer, "eth0").unwrap();
            tcp_passes(sw, guest, peer);
            assert_eq!(wire.collect(20, Instant::now() + SOON, is_bare).len(), 20, "{kind}");
            // A flow that is about no header is for both, one about a header for frames only.
            let unknown = coverage(sw, "datapath_drop_policy");
            ofctl(sw, "-OOpenFlow13 --strict del-flows br-int packet_type=(1,0x800),in_port=vx");
            assert!(guest.ping(inner(2), QUIET).is_err());
            wait_for("a drop", || coverage(sw, "datapath_drop_policy") > unknown);
            let header = format!("encap(ethernet),set_field:{}->eth_dst", macs[0]);
            ofctl(
                sw,
                &format!("-OOpenFlow13 add-flow br-int priority=1,in_port=vx,actions={header},g0"),
            );
            guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
        });
    }
}
