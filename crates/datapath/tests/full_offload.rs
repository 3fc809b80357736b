//! Rules by which an adapter forwards, against the interpreter: on generated packets a rule does
//! what the operations of its megaflow do, and to no other packets.
mod common;
#[path = "common/gen.rs"]
mod generate;

use action::{Op, Payload, Rewrite, TunnelKind, TunnelPush};
use common::*;
use datapath::{compose, extract};
use flow::{Field, Key, Mask, at, frag};
use generate::{Rng, packet};
use offload::full::{Flow, Sent, apply, plan};
use offload::{REASONS, Reason};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fields that rules can look at, of all packets or those that have them.
const LOOKED_AT: [Field; 12] = [
    Field::EthDst,
    Field::EthSrc,
    Field::VlanVid,
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::IpTos,
    Field::IpTtl,
    Field::TcpSrc,
    Field::UdpDst,
    Field::Icmpv6Type,
];

/// A megaflow that the packet belongs to: of which headers it is, and some bits of some fields.
fn megaflow(r: &mut Rng, key: &Key) -> Mask {
    let mut mask = Key::ZERO;
    mask.set_u16(at::IN_PORT, 0xffff);
    mask.set_u16(at::ETH_TYPE, 0xffff);
    mask.set_u16(at::VLAN, if r.chance(80) { 0x1fff } else { 0x1000 });
    if [0x0800, 0x86dd].contains(&key.u16(at::ETH_TYPE)) {
        mask.set_u8(at::FRAG, frag::ANY | frag::LATER);
        mask.set_u8(at::PROTO, if r.chance(80) { 0xff } else { 0 });
    }
    for _ in 0..r.below(5) {
        let bits =
            if r.chance(60) { u128::MAX } else { (r.next() as u128) << 64 | r.next() as u128 };
        let mut more = Key::ZERO;
        r.pick(&LOOKED_AT).set(&mut more, bits);
        mask.or(&more);
    }
    mask
}

fn set(r: &mut Rng, packet: &Key) -> Op {
    const WRITTEN: [Field; 9] = [
        Field::EthDst,
        Field::EthSrc,
        Field::Ipv4Src,
        Field::Ipv4Dst,
        Field::IpTtl,
        Field::Ipv6Src,
        Field::TcpSrc,
        Field::UdpDst,
        Field::IpTos,
    ];
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    let f = r.pick(&WRITTEN);
    f.set(&mut key, (r.next() as u128) << 64 | r.next() as u128);
    f.set(&mut mask, if r.chance(80) { u128::MAX } else { 0xf0f0 });
    key.set_u16(at::ETH_TYPE, packet.u16(at::ETH_TYPE));
    key.set_u8(at::PROTO, packet.u8(at::PROTO));
    Op::Set(Box::new(Rewrite { key, mask }))
}

/// An outer header of VXLAN over IPv4, without checksum.
fn push() -> Op {
    let mut h = vec![2; 12];
    h.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    h.extend([0xc0, 0, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 7, 0]);
    Op::TunnelPush(Arc::new(TunnelPush {
        kind: TunnelKind::Vxlan,
        payload: Payload::Frame,
        tunnel_port: 9,
        out_port: 1,
        header: h.into(),
        source_ports: (0xc000, 0xc001),
    }))
}

fn ops(r: &mut Rng, key: &Key) -> Vec<Op> {
    let out = Op::Output(1 + r.below(2) as u16);
    let tag = Op::PushVlan { tpid: r.pick(&[0x8100, 0x88a8]), tci: r.next() as u16 & 0xefff };
    let tagged = key.u16(at::VLAN) & 0x1000 != 0;
    match r.below(9) {
        0 => vec![set(r, key), out],
        1 => vec![set(r, key), set(r, key), out],
        2 => vec![tag, out],
        3 if tagged => vec![Op::PopVlan, out],
        4 if tagged => vec![Op::PopVlan, set(r, key), tag, out],
        5 => vec![out],
        6 => vec![push(), out],
        7 => vec![Op::Output(1), out],
        _ => vec![],
    }
}

/// What the interpreter sends for the packet, by port.
fn interpreted(b: &mut Bed, packet: &[u8], ops: &[Op]) -> Vec<(u16, Vec<u8>)> {
    b.dp.execute(packet, 0, ops).unwrap();
    b.run();
    let of_port = |i: u16| (i, b.peers[usize::from(i)].drain());
    let all = [1, 2].map(of_port).into_iter();
    all.flat_map(|(i, list)| list.into_iter().map(move |p| (i, p))).collect()
}

/// The key of another packet that is much alike.
fn alike(r: &mut Rng, key: &Key) -> Key {
    let mut other = *key;
    match r.below(6) {
        0 => {
            let at = r.below(32) as usize;
            other.set_u8(at, other.u8(at) ^ 1 << r.below(8));
        }
        1 => other.set_u8(at::FRAG, r.pick(&[0, frag::ANY, frag::ANY | frag::LATER])),
        2 => other.set_u16(at::VLAN, r.pick(&[0, 0x1000, 0x1005])),
        3 => other.set_u8(at::PROTO, r.pick(&[6, 17, 132, 1, 58, 47])),
        4 => other.set_u16(at::ETH_TYPE, r.pick(&[0x0800, 0x86dd, 0x0806])),
        _ => {
            let f = r.pick(&LOOKED_AT);
            f.set(&mut other, (r.next() as u128) << 64 | r.next() as u128);
        }
    }
    other
}

#[test]
fn rules_do_what_megaflows_do() {
    let mut b = bed(3);
    let (mut same, mut others) = (BTreeMap::new(), 0);
    let mut reasons = BTreeMap::new();
    for seed in 0..20_000 {
        let mut r = Rng(seed);
        let Some(key) = extract(&packet(&mut r), 0, 1) else { continue };
        let p = compose(&key, r.below(40) as usize);
        let Some(key) = extract(&p, 0, 1) else { continue };
        let (mask, ops) = (megaflow(&mut r, &key), ops(&mut r, &key));
        let to = |no: u16| (no < 3).then_some(no + 100).ok_or(Reason::OtherAdapter);
        let rule = match plan(&Flow { key: &key, mask: &mask, ops: &ops }, &to) {
            Ok(plan) => plan.rule,
            Err(why) => {
                *reasons.entry(REASONS[why.index()].0).or_insert(0) += 1;
                continue;
            }
        };
        let mut packets = vec![p];
        packets.extend((0..4).map(|_| compose(&alike(&mut r, &key), r.below(40) as usize)));
        for (i, p) in packets.into_iter().enumerate() {
            let is_one = extract(&p, 0, 1).is_some_and(|k| k.matches(&key, &mask));
            let Some(sent) = apply(&rule, &p) else {
                // What a rule does not say is the host's: packets of the megaflow that have other
                // headers.
                others += 1;
                continue;
            };
            assert!(is_one, "seed {seed}: another flow's packet {p:x?}\n{rule:?}");
            let sent: Vec<_> = match sent {
                Sent::Out(port, bytes) => vec![(port - 100, bytes)],
                Sent::Dropped | Sent::Host => vec![],
            };
            let wanted = interpreted(&mut b, &p, &ops);
            assert_eq!(sent, wanted, "seed {seed}: {ops:?} on {p:x?}");
            *same.entry((i == 0, rule.edits.len().min(3))).or_insert(0) += 1;
        }
    }
    let with = |edits: usize| same.get(&(true, edits)).copied().unwrap_or(0);
    assert!((0..=3).all(|n| with(n) > 50), "{same:?} {reasons:?}");
    assert!(others > 1000 && reasons.len() >= 2, "{others} {reasons:?}");
}

#[test]
fn what_no_rule_does_has_a_reason() {
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    key.set_u16(at::ETH_TYPE, 0x0800);
    mask.set_u16(at::ETH_TYPE, 0xffff);
    let why = |key: &Key, mask: &Mask, ops: &[Op]| {
        let to = |no: u16| if no == 1 { Ok(1) } else { Err(Reason::OtherAdapter) };
        plan(&Flow { key, mask, ops }, &to).unwrap_err()
    };
    let out = Op::Output(1);
    assert_eq!(why(&key, &mask, &[Op::Output(2)]), Reason::OtherAdapter);
    for (op, name) in [
        (Op::Recirc(3), "recirc"),
        (Op::CtClear, "ct_clear"),
        (Op::Truncate(64), "trunc"),
        (Op::Output(1), "several outputs"),
        (Op::PopMpls { ethertype: 0x0800 }, "pop_mpls"),
    ] {
        assert_eq!(why(&key, &mask, &[op, out.clone()]), Reason::Action(name.into()));
    }
    let behind = why(&key, &mask, &[push(), Op::PopVlan, out.clone()]);
    assert_eq!(behind, Reason::Action("changes of the outer header".into()));
    key.set_u32(at::CT_MARK, 1);
    mask.set_u32(at::CT_MARK, 1);
    assert_eq!(why(&key, &mask, &[out]), Reason::Match("ct_mark".into()));
}
