//! A guest made of bytes: its driver writes anything anywhere into rings, tables and buffers,
//! between calls that move packets both ways.

#[path = "../../vhost/tests/common/mod.rs"]
mod guest;

use guest::{DATA, DESC, DEVICE, DRIVER, Driver, LAYOUTS, TABLES};
use packet::{HeapPool, Packet, Pool};
use std::cell::RefCell;
use vhost::{Batch, Moved, Ring, feature, steps_max};

/// Descriptors of each ring.
const SIZE: u16 = 64;
/// Steps of one input.
const STEPS_MOST: usize = 256;
/// Bit of an input's first byte: the guest leaves checksums and segments, and takes them merged.
const OFFLOADS: u8 = 1 << 7;
/// Steps of frames that are copied to be cut, beyond those of descriptors: eight of 64 kB.
const COPY_STEPS_MAX: u64 = 2048;
/// Packets that a call takes or gives at most.
const BURST: usize = 32;

pub fn split(data: &[u8]) {
    run(data, false);
}

pub fn packed(data: &[u8]) {
    run(data, true);
}

fn run(data: &[u8], packed: bool) {
    let Some((first, mut rest)) = data.split_first() else { return };
    let fitting = LAYOUTS.iter().filter(|l| (*l & feature::RING_PACKED != 0) == packed);
    let fitting: Vec<u64> = fitting.copied().collect();
    let offloads = if first & OFFLOADS != 0 { guest::LEAVES | guest::TAKES } else { 0 };
    let layout = fitting[usize::from(first & !OFFLOADS) % fitting.len()];
    let mut driver = Driver::new(SIZE, layout | offloads);
    let mut ring = driver.ring();
    for _ in 0..STEPS_MOST {
        let [what, a, b, c, more @ ..] = rest else { break };
        rest = more;
        step(&mut driver, &mut ring, *what, [*a, *b, *c]);
    }
    assert!(driver.memory.is_dry(), "memory outside of the guest's was written");
}

fn step(driver: &mut Driver, ring: &mut Ring, what: u8, [a, b, c]: [u8; 3]) {
    let value = u16::from_le_bytes([b, c]);
    match what % 16 {
        // Anything into a word of a ring, a table or a buffer.
        0..=5 => {
            let area = [DESC, DRIVER, DEVICE, TABLES, DATA, DESC + 512][usize::from(what % 16)];
            driver.memory.put16(area + 2 * u64::from(a), value);
        }
        // Small numbers, as flags, lengths and indexes are.
        6 => driver.memory.put16(DESC + 2 * u64::from(a), value & 0x8087),
        7 => driver.memory.put16(DRIVER + 2, u16::from(a)),
        // Buffers as a driver makes them, of up to four pieces.
        8..=10 => {
            let piece = |i: u64| (DATA + 0x1000 * u64::from(a) + 0x400 * i, u32::from(b) * 16);
            let parts: Vec<_> = (0..1 + u64::from(c & 3)).map(piece).collect();
            driver.offer(&parts, c & 4 != 0, c & 8 != 0);
        }
        // A table of very many entries of no bytes, and buffers that are all that table.
        11 => {
            let entries = u64::from(value).min(0x3000);
            for i in 0..entries {
                driver.memory.put(TABLES + 16 * i + 8, &[0, 0, 0, 0, 1, 0]);
                driver.memory.put16(TABLES + 16 * i + 14, (i as u16).wrapping_add(1));
            }
            for i in 0..u64::from(SIZE) {
                driver.memory.put(DESC + 16 * i, &TABLES.to_le_bytes());
                driver.memory.put(DESC + 16 * i + 8, &(16 * entries as u32).to_le_bytes());
                driver.memory.put16(DESC + 16 * i + 12, guest::INDIRECT);
            }
        }
        12 => driver.forget(),
        13 => give(ring, usize::from(a) % 128),
        _ => take(ring, 1 + usize::from(a) % BURST),
    }
    if ring.is_broken() {
        *ring = driver.ring();
    }
}

thread_local! {
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// Steps of a call for `n` packets, at most.
fn bound(ring: &Ring, n: usize) -> u64 {
    match ring.has_offloads() {
        false => steps_max(n) as u64,
        true => 2 * steps_max(n) as u64 + COPY_STEPS_MAX,
    }
}

fn take(ring: &mut Ring, most: usize) {
    let (pool, mut out, mut moved) = (HeapPool::new(), Vec::new(), Moved::default());
    BATCH.with_borrow_mut(|batch| {
        let before = ring.steps();
        (0..2).for_each(|step| ring.prepare(step, 16, true));
        ring.dequeue(batch, &pool, &mut out, most, &mut moved);
        assert!(ring.steps() - before <= bound(ring, most), "{moved:?}");
    });
    assert!(out.len() <= most && moved.packets == out.len());
    pool.free(&out);
    assert_eq!(pool.in_use(), 0, "a buffer leaked");
}

fn give(ring: &mut Ring, n: usize) {
    let (pool, mut moved) = (HeapPool::new(), Moved::default());
    let frames = testkit::tcp_stream(n.is_multiple_of(2), 7, &vec![64; n]);
    let packets: Vec<Packet> = frames.iter().map(|f| pool.packet(f).expect("a buffer")).collect();
    BATCH.with_borrow_mut(|batch| {
        let before = ring.steps();
        (0..2).for_each(|step| ring.prepare(step, 16, false));
        ring.enqueue(batch, &packets, &mut moved);
        assert!(ring.steps() - before <= bound(ring, n), "{moved:?}");
    });
    assert!(moved.packets <= n);
    pool.free(&packets);
}

pub fn seeds() -> Vec<Vec<u8>> {
    let good = |c: u8| [8, 1, 6, c, 8, 2, 40, c, 14, 8, 0, 0, 13, 8, 0, 0].to_vec();
    let mut all: Vec<Vec<u8>> = Vec::new();
    for layout in [0, 1, 2, OFFLOADS, OFFLOADS | 1] {
        for c in [0, 4, 1, 3, 8, 11, 12, 15] {
            all.push([vec![layout], good(c), good(c)].concat());
        }
    }
    // Noise among good buffers, and the table of empty entries.
    all.push([vec![1], good(4), vec![0, 6, 1, 0, 6, 7, 1, 0, 15, 9, 0, 0], good(0)].concat());
    all.push([vec![0, 11, 0, 32, 0, 7, 32, 0, 0, 14, 31, 0, 0], good(0)].concat());
    all
}
