//! The table against its twin: the same packets, the same states.

use super::*;
use crate::conn::{Meta, Translation, state};
use crate::extract::extract;
use crate::model::Model;
use crate::track::{Arrival, IpHeader, track, track_seen};
use action::{Ct, Nat, NatSide};
use proptest::prelude::*;
use sync::Domain;
use wire::tcp_flags::{ACK, FIN, RST, SYN};
use wire::{IP_ICMP, IP_ICMPV6, IP_TCP, IP_UDP, Ipv4, checksum};

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
    v6: bool,
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
    (0u8..3, 0u8..3, proto, ports, flags, 0u32..3, 0u32..3, any::<bool>()).prop_map(
        |(from, to, proto, ports, flags, seq, ack, v6)| Shape {
            from,
            to,
            proto,
            ports,
            flags,
            seq,
            ack,
            v6,
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

/// An IPv6 packet of this shape; what is neither TCP nor UDP is an echo request or its answer.
fn ipv6(s: &Shape) -> Vec<u8> {
    let (proto, sum_at, mut l4) = match s.proto {
        IP_TCP => (IP_TCP, 16, tcp(s)),
        IP_UDP => {
            let ports = [s.ports.0.to_be_bytes(), s.ports.1.to_be_bytes()].concat();
            (IP_UDP, 6, [&ports[..], &[0, 8, 0, 0]].concat())
        }
        _ => {
            let kind = if s.flags & ACK == 0 { 128 } else { 129 };
            (IP_ICMPV6, 2, vec![kind, 0, 0, 0, 0, s.ports.0 as u8, 0, 1])
        }
    };
    let [src, dst] = [s.from, s.to].map(|last| {
        let mut address = [0xfd; 16];
        address[15] = last;
        address
    });
    let pseudo = checksum::pseudo_v6(&src, &dst, proto, l4.len());
    let sum = pseudo.bytes(&l4).finish_udp();
    l4[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let mut b = vec![0x60, 0, 0, 0, 0, l4.len() as u8, proto, 64];
    b.extend([&src[..], &dst, &l4].concat());
    b
}

fn bytes(s: &Shape) -> Vec<u8> {
    if s.v6 { ipv6(s) } else { ipv4(s) }
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
    Packets(Vec<Shape>, Vec<Ct>),
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
            // A mark of 0: neither mark nor label are set, as the fast path wants it.
            zone,
            commit: commit || force || nat.as_ref().is_some_and(|n: &Nat| n.side.is_some()),
            force,
            nat,
            mark: (mark, if mark == 0 { 0 } else { 3 }),
            label: (u128::from(mark) << 100, if mark == 0 { 0 } else { 3 << 100 }),
            ..Ct::default()
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (shape(), prop::collection::vec(ct(), 1..3)).prop_map(|(s, c)| Step::Packets(vec![s], c)),
        5 => (shape(), prop::collection::vec(ct(), 1..3)).prop_map(|(s, c)| Step::Packets(opened(&s), c)),
        2 => (0u64..70_000).prop_map(Step::Wait),
        1 => prop::option::of(0u16..2).prop_map(Step::Flush),
        1 => (0u16..2, prop::option::of(0u32..4)).prop_map(|(z, n)| Step::Limit(z, n)),
    ]
}

/// One packet through one `ct`.
fn slow<S: Store>(store: &mut S, ct: &Ct, data: &mut [u8], meta: &mut Meta<S::Ref>, now: u64) {
    let (ip, came) = (IpHeader { l3: 0, sound: false }, Arrival { port: 1, now });
    let _ = track(store, ct, data, ip, meta, came);
}

/// A packet as the fast path reads it; None: it is not one for it.
fn read_fast(data: &[u8], zone: u16) -> Option<FastPacket> {
    let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    let word = |at: usize| u64::from(number(at)) << 32 | u64::from(number(at + 4));
    let mut p = FastPacket::NONE;
    if data[0] >> 4 == 6 {
        let end = 40 + u16::from_be_bytes([data[4], data[5]]);
        let headers = FastHeaders { ports: number(40), proto: data[6], l3: 0, l4: 40, end };
        p.read_v6(data, (headers, [8, 16, 24, 32].map(word)), zone, false)?;
    } else {
        let ip = Ipv4::new(data).filter(|ip| !ip.is_fragment())?;
        let (proto, l4) = (ip.proto(), ip.header_len());
        let end = u16::from_be_bytes([data[2], data[3]]);
        let headers = FastHeaders { ports: number(l4), proto, l3: 0, l4: l4 as u16, end };
        p.read_v4(data, (headers, word(12)), zone, false)?;
    }
    Some(p)
}

/// Tracks and translates one packet by the fast path; None: that does not claim it.
fn claim(
    worker: &Worker,
    ct: &Ct,
    p: &FastPacket,
    data: &mut [u8],
    now: u64,
) -> Option<FastTracked> {
    let mut tracked = [FastTracked::NONE];
    if worker.track_fast(ct, std::slice::from_ref(p), now, &mut tracked) == 0 {
        return None;
    }
    if ct.nat.is_some() {
        worker.translate_fast(p, &mut tracked[0], data);
    }
    Some(tracked[0])
}

/// Tracks a packet by the fast path if that can.
fn fast(worker: &mut Worker, ct: &Ct, data: &mut [u8], meta: &mut Meta<Ref>, now: u64) {
    let begins = meta.state == state::TRK | state::NEW && meta.conn.is_none();
    let first = meta.state == 0 || meta.zone != ct.zone || begins;
    if first
        && is_fast(ct)
        && let Some(mut p) = read_fast(data, ct.zone)
    {
        worker.prefetch_fast(std::iter::once(&mut p));
        worker.prefetch_fast_entries(std::iter::once(&mut p));
        if let Some(tracked) = claim(worker, ct, &p, data, now) {
            return worker.describe(ct, &tracked, meta);
        }
        if worker.begin_fast(ct, &p, meta, now) {
            return;
        }
        let seen = extract(data, 0, ct.zone, false);
        assert_eq!(seen, Ok(p.seen()), "read alike");
        let _ = track_seen(worker, ct, data, &seen, meta, Arrival { port: 1, now });
        return;
    }
    slow(worker, ct, data, meta, now);
}

/// Packets that went through, without what only one of the two knows.
fn run<S: Store>(
    store: &mut S,
    packets: &[Shape],
    list: &[Ct],
    now: u64,
    track: impl Fn(&mut S, &Ct, &mut [u8], &mut Meta<S::Ref>, u64),
) -> String {
    let mut all = Vec::new();
    for shape in packets {
        let (mut data, mut meta) = (bytes(shape), Meta::default());
        for ct in list {
            track(store, ct, &mut data, &mut meta, now);
            all.push((meta.state, meta.zone, meta.mark, meta.label, meta.tuple, data.clone()));
        }
    }
    format!("{all:?}")
}

/// The packets that open a connection, and one more of any kind.
fn opened(s: &Shape) -> Vec<Shape> {
    let forth = |flags, seq, ack| Shape { flags, seq, ack, ..s.clone() };
    let back = |flags, seq, ack| Shape {
        from: s.to,
        to: s.from,
        ports: (s.ports.1, s.ports.0),
        ..forth(flags, seq, ack)
    };
    vec![forth(SYN, 1, 0), back(SYN | ACK, 1, 2), forth(ACK, 2, 2), back(ACK, 2, 2), s.clone()]
}

/// The table ends connections up to a second late.
const LATE_MS_MAX: u64 = 1_100;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_table_does_what_its_twin_does(steps in prop::collection::vec(step(), 1..60)) {
        let domain = Domain::new();
        let mut reader = domain.reader();
        let mut table = Table::new();
        table.secret = Secret::fixed();
        let table = Arc::new(table);
        let mut now = 1_000_000;
        let mut keeper = Keeper::new(&table, domain, now);
        let (mut worker, mut model) = (Worker::new(&table), Model::default());
        // The twin's timeouts are exact, the table's are late: nothing happens in between.
        for step in steps {
            match step {
                Step::Packets(packets, list) => {
                    let a = run(&mut worker, &packets, &list, now, fast);
                    prop_assert_eq!(a, run(&mut model, &packets, &list, now, slow));
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
        let mut data = ipv4(&Shape { from, to, proto: IP_TCP, ports, flags, seq, ack, v6: false });
        let mut meta = Meta::default();
        let _ = track(
            &mut worker,
            &ct,
            &mut data,
            IpHeader { l3: 0, sound: false },
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

/// A packet that was read for the fast path, and whose connection was asked for.
fn read(worker: &Worker, shape: &Shape) -> (Vec<u8>, FastPacket) {
    let data = bytes(shape);
    let mut p = read_fast(&data, 0).expect("TCP");
    worker.prefetch_fast(std::iter::once(&mut p));
    worker.prefetch_fast_entries(std::iter::once(&mut p));
    (data, p)
}

/// Packets that open a connection of TCP, those that follow, and the one that opens it again after
/// its end, take the fast path both ways, with and without translation; all but the one that is
/// committed.
#[test]
fn a_connection_takes_the_fast_path() {
    let nat = Some(Nat { side: Some(NatSide::Source), ..Nat::default() });
    for (nat, v6) in [(None, false), (nat.clone(), false), (None, true), (nat, true)] {
        let table = Arc::new(Table::new());
        let _keeper = Keeper::new(&table, Domain::new(), 0);
        let mut worker = Worker::new(&table);
        let ct = Ct { commit: true, nat, ..Ct::default() };
        let (ports, flags) = ((9, 80), SYN);
        let s = Shape { from: 1, to: 2, proto: IP_TCP, ports, flags, seq: 0, ack: 0, v6 };
        let packets = opened(&s);
        let (_, p) = read(&worker, &packets[0]);
        let mut meta = Meta::default();
        assert!(!worker.begin_fast(&ct, &p, &mut meta, 0), "to be committed");
        assert!(worker.begin_fast(&Ct::default(), &p, &mut meta, 0));
        assert_eq!(meta.state, state::TRK | state::NEW);
        let _ = run(&mut worker, &packets[..1], std::slice::from_ref(&ct), 0, slow);
        assert!(!worker.begin_fast(&Ct::default(), &p, &mut meta, 0), "it was committed meanwhile");
        for (shape, rpl) in packets[1..4].iter().zip([state::RPL, 0, state::RPL]) {
            let (mut data, p) = read(&worker, shape);
            let tracked = claim(&worker, &ct, &p, &mut data, 0).expect("a connection");
            worker.describe(&ct, &tracked, &mut meta);
            let plain = meta.state & !(state::SNAT | state::DNAT);
            assert_eq!(plain, state::TRK | state::EST | rpl);
            assert_eq!(meta.state != plain, ct.nat.is_some(), "translated");
        }
        let reset = Shape { flags: RST | ACK, seq: 2, ack: 2, ..s };
        let (mut data, p) = read(&worker, &reset);
        assert!(claim(&worker, &ct, &p, &mut data, 0).is_some());
        let (mut data, p) = read(&worker, &packets[0]);
        assert!(claim(&worker, &ct, &p, &mut data, 0).is_none() && table.is_empty());
        assert!(worker.begin_fast(&Ct::default(), &p, &mut meta, 0), "it begins again");
    }
}

/// A translated connection is in the index twice, which its load knows.
#[test]
fn the_index_grows_with_both_tuples_of_a_translated_connection() {
    const COUNT: u32 = 4000;
    let domain = Domain::new();
    let mut reader = domain.reader();
    let table = Arc::new(Table::new());
    let mut keeper = Keeper::new(&table, domain, 0);
    let mut worker = Worker::new(&table);
    for n in 0..COUNT {
        let orig =
            Tuple { src: n.into(), dst: 1, sport: 1, dport: 2, proto: IP_UDP, ..Tuple::default() };
        let reply = Tuple { dst: (n + COUNT).into(), ..orig.reversed() };
        let conn = Conn { orig, reply, nat: Translation::Source, ..Conn::default() };
        worker.insert(&conn, Class::UdpFirst, Arrival::default()).expect("room");
    }
    while !keeper.tend(0, 1000) {}
    assert!(table.bucket_count() * 3 >= 2 * COUNT, "{} buckets", table.bucket_count());
    table.flush();
    while !keeper.tend(0, 1000) {}
    reader.quiescent();
    keeper.tend(0, 1000);
    assert_eq!(table.twice.load(Relaxed), 0);
}

/// A connection that begins again takes the places of the one that ended, which the keeper then
/// does not look for: two places if it is translated.
#[test]
fn connections_with_the_tuples_of_ended_ones_take_their_places() {
    // Of translated ones, those are unlinked whose other side is that of the next one.
    begin_again(Translation::Source, (3, 2), 200 / 3);
    begin_again(Translation::None, (1, 0), 199);
}

/// Begins and ends a connection 200 times. Before the keeper looks at them, `left` are the words of
/// the index and the second places among them, and as many of the ended entries as `unlinked` says
/// have no place in it.
fn begin_again(nat: Translation, left: (usize, u32), unlinked: usize) {
    let domain = Domain::new();
    let mut reader = domain.reader();
    let table = Arc::new(Table::new());
    let mut keeper = Keeper::new(&table, domain, 0);
    let mut worker = Worker::new(&table);
    let orig = Tuple { src: 7, dst: 1, sport: 1, dport: 2, proto: IP_UDP, ..Tuple::default() };
    keeper.tend(0, 1000);
    for round in 0..200 {
        // The other side of the translation is the same for two of three.
        let dst = if nat == Translation::None { 7 } else { 9 + u128::from(round % 3 == 0) };
        let reply = Tuple { dst, ..orig.reversed() };
        let conn = Conn { orig, reply, nat, ..Conn::default() };
        worker.insert(&conn, Class::UdpFirst, Arrival::default()).expect("room");
        assert!(table.flush_tuple(&orig, 0));
    }
    let words: usize = table.buckets(0..table.bucket_count()).sum();
    assert_eq!((words, table.twice.load(Relaxed)), left);
    const BITS: u64 = bit::DEAD | bit::UNLINKED;
    let is_unlinked = |n: &u32| table.entries.get(*n).control() & BITS == BITS;
    assert_eq!((0..READY_COUNT_MAX as u32).filter(is_unlinked).count(), unlinked);
    table.flush();
    while !keeper.tend(0, 1000) {}
    reader.quiescent();
    keeper.tend(0, 1000);
    assert_eq!(table.buckets(0..table.bucket_count()).sum::<usize>(), 0);
    assert_eq!(table.twice.load(Relaxed), 0);
}
