//! `encap` and `decap`, as ovs-vswitchd 3.1 translates them.

use super::{Lab, apply, flow, group, matching, out, packet};
use ::action::{Op, ops_text};
use Action::{Decap, Encap};
use flow::{Field, Key, LABELS, at};
use openflow::*;
use telemetry::Drop;

const UDP: &str = "in_port=1,udp,dl_src=50:54:00:00:00:01,dl_dst=50:54:00:00:00:02,nw_ttl=9";
const ETHERNET: Action = Encap(Header::Ethernet);
const MPLS: Action = Encap(Header::Mpls);
const FRAME: Action = Decap(Some(packet_type::ETHERNET));

fn inside(ethertype: u16) -> Action {
    Decap(Some(packet_type::of_ethertype(ethertype)))
}

fn label(n: u32) -> Action {
    Action::SetMplsLabel(n)
}

fn resubmit(table: u8) -> Action {
    Action::Resubmit { in_port: None, table: Some(table), ct: false }
}

fn mpls(bottom: bool) -> Key {
    let bos = u8::from(bottom);
    packet(&format!(
        "in_port=1,mpls,dl_src=50:54:00:00:00:01,dl_dst=50:54:00:00:00:02,mpls_label=7,mpls_ttl=9,mpls_bos={bos}"
    ))
}

/// What becomes of a packet that these actions are for.
fn decide(list: &[Action], key: &Key) -> (String, Option<Drop>) {
    let mut lab = Lab::new();
    lab.add(flow(0, 100, "", apply(list.to_vec())));
    let d = lab.decide(key);
    (ops_text(&d.ops), d.drop)
}

fn ops(list: &[Action], key: &Key) -> String {
    decide(list, key).0
}

#[test]
fn a_frame_gets_an_entry_and_a_header_in_front() {
    let set = |field, value| Action::SetField { field, value, mask: u128::MAX >> 80 };
    let list = [MPLS, label(2), ETHERNET, set(Field::EthDst, 2), set(Field::EthSrc, 1), out(2)];
    let text = "add_mpls(label=2,tc=0,ttl=64,bos=1,eth_type=0x8847),\
                push_eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),12";
    assert_eq!(ops(&list, &packet(UDP)), text);
    let zero = "push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00)";
    let two = [MPLS, label(3), Encap(Header::MplsMulticast), label(2), ETHERNET, out(2)];
    let text = format!(
        "add_mpls(label=3,tc=0,ttl=64,bos=1,eth_type=0x8847),{zero},\
         push_mpls(label=2,tc=0,ttl=64,bos=0,eth_type=0x8848),12"
    );
    assert_eq!(ops(&two, &packet(UDP)), text);
    // Tags are inside; the header has none.
    let tagged = packet(&format!("{UDP},dl_vlan=5"));
    let text = format!("add_mpls(label=0,tc=0,ttl=64,bos=1,eth_type=0x8847),{zero},12");
    assert_eq!(ops(&[MPLS, ETHERNET, out(2)], &tagged), text);
    let push = Action::PushVlan { ethertype: 0x8100 };
    let text = format!("{},push_vlan(vid=0,pcp=0),12", text.strip_suffix(",12").unwrap());
    assert_eq!(ops(&[MPLS, ETHERNET, push, out(2)], &tagged), text);
    // A frame of MPLS is a frame as any other.
    assert!(ops(&[MPLS, ETHERNET, out(2)], &mpls(true)).starts_with("add_mpls(label=0,tc=0"));
    // What was changed before is inside.
    let dst = set(Field::EthDst, 9);
    let text = ops(&[dst, MPLS, ETHERNET, out(2)], &packet(UDP));
    assert!(text.starts_with("set(eth(dst=00:00:00:00:00:09)),add_mpls"), "{text}");
}

#[test]
fn a_packet_without_its_header_gets_an_entry_and_a_new_one() {
    let addresses = "set(eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00)),12";
    assert_eq!(ops(&[Decap(None), ETHERNET, out(2)], &packet(UDP)), addresses);
    let text = format!("push_mpls(label=0,tc=0,ttl=64,bos=1,eth_type=0x8847),{addresses}");
    assert_eq!(ops(&[Decap(None), MPLS, ETHERNET, out(2)], &packet(UDP)), text);
    let text = format!("push_mpls(label=7,tc=0,ttl=9,bos=0,eth_type=0x8847),{addresses}");
    assert_eq!(ops(&[Decap(None), MPLS, ETHERNET, out(2)], &mpls(true)), text);
    let list = [Decap(None), MPLS, ETHERNET, out(2)];
    let v6 = packet("in_port=1,udp6");
    assert!(ops(&list, &v6).starts_with("push_mpls(label=2,"));
    // Tags that it cannot have are not pushed, and its TTL is the packet's.
    let odd = [Decap(None), Action::PushVlan { ethertype: 0x8100 }, Action::SetIpTtl(3)];
    let text = ops(&[&odd[..], &[ETHERNET, out(2)]].concat(), &packet(UDP));
    let addresses = addresses.strip_suffix(",12").unwrap();
    assert_eq!(text, format!("{addresses},set(ipv4(ttl=3)),12"));
}

#[test]
fn what_a_copy_changes_is_not_in_the_packet_around_it() {
    let push = Action::PushMpls { ethertype: 0x8847 };
    let copy = Action::Clone(vec![label(5), push.clone(), out(2)]);
    let text = ops(&[push, copy, out(3)], &packet(UDP));
    let start = "push_mpls(label=0,tc=0,ttl=9,bos=1,eth_type=0x8847),clone(set(mpls(label=5,";
    assert!(text.starts_with(start) && text.ends_with(",12),13"), "{text}");
}

#[test]
fn the_frame_behind_an_entry_is_parsed_before_anything_else() {
    let mut lab = Lab::new();
    lab.add(flow(0, 100, "mpls", apply(vec![Decap(None), FRAME, out(2)])));
    let d = lab.decide(&mpls(true));
    let [Op::DecapMpls, Op::Recirc(id)] = d.ops[..] else { panic!("{:?}", d.ops) };
    assert_eq!(d.mask.u32(at::MPLS) & 0x100, 0x100);
    let mut inner = packet("in_port=1,tcp,dl_dst=00:00:00:00:00:09");
    inner.set_u32(at::RECIRC, id);
    assert_eq!(ops_text(&lab.decide(&inner).ops), "12");

    let text = ops(&[Decap(None), inside(0x8847), FRAME, out(2)], &stack(&[0, 1]));
    let start = "pop_mpls(eth_type=0x8847),pop_eth,pop_mpls(eth_type=0x6558),recirc(";
    assert!(text.starts_with(start), "{text}");
    let text = ops(&[MPLS, ETHERNET, Decap(None), FRAME, out(2)], &packet(UDP));
    assert!(text.contains("),pop_eth,pop_mpls(eth_type=0x6558),recirc("), "{text}");
}

#[test]
fn a_packet_stays_without_header_when_it_is_parsed_again() {
    let mut lab = Lab::new();
    let list = vec![Decap(None), inside(0x800), resubmit(1)];
    lab.add(flow(0, 100, "mpls", apply(list)));
    lab.add(flow(1, 9, "ip", apply(vec![out(3)])));
    lab.add(flow(1, 8, "dl_dst=50:54:00:00:00:02", apply(vec![out(3)])));
    let named = "packet_type=(1,0x800),nw_src=10.0.0.1";
    lab.add(flow(1, 7, named, apply(vec![ETHERNET, out(2)])));
    let d = lab.decide(&mpls(true));
    let [Op::PopMpls { ethertype: 0x800 }, Op::Recirc(id)] = d.ops[..] else {
        panic!("{:?}", d.ops)
    };
    // The addresses in memory mean nothing.
    let mut again = packet(&format!("{UDP},nw_src=10.0.0.1"));
    again.set_u32(at::RECIRC, id);
    let zero = "push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00)";
    assert_eq!(ops_text(&lab.decide(&again).ops), format!("{zero},12"));
    again.set_u32(at::IP_SRC, 5);
    assert_eq!(ops_text(&lab.decide(&again).ops), "drop");
    // Flows on headers that name no type, and those that name others, are not about it. Flows on no
    // header are.
    lab.add(flow(1, 6, "reg0=0", apply(vec![ETHERNET, out(4)])));
    assert_eq!(ops_text(&lab.decide(&again).ops), format!("{zero},14"));
    lab.add(flow(1, 8, "in_port=1", apply(vec![ETHERNET, out(2)])));
    assert_eq!(ops_text(&lab.decide(&again).ops), format!("{zero},12"));
    again.set(at::IP_SRC, [10, 0, 0, 1]);
    lab.add(flow(1, 5, "", apply(vec![ETHERNET, out(4)])));
    assert_eq!(ops_text(&lab.decide(&again).ops), format!("{zero},12"));
    let dump = lab.dump();
    assert_eq!(dump.len(), 7);
    assert_eq!(lab.send("in_port=1,udp"), "drop");
}

#[test]
fn the_packet_type_selects_flows_on_header_fields() {
    let mut lab = Lab::new();
    let bare = "packet_type=(1,0x800),nw_src=10.0.0.1";
    for text in ["", "eth", "in_port=1", "reg0=3", "reg0=3,eth", "dl_src=1:2:3:4:5:6", "ip", bare] {
        lab.add(flow(0, 9, text, apply(vec![out(2)])));
    }
    assert!(matching("eth").covers(&matching("ip")));
    assert!(!matching("eth").covers(&matching("reg0=3")));
    let delete = |text| FlowMod { command: FlowModCommand::Delete, ..flow(0, 0, text, vec![]) };
    lab.add(delete("eth"));
    let left: Vec<_> = lab.dump().into_iter().map(|f| f.matching).collect();
    assert_eq!(left, ["", "in_port=1", "reg0=3", bare].map(matching));
}

#[test]
fn ports_take_no_packet_without_ethernet_header() {
    for list in [[Decap(None), out(2)], [MPLS, out(2)], [MPLS, Action::output(port::FLOOD)]] {
        let (text, why) = decide(&list, &packet(UDP));
        assert_eq!((text.as_str(), why), ("drop", Some(Drop::PacketType)), "{list:?}");
    }
    let normal = Action::output(port::NORMAL);
    assert_eq!(ops(&[Decap(None), normal], &packet(UDP)), "drop");
    assert_eq!(ops(&[out(3), Decap(None), out(2)], &packet(UDP)), "13");
    let copy = Action::Clone(vec![Decap(None), out(2)]);
    assert_eq!(ops(&[copy, out(3)], &packet(UDP)), "13");
    let copy = Action::Clone(vec![MPLS, ETHERNET, out(2)]);
    let text = ops(&[copy, out(3)], &packet(UDP));
    assert!(text.starts_with("clone(add_mpls(") && text.ends_with(",12),13"), "{text}");
}

#[test]
fn what_does_not_fit_the_packet_ends_it() {
    let tag = Action::PushVlan { ethertype: 0x8100 };
    let pop = |n: u16| Decap(Some(u32::from(n)));
    for list in [
        vec![out(3), ETHERNET, out(2)],
        vec![out(3), Decap(None), Decap(None), out(2)],
        vec![out(3), tag.clone(), Decap(None), out(2)],
        vec![out(3), tag.clone(), tag, Decap(None), out(2)],
        vec![Action::Clone(vec![Decap(None), pop(3)]), out(2)],
        vec![
            Decap(None),
            Action::Controller {
                max_len: 9,
                reason: Reason::Action,
                id: 0,
                userdata: vec![],
                pause: true,
                meter: None,
            },
        ],
    ] {
        let (text, why) = decide(&list, &packet(UDP));
        assert_eq!((text.as_str(), why), ("drop", Some(Drop::PacketType)), "{list:?}");
    }
}

#[test]
fn an_action_set_takes_off_before_it_puts_on() {
    let mut lab = Lab::new();
    let list = vec![out(2), MPLS, ETHERNET, Decap(None)];
    lab.add(flow(0, 100, "", vec![Instruction::Write(list)]));
    let zero = "set(eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00))";
    assert_eq!(lab.send(UDP), format!("{zero},12"));
}

#[test]
fn controllers_see_the_packet_s_type() {
    let mut lab = Lab::new();
    let to = Action::Controller {
        max_len: 0xffff,
        reason: Reason::Action,
        id: 0,
        userdata: vec![],
        pause: false,
        meter: None,
    };
    lab.add(flow(0, 100, "", apply(vec![to.clone(), Decap(None), to])));
    let d = lab.decide(&packet(UDP));
    let types = d.ops.iter().map(|op| {
        let Op::Punt(p) = op else { panic!("{op:?}") };
        let context = p.context.downcast_ref::<crate::PacketInContext>().unwrap();
        context.fields_of(&packet(UDP)).key.u32(at::PACKET_TYPE)
    });
    let types: Vec<u32> = types.collect();
    assert_eq!(types, [packet_type::ETHERNET, packet_type::of_ethertype(0x800)]);
}

/// Packets without an Ethernet header are sent, too, if their type is known.
#[test]
fn controllers_send_packets_of_any_type() {
    let mut lab = Lab::new();
    let mut send = |ethertype: u16, actions: &[Action]| {
        let (mut matching, actions) = (Match::default(), actions.to_vec());
        matching.key.set_u32(at::PACKET_TYPE, packet_type::of_ethertype(ethertype));
        let p = PacketOut { buffer_id: NO_BUFFER, matching, actions, data: vec![9; 60] };
        let p = p.in_memory();
        assert_eq!(p.data[..12], [0; 12]);
        assert_eq!((&p.data[12..14], &p.data[14..]), (&ethertype.to_be_bytes()[..], &[9; 60][..]));
        let mut key = packet(UDP);
        key.set(at::ETH_DST, [0; 12]);
        lab.sw.packet_out(lab.br, &p, &key).map(|d| ops_text(&d.ops))
    };
    assert_eq!(send(0x800, &[out(2)]), Ok("drop".into()));
    let header = [ETHERNET, Action::SetEthDst([9; 6]), out(2)];
    let want = "push_eth(src=00:00:00:00:00:00,dst=09:09:09:09:09:09),12";
    assert_eq!(send(0x800, &header), Ok(want.into()));
    for ethertype in [0, 5, 0x8100, 0x88a8] {
        assert_eq!(send(ethertype, &header), Err(OfError::BadPacket));
    }
}

#[test]
fn a_bucket_that_does_not_fit_ends_alone() {
    let mut lab = Lab::new();
    let mut both = group(1, GroupType::All, &[(2, 1), (3, 1)]);
    both.buckets[0].actions.insert(0, ETHERNET);
    lab.sw.group_mod(lab.br, &both, 0).unwrap();
    lab.add(flow(0, 100, "", apply(vec![out(4), Action::Group(1), out(2)])));
    assert_eq!(lab.send(UDP), "14,13,12");
}

#[test]
fn a_packet_is_as_long_as_what_is_left_of_it() {
    let dst = Subfield { field: Field::Reg(0), ofs: 0, bits: 1 };
    let list = [Decap(None), Action::CheckPktLarger { len: 100, dst }, ETHERNET, out(2)];
    assert!(ops(&list, &packet(UDP)).starts_with("check_pkt_len(size=114,"));
}

#[test]
fn a_trace_shows_the_packet_s_type() {
    let mut lab = Lab::new();
    lab.add(flow(0, 100, "", apply(vec![Decap(None), out(2)])));
    lab.add(flow(0, 101, "packet_type=(1,0x8847)", apply(vec![Decap(None), Decap(None)])));
    let trace = |text: &str| {
        lab.sw
            .trace(lab.br, &packet(text), &crate::Options::default(), &crate::TraceStyle::default())
            .unwrap()
    };
    let text = trace("in_port=1,udp,nw_src=1.2.3.4");
    assert!(
        text.contains("\nFinal flow: packet_type=(1,0x800),in_port=1,nw_src=1.2.3.4,"),
        "{text}"
    );
    let text = trace("in_port=1,packet_type=(1,0x8847)");
    assert!(text.contains("\n 0. packet_type=(1,0x8847), priority 101\n    decap()\n"), "{text}");
    let end = "\nTranslation failed (Unsupported packet type), packet is dropped.\n";
    assert!(trace("in_port=1,udp,dl_vlan=3").ends_with(end));
}

/// Fields read in headers that we pushed are not in the packet's mask.
#[test]
fn one_megaflow_is_for_all_frames_that_go_into_an_entry() {
    let mut lab = Lab::new();
    let wrap = [MPLS, label(2), ETHERNET, Action::SetEthDst([9; 6]), resubmit(1)];
    lab.add(flow(0, 100, "in_port=1", apply(wrap.to_vec())));
    let same = [Action::Clone(wrap.to_vec()), resubmit(2)];
    lab.add(flow(0, 100, "in_port=2", apply(same.to_vec())));
    lab.add(flow(1, 100, "mpls,dl_dst=09:09:09:09:09:09", apply(vec![out(3)])));
    lab.add(flow(2, 100, "dl_src=50:54:00:00:00:01", apply(vec![out(4)])));
    let d = lab.decide(&packet(UDP));
    assert_eq!(d.ops.len(), 2);
    let addresses = d.mask.get::<12>(at::ETH_DST);
    assert_eq!((addresses, d.mask.u32(at::IP_SRC)), ([0; 12], 0));
    let d = lab.decide(&packet(&UDP.replace("in_port=1", "in_port=2")));
    assert!(ops_text(&d.ops).ends_with(",13),14"), "{:?}", d.ops);
    let addresses = (d.mask.get::<6>(at::ETH_DST), d.mask.get::<6>(at::ETH_SRC));
    assert_eq!((addresses, d.mask.u32(at::IP_SRC)), (([0; 6], [0xff; 6]), 0));
    // An entry behind the packet's own header: addresses are read, the fields behind them are not.
    let push = [Action::PushMpls { ethertype: 0x8847 }, label(2), resubmit(1), resubmit(2)];
    lab.add(flow(0, 100, "in_port=3", apply(push.to_vec())));
    let d = lab.decide(&packet(&UDP.replace("in_port=1", "in_port=3")));
    assert!(ops_text(&d.ops).ends_with(",14"), "{:?}", d.ops);
    assert_ne!(d.mask.get::<12>(at::ETH_DST), [0; 12]);
    assert_eq!((d.mask.u32(at::IP_SRC), d.mask.u8(at::TTL)), (0, 0xff));
}

/// As ovs-vswitchd 3.1: three entries fit.
#[test]
fn a_fourth_entry_drops_the_packet() {
    let push = || Action::PushMpls { ethertype: 0x8847 };
    let pop = || Action::PopMpls { ethertype: 0x8847 };
    let too_many = || (String::from("drop"), Some(Drop::TooManyLabels));
    let three = [push(), push(), push(), out(2)];
    assert!(ops(&three, &packet(UDP)).ends_with(",12"));
    let four = [out(3), push(), push(), push(), push(), out(2)];
    assert_eq!(decide(&four, &packet(UDP)), too_many());
    let two_more = [push(), push(), out(2)];
    assert!(ops(&two_more, &mpls(true)).ends_with(",12"));
    assert_eq!(decide(&two_more, &stack(&[0, 1])), too_many());
    let there_and_back = [push(), pop(), push(), pop(), push(), out(2)];
    assert!(ops(&there_and_back, &stack(&[0, 1])).ends_with(",12"));
    let encap = [MPLS, MPLS, MPLS, MPLS, ETHERNET, out(2)];
    assert_eq!(decide(&encap, &packet(UDP)), too_many());
    assert!(ops(&encap[1..], &packet(UDP)).ends_with(",12"));
    let copy = [Action::Clone(four[1..].to_vec()), out(3)];
    assert_eq!(decide(&copy, &packet(UDP)), too_many());
}

#[test]
fn an_entry_of_more_than_three_is_not_removed() {
    let pop = |ethertype| Action::PopMpls { ethertype };
    let too_many = || (String::from("drop"), Some(Drop::TooManyLabels));
    for list in [[pop(0x8847), out(2)], [pop(0x800), out(2)]] {
        assert_eq!(decide(&list, &stack(&[0, 0, 0])), too_many());
        assert!(decide(&list, &stack(&[0, 0, 1])).1.is_none());
    }
    let bare = [Decap(None), FRAME, out(2)];
    assert_eq!(decide(&bare, &stack(&[0, 0, 0])), too_many());
    // The third entry becomes the second one.
    let pops = [pop(0x8847), pop(0x8847), Action::DecMplsTtl, out(2)];
    assert_eq!(
        ops(&pops, &stack(&[0, 0, 1])),
        "pop_mpls(eth_type=0x8847),pop_mpls(eth_type=0x8847),set(mpls(label=7,tc=0,ttl=8,bos=1)),12"
    );
}

/// A packet with these bottom-of-stack bits.
fn stack(bits: &[u32]) -> Key {
    let mut key = mpls(bits[0] != 0);
    for (place, bit) in flow::LABELS.iter().zip(bits).skip(1) {
        key.set_u32(*place, 7 << 12 | bit << 8 | 9);
    }
    key
}

#[test]
fn a_controllers_packet_has_the_tunnel_fields_that_it_was_sent_with() {
    let mut lab = Lab::new();
    let tunnel = "tun_id=5,tun_src=1.1.1.1,tun_dst=2.2.2.2,tun_gbp_id=1,tun_gbp_flags=3";
    lab.add(flow(0, 1, tunnel, apply(vec![out(2)])));
    let mut sent = |fields: &str| {
        let (actions, data) = (vec![resubmit(0)], vec![]);
        let p = PacketOut { buffer_id: NO_BUFFER, matching: matching(fields), actions, data };
        ops_text(&lab.sw.packet_out(lab.br, &p, &packet("in_port=1,udp")).unwrap().ops)
    };
    assert_eq!(sent(&format!("in_port=1,{tunnel}")), "12");
    assert_eq!(sent("in_port=1,tun_id=5"), "drop");
}

#[test]
fn an_entry_that_goes_is_not_matched_for_itself() {
    let mut key = mpls(false);
    key.set_u32(LABELS[1], 20 << 12 | 0x100 | 32);
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "", apply(vec![Action::PopMpls { ethertype: 0x8847 }, out(2)])));
    let mask = lab.decide(&key).mask;
    // Where the bottom is decides, and the second entry gets another place.
    assert_eq!(LABELS.map(|a| mask.u32(a)), [0x100, !0, 0]);
}
