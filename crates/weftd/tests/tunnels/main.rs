//! Tunnels with the kernel's own device at the other end, or OVS: what is said, what is refused,
//! and that everybody else understands our frames.

#[path = "../lab/mod.rs"]
mod lab;
mod without_ethernet;

use lab::*;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Raw, Switch, SwitchConfig, privileged, veth};

/// A route by command needs an address that came a moment before: the kernel is asked, not waited
/// for.
#[test]
fn a_route_by_command_knows_the_address_of_a_moment_ago() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    ns.ip("link set br0 up").unwrap();
    for n in 1..=20 {
        // One process does both, without a pause.
        let line = format!(
            "ip addr add 10.{n}.0.1/24 dev br0 && ovs-appctl ovs/route/add 192.168.{n}.0/24 br0 10.{n}.0.2"
        );
        let out = sw.command("sh").args(["-c", &line]).output().unwrap();
        assert!(out.status.success(), "{n}: {out:?}");
    }
    let shown = appctl(&sw, "ovs/route/show");
    let users = shown.lines().filter(|l| l.starts_with("User: 192.168.")).count();
    assert_eq!(users, 20, "{shown}");
}

const VNI: u32 = 42;
const OURS: &str = "aa:55:00:00:00:01";
/// A frame on its way takes less.
const SOON: Duration = Duration::from_secs(3);

/// The underlay and a guest behind `br-int`: 10.1.1.1 and fd00::1 are ours, .2 and ::2 the peer's.
/// `tunnel(n)` are the settings of host `n`'s tunnel, the first of which is ours. The peer is the
/// kernel's `device`, or OVS.
fn with_peer(
    tunnel: impl Fn(u8) -> String,
    device: Option<&str>,
    f: impl FnOnce(&Switch, &Netns, &Netns, Option<&Switch>),
) {
    with_ends(&tunnel(1), |sw, guest, peer| {
        let mut ovs = None;
        match device {
            Some(device) => {
                underlay(peer, "eth0", 2);
                peer.ip(&format!("link add vx type vxlan id {VNI} {device}")).unwrap();
            }
            None => {
                let ovs = ovs.insert(Switch::start(peer, SwitchConfig::oracle()).unwrap());
                endpoint(ovs, peer, "eth0", 2, &tunnel(2));
            }
        }
        let inside = if device.is_some() { "vx" } else { "br-int" };
        for (ns, dev, n) in [(guest, "eth0", 1), (peer, inside, 2)] {
            ns.ip(&format!("addr add 192.168.0.{n}/24 dev {dev}")).unwrap();
            ns.ip(&format!("link set {dev} mtu 1400 up")).unwrap();
        }
        f(sw, guest, peer, ovs.as_ref());
    });
}

/// A switch with a tunnel of these settings and a guest, and a peer that has nothing but its end of
/// the underlay's cable.
fn with_ends(tunnel: &str, f: impl FnOnce(&Switch, &Netns, &Netns)) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let (guest, peer) = (Netns::new().unwrap(), Netns::new().unwrap());
    veth((&ns, "nic0"), (&peer, "eth0")).unwrap();
    veth((&ns, "g0"), (&guest, "eth0")).unwrap();
    let sw = start(&ns);
    endpoint(&sw, &ns, "nic0", 1, tunnel);
    vsctl(&sw, "add-port br-int g0");
    f(&sw, &guest, &peer);
}

/// A switch at one end: its underlay, and a tunnel with these settings.
fn endpoint(sw: &Switch, ns: &Netns, nic: &str, n: u8, tunnel: &str) {
    add_bridge(sw, "br-phy");
    let mac = format!("aa:55:00:00:00:0{n}");
    vsctl(sw, &format!("set bridge br-phy other-config:hwaddr={mac} -- add-port br-phy {nic}"));
    add_bridge(sw, "br-int");
    underlay(ns, "br-phy", n);
    vsctl(sw, &format!("add-port br-int vx -- set interface vx options:key={VNI} {tunnel}"));
}

fn underlay(ns: &Netns, dev: &str, n: u8) {
    ns.ip(&format!("addr add 10.1.1.{n}/24 dev {dev}")).unwrap();
    ns.ip(&format!("addr add fd00::{n}/64 dev {dev} nodad")).unwrap();
    ns.ip(&format!("link set {dev} up")).unwrap();
}

/// The kernel at the other end. `options` are those of the tunnel besides its key, `device` what
/// the peer's device is made with.
fn with_tunnel(options: &str, device: &str, f: impl FnOnce(&Switch, &Netns, &Netns)) {
    with_peer(
        |_| format!("type=vxlan {options}"),
        Some(device),
        |sw, guest, peer, _| f(sw, guest, peer),
    );
}

const OVER_IPV4: (&str, &str) =
    ("options:remote_ip=10.1.1.2", "local 10.1.1.2 remote 10.1.1.1 dstport 4789");

fn inner(n: u8) -> IpAddr {
    IpAddr::from([192, 168, 0, n])
}

fn is_vxlan(f: &[u8]) -> bool {
    f.len() > 60 && (f[23] == 17 && f[36..38] == [0x12, 0xb5] || f[20] == 17 && f[12] == 0x86)
}

/// What a device of the peer's sent, and what of it came out of our tunnel.
fn sent_and_received(sw: &Switch, peer: &Netns) -> [u64; 2] {
    let number = |text: &str, after: &str| -> u64 {
        let rest = text.split(after).nth(1).unwrap_or_else(|| panic!("no {after} in {text}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    // Counters of cached flows reach ports within a second, or when they are asked for.
    appctl(sw, "revalidator/wait");
    let device = peer.ip("-j -s link show vx").unwrap();
    let sent = device.split("\"tx\"").nth(1).expect("statistics");
    [number(sent, "\"packets\":"), number(&ofctl(sw, "dump-ports br-int vx"), "rx pkts=")]
}

/// A flow-mod in the bridge under a tunnel holds for packets whose decisions are cached, although
/// those are about inner packets.
#[test]
fn flows_under_a_tunnel_hold_for_cached_packets() {
    with_tunnel(OVER_IPV4.0, OVER_IPV4.1, |sw, guest, _| {
        for _ in 0..3 {
            for _ in 0..3 {
                guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
            }
            ofctl(sw, "add-flow br-phy priority=100,udp,tp_dst=4789,in_port=LOCAL,actions=drop");
            assert!(guest.ping(inner(2), SOON / 3).is_err(), "the outer packets are dropped");
            ofctl(sw, "del-flows br-phy udp,tp_dst=4789");
        }
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
    });
}

#[test]
fn a_tunnel_counts_only_what_comes_out_of_it() {
    with_tunnel(OVER_IPV4.0, OVER_IPV4.1, |sw, _guest, peer| {
        peer.ping(inner(1), WAIT_TIME_MAX).unwrap();
        let mut before = sent_and_received(sw, peer);
        wait_for("counters stand still", || {
            std::thread::sleep(QUIET);
            let now = sent_and_received(sw, peer);
            std::mem::replace(&mut before, now) == now
        });
        for _ in 0..10 {
            peer.ping(inner(1), WAIT_TIME_MAX).unwrap();
            // Beside the tunnel, to the bridge's own port.
            peer.ping(IpAddr::from([10, 1, 1, 1]), WAIT_TIME_MAX).unwrap();
        }
        let more = || {
            let now = sent_and_received(sw, peer);
            [now[0] - before[0], now[1] - before[1]]
        };
        wait_for("as many out of the tunnel as were sent", || {
            let [sent, received] = more();
            sent >= 10 && sent == received
        });
    });
}

#[test]
fn the_kernel_understands_us_over_ipv4() {
    with_tunnel(OVER_IPV4.0, OVER_IPV4.1, |sw, guest, peer| {
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
        peer.ping(inner(1), WAIT_TIME_MAX).unwrap();
        // Many flows have many source ports, all in the range.
        appctl(sw, "tnl/egress_port_range 40000 40099");
        let wire = Raw::open(peer, "eth0").unwrap();
        let socket = guest.run(|| std::net::UdpSocket::bind("192.168.0.1:0")).unwrap();
        for port in 1000..1100 {
            socket.send_to(&[7; 32], (inner(2), port)).unwrap();
        }
        let data = |f: &[u8]| is_vxlan(f) && f.len() == 50 + 14 + 28 + 32;
        let frames = wire.collect(100, Instant::now() + SOON, data);
        let fields = [
            "vxlan.vni",
            "ip.checksum.status",
            "udp.checksum.status",
            "ip.flags.df",
            "ip.ttl",
            "eth.src",
            "udp.length",
        ];
        let lines = dissect(&frames, &fields);
        assert_eq!(lines.len(), 100);
        // Of the outer and the inner header each: the outer UDP has no checksum (3), the inner a
        // right one (1).
        for l in &lines {
            let f: Vec<&str> = l.split('\t').collect();
            assert_eq!((f[0], f[1], f[2]), ("42", "1,1", "3,1"), "{l}");
            assert!(f[4] == "64,64" && f[5].starts_with(OURS) && f[6] == "90,40", "{l}");
        }
        let ports: std::collections::BTreeSet<u16> =
            frames.iter().map(|f| u16::from_be_bytes([f[34], f[35]])).collect();
        assert!(ports.len() > 40 && ports.iter().all(|p| (40000..40099).contains(p)), "{ports:?}");
        assert!(statistic_of(sw, "vx", "tx_packets") >= 100);
    });
}

/// A counter of a tunnel port, which the switch half keeps: OpenFlow has it at once.
fn statistic_of(sw: &Switch, port: &str, key: &str) -> u64 {
    let mut found = 0;
    wait_for("the tunnel's counters", || {
        let text = ofctl(sw, &format!("dump-ports br-int {port}"));
        let key = key.replace("tx_packets", "tx pkts=").replace("rx_packets", "rx pkts=");
        let n = text.split(&key).nth(1).and_then(|t| t.split(',').next()?.trim().parse().ok());
        found = n.unwrap_or(0);
        found >= 100
    });
    found
}

#[test]
fn the_kernel_understands_us_over_ipv6_and_checks_our_sums() {
    let device = "local fd00::2 remote fd00::1 dstport 4789";
    with_tunnel("options:remote_ip=fd00::2", device, |_, guest, peer| {
        // Its device takes no packet with a zero checksum (udp6zerocsumrx is off).
        let wire = Raw::open(peer, "eth0").unwrap();
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
        peer.ping(inner(1), WAIT_TIME_MAX).unwrap();
        let frames = wire.collect(1, Instant::now() + SOON, is_vxlan);
        let lines = dissect(&frames, &["ipv6.dst", "vxlan.vni", "udp.checksum.status"]);
        assert_eq!(lines, [format!("fd00::2\t{VNI}\t1")]);
    });
}

/// TCP both ways; what the peer's kernel leaves to an adapter (segments, sums, inside and outside)
/// is made by us.
fn tcp_passes(sw: &Switch, guest: &Netns, peer: &Netns) {
    guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
    for (from, to, n) in [(guest, peer, 2), (peer, guest, 1)] {
        let pause = || std::thread::sleep(Duration::from_millis(400));
        let bytes = transfer(from, (to, inner(n)), pause);
        assert!(bytes > 1 << 18, "{bytes} to host {n}");
    }
    assert_eq!(coverage(sw, "datapath_drop_bad_offload"), 0);
}

#[test]
fn tcp_passes_with_everybodys_offloads_as_they_are() {
    with_tunnel(OVER_IPV4.0, OVER_IPV4.1, tcp_passes);
}

#[test]
fn tcp_passes_with_checksums_on_the_outside() {
    let device = "local 10.1.1.2 remote 10.1.1.1 dstport 4789 udpcsum";
    with_tunnel("options:remote_ip=10.1.1.2 options:csum=true", device, tcp_passes);
}

#[test]
fn tcp_passes_over_ipv6() {
    let device = "local fd00::2 remote fd00::1 dstport 4789";
    with_tunnel("options:remote_ip=fd00::2", device, tcp_passes);
}

/// OVS at the other end and tunnels of one type on both; not every kernel has these.
fn with_ovs(options: &str, f: impl FnOnce(&Switch, &Netns, &Netns)) {
    let net = if options.starts_with("ip6") { "fd00::" } else { "10.1.1." };
    let tunnel = |n| format!("options:remote_ip={net}{} type={options}", 3 - n);
    with_peer(tunnel, None, |sw, guest, peer, _| f(sw, guest, peer));
}

/// TCP passes, and this is how the peer's frames and ours read.
fn frames_read(options: &str, ours: impl Fn(&[u8]) -> bool, fields: &[&str], want: &str) {
    with_ovs(options, |sw, guest, peer| {
        let wire = Raw::open(peer, "eth0").unwrap();
        tcp_passes(sw, guest, peer);
        let frames = wire.collect(20, Instant::now() + SOON, ours);
        assert_eq!(frames.len(), 20);
        for line in dissect(&frames, fields) {
            assert!(line.starts_with(want), "{line}");
        }
    });
}

#[test]
fn geneve_is_understood() {
    let is_geneve = |f: &[u8]| f[23] == 17 && f[36..38] == [0x17, 0xc1];
    let fields = ["geneve.vni", "geneve.proto_type", "udp.checksum.status"];
    frames_read("geneve options:csum=true", is_geneve, &fields, "0x00002a\t0x6558\t1");
}

/// Options that one side sets and the other matches, both ways.
#[test]
fn geneve_options_are_understood() {
    let tunnel = |n| format!("options:remote_ip=10.1.1.{} type=geneve", 3 - n);
    with_peer(tunnel, None, |sw, guest, peer, ovs| {
        let ovs = ovs.unwrap();
        let maps = "{class=0x102,type=0x80,len=4}->tun_metadata0,\
                    {class=0x102,type=0x1,len=8}->tun_metadata5";
        for sw in [sw, ovs] {
            ofctl(sw, "del-flows br-int");
            ofctl(sw, &format!("add-tlv-map br-int {maps}"));
        }
        let sets = "set_field:0x12345678->tun_metadata0,set_field:0xabcdef->tun_metadata5";
        ofctl(sw, &format!("add-flow br-int in_port=g0,actions={sets},vx"));
        ofctl(sw, "add-flow br-int in_port=vx,tun_metadata0=0x77,actions=g0");
        let theirs = "tun_metadata0=0x12345600/0xffffff00,tun_metadata5=0xabcdef";
        ofctl(ovs, &format!("add-flow br-int in_port=vx,{theirs},actions=LOCAL"));
        let answer = |value: &str, more: &str| {
            let set = format!("set_field:{value}->tun_metadata0{more}");
            ofctl(ovs, &format!("add-flow br-int in_port=LOCAL,actions={set},vx"));
        };
        answer("0x77", "");
        let wire = Raw::open(peer, "eth0").unwrap();
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
        peer.ping(inner(1), WAIT_TIME_MAX).unwrap();
        let ours = |f: &[u8]| {
            f[23] == 17 && f[36..38] == [0x17, 0xc1] && f[6..12] == [0xaa, 0x55, 0, 0, 0, 1]
        };
        let frames = wire.collect(1, Instant::now() + SOON, ours);
        let fields = [
            "geneve.flags.critical",
            "geneve.option.type",
            "geneve.option.length",
            "geneve.option.unknown.data",
        ];
        let lines = dissect(&frames, &fields);
        assert_eq!(lines, ["1\t0x80,0x01\t20,8,12\t12345678,0000000000abcdef"]);
        let trace = appctl(sw, "ofproto/trace br-int in_port=g0");
        let said = "geneve(crit,vni=0x2a,options({class=0x102,type=0x80,len=4,0x12345678}\
                    {class=0x102,type=0x1,len=8,0xabcdef}))";
        assert!(trace.contains(said), "{trace}");
        let reached = || guest.ping(inner(2), Duration::from_millis(300)).is_ok();
        answer("0x78", "");
        // OVS's revalidators take a changed flow over after ovs-ofctl has ended.
        wait_for("another value", || !reached());
        // Part of an option decides, and what came in one way goes out another.
        ofctl(
            sw,
            "add-flow br-int in_port=vx,tun_metadata0=0x70/0xf0,actions=move:tun_metadata0[0..7]->reg0[0..7],resubmit(,1)",
        );
        ofctl(sw, "add-flow br-int table=1,reg0=0x78,actions=g0");
        wait_for("the part that matches", reached);
        ofctl(ovs, "add-tlv-map br-int {class=0x103,type=0x2,len=4}->tun_metadata6");
        ofctl(ovs, "add-tlv-map br-int {class=0x103,type=0x82,len=4}->tun_metadata7");
        answer("0x78", ",set_field:1->tun_metadata6");
        wait_for("a packet with an unknown option", reached);
        answer("0x78", ",set_field:1->tun_metadata7");
        wait_for("a critical option", || !reached());
        wait_for("its drops", || coverage(sw, "datapath_drop_tunnel_options") > 0);
        let flows = ofctl(sw, "dump-flows br-int");
        assert!(
            flows.contains("in_port=vx actions=") || flows.contains("tun_metadata0=0x77,"),
            "{flows}"
        );
    });
}

#[test]
fn gre_is_understood() {
    let is_gre = |f: &[u8]| f[23] == 47;
    let fields = ["gre.key", "gre.proto"];
    frames_read("gre", is_gre, &fields, "0x0000002a\t0x6558");
    // Not both: OVS writes the sequence number after it has made the checksum.
    let fields = ["gre.key", "gre.checksum.status"];
    frames_read("gre options:csum=true", is_gre, &fields, "0x0000002a\t1");
    let fields = ["gre.key", "gre.sequence_number"];
    frames_read("gre options:seq=true", is_gre, &fields, "0x0000002a\t");
}

#[test]
fn gre_over_ipv6_is_understood() {
    let is_gre = |f: &[u8]| f[12..14] == [0x86, 0xdd] && f[20] == 47;
    frames_read("ip6gre", is_gre, &["gre.key", "gre.proto"], "0x0000002a\t0x6558");
}

/// Both versions, over IPv4 and IPv6.
#[test]
fn erspan_is_understood() {
    let first = "options:erspan_ver=1 options:erspan_idx=0x12345";
    let second = "options:erspan_ver=2 options:erspan_dir=1 options:erspan_hwid=0x2a";
    let fields = |more: &[&'static str]| {
        [&["gre.flags_and_version", "gre.proto", "erspan.version", "erspan.spanid"], more].concat()
    };
    let index = fields(&["erspan.index"]);
    let hardware = fields(&["erspan.direction", "erspan.hw"]);
    for (kind, is_gre) in [
        ("erspan", (|f| f[23] == 47) as fn(&[u8]) -> bool),
        ("ip6erspan", |f| f[12..14] == [0x86, 0xdd] && f[20] == 47),
    ] {
        frames_read(&format!("{kind} {first}"), is_gre, &index, "0x1000\t0x88be\t1\t42\t74565");
        frames_read(&format!("{kind} {second}"), is_gre, &hardware, "0x1000\t0x22eb\t2\t42\t1\t42");
    }
}

#[test]
fn flows_choose_peer_and_key() {
    let device = "local 10.1.1.2 remote 10.1.1.1 dstport 4789";
    with_tunnel("options:remote_ip=flow options:key=flow", device, |sw, guest, _| {
        ofctl(sw, "del-flows br-int");
        ofctl(
            sw,
            &format!(
                "-O OpenFlow13 add-flow br-int in_port=g0,actions=set_field:10.1.1.2->tun_dst,set_field:{VNI}->tun_id,vx"
            ),
        );
        ofctl(sw, &format!("add-flow br-int in_port=vx,tun_src=10.1.1.2,tun_id={VNI},actions=g0"));
        vsctl(sw, "set interface vx options:key=flow");
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
        let flows = appctl(sw, "dpctl/dump-flows");
        assert!(flows.contains("tunnel(tun_id=0x2a,src=10.1.1.2"), "{flows}");
        assert!(flows.contains("actions:tnl_pop("), "{flows}");
        ofctl(sw, "mod-flows br-int tun_src=10.1.1.2,in_port=vx,actions=drop");
        ofctl(sw, "add-flow br-int priority=40000,in_port=vx,tun_id=43,actions=g0");
        assert!(guest.ping(inner(2), Duration::from_millis(300)).is_err());
    });
}

/// One's-complement sum over an IPv4 header, so that a test's own change stays valid.
fn fix_ip(f: &mut [u8]) {
    f[24..26].fill(0);
    let len = usize::from(f[14] & 15) * 4;
    let sum = wire::checksum::internet(&f[14..14 + len]);
    f[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn what_is_wrong_with_an_outer_header_has_a_name() {
    with_tunnel(OVER_IPV4.0, OVER_IPV4.1, |sw, guest, peer| {
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
        // A frame of the kernel's, as it comes in on our side.
        let (out, inside) = (Raw::open(peer, "eth0").unwrap(), Raw::open(guest, "eth0").unwrap());
        let good = a_good_frame();
        let arrives = |f: &[u8]| {
            inside.collect(99, Instant::now(), |_| true);
            out.send(f).unwrap();
            !inside.collect(1, Instant::now() + QUIET, |g| g == &good[50..]).is_empty()
        };
        assert!(arrives(&good), "the frame as it is");
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut f = good.clone();
            change(&mut f);
            f
        };
        let gpe = |flags: u8, payload: u8| changed(&|f| (f[42], f[45]) = (flags, payload));
        assert!(arrives(&gpe(0xc, 3)), "VXLAN-GPE with a frame");
        let bad: [(&str, &str, Vec<u8>); 12] = [
            ("IP checksum", "datapath_drop_tunnel_checksum", changed(&|f| f[24] ^= 1)),
            ("UDP checksum", "datapath_drop_tunnel_checksum", changed(&|f| f[40] = 1)),
            ("VXLAN without a VNI", "datapath_drop_tunnel_header", changed(&|f| f[42] = 0)),
            ("unknown VXLAN flags", "datapath_drop_tunnel_header", changed(&|f| f[42] |= 0x80)),
            ("reserved bits", "datapath_drop_tunnel_header", changed(&|f| f[49] = 1)),
            ("no frame inside", "datapath_drop_tunnel_unknown", gpe(0xc, 1)),
            ("an unknown payload", "datapath_drop_tunnel_header", gpe(0xc, 5)),
            ("NSH inside", "datapath_drop_tunnel_unknown", gpe(0xc, 4)),
            ("a control message", "datapath_drop_tunnel_header", gpe(0xd, 3)),
            ("another VNI", "datapath_drop_tunnel_unknown", changed(&|f| f[48] ^= 1)),
            ("UDP longer than IP", "datapath_drop_tunnel_header", changed(&|f| f[38] += 1)),
            (
                "no inner frame",
                "datapath_drop_tunnel_header",
                changed(&|f| {
                    f.truncate(46);
                    f[16..18].copy_from_slice(&32u16.to_be_bytes());
                    f[38..40].copy_from_slice(&12u16.to_be_bytes());
                    fix_ip(f);
                }),
            ),
        ];
        for (what, drop, frame) in bad {
            let before = coverage(sw, drop);
            assert!(!arrives(&frame), "{what}");
            wait_for(what, || coverage(sw, drop) > before);
        }
        // Options are skipped; a fragment is the kernel's, which has no such socket.
        let options = changed(&|f| {
            f.splice(34..34, [1, 1, 1, 0]);
            f[14] = 0x46;
            let total = u16::from_be_bytes([f[16], f[17]]) + 4;
            f[16..18].copy_from_slice(&total.to_be_bytes());
            fix_ip(f);
        });
        assert!(arrives(&options), "IP options");
        let fragment = changed(&|f| {
            f[20] = 0x20;
            fix_ip(f);
        });
        assert!(!arrives(&fragment), "a fragment");
        assert!(arrives(&good), "all is well afterwards");
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
    });
}

/// A datagram to a host behind the tunnel, as the peer would encapsulate it.
fn a_good_frame() -> Vec<u8> {
    let (from, to) = ([2, 0, 0, 0, 0, 0x98], [2, 0, 0, 0, 0, 0x99]);
    let ips = ([192, 168, 0, 98], [192, 168, 0, 99]);
    let mut inside = vec![8, 0, 0, 0, 0, 0, VNI as u8, 0];
    inside.extend(Frame::udp4((from, to), ips, (5000, 9), &[5; 100]).bytes());
    let macs = ([2, 0, 0, 0, 0, 0x97], [0xaa, 0x55, 0, 0, 0, 1]);
    let outer = Frame::udp4(macs, ([10, 1, 1, 2], [10, 1, 1, 1]), (5000, 4789), &inside);
    let mut frame = outer.bytes();
    frame[40..42].fill(0);
    frame
}

#[test]
fn congestion_is_handed_on() {
    with_tunnel(OVER_IPV4.0, OVER_IPV4.1, |sw, guest, peer| {
        guest.ping(inner(2), WAIT_TIME_MAX).unwrap();
        let (out, inside) = (Raw::open(peer, "eth0").unwrap(), Raw::open(guest, "eth0").unwrap());
        let good = a_good_frame();
        let send = |outer: u8, inner: u8| {
            let mut f = good.clone();
            f[15] = outer;
            fix_ip(&mut f);
            f[50 + 15] = inner;
            fix_ip(&mut f[50..]);
            inside.collect(99, Instant::now(), |_| true);
            out.send(&f).unwrap();
            let mine = |g: &[u8]| g.len() == good.len() - 50 && g[23] == 17;
            inside.collect(1, Instant::now() + QUIET, mine).first().map(|g| g[15])
        };
        // RFC 6040, figure 4.
        assert_eq!(send(0, 0), Some(0));
        assert_eq!(send(2, 0), Some(0));
        assert_eq!(send(3, 2), Some(3));
        assert_eq!(send(3, 0), None, "the inner packet could not carry it");
        wait_for("the drop", || coverage(sw, "datapath_drop_tunnel_ecn") > 0);
    });
}

#[test]
fn packets_without_a_way_have_a_named_end() {
    with_tunnel("options:remote_ip=flow", OVER_IPV4.1, |sw, guest, peer| {
        ofctl(sw, "del-flows br-int");
        let to = |dst: &str| {
            let actions = format!("set_field:{dst}->tun_dst,set_field:{VNI}->tun_id,vx");
            ofctl(sw, &format!("-O OpenFlow13 add-flow br-int in_port=g0,actions={actions}"));
        };
        let socket = guest.run(|| std::net::UdpSocket::bind("192.168.0.1:0")).unwrap();
        let broadcast = |why: &str| {
            socket.set_broadcast(true).unwrap();
            wait_for(why, || {
                socket.send_to(&[1], "192.168.0.255:9").unwrap();
                coverage(sw, why) > 0
            });
        };
        to("99.1.1.1");
        broadcast("datapath_drop_tunnel_route");
        // No host has that address: it is asked for, once a second.
        let wire = Raw::open(peer, "eth0").unwrap();
        to("10.1.1.77");
        broadcast("datapath_drop_tunnel_neighbour");
        let question = |f: &[u8]| f[12..14] == [8, 6] && f[38..42] == [10, 1, 1, 77];
        assert_eq!(wire.collect(1, Instant::now() + SOON, question).len(), 1);
        // Who answers gets them.
        peer.ip("addr add 10.1.1.77/24 dev eth0").unwrap();
        let arrived = |f: &[u8]| is_vxlan(f) && f[30..34] == [10, 1, 1, 77];
        wait_for("packets for it", || {
            socket.send_to(&[1], "192.168.0.255:9").unwrap();
            !wire.collect(1, Instant::now() + QUIET, arrived).is_empty()
        });
        assert!(appctl(sw, "tnl/neigh/show").contains("10.1.1.77"));
    });
}
