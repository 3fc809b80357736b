//! Frames through rings against the simplest model there is: a queue of frames.

mod common;

use common::{Ask, DATA, Driver, LAYOUTS, Part, reap};
use packet::{HeapPool, Packet, Pool};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use vhost::{BATCH, Batch, Moved, Ring, RingError, SetupError, feature};

/// Bytes of buffer space per offer, so that no two overlap.
const SPACE: u64 = 0x1000;

/// How a guest lays a buffer out.
#[derive(Clone, Debug)]
struct Shape {
    cuts: Vec<u32>,
    indirect: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    (prop::collection::vec(0u32..200, 0..5), any::<bool>())
        .prop_map(|(cuts, indirect)| Shape { cuts, indirect })
}

impl Shape {
    /// Pieces of `len` bytes together, the first `whole` bytes uncut unless the shape is cut.
    fn parts(&self, at: u64, len: u32) -> Vec<Part> {
        let (mut parts, mut done) = (Vec::new(), 0);
        for cut in &self.cuts {
            let n = (*cut).min(len - done);
            parts.push((at + u64::from(done), n));
            done += n;
        }
        parts.push((at + u64::from(done), len - done));
        parts
    }
}

fn frame(len: usize, seed: u64) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(31) as usize + i * 7) as u8).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// The guest offers a buffer: frame length or buffer size, and its shape.
    Offer(u32, Shape),
    /// We take or give so many packets.
    Move(usize),
    /// The guest looks at what came back.
    Reap,
}

fn steps(max: u32) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..max, shape()).prop_map(|(n, shape)| Step::Offer(n, shape)),
        2 => (1usize..100).prop_map(Step::Move),
        1 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 1..120)
}

/// A place for the next buffer, used again after a while.
fn place(n: &mut u64) -> u64 {
    *n += 1;
    DATA + *n % 128 * SPACE
}

fn guest_sends(features: u64, size: u16, steps: &[Step]) {
    let (mut driver, pool) = (Driver::new(size, features), HeapPool::new());
    let (mut ring, mut batch) = (driver.ring(), Batch::default());
    let (mut model, mut offers) = (VecDeque::new(), 0);
    let header = driver.header() as u32;
    for (i, step) in steps.iter().enumerate() {
        match step {
            Step::Offer(len, shape) => {
                let at = place(&mut offers);
                let parts = shape.parts(at, header + len);
                if driver.offer(&parts, false, shape.indirect).is_some() {
                    let bytes = frame(*len as usize, i as u64);
                    driver.memory.put(at + u64::from(header), &bytes);
                    model.push_back(bytes);
                }
            }
            Step::Move(max) => {
                let mut out = Vec::with_capacity(BATCH);
                ring.prepare(i % 2, 16, true);
                let mut moved = Moved::default();
                ring.dequeue(&mut batch, &pool, &mut out, *max, &mut moved);
                assert_eq!(moved.packets, model.len().min(*max).min(BATCH));
                assert_eq!((moved.packets, moved.dropped), (out.len(), 0));
                for p in &out {
                    assert_eq!(p.data(), model.pop_front().unwrap());
                }
                pool.free(&out);
            }
            Step::Reap => while driver.used().is_some() {},
        }
    }
    assert!(driver.memory.is_dry() && pool.in_use() == 0 && ring.ring_errors().total() == 0);
}

fn guest_receives(features: u64, size: u16, steps: &[Step]) {
    let (mut driver, pool) = (Driver::new(size, features), HeapPool::new());
    let (mut ring, mut batch) = (driver.ring(), Batch::default());
    let (mut sent, mut places, mut offers) = (VecDeque::new(), HashMap::new(), 0);
    for (i, step) in steps.iter().enumerate() {
        match step {
            Step::Offer(len, shape) => {
                // Mergeable buffers may be of any size, others hold the longest frame.
                let len = if features & feature::MRG_RXBUF != 0 { 100 + len } else { 1200 };
                let parts = shape.parts(place(&mut offers), len);
                if let Some(id) = driver.offer(&parts, true, shape.indirect) {
                    places.insert(id, parts);
                }
            }
            Step::Move(n) => {
                let frames: Vec<_> =
                    (0..*n).map(|k| frame(20 + (i * 37 + k * 11) % 1100, k as u64)).collect();
                let packets: Vec<Packet> = frames.iter().map(|f| pool.packet(f).unwrap()).collect();
                ring.prepare(i % 2, 16, false);
                let mut moved = Moved::default();
                ring.enqueue(&mut batch, &packets, &mut moved);
                assert_eq!(moved.dropped, 0);
                sent.extend(frames.into_iter().take(moved.packets));
                pool.free(&packets);
                reap(&mut driver, &mut places, &mut sent);
            }
            Step::Reap => {}
        }
    }
    assert!(sent.is_empty() && driver.memory.is_dry() && pool.in_use() == 0);
    assert_eq!(ring.ring_errors().total(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_a_guest_sends_arrives(steps in steps(1500), big in any::<bool>()) {
        for features in LAYOUTS {
            guest_sends(features, if big { 256 } else { 8 }, &steps);
        }
    }

    #[test]
    fn what_is_sent_to_a_guest_arrives(steps in steps(1500), big in any::<bool>()) {
        for features in LAYOUTS {
            guest_receives(features, if big { 256 } else { 8 }, &steps);
        }
    }
}

/// A packed ring may have any size.
#[test]
fn a_packed_ring_of_odd_size() {
    let step = |i: u32| match i % 3 {
        0 => Step::Offer(64 + i, Shape { cuts: vec![12, 20], indirect: false }),
        1 => Step::Offer(64 + i, Shape { cuts: vec![], indirect: i.is_multiple_of(2) }),
        _ => Step::Move(2),
    };
    let mut steps: Vec<Step> = (0..300).map(step).collect();
    for i in (0..300).step_by(10) {
        steps[i] = Step::Reap;
    }
    guest_sends(feature::RING_PACKED | feature::VERSION_1, 7, &steps);
    guest_receives(feature::RING_PACKED | feature::VERSION_1, 7, &steps);
}

fn offer_and_take(driver: &mut Driver, ring: &mut Ring, batch: &mut Batch, n: usize) -> bool {
    for i in 0..n {
        driver.offer(&[(DATA + i as u64 * SPACE, 100)], false, false).unwrap();
    }
    let (pool, mut out) = (HeapPool::new(), Vec::new());
    let mut moved = Moved::default();
    ring.dequeue(batch, &pool, &mut out, n, &mut moved);
    assert_eq!(moved.packets, n);
    pool.free(&out);
    while driver.used().is_some() {}
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    let call = ring.needs_notification();
    assert!(!ring.needs_notification(), "of the same buffers twice");
    call
}

#[test]
fn the_guest_is_notified_when_it_asked_for_it() {
    for features in LAYOUTS {
        let mut driver = Driver::new(8, features);
        let (mut ring, mut batch) = (driver.ring(), Batch::default());
        let by_index = features & feature::EVENT_IDX != 0;
        if driver.packed() || !by_index {
            driver.ask(Ask::Always);
            assert!(offer_and_take(&mut driver, &mut ring, &mut batch, 1));
            driver.ask(Ask::Never);
            assert!(!offer_and_take(&mut driver, &mut ring, &mut batch, 1));
        } else {
            driver.ask(Ask::At(0));
            assert!(offer_and_take(&mut driver, &mut ring, &mut batch, 2));
        }
        if !by_index {
            continue;
        }
        // The ring is at 2. Further rounds wrap.
        for round in 0u16..20 {
            let at = 2 + round * 3;
            let packed = driver.packed();
            let place = |i: u16| match packed {
                true => (i % 8) | (u16::from((i / 8).is_multiple_of(2)) << 15),
                false => i,
            };
            for (event, expected) in [(at + 1, true), (at + 3, false)] {
                let event = place(event);
                driver.ask(Ask::At(event));
                let n = if expected { 2 } else { 1 };
                let call = offer_and_take(&mut driver, &mut ring, &mut batch, n);
                assert_eq!(call, expected, "{features:#x} {round}");
            }
        }
    }
}

#[test]
fn a_ring_goes_on_where_it_was_left() {
    for features in LAYOUTS {
        let mut driver = Driver::new(8, features);
        let mut batch = Batch::default();
        let mut setup = driver.setup();
        for round in 0..40 {
            let mut ring = driver.try_ring(setup).unwrap();
            offer_and_take(&mut driver, &mut ring, &mut batch, 1 + round % 7);
            setup.base = ring.base();
        }
    }
}

#[test]
fn a_packet_too_large_for_the_guest_is_dropped_and_the_rest_goes_on() {
    for features in LAYOUTS {
        let mut driver = Driver::new(8, features);
        let (mut ring, mut batch, pool) = (driver.ring(), Batch::default(), HeapPool::new());
        let packets = [100, 1400, 60].map(|n| pool.packet(&frame(n, 1)).unwrap());
        for i in 0..2 {
            driver.offer(&[(DATA + i * SPACE, 300)], true, false).unwrap();
        }
        let mut moved = Moved::default();
        ring.enqueue(&mut batch, &packets, &mut moved);
        if features & feature::MRG_RXBUF != 0 {
            // A mergeable guest may make more buffers yet.
            assert_eq!((moved.packets, moved.dropped), (1, 0));
        } else {
            assert_eq!((moved.packets, moved.dropped), (3, 1));
            assert_eq!(ring.ring_errors().get(RingError::SmallBuffer), 1);
        }
        pool.free(&packets);
    }
}

#[test]
fn a_ring_outside_the_guests_memory_is_refused() {
    for features in LAYOUTS {
        let driver = Driver::new(8, features);
        for part in 0..3 {
            for change in [1, 0x2_0000_0000] {
                let mut setup = driver.setup();
                setup.areas[part] = setup.areas[part].wrapping_add(change);
                assert_eq!(driver.try_ring(setup).err(), Some(SetupError::Areas));
            }
            let mut setup = driver.setup();
            setup.areas[part] = driver.memory.at(common::BYTES / 2 - 1).wrapping_add(1);
            assert_eq!(driver.try_ring(setup).err(), Some(SetupError::Areas), "in the moat");
        }
        let features = features | feature::IOMMU_PLATFORM;
        let iommu = vhost::RingSetup { features, ..driver.setup() };
        assert_eq!(driver.try_ring(iommu).err(), Some(SetupError::Iommu));
        for size in [0, 40_000] {
            let setup = vhost::RingSetup { size, ..driver.setup() };
            assert_eq!(driver.try_ring(setup).err(), Some(SetupError::Size));
        }
    }
    let split = Driver::new(8, 0);
    let setup = vhost::RingSetup { size: 7, ..split.setup() };
    assert_eq!(split.try_ring(setup).err(), Some(SetupError::Size));
    let packed = Driver::new(8, feature::RING_PACKED);
    let setup = vhost::RingSetup { base: 8, ..packed.setup() };
    assert_eq!(packed.try_ring(setup).err(), Some(SetupError::Base));
}
