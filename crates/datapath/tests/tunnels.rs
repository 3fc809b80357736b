//! One pass against two steps, programs against the interpreter, for tunnelled packets.
mod common;
#[path = "common/gen.rs"]
mod generate;

use ::packet::HEADROOM;
use action::{Op, Payload, Rewrite, TunnelKind, TunnelPush};
use common::*;
use datapath::{Perf, Settings};
use flow::{Field, Key, at, flag};
use generate::{Rng, packet};
use std::sync::Arc;
use telemetry::Drop;
use wire::checksum::{internet, pseudo_v4, pseudo_v6};

/// Datapath ports: the underlay, the tunnels' number, two more.
const PHY: u16 = 0;
const TUNNEL: u16 = 1;
const OUT: u16 = 2;

/// A rule for packets of one port.
fn on(port: u16, fields: &[(Field, u128)], ops: Vec<Op>, credit: u32) -> Rule {
    let mut r = rule(fields, ops, credit);
    r.key.set_u16(at::IN_PORT, port);
    r.mask.set_u16(at::IN_PORT, 0xffff);
    r
}

/// Only for packets that have this flag.
fn with_flag(mut r: Rule, flag: u8) -> Rule {
    for k in [&mut r.key, &mut r.mask] {
        k.bytes_mut()[at::FLAGS] |= flag;
    }
    r
}

/// Decapsulates packets to 10.0.0.N, and sends the inner packets by key and more.
fn rules(r: &mut Rng, kind: TunnelKind) -> Vec<Rule> {
    // Of options (see `with_options`) the values of some count.
    let known: Vec<u32> = (0..3).filter(|_| r.chance(50)).map(|n| 9 << 8 | n).collect();
    let pop = || vec![Op::TunnelPop { port: TUNNEL, kind, options: known.clone().into() }];
    let outer = |n: u128| {
        [
            (Field::EthType, 0x0800),
            (Field::IpProto, 17),
            (Field::IpFrag, 0),
            (Field::Ipv4Dst, 0x0a00_0000 + n),
            (Field::UdpDst, 4789),
        ]
    };
    let id = |n: u128| (Field::TunId, n);
    // First those that decapsulate: what they look at is in line 0.
    let mut all: Vec<Rule> = (0..2).map(|n| on(PHY, &outer(n), pop(), 10 + n as u32)).collect();
    all.extend([
        on(TUNNEL, &[id(3)], vec![], 1),
        on(TUNNEL, &[id(1), (Field::TunSrc, 0x0a00_0002)], vec![Op::Output(OUT)], 2),
        on(TUNNEL, &[id(2), (Field::EthType, 0x0800)], vec![Op::PopVlan, Op::Output(OUT)], 3),
        with_flag(on(TUNNEL, &[id(1)], vec![Op::Output(PHY)], 7), flag::TUNNEL_OPTIONS),
        on(TUNNEL, &[(Field::TunFlags, 10)], vec![Op::Output(PHY)], 4),
        on(TUNNEL, &[], vec![Op::Output(OUT)], 5),
    ]);
    if r.chance(50) {
        all.insert(2, on(TUNNEL, &[(Field::EthType, 0x86dd)], vec![Op::Output(OUT)], 6));
    }
    all.push(on(PHY, &[], vec![Op::Output(OUT)], 20));
    all
}

fn fix_ip(f: &mut [u8]) {
    f[24..26].fill(0);
    let len = usize::from(f[14] & 15) * 4;
    let sum = internet(&f[14..14 + len]);
    f[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// VXLAN or Geneve with anything inside.
fn tunnelled(r: &mut Rng, kind: TunnelKind) -> Vec<u8> {
    let inner = packet(r);
    let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let total = (20 + 16 + inner.len()) as u16;
    f.extend([0x45, 0]);
    f.extend(total.to_be_bytes());
    f.extend([0, 0, r.pick(&[0, 0x40]), 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0]);
    f.push(r.below(3) as u8);
    f.extend([0x80, r.below(4) as u8, 0x12, 0xb5]);
    f.extend((total - 20).to_be_bytes());
    f.extend(if kind == TunnelKind::Geneve {
        [0, 0, 0, 0, 0x65, 0x58]
    } else {
        [0, 0, 8, 0, 0, 0]
    });
    f.extend([0, 0, r.below(4) as u8, 0]);
    f.extend(inner);
    fix_ip(&mut f);
    f
}

/// A [`tunnelled`] frame with Geneve options.
fn with_options(r: &mut Rng, kind: TunnelKind) -> Vec<u8> {
    let (mut f, mut options) = (tunnelled(r, kind), Vec::new());
    for _ in 0..1 + r.below(3) {
        let words = r.below(3) as u8;
        options.extend([0, 9, r.below(4) as u8, words]);
        options.extend((0..4 * words).map(|_| r.below(2) as u8));
    }
    (f[42], f[43]) = (options.len() as u8 / 4, r.pick(&[0, 0, 0x40, 0x80]));
    for at in [16, 38] {
        let len = u16::from_be_bytes([f[at], f[at + 1]]) + options.len() as u16;
        f[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }
    f.splice(50..50, options);
    fix_ip(&mut f);
    f
}

/// Something is odd about the outer header, or wrong.
fn odd(r: &mut Rng, kind: TunnelKind) -> Vec<u8> {
    let mut f = tunnelled(r, kind);
    match r.below(12) {
        11 => {
            f[r.pick(&[20usize, 21])] |= 1 << r.below(6);
            fix_ip(&mut f);
        }
        10 => f[r.pick(&[42usize, 43, 44, 45])] ^= 1 << r.below(8),
        0 => f[24] ^= 1,
        1 => f[42] = r.next() as u8,
        2 => f[49] = 1,
        3 => f[38..40].copy_from_slice(&(r.next() as u16).to_be_bytes()),
        4 => f[40] = 1,
        5 => f.extend([0; 9]),
        6 => f.truncate(50 + r.below(20) as usize),
        7 => drop(f.splice(12..12, [0x81, 0, 0, 5])),
        8 => {
            f[14] = 0x46;
            f.splice(34..34, [1, 1, 1, 0]);
            let total = u16::from_be_bytes([f[16], f[17]]) + 4;
            f[16..18].copy_from_slice(&total.to_be_bytes());
            fix_ip(&mut f);
        }
        _ => {
            // A right UDP checksum.
            let udp = &f[34..];
            let sum = pseudo_v4([10, 0, 0, 2], [10, 0, 0, f[33]], 17, udp.len()).bytes(udp);
            f[40..42].copy_from_slice(&sum.finish_udp().to_be_bytes());
        }
    }
    f
}

/// What came out of each port, in any order; credits; drops.
type Outcome = (Vec<Vec<Vec<u8>>>, std::collections::BTreeMap<u32, (u64, u64)>, Vec<u64>);

fn outcome(one_pass: bool, seed: u64) -> Outcome {
    let kind = if seed.is_multiple_of(2) { TunnelKind::Vxlan } else { TunnelKind::Geneve };
    let mut b = bed(3);
    b.dp.set_settings(Settings { one_pass, validate: one_pass, ..Settings::default() });
    let mut r = Rng(seed);
    b.set_rules(rules(&mut r, kind));
    let mut got = vec![Vec::new(); 3];
    for round in 0..6 {
        for _ in 0..120 {
            let p = match r.below(4) {
                0 => odd(&mut r, kind),
                1 => packet(&mut r),
                2 if kind == TunnelKind::Geneve => with_options(&mut r, kind),
                _ => tunnelled(&mut r, kind),
            };
            // Bursts of a flow too.
            for _ in 0..1 + r.below(3) {
                b.peers[0].send(&p);
            }
        }
        b.run();
        for (all, peer) in got.iter_mut().zip(&b.peers) {
            all.extend(peer.drain());
        }
        if round == 2 {
            // Other rules, and decap_rules with them.
            let mut rules = rules(&mut r, kind);
            rules.insert(0, on(PHY, &[(Field::Ipv4Dst, 0x0a00_0001)], vec![], 30));
            b.set_rules(rules);
        }
    }
    got.iter_mut().for_each(|all| all.sort());
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
    let sum = |f: fn(&Perf) -> u64| b.dp.perf().iter().map(|(_, p)| f(p)).sum::<u64>();
    assert_eq!(sum(|p| p.differences), 0, "seed {seed}");
    assert_eq!(sum(|p| p.tunnel_validated) > 100, one_pass, "seed {seed}");
    let drops = b.dp.totals().drops.to_vec();
    (got, b.credits(), drops)
}

#[test]
fn one_pass_equals_two_steps() {
    for seed in 0..40 {
        let (fast, slow) = (outcome(true, seed), outcome(false, seed));
        assert!(!slow.0[2].is_empty() && !slow.0[0].is_empty(), "seed {seed}");
        for i in 0..3 {
            assert_eq!(fast.0[i].len(), slow.0[i].len(), "seed {seed}, port {i}");
            assert_eq!(fast.0[i], slow.0[i], "seed {seed}, port {i}");
        }
        assert_eq!(fast.1, slow.1, "credits, seed {seed}");
        assert_eq!(fast.2, slow.2, "drops, seed {seed}");
        assert!(slow.2[Drop::TunnelHeader as usize] > 0, "seed {seed}");
        assert!(slow.2[Drop::TunnelChecksum as usize] > 0, "seed {seed}");
    }
}

#[test]
fn one_pass_takes_most_packets_once() {
    let (vxlan, geneve) = (TunnelKind::Vxlan, TunnelKind::Geneve);
    for (kind, options, one_pass, passes) in [
        (vxlan, false, true, 1),
        (vxlan, false, false, 2),
        (geneve, false, true, 1),
        (geneve, true, true, 1),
        (geneve, true, false, 2),
    ] {
        let mut b = bed(3);
        b.dp.set_settings(Settings { one_pass, ..Settings::default() });
        b.set_rules(rules(&mut Rng(1), kind));
        let make = if options { with_options } else { tunnelled };
        let mut frame = make(&mut Rng(8), kind);
        frame[33] = 0;
        fix_ip(&mut frame);
        for _ in 0..100 {
            (0..10).for_each(|_| b.peers[0].send(&frame));
            b.run();
        }
        let seen: u64 = b.dp.pmd_info().iter().map(|p| p.perf.passes).sum();
        let want = 1000 * passes;
        assert!((want..want + 20).contains(&seen), "{seen} passes");
    }
}

/// An outer header as the pipeline makes it, with key 42.
fn template(r: &mut Rng) -> Arc<TunnelPush> {
    let (v6, summed) = (r.chance(50), r.chance(50));
    let kind =
        r.pick(&[TunnelKind::Vxlan, TunnelKind::Geneve, TunnelKind::Gre, TunnelKind::Erspan]);
    let proto = if kind.is_gre() { 47 } else { 17 };
    let mut h = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];
    match v6 {
        true => {
            h.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, proto, 64]);
            h.extend((0..32).map(|i| i as u8));
        }
        false => {
            h.extend([8, 0, 0x45, 3, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0]);
            h.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        }
    }
    let sum = if summed { 0xff } else { 0 };
    match kind {
        TunnelKind::Gre if summed => h.extend([0xa0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 42]),
        TunnelKind::Gre => h.extend([0x20, 0, 0x65, 0x58, 0, 0, 0, 42]),
        TunnelKind::Erspan if summed => {
            h.extend([0x10, 0, 0x88, 0xbe, 0, 0, 0, 0, 0x10, 0, 0, 42, 0, 1, 2, 3]);
        }
        TunnelKind::Erspan => {
            h.extend([0x10, 0, 0x22, 0xeb, 0, 0, 0, 0, 0x20, 0, 0, 42]);
            h.extend([0, 0, 0, 0, 0, 0, 3, 0x78]);
        }
        TunnelKind::Geneve => {
            // Few and many options, some of them more than there is room for.
            let words = r.pick(&[0, 0, 1, 2, 3, 5, 30]);
            h.extend([0, 0, 0x17, 0xc1, 0, 0, sum, sum, words, 0, 0x65, 0x58, 0, 0, 42, 0]);
            h.extend((0..words).flat_map(|n| [1, 2, n, 0]));
        }
        _ => h.extend([0, 0, 0x12, 0xb5, 0, 0, sum, sum, 8, 0, 0, 0, 0, 0, 42, 0]),
    }
    let (header, source_ports) = (h.into(), (40000, 40100));
    let payload = Payload::Frame;
    Arc::new(TunnelPush { kind, payload, tunnel_port: TUNNEL, out_port: PHY, header, source_ports })
}

/// Takes out of frames what is each packet's own in ERSPAN: sequence number and time.
fn without_own(frames: &mut [Vec<u8>], t: &TunnelPush) {
    let erspan = t.kind == TunnelKind::Erspan;
    for f in frames.iter_mut().filter(|_| erspan) {
        f[t.l4() + 4..t.l4() + 8].fill(0);
        f[t.l4() + 12..t.header.len() - 4].fill(0);
    }
}

/// What every encapsulated frame must be, whatever made it.
fn check_outer(f: &[u8], inner: &[u8], t: &TunnelPush) {
    let (l4, len) = (t.l4(), t.header.len());
    assert_eq!(&f[len..], inner);
    let be16 = |at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
    if t.is_ipv6() {
        assert_eq!(usize::from(be16(18)), f.len() - 54);
    } else {
        assert_eq!(usize::from(be16(16)), f.len() - 14);
        assert_eq!(internet(&f[14..34]), 0);
    }
    if t.kind.is_gre() {
        return assert!(!t.checksum() || internet(&f[l4..]) == 0);
    }
    assert_eq!(usize::from(be16(l4 + 4)), f.len() - l4);
    assert!((40000..40100).contains(&be16(l4)));
    if t.checksum() {
        let pseudo = match t.is_ipv6() {
            true => {
                let (s, d) = (f[22..38].try_into().unwrap(), f[38..54].try_into().unwrap());
                pseudo_v6(&s, &d, 17, f.len() - l4)
            }
            false => pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 17, f.len() - l4),
        };
        assert_eq!(pseudo.bytes(&f[l4..]).finish(), 0);
    }
}

#[test]
fn encapsulation_equals_the_interpreter() {
    let mut b = bed(3);
    let mut long = 0;
    for seed in 0..1000 {
        let mut r = Rng(seed);
        let t = template(&mut r);
        let ops = vec![Op::TunnelPush(t.clone()), Op::Output(OUT)];
        b.set_rules(vec![rule(&[], ops.clone(), 1)]);
        let packets: Vec<_> = (0..1 + r.below(40)).map(|_| packet(&mut r)).collect();
        packets.iter().for_each(|p| b.peers[0].send(p));
        b.run();
        let mut fast = b.peers[2].drain();
        packets.iter().for_each(|p| b.dp.execute(p, 0, &ops).unwrap());
        b.run();
        let mut slow = b.peers[2].drain();
        without_own(&mut fast, &t);
        without_own(&mut slow, &t);
        assert_eq!(fast, slow, "seed {seed}");
        let fits = t.header.len() <= HEADROOM;
        long += usize::from(!fits);
        assert_eq!(fast.len(), if fits { packets.len() } else { 0 }, "seed {seed}");
        fast.iter().zip(&packets).for_each(|(f, p)| check_outer(f, p, &t));
    }
    assert!(long > 10);
    assert!(b.dp.totals().drops[Drop::NoHeadroom as usize] > 0);
    b.assert_balanced();
}

/// Between packets that are encapsulated are others, to the same port and to others.
#[test]
fn runs_of_encapsulated_packets_keep_their_order() {
    let mut b = bed(3);
    b.dp.set_settings(Settings { validate: true, ..Settings::default() });
    for seed in 0..200 {
        let mut r = Rng(seed);
        let all: Vec<Rule> = (0..6)
            .map(|n| {
                let ops = match r.below(4) {
                    0 => vec![Op::Output(OUT)],
                    1 => vec![Op::TunnelPush(template(&mut r)), Op::Output(TUNNEL)],
                    _ => vec![Op::TunnelPush(template(&mut r)), Op::Output(OUT)],
                };
                rule(&[(Field::EthDst, n)], ops, n as u32 + 1)
            })
            .collect();
        b.set_rules(all.clone());
        let mut want = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..100 {
            let n = r.below(6) as usize;
            let mut p = packet(&mut r);
            p[..6].copy_from_slice(&[0, 0, 0, 0, 0, n as u8]);
            b.peers[0].send(&p);
            let [first, .., Op::Output(out)] = &all[n].ops[..] else {
                want[usize::from(OUT)].push(p);
                continue;
            };
            let Op::TunnelPush(t) = first else { unreachable!("it is what is put in front") };
            if t.header.len() <= HEADROOM {
                want[usize::from(*out)].push(p);
            }
        }
        b.run();
        for (port, want) in want.iter().enumerate() {
            let got = b.peers[port].drain();
            assert_eq!(got.len(), want.len(), "seed {seed}, port {port}");
            got.iter()
                .zip(want)
                .for_each(|(got, want)| assert!(got.ends_with(want), "seed {seed}"));
        }
    }
    assert_eq!(b.dp.perf().iter().map(|(_, p)| p.differences).sum::<u64>(), 0);
    b.assert_balanced();
}

#[test]
fn what_goes_in_comes_out_with_its_fields() {
    let mut b = bed(3);
    let mut seen = 0;
    for seed in 0..500 {
        let mut r = Rng(seed);
        let (p, t) = (packet(&mut r), template(&mut r));
        if t.header.len() > HEADROOM {
            continue;
        }
        let pop = Op::TunnelPop { port: TUNNEL, kind: t.kind, options: [].into() };
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        for (f, v) in [(Field::TunId, 42), (Field::TunFlags, 8)] {
            f.set(&mut key, v);
            f.set(&mut mask, v);
        }
        let inner = Rule { key, mask, ops: vec![Op::Output(OUT)], credit: 1 };
        b.set_rules(vec![inner, on(PHY, &[], vec![Op::TunnelPush(t), pop], 2)]);
        b.peers[0].send(&p);
        b.run();
        let out = b.peers[2].drain();
        assert_eq!(out, [p], "seed {seed}");
        seen += 1;
    }
    assert!(seen > 400);
    b.assert_balanced();
}

/// Numbers rise by one from packet to packet, and the time of type III is that of the packet.
#[test]
fn erspan_counts_packets_and_says_when_they_were_mirrored() {
    let now = || {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        (since.as_micros() / 100) as u32
    };
    let mut b = bed(3);
    let t = (0..).map(|seed| template(&mut Rng(seed)));
    let third = |t: &Arc<TunnelPush>| t.kind == TunnelKind::Erspan && t.header.len() == 54;
    let t = t.into_iter().find(third).unwrap();
    b.set_rules(vec![rule(&[], vec![Op::TunnelPush(t), Op::Output(OUT)], 1)]);
    let p = packet(&mut Rng(1));
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let before = now();
        (0..5).for_each(|_| b.peers[0].send(&p));
        b.run();
        let word = |f: &[u8], at: usize| u32::from_be_bytes(f[at..at + 4].try_into().unwrap());
        for f in b.peers[2].drain() {
            numbers.push(word(&f, 38));
            assert!(now().wrapping_sub(word(&f, 46)) <= now().wrapping_sub(before));
        }
    }
    // The other tests of this process count with it.
    assert!(numbers.len() == 15 && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

/// A GTP-U header over IPv4 with tunnel endpoint 0xdeadbeef, or over IPv6 with a UDP checksum.
fn gtpu_template(v6: bool) -> Arc<TunnelPush> {
    let (mut h, sum) = (vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8], if v6 { 0xff } else { 0 });
    if v6 {
        h.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
        h.extend((0..32).map(|i| i as u8));
    } else {
        h.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    h.extend([0, 0, 8, 0x68, 0, 0, sum, sum, 0x30, 255, 0, 0, 0xde, 0xad, 0xbe, 0xef]);
    popped(TunnelKind::Gtpu, h)
}

/// An outer header in front of what is behind a frame's Ethernet header.
fn popped(kind: TunnelKind, header: Vec<u8>) -> Arc<TunnelPush> {
    let (header, source_ports, payload) = (header.into(), (40000, 40100), Payload::Popped);
    Arc::new(TunnelPush { kind, payload, tunnel_port: TUNNEL, out_port: PHY, header, source_ports })
}

/// IP packets lose their Ethernet header, and come out with one without addresses; others end.
#[test]
fn gtpu_carries_what_is_behind_the_ethernet_header() {
    let mut b = bed(3);
    b.dp.set_settings(Settings { validate: true, ..Settings::default() });
    let (mut carried, mut refused) = (0, 0);
    for seed in 0..600 {
        let mut r = Rng(seed);
        let (p, t) = (packet(&mut r), gtpu_template(seed.is_multiple_of(2)));
        let ip = wire::l3(&p).filter(|l| matches!(l.ethertype, 0x0800 | 0x86dd));
        let version = |l: &wire::L3| if l.ethertype == 0x0800 { 4 } else { 6 };
        // What says that it is IP and is not is refused at the other end.
        let ip = ip.filter(|l| p.get(l.at).is_some_and(|b| b >> 4 == version(l)));
        let fields = [(Field::TunId, 0xdead_beef), (Field::TunGtpuMsgtype, 255)];
        let pop = Op::TunnelPop { port: TUNNEL, kind: t.kind, options: [].into() };
        let rules = vec![
            on(TUNNEL, &fields, vec![Op::Output(OUT)], 1),
            on(TUNNEL, &[], vec![Op::Output(PHY)], 2),
        ];
        for out in [vec![Op::Output(OUT)], vec![pop]] {
            let whole = matches!(out[..], [Op::Output(_)]);
            let push = [vec![Op::TunnelPush(t.clone())], out].concat();
            b.set_rules([rules.clone(), vec![on(PHY, &[], push, 3)]].concat());
            b.peers[0].send(&p);
            b.run();
            let got = b.peers[2].drain();
            let Some(ip) = &ip else {
                refused += usize::from(!whole && got.is_empty());
                continue;
            };
            assert_eq!(got.len(), 1, "seed {seed}");
            if whole {
                check_outer(&got[0], &p[ip.at..], &t);
                let length = &got[0][t.header.len() - 6..t.header.len() - 4];
                assert_eq!(length, ((p.len() - ip.at) as u16).to_be_bytes());
            } else {
                let inner = [&[0; 12][..], &p[ip.at - 2..]].concat();
                assert_eq!(got[0], inner, "seed {seed}");
                carried += 1;
            }
        }
        assert!(b.peers[0].drain().is_empty(), "seed {seed}");
    }
    assert!(carried > 300 && refused > 30, "{carried} {refused}");
    assert!(b.dp.totals().drops[Drop::PacketType as usize] > 0);
    assert_eq!(b.dp.perf().iter().map(|(_, p)| p.differences).sum::<u64>(), 0);
    b.assert_balanced();
}

/// A header of GRE or VXLAN-GPE for packets of this Ethertype without an Ethernet header, over IPv4
/// with a checksum, or without.
fn bare_template(kind: TunnelKind, ethertype: u16, summed: bool) -> Arc<TunnelPush> {
    let proto = if kind.is_gre() { 47 } else { 17 };
    let sum = if summed { 0xff } else { 0 };
    let mut h = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];
    h.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    match kind {
        TunnelKind::Gre => {
            h.extend([if summed { 0xa0 } else { 0x20 }, 0]);
            h.extend(ethertype.to_be_bytes());
            h.extend(vec![0; if summed { 4 } else { 0 }]);
            h.extend([0, 0, 0, 42]);
        }
        _ => {
            h.extend([0, 0, 0x12, 0xb5, 0, 0, sum, sum]);
            let inside = match ethertype {
                0x86dd => 2,
                0x894f => 4,
                _ => 1,
            };
            h.extend([0xc, 0, 0, inside, 0, 0, 42, 0]);
        }
    }
    popped(kind, h)
}

/// Packets lose their Ethernet header in front of GRE or VXLAN-GPE, and come out as such that have
/// none, until one is put in front.
#[test]
fn packets_go_into_tunnels_without_their_ethernet_header() {
    let mut b = bed(3);
    b.dp.set_settings(Settings { validate: true, ..Settings::default() });
    let (mut carried, mut refused) = ([0; 2], 0);
    for seed in 0..800 {
        let mut r = Rng(seed);
        let p = packet(&mut r);
        let l3 = wire::l3(&p).filter(|l| l.ethertype >= 0x600);
        let named = l3.filter(|l| matches!(l.ethertype, 0x0800 | 0x86dd | 0x894f));
        let (kind, behind) = match seed % 2 {
            0 => (TunnelKind::Gre, l3),
            _ => (TunnelKind::Vxlan, named),
        };
        let t = bare_template(kind, behind.map_or(0x0800, |l| l.ethertype), r.chance(50));
        let pop = Op::TunnelPop { port: TUNNEL, kind, options: [].into() };
        let (mut new, mut mask) = (Key::ZERO, Key::ZERO);
        new.set(at::ETH_DST, [7; 12]);
        mask.set(at::ETH_DST, [0xff; 12]);
        let header = Op::PushEth(Box::new(Rewrite { key: new, mask }));
        let came = on(TUNNEL, &[(Field::TunId, 42)], vec![header, Op::Output(OUT)], 1);
        let rules = vec![with_flag(came, flag::BARE), on(TUNNEL, &[], vec![Op::Output(PHY)], 2)];
        for out in [vec![Op::Output(OUT)], vec![pop]] {
            let whole = matches!(out[..], [Op::Output(_)]);
            let push = [vec![Op::TunnelPush(t.clone())], out].concat();
            b.set_rules([rules.clone(), vec![on(PHY, &[], push, 3)]].concat());
            b.peers[0].send(&p);
            b.run();
            let got = b.peers[2].drain();
            let Some(l3) = &behind else {
                assert!(got.is_empty(), "seed {seed}");
                refused += 1;
                continue;
            };
            assert_eq!(got.len(), 1, "seed {seed}");
            if whole {
                check_outer(&got[0], &p[l3.at..], &t);
            } else {
                assert_eq!(got[0], [&[7; 12][..], &p[l3.at - 2..]].concat(), "seed {seed}");
                carried[usize::from(!kind.is_gre())] += 1;
            }
        }
        assert!(b.peers[0].drain().is_empty(), "seed {seed}");
    }
    assert!(carried.iter().all(|n| *n > 200) && refused > 50, "{carried:?} {refused}");
    assert_eq!(b.dp.totals().drops[Drop::PacketType as usize], refused);
    assert_eq!(b.dp.perf().iter().map(|(_, p)| p.differences).sum::<u64>(), 0);
    b.assert_balanced();
}

/// What is behind GRE has to be named by an Ethertype, and to be a packet of its own.
#[test]
fn protocols_of_gre_that_name_no_packet_have_a_named_end() {
    let mut b = bed(3);
    let pop = Op::TunnelPop { port: TUNNEL, kind: TunnelKind::Gre, options: [].into() };
    b.set_rules(vec![on(PHY, &[], vec![pop], 1), on(TUNNEL, &[], vec![Op::Output(OUT)], 2)]);
    for (protocol, passes) in [
        (0, false),
        (0x5ff, false),
        (0x600, true),
        (0x8100, false),
        (0x88a8, false),
        (0x88be, false),
        (0x22eb, false),
        (0x8848, true),
    ] {
        let mut frame = bare_template(TunnelKind::Gre, protocol, false).header.to_vec();
        frame.extend([7; 40]);
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        fix_ip(&mut frame);
        let before = b.dp.totals().drops[Drop::TunnelHeader as usize];
        b.peers[0].send(&frame);
        b.run();
        assert_eq!(b.peers[2].drain().len(), usize::from(passes), "{protocol:#x}");
        let dropped = b.dp.totals().drops[Drop::TunnelHeader as usize] - before;
        assert_eq!(dropped, u64::from(!passes), "{protocol:#x}");
    }
    b.assert_balanced();
}
