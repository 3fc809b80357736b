//! Match text against what OVS 3.1 prints, and read back.

use flow::{
    Field, Key, Mask, TunMetadata, at, flag, flow_text, match_text, megaflow_text, parse_match,
};
use proptest::prelude::*;

fn no_name(_: u32) -> Option<String> {
    None
}

fn parse(text: &str) -> (Key, Mask) {
    parse_match(text, &|_| None).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn normal(text: &str) -> String {
    let (key, mask) = parse(text);
    match_text(&key, &mask, &[], &no_name)
}

/// (typed, as `ovs-ofctl parse-flow` of OVS 3.1 prints it)
const CASES: &[(&str, &str)] = &[
    ("", ""),
    ("ip4", "ip"),
    ("ip6", "ipv6"),
    ("eth", ""),
    ("ip,ip_dscp=5", "ip,nw_tos=20"),
    ("ip,nw_tos=5", "ip,nw_tos=4"),
    ("tcp,tp_dst=80/0xff", "tcp,tp_dst=0x50/0xff"),
    ("tcp,tcp_flags=0x12/0x1f", "tcp,tcp_flags=-fin+syn-rst-psh+ack"),
    ("tcp,tcp_flags=syn|ack", "tcp,tcp_flags=syn|ack"),
    ("vlan_vid=0x1000/0x1000,tcp,tcp_flags=0", "tcp,vlan_tci=0x1000/0x1000,tcp_flags=0"),
    ("ct_state=0x21/0x21", "ct_state=+new+trk"),
    ("ip,ct_state=0xff/0xff", "ct_state=new|est|rel|rpl|inv|trk|snat|dnat,ip"),
    ("ct_label=0/5,ct_mark=0,ct_zone=3", "ct_zone=3,ct_mark=0,ct_label=0/0x5"),
    ("tcp,tcp", "tcp"),
    ("tcp,tp_dst=80,tp_dst=81", "tcp,tp_dst=81"),
    ("arp,nw_src=1.1.1.1,nw_proto=1", "arp,arp_spa=1.1.1.1,arp_op=1"),
    ("in_port=1 tcp", "tcp,in_port=1"),
    ("in_port=65534,dl_type=0x88cc", "in_port=LOCAL,dl_type=0x88cc"),
    ("in_port=local", "in_port=LOCAL"),
    ("in_port=65280", "in_port=65280"),
    ("recirc_id=1,dp_hash=3/7", "recirc_id=0x1,dp_hash=0x3/0x7"),
    ("ip,nw_frag=not_later", "ip,nw_frag=not_later"),
    ("packet_type=(1,0x800)", "packet_type=(1,0x800)"),
    ("reg0=0x5/0x0", ""),
    ("xreg0=0x5/0xf", "reg1=0x5/0xf"),
    ("vlan_tci=0x1005", "dl_vlan=5,dl_vlan_pcp=0"),
    ("vlan_tci=0x1005/0x1fff", "dl_vlan=5"),
    ("vlan_tci=0x1005/0x100f", "vlan_tci=0x1005/0x100f"),
    ("dl_vlan=0xffff,tcp", "tcp,vlan_tci=0x0000"),
    ("mpls,mpls_label=0x12345", "mpls,mpls_label=74565"),
    (
        "dl_type=0x894f,nsp=5,nsi=3,nsh_flags=1/1,nsh_mdtype=1,nshc1=0x10/0xf0,nsh_c4=0",
        "dl_type=0x894f,nsh_flags=0x01/0x01,nsh_mdtype=1,nsh_spi=0x5,nsh_si=3,nsh_c1=0x10/0xf0,\
         nsh_c4=0x0",
    ),
    ("packet_type=(1,0x894f),nsh_np=3,nsh_ttl=63", "packet_type=(1,0x894f),nsh_ttl=63,nsh_np=3"),
    ("dl_type=0x894f,nsh_mdtype=2,nsh_c1=1", "dl_type=0x894f,nsh_mdtype=2"),
    ("ipv6,ipv6_label=0x5/0xf", "ipv6,ipv6_label=0x00005/0x0000f"),
    (
        "arp,arp_op=1,arp_tha=1:2:3:4:5:6/ff:ff:ff:0:0:0",
        "arp,arp_op=1,arp_tha=01:02:03:00:00:00/ff:ff:ff:00:00:00",
    ),
    (
        "tcp,in_port=1,dl_vlan=5,reg0=0x1/0xff,metadata=0,tcp_flags=+syn-ack,nw_src=10.0.0.0/8,\
         tp_dst=0x50/0xfff0,ct_state=+trk-new,tun_id=5,tun_flags=+oam",
        "ct_state=-new+trk,tcp,reg0=0x1/0xff,tun_id=0x5,tun_flags=+oam,metadata=0,in_port=1,\
         dl_vlan=5,nw_src=10.0.0.0/8,tp_dst=0x50/0xfff0,tcp_flags=+syn-ack",
    ),
    ("tun_id=0x123456789a", "tun_id=0x123456789a"),
    ("tun_id=0x123456789a/0xff00000000", "tun_id=0x1200000000/0xff00000000"),
    ("tun_id=5/0xffffffff", "tun_id=0x5/0xffffffff"),
    (
        "icmp6,icmp_type=135,icmp_code=0,nd_target=fe80::1,nd_sll=1:2:3:4:5:6,ipv6_src=fe80::/64,\
         ipv6_label=0x5/0xff,nw_tos=4,nw_ecn=1",
        "icmp6,ipv6_src=fe80::/64,ipv6_label=0x00005/0x000ff,nw_tos=4,nw_ecn=1,icmp_type=135,\
         icmp_code=0,nd_target=fe80::1,nd_sll=01:02:03:04:05:06",
    ),
    (
        "arp,arp_spa=1.2.3.4,arp_op=1,arp_sha=1:2:3:4:5:6,pkt_mark=1/3,ct_mark=0,ct_zone=3",
        "pkt_mark=0x1/0x3,ct_zone=3,ct_mark=0,arp,arp_spa=1.2.3.4,arp_op=1,\
         arp_sha=01:02:03:04:05:06",
    ),
    (
        "mpls,mpls_label=5,mpls_bos=1,mpls_tc=2,mpls_ttl=3,vlan_tci=0x1005/0x1fff,\
         dl_dst=01:00:00:00:00:00/01:00:00:00:00:00",
        "mpls,dl_vlan=5,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00,mpls_label=5,mpls_tc=2,\
         mpls_ttl=3,mpls_bos=1",
    ),
    (
        "vlan_tci=0x1005/0x1fff,dl_vlan_pcp=3,in_port=LOCAL,conj_id=3,actset_output=4",
        "conj_id=3,actset_output=4,in_port=LOCAL,dl_vlan=5,dl_vlan_pcp=3",
    ),
];

#[test]
fn prints_as_ovs() {
    for (typed, printed) in CASES {
        assert_eq!(normal(typed), *printed, "{typed}");
    }
}

#[test]
fn refuses() {
    for text in [
        "foo=1",
        "tcp_dst",
        "in_port=zz",
        "tcp,tp_dst=70000",
        "dl_vlan=5/7",
        "dl_vlan=0x1000",
        "dl_vlan_pcp=9",
        "ip,nw_src=10.0.0.0/33",
        "icmp,icmp_type=8/0xf",
        "dl_src=1:2:3",
        "ipv6,ipv6_src=1.1.1.1",
        "reg16=1",
        "xxreg4=1",
        "tun_flags=-oam+what",
        "tcp,tcp_flags=+syn|ack",
        "ip,nw_frag=0x1/0x3",
        "packet_type=1,2",
        "in_port=0x1ffffffff",
        "metadata=0x12345678123456781",
    ] {
        assert!(parse_match(text, &|_| None).is_err(), "{text}");
    }
}

#[test]
fn trace_lines() {
    let flow = |text: &str| flow_text(&parse(text).0, &[], &no_name);
    assert_eq!(
        flow("in_port=1,tcp,nw_dst=10.0.0.1,tp_dst=80,dl_vlan=5"),
        "tcp,in_port=1,dl_vlan=5,dl_vlan_pcp=0,vlan_tci1=0x0000,dl_src=00:00:00:00:00:00,\
         dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,nw_dst=10.0.0.1,nw_tos=0,nw_ecn=0,nw_ttl=0,\
         nw_frag=no,tp_src=0,tp_dst=80,tcp_flags=0"
    );
    assert_eq!(
        flow("in_port=ANY,udp,reg3=5,metadata=9,tun_id=5,ct_state=trk,pkt_mark=1"),
        "pkt_mark=0x1,ct_state=trk,udp,reg3=0x5,tun_id=0x5,metadata=0x9,in_port=ANY,\
         vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,\
         nw_dst=0.0.0.0,nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no,tp_src=0,tp_dst=0"
    );
    assert_eq!(
        flow("in_port=1,dl_vlan=5,dl_vlan_pcp=2,ip,nw_frag=later"),
        "ip,in_port=1,dl_vlan=5,dl_vlan_pcp=2,vlan_tci1=0x0000,dl_src=00:00:00:00:00:00,\
         dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,nw_dst=0.0.0.0,nw_proto=0,nw_tos=0,nw_ecn=0,\
         nw_ttl=0,nw_frag=later"
    );
    let (key, mask) = parse("recirc_id=0,tcp,in_port=1,nw_dst=10.0.0.0/8,nw_frag=no,tp_dst=80");
    assert_eq!(
        megaflow_text(&key, &mask, &[], &no_name),
        "recirc_id=0,eth,tcp,in_port=1,nw_dst=10.0.0.0/8,nw_frag=no,tp_dst=80"
    );
}

/// A digest of Geneve options is where ERSPAN's fields are otherwise.
#[test]
fn megaflows_with_options_have_no_fields_of_other_tunnels() {
    let (mut key, mut mask) = parse("recirc_id=0,ip,in_port=1,tun_id=7,nw_frag=no");
    let options = [TunMetadata::exact(0, &[0, 0, 0, 11])];
    mask.set_u64(at::TUN_OPTIONS, !0);
    let text = |key: &Key, tun: &[TunMetadata]| megaflow_text(key, &mask, tun, &no_name);
    let without = "recirc_id=0,eth,ip,tun_id=0x7,in_port=1,nw_frag=no";
    let with = "recirc_id=0,eth,ip,tun_id=0x7,tun_metadata0=0xb,in_port=1,nw_frag=no";
    assert_eq!(text(&key, &options), with);
    key.set_u8(at::FLAGS, flag::TUNNEL | flag::TUNNEL_OPTIONS);
    key.set_u64(at::TUN_OPTIONS, 0x1234_5678_9abc_def0);
    assert_eq!(text(&key, &options), with);
    assert_eq!(text(&key, &[]), without);
    let (key, mask) = parse("recirc_id=0,ip,in_port=1,tun_erspan_ver=1,tun_gtpu_flags=0");
    let erspan = megaflow_text(&key, &mask, &[], &no_name);
    assert_eq!(erspan, "recirc_id=0,eth,ip,tun_erspan_ver=1,gtpu_flags=0,in_port=1");
}

#[test]
fn port_names() {
    let names = |p: u32| [None, Some("eth0".into()), Some("veth-1".into())][p as usize].clone();
    let number = |n: &str| ["", "eth0", "veth-1"].iter().position(|x| *x == n).map(|p| p as u32);
    for (text, port) in [("in_port=eth0", 1), ("in_port=\"veth-1\"", 2)] {
        let (key, mask) = parse_match(text, &number).unwrap();
        assert_eq!(Field::InPort.get(&key), port);
        assert_eq!(match_text(&key, &mask, &[], &names), text);
    }
}

fn kind() -> impl Strategy<Value = (u128, u128, bool)> {
    prop_oneof![
        Just((0x0800, 6, true)),
        Just((0x0800, 1, true)),
        Just((0x0800, 77, true)),
        Just((0x0800, 0, false)),
        Just((0x86dd, 58, true)),
        Just((0x86dd, 17, true)),
        Just((0x86dd, 0, false)),
        Just((0x0806, 2, true)),
        Just((0x8847, 0, false)),
        Just((0x1234, 0, false)),
    ]
}

/// The fields that a packet of the kind has and the text form can show.
fn fields(eth_type: u128, proto: u128) -> Vec<Field> {
    use Field::*;
    let mut all = vec![
        InPort,
        EthSrc,
        EthDst,
        VlanTci,
        Metadata,
        PktMark,
        ConjId,
        ActsetOutput,
        CtState,
        CtZone,
        CtMark,
        CtLabel,
        CtNwSrc,
        CtIpv6Dst,
        CtNwProto,
        CtTpSrc,
        TunId,
        TunSrc,
        TunIpv6Dst,
        TunGbpId,
        TunGbpFlags,
        TunErspanIdx,
        TunErspanVer,
        TunErspanDir,
        TunErspanHwid,
        TunGtpuFlags,
        TunGtpuMsgtype,
        Reg(0),
        Reg(7),
        Reg(15),
    ];
    match eth_type {
        0x0800 => all.extend([Ipv4Src, Ipv4Dst]),
        0x86dd => all.extend([Ipv6Src, Ipv6Dst, Ipv6Label]),
        0x0806 => all.extend([ArpSpa, ArpTpa, ArpSha, ArpTha]),
        0x8847 => all.extend([MplsLabel, MplsTc, MplsTtl, MplsBos]),
        _ => {}
    }
    if matches!(eth_type, 0x0800 | 0x86dd) {
        all.extend([IpDscp, IpEcn, IpTtl]);
        match proto {
            6 => all.extend([TcpSrc, TcpDst, TcpFlags]),
            17 => all.extend([TcpSrc, TcpDst]),
            1 => all.extend([Icmpv4Type, Icmpv4Code]),
            58 => all.extend([Icmpv6Type, Icmpv6Code, NdTarget, NdSll, NdTll, NdReserved]),
            _ => {}
        }
    }
    all
}

prop_compose! {
    fn any_match()(
        (eth_type, proto, exact) in kind(),
        picks in prop::collection::vec((any::<u8>(), any::<u128>(), any::<u128>()), 40),
    ) -> (Key, Mask) {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        for (field, (pick, value, bits)) in fields(eth_type, proto).into_iter().zip(picks) {
            // 0xff00 and above are reserved: text has them in OpenFlow 1.0's form.
            let port = field.format() == flow::Format::Port;
            field.set(&mut key, if port { value % 0xff00 } else { value });
            field.set(&mut mask, match pick % 5 {
                0 | 1 => 0,
                2 if field.maskable() => bits,
                3 if field.maskable() => !0 << (bits % field.bits() as u128),
                _ => !0,
            });
        }
        Field::EthType.set(&mut key, eth_type);
        Field::EthType.unwildcard(&mut mask);
        Field::IpProto.set(&mut key, proto);
        Field::IpProto.set(&mut mask, if exact { !0 } else { 0 });
        (key.masked(&mask), mask)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn reads_back((key, mask) in any_match()) {
        let text = match_text(&key, &mask, &[], &no_name);
        let back = parse_match(&text, &|_| None);
        prop_assert_eq!(back, Ok((key, mask)), "{}", text);
    }

    #[test]
    fn any_text_is_safe(text in "[a-z0-9_=,/|+():\" -]{0,60}") {
        let _ = parse_match(&text, &|_| None);
    }

    #[test]
    fn any_value_is_safe(
        field in prop::sample::select(flow::FIELDS),
        value in "[0-9a-fx/:.+|-]{0,20}",
    ) {
        if let Ok((key, mask)) = parse_match(&format!("{}={value}", field.name()), &|_| None) {
            match_text(&key, &mask, &[], &no_name);
            flow_text(&key, &[], &no_name);
        }
    }
}
