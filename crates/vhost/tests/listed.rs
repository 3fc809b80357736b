//! Rings whose copies are listed, and made later, in any order, some of them twice: what the guest
//! and the switch get is what a queue of frames gives.

mod common;

use common::{DATA, Driver, LAYOUTS, Part, reap};
use packet::{HeapPool, Packet, Pool};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use vhost::{BATCH, Batch, Job, List, Moved, Ring, feature};

/// Bytes of buffer space per offer, so that no two overlap.
const SPACE: u64 = 0x1000;
/// What is in the guest's buffers before they are used.
const POISON: u8 = 0xa7;

#[derive(Clone, Debug)]
enum Step {
    /// The guest offers a buffer: frame length or buffer size, where it is cut, and whether it is
    /// an indirect one.
    Offer(u32, Vec<u32>, bool),
    /// We take or give so many packets; so many copies may be listed, of frames above so many
    /// bytes.
    Move(usize, usize, usize),
    /// The engine makes so many copies, beginning with this one: after an error twice.
    Make(usize, usize, bool),
    /// The guest looks at what came back.
    Reap,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cuts = prop::collection::vec(0u32..300, 0..5);
    let step = prop_oneof![
        4 => (1u32..1500, cuts, any::<bool>()).prop_map(|(n, cuts, i)| Step::Offer(n, cuts, i)),
        3 => (1usize..70, prop_oneof![Just(0usize), 1usize..40, Just(1000)], 0usize..1600)
            .prop_map(|(n, room, threshold)| Step::Move(n, room, threshold)),
        3 => (1usize..50, any::<usize>(), any::<bool>()).prop_map(|(n, at, b)| Step::Make(n, at, b)),
        1 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 1..150)
}

fn parts(cuts: &[u32], at: u64, len: u32) -> Vec<Part> {
    let (mut parts, mut done) = (Vec::new(), 0);
    for cut in cuts {
        let n = (*cut).min(len - done);
        parts.push((at + u64::from(done), n));
        done += n;
    }
    parts.push((at + u64::from(done), len - done));
    parts
}

fn frame(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 31 + i * 7 + 1) as u8).collect()
}

fn place(n: &mut u64) -> u64 {
    *n += 1;
    DATA + *n % 128 * SPACE
}

/// A ring, its driver, and the copies that wait.
struct Bench {
    driver: Driver,
    ring: Ring,
    batch: Batch,
    pool: HeapPool,
    list: List,
    jobs: Vec<Job>,
    /// Packets on their way to the guest: jobs left, by slot.
    kept: HashMap<u32, (usize, Packet)>,
    offers: u64,
}

impl Bench {
    fn new(size: u16, features: u64) -> Bench {
        let driver = Driver::new(size, features);
        let ring = driver.ring();
        let (batch, pool, list) = (Batch::default(), HeapPool::new(), List::default());
        Bench { driver, ring, batch, pool, list, jobs: vec![], kept: HashMap::new(), offers: 0 }
    }

    fn ask(&mut self, room: usize, threshold: usize) {
        self.list.clear();
        (self.list.room, self.list.threshold) = (room, threshold);
    }

    /// Makes `n` of the copies that wait.
    fn make(&mut self, n: usize, at: usize, twice: bool) {
        for _ in 0..n.min(self.jobs.len()) {
            let job = self.jobs.swap_remove(at % self.jobs.len());
            // SAFETY: the guest's memory and the packet are there.
            unsafe {
                job.make();
                if twice {
                    job.make();
                }
            }
            self.ring.done(job.slot);
            if let Some((left, packet)) = self.kept.get_mut(&job.slot) {
                *left -= 1;
                if *left == 0 {
                    // Whoever uses it next overwrites it.
                    packet.data_mut().fill(0xee);
                    let (_, packet) = self.kept.remove(&job.slot).unwrap();
                    self.pool.free(&[packet]);
                }
            }
        }
        assert_eq!(self.ring.in_flight() as usize, self.jobs.len());
    }

    /// Takes over what a call listed.
    fn collect(&mut self, packets: &[Packet]) {
        let mut kept = self.list.kept.iter();
        for job in &self.list.jobs {
            self.jobs.push(*job);
            if packets.is_empty() {
                continue;
            }
            let entry = self.kept.entry(job.slot);
            // SAFETY: the caller passes over what is kept when it frees its packets.
            let mut keep = || unsafe { packets[*kept.next().unwrap() as usize].duplicate() };
            entry.or_insert_with(|| (0, keep())).0 += 1;
        }
        assert!(packets.is_empty() || kept.next().is_none());
    }
}

fn guest_sends(features: u64, size: u16, steps: &[Step]) {
    let mut b = Bench::new(size, features);
    let mut model: VecDeque<Vec<u8>> = VecDeque::new();
    let header = b.driver.header() as u32;
    let end = [Step::Make(usize::MAX, 0, false), Step::Move(BATCH, 0, 0)];
    let drain = end.iter().cycle().take(2 * (2 + usize::from(size) / BATCH));
    for (i, step) in steps.iter().chain(drain).enumerate() {
        match step {
            Step::Offer(len, cuts, indirect) => {
                let at = place(&mut b.offers);
                let parts = parts(cuts, at, header + len);
                if b.driver.offer(&parts, false, *indirect).is_some() {
                    let bytes = frame(*len as usize, i);
                    b.driver.memory.put(at + u64::from(header), &bytes);
                    model.push_back(bytes);
                }
            }
            Step::Move(max, room, threshold) => {
                let (mut out, mut moved) = (Vec::with_capacity(BATCH), Moved::default());
                b.ring.prepare(i % 2, 16, true);
                if b.ring.has_slots() || *room > 0 {
                    b.ask(*room, *threshold);
                    let Bench { ring, batch, pool, list, .. } = &mut b;
                    ring.dequeue_listed(batch, pool, &mut out, *max, list, &mut moved);
                    b.collect(&[]);
                } else {
                    b.ring.dequeue(&mut b.batch, &b.pool, &mut out, *max, &mut moved);
                }
                assert!(out.len() <= *max && (moved.packets, moved.dropped) == (out.len(), 0));
                for p in &out {
                    assert_eq!(p.data(), model.pop_front().unwrap());
                }
                b.pool.free(&out);
            }
            Step::Make(n, at, twice) => b.make(*n, *at, *twice),
            Step::Reap => while b.driver.used().is_some() {},
        }
        if i % 23 == 22 {
            go_on_elsewhere(&mut b);
        }
    }
    assert!(model.is_empty() && !b.ring.has_slots() && b.driver.memory.is_dry());
    assert!(b.pool.in_use() == 0 && b.ring.ring_errors().total() == 0);
}

/// The ring is taken away and put back, as messages of the front-end have it: copies are waited for
/// before.
fn go_on_elsewhere(b: &mut Bench) {
    b.make(usize::MAX, 3, false);
    let mut packets = Vec::new();
    b.ring.abandon(&mut packets);
    b.pool.free(&packets);
    let base = b.ring.base();
    b.ring = b.driver.try_ring(vhost::RingSetup { base, ..b.driver.setup() }).unwrap();
}

fn guest_receives(features: u64, size: u16, steps: &[Step]) {
    let mut b = Bench::new(size, features);
    let (mut sent, mut places) = (VecDeque::new(), HashMap::new());
    let end = [Step::Make(usize::MAX, 0, false), Step::Move(0, 0, 0), Step::Reap];
    for (i, step) in steps.iter().chain(&end).enumerate() {
        match step {
            Step::Offer(len, cuts, indirect) => {
                let len = if features & feature::MRG_RXBUF != 0 { 100 + len } else { 1600 };
                let at = place(&mut b.offers);
                let parts = parts(cuts, at, len);
                if let Some(id) = b.driver.offer(&parts, true, *indirect) {
                    b.driver.memory.put(at, &vec![POISON; len as usize]);
                    places.insert(id, parts);
                }
            }
            Step::Move(n, room, threshold) => {
                let frames: Vec<_> =
                    (0..*n).map(|k| frame(20 + (i * 37 + k * 11) % 1500, k)).collect();
                let packets: Vec<Packet> =
                    frames.iter().map(|f| b.pool.packet(f).unwrap()).collect();
                let mut moved = Moved::default();
                b.ring.prepare(i % 2, 16, false);
                b.ask(*room, *threshold);
                if b.ring.has_slots() || *room > 0 {
                    let Bench { ring, batch, list, .. } = &mut b;
                    ring.enqueue_listed(batch, &packets, list, &mut moved);
                    b.collect(&packets);
                } else {
                    b.ring.enqueue(&mut b.batch, &packets, &mut moved);
                }
                assert_eq!(moved.dropped, 0);
                sent.extend(frames.into_iter().take(moved.packets));
                let gone = |i: &usize| !b.list.kept.contains(&(*i as u32));
                let gone = packets.into_iter().enumerate().filter(|(i, _)| gone(i));
                let gone: Vec<Packet> = gone.map(|(_, p)| p).collect();
                b.pool.free(&gone);
            }
            Step::Make(n, at, twice) => {
                b.make(*n, *at, *twice);
                b.ring.publish_done();
            }
            Step::Reap => reap(&mut b.driver, &mut places, &mut sent),
        }
    }
    assert!(sent.is_empty() && !b.ring.has_slots() && b.driver.memory.is_dry());
    assert!(b.pool.in_use() == 0 && b.ring.ring_errors().total() == 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_a_guest_sends_arrives(steps in steps(), big in any::<bool>()) {
        for features in LAYOUTS {
            guest_sends(features, if big { 256 } else { 8 }, &steps);
        }
    }

    #[test]
    fn what_is_sent_to_a_guest_arrives(steps in steps(), big in any::<bool>()) {
        for features in LAYOUTS {
            guest_receives(features, if big { 256 } else { 8 }, &steps);
        }
    }
}
