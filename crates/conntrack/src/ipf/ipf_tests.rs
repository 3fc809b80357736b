use super::*;
use proptest::prelude::*;

const PORT: u16 = 7;
const CAME: Arrival = Arrival { port: PORT, now: 0 };

fn datagram(id: u32) -> Datagram {
    Datagram { src: 1, dst: 2, id, recirc: 0, zone: 0, proto: 17, v6: false }
}

fn piece(id: u32, start: u32, end: u32, more: bool) -> Fragment {
    Fragment { datagram: datagram(id), start, end, more, l3: 14, payload: 34 }
}

fn store() -> (Fragments<u32>, FragmentSettings) {
    let settings = FragmentSettings::default();
    assert!(settings.set_bytes_min(false, FRAGMENT_BYTES_MIN));
    (Fragments::default(), settings)
}

#[test]
fn fragments_wait_for_all_of_their_datagram_in_any_order() {
    let (mut store, settings) = store();
    let mut out = Vec::new();
    assert_eq!(
        store.gather(&settings, piece(1, 800, 900, false), 3, CAME, &mut out, &mut Vec::new()),
        Gathered::Waits
    );
    assert_eq!(
        store.gather(&settings, piece(1, 0, 400, true), 1, CAME, &mut out, &mut Vec::new()),
        Gathered::Waits
    );
    assert_eq!(
        store.gather(&settings, piece(2, 400, 800, true), 9, CAME, &mut out, &mut Vec::new()),
        Gathered::Waits
    );
    assert_eq!(settings.waiting(), 3);
    assert_eq!(
        store.gather(&settings, piece(1, 400, 800, true), 2, CAME, &mut out, &mut Vec::new()),
        Gathered::Complete
    );
    assert_eq!(out.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [1, 2, 3]);
    let counted = [Accepted, Completed, Overlapped].map(|what| settings.counted(false, what));
    assert_eq!((counted, settings.waiting()), ([4, 3, 0], 1));
    out.clear();
    store.expire(&settings, u64::from(FRAGMENT_WAIT_MILLIS) - 1, 10, &mut out);
    assert!(out.is_empty());
    store.expire(&settings, u64::from(FRAGMENT_WAIT_MILLIS), 10, &mut out);
    assert_eq!((out.len(), settings.counted(false, Expired), settings.waiting()), (1, 1, 0));
}

#[test]
fn what_does_not_fit_is_rejected() {
    let (mut store, settings) = store();
    let mut out = Vec::new();
    let mut rejected =
        |f: Fragment| match store.gather(&settings, f, 0, CAME, &mut out, &mut Vec::new()) {
            Gathered::Rejected(_, why) => Some(why),
            _ => None,
        };
    assert_eq!(rejected(piece(1, 400, 800, true)), None);
    assert_eq!(rejected(piece(1, 400, 800, true)), Some(Rejected::Overlaps));
    assert_eq!(rejected(piece(1, 792, 1600, true)), Some(Rejected::Overlaps));
    assert_eq!(rejected(piece(1, 0, 8, true)), Some(Rejected::TooSmall));
    assert_eq!(
        rejected(piece(1, 0, 300, false)),
        Some(Rejected::Overlaps),
        "an end before the end"
    );
    assert_eq!(rejected(piece(1, 800, 808, false)), None);
    assert_eq!(rejected(piece(1, 1600, 2400, true)), Some(Rejected::Overlaps), "behind the end");
    settings.set_on(false, false);
    assert_eq!(rejected(piece(1, 0, 400, true)), Some(Rejected::Off));
    assert_eq!(settings.counted(false, Overlapped), 4);
    assert_eq!(settings.counted(false, TooSmall), 1);
}

#[test]
fn a_port_leaves_room_for_others_and_a_datagram_is_bounded() {
    let (mut store, settings) = store();
    let mut out = Vec::new();
    let mut waits = |id, port| {
        store.gather(
            &settings,
            piece(id, 400, 800, true),
            0,
            Arrival { port, now: 0 },
            &mut out,
            &mut Vec::new(),
        ) == Gathered::Waits
    };
    let flood = (0..5000).filter(|id| waits(*id, PORT)).count() as u32;
    assert_eq!(flood, FRAGMENTS_COUNT_DEFAULT / PORT_SHARE);
    assert!(waits(9999, PORT + 1), "another port has its share");
    assert!(settings.set_most(FRAGMENTS_COUNT_MAX) && !settings.set_most(FRAGMENTS_COUNT_MAX + 1));
    let (mut store, settings) = self::store();
    settings.set_most(FRAGMENTS_COUNT_MAX);
    let held = |i: u32| {
        let f = piece(1, 400 * i, 400 * (i + 1), true);
        store.gather(&settings, f, 0, CAME, &mut out, &mut Vec::new()) == Gathered::Waits
    };
    let held = (1..1000).map(held).filter(|held| *held).count();
    assert_eq!(held, FRAGMENTS_OF_DATAGRAM_COUNT_MAX);
}

#[test]
fn in_a_full_store_the_port_that_has_most_gives_way() {
    let (mut store, settings) = store();
    let (mut out, mut evicted) = (Vec::new(), Vec::new());
    let mut wait = |id, port: u16, start: u32| {
        let f = piece(id, start, start + 400, true);
        store.gather(&settings, f, port.into(), Arrival { port, now: 0 }, &mut out, &mut evicted)
            == Gathered::Waits
    };
    // Four ports of one tenant take all places.
    let flood = (0..4000).filter(|id| wait(*id, (*id % 4) as u16, 400)).count();
    assert_eq!(flood as u32, FRAGMENTS_COUNT_DEFAULT);
    // Another port's fragments find room, until it has as much as each of these.
    let others = (10_000..11_000).filter(|id| wait(*id, 9, 400)).count();
    assert_eq!(others as u32, FRAGMENTS_COUNT_DEFAULT / 5);
    assert!(!wait(20_000, 0, 400) && !wait(20_000, 9, 400), "all have as much");
    assert!(wait(20_000, 10, 400), "who has none");
    assert_eq!(evicted.len(), others + 1);
    assert!(evicted.iter().all(|(_, port)| *port < 4 || *port == 9));
    let oldest: Vec<u32> = evicted.iter().take(4).map(|(f, _)| f.datagram.id).collect();
    assert!(oldest.iter().all(|id| *id < 4), "the oldest go first: {oldest:?}");
    assert_eq!(settings.waiting(), FRAGMENTS_COUNT_DEFAULT);
    assert_eq!(settings.counted(false, Purged), others as u64 + 1);
    store.expire(&settings, u64::MAX, usize::MAX, &mut out);
    assert_eq!((settings.waiting(), (0..11).map(|p| store.shares.of(p)).sum::<u32>()), (0, 0));
}

/// A packet: Ethernet's 14 bytes, a header, some of a payload.
fn packet(v6: bool, payload: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let (more, part) = (range.end < payload.len(), &payload[range.clone()]);
    let mut p = vec![0; 14];
    if v6 {
        p.extend([0x60, 0, 0, 0]);
        p.extend((part.len() as u16 + 8).to_be_bytes());
        p.extend([44, 64]);
        p.extend([0x20; 32]);
        p.extend([17, 0]);
        p.extend((range.start as u16 | u16::from(more)).to_be_bytes());
        p.extend(5u32.to_be_bytes());
    } else {
        let mut header = [0; 20];
        let mut ip = wire::Ipv4::init(&mut header, 20).unwrap();
        ip.set_total_len(20 + part.len() as u16);
        ip.set_id(5);
        ip.set_frag(u16::from(more) << 13 | (range.start / 8) as u16);
        ip.set_proto(17);
        ip.set_src([10, 0, 0, 1]);
        ip.fill_checksum();
        p.extend(header);
    }
    p.extend(part);
    p
}

#[test]
fn what_is_malformed_is_no_fragment() {
    let p = packet(false, &[1; 800], 0..400);
    assert!(read(&p, 14, 0, 0).is_some());
    assert!(read(&p[..p.len() - 1], 14, 0, 0).is_none());
    let mut bad = p.clone();
    bad[24] ^= 1;
    assert!(read(&bad, 14, 0, 0).is_none(), "checksum");
    assert!(read(&packet(false, &[1; 800], 0..404), 14, 0, 0).is_none(), "multiple of 8");
    assert!(read(&packet(false, &[1; 8], 0..8), 14, 0, 0).is_none(), "whole");
    assert!(read(&packet(true, &[1; 8], 0..8), 14, 0, 0).is_none(), "atomic");
}

proptest! {
    /// However a payload is cut and in whatever order its parts come, among others that overlap:
    /// the datagram is what it was, and what changes in it changes in the fragments.
    #[test]
    fn datagrams_are_as_before_they_were_cut(
        v6: bool,
        payload in proptest::collection::vec(any::<u8>(), 16..4000),
        cuts in proptest::collection::vec(1usize..500, 0..12),
        order in any::<u64>(),
        extra in proptest::option::of((0usize..400, 1usize..50)),
    ) {
        let settings = FragmentSettings::default();
        let mut store = Fragments::default();
        let mut ends: Vec<usize> = cuts.iter().map(|c| c * 8).filter(|c| *c < payload.len()).collect();
        ends.push(payload.len());
        ends.sort_unstable();
        ends.dedup();
        prop_assume!(ends.len() > 1);
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let mut parts: Vec<_> = starts.zip(ends.iter().copied()).map(|(a, b)| a..b).collect();
        let n = parts.len();
        (0..n).for_each(|i| parts.swap(i, (order.rotate_left(i as u32 * 5) as usize) % n));
        if let Some((a, len)) = extra {
            let (a, b) = (a * 8, (a + len) * 8);
            if b < payload.len() { parts.insert(1, a..b); }
        }
        // The least size is tested elsewhere.
        settings.set_bytes_min_for_tests(0);
        let mut taken = vec![0u8; payload.len()];
        let mut out = Vec::new();
        let mut complete = false;
        for range in parts {
            let p = packet(v6, &payload, range.clone());
            let f = read(&p, 14, 0, 0).unwrap();
            let fits = taken[range.clone()].iter().all(|t| *t == 0);
            let gathered = store.gather(&settings, f, p, CAME, &mut out, &mut Vec::new());
            prop_assert_eq!(fits, !matches!(gathered, Gathered::Rejected(..)));
            if fits { taken[range].fill(1); }
            let whole = taken.iter().all(|t| *t == 1);
            prop_assert_eq!(whole, gathered == Gathered::Complete);
            if whole { complete = true; break; }
        }
        if complete {
            let mut whole = [0; DATAGRAM_BYTES_MAX];
            let len = assemble(out.iter().map(|(f, p)| (f, &p[..])), &mut whole).unwrap();
            let header = if v6 { 48 } else { 20 };
            prop_assert_eq!(&whole[header..len], &payload[..]);
            whole[header..len].iter_mut().for_each(|b| *b = !*b);
            if !v6 { whole[12..16].copy_from_slice(&[192, 0, 2, 1]); }
            let first = out[0].0;
            for (f, p) in &mut out {
                spread(f, &first, &whole, p);
                let changed = &payload[f.start as usize..f.end as usize];
                prop_assert!(p[f.payload..].iter().zip(changed).all(|(a, b)| *a == !*b));
                if !v6 {
                    prop_assert!(wire::Ipv4::new(&p[14..]).unwrap().checksum_ok());
                    prop_assert_eq!(&p[26..30], &[192, 0, 2, 1]);
                }
            }
        }
    }
}
