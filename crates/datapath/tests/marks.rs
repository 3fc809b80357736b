//! Marked packets: whatever an adapter writes into them, they are treated as if it wrote nothing.

mod common;
#[path = "common/gen.rs"]
mod generate;

use action::{Op, Rewrite};
use common::{Bed, Rule, bed, rule, udp};
use flow::{FIELDS, Field, Key, Mask, PACKET_LINES, at};
use generate::{Rng, packet};
use offload::{Mark, first_bytes};
use packet::BURST;
use std::collections::{BTreeMap, HashSet};

/// Some fields, in part or whole, as decisions look at them.
fn random_mask(r: &mut Rng, key: &Key) -> Mask {
    let mut mask = Key::ZERO;
    mask.set_u16(at::IN_PORT, 0xffff);
    mask.set_u32(at::RECIRC, !0);
    mask.set_u16(at::ETH_TYPE, 0xffff);
    let ip = [0x0800, 0x86dd].contains(&key.u16(at::ETH_TYPE));
    if ip {
        mask.set_u8(at::FRAG, 3);
    }
    for f in FIELDS.iter().filter(|f| f.offset() + f.bytes() <= at::METADATA) {
        if r.chance(12) {
            let some = u128::from(r.next()) << 64 | u128::from(r.next());
            f.set_masked(&mut mask, u128::MAX, if r.chance(70) { u128::MAX } else { some });
        }
    }
    mask.words[PACKET_LINES * 8..].fill(0);
    let l4 = mask.u32(at::TP_SRC) != 0 || mask.u16(at::TCP_FLAGS) != 0;
    if ip && (l4 || r.chance(50)) {
        mask.set_u8(at::PROTO, 0xff);
    }
    if mask.u16(at::VLAN) != 0 {
        mask.set_u16(at::VLAN, mask.u16(at::VLAN) | 0x1000);
    }
    mask
}

/// Another packet, mostly one that is almost the same.
fn relative(r: &mut Rng, of: &[u8]) -> Vec<u8> {
    if r.chance(10) {
        return packet(r);
    }
    let mut p = of.to_vec();
    for _ in 0..r.below(3) {
        let at = r.below(p.len().min(70) as u64) as usize;
        p[at] = if r.chance(50) { r.next() as u8 } else { p[at] ^ 1 << r.below(8) };
    }
    match r.below(12) {
        0 => p.truncate(14 + r.below(p.len() as u64 - 13) as usize),
        1 => p.extend([7; 20]),
        2 => drop(p.splice(12..12, [0x81, 0, r.next() as u8, 1])),
        3 if p.len() > 18 => drop(p.drain(12..16)),
        _ => {}
    }
    p
}

#[test]
fn packets_that_begin_as_a_megaflows_do_are_its_packets() {
    let mut r = Rng(7);
    let (mut said, mut own, mut others) = (0, 0, 0);
    for _ in 0..60_000 {
        let first = packet(&mut r);
        let key = datapath::extract(&first, 3, 1).unwrap();
        let mask = random_mask(&mut r, &key);
        let Ok((bytes, pattern)) = first_bytes(&key.masked(&mask), &mask) else { continue };
        said += 1;
        own += usize::from(bytes.claims(&first));
        // What an adapter is asked for is not narrower.
        for i in 0..64 {
            assert_eq!(pattern.mask[i] & !bytes.mask[i], 0);
            assert_eq!(pattern.value[i], bytes.value[i] & pattern.mask[i]);
        }
        for _ in 0..8 {
            let p = relative(&mut r, &first);
            if bytes.claims(&p) {
                others += 1;
                let found = datapath::extract(&p, 3, 1).unwrap();
                // Like adapters, the comparison does not look at the length of a TCP header.
                let no_header =
                    found.u8(at::PROTO) == 6 && found.u8(at::FLAGS) & flow::flag::L4 == 0;
                assert!(
                    no_header || found.matches(&key, &mask),
                    "{bytes:?}\n{p:x?}\n{found:?}\n{key:?}\n{mask:?}"
                );
            }
        }
    }
    assert!(said > 15_000 && own > said / 2 && others > said, "{said} {own} {others}");
}

/// Destination ports 0 to 7, each treated in another way.
fn rules(shift: u16) -> Vec<Rule> {
    let set = |f: Field, v: u128| {
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        f.set(&mut key, v);
        f.unwildcard(&mut mask);
        Op::Set(Box::new(Rewrite { key, mask }))
    };
    let what = |n: u16| match (n + shift) % 8 {
        0 => vec![Op::Output(1)],
        1 => vec![Op::Output(2)],
        2 => vec![set(Field::EthDst, 0x0200_0000_0077), Op::Output(1)],
        3 => vec![set(Field::Ipv4Dst, 0x0a00_0001), Op::Output(2)],
        4 => vec![],
        5 => vec![Op::PushVlan { tpid: 0x8100, tci: 5 }, Op::Output(1)],
        6 => vec![Op::Output(1), set(Field::UdpDst, 9), Op::Output(2)],
        _ => vec![set(Field::IpTtl, 9), Op::Output(1)],
    };
    let one = |n: u16| {
        let fields =
            [(Field::EthType, 0x0800), (Field::IpProto, 17), (Field::UdpDst, u128::from(n))];
        rule(&fields, what(n), u32::from(n) + 1)
    };
    (0..8).map(one).collect()
}

/// Binds every megaflow of port 0 to a mark: by destination port.
fn bind(b: &mut Bed, next: &mut u32) -> BTreeMap<u16, u32> {
    let mut marks = BTreeMap::new();
    for f in b.dp.flows() {
        let Ok((bytes, _)) = first_bytes(&f.key, &f.mask) else { continue };
        if f.key.u16(at::IN_PORT) != 0 {
            continue;
        }
        *next += 0x101;
        let mark = Mark::of(*next).unwrap();
        if b.dp.bind_mark(f.id, 0, mark, &bytes) {
            marks.insert(f.key.u16(at::TP_DST), *next);
        }
    }
    b.run();
    marks
}

fn sent(b: &Bed) -> Vec<Vec<Vec<u8>>> {
    b.peers.iter().map(|p| p.drain()).collect()
}

/// A lying adapter beside none at all: the same packets come out in the same order and the same is
/// counted, while rules change, marks go stale, and megaflows are flushed.
#[test]
fn an_adapter_that_lies_changes_nothing() {
    let (mut marked, mut plain) = (bed(3), bed(3));
    assert!(marked.dp.enable_marks(0));
    let (mut r, mut next, mut old) = (Rng(3), 0x200, HashSet::new());
    for round in 0..60u16 {
        if round % 5 == 0 {
            marked.set_rules(rules(round));
            plain.set_rules(rules(round));
        }
        if round % 7 == 6 {
            marked.dp.flush();
            marked.run();
        }
        marked.dp.ignore_marks(0, round % 8 == 5);
        for n in 0..8 {
            let p = udp(1, 2, 3, n, 100);
            marked.peers[0].send(&p);
            plain.peers[0].send(&p);
        }
        marked.run();
        plain.run();
        let marks = bind(&mut marked, &mut next);
        for _ in 0..200 {
            let port = r.below(9) as u16;
            let len = r.pick(&[60, 64, 100, 400]);
            let mut p = udp(r.next() as u32, r.next() as u32, r.next() as u16, port, len);
            match r.below(20) {
                0 => p[14] = 0x46,
                1 => p[20] = 0x20,
                2 => p[17] = 0xff,
                3 => p.truncate(38),
                4 => drop(p.splice(12..12, [0x81, 0, 0, 7])),
                _ => {}
            }
            let any = || old.iter().copied().next().unwrap_or(0xffff);
            match r.below(10) {
                0 => marked.peers[0].send(&p),
                1 => marked.peers[0].send_marked(&p, r.next() as u32),
                2 => marked.peers[0].send_marked(&p, any()),
                3 => {
                    let wrong = marks.get(&(r.below(8) as u16)).copied().unwrap_or(1);
                    marked.peers[0].send_marked(&p, wrong);
                }
                _ => marked.peers[0].send_marked(&p, marks.get(&port).copied().unwrap_or(0)),
            }
            plain.peers[0].send(&p);
        }
        marked.run();
        plain.run();
        for (port, (marked, plain)) in sent(&marked).iter().zip(&sent(&plain)).enumerate() {
            let at = marked.iter().zip(plain).position(|(m, p)| m != p);
            let both = at.map(|i| (&marked[i], &plain[i]));
            assert_eq!(both, None, "round {round}, port {port}, packet {at:?}");
            assert_eq!(marked.len(), plain.len(), "round {round}, port {port}");
        }
        old.extend(marks.into_values());
    }
    assert_eq!(marked.credits(), plain.credits());
    marked.assert_balanced();
    plain.assert_balanced();
    assert_eq!(marked.dp.drops(), plain.dp.drops());
    let all = marked.dp.pmd_info();
    let sum = |f: fn(&datapath::Perf) -> u64| all.iter().map(|p| f(&p.perf)).sum::<u64>();
    assert!(sum(|p| p.mark_hits) > 4_000, "{}", sum(|p| p.mark_hits));
    assert!(sum(|p| p.mark_stale) > 500 && sum(|p| p.mark_wrong) > 500);
    assert!(!marked.dp.take_ended_marks().is_empty());
}

/// After a change no packet is treated as before, though adapter and bindings are as they were.
#[test]
fn a_mark_of_a_dead_megaflow_says_nothing() {
    let mut b = bed(3);
    b.dp.enable_marks(0);
    b.set_rules(rules(0));
    b.peers[0].send(&udp(1, 2, 3, 0, 100));
    b.run();
    let marks = bind(&mut b, &mut 0x300);
    b.peers[0].send_marked(&udp(1, 2, 3, 0, 100), marks[&0]);
    b.run();
    assert_eq!(b.peers[1].drain().len(), 2);
    // The rule goes to port 2 now. No step between the ticket's end and the packet.
    b.rules.list.publish(rules(1));
    b.peers[0].send_marked(&udp(1, 2, 3, 0, 100), marks[&0]);
    let t = b.dp.invalidate(&[action::Region::ALL]);
    b.wait(t);
    sent(&b);
    b.peers[0].send_marked(&udp(1, 2, 3, 0, 100), marks[&0]);
    b.run();
    assert_eq!((b.peers[1].drain().len(), b.peers[2].drain().len()), (0, 1));
}

/// What an earlier vector wrote about a place in it is not the key of the marked packet that has it
/// now, so the packet behind that one does not follow it.
#[test]
fn a_packet_does_not_follow_a_marked_one_that_has_no_key() {
    let mut b = bed(3);
    b.dp.enable_marks(0);
    b.set_rules(rules(0));
    let packet = |port| udp(1, 2, 3, port, 100);
    (0..2).for_each(|n| b.peers[0].send(&packet(n)));
    b.run();
    let marks = bind(&mut b, &mut 0x300);
    (0..BURST).for_each(|_| b.peers[0].send(&packet(0)));
    b.run();
    sent(&b);
    (0..BURST).for_each(|_| b.peers[0].send_marked(&packet(1), marks[&1]));
    b.peers[0].send(&packet(0));
    b.run();
    assert_eq!((b.peers[1].drain().len(), b.peers[2].drain().len()), (1, BURST));
}

/// Bindings are kept meanwhile, and workers that come later ignore marks, too.
#[test]
fn marks_can_be_ignored_for_a_time() {
    let mut b = bed(3);
    b.dp.enable_marks(0);
    b.set_rules(rules(0));
    b.dp.ignore_marks(0, true);
    b.peers[0].send(&udp(1, 2, 3, 0, 100));
    b.run();
    let marks = bind(&mut b, &mut 0x300);
    let hits = |b: &mut Bed| {
        (0..40).for_each(|_| b.peers[0].send_marked(&udp(1, 2, 3, 0, 100), marks[&0]));
        b.run();
        b.dp.pmd_info().iter().map(|p| p.perf.mark_hits).sum::<u64>()
    };
    assert_eq!(hits(&mut b), 0);
    b.dp.ignore_marks(0, false);
    assert_eq!(hits(&mut b), 40);
    b.dp.ignore_marks(0, true);
    assert_eq!(hits(&mut b), 40);
    assert_eq!(b.peers[1].drain().len(), 121);
    assert_eq!(b.dp.port_totals(0).packets, 121);
}

/// The table goes with the port, and a megaflow's index may be used again.
#[test]
fn tables_come_and_go() {
    let mut b = bed(3);
    b.set_rules(rules(0));
    b.dp.enable_marks(0);
    let mut next = 0x400;
    for round in 0..20 {
        (0..8).for_each(|n| b.peers[0].send(&udp(1, 2, 3, n, 100)));
        b.run();
        let marks = bind(&mut b, &mut next);
        assert_eq!(marks.len(), 8, "round {round}");
        match round % 3 {
            0 => b.dp.disable_marks(0),
            1 => b.dp.flush(),
            _ => b.dp.set_pmd_cores(&[round % 2]).unwrap(),
        }
        marks.values().for_each(|m| b.peers[0].send_marked(&udp(1, 2, 3, 4, 100), *m));
        b.run();
        b.dp.enable_marks(0);
    }
    b.run();
    b.dp.take_ended_marks();
    b.assert_balanced();
}
