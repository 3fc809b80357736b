//! Compiled programs of connection tracking against the interpreter, on generated packets and
//! rules.
mod common;
#[path = "common/gen.rs"]
mod generate;

use action::{Ct, Nat, NatSide, Op};
use common::*;
use conntrack::{Conn, state};
use datapath::Settings;
use flow::{Field, at};
use generate::{Rng, packet};

/// A rule about a recirculation id and bits of `ct_state`.
fn tracked(id: u32, (bits, mask): (u8, u8), ops: Vec<Op>) -> Rule {
    let mut rule = rule(&[], ops, id);
    rule.key.set_u32(at::RECIRC, id);
    rule.mask.set_u32(at::RECIRC, u32::MAX);
    rule.key.set_u8(at::CT_STATE, bits);
    rule.mask.set_u8(at::CT_STATE, mask);
    rule
}

fn some_nat(r: &mut Rng) -> Option<Nat> {
    let address = std::net::IpAddr::from([10, 0, 0, 100]);
    Some(match r.below(6) {
        0 => Nat::default(),
        1 => Nat {
            side: Some(NatSide::Source),
            addresses: Some((address, address)),
            ..Nat::default()
        },
        2 => Nat {
            side: Some(NatSide::Destination),
            addresses: Some((address, address)),
            ports: Some((80, 80)),
            ..Nat::default()
        },
        _ => return None,
    })
}

/// Rules of three passes: what is not tracked is, what is new is committed, by chance in two zones.
fn some_rules(r: &mut Rng) -> Vec<Rule> {
    let zone = r.below(2) as u16;
    let bare = |r: &mut Rng| (r.chance(60)).then(Nat::default);
    let ct = |zone, nat| Ct { zone, nat, ..Ct::default() };
    let commit = |r: &mut Rng, zone| Ct {
        commit: true,
        force: r.chance(10),
        mark: if r.chance(30) { (7, 0xff) } else { (0, 0) },
        label: if r.chance(30) { (9 << 64, u128::MAX) } else { (0, 0) },
        ..ct(zone, some_nat(r))
    };
    let op = |ct| Op::Ct(Box::new(ct));
    let other = r.below(2) as u16;
    let then = |r: &mut Rng| if r.chance(50) { Op::Recirc(2) } else { Op::Output(1) };
    let mut list = vec![
        tracked(0, (0, 0), vec![op(ct(zone, bare(r))), Op::Recirc(1)]),
        tracked(1, (state::INV, state::INV), vec![Op::Output(2)]),
        tracked(1, (state::NEW, state::NEW), vec![op(commit(r, zone)), then(r)]),
        tracked(1, (0, 0), vec![op(ct(other, bare(r))), then(r)]),
        tracked(2, (state::NEW, state::NEW), vec![op(commit(r, other)), Op::Output(1)]),
        tracked(2, (0, 0), vec![Op::Output(1)]),
    ];
    // Second lookups look at more than the state.
    for _ in 0..r.below(3) {
        let id = 1 + r.below(2) as u32;
        let mut special = tracked(id, (state::EST, state::EST), vec![some_end(r)]);
        let (field, value) = r.pick(&[
            (Field::CtMark, 7),
            (Field::CtMark, 0),
            (Field::CtLabel, 9 << 64),
            (Field::CtZone, 1),
            (Field::CtNwSrc, 0x0a00_0002),
            (Field::CtTpDst, 80),
            (Field::Ipv4Src, 0x0a00_0064),
            (Field::Ipv4Dst, 0x0a00_0001),
            (Field::UdpDst, 80),
            (Field::EthDst, 0),
        ]);
        field.set(&mut special.key, value);
        field.unwildcard(&mut special.mask);
        list.insert(1, special);
    }
    list
}

/// The end of a packet's way.
fn some_end(r: &mut Rng) -> Op {
    if r.chance(20) { Op::Drop(telemetry::Drop::Policy) } else { Op::Output(2) }
}

/// A packet whose checksums the adapter looked at.
fn send(b: &Bed, bytes: &[u8]) {
    match conntrack::extract(bytes, 14, 0, false) {
        Ok(_) => b.peers[0].send_sound(bytes),
        Err(_) => b.peers[0].send(bytes),
    }
}

/// `rules` with programs that only the interpreter executes.
fn interpreted(rules: &[Rule]) -> Vec<Rule> {
    let one = |rule: &Rule| {
        let mut ops = rule.ops.clone();
        ops.insert(0, Op::Clone([].into()));
        Rule { ops, ..rule.clone() }
    };
    rules.iter().map(one).collect()
}

/// TCP and UDP between few stations, so that packets meet connections; now and then anything.
fn some_packet(r: &mut Rng) -> Vec<u8> {
    if r.chance(10) {
        return packet(r);
    }
    let (client, server) = ((0x0a00_0001 + r.below(3) as u32, 1000), (0x0a00_0010, 80));
    let client = (client.0, client.1 + r.below(2) as u16);
    let to = if r.chance(20) { 0x0a00_0064 } else { client.0 };
    let mut d = match r.chance(50) {
        true => udp(client.0, server.0, client.1, server.1, 64),
        false => udp(server.0, to, server.1, client.1, 64),
    };
    if r.chance(60) {
        d[23] = 6;
        d[38..42].copy_from_slice(&(1 + r.below(3) as u32).to_be_bytes());
        d[42..46].copy_from_slice(&(1 + r.below(3) as u32).to_be_bytes());
        d[46] = 0x50;
        d[47] = r.pick(&[2, 0x12, 0x10, 0x10, 0x11, 4, 0x14, 0]);
    }
    if r.chance(5) {
        d[20] = 0x20;
    }
    let header = !sum(&[&d[14..24], &[0, 0], &d[26..34]].concat(), 0);
    d[24..26].copy_from_slice(&header.to_be_bytes());
    let at = if d[23] == 6 { 50 } else { 40 };
    let whole = l4_sum(&d);
    d[at..at + 2].copy_from_slice(&whole.to_be_bytes());
    if r.chance(5) {
        d[55] ^= 1;
    }
    d
}

/// Connections, but for the time that they have left.
fn table(b: &Bed) -> Vec<String> {
    let mut all = Vec::new();
    b.dp.conntrack().show(0, u32::MAX, datapath::now_ms(), |shown| {
        all.push(format!("{:?}", Conn { expires: 0, ..shown.conn }));
    });
    all.sort();
    all
}

#[test]
fn tracking_programs_equal_the_interpreter() {
    equal_the_interpreter(false);
    equal_the_interpreter(true);
}

/// `validate`: each step is compared with its twin as well, for which packets have whole keys.
fn equal_the_interpreter(validate: bool) {
    let (mut fast, mut slow) = (bed(3), bed(3));
    fast.dp.set_settings(Settings { validate, ..Settings::default() });
    let (mut established, mut kept) = (0, 0);
    for seed in 0..120 {
        let r = &mut Rng(seed);
        let rules = some_rules(r);
        slow.set_rules(interpreted(&rules));
        fast.set_rules(rules.clone());
        for vector in 0..3 {
            let packets: Vec<_> = (0..1 + r.below(40)).map(|_| some_packet(r)).collect();
            let [did, should] = [&mut fast, &mut slow].map(|b| {
                packets.iter().for_each(|p| send(b, p));
                b.run();
                ([b.peers[1].drain(), b.peers[2].drain()], table(b))
            });
            assert_eq!(
                did.0,
                should.0,
                "seed {seed}, vector {vector}: {rules:?}",
                rules = ops(&rules)
            );
            assert_eq!(
                did.1,
                should.1,
                "seed {seed}, vector {vector}: {rules:?}",
                rules = ops(&rules)
            );
            established += did.0[0].len();
            kept += did.1.len();
        }
        for b in [&mut fast, &mut slow] {
            b.dp.conntrack().flush();
            b.run();
        }
    }
    assert!(established > 1500 && kept > 300, "{established} packets, {kept} connections");
    let perf = |b: &Bed| b.dp.perf().iter().map(|(_, p)| (p.recirculated, p.differences)).max();
    assert_eq!(perf(&fast).map(|p| p.0), perf(&slow).map(|p| p.0));
    assert_eq!(perf(&fast).map(|p| p.1), Some(0));
    // Fragments wait for the rest of their datagrams.
    let held = [&fast, &slow].map(|b| {
        let (came, went) = b.dp.totals().balance();
        assert_eq!(b.pool.in_use() as u64, came - went);
        came - went
    });
    assert_eq!(held[0], held[1]);
    assert_eq!(fast.dp.totals().drops, slow.dp.totals().drops);
}

fn ops(rules: &[Rule]) -> Vec<&Vec<Op>> {
    rules.iter().map(|r| &r.ops).collect()
}
