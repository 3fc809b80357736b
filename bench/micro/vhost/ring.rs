//! Cycles per packet of a ring whose driver is the same thread: `cargo run --release -p vhost
//! --example ring`.
//!
//! For each layout, direction and frame length: the least over rounds, of a ring that copies at
//! once; of one that lists every copy, which are then made in the order of the list; and of one
//! that lists none, but keeps the order with those that were listed.

#[path = "../../../crates/vhost/tests/common/mod.rs"]
mod common;

use common::{DATA, Driver};
use packet::{HeapPool, Packet, Pool};
use std::sync::Mutex;
use vhost::{Batch, List, Moved, feature};

const SIZE: u16 = 256;
const BURST: usize = 32;
const ROUNDS: usize = 20_000;

fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC has no preconditions.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Packets that are used again: what comes from the heap costs more than the ring.
struct Reused(HeapPool, Mutex<Vec<Packet>>);

impl Pool for Reused {
    fn alloc(&self, out: &mut Vec<Packet>, n: usize) -> bool {
        let mut free = self.1.lock().unwrap();
        if free.len() < n {
            return self.0.alloc(out, n);
        }
        let from = free.len() - n;
        out.extend(free.drain(from..));
        true
    }

    fn free(&self, packets: &[Packet]) {
        // SAFETY: what is given back is not used any more.
        unsafe { packet::append(&mut self.1.lock().unwrap(), packets) };
    }

    fn room(&self) -> usize {
        self.0.room()
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        self.0.free(&self.1.lock().unwrap());
    }
}

/// A typical cost: the median of all rounds, per packet.
fn median(mut all: Vec<u64>) -> f64 {
    all.sort_unstable();
    all[all.len() / 2] as f64 / BURST as f64
}

fn run(features: u64, len: usize, sends: bool, lists: bool, threshold: usize) -> f64 {
    let (mut driver, pool) =
        (Driver::new(SIZE, features), Reused(HeapPool::new(), Mutex::default()));
    let (mut ring, mut batch, mut list) = (driver.ring(), Batch::default(), List::default());
    let packets: Vec<Packet> = (0..BURST).map(|_| pool.packet(&vec![7; len]).unwrap()).collect();
    let (mut at, mut all) = (0, Vec::with_capacity(ROUNDS));
    let mut out = Vec::with_capacity(BURST);
    for _ in 0..ROUNDS {
        for _ in 0..BURST {
            let bytes = if sends { driver.header() + len } else { 2048 };
            let part = (DATA + at % 256 * 2048, bytes as u32);
            at += 1;
            driver.offer(&[part], !sends, false).unwrap();
        }
        (list.room, list.threshold) = (1024, threshold);
        list.clear();
        let (mut moved, began) = (Moved::default(), cycles());
        match (sends, lists) {
            (true, false) => ring.dequeue(&mut batch, &pool, &mut out, BURST, &mut moved),
            (false, false) => ring.enqueue(&mut batch, &packets, &mut moved),
            (true, true) => {
                ring.dequeue_listed(&mut batch, &pool, &mut out, BURST, &mut list, &mut moved);
            }
            (false, true) => ring.enqueue_listed(&mut batch, &packets, &mut list, &mut moved),
        }
        for job in &list.jobs {
            // SAFETY: the driver's memory and the packets are there.
            unsafe { job.make() };
            ring.done(job.slot);
        }
        if lists {
            match sends {
                true => {
                    list.clear();
                    ring.dequeue_listed(&mut batch, &pool, &mut out, BURST, &mut list, &mut moved);
                }
                false => drop(ring.publish_done()),
            }
        }
        all.push(cycles() - began);
        assert_eq!(moved.packets, BURST);
        pool.free(&out);
        out.clear();
        while driver.used().is_some() {}
    }
    pool.free(&packets);
    median(all)
}

fn main() {
    let packed = feature::VERSION_1 | feature::RING_PACKED;
    for (name, features) in [("split", feature::VERSION_1), ("packed", packed)] {
        for (way, sends) in [("to guest", false), ("from guest", true)] {
            for len in [64, 256, 1500] {
                let ways = [(false, 0), (true, 0), (true, usize::MAX)];
                let [once, listed, slots] =
                    ways.map(|(lists, threshold)| run(features, len, sends, lists, threshold));
                println!("{name:6} {way:10} {len:5} B {once:6.1} {listed:6.1} {slots:6.1}");
            }
        }
    }
}
