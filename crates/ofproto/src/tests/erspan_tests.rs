//! ERSPAN and GTP-U: fields of the outer header, matched and written.

use crate::tests::tunnel_lab::{geneve_lab, lab_with, route_to_port_2, tunnel_to};
use crate::tests::{Lab, apply, flow, out, packet};
use crate::*;
use ::action::{Decision, Op, TunnelKind, ops_text};
use flow::{Field, Key, at, flag};
use openflow::*;

/// A packet that came out of the tunnel, with these fields.
fn received(fields: &str) -> Key {
    let mut key = packet(&format!("udp,tun_src=1.1.1.1,tun_dst=1.1.1.2,nw_ecn=0,{fields}"));
    key.set_u16(at::IN_PORT, 30);
    key.set_u8(at::FLAGS, flag::TUNNEL);
    key
}

fn set(field: Field, value: u128) -> Action {
    Action::SetField { field, value, mask: field.full() }
}

fn erspan_lab(erspan: ErspanSpec) -> Lab {
    let mut lab = lab_with(TunnelKind::Erspan, erspan);
    route_to_port_2(&mut lab);
    lab.add(flow(0, 9, "in_port=2", apply(vec![out(3)])));
    lab
}

/// What is behind the outer IP header of a packet that goes into the tunnel after these actions.
fn sent(erspan: ErspanSpec, actions: &[Action]) -> Option<Vec<u8>> {
    let mut lab = erspan_lab(erspan);
    let list = [&[tunnel_to([10, 0, 0, 5])], actions, &[out(5)]].concat();
    lab.add(flow(0, 1, "in_port=1", apply(list)));
    let d = lab.decide(&packet("in_port=1,udp"));
    let [Op::TunnelPush(t), ..] = &d.ops[..] else { return None };
    assert_eq!((t.header[23], t.sequence(), t.checksum()), (47, true, false));
    Some(t.header[34..].to_vec())
}

#[test]
fn flows_match_on_the_fields_and_megaflows_on_what_was_read() {
    let mut lab = erspan_lab(ErspanSpec::default());
    lab.add(flow(0, 3, "tun_erspan_ver=1,tun_erspan_idx=0x7", apply(vec![out(1)])));
    lab.add(flow(0, 2, "tun_erspan_ver=2,tun_erspan_hwid=0x1/0xf", apply(vec![out(2)])));
    lab.add(flow(0, 1, "tun_erspan_ver=2,tun_erspan_dir=1", apply(vec![out(3)])));
    let mut sent = |fields: &str| {
        let d = lab.decide(&received(fields));
        assert_ne!(d.mask.u8(at::TUN_ERSPAN_VER), 0);
        ops_text(&d.ops)
    };
    assert_eq!(sent("tun_erspan_ver=1,tun_erspan_idx=0x7"), "11");
    assert_eq!(sent("tun_erspan_ver=1,tun_erspan_idx=0x8"), "drop");
    assert_eq!(sent("tun_erspan_ver=2,tun_erspan_hwid=0x11"), "12");
    assert_eq!(sent("tun_erspan_ver=2,tun_erspan_hwid=0x12,tun_erspan_dir=1"), "13");
    assert_eq!(sent("tun_erspan_ver=2,tun_erspan_hwid=0x12"), "drop");
}

/// A packet's key has a digest of its Geneve options where the fields of ERSPAN are.
#[test]
fn a_packet_with_geneve_options_has_no_such_field() {
    let mut lab = geneve_lab();
    lab.add(flow(0, 2, "tun_erspan_ver=1", apply(vec![out(1)])));
    lab.add(flow(0, 1, "", apply(vec![out(2)])));
    let mut key = received("tun_erspan_ver=1");
    assert_eq!(ops_text(&lab.decide(&key).ops), "11");
    key.set_u8(at::FLAGS, flag::TUNNEL | flag::TUNNEL_OPTIONS);
    let options = [0, 9, 1, 0];
    let request = ::action::Request { key: &key, options: &options, packet: &[] };
    let mut d = Decision::default();
    d.clear();
    lab.sw.pipeline().resolve(lab.sw.pin(), &request, &mut d);
    assert_eq!(ops_text(&d.ops), "12");
    assert_eq!(d.mask.u64(at::TUN_OPTIONS), !0);
}

#[test]
fn headers_are_as_the_port_says_or_the_flow() {
    const FIRST: [u8; 8] = [0x10, 0, 0x88, 0xbe, 0, 0, 0, 0];
    const SECOND: [u8; 8] = [0x10, 0, 0x22, 0xeb, 0, 0, 0, 0];
    let version = |n| set(Field::TunErspanVer, n);
    let key = |n| set(Field::TunId, n);
    let by_flow = ErspanSpec::default();
    let first = ErspanSpec { version: Some(1), index: Some(0xf_ffff), ..by_flow };
    let second = ErspanSpec { version: Some(2), hwid: Some(0x3f), ..by_flow };
    let body = |first: [u8; 8], rest: &[u8]| Some([&first, rest].concat());
    let want = body(FIRST, &[0x10, 0, 3, 0xff, 0, 0xf, 0xff, 0xff]);
    assert_eq!(sent(first, &[key(0x3ff), version(2), set(Field::TunErspanIdx, 1)]), want);
    let want = body(SECOND, &[0x20, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 0xf8]);
    assert_eq!(sent(second, &[key(1), set(Field::TunErspanDir, 1)]), want);
    let want = body(FIRST, &[0x10, 0, 0, 2, 0, 0, 0, 5]);
    assert_eq!(sent(by_flow, &[key(2), version(1), set(Field::TunErspanIdx, 5)]), want);
    let want = body(SECOND, &[0x20, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x50]);
    assert_eq!(sent(by_flow, &[key(2), version(2), set(Field::TunErspanHwid, 5)]), want);
    for refused in [vec![key(1)], vec![key(1), version(3)], vec![key(0x400), version(1)]] {
        assert_eq!(sent(by_flow, &refused), None, "{refused:?}");
    }
}

/// What a packet brings is in the next header, so it decides.
#[test]
fn from_one_tunnel_to_another_the_fields_are_handed_on() {
    let mut lab = erspan_lab(ErspanSpec::default());
    let clear = set(Field::InPort, 0);
    lab.add(flow(0, 1, "", apply(vec![tunnel_to([10, 0, 0, 5]), clear, out(5)])));
    let key = received("tun_erspan_ver=1,tun_erspan_idx=0x12345,tun_id=7");
    let d = lab.decide(&key);
    let [Op::TunnelPush(t), ..] = &d.ops[..] else { panic!("{}", ops_text(&d.ops)) };
    assert_eq!(t.header[42..], [0x10, 0, 0, 7, 0, 1, 0x23, 0x45]);
    for f in [Field::TunErspanVer, Field::TunErspanIdx] {
        assert_eq!(f.get(&d.mask), f.full(), "{f:?}");
    }
    assert_eq!(d.mask.u32(at::TUN_ID), !0);
}

/// All packets of a megaflow bring controllers the same fields.
#[test]
fn the_fields_of_a_packet_in_are_those_of_the_megaflow() {
    let mut lab = erspan_lab(ErspanSpec::default());
    lab.add(flow(0, 1, "", apply(vec![out(port::CONTROLLER)])));
    let key = received("tun_erspan_ver=2,tun_erspan_dir=1,tun_id=7");
    let d = lab.decide(&key);
    let [Op::Punt(punt)] = &d.ops[..] else { panic!("{}", ops_text(&d.ops)) };
    let sent = punt.context.downcast_ref::<PacketInContext>().unwrap().fields_of(&key);
    for f in [Field::TunSrc, Field::TunErspanVer, Field::TunErspanDir] {
        assert_eq!(f.get(&sent.key), f.get(&key), "{f:?}");
        assert_eq!(f.get(&d.mask), f.full(), "{f:?}");
    }
    assert_eq!(Field::TunId.get(&sent.key), 7);
    assert_eq!(d.mask.u32(at::TUN_ID), !0);
    assert_eq!(Field::TunErspanHwid.get(&sent.mask), 0);
    assert_eq!(Field::TunErspanHwid.get(&d.mask), Field::TunErspanHwid.full());
}

#[test]
fn gtpu_takes_ip_and_flows_match_on_what_its_header_says() {
    let mut lab = lab_with(TunnelKind::Gtpu, ErspanSpec::default());
    route_to_port_2(&mut lab);
    lab.add(flow(0, 9, "in_port=2", apply(vec![out(3)])));
    lab.add(flow(0, 8, "in_port=1", apply(vec![tunnel_to([10, 0, 0, 5]), out(5)])));
    lab.add(flow(0, 7, "tun_gtpu_flags=0x30/0xf0,tun_gtpu_msgtype=255", apply(vec![out(1)])));
    lab.add(flow(0, 6, "tun_gtpu_msgtype=1", apply(vec![out(2)])));
    let d = lab.decide(&packet("in_port=1,udp"));
    let [Op::TunnelPush(t), ..] = &d.ops[..] else { panic!("{}", ops_text(&d.ops)) };
    assert_eq!(t.header[42..], [0x30, 255, 0, 0, 0, 0, 0, 0]);
    let d = lab.decide(&packet("in_port=1,arp"));
    assert_eq!((ops_text(&d.ops).as_str(), d.drop), ("drop", Some(telemetry::Drop::PacketType)));
    let mut sent = |fields: &str| ops_text(&lab.decide(&received(fields)).ops);
    assert_eq!(sent("tun_gtpu_flags=0x32,tun_gtpu_msgtype=255"), "11");
    assert_eq!(sent("tun_gtpu_flags=0x30,tun_gtpu_msgtype=1"), "12");
    assert_eq!(sent("tun_gtpu_flags=0x30,tun_gtpu_msgtype=2"), "drop");
    assert_eq!(sent("tun_erspan_ver=1,tun_erspan_idx=0xfffff"), "drop");
}

/// Which of them a packet is for is not in its key: one kind gets all packets of the protocol.
#[test]
fn of_gre_and_erspan_it_is_gre_that_is_received() {
    let mut lab = erspan_lab(ErspanSpec::default());
    lab.add(flow(0, 8, "in_port=1", apply(vec![out(2)])));
    let decide = |lab: &mut Lab| {
        let d = lab.decide(&packet("in_port=1,ip,nw_proto=47,nw_dst=10.0.0.1"));
        let [Op::TunnelPop { port, kind, .. }] = d.ops[..] else { panic!("{}", ops_text(&d.ops)) };
        (port, kind)
    };
    assert_eq!(decide(&mut lab), (30, TunnelKind::Erspan));
    let erspan = lab.sw.port(lab.br, 5).unwrap().tunnel.clone().unwrap();
    let gre = TunnelSpec { kind: TunnelKind::Gre, ..erspan };
    let (name, dp_port, tunnel) = ("g".into(), Some(31), Some(gre));
    let spec = PortSpec { of_port: 6, name, dp_port, tunnel, ..PortSpec::default() };
    lab.sw.add_port(lab.br, spec).unwrap();
    assert_eq!(decide(&mut lab), (31, TunnelKind::Gre));
}
