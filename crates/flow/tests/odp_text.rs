//! Datapath flow text against what OVS 3.1 prints, and read back.

use flow::{Field, Key, Mask, PortNo, at, exact_mask, flag, odp_key_text, odp_text, parse_odp};
use proptest::prelude::*;

fn no_name(_: PortNo) -> Option<String> {
    None
}

/// `dpctl/dump-flows -m` lines of OVS 3.1 (netdev datapath), and the same flow without `-m`.
const CASES: &[(&str, &str)] = &[
    (
        "skb_priority(0/0),skb_mark(0/0),ct_state(0/0),ct_zone(0/0),ct_mark(0/0),ct_label(0/0),\
         recirc_id(0),dp_hash(0/0),in_port(1),packet_type(ns=0,id=0),\
         eth(src=50:54:00:00:00:01/00:00:00:00:00:00,dst=50:54:00:00:00:02/00:00:00:00:00:00),\
         eth_type(0x0800),ipv4(src=1.1.1.1/0.0.0.0,dst=10.1.2.3/255.0.0.0,proto=6,tos=0/0,\
         ttl=64/0,frag=no),tcp(src=5/0,dst=80),tcp_flags(0/0)",
        "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x0800),\
         ipv4(dst=10.1.2.3/255.0.0.0,proto=6,frag=no),tcp(dst=80)",
    ),
    (
        "skb_priority(0/0),skb_mark(0/0),ct_state(0/0),ct_zone(0/0),ct_mark(0/0),ct_label(0/0),\
         recirc_id(0),dp_hash(0/0),in_port(1),packet_type(ns=0,id=0),\
         eth(src=50:54:00:00:00:01/00:00:00:00:00:00,dst=50:54:00:00:00:02/00:00:00:00:00:00),\
         eth_type(0x86dd),ipv6(src=fe80::1/::,dst=fe80::2/::,label=0/0,proto=58,tclass=0/0,\
         hlimit=255/0,frag=no),icmpv6(type=135,code=0/0),nd(target=fe80::1/::,\
         sll=00:00:00:00:00:01/00:00:00:00:00:00,tll=00:00:00:00:00:02/00:00:00:00:00:00)",
        "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x86dd),\
         ipv6(proto=58,frag=no),icmpv6(type=135)",
    ),
    (
        "skb_priority(0/0),skb_mark(0/0),ct_state(0/0),ct_zone(0/0),ct_mark(0/0),ct_label(0/0),\
         recirc_id(0),dp_hash(0/0),in_port(1),packet_type(ns=0,id=0),\
         eth(src=50:54:00:00:00:01/00:00:00:00:00:00,dst=50:54:00:00:00:02/00:00:00:00:00:00),\
         eth_type(0x8100),vlan(vid=5,pcp=3/0x0),encap(eth_type(0x0800),ipv4(src=1.1.1.1/0.0.0.0,\
         dst=10.1.2.3/255.0.0.0,proto=17,tos=0/0,ttl=64/0,frag=no),udp(src=5/0,dst=80/0))",
        "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x8100),vlan(vid=5,pcp=3/0x0),\
         encap(eth_type(0x0800),ipv4(dst=10.1.2.3/255.0.0.0,proto=17,frag=no))",
    ),
    (
        "skb_priority(0/0),skb_mark(0/0),ct_state(0/0),ct_zone(0/0),ct_mark(0/0),ct_label(0/0),\
         recirc_id(0),dp_hash(0/0),in_port(1),packet_type(ns=0,id=0),\
         eth(src=50:54:00:00:00:01/00:00:00:00:00:00,dst=50:54:00:00:00:02/00:00:00:00:00:00),\
         eth_type(0x0806),arp(sip=1.2.3.4/0.0.0.0,tip=1.2.3.5,op=1/0,\
         sha=50:54:00:00:00:01/00:00:00:00:00:00,tha=00:00:00:00:00:00/00:00:00:00:00:00)",
        "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x0806),arp(tip=1.2.3.5)",
    ),
    (
        "skb_priority(0/0),skb_mark(0/0),ct_state(0/0),ct_zone(0/0),ct_mark(0/0),ct_label(0/0),\
         recirc_id(0),dp_hash(0/0),in_port(1),packet_type(ns=0,id=0),\
         eth(src=50:54:00:00:00:01/00:00:00:00:00:00,dst=50:54:00:00:00:02/00:00:00:00:00:00),\
         eth_type(0x8847),mpls(label=5/0x0,tc=0/0,ttl=64/0x0,bos=1/0)",
        "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x8847)",
    ),
];

#[test]
fn a_list_of_no_tunnel_flags_says_that_there_are_none() {
    let (key, mask) =
        parse_odp("tunnel(tun_id=1,src=1.1.1.1,dst=2.2.2.2,flags())", &|_| None).unwrap();
    assert_eq!((key.u16(at::TUN_FLAGS), mask.u16(at::TUN_FLAGS)), (0, 0xffff));
}

/// As ovs-vswitchd 3.1 logs a missed packet, and the flow without wildcards that it makes of it.
#[test]
fn a_packets_key_and_a_flow_without_wildcards_print_as_ovs() {
    let context = "ct_zone(0),ct_mark(0),ct_label(0),recirc_id(0)";
    let packet = "in_port(1),packet_type(ns=0,id=0),\
         eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type(0x0800),ipv4(src=10.0.0.2,\
         dst=10.0.0.1,proto=1,tos=0,ttl=64,frag=no),icmp(type=8,code=0)";
    let (key, _) = parse_odp(packet, &|_| None).unwrap();
    let state = "skb_priority(0),skb_mark(0),ct_state";
    let missed = format!("{state}(0),{context},dp_hash(0),{packet}");
    assert_eq!(odp_key_text(&key, &no_name), missed);
    let flow = format!("{state}(-new-est-rel-rpl-inv-trk-snat-dnat),{context},{packet}");
    assert_eq!(odp_text(&key, &exact_mask(&key), false, &no_name), flow);
    let text = odp_text(&key, &exact_mask(&key), true, &no_name);
    assert!(text.starts_with(&format!("{state}(0/0xff),{context},dp_hash(0/0)")), "{text}");
}

#[test]
fn label_stack_entries_print_with_masks_if_one_is_partial() {
    let (mut key, mut mask) = (Key::ZERO, Mask::ZERO);
    key.set_u16(at::ETH_TYPE, 0x8847);
    key.set_u32(at::MPLS, 20 << 12 | 32);
    key.set_u32(at::IP_DST, 20 << 12 | 0x100 | 32);
    mask.set_u32(at::MPLS, !0);
    mask.set_u32(at::IP_DST, !0);
    let text = |mask: &Mask| odp_text(&key, mask, false, &no_name);
    let whole = "mpls(label=20,tc=0,ttl=32,bos=0,label=20,tc=0,ttl=32,bos=1)";
    assert!(text(&mask).ends_with(whole), "{}", text(&mask));
    mask.set_u32(at::MPLS, 0x100);
    let part =
        "mpls(label=20/0x0,tc=0/0,ttl=32/0x0,bos=0/1,label=20/0xfffff,tc=0/7,ttl=32/0xff,bos=1/1)";
    assert!(text(&mask).ends_with(part), "{}", text(&mask));
}

#[test]
fn prints_as_ovs() {
    for (verbose, short) in CASES {
        let (key, mask) = parse_odp(verbose, &|_| None).unwrap();
        assert_eq!(odp_text(&key, &mask, true, &no_name), *verbose);
        assert_eq!(odp_text(&key, &mask, false, &no_name), *short);
    }
}

#[test]
fn service_headers_print_and_read_back() {
    let start = "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x894f)";
    let contexts = "nsh(flags=0x02/0x03,ttl=63,mdtype=1,np=3,spi=0x1234,si=255,c1=0x11223344,\
                    c4=0x1/0x000000ff)";
    for nsh in [contexts, "nsh(mdtype=2,np=1,spi=0x7)", "nsh(si=0x80/0x80)"] {
        let text = format!("{start},{nsh}");
        let (key, mask) = parse_odp(&text, &|_| None).unwrap();
        assert_eq!(odp_text(&key, &mask, false, &no_name), text);
    }
    let (key, mut mask) = parse_odp(&format!("{start},{contexts}"), &|_| None).unwrap();
    let whole = "nsh(flags=2,ttl=63,mdtype=1,np=3,spi=0x1234,si=255,c1=0x11223344,c2=0x0,c3=0x0,\
                 c4=0x1)";
    assert!(odp_key_text(&key, &no_name).ends_with(whole));
    // What was read of a packet of another kind is not read of this one.
    mask.set_u16(at::ETH_TYPE, 0xffff);
    mask.set(at::NSH_FLAGS, [0; 8]);
    mask.set(at::NSH_C, [0; 16]);
    assert_eq!(odp_text(&key, &mask, false, &no_name), start);
    for wrong in ["nsh(frob=1)", "nsh(flags=256)", "nsh(spi=0x1000000)", "nsh(ttl)"] {
        assert!(parse_odp(&format!("{start},{wrong}"), &|_| None).is_err(), "{wrong}");
    }
}

#[test]
fn ethernet_or_bare() {
    let kind = |text| Field::PacketType.get(&parse_odp(text, &|_| None).unwrap().0);
    assert_eq!(kind("in_port(1)"), 0);
    let (llc, mask) = parse_odp("in_port(1),eth()", &|_| None).unwrap();
    assert_eq!((llc.u16(at::ETH_TYPE), mask.u16(at::ETH_TYPE)), (0x05ff, 0xffff));
    assert_eq!(kind("eth(),eth_type(0x0800)"), 0);
    assert_eq!(kind("in_port(1),eth_type(0x0800),ipv4(proto=6)"), 0x10800);
    assert_eq!(kind("packet_type(ns=1,id=0x86dd),eth_type(0x86dd)"), 0x186dd);
    // Out of a tunnel the key of a packet says it too, until the packet is looked up again.
    let bare = "tunnel(src=10.0.0.2),recirc_id(0),in_port(2),\
                packet_type(ns=1,id=0x800),eth_type(0x0800),ipv4(frag=no)";
    let (mut key, mut mask) = parse_odp(bare, &|_| None).unwrap();
    for k in [&mut key, &mut mask] {
        assert_eq!(k.u8(at::FLAGS) & flag::BARE, flag::BARE);
        k.set_u32(at::PACKET_TYPE, 0);
    }
    assert_eq!(odp_text(&key, &mask, false, &|_| None), bare);
    key.set_u32(at::RECIRC, 1);
    let text = odp_text(&key, &mask, false, &|_| None);
    assert!(text.contains("recirc_id(0x1),in_port(2),packet_type(ns=0,id=0),eth_type"), "{text}");
    // As it does of one that was in a network service header.
    key.set_u8(at::FLAGS, key.u8(at::FLAGS) | flag::UNWRAPPED);
    let text = odp_text(&key, &mask, false, &|_| None);
    assert!(text.contains("packet_type(ns=1,id=0x800),eth_type(0x0800)"), "{text}");
}

#[test]
fn ports_by_name() {
    let ports = |name: &str| (name == "p,1").then_some(7);
    let (key, mask) = parse_odp("in_port(\"p,1\")", &ports).unwrap();
    assert_eq!((key.u16(at::IN_PORT), mask.u16(at::IN_PORT)), (7, 0xffff));
    let text = odp_text(&key, &mask, false, &|_| Some("p,1".into()));
    assert_eq!(text, "in_port(\"p,1\"),packet_type(ns=0,id=0)");
    assert!(parse_odp("in_port(other)", &ports).is_err());
}

#[test]
fn refuses() {
    let deep = "encap(".repeat(100_000);
    for text in [
        "in_port",
        "in_port(1",
        "what(1)",
        "eth(src=1:2)",
        "ipv4(what=1)",
        "ipv4(src)",
        "ipv4(ttl=256)",
        "in_port(70000)",
        "vlan(vid=4096)",
        "vlan(vid=1),vlan(vid=2),vlan(vid=3)",
        "tunnel(what=1)",
        "tunnel(flags(nope))",
        "ipv4(frag=maybe)",
        &(deep + &")".repeat(100_000)),
    ] {
        let short = &text[..text.len().min(40)];
        assert!(parse_odp(text, &|_| None).is_err(), "{short}");
    }
}

fn fields(eth_type: u128, proto: u128) -> Vec<Field> {
    use Field::*;
    let mut all = vec![EthSrc, EthDst, PktMark, CtState, CtZone, CtMark, CtLabel];
    match eth_type {
        0x0800 => all.extend([Ipv4Src, Ipv4Dst]),
        0x86dd => all.extend([Ipv6Src, Ipv6Dst, Ipv6Label]),
        0x0806 => all.extend([ArpSpa, ArpTpa, ArpOp, ArpSha, ArpTha]),
        0x8847 => all.extend([MplsLabel, MplsTc, MplsTtl, MplsBos]),
        _ => {}
    }
    if matches!(eth_type, 0x0800 | 0x86dd) {
        all.extend([IpTos, IpTtl]);
        match proto {
            6 => all.extend([TcpSrc, TcpDst, TcpFlags]),
            17 | 132 => all.extend([TcpSrc, TcpDst]),
            1 | 58 => all.extend([Icmpv4Type, Icmpv4Code]),
            _ => {}
        }
    }
    all
}

fn kind() -> impl Strategy<Value = (u128, u128)> {
    prop::sample::select(vec![
        (0x0800, 6),
        (0x0800, 17),
        (0x0800, 1),
        (0x0800, 47),
        (0x86dd, 58),
        (0x86dd, 132),
        (0x0806, 0),
        (0x8847, 0),
        (0x1234, 0),
    ])
}

const TUNNEL: [Field; 12] = [
    Field::TunId,
    Field::TunSrc,
    Field::TunDst,
    Field::TunFlags,
    Field::TunGbpId,
    Field::TunGbpFlags,
    Field::TunErspanVer,
    Field::TunErspanIdx,
    Field::TunErspanDir,
    Field::TunErspanHwid,
    Field::TunGtpuFlags,
    Field::TunGtpuMsgtype,
];

fn mask_of(pick: u8, bits: u128) -> u128 {
    [0, bits, !0][usize::from(pick % 3)]
}

fn tag(key: &mut Key, mask: &mut Mask, at: usize, (value, bits): (u16, u16)) {
    key.set_u16(at, value | 0x1000);
    mask.set_u16(at, bits | 0x1000);
}

prop_compose! {
    fn any_flow()(
        (eth_type, proto) in kind(),
        picks in prop::collection::vec((any::<u8>(), any::<u128>(), any::<u128>()), 40),
        tags in prop::collection::vec(any::<(u16, u16)>(), 0..3),
        (tunnel, recirc, port) in any::<(bool, u32, u16)>(),
    ) -> (Key, Mask) {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        let mut all = fields(eth_type, proto);
        if tunnel {
            all.extend(TUNNEL);
            key.set_u8(at::FLAGS, flag::TUNNEL);
            mask.set_u8(at::FLAGS, flag::TUNNEL);
        }
        for (field, (pick, value, bits)) in all.into_iter().zip(picks) {
            use Field::*;
            let bits = mask_of(pick, bits);
            let flags = matches!(field, CtState | TcpFlags | TunFlags);
            // Only named flags are listed with their signs.
            let (value, bits) = match field {
                TunFlags => (value & bits & 0xf, bits & 0xf),
                _ if flags => (value & bits, bits),
                TunGbpId => (value | 1, bits),
                TunErspanVer if value % 3 == 0 => (0, 0),
                TunErspanVer => (value % 3, field.full()),
                // A version has fields of its own.
                TunErspanIdx if TunErspanVer.get(&key) != 1 => (0, 0),
                TunErspanDir | TunErspanHwid if TunErspanVer.get(&key) != 2 => (0, 0),
                TunGtpuFlags => (value | 1, bits | 1),
                _ => (value, bits),
            };
            field.set(&mut key, value);
            field.set(&mut mask, bits);
        }
        // A packet's tunnel has an id of 32 bits.
        key.set_u32(at::TUN_ID_HIGH, 0);
        mask.set_u32(at::TUN_ID_HIGH, 0);
        for (f, v) in [(Field::EthType, eth_type), (Field::IpProto, proto)] {
            if v != 0 {
                f.set(&mut key, v);
                f.unwildcard(&mut mask);
            }
        }
        if matches!(eth_type, 0x0800 | 0x86dd) {
            Field::IpFrag.unwildcard(&mut mask);
        }
        tags.iter().zip([at::VLAN, at::VLAN1]).for_each(|(t, a)| tag(&mut key, &mut mask, a, *t));
        key.set_u32(at::RECIRC, recirc);
        key.set_u16(at::IN_PORT, port);
        mask.set_u32(at::RECIRC, !0);
        mask.set_u16(at::IN_PORT, !0);
        Field::PacketType.unwildcard(&mut mask);
        (key, mask)
    }
}

#[test]
fn a_text_is_no_longer_than_it_may_be() {
    let (odp, of) = ("in_port(1),".repeat(6_000), "in_port=1,".repeat(7_000));
    let errors =
        [parse_odp(&odp, &|_| None).unwrap_err(), flow::parse_match(&of, &|_| None).unwrap_err()];
    assert!(errors.iter().all(|e| e.to_string() == "a flow has more than 65535 bytes"));
    assert!(flow::parse_match(&of[..flow::TEXT_MAX / 10 * 10], &|_| None).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn verbose_reads_back((key, mask) in any_flow()) {
        let text = odp_text(&key, &mask, true, &no_name);
        let (back, back_mask) = parse_odp(&text, &|_| None).map_err(|e| {
            TestCaseError::fail(format!("{text}: {e}"))
        })?;
        prop_assert_eq!(back, key, "{}", text);
        prop_assert_eq!(back_mask, mask, "{}", text);
    }

    #[test]
    fn short_reads_back((key, mask) in any_flow()) {
        let text = odp_text(&key, &mask, false, &no_name);
        let (back, back_mask) = parse_odp(&text, &|_| None).map_err(|e| {
            TestCaseError::fail(format!("{text}: {e}"))
        })?;
        prop_assert_eq!(back_mask, mask, "{}", text);
        prop_assert_eq!(back.masked(&mask), key.masked(&mask), "{}", text);
    }

    #[test]
    fn any_text_is_safe(text in "[a-z0-9_=,/|+():\" ]{0,60}") {
        let _ = parse_odp(&text, &|_| None);
    }

    #[test]
    fn any_attribute_is_safe(
        name in prop::sample::select(vec![
            "tunnel", "vlan", "eth", "ipv4", "mpls", "in_port", "ct_state", "nd", "packet_type",
        ]),
        body in "[a-z0-9_=,/|+():.\"]{0,30}",
    ) {
        let _ = parse_odp(&format!("{name}({body})"), &|_| None);
    }
}
