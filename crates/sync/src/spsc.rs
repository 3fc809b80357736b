//! A bounded single-producer single-consumer ring. Neither side ever blocks.

use crate::atomics::{Arc, AtomicUsize, Ordering, UnsafeCell, fence};
use std::mem::MaybeUninit;

#[repr(align(64))]
struct Index(AtomicUsize);

struct Shared<T> {
    head: Index,
    tail: Index,
    mask: usize,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: slots in [head, tail) belong to the consumer, the others to the producer; the indices
// hand them over with release/acquire.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

/// The writing end.
pub struct Producer<T> {
    ring: Arc<Shared<T>>,
    tail: usize,
    head_seen: usize,
}

/// The reading end.
pub struct Consumer<T> {
    ring: Arc<Shared<T>>,
    head: usize,
    tail_seen: usize,
}

/// A ring of at least `size` entries (rounded up to a power of two).
pub fn ring<T: Send>(size: usize) -> (Producer<T>, Consumer<T>) {
    let size = size.next_power_of_two();
    let slots = (0..size).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let ring = Arc::new(Shared {
        head: Index(AtomicUsize::new(0)),
        tail: Index(AtomicUsize::new(0)),
        mask: size - 1,
        slots,
    });
    (
        Producer { ring: ring.clone(), tail: 0, head_seen: 0 },
        Consumer { ring, head: 0, tail_seen: 0 },
    )
}

impl<T: Send> Producer<T> {
    /// Number of free entries, or fewer.
    #[inline]
    pub fn room(&mut self) -> usize {
        let size = self.ring.mask + 1;
        if self.tail - self.head_seen == size {
            self.head_seen = self.ring.head.0.load(Ordering::Acquire);
        }
        size - (self.tail - self.head_seen)
    }

    /// Number of entries that were not taken yet.
    pub fn waiting(&mut self) -> usize {
        self.head_seen = self.ring.head.0.load(Ordering::Acquire);
        self.tail - self.head_seen
    }

    /// Appends `value`; returns it if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(value);
        }
        let slot = &self.ring.slots[self.tail & self.ring.mask];
        // SAFETY: the slot is the producer's until tail is published below.
        slot.with_mut(|slot| unsafe { (*slot).write(value) });
        self.tail += 1;
        self.ring.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// True if the other end was dropped. Then everything that it did is visible.
    pub fn is_abandoned(&self) -> bool {
        let alone = Arc::strong_count(&self.ring) == 1;
        fence(Ordering::Acquire);
        alone
    }
}

impl<T: Send> Consumer<T> {
    /// Takes the oldest entry.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        let slot = &self.ring.slots[self.head & self.ring.mask];
        // SAFETY: head < tail, so the slot is initialised and the consumer's.
        let value = slot.with_mut(|slot| unsafe { (*slot).assume_init_read() });
        self.head += 1;
        self.ring.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// True if there is no entry to take.
    pub fn is_empty(&mut self) -> bool {
        self.head == self.ring.tail.0.load(Ordering::Acquire)
    }

    /// True if the other end was dropped. Then everything that it did is visible.
    pub fn is_abandoned(&self) -> bool {
        let alone = Arc::strong_count(&self.ring) == 1;
        fence(Ordering::Acquire);
        alone
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (head, tail) =
            (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        for i in head..tail {
            // SAFETY: entries in [head, tail) are initialised and no other user is left.
            self.slots[i & self.mask].with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
    }
}
