//! Network service headers that are put in front of packets, written, and removed.

use crate::tests::{Lab, apply, flow, matching, out, packet};
use ::action::{Op, ops_text};
use Action::{Decap, Encap};
use flow::{Field, at, flag};
use openflow::{Action, Header, NshProperty, OfError, Subfield, packet_type};
use telemetry::Drop;

const UDP: &str = "in_port=1,udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02";
const NSH: &str = "in_port=1,dl_type=0x894f,nsh_ttl=63,nsh_mdtype=1,nsh_np=3,nsh_spi=0x7,nsh_si=9";
const ETHERNET: Action = Encap(Header::Ethernet);
const ADDRESSES: &str = "push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00)";

fn nsh(properties: Vec<NshProperty>) -> Action {
    Encap(Header::nsh(properties).unwrap())
}

fn set(field: Field, value: u128) -> Action {
    Action::SetField { field, value, mask: field.full() }
}

/// What a flow with these actions does with the packet, and why it is dropped.
fn decide(list: &[Action], key: &flow::Key) -> (String, Option<Drop>) {
    let mut lab = Lab::new();
    lab.add(flow(0, 100, "", apply(list.to_vec())));
    let d = lab.decide(key);
    (ops_text(&d.ops), d.drop)
}

fn ops(list: &[Action], text: &str) -> String {
    decide(list, &packet(text)).0
}

fn pushed(before: &str, np: u8, rest: &str) -> String {
    format!("{before}push_nsh(flags=0,ttl=63,mdtype=1,np={np},{rest}),{ADDRESSES},12")
}

#[test]
fn the_next_protocol_is_what_is_inside() {
    let plain = "spi=0x0,si=255,c1=0x0,c2=0x0,c3=0x0,c4=0x0";
    let header = || nsh(vec![]);
    assert_eq!(ops(&[header(), ETHERNET, out(2)], UDP), pushed("", 3, plain));
    let bare = [Decap(None), header(), ETHERNET, out(2)];
    assert_eq!(ops(&bare, UDP), pushed("pop_eth,", 1, plain));
    assert_eq!(ops(&bare, "in_port=1,udp6"), pushed("pop_eth,", 2, plain));
    assert_eq!(ops(&bare, NSH), pushed("pop_eth,", 4, plain));
    assert_eq!(decide(&bare, &packet("in_port=1,arp")), ("drop".into(), Some(Drop::PacketType)));
    // A tag is inside, and none is in front.
    let push = Action::PushVlan { ethertype: 0x8100 };
    let text = ops(&[push, header(), ETHERNET, out(2)], &format!("{UDP},dl_vlan=5"));
    assert_eq!(text, pushed("push_vlan(vid=0,pcp=0),", 3, plain));
    // Without an Ethernet header no port takes it.
    assert_eq!(decide(&[header(), out(2)], &packet(UDP)), ("drop".into(), Some(Drop::PacketType)));
}

#[test]
fn a_new_header_takes_what_is_written_to_it_and_tlvs() {
    let list = [nsh(vec![]), set(Field::NshSpi, 5), set(Field::NshC3, 6), ETHERNET, out(2)];
    let text = pushed("", 3, "spi=0x5,si=255,c1=0x0,c2=0x0,c3=0x6,c4=0x0");
    assert_eq!(ops(&list, UDP), text);
    let tlv = |n| NshProperty::Tlv { class: 0x1000, kind: 10, value: vec![n; 3] };
    let all = vec![NshProperty::MdType(1), tlv(1), NshProperty::MdType(2), tlv(2)];
    let text = ops(&[nsh(all), set(Field::NshC1, 7), ETHERNET, out(2)], UDP);
    let md2 = "mdtype=2,np=3,spi=0x0,si=255,md2=0x10000a030101010010000a0302020200),";
    assert!(text.starts_with(&format!("push_nsh(flags=0,ttl=63,{md2}")), "{text}");
    // With metadata of type 1 they have no effect.
    let text = ops(&[nsh(vec![tlv(1)]), ETHERNET, out(2)], UDP);
    assert!(text.starts_with("push_nsh(flags=0,ttl=63,mdtype=1,"), "{text}");
    let many = vec![NshProperty::Tlv { class: 1, kind: 1, value: vec![0; 120] }; 2];
    assert_eq!(Header::nsh(many), Err(OfError::ActBadEdProp));
}

#[test]
fn one_megaflow_is_for_all_that_goes_into_a_header() {
    let mut lab = Lab::new();
    let address = set(Field::EthDst, 9);
    let list = vec![nsh(vec![]), set(Field::NshSi, 4), ETHERNET, address, out(2)];
    lab.add(flow(0, 100, "", apply(list)));
    let d = lab.decide(&packet(UDP));
    assert_eq!(d.mask.get::<8>(at::NSH_FLAGS), [0; 8]);
    assert_eq!((d.mask.get::<16>(at::NSH_C), d.mask.u8(at::PROTO)), ([0; 16], 0));
    // As in OVS, an address that is written is looked at.
    assert_eq!((d.mask.get::<6>(at::ETH_DST), d.mask.get::<6>(at::ETH_SRC)), ([0xff; 6], [0; 6]));
}

#[test]
fn fields_are_matched_written_and_counted_down() {
    let mut lab = Lab::new();
    let list = vec![set(Field::NshFlags, 2), set(Field::NshC2, 3), Action::DecNshTtl, out(2)];
    lab.add(flow(0, 100, "dl_type=0x894f,nsh_spi=7,nsh_c1=0/0xff", apply(list)));
    let d = lab.decide(&packet(NSH));
    let text = "set(nsh(flags=2,ttl=62,spi=0x7,c1=0x0/0x000000ff,c2=0x3)),12";
    assert_eq!(ops_text(&d.ops), text);
    assert_eq!(d.mask.u32(at::NSH_C), 0xff);
    // Metadata of type 2 has no contexts.
    let text = ops_text(&lab.decide(&packet(&NSH.replace("mdtype=1", "mdtype=2"))).ops);
    assert_eq!(text, "set(nsh(flags=2,ttl=62,spi=0x7)),12");
    for (ttl, why) in [(1, Some(Drop::TtlExpired)), (0, Some(Drop::TtlExpired)), (2, None)] {
        let d = lab.decide(&packet(&NSH.replace("ttl=63", &format!("ttl={ttl}"))));
        assert_eq!(d.drop, why, "{ttl}");
    }
    assert_eq!(ops_text(&lab.decide(&packet(&NSH.replace("spi=0x7", "spi=0x8"))).ops), "drop");
    // A packet of another protocol has no TTL of this kind.
    assert_eq!(decide(&[Action::DecNshTtl, out(2)], &packet(UDP)).0, "drop");
}

#[test]
fn what_was_inside_is_parsed_before_anything_else() {
    let mut lab = Lab::new();
    lab.add(flow(0, 100, "dl_type=0x894f", apply(vec![Decap(None), Decap(None), out(2)])));
    let framed = lab.decide(&packet(NSH));
    let [Op::PopNsh { framed: true }, Op::Recirc(id)] = framed.ops[..] else {
        panic!("{:?}", framed.ops)
    };
    assert_eq!(framed.mask.u8(at::NSH_NP), 0xff);
    let mut inner = packet(UDP);
    inner.set_u32(at::RECIRC, id);
    let d = lab.decide(&inner);
    assert_eq!((ops_text(&d.ops), d.mask.u8(at::FLAGS) & flag::UNWRAPPED), ("12".into(), 0));
    // A packet without an Ethernet header is matched as one, and its key says so.
    let bare = lab.decide(&packet(&NSH.replace("np=3", "np=1")));
    let [Op::PopNsh { framed: true }, Op::Recirc(other)] = bare.ops[..] else {
        panic!("{:?}", bare.ops)
    };
    assert_ne!(other, id);
    inner.set_u32(at::RECIRC, other);
    let d = lab.decide(&inner);
    assert_eq!((ops_text(&d.ops), d.drop), ("drop".into(), Some(Drop::PacketType)));
    assert_ne!(d.mask.u8(at::FLAGS) & flag::UNWRAPPED, 0);
    for np in [0, 5, 255] {
        let d = lab.decide(&packet(&NSH.replace("np=3", &format!("np={np}"))));
        assert_eq!((ops_text(&d.ops), d.drop), ("drop".into(), Some(Drop::PacketType)), "{np}");
    }
    // A header that was just put there needs no Ethernet header to be removed.
    let text = ops(&[nsh(vec![]), Decap(None), out(2)], UDP);
    assert!(text.contains("),pop_nsh(),recirc("), "{text}");
}

#[test]
fn a_copy_that_gets_a_header_leaves_the_packet_alone() {
    let copy = Action::Clone(vec![nsh(vec![]), set(Field::NshSi, 1), ETHERNET, out(2)]);
    let text = ops(&[copy, out(3)], UDP);
    assert!(text.starts_with("clone(push_nsh(") && text.ends_with(",12),13"), "{text}");
    let copy = Action::Clone(vec![set(Field::NshSi, 1), ETHERNET, out(2)]);
    let text = ops(&[nsh(vec![]), set(Field::NshSpi, 4), copy, ETHERNET, out(3)], UDP);
    let first = "push_nsh(flags=0,ttl=63,mdtype=1,np=3,spi=0x4,si=255,c1=0x0,c2=0x0,c3=0x0,c4=0x0)";
    assert!(text.starts_with(&format!("{first},set(nsh(")), "{text}");
    assert!(text.contains("si=1)),push_eth("), "{text}");
    assert!(text.contains(",12,set(nsh(") && text.contains("si=255"), "{text}");
}

#[test]
fn packets_of_all_lengths_get_the_header_that_was_put_on_in_front() {
    let dst = Subfield { field: Field::Reg(0), ofs: 0, bits: 1 };
    let check = Action::CheckPktLarger { len: 100, dst };
    let resubmit = Action::Resubmit { in_port: None, table: Some(1), ct: false };
    let mut lab = Lab::new();
    let list = [ETHERNET, out(2)];
    lab.add(flow(0, 100, "", apply(vec![nsh(vec![]), check, resubmit])));
    let longer = [vec![set(Field::NshSi, 9)], list.to_vec()].concat();
    lab.add(flow(1, 100, "reg0=1,packet_type=(1,0x894f)", apply(longer)));
    lab.add(flow(1, 100, "reg0=0,packet_type=(1,0x894f)", apply(list.to_vec())));
    let header = "flags=0,ttl=63,mdtype=1,np=3,spi=0x0,si=255,c1=0x0,c2=0x0,c3=0x0,c4=0x0";
    let end = format!("{ADDRESSES},12");
    let branches = format!("gt(set(nsh(si=9)),{end}),le({end})");
    let text = format!("push_nsh({header}),check_pkt_len(size=114,{branches})");
    assert_eq!(lab.send(UDP), text);
}

#[test]
fn flows_name_a_packet_type_instead_of_an_ethertype() {
    let mut lab = Lab::new();
    let kind = packet_type::of_ethertype(wire::ETH_NSH);
    lab.add(flow(
        0,
        100,
        "in_port=1,ip",
        apply(vec![nsh(vec![]), Action::Resubmit { in_port: None, table: Some(1), ct: false }]),
    ));
    let named = "packet_type=(1,0x894f),nsh_si=255";
    assert_eq!(matching(named).key.u32(at::PACKET_TYPE), kind);
    lab.add(flow(1, 9, named, apply(vec![ETHERNET, out(2)])));
    lab.add(flow(1, 10, "dl_type=0x894f", apply(vec![out(3)])));
    let text = ops_text(&lab.decide(&packet(UDP)).ops);
    assert!(text.starts_with("push_nsh(") && text.ends_with(",12"), "{text}");
}
