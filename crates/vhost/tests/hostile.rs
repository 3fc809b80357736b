//! Guests that lie. Nothing outside their memory is written, no buffer of ours is lost, every call
//! ends, and each ring error has its counter.

mod common;

use common::{BYTES, DATA, DESC, DEVICE, DRIVER, Driver, INDIRECT, LAYOUTS, NEXT, TABLES, WRITE};
use packet::{HeapPool, Packet, Pool};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::{Batch, Moved, Ring, RingError, feature, steps_max};

fn take(ring: &mut Ring) -> (Moved, Vec<Vec<u8>>) {
    let (pool, mut out, steps) = (HeapPool::new(), Vec::new(), ring.steps());
    (0..2).for_each(|step| ring.prepare(step, 16, true));
    let mut moved = Moved::default();
    ring.dequeue(&mut Batch::default(), &pool, &mut out, 32, &mut moved);
    let frames = out.iter().map(|p| p.data().to_vec()).collect();
    pool.free(&out);
    assert_eq!(pool.in_use(), 0);
    assert!(ring.steps() - steps <= steps_max(32) as u64, "{moved:?}");
    (moved, frames)
}

fn give(ring: &mut Ring, n: usize) -> Moved {
    let pool = HeapPool::new();
    let packets: Vec<Packet> = (0..n).map(|_| pool.packet(&[7; 64]).unwrap()).collect();
    let steps = ring.steps();
    (0..2).for_each(|step| ring.prepare(step, 16, false));
    let mut moved = Moved::default();
    ring.enqueue(&mut Batch::default(), &packets, &mut moved);
    pool.free(&packets);
    assert!(ring.steps() - steps <= steps_max(n) as u64, "{moved:?}");
    moved
}

/// One bad buffer between two good ones: the good ones arrive, and all three come back.
fn one_bad(what: RingError, offer_bad: impl Fn(&mut Driver)) {
    for features in LAYOUTS {
        let mut driver = Driver::new(64, features);
        let mut ring = driver.ring();
        let good = |driver: &mut Driver, i: u64| {
            driver.offer(&[(DATA + i * 0x1000, 80)], false, false).unwrap();
        };
        good(&mut driver, 0);
        offer_bad(&mut driver);
        good(&mut driver, 1);
        let (moved, _) = take(&mut ring);
        assert_eq!((moved.packets, moved.dropped), (2, 1), "{what:?} {features:#x}");
        assert_eq!((ring.ring_errors().get(what), ring.ring_errors().total()), (1, 1), "{what:?}");
        assert!(!ring.is_broken());
        assert_eq!(std::iter::from_fn(|| driver.used()).count(), 3);
    }
}

#[test]
fn bad_buffers_are_dropped_by_name() {
    for parts in [[(BYTES, 80)], [(u64::MAX - 10, 80)], [(BYTES - 10, 80)], [(1 << 40, 80)]] {
        one_bad(RingError::Address, |d| assert!(d.offer(&parts, false, false).is_some()));
        one_bad(RingError::Address, |d| assert!(d.offer(&parts, false, true).is_some()));
    }
    one_bad(RingError::Direction, |d| assert!(d.offer(&[(DATA, 80)], true, false).is_some()));
    one_bad(RingError::Short, |d| assert!(d.offer(&[(DATA, 10)], false, false).is_some()));
    one_bad(RingError::Short, |d| assert!(d.offer(&[(DATA, 0)], false, false).is_some()));
    one_bad(RingError::Long, |d| assert!(d.offer(&[(DATA, 3000)], false, false).is_some()));
    let huge = [(DATA, u32::MAX)];
    one_bad(RingError::Address, |d| assert!(d.offer(&huge, false, false).is_some()));
    let most = [(DATA, 0x8000); 40];
    one_bad(RingError::Long, |d| assert!(d.offer(&most, false, true).is_some()));
}

/// Overwrites words of the descriptor that the last offer used.
fn patch(driver: &Driver, entry: u64, len: Option<u32>, flags: u16, next: u16) {
    let at = DESC + 16 * entry;
    if let Some(len) = len {
        driver.memory.put(at + 8, &len.to_le_bytes());
    }
    match driver.packed() {
        true => {
            let old = driver.memory.get16(at + 14) & 0x8080;
            driver.memory.put16(at + 14, old | flags);
        }
        false => {
            driver.memory.put16(at + 12, flags);
            driver.memory.put16(at + 14, next);
        }
    }
}

#[test]
fn bad_indirect_tables_are_dropped_by_name() {
    for (len, flags) in [(0, INDIRECT), (15, INDIRECT), (17, INDIRECT), (16, INDIRECT | WRITE)] {
        let what = if flags & WRITE != 0 { RingError::Short } else { RingError::Indirect };
        one_bad(what, |d| {
            let id = d.offer(&[(DATA, 5)], false, true).unwrap();
            let entry = if d.packed() { 1 } else { u64::from(id) };
            patch(d, entry, Some(len), flags, 0);
        });
    }
    // A table in a table.
    one_bad(RingError::Indirect, |d| {
        let id = d.offer(&[(DATA, 80)], false, true).unwrap();
        let flags = TABLES + u64::from(id) * 1024 + if d.packed() { 14 } else { 12 };
        d.memory.put16(flags, INDIRECT);
    });
}

#[test]
fn chains_that_loop_end() {
    // Split: a descriptor that is its own successor. A table whose entries point at each other.
    let mut driver = Driver::new(64, feature::VERSION_1);
    let mut ring = driver.ring();
    let id = driver.offer(&[(DATA, 80)], false, false).unwrap();
    patch(&driver, id.into(), Some(0), NEXT, id);
    let id = driver.offer(&[(DATA, 0), (DATA, 0)], false, true).unwrap();
    driver.memory.put16(TABLES + u64::from(id) * 1024 + 16 + 12, NEXT);
    driver.memory.put16(TABLES + u64::from(id) * 1024 + 16 + 14, 0);
    let id = driver.offer(&[(DATA, 80)], false, false).unwrap();
    patch(&driver, id.into(), None, NEXT, 64);
    assert_eq!(take(&mut ring).0.dropped, 3);
    let ring_errors = ring.ring_errors();
    assert_eq!((ring_errors.get(RingError::Loop), ring_errors.get(RingError::Descriptor)), (2, 1));
    // Packed: every descriptor has a successor.
    let mut driver = Driver::new(64, feature::VERSION_1 | feature::RING_PACKED);
    let mut ring = driver.ring();
    for i in 0..64 {
        driver.offer(&[(DATA, 80)], false, false).unwrap();
        patch(&driver, i, None, NEXT, 0);
    }
    assert_eq!(take(&mut ring).0, Moved { has_errors: true, ..Moved::default() });
    assert!(ring.is_broken() && ring.ring_errors().get(RingError::Loop) == 1);
}

#[test]
fn a_split_ring_with_a_wild_index_is_given_up() {
    for (index, head, what) in
        [(65, 0, RingError::Index), (0xffff, 0, RingError::Index), (1, 64, RingError::Descriptor)]
    {
        let mut driver = Driver::new(64, feature::VERSION_1);
        let mut ring = driver.ring();
        driver.memory.put16(DRIVER + 4, head);
        driver.memory.put16(DRIVER + 2, index);
        assert_eq!(take(&mut ring).0, Moved { has_errors: true, ..Moved::default() });
        for _ in 0..3 {
            assert_eq!(take(&mut ring).0, Moved::default());
            assert_eq!(give(&mut ring, 3), Moved::default());
        }
        assert!(ring.is_broken() && ring.ring_errors().total() == 1);
        assert_eq!(ring.ring_errors().get(what), 1);
        // Set up again, it is served again.
        driver.memory.put16(DRIVER + 2, 0);
        let mut ring = driver.ring();
        driver.offer(&[(DATA, 80)], false, false).unwrap();
        assert_eq!(take(&mut ring).0.packets, 1);
    }
}

#[test]
fn a_buffer_of_very_many_pieces_is_dropped_by_name() {
    let features = feature::VERSION_1 | feature::RING_PACKED;
    let mut driver = Driver::new(512, features);
    let mut ring = driver.ring();
    driver.offer(&[(DATA, 4); 300], false, false).unwrap();
    driver.offer(&[(DATA, 80)], false, false).unwrap();
    let mut moved = take(&mut ring).0;
    moved.packets += take(&mut ring).0.packets;
    assert_eq!((moved.packets, moved.dropped), (1, 1));
    assert_eq!(ring.ring_errors().get(RingError::Pieces), 1);
}

#[test]
fn bad_receive_buffers_are_given_back() {
    for features in LAYOUTS {
        let mut driver = Driver::new(64, features);
        let mut ring = driver.ring();
        driver.offer(&[(BYTES + 7, 800)], true, false).unwrap();
        driver.offer(&[(DATA, 800)], false, false).unwrap();
        driver.offer(&[(DATA, 5)], true, false).unwrap();
        driver.offer(&[(DATA, 800)], true, false).unwrap();
        assert_eq!((give(&mut ring, 1).packets, ring.ring_errors().total()), (1, 3));
        assert_eq!(std::iter::from_fn(|| driver.used()).count(), 4);
    }
}

#[test]
fn ids_that_nobody_offered_are_the_guests_own_problem() {
    let mut driver = Driver::new(64, feature::RING_PACKED);
    let mut ring = driver.ring();
    driver.offer(&[(DATA, 80)], false, false).unwrap();
    driver.memory.put16(DESC + 12, 0xffff);
    assert_eq!(take(&mut ring).0.packets, 1);
    assert_eq!(driver.memory.get16(DESC + 12), 0xffff);
}

/// Rings full of noise.
fn noise(features: u64, words: &[(u16, u16)], send: bool) {
    let driver = Driver::new(16, features);
    let mut ring = driver.ring();
    for round in words.chunks(8) {
        for (at, value) in round {
            let area = [DESC, DESC, DRIVER, DEVICE, TABLES, DATA][usize::from(at % 6)];
            let offset = u64::from(at / 6 % 512) & !1;
            // Often something plausible: flags, small lengths, addresses inside.
            let value = if value % 3 == 0 { value % 64 } else { *value };
            driver.memory.put16(area + offset, value);
        }
        match send {
            true => drop(take(&mut ring)),
            false => drop(give(&mut ring, 20)),
        }
    }
    assert!(driver.memory.is_dry());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn noise_harms_nobody(
        words in prop::collection::vec(any::<(u16, u16)>(), 1..200),
        send in any::<bool>(),
    ) {
        for features in LAYOUTS {
            noise(features, &words, send);
        }
    }
}

/// A thread changes random words of rings and tables while they are read.
#[test]
fn memory_that_changes_underfoot_harms_nobody() {
    for features in LAYOUTS {
        let mut driver = Driver::new(64, features);
        let end = Arc::new(AtomicBool::new(false));
        let scribbler = {
            let (memory, end) = (driver.memory.clone(), end.clone());
            std::thread::spawn(move || {
                let mut state = 0x2545_f491_4f6c_dd1du64;
                while !end.load(Ordering::Relaxed) {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let area = [DESC, DESC, DRIVER, TABLES][(state >> 60) as usize % 4];
                    memory.put16(area + (state >> 20 & 0x3fe), state as u16 & 0x40ff);
                }
            })
        };
        let mut ring = driver.ring();
        for i in 0..3000u64 {
            if ring.is_broken() {
                ring = driver.ring();
            }
            let at = DATA + i % 64 * 0x1000;
            let _ = driver.offer(&[(at, 12), (at + 12, 100)], i % 2 == 0, i % 3 == 0);
            if i % 64 == 0 {
                driver.forget();
            }
            let (moved, _) = take(&mut ring);
            assert!(moved.packets + moved.dropped <= 32);
            give(&mut ring, 10);
        }
        end.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
        assert!(driver.memory.is_dry());
    }
}
