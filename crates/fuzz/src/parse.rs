//! Frames: the parser against its slow twin, and every kernel of the packet path that this CPU has
//! against the scalar one (the datapath's validating mode).

#[path = "../../datapath/tests/common/mod.rs"]
pub mod bed;
#[path = "../../datapath/tests/common/gen.rs"]
pub mod generate;
#[path = "../../datapath/tests/common/slow.rs"]
pub mod slow;

use action::{Op, Payload};
use bed::{Bed, bed, rule};
use datapath::{Level, Settings, extract};
use flow::Field;
use std::cell::RefCell;

/// Bytes of a frame that fit a buffer.
const FRAME_BYTES_MOST: usize = 1900;

fn ways() -> Vec<Bed> {
    let levels = Level::ALL.into_iter().filter(|l| datapath::is_available(*l));
    let way = |level| {
        let mut bed = bed(2);
        bed.dp.set_settings(Settings { level, validate: true, ..Settings::default() });
        let to = |fields: &[(Field, u128)]| rule(fields, vec![Op::Output(1)], 1);
        bed.set_rules(vec![to(&[(Field::EthType, 0x800), (Field::IpProto, 6)]), to(&[])]);
        bed
    };
    levels.map(way).collect()
}

thread_local! {
    static WAYS: RefCell<Vec<Bed>> = RefCell::new(ways());
    static ENCAP: RefCell<[(Vec<u8>, Bed); 2]> = RefCell::new([mpls_way(), nsh_way()]);
}

/// Puts frames into MPLS, and those that are there out of it.
fn mpls_way() -> (Vec<u8>, Bed) {
    let around = [&[4; 6][..], &[2; 6], &[0x88, 0x47, 0, 0, 1, 64]].concat();
    let encap = Op::EncapMpls { ethertype: 0x8847, lse: 0x140, dst: [4; 6], src: [2; 6] };
    (around, around_way(0x8847, encap, Op::DecapMpls))
}

/// Puts frames into NSH, and those that are there out of it.
fn nsh_way() -> (Vec<u8>, Bed) {
    let header = [0x0f, 0xc4, 2, 3, 0, 0, 7, 255, 0, 1, 2, 3, 4, 5, 6, 0];
    let around = [&[0; 12][..], &[0x89, 0x4f], &header].concat();
    let push = Op::PushNsh { payload: Payload::Frame, header: header.into() };
    (around, around_way(0x894f, push, Op::PopNsh { framed: true }))
}

fn around_way(ethertype: u128, push: Op, pop: Op) -> Bed {
    let mut bed = bed(2);
    bed.dp.set_settings(Settings { validate: true, ..Settings::default() });
    let out = Op::Output(1);
    let inside = rule(&[(Field::EthType, ethertype)], vec![pop, out.clone()], 1);
    bed.set_rules(vec![inside, rule(&[], vec![push, out], 2)]);
    bed
}

/// What is in MPLS or NSH comes out as it went in, perhaps with an Ethernet header in front; what
/// holds nothing that is known ends.
fn in_and_out((around, bed): &mut (Vec<u8>, Bed), frame: &[u8]) {
    let mut send = |frame: &[u8]| {
        bed.peers[0].send(frame);
        bed.run();
        let out = bed.peers[1].drain();
        let differences: u64 = bed.dp.perf().iter().map(|(_, p)| p.differences).sum();
        assert_eq!((differences, bed.pool.in_use()), (0, 0), "a twin differs, or a buffer leaked");
        bed.assert_balanced();
        out
    };
    let first = send(frame);
    if first == [[around, frame].concat()] {
        assert_eq!(send(&first[0]), [frame]);
    } else {
        let is_part = |out: &Vec<u8>| frame.ends_with(out) || frame.ends_with(&out[14..]);
        assert!(first.iter().all(is_part), "{first:02x?}");
    }
}

pub fn run(data: &[u8]) {
    for limit in 1..=2 {
        let key = extract(data, 3, limit);
        assert_eq!(key.is_some(), data.len() >= 14);
        if let Some(key) = key {
            assert_eq!(key, slow::parse(data, 3, limit), "the slow twin differs");
        }
    }
    if (14..=FRAME_BYTES_MOST).contains(&data.len()) {
        WAYS.with_borrow_mut(|ways| ways.iter_mut().for_each(|bed| through(bed, data)));
        ENCAP.with_borrow_mut(|ways| ways.iter_mut().for_each(|way| in_and_out(way, data)));
    }
}

/// A burst of the frame and of one that differs a little goes through the packet path.
fn through(bed: &mut Bed, frame: &[u8]) {
    let mut other = frame.to_vec();
    *other.last_mut().expect("not empty") ^= 1;
    [frame, &other, frame].iter().for_each(|f| bed.peers[0].send(f));
    bed.run();
    let mut got = bed.peers[1].drain();
    got.sort();
    let mut want = vec![frame.to_vec(), other, frame.to_vec()];
    want.sort();
    assert_eq!(got, want, "frames come out as they went in");
    let differences: u64 = bed.dp.perf().iter().map(|(_, p)| p.differences).sum();
    assert_eq!(differences, 0, "a kernel differs from the scalar one");
    assert_eq!(bed.pool.in_use(), 0, "a buffer leaked");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let frames = (0..4000).map(|seed| generate::packet(&mut generate::Rng(seed)));
    let mut kinds = std::collections::BTreeMap::new();
    for f in frames.filter(|f| f.len() < 140) {
        let key = slow::parse(&f, 0, 2);
        let kind = (Field::EthType.get(&key) & 0xffff, Field::IpProto.get(&key), f.len() / 64);
        if kinds.len() < 40 {
            kinds.entry(kind).or_insert(f);
        }
    }
    kinds.into_values().collect()
}
