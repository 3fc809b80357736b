//! Every fast thing against its slow twin, on random packets.
mod common;
#[path = "common/gen.rs"]
mod generate;
#[path = "common/slow.rs"]
mod slow;

use action::{Decision, Op, Payload, Region, Rewrite};
use common::*;
use datapath::{Level, Settings, Tri, extract};
use flow::{Field, Key, at};
use generate::{Rng, packet};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parser_equals_slow_parser(seed: u64) {
        let mut r = Rng(seed);
        let p = packet(&mut r);
        // Some byte is another one, and once it is where the length of a TCP header is.
        let (mut odd, mut tcp) = (p.clone(), p.clone());
        odd[r.below(p.len() as u64) as usize] = r.next() as u8;
        if let Some(length) = tcp.get_mut(46) {
            *length = r.next() as u8;
        }
        for (p, limit) in [&p, &odd, &tcp].into_iter().flat_map(|p| [(p, 1), (p, 2)]) {
            prop_assert_eq!(extract(p, 3, limit).unwrap(), slow::parse(p, 3, limit), "{:x?}", p);
        }
    }

    #[test]
    fn parser_survives_anything(d in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(extract(&d, 0, 2).is_some(), d.len() >= 14);
        if let Some(k) = extract(&d, 0, 2) {
            prop_assert_eq!(k, slow::parse(&d, 0, 2));
        }
    }
}

/// Rewrites fields, which the packet has or has not; sometimes it says what the packet is, as
/// translation does.
fn some_set(r: &mut Rng, packet: &Key) -> Op {
    const FIELDS: [Field; 24] = [
        Field::EthDst,
        Field::EthSrc,
        Field::VlanVid,
        Field::Ipv4Src,
        Field::Ipv4Dst,
        Field::IpTos,
        Field::IpTtl,
        Field::Ipv6Src,
        Field::Ipv6Dst,
        Field::Ipv6Label,
        Field::TcpSrc,
        Field::UdpDst,
        Field::Icmpv6Type,
        Field::NdTarget,
        Field::ArpSha,
        Field::NdTll,
        Field::NdReserved,
        Field::NdOptionsType,
        Field::MplsLabel,
        Field::MplsTtl,
        Field::NshFlags,
        Field::NshTtl,
        Field::NshSpi,
        Field::NshC2,
    ];
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    for _ in 0..1 + r.below(2) {
        let f = r.pick(&FIELDS);
        f.set(&mut key, (r.next() as u128) << 64 | r.next() as u128);
        let m = if r.chance(70) { u128::MAX } else { (r.next() as u128) << 64 | r.next() as u128 };
        f.set(&mut mask, m);
    }
    if r.chance(70) {
        key.set_u16(at::ETH_TYPE, packet.u16(at::ETH_TYPE));
        key.set_u8(at::PROTO, packet.u8(at::PROTO));
    }
    Op::Set(Box::new(Rewrite { key, mask }))
}

fn some_ops(r: &mut Rng, packet: &[u8]) -> Vec<Op> {
    let out = Op::Output(1 + r.below(2) as u16);
    let key = extract(packet, 0, 1).unwrap();
    let tag = Op::PushVlan { tpid: r.pick(&[0x8100, 0x88a8]), tci: r.next() as u16 };
    let nsh = [0x0f, 0xc3, 2, 1 + r.below(4) as u8, 0, 0, 7, 255, 1, 2, 3, 4];
    let payload = r.pick(&[Payload::Frame, Payload::Popped]);
    match r.below(11) {
        0 => vec![some_set(r, &key), out],
        1 => vec![some_set(r, &key), some_set(r, &key), out],
        2 => vec![tag, out],
        6 => vec![Op::PopVlan, tag, out],
        7 => vec![some_set(r, &key), Op::Output(1), some_set(r, &key), tag, out],
        3 => vec![Op::PopVlan, out],
        4 => vec![Op::Output(1), Op::Output(2), out],
        5 => vec![out],
        9 => vec![Op::PushNsh { payload, header: nsh.into() }, some_set(r, &key), out],
        10 => vec![Op::PopNsh { framed: true }, out],
        _ => vec![],
    }
}

/// Fast kinds of programs against the interpreter (which executes injected packets).
#[test]
fn programs_equal_the_interpreter() {
    let mut b = bed(3);
    let mut written = 0;
    for seed in 0..4000 {
        let mut r = Rng(seed);
        let p = packet(&mut r);
        let ops = some_ops(&mut r, &p);
        b.set_rules(vec![rule(&[], ops.clone(), 1)]);
        b.peers[0].send(&p);
        b.run();
        let fast = [b.peers[1].drain(), b.peers[2].drain()];
        b.dp.execute(&p, 0, &ops).unwrap();
        b.run();
        let slow = [b.peers[1].drain(), b.peers[2].drain()];
        assert_eq!(fast, slow, "seed {seed}: {ops:?} on {p:x?}");
        let twice = b.dp.totals();
        for d in 0..telemetry::Drop::COUNT {
            assert_eq!(twice.drops[d] % 2, 0, "seed {seed}: {:?}", telemetry::Drop::ALL[d]);
        }
        assert_eq!(twice.copies % 2, 0, "seed {seed}");
        written += fast.iter().flatten().filter(|f| **f != p).count();
    }
    assert!(written > 500, "most rewrites did something: {written}");
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

/// Rewrites of network service headers change the fields that the slow parser reads, and nothing
/// else.
#[test]
fn rewritten_service_headers_have_the_new_fields() {
    const FIELDS: [(Field, u128); 8] = [
        (Field::NshFlags, 3),
        (Field::NshTtl, 63),
        (Field::NshSpi, 0xff_ffff),
        (Field::NshSi, 0xff),
        (Field::NshC1, 0xffff_ffff),
        (Field::NshC2, 0xffff_ffff),
        (Field::NshC3, 0xffff_ffff),
        (Field::NshC4, 0xffff_ffff),
    ];
    let mut b = bed(3);
    let mut changed = 0;
    for seed in 0..4000 {
        let mut r = Rng(seed);
        let p = packet(&mut r);
        let old = slow::parse(&p, 0, 1);
        if old.u16(at::ETH_TYPE) != 0x894f {
            continue;
        }
        let (mut key, mut mask, mut want) = (Key::ZERO, Key::ZERO, old);
        key.set_u16(at::ETH_TYPE, 0x894f);
        let contexts = if old.u8(at::NSH_MDTYPE) == 1 { 8 } else { 4 };
        for _ in 0..1 + r.below(3) {
            let (i, value) = (r.below(8) as usize, u128::from(r.next()));
            let bits = if r.chance(50) { u128::MAX } else { u128::from(r.next()) };
            let (field, room) = FIELDS[i];
            field.set_masked(&mut key, value, bits);
            field.set_masked(&mut mask, u128::MAX, bits);
            if i < contexts {
                field.set_masked(&mut want, value, bits & room);
            }
        }
        b.set_rules(vec![rule(
            &[],
            vec![Op::Set(Box::new(Rewrite { key, mask })), Op::Output(1)],
            1,
        )]);
        b.peers[0].send(&p);
        b.run();
        let got = b.peers[1].drain();
        // A header that is not whole has no fields.
        let Some(l3) = wire::l3(&p).filter(|_| old.u8(at::NSH_MDTYPE) != 0) else {
            assert!(got.is_empty(), "seed {seed}");
            continue;
        };
        assert_eq!(slow::parse(&got[0], 0, 1), want, "seed {seed}");
        let (header, rest) =
            (l3.at..l3.at + if contexts == 8 { 24 } else { 8 }, l3.at + 2..l3.at + 4);
        assert_eq!(got[0][rest.clone()], p[rest], "seed {seed}");
        assert_eq!(got[0][header.end..], p[header.end..], "seed {seed}");
        assert_eq!(got[0][header.start + 1] & 0x3f, p[header.start + 1] & 0x3f, "seed {seed}");
        changed += usize::from(got[0] != p);
    }
    assert!(changed > 150, "{changed}");
    b.assert_balanced();
}

/// Every level with the validating mode, beside the scalar one without.
#[test]
fn the_validating_mode_finds_nothing_and_changes_nothing() {
    for level in Level::ALL.into_iter().filter(|l| datapath::is_available(*l)) {
        let (mut plain, mut checked) = (bed(3), bed(3));
        let scalar = Settings { level: Level::Scalar, validate: false, ..Settings::default() };
        plain.dp.set_settings(scalar.clone());
        checked.dp.set_settings(Settings { level, validate: true, ..scalar });
        for seed in 0..600 {
            let mut r = Rng(seed);
            let p = packet(&mut r);
            let ops = some_ops(&mut r, &p);
            let outputs = [&mut plain, &mut checked].map(|b| {
                b.set_rules(vec![rule(&[], ops.clone(), 1)]);
                (0..3).for_each(|_| b.peers[0].send(&p));
                b.run();
                [b.peers[1].drain(), b.peers[2].drain()]
            });
            assert_eq!(outputs[0], outputs[1], "seed {seed}");
        }
        let perf: Vec<_> = checked.dp.perf().into_iter().map(|(_, p)| p).collect();
        let sum = |f: fn(&datapath::Perf) -> u64| perf.iter().map(f).sum::<u64>();
        assert_eq!(sum(|p| p.differences), 0, "{}", level.name());
        assert!(sum(|p| p.parse_validated) >= 1800, "each packet");
        assert!(sum(|p| p.lookup_validated) >= 600 && sum(|p| p.act_validated) >= 600);
        let claimed = sum(|p| p.claimed);
        assert!(if level == Level::Scalar { claimed == 0 } else { claimed > 300 }, "{claimed}");
        assert_eq!(plain.dp.perf()[0].1.validated(), 0);
        checked.assert_balanced();
    }
}

fn some_rule(r: &mut Rng, credit: u32) -> Rule {
    const FIELDS: [Field; 14] = [
        Field::EthType,
        Field::Ipv4Dst,
        Field::Ipv4Src,
        Field::Ipv6Dst,
        Field::IpProto,
        Field::UdpDst,
        Field::TcpSrc,
        Field::IpFrag,
        Field::VlanVid,
        Field::IpTos,
        Field::ArpTpa,
        Field::EthDst,
        Field::NshSi,
        Field::NshC1,
    ];
    let sample = extract(&packet(r), 0, 1).unwrap();
    let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
    for _ in 0..1 + r.below(3) {
        let f = r.pick(&FIELDS);
        // Few distinct values, so that rules are hit: one bit each.
        let bit = 1u128 << r.below(f.bits() as u64);
        f.set_masked(&mut key, f.get(&sample), bit);
        let m = f.get(&mask) | bit;
        f.set(&mut mask, m);
    }
    Rule { key: key.masked(&mask), mask, ops: vec![Op::Output(1 + (credit % 2) as u16)], credit }
}

/// Table and cache against asking the pipeline for every packet, while rules change.
fn table_equals_pipeline(seed: u64, settings: Settings) {
    let mut b = bed(3);
    b.dp.set_settings(settings);
    let mut r = Rng(seed);
    let mut rules: Vec<Rule> = (0..40).map(|i| some_rule(&mut r, i)).collect();
    rules.push(rule(&[], vec![Op::Output(2)], 99));
    b.set_rules(rules.clone());
    let packets: Vec<Vec<u8>> = (0..300).map(|_| packet(&mut r)).collect();
    let mut want_credits = std::collections::BTreeMap::new();
    let writer = b.domain.writer();
    for round in 0..30 {
        let mut want = [0usize; 3];
        for _ in 0..200 {
            let p = &packets[r.below(300) as usize];
            let mut d = Decision::default();
            b.rules.decide(writer.pin(), &extract(p, 0, 1).unwrap(), &mut d);
            if let Some(Op::Output(port)) = d.ops.first() {
                want[*port as usize] += 1;
            }
            *want_credits.entry(d.credits[0]).or_insert(0u64) += 1;
            b.peers[0].send(p);
        }
        b.run();
        assert_eq!(
            [b.peers[1].drain().len(), b.peers[2].drain().len()],
            want[1..],
            "round {round}"
        );
        // One rule changes; only what overlaps it is invalidated.
        let i = r.below(40) as usize;
        let old = std::mem::replace(&mut rules[i], some_rule(&mut r, i as u32 + 100 * (round + 1)));
        let regions = [&old, &rules[i]].map(|x| Region::new(x.key, x.mask));
        b.rules.list.publish(rules.clone());
        let t = b.dp.invalidate(&regions);
        b.wait(t);
    }
    let got = b.credits();
    for (credit, n) in want_credits {
        assert_eq!(got[&credit].0, n, "credit {credit}");
    }
    b.assert_balanced();
    assert_eq!(b.pool.in_use(), 0);
}

#[test]
fn table_equals_pipeline_without_cache() {
    for seed in 0..6 {
        table_equals_pipeline(seed, Settings { signature_cache: Tri::Off, ..Settings::default() });
    }
}

#[test]
fn table_equals_pipeline_with_cache() {
    for seed in 0..6 {
        table_equals_pipeline(seed, Settings { signature_cache: Tri::On, ..Settings::default() });
    }
}

#[test]
fn table_equals_pipeline_when_full() {
    let tight = Settings { flow_limit: 24, miss_budget: 7, ..Settings::default() };
    for seed in 0..4 {
        table_equals_pipeline(seed, tight.clone());
    }
}
