//! Packets without an Ethernet header that come out of tunnels and go into them.

use crate::tests::tunnel_lab::{lab_of, route_to_port_2, spec_of, tunnel_to};
use crate::tests::*;
use crate::*;
use ::action::{Op, TunnelKind, ops_text};
use flow::{Key, at, flag};
use openflow::Action;
use telemetry::Drop;

/// A switch whose port 5 is a tunnel with this `packet_type`, with GPE if it is of VXLAN.
fn lab(kind: TunnelKind, mode: PacketMode) -> Lab {
    let spec = spec_of(kind, ErspanSpec::default());
    let mut lab = lab_of(TunnelSpec { mode, gpe: kind == TunnelKind::Vxlan, ..spec });
    route_to_port_2(&mut lab);
    lab.add(flow(0, 1, "in_port=2", apply(vec![out(4)])));
    lab
}

/// A packet that came out of the tunnel, without an Ethernet header.
fn came(text: &str) -> Key {
    let mut key = packet(text);
    key.set(at::ETH_DST, [0; 12]);
    key.set_u16(at::IN_PORT, 30);
    key.set_u32(at::TUN_SRC, 0x0a00_0005);
    key.set_u8(at::FLAGS, key.u8(at::FLAGS) | flag::TUNNEL | flag::BARE);
    key
}

const UDP: &str = "in_port=1,udp,nw_src=1.2.3.4,nw_dst=5.6.7.8,nw_ttl=9";
const TAGGED: &str = "in_port=1,udp,dl_vlan=5,nw_dst=5.6.7.8";

#[test]
fn a_port_that_is_not_aware_of_types_sees_frames() {
    let mut lab = lab(TunnelKind::Gre, PacketMode::LegacyL3);
    lab.add(flow(0, 9, "in_port=5,dl_src=00:00:00:00:00:00,ip", apply(vec![out(3)])));
    let d = lab.decide(&came(UDP));
    let zero = "push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00)";
    assert_eq!(ops_text(&d.ops), format!("{zero},13"));
    assert_eq!(d.mask.u8(at::FLAGS) & flag::BARE, flag::BARE, "frames come from elsewhere");
    let list = vec![out(3), Action::SetEthDst([9; 6]), out(4)];
    lab.add(flow(0, 10, "in_port=5,ip", apply(list)));
    let text = ops_text(&lab.decide(&came(UDP)).ops);
    assert_eq!(text, format!("{zero},13,set(eth(dst=09:09:09:09:09:09)),14"));
    let mut frame = came(UDP);
    frame.set_u8(at::FLAGS, flag::TUNNEL);
    assert_eq!(lab.decide(&frame).drop, Some(Drop::TunnelUnknown));
}

#[test]
fn a_port_that_is_aware_of_types_sees_packets_as_they_are() {
    let mut lab = lab(TunnelKind::Gre, PacketMode::Aware);
    lab.add(flow(
        0,
        9,
        "in_port=5,packet_type=(1,0x800)",
        apply(vec![out(3), Action::Decap(None)]),
    ));
    lab.add(flow(0, 8, "in_port=5,ip", apply(vec![out(4)])));
    let d = lab.decide(&came(UDP));
    assert_eq!((ops_text(&d.ops).as_str(), d.drop), ("drop", Some(Drop::PacketType)));
    let header = Action::Encap(openflow::Header::Ethernet);
    let list = vec![header, Action::SetEthDst([9; 6]), out(3), out(4)];
    lab.add(flow(0, 10, "in_port=5,packet_type=(1,0x800)", apply(list)));
    let text = ops_text(&lab.decide(&came(UDP)).ops);
    assert_eq!(text, "push_eth(src=00:00:00:00:00:00,dst=09:09:09:09:09:09),13,14");
    let mut frame = came(UDP);
    frame.set_u8(at::FLAGS, flag::TUNNEL);
    assert_eq!(ops_text(&lab.decide(&frame).ops), "14");
}

/// What is sent: the operations up to the header, and what the header says is behind it.
fn sent(kind: TunnelKind, mode: PacketMode, actions: &[Action], text: &str) -> (String, Vec<u8>) {
    let mut lab = lab(kind, mode);
    let to = vec![tunnel_to([10, 0, 0, 5])];
    let ports =
        ["in_port=1", "in_port=5"].map(|from| flow(0, 9, from, apply([&to, actions].concat())));
    ports.into_iter().for_each(|f| lab.add(f));
    let key = if text.starts_with("tunnel") { came(UDP) } else { packet(text) };
    let d = lab.decide(&key);
    let flat = d.ops.iter().flat_map(|op| match op {
        Op::Clone(ops) => ops.to_vec(),
        op => vec![op.clone()],
    });
    let push = flat.clone().find_map(|op| match op {
        Op::TunnelPush(t) => Some(t),
        _ => None,
    });
    let Some(t) = push else { return (ops_text(&d.ops), Vec::new()) };
    let text = ops_text(&flat.collect::<Vec<_>>());
    let says = if kind.is_gre() { &t.header[36..38] } else { &t.header[42..46] };
    (text.split("tnl_push").next().unwrap().into(), says.to_vec())
}

#[test]
fn a_header_says_what_is_behind_it() {
    use PacketMode::{Aware, LegacyL2, LegacyL3};
    use TunnelKind::{Geneve, Gre, Vxlan};
    let bare = Action::Decap(None);
    let header = Action::Encap(openflow::Header::Ethernet);
    let trunc = Action::Output { port: 5, max_len: 0, trunc: 100 };
    let nothing = ("drop".to_string(), vec![]);
    let is = |before: &str, says: &[u8]| (before.to_string(), says.to_vec());
    let ipv6 = "in_port=1,udp6";
    for (kind, mode, list, packet, want) in [
        (Gre, LegacyL2, vec![out(5)], UDP, is("", &[0x65, 0x58])),
        (Gre, LegacyL2, vec![bare.clone(), out(5)], UDP, nothing.clone()),
        (Gre, LegacyL3, vec![out(5)], UDP, is("pop_eth,", &[8, 0])),
        (Gre, LegacyL3, vec![bare.clone(), out(5)], UDP, is("pop_eth,", &[8, 0])),
        (Gre, LegacyL3, vec![out(5)], TAGGED, is("pop_eth,", &[8, 0])),
        (Gre, LegacyL3, vec![out(5)], "in_port=1,arp", is("pop_eth,", &[8, 6])),
        (Gre, LegacyL3, vec![out(5)], "in_port=1,dl_type=0x5ff", nothing.clone()),
        (Gre, LegacyL3, vec![out(5)], "in_port=1,dl_type=0x8100", nothing.clone()),
        (Gre, LegacyL3, vec![trunc.clone()], UDP, is("trunc(114),pop_eth,", &[8, 0])),
        (Gre, LegacyL2, vec![trunc], UDP, is("trunc(100),", &[0x65, 0x58])),
        (Gre, Aware, vec![out(5)], UDP, is("", &[0x65, 0x58])),
        (Gre, Aware, vec![bare.clone(), out(5)], UDP, is("pop_eth,", &[8, 0])),
        (Gre, Aware, vec![Action::output(openflow::port::IN_PORT)], "tunnel", is("", &[8, 0])),
        (Gre, LegacyL3, vec![Action::output(openflow::port::IN_PORT)], "tunnel", is("", &[8, 0])),
        (
            Gre,
            Aware,
            vec![header, Action::output(openflow::port::IN_PORT)],
            "tunnel",
            is("push_eth(src=00:00:00:00:00:00,dst=00:00:00:00:00:00),", &[0x65, 0x58]),
        ),
        (Vxlan, LegacyL2, vec![out(5)], UDP, is("", &[0xc, 0, 0, 3])),
        (Vxlan, LegacyL3, vec![out(5)], UDP, is("pop_eth,", &[0xc, 0, 0, 1])),
        (Vxlan, LegacyL3, vec![out(5)], ipv6, is("pop_eth,", &[0xc, 0, 0, 2])),
        (Vxlan, LegacyL3, vec![out(5)], "in_port=1,arp", nothing.clone()),
        (Vxlan, Aware, vec![bare.clone(), out(5)], UDP, is("pop_eth,", &[0xc, 0, 0, 1])),
        (Geneve, Aware, vec![bare, out(5)], UDP, nothing),
    ] {
        assert_eq!(sent(kind, mode, &list, packet), want, "{kind:?} {mode:?} {list:?} {packet}");
    }
}

/// Behind a tunnel for packets without an Ethernet header, other ports get the packet's own.
#[test]
fn other_outputs_keep_the_ethernet_header() {
    let mut lab = lab(TunnelKind::Gre, PacketMode::LegacyL3);
    let to = tunnel_to([10, 0, 0, 5]);
    let list = vec![to, Action::SetEthDst([9; 6]), out(5), out(3)];
    lab.add(flow(0, 9, "in_port=1", apply(list)));
    let text = ops_text(&lab.decide(&packet(UDP)).ops);
    assert!(text.starts_with("clone(pop_eth,tnl_push("), "{text}");
    assert!(text.ends_with("),set(eth(dst=09:09:09:09:09:09)),13"), "{text}");
}
