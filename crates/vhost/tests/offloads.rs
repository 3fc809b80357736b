//! Segments of TCP to and from guests that take and leave them whole. What is sent to such a guest
//! and comes back from it as it is must be the same packets.

mod common;

use common::{DATA, Driver, LEAVES, Part, TAKES};
use packet::{HeapPool, Packet, Pool};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use testkit::{fix_checksums, tcp_stream};
use vhost::{Batch, Moved, Ring, RingError, feature, steps_max};
use wire::checksum::pseudo_v6;
use wire::{ETH_LEN, IP_TCP, Ipv6, Tcp};

const SPLIT: u64 = feature::VERSION_1 | feature::MRG_RXBUF;
const PACKED: u64 = SPLIT | feature::RING_PACKED;
/// Bytes of a virtio-net header.
const HEADER: usize = 12;
/// Bytes between the buffers of a guest that sends, of which four are available at most.
const SPACE: u64 = 0x1_1000;

/// Packets that are sent in a row.
fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let segments = (any::<bool>(), any::<u32>(), 1usize..24, 1usize..1500, 1usize..1500);
    let connection = segments.prop_map(|(v6, seq, n, len, last)| {
        let mut lens = vec![len; n];
        lens.push(last.min(len));
        tcp_stream(v6, seq, &lens)
    });
    let damaged =
        (any::<bool>(), 0usize..54, 0u8..8, 0usize..3).prop_map(|(v6, at, bit, which)| {
            let mut all = tcp_stream(v6, 7, &[40, 40, 40]);
            all[which][at] ^= 1 << bit;
            all
        });
    let other = prop::collection::vec(any::<u8>(), 14..400).prop_map(|frame| vec![frame]);
    let some = prop_oneof![3 => connection, 1 => damaged, 1 => other];
    prop::collection::vec(some, 1..6).prop_map(|all| all.concat())
}

/// A guest that receives frames.
struct Receiver {
    driver: Driver,
    places: HashMap<u16, Vec<Part>>,
    offered: u64,
}

impl Receiver {
    fn offer(&mut self, len: u32) {
        while self.driver.has_room(1) {
            let at = DATA + self.offered % 128 * 0x1000;
            self.offered += 1;
            let Some(id) = self.driver.offer(&[(at, len)], true, false) else { break };
            self.places.insert(id, vec![(at, len)]);
        }
    }

    fn buffer(&mut self) -> Option<Vec<u8>> {
        let (id, len) = self.driver.used()?;
        let (at, _) = self.places.remove(&id).unwrap()[0];
        Some(self.driver.memory.get(at, len as usize))
    }

    /// The next frame, with its header.
    fn frame(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.buffer()?;
        for _ in 1..u16::from_le_bytes([bytes[10], bytes[11]]) {
            bytes.extend(self.buffer().expect("all buffers of a frame come at once"));
        }
        Some(bytes)
    }
}

/// Sends packets to a guest; the frames that it gets, in the order of the packets.
fn to_guest(features: u64, packets: &[Vec<u8>], buffer: u32, burst: usize) -> Vec<Vec<u8>> {
    let driver = Driver::new(128, features | TAKES);
    let mut ring = driver.ring();
    let mut guest = Receiver { driver, places: HashMap::new(), offered: 0 };
    let (pool, mut batch, mut frames) = (HeapPool::new(), Batch::default(), Vec::new());
    let mut at = 0;
    while at < packets.len() {
        guest.offer(buffer);
        let burst = &packets[at..packets.len().min(at + burst)];
        let mut sent: Vec<Packet> = burst.iter().map(|f| pool.packet(f).unwrap()).collect();
        // Of some it is known that their checksums are right.
        let sound = burst.iter().all(|f| is_sound(f));
        sent.iter_mut().filter(|_| sound).for_each(Packet::set_sound_checksums);
        let mut moved = Moved::default();
        ring.enqueue(&mut batch, &sent, &mut moved);
        assert!(moved.packets > 0 && moved.dropped == 0);
        let bytes: u64 = sent[..moved.packets].iter().map(|p| p.len() as u64).sum();
        assert_eq!(moved.bytes, bytes);
        pool.free(&sent);
        at += moved.packets;
        frames.extend(std::iter::from_fn(|| guest.frame()));
    }
    assert!(guest.driver.memory.is_dry() && pool.in_use() == 0);
    assert_eq!(ring.ring_errors().total(), 0);
    frames
}

fn is_sound(frame: &[u8]) -> bool {
    let mut right = frame.to_vec();
    fix_checksums(&mut right);
    right == frame
}

/// Has a guest send these frames behind their headers; what the switch receives.
fn from_guest(features: u64, frames: &[Vec<u8>], cut: u32, max: usize) -> Vec<Vec<u8>> {
    let mut driver = Driver::new(8, features | LEAVES);
    let (mut ring, mut batch, pool) = (driver.ring(), Batch::default(), HeapPool::new());
    let mut left: VecDeque<&Vec<u8>> = frames.iter().collect();
    let (mut got, mut offered, mut idle) = (Vec::new(), 0, 0);
    while idle < 2 {
        while let Some(frame) = left.front() {
            let (at, len) = (DATA + offered % 6 * SPACE, frame.len() as u32);
            let first = cut.clamp(1, len - 1);
            let parts = [(at, first), (at + u64::from(first), len - first)];
            if driver.offer(&parts, false, false).is_none() {
                break;
            }
            driver.memory.put(at, frame);
            (offered, left) = (offered + 1, left.split_off(1));
        }
        let (mut out, mut moved) = (Vec::new(), Moved::default());
        ring.prepare(1, 8, true);
        ring.dequeue(&mut batch, &pool, &mut out, max, &mut moved);
        assert_eq!((moved.packets, moved.dropped), (out.len(), 0));
        assert!(out.len() <= max && moved.bytes == out.iter().map(|p| p.len() as u64).sum());
        got.extend(out.iter().map(|p| p.data().to_vec()));
        idle = if out.is_empty() && left.is_empty() { idle + 1 } else { 0 };
        pool.free(&out);
        while driver.used().is_some() {}
    }
    assert!(driver.memory.is_dry() && pool.in_use() == 0);
    assert_eq!(ring.ring_errors().total(), 0);
    got
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_a_guest_sends_back_is_what_was_sent_to_it(
        packets in packets(),
        buffer in 200u32..4000,
        cut in 1u32..100,
        burst in 1usize..33,
        max in 1usize..65,
    ) {
        for features in [SPLIT, PACKED] {
            let frames = to_guest(features, &packets, buffer, burst);
            let got = from_guest(features, &frames, cut, max);
            let differ = got.iter().zip(&packets).find(|(a, b)| a != b);
            prop_assert!(differ.is_none() && got.len() == packets.len(), "{differ:02x?}");
        }
    }
}

/// A stream becomes one frame for a guest that takes it, and stays as it is for others.
#[test]
fn segments_are_merged_for_guests_that_take_them() {
    let packets = tcp_stream(false, 1, &[1448; 32]);
    for features in [SPLIT, PACKED] {
        let frames = to_guest(features, &packets, 1526, 32);
        let lens: Vec<usize> = frames.iter().map(Vec::len).collect();
        assert_eq!(lens, [HEADER + 66 + 32 * 1448]);
        let few = to_guest(features, &packets, 300, 32);
        assert_eq!(few.len(), 32, "no buffers for a frame: its segments");
    }
}

/// A ring on which a guest left this header and frame, and how the call ended.
fn left(header: [u8; HEADER], frame: &[u8]) -> (Ring, Moved, Vec<Vec<u8>>) {
    let mut driver = Driver::new(16, SPLIT | LEAVES);
    let (mut ring, mut batch, pool) = (driver.ring(), Batch::default(), HeapPool::new());
    driver.memory.put(DATA, &header);
    driver.memory.put(DATA + HEADER as u64, frame);
    driver.offer(&[(DATA, (HEADER + frame.len()) as u32)], false, false).unwrap();
    let (mut out, mut moved) = (Vec::new(), Moved::default());
    ring.dequeue(&mut batch, &pool, &mut out, 32, &mut moved);
    let frames = out.iter().map(|p| p.data().to_vec()).collect();
    pool.free(&out);
    assert!(pool.in_use() == 0 && driver.used().is_some(), "the buffer comes back");
    (ring, moved, frames)
}

/// The header of a frame that is to be cut into segments with `size` bytes of payload.
fn gso(kind: u8, size: u16, start: u16) -> [u8; HEADER] {
    let mut header = [1, kind, 54, 0, 0, 0, 0, 0, 16, 0, 0, 0];
    header[4..6].copy_from_slice(&size.to_le_bytes());
    header[6..8].copy_from_slice(&start.to_le_bytes());
    header
}

#[test]
fn what_cannot_be_done_with_a_frame_is_counted() {
    let frame = &tcp_stream(false, 1, &[4000])[0];
    let (_, moved, frames) = left(gso(1, 1000, 34), frame);
    assert_eq!((moved.packets, moved.dropped, frames.len()), (4, 0, 4));
    let offload = [
        gso(1, 0, 34),
        gso(1, 1, 34),
        gso(4, 1000, 34),
        gso(5, 1000, 34),
        gso(1, 1000, 35),
        gso(1, 1000, 0xffff),
        gso(0, 0, 4053),
        gso(0, 0, 0xffff),
    ];
    for header in offload {
        let (ring, moved, _) = left(header, if header[1] == 0 { &frame[..1000] } else { frame });
        let counted = ring.ring_errors().get(RingError::Offload);
        assert_eq!((moved.packets, moved.dropped, counted), (0, 1, 1), "{header:?}");
    }
    // A segment that is longer than a packet of ours.
    let (ring, moved, _) = left(gso(1, 3999, 34), frame);
    assert_eq!((moved.dropped, ring.ring_errors().get(RingError::Long)), (1, 1));
}

/// A checksum that the guest left is computed.
#[test]
fn a_checksum_is_completed() {
    let whole = &tcp_stream(true, 9, &[500])[0];
    let mut frame = whole.clone();
    let ip = Ipv6::new(&frame[ETH_LEN..]).unwrap();
    let pseudo = pseudo_v6(&ip.src(), &ip.dst(), IP_TCP, 532).fold();
    Tcp::new(&mut frame[54..]).unwrap().set_checksum(pseudo);
    let (_, moved, frames) = left(gso(0, 0, 54), &frame);
    assert_eq!((moved.packets, &frames[0]), (1, whole));
}

/// What a call copies is limited, however long the frames of a guest are and however few packets
/// they make.
#[test]
fn a_call_copies_few_long_frames() {
    let mut driver = Driver::new(256, SPLIT | LEAVES);
    let (mut ring, mut batch, pool) = (driver.ring(), Batch::default(), HeapPool::new());
    // Nothing can be done with these.
    driver.memory.put(DATA, &gso(1, 1, 34));
    for _ in 0..256 {
        driver.offer(&[(DATA, 0x1_0000)], false, false).unwrap();
    }
    let (mut out, mut moved) = (Vec::new(), Moved::default());
    ring.dequeue(&mut batch, &pool, &mut out, 32, &mut moved);
    assert!(moved.exhausted && moved.dropped <= 12, "{moved:?}");
    pool.free(&out);
}

/// What a call reads is limited, however small the pieces of a guest's buffers are.
#[test]
fn a_call_reads_few_small_pieces() {
    let mut driver = Driver::new(256, SPLIT | TAKES);
    let pieces: Vec<Part> = (0..60).map(|i| (DATA + i, 1)).collect();
    while driver.offer(&pieces, true, true).is_some() {}
    let (mut ring, mut batch, pool) = (driver.ring(), Batch::default(), HeapPool::new());
    let segments: Vec<_> =
        (0..16).flat_map(|i| tcp_stream(i % 2 == 0, 7 * i, &[100, 100])).collect();
    let packets: Vec<Packet> = segments.iter().map(|f| pool.packet(f).unwrap()).collect();
    let mut moved = Moved::default();
    ring.enqueue(&mut batch, &packets, &mut moved);
    assert!(moved.exhausted && moved.packets > 0, "{moved:?}");
    assert!(ring.steps() <= 2 * steps_max(packets.len()) as u64, "{} steps", ring.steps());
    pool.free(&packets);
}
