//! What a guest can make us read: descriptors per call, whatever it writes, and rings that are
//! given up.

mod common;

use common::{AVAIL, DATA, DESC, DEVICE, DRIVER, Driver, INDIRECT, NEXT, TABLES, USED, WRITE};
use packet::{HeapPool, Packet, Pool};
use vhost::{Batch, Moved, Ring, RingError, feature, steps_max};

const SPLIT: u64 = feature::VERSION_1 | feature::MRG_RXBUF;
const PACKED: u64 = SPLIT | feature::RING_PACKED;
/// Rings of QEMU's default length, of its longest, and of what no QEMU makes.
const SIZES: [u16; 3] = [256, 1024, 1];

/// A descriptor as the guest writes it: address, length, flags.
type Desc = (u64, u32, u16);

/// One call in either direction for `n` packets.
#[derive(Clone, Copy, Debug)]
enum Call {
    Dequeue(usize),
    Enqueue(usize),
}

const CALLS: [Call; 4] =
    [Call::Dequeue(32), Call::Dequeue(8), Call::Enqueue(1), Call::Enqueue(128)];

impl Call {
    fn packets(self) -> usize {
        let (Call::Dequeue(n) | Call::Enqueue(n)) = self;
        n
    }

    /// What descriptors of this direction have.
    fn flags(self) -> u16 {
        if matches!(self, Call::Dequeue(_)) { 0 } else { WRITE }
    }

    fn of(self, ring: &mut Ring) -> Moved {
        let (pool, mut moved, mut batch) = (HeapPool::new(), Moved::default(), Batch::default());
        let sends = matches!(self, Call::Dequeue(_));
        (0..2).for_each(|step| ring.prepare(step, self.packets() as u16, sends));
        match self {
            Call::Dequeue(n) => {
                let mut out = Vec::new();
                ring.dequeue(&mut batch, &pool, &mut out, n, &mut moved);
                pool.free(&out);
            }
            Call::Enqueue(n) => {
                let packets: Vec<Packet> = (0..n).map(|_| pool.packet(&[7; 64]).unwrap()).collect();
                ring.enqueue(&mut batch, &packets, &mut moved);
                pool.free(&packets);
            }
        }
        assert_eq!(pool.in_use(), 0);
        moved
    }
}

fn write(driver: &Driver, at: u64, (addr, len, flags): Desc, next: u16) {
    driver.memory.put(at, &addr.to_le_bytes());
    driver.memory.put(at + 8, &len.to_le_bytes());
    let (a, b) = if driver.packed() { (next, flags) } else { (flags, next) };
    driver.memory.put16(at + 12, a);
    driver.memory.put16(at + 14, b);
}

/// An indirect table at [`TABLES`] whose entries all say this, each the next of the one before.
fn table(driver: &Driver, entries: u16, entry: Desc) {
    (0..entries).for_each(|i| write(driver, TABLES + 16 * u64::from(i), entry, i + 1));
}

/// Makes every place of the ring available again: `heads` says what descriptor `i` is, and in a
/// split ring each buffer begins at descriptor 0.
fn refill(driver: &Driver, ring: &Ring, heads: impl Fn(u16) -> (Desc, u16)) {
    let (at, wrap) = (ring.base() & 0x7fff, ring.base() & 1 << 15 != 0);
    for i in 0..driver.size {
        let ((addr, len, flags), next) = heads(i);
        let turn = if (i >= at) == wrap { AVAIL } else { USED };
        let flags = if driver.packed() { flags | turn } else { flags };
        write(driver, DESC + 16 * u64::from(i), (addr, len, flags), next);
    }
    if !driver.packed() {
        // The available ring is all zeros: descriptor 0.
        driver.memory.put16(DRIVER + 2, ring.base().wrapping_add(driver.size));
    }
}

/// Calls on a ring that is always full of such buffers stay below the bound, and it is given up
/// after 1,024 that are malformed, without a packet moved.
fn all_malformed(
    what: RingError,
    make: impl Fn(&Driver, Call),
    heads: impl Fn(Call, u16, u16) -> (Desc, u16),
) {
    for (size, features) in SIZES.into_iter().flat_map(|s| [(s, SPLIT), (s, PACKED)]) {
        for call in CALLS {
            let driver = Driver::new(size, features);
            let mut ring = driver.ring();
            make(&driver, call);
            let mut calls = 0;
            while !ring.is_broken() {
                refill(&driver, &ring, |i| heads(call, size, i));
                let steps = ring.steps();
                let moved = call.of(&mut ring);
                let (steps, max) = (ring.steps() - steps, steps_max(call.packets()) as u64);
                assert!(steps <= max && moved.has_errors, "{call:?} {size} {features:#x}: {steps}");
                assert_eq!(moved.packets, 0, "{call:?} {size} {features:#x}");
                calls += 1;
                assert!(calls <= 1025, "{call:?} {size} {features:#x} is not given up");
            }
            let ring_errors = ring.ring_errors();
            assert_eq!(ring_errors.get(RingError::GivenUp), 1, "{call:?} {size}");
            // The call that met the bound ends its batch of 64.
            assert!((1025..=1024 + 64).contains(&ring_errors.get(what)), "{ring_errors:?}");
            assert_eq!(
                call.of(&mut ring),
                Moved::default(),
                "a ring that was given up costs nothing"
            );
        }
    }
}

/// The attack that held a thread for 38 to 187 ms: tables of 32,768 entries without bytes, used by
/// all buffers.
#[test]
fn tables_longer_than_the_ring_are_refused_unread() {
    all_malformed(
        RingError::Indirect,
        |driver, call| table(driver, 0x4000, (DATA, 0, NEXT | call.flags())),
        |_, _, _| ((TABLES, 16 * 32_768, INDIRECT), 0),
    );
    all_malformed(
        RingError::Indirect,
        |_, _| (),
        |_, size, _| ((TABLES, 16 * (u32::from(size) + 1), INDIRECT), 0),
    );
}

/// As long as the ring, every entry without bytes and with a successor.
#[test]
fn entries_without_bytes_count_as_pieces() {
    for size in [512, 1024] {
        for (features, call) in [SPLIT, PACKED].into_iter().flat_map(|f| CALLS.map(|c| (f, c))) {
            let driver = Driver::new(size, features);
            let mut ring = driver.ring();
            table(&driver, size, (DATA, 0, NEXT | call.flags()));
            refill(&driver, &ring, |_| ((TABLES, 16 * u32::from(size), INDIRECT), 0));
            let moved = call.of(&mut ring);
            assert!(moved.packets == 0 && ring.ring_errors().get(RingError::Pieces) > 0);
            // Buffers of 257 entries and their head: the call reads as many as begin within its
            // budget.
            let (n, budget) = (call.packets() as u64, 512 + 16 * call.packets() as u64);
            let buffers = if let Call::Dequeue(n) = call { n as u64 } else { u64::MAX };
            let expected = buffers.min(budget.div_ceil(258)) * 258;
            assert!((expected..=expected + 3).contains(&ring.steps()), "{n} {}", ring.steps());
            assert_eq!(moved.exhausted, ring.steps() >= budget, "{call:?}");
        }
    }
}

/// A direct chain through the whole ring, in which no descriptor has bytes.
#[test]
fn long_direct_chains_end() {
    for call in CALLS {
        for (size, features) in [(1024, SPLIT), (1024, PACKED), (1500, PACKED)] {
            let driver = Driver::new(size, features);
            let mut ring = driver.ring();
            let flags = |i| call.flags() | if i + 1 < size { NEXT } else { 0 };
            let mut calls = 0;
            while !ring.is_broken() && calls < 2000 {
                refill(&driver, &ring, |i| ((DATA, 0, flags(i)), i + 1));
                let steps = ring.steps();
                assert_eq!(call.of(&mut ring).packets, 0);
                assert!(ring.steps() - steps <= steps_max(call.packets()) as u64);
                calls += 1;
            }
            // Where a packed ring's buffer ends is not known: the ring makes no sense.
            let what = if size == 1024 { RingError::Pieces } else { RingError::Loop };
            assert!(ring.is_broken() && ring.ring_errors().get(what) > 0, "{call:?} {size}");
        }
    }
}

/// Descriptors that are their own successors.
#[test]
fn loops_end() {
    for call in CALLS {
        let driver = Driver::new(256, SPLIT);
        let mut ring = driver.ring();
        refill(&driver, &ring, |_| ((DATA, 0, NEXT | call.flags()), 0));
        let moved = call.of(&mut ring);
        assert!(moved.packets == 0 && ring.steps() <= steps_max(call.packets()) as u64);
        assert!(
            ring.ring_errors().get(RingError::Loop) + ring.ring_errors().get(RingError::Pieces) > 0
        );
    }
}

/// Every other buffer malformed, for ever; and nothing but frames that are too long for us.
#[test]
fn a_ring_with_occasional_bad_buffers_is_served() {
    for features in [SPLIT, PACKED] {
        let mut driver = Driver::new(64, features);
        let mut ring = driver.ring();
        for i in 0..6000u64 {
            let part = if i % 2 == 0 { (DATA, 80) } else { (1 << 40, 80) };
            driver.offer(&[part], false, false).unwrap();
            Call::Dequeue(32).of(&mut ring);
            assert!(driver.used().is_some());
        }
        assert!(!ring.is_broken() && ring.ring_errors().get(RingError::Address) == 3000);
        for _ in 0..3000 {
            driver.offer(&[(DATA, 3000)], false, false).unwrap();
            Call::Dequeue(32).of(&mut ring);
            assert!(driver.used().is_some());
        }
        assert!(!ring.is_broken() && ring.ring_errors().get(RingError::Long) == 3000);
    }
}

/// The bound is no obstacle: a frame that takes 52 buffers is sent by the first call.
#[test]
fn a_frame_in_very_many_buffers_is_sent() {
    for features in [SPLIT, PACKED] {
        let mut driver = Driver::new(64, features);
        let mut ring = driver.ring();
        let pool = HeapPool::new();
        let packets = [pool.packet(&[7; 2000]).unwrap()];
        for i in 0..60 {
            driver.offer(&[(DATA + i * 0x1000, 40)], true, false).unwrap();
        }
        let mut moved = Moved::default();
        ring.enqueue(&mut Batch::default(), &packets, &mut moved);
        assert!(moved.packets == 1 && !moved.exhausted && !moved.has_errors, "{moved:?}");
        assert_eq!(driver.memory.get16(DEVICE + 2), if features == SPLIT { 51 } else { 0 });
        pool.free(&packets);
    }
}
