//! The table against its twin: the same packets, the same states.

use super::*;
use crate::conn::{Meta, state};
use crate::model::Model;
use crate::track::{Arrival, At, track};
use action::{Ct, Nat, NatSide};
use proptest::prelude::*;
use sync::Domain;
use wire::tcp_flags::{ACK, FIN, RST, SYN};
use wire::{IP_ICMP, IP_TCP, IP_UDP, checksum};

/// A packet: of a few stations and ports, so that many belong together.
#[derive(Clone, Debug)]
struct Shape {
    from: u8,
    to: u8,
    proto: u8,
    ports: (u16, u16),
    flags: u16,
    seq: u32,
    ack: u32,
}

fn shape() -> impl Strategy<Value = Shape> {
    let proto = prop_oneof![Just(IP_TCP), Just(IP_UDP), Just(IP_ICMP)];
    let flags = prop_oneof![
        Just(SYN),
        Just(SYN | ACK),
        Just(ACK),
        Just(FIN | ACK),
        Just(RST | ACK),
        Just(0)
    ];
    let ports = (1u16..4, 1u16..4);
    (0u8..3, 0u8..3, proto, ports, flags, 0u32..3, 0u32..3).prop_map(
        |(from, to, proto, ports, flags, seq, ack)| Shape {
            from,
            to,
            proto,
            ports,
            flags,
            seq,
            ack,
        },
    )
}

fn ipv4(s: &Shape) -> Vec<u8> {
    let l4 = match s.proto {
        IP_TCP => tcp(s),
        IP_UDP => [&s.ports.0.to_be_bytes()[..], &s.ports.1.to_be_bytes(), &[0, 8, 0, 0]].concat(),
        _ => vec![if s.flags & ACK == 0 { 8 } else { 0 }, 0, 0, 0, 0, s.ports.0 as u8, 0, 1],
    };
    let total = (20 + l4.len()) as u16;
    let mut b =
        vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, s.proto, 0, 0, 10, 0, 0, s.from, 10, 0, 0, s.to];
    b[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = checksum::internet(&b);
    b[10..12].copy_from_slice(&sum.to_be_bytes());
    let (at, sum) = match s.proto {
        IP_TCP => {
            let pseudo =
                checksum::pseudo_v4([10, 0, 0, s.from], [10, 0, 0, s.to], s.proto, l4.len());
            (36, pseudo.bytes(&l4).finish())
        }
        IP_UDP => (26, 0),
        _ => (22, checksum::internet(&l4)),
    };
    b.extend(l4);
    b[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    b
}

fn tcp(s: &Shape) -> Vec<u8> {
    let mut b = vec![0; 20];
    b[..2].copy_from_slice(&s.ports.0.to_be_bytes());
    b[2..4].copy_from_slice(&s.ports.1.to_be_bytes());
    b[4..8].copy_from_slice(&s.seq.to_be_bytes());
    b[8..12].copy_from_slice(&s.ack.to_be_bytes());
    b[12..14].copy_from_slice(&(0x5000 | s.flags).to_be_bytes());
    b[14..16].copy_from_slice(&1000u16.to_be_bytes());
    b
}

#[derive(Clone, Debug)]
enum Step {
    Packet(Shape, Vec<Ct>),
    Wait(u64),
    Flush(Option<u16>),
    Limit(u16, Option<u32>),
}

fn ct() -> impl Strategy<Value = Ct> {
    let nat = prop_oneof![
        3 => Just(None),
        1 => Just(Some(Nat::default())),
        1 => any::<bool>().prop_map(|source| {
            let address = std::net::IpAddr::from([10, 0, 0, 1]);
            let side = Some(if source { NatSide::Source } else { NatSide::Destination });
            Some(Nat { side, addresses: Some((address, address)), ports: Some((1, 3)), ..Nat::default() })
        }),
    ];
    (0u16..2, any::<bool>(), prop::bool::weighted(0.1), nat, 0u32..4).prop_map(
        |(zone, commit, force, nat, mark)| Ct {
            zone,
            commit: commit || force || nat.as_ref().is_some_and(|n: &Nat| n.side.is_some()),
            force,
            nat,
            mark: (mark, 3),
            label: (u128::from(mark) << 100, 3 << 100),
            ..Ct::default()
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (shape(), prop::collection::vec(ct(), 1..3)).prop_map(|(s, c)| Step::Packet(s, c)),
        2 => (0u64..70_000).prop_map(Step::Wait),
        1 => prop::option::of(0u16..2).prop_map(Step::Flush),
        1 => (0u16..2, prop::option::of(0u32..4)).prop_map(|(z, n)| Step::Limit(z, n)),
    ]
}

/// Packets that went through, without what only one of the two knows.
fn run<S: Store>(
    store: &mut S,
    shape: &Shape,
    list: &[Ct],
    now: u64,
) -> impl PartialEq + std::fmt::Debug {
    let mut data = ipv4(shape);
    let mut meta = Meta::default();
    let mut all = Vec::new();
    for ct in list {
        let _ = track(
            store,
            ct,
            &mut data,
            At { l3: 0, sound: false },
            &mut meta,
            Arrival { port: 1, now },
        );
        all.push((meta.state, meta.zone, meta.mark, meta.label, meta.tuple));
    }
    (all, data)
}

/// The table ends connections up to a second late.
const LATE_MS_MAX: u64 = 1_100;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_table_does_what_its_twin_does(steps in prop::collection::vec(step(), 1..60)) {
        let domain = Domain::new();
        let reader = domain.reader();
        let mut table = Table::new();
        table.secret = Secret::fixed();
        let table = Arc::new(table);
        let mut now = 1_000_000;
        let mut keeper = Keeper::new(&table, domain, now);
        let (mut worker, mut model) = (Worker::new(&table), Model::default());
        // The twin's timeouts are exact, the table's are late: nothing happens in between.
        for step in steps {
            match step {
                Step::Packet(shape, list) => {
                    let (a, b) = (run(&mut worker, &shape, &list, now), run(&mut model, &shape, &list, now));
                    prop_assert_eq!(format!("{a:?}"), format!("{b:?}"));
                }
                Step::Wait(millis) => {
                    now += millis;
                    while model.all(now).count() != model.all(now - LATE_MS_MAX).count() {
                        now += LATE_MS_MAX;
                    }
                    keeper.look_at_all();
                    reader.quiescent();
                }
                Step::Flush(zone) => {
                    model.flush(zone);
                    match zone {
                        Some(zone) => table.flush_zone(zone),
                        None => table.flush(),
                    }
                }
                Step::Limit(zone, n) => {
                    model.limits.set_zone(zone, n);
                    table.limits.set_zone(zone, n);
                }
            }
            while !keeper.tend(now, 1000) {}
            prop_assert_eq!(table.len() as usize, model.all(now).count());
        }
        table.flush();
        while !keeper.tend(now, 1000) {}
        reader.quiescent();
        keeper.tend(now, 1000);
        let buckets = 0..table.bucket_count();
        prop_assert_eq!(table.buckets(buckets).sum::<usize>(), 0, "entries stay in the index");
    }
}

/// A SYN's states, and those of what follows.
#[test]
fn tcp_from_syn_to_the_end() {
    let domain = Domain::new();
    let table = Arc::new(Table::new());
    let _keeper = Keeper::new(&table, domain, 0);
    let mut worker = Worker::new(&table);
    let ct = Ct { commit: true, ..Ct::default() };
    let mut send = |forth: bool, flags, seq, ack| {
        let (from, to, ports) = if forth { (1, 2, (9, 80)) } else { (2, 1, (80, 9)) };
        let mut data = ipv4(&Shape { from, to, proto: IP_TCP, ports, flags, seq, ack });
        let mut meta = Meta::default();
        let _ = track(
            &mut worker,
            &ct,
            &mut data,
            At { l3: 0, sound: false },
            &mut meta,
            Arrival::default(),
        );
        meta.state & !state::TRK
    };
    assert_eq!(send(true, SYN, 100, 0), state::NEW);
    assert_eq!(send(true, SYN, 100, 0), state::NEW, "sent again");
    assert_eq!(send(false, SYN | ACK, 500, 101), state::EST | state::RPL);
    assert_eq!(send(true, ACK, 101, 501), state::EST);
    assert_eq!(send(true, ACK, 900_101, 501), state::EST, "no data: no sequence to check");
    assert_eq!(send(true, SYN | FIN, 101, 501), state::INV);
    assert_eq!(send(true, FIN | ACK, 101, 501), state::EST);
    assert_eq!(send(false, FIN | ACK, 501, 102), state::EST | state::RPL);
    assert_eq!(send(true, ACK, 102, 502), state::EST);
    assert_eq!(send(true, SYN, 5000, 0), state::NEW, "the ports are used again");
    assert_eq!(table.len(), 1);
}
