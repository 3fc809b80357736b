//! Rules that an adapter takes outer headers off by, against what the datapath does in two lookups:
//! megaflows come of packets, each pair of them that can be a rule is one, and that rule does with
//! every packet what the datapath did.
mod common;
#[path = "common/gen.rs"]
mod generate;

use action::{Op, Rewrite, TunnelKind};
use common::*;
use datapath::{FlowDump, compose, extract};
use flow::{Field, Key, at, flag};
use generate::{Rng, packet};
use offload::Reason;
use offload::full::{Flow, Outer, Plan, Sent, apply, join};
use std::collections::BTreeMap;
use wire::checksum::internet;

/// Datapath ports: the underlay, the tunnels' number, another one.
const PHY: u16 = 0;
const TUNNEL: u16 = 1;
const OUT: u16 = 2;
const TUN_SRC: u128 = 0x0a00_0002;

/// A rule for packets of one port.
fn on(port: u16, fields: &[(Field, u128)], ops: Vec<Op>) -> Rule {
    let mut r = rule(fields, ops, 1);
    r.key.set_u16(at::IN_PORT, port);
    r.mask.set_u16(at::IN_PORT, 0xffff);
    r
}

/// Says of inner packets whether the outer header reported congestion.
fn looks_at_congestion(mut r: Rule, reported: bool) -> Rule {
    let bits = flag::TUNNEL | flag::TUNNEL_CE;
    r.mask.bytes_mut()[at::FLAGS] |= bits;
    r.key.bytes_mut()[at::FLAGS] |= if reported { bits } else { flag::TUNNEL };
    r
}

/// Writes the rule's number into the source, and sends.
fn numbered(n: u128, out: u16) -> Vec<Op> {
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    Field::EthSrc.set(&mut key, n);
    Field::EthSrc.unwildcard(&mut mask);
    vec![Op::Set(Box::new(Rewrite { key, mask })), Op::Output(out)]
}

/// Megaflows that take headers off, and those about inner packets.
fn rules(r: &mut Rng) -> Vec<Rule> {
    let pop = || vec![Op::TunnelPop { port: TUNNEL, kind: TunnelKind::Vxlan, options: [].into() }];
    let more = [(Field::EthSrc, 0x0200_0000_0002), (Field::IpTtl, 64), (Field::UdpSrc, 0x8001)];
    let mut all = Vec::new();
    for n in 0..2 {
        let udp = [(Field::IpProto, 17), (Field::IpFrag, 0), (Field::UdpDst, 4789)];
        let mut four = vec![(Field::EthType, 0x0800), (Field::Ipv4Dst, 0x0a00_0000 + n)];
        let mut six = vec![(Field::EthType, 0x86dd), (Field::Ipv6Dst, n)];
        for fields in [&mut four, &mut six] {
            fields.extend(udp);
            if r.chance(40) {
                fields.push(r.pick(&more));
            }
            all.push(on(PHY, fields, pop()));
        }
    }
    let id = |r: &mut Rng| (Field::TunId, u128::from(r.below(4)));
    let inner = [
        (Field::TunSrc, TUN_SRC),
        (Field::TunDst, 0x0a00_0001),
        (Field::TunIpv6Src, 7),
        (Field::EthType, 0x0800),
        (Field::EthDst, 0x0200_0000_0001),
    ];
    for n in 1..5 {
        let mut fields = vec![id(r)];
        fields.extend((0..r.below(3)).map(|_| r.pick(&inner)));
        let ops = match r.below(6) {
            0 => vec![],
            1 => vec![Op::Output(OUT), Op::Output(PHY)],
            _ => numbered(n, r.pick(&[PHY, OUT])),
        };
        let mut rule = on(TUNNEL, &fields, ops);
        if r.chance(20) {
            let (at, value) = r.pick(&[(at::TUN_TOS, 4), (at::TUN_TTL, 64)]);
            rule.key.set_u8(at, value);
            rule.mask.set_u8(at, 0xff);
        }
        let reported = r.chance(20);
        all.push(if r.chance(60) { looks_at_congestion(rule, reported) } else { rule });
    }
    if r.chance(10) {
        all.push(on(TUNNEL, &[(Field::TunFlags, 10)], numbered(8, OUT)));
    }
    all.push(on(TUNNEL, &[], numbered(9, OUT)));
    all.push(on(PHY, &[], vec![]));
    all
}

/// VXLAN around a packet, over IPv4 or IPv6, with a tag, options, a fragment bit or another header
/// at times.
fn tunnelled(r: &mut Rng, inner: &[u8]) -> Vec<u8> {
    let (tos, ttl) = (r.pick(&[0, 0, 1, 2, 3, 4, 7]), r.pick(&[64, 63]));
    let to = r.below(3) as u8;
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, r.pick(&[2, 3])];
    if r.chance(5) {
        f.extend([0x81, 0, 0, 5]);
    }
    let udp = 16 + inner.len() as u16;
    if r.chance(70) {
        let words = if r.chance(5) { 6 } else { 5 };
        f.extend([8, 0]);
        let mut ip = vec![0x40 | words, tos];
        ip.extend((u16::from(words) * 4 + udp).to_be_bytes());
        ip.extend([0, 0, r.pick(&[0, 0, 0x40, 0x20]), 0, ttl, 17, 0, 0, 10, 0, 0]);
        ip.extend([r.pick(&[2, 3]), 10, 0, 0, to]);
        ip.resize(usize::from(words) * 4, 1);
        let sum = internet(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        f.extend(ip);
    } else {
        f.extend([0x86, 0xdd, 0x60 | tos >> 4, tos << 4, 0, 0]);
        f.extend(udp.to_be_bytes());
        f.extend([17, ttl]);
        for last in [r.pick(&[7, 8]), to] {
            f.extend([0; 15]);
            f.push(last);
        }
    }
    f.extend([0x80, r.below(2) as u8, 0x12, 0xb5]);
    f.extend(udp.to_be_bytes());
    let valid = if r.chance(95) { 8 } else { r.next() as u8 };
    f.extend([0, 0, valid, 0, 0, 0, 0, 0, r.below(5) as u8, 0]);
    f.extend(inner);
    f
}

/// A packet, and what the datapath sent for it, by port.
type Way = (Vec<u8>, Vec<(u16, Vec<u8>)>);

fn sent(b: &mut Bed, r: &mut Rng) -> Vec<Way> {
    let mut all = Vec::new();
    while all.len() < 60 {
        let Some(mut key) = extract(&packet(r), 0, 1) else { continue };
        if r.chance(40) {
            key.set_u16(at::ETH_TYPE, 0x0800);
        }
        let inner = compose(&key, r.below(40) as usize);
        let p = tunnelled(r, &inner);
        b.peers[usize::from(PHY)].send(&p);
        b.run();
        let of_port = |i: u16| (i, b.peers[usize::from(i)].drain());
        let out = [PHY, OUT].map(of_port).into_iter();
        all.push((p, out.flat_map(|(i, l)| l.into_iter().map(move |p| (i, p))).collect()));
    }
    all
}

/// The rules that pairs of megaflows are, and why others are none.
fn plans(flows: &[FlowDump]) -> Vec<Result<Plan, Reason>> {
    let outers = flows.iter().filter_map(|f| Outer::new(f.id, &f.key, &f.mask, &f.ops));
    let outers: Vec<Outer> =
        outers.map(|(port, o)| (port == TUNNEL).then_some(o).unwrap()).collect();
    let inners = flows.iter().filter(|f| f.key.u16(at::IN_PORT) == TUNNEL);
    let to = |no: u16| Ok(no + 100);
    let flow = |f: &FlowDump| (f.key, f.mask, f.ops.clone());
    let mut all = Vec::new();
    for (key, mask, ops) in inners.map(flow) {
        let inner = Flow { key: &key, mask: &mask, ops: &ops };
        all.extend(outers.iter().map(|o| join(o, &inner, &to)));
    }
    all
}

#[test]
fn one_rule_does_what_two_lookups_do() {
    let (mut same, mut reasons) = (BTreeMap::new(), BTreeMap::new());
    for seed in 0..150 {
        let (mut r, mut b) = (Rng(seed), bed(3));
        b.set_rules(rules(&mut r));
        let packets = sent(&mut b, &mut r);
        let mut taken = vec![0; packets.len()];
        for plan in plans(&b.dp.flows()) {
            let plan = match plan {
                Ok(plan) => plan,
                Err(why) => {
                    *reasons.entry(why.to_string()).or_insert(0) += 1;
                    continue;
                }
            };
            for (i, (p, wanted)) in packets.iter().enumerate() {
                let sent = match apply(&plan.rule, p) {
                    None => continue,
                    Some(Sent::Dropped | Sent::Host) => vec![],
                    Some(Sent::Out(port, bytes)) => vec![(port - 100, bytes)],
                };
                assert_eq!(&sent, wanted, "seed {seed}: {:?} on {p:x?}", plan.rule);
                taken[i] += 1;
                *same.entry((plan.outer_bytes, sent.len())).or_insert(0) += 1;
            }
        }
        assert_eq!(b.pool.in_use(), 0);
    }
    let of = |bytes: u16, n: usize| same.get(&(bytes, n)).copied().unwrap_or(0);
    assert!(of(50, 1) > 500 && of(70, 1) > 100 && of(50, 0) > 10, "{same:?} {reasons:?}");
    for what in ["tun_src", "tun_flags", "several outputs"] {
        assert!(reasons.keys().any(|k| k.contains(what)), "{what}: {reasons:?}");
    }
}

#[test]
fn tunnels_that_adapters_do_not_know_are_the_hosts() {
    let key = Key::ZERO;
    let id = offload::FlowId { worker: 0, megaflow: 1 };
    for (kind, known) in [
        (TunnelKind::Vxlan, true),
        (TunnelKind::VxlanGbp, false),
        (TunnelKind::Geneve, false),
        (TunnelKind::Gre, false),
    ] {
        let ops = [Op::TunnelPop { port: TUNNEL, kind, options: [].into() }];
        assert_eq!(Outer::new(id, &key, &key, &ops).is_some(), known, "{kind:?}");
    }
    // An adapter looks for VXLAN behind one UDP port only.
    let outer = |port: u128| {
        let fields = [
            (Field::EthType, 0x0800),
            (Field::IpProto, 17),
            (Field::IpFrag, 0),
            (Field::UdpDst, port),
        ];
        let rule = on(PHY, &fields, vec![]);
        Outer { id, key: rule.key, mask: rule.mask }
    };
    let inner = on(TUNNEL, &[(Field::EthType, 0x0806)], vec![Op::Output(OUT)]);
    let flow = Flow { key: &inner.key, mask: &inner.mask, ops: &inner.ops };
    let why = |port| join(&outer(port), &flow, &|_| Ok(1)).map(|p| p.rule.items.len());
    assert_eq!(why(8472), Err(Reason::Match("tun_tp_dst".into())));
    assert_eq!(why(4789), Ok(5));
    // It cannot tell a packet without an Ethernet header from a frame.
    let mut bare = on(TUNNEL, &[(Field::EthType, 0x0800)], vec![]);
    for k in [&mut bare.key, &mut bare.mask] {
        k.bytes_mut()[at::FLAGS] |= flag::BARE;
    }
    let flow = Flow { key: &bare.key, mask: &bare.mask, ops: &bare.ops };
    let plan = join(&outer(4789), &flow, &|_| Ok(1)).map(|p| p.rule.items.len());
    assert_eq!(plan, Err(Reason::Match("packet_type".into())));
}
