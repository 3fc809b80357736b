//! Rings between two ends that keep to the protocol, and between one that does and one that writes
//! whatever comes to its mind.

use super::memory::{SharedMemory, new_region};
use super::ring::{Buffers, Ring, RingError};
use super::{eventfd, message};
use packet::{HeapPool, Packet, Pool};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use testkit::Noise;
use vhost_user::Counters;

const LOG2_SIZE: u8 = 4;
const RING_BYTES: u32 =
    (message::RING_HEADER_BYTES + (message::DESCRIPTOR_BYTES << LOG2_SIZE)) as u32;
const BUFFER_BYTES: u32 = 64;
const FIRST_BUFFER: u32 = 4096;
const REGION_BYTES: u64 = 64 << 10;

/// The ends of a ring from client to server and of one back, in memory that both map.
struct Bench {
    memory: Arc<SharedMemory>,
    pool: HeapPool,
    spare: Vec<Packet>,
    noise: Noise,
}

impl Bench {
    fn new() -> Bench {
        let event: Arc<OwnedFd> = Arc::new(eventfd().unwrap());
        let region = [(new_region(REGION_BYTES).unwrap(), REGION_BYTES)];
        let memory = Arc::new(SharedMemory::map(&region, &event).unwrap());
        let (pool, spare, noise) = (HeapPool::new(), Vec::new(), Noise::default());
        Bench { memory, pool, spare, noise }
    }

    fn end(&self, offset: u32, own: bool, receives: bool) -> Ring {
        let first = FIRST_BUFFER + offset / RING_BYTES * (BUFFER_BYTES << LOG2_SIZE);
        let buffers = match own {
            true => Buffers::Own { first, bytes: BUFFER_BYTES },
            false => Buffers::Theirs,
        };
        let place = (0, offset, LOG2_SIZE);
        Ring::new(&self.memory, place, buffers, eventfd().unwrap(), receives).unwrap()
    }

    /// Client to server, sending and receiving end; server to client, the same.
    fn ends(&self) -> [(Ring, Ring); 2] {
        // A wild descriptor may have put a frame there.
        [0, RING_BYTES].iter().for_each(|offset| Ring::format(&self.memory, *offset));
        let c2s = (self.end(0, true, false), self.end(0, false, true));
        let sends = self.end(RING_BYTES, false, false);
        [c2s, (sends, self.end(RING_BYTES, true, true))]
    }

    fn frame(&mut self, bytes: usize) -> Packet {
        let data = self.noise.bytes(bytes);
        self.pool.packet(&data).unwrap()
    }

    fn send(&mut self, ring: &mut Ring, packets: &[Packet]) -> Result<usize, RingError> {
        let mut moved = Counters::default();
        ring.send(packets, &mut moved).map(|()| moved.packets as usize)
    }

    fn receive(
        &mut self,
        ring: &mut Ring,
        out: &mut Vec<Packet>,
    ) -> (Counters, Result<(), RingError>) {
        let mut moved = Counters::default();
        let from = (&self.pool as &dyn Pool, &mut self.spare);
        let result = ring.receive(from, (out, 32), &mut moved);
        (moved, result)
    }

    /// A number of the header or of a descriptor of the ring is another one.
    fn scribble(&mut self, offset: u32) {
        let at = match self.noise.below(4) {
            0 => [4, 6, 64][self.noise.below(3)],
            _ => 128 + self.noise.below(16 << LOG2_SIZE) as u32 / 2 * 2,
        };
        let near = [0, 1, 15, 16, 17, 0x3fff, 0x8000, 0xffff][self.noise.below(8)];
        let value = if self.noise.below(2) == 0 { near } else { self.noise.next() as u16 };
        let to = self.memory.at(0, offset + at, 2).unwrap();
        // SAFETY: two mapped bytes, aligned.
        unsafe { to.cast::<u16>().write_volatile(value) };
    }
}

/// 12,000 frames each way, so that the 16-bit indices wrap, of 14 to 1,013 bytes: one to 16
/// descriptors with buffers of 64 bytes.
#[test]
fn frames_arrive_whole_and_in_order() {
    let mut bench = Bench::new();
    for (mut from, mut to) in bench.ends() {
        let (mut waiting, mut sent, mut got) = (Vec::new(), 0, 0);
        let mut expected = std::collections::VecDeque::new();
        let mut back = Vec::with_capacity(64);
        while got < 12_000 {
            let bytes = 14 + bench.noise.below(1000);
            waiting.push(bench.frame(bytes));
            let n = bench.send(&mut from, &waiting).unwrap();
            expected.extend(waiting[..n].iter().map(|p| p.data().to_vec()));
            let gone: Vec<Packet> = waiting.drain(..n).collect();
            bench.pool.free(&gone);
            sent += n;
            if bench.noise.below(3) > 0 {
                let (moved, result) = bench.receive(&mut to, &mut back);
                assert_eq!(
                    (result, moved.dropped, moved.packets as usize),
                    (Ok(()), 0, back.len())
                );
                for packet in &back {
                    assert_eq!(packet.data(), expected.pop_front().unwrap());
                }
                got += back.len();
                bench.pool.free(&back);
                back.clear();
            }
        }
        assert!(sent >= got && expected.len() == sent - got);
        bench.pool.free(&waiting);
    }
    bench.pool.free(&bench.spare);
    assert_eq!(bench.pool.in_use(), 0);
}

#[test]
fn frames_that_are_none_are_counted() {
    let mut bench = Bench::new();
    let [(mut from, mut to), _] = bench.ends();
    let mut back = Vec::with_capacity(32);
    let frames = [bench.frame(13), bench.frame(14), bench.frame(1)];
    assert_eq!(bench.send(&mut from, &frames), Ok(3));
    let (moved, result) = bench.receive(&mut to, &mut back);
    assert_eq!((moved.packets, moved.dropped, result), (1, 2, Ok(())));
}

/// A call touches few of the peer's buffers, however small they are and however many wait: each may
/// be a page fault.
#[test]
fn frames_of_many_descriptors_are_few_in_a_call() {
    const LOG2: u8 = 11;
    const RING: u32 = (message::RING_HEADER_BYTES + (message::DESCRIPTOR_BYTES << LOG2)) as u32;
    let mut bench = Bench::new();
    Ring::format(&bench.memory, 0);
    let ring = |bench: &Bench, receives| {
        let place = (0, 0, LOG2);
        Ring::new(&bench.memory, place, Buffers::Theirs, eventfd().unwrap(), receives).unwrap()
    };
    let half = |bench: &Bench, at: u32| {
        let at = bench.memory.at(0, at, 2).unwrap().cast::<u16>();
        // SAFETY: two mapped bytes, aligned.
        unsafe { std::sync::atomic::AtomicU16::from_ptr(at) }
    };
    // Frames of 64 buffers of one byte.
    let describe = |bench: &Bench| {
        for i in 0..1 << LOG2 {
            let at = bench.memory.at(0, 128 + 16 * i, 16).unwrap().cast::<u32>();
            let words = [u32::from(i % 64 != 63), 1, RING + i];
            // SAFETY: twelve mapped bytes, aligned.
            unsafe { at.cast::<[u32; 3]>().write_volatile(words) };
        }
        half(bench, 6).store(1 << LOG2, Ordering::Relaxed);
    };
    let mut to = ring(&bench, true);
    describe(&bench);
    let mut back = Vec::with_capacity(64);
    let (moved, result) = bench.receive(&mut to, &mut back);
    let passed = half(&bench, 64).load(Ordering::Relaxed);
    assert_eq!((result, moved.packets, passed), (Ok(()), 2, 128));
    bench.pool.free(&back);

    let mut from = ring(&bench, false);
    describe(&bench);
    let frames: Vec<Packet> = (0..32).map(|_| bench.frame(64)).collect();
    assert_eq!(bench.send(&mut from, &frames), Ok(8));
    assert_eq!(half(&bench, 64).load(Ordering::Relaxed), 512);
    bench.pool.free(&frames);
}

/// Whatever is in the shared memory: at most 32 packets come of a call, each in its buffer, what
/// is wrong ends the ring, and no packet is lost.
#[test]
fn wild_numbers_end_the_ring_and_nothing_else() {
    let mut bench = Bench::new();
    let mut errors = [0; 3];
    for _ in 0..20_000 {
        let mut ends = bench.ends();
        for _ in 0..1 + bench.noise.below(12) {
            let which = bench.noise.below(2);
            (0..bench.noise.below(3)).for_each(|_| bench.scribble(which as u32 * RING_BYTES));
            let bytes = 14 + bench.noise.below(400);
            let frames = [bench.frame(bytes)];
            let mut back = Vec::with_capacity(32);
            let (from, to) = &mut ends[which];
            let sends = bench.noise.below(2) == 0;
            let mut step = |bench: &mut Bench| match sends {
                true => bench.send(from, &frames).map(drop),
                false => bench.receive(to, &mut back).1,
            };
            if let Err(error) = step(&mut bench) {
                errors[error as usize] += 1;
                assert_eq!(step(&mut bench), Ok(()), "the ring is over");
            }
            assert!(back.len() <= 32 && back.iter().all(|p| p.len() >= 14));
            bench.pool.free(&frames);
            bench.pool.free(&back);
        }
    }
    assert!(errors.iter().all(|n| *n > 100), "{errors:?}");
    bench.pool.free(&bench.spare);
    assert_eq!(bench.pool.in_use(), 0);
}
