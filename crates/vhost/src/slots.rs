//! Slots: buffers that were taken from a ring and are not published yet, and the copies that they
//! wait for.
//!
//! Each buffer has a slot, in the order in which buffers were taken. A packet whose copies are all
//! made is *done*. Buffers are published in order, up to the first packet that is not done, so the
//! guest cannot tell what makes the copies, and in which order.

use crate::raw;
use packet::Packet;

/// A copy between a packet and the guest's memory, for an engine to make.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// First byte to read.
    pub from: *const u8,
    /// First byte to write.
    pub to: *mut u8,
    /// Length in bytes, at least one.
    pub len: u32,
    /// The argument of [`crate::Ring::done`] for this copy.
    pub slot: u32,
}

// SAFETY: addresses; code that follows them vouches for the memory.
unsafe impl Send for Job {}

impl Job {
    /// Makes the copy. Making it twice does no harm.
    ///
    /// # Safety
    /// The packet is there, and the guest's memory is mapped: both as long as
    /// [`crate::Ring::done`] was not called for the job.
    pub unsafe fn make(&self) {
        // SAFETY: the caller vouches for both ends; they were checked when the job was listed.
        unsafe { raw::copy(self.from, self.to, self.len as usize) };
    }
}

/// The copies that calls on a ring list, and the limits for them.
#[derive(Default)]
pub struct List {
    /// Copies for an engine to make.
    pub jobs: Vec<Job>,
    /// Number of copies that may still be listed.
    pub room: usize,
    /// Frames longer than this are listed, bytes.
    pub threshold: usize,
    /// Indices of the packets with copies, among those given to [`crate::Ring::enqueue_listed`], in
    /// the order of the copies. These packets must not be changed or freed until their copies are
    /// made.
    pub kept: Vec<u32>,
    /// Bytes that were copied at once.
    pub copied: u64,
    /// Frames above the threshold that were copied at once, for lack of room in the list.
    pub crowded: u64,
    /// Empty packets to receive into.
    pub(crate) fresh: Vec<Packet>,
}

impl List {
    /// Forgets what was listed.
    pub fn clear(&mut self) {
        self.jobs.clear();
        self.kept.clear();
    }
}

/// A buffer that was taken and is not published.
struct Slot {
    id: u16,
    /// Entries of a packed ring that the buffer takes.
    descs: u16,
    /// Bytes written.
    len: u32,
    /// In the first slot of a packet: number of its copies that are not made.
    jobs: u16,
    /// In the first slot of a packet: number of its buffers.
    buffers: u16,
    /// In the first slot of a packet from the guest: the packet, to be delivered when it is done.
    packet: Option<Packet>,
}

/// A slot for each entry of a ring, used in turn.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// Number of the oldest slot. Numbers only grow.
    head: u32,
    /// Number of the next slot.
    tail: u32,
    /// Number of copies that are not made.
    jobs: u32,
}

/// A buffer that can be published.
pub(crate) struct Used {
    pub id: u16,
    pub descs: u16,
    pub len: u32,
}

impl Slots {
    pub fn new(size: u16) -> Box<Slots> {
        let none = |_| Slot { id: 0, descs: 0, len: 0, jobs: 0, buffers: 0, packet: None };
        let slots = (0..usize::from(size).next_power_of_two()).map(none).collect();
        Box::new(Slots { slots, head: 0, tail: 0, jobs: 0 })
    }

    #[inline]
    fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[slot as usize & mask]
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Number of copies that are not made.
    #[inline]
    pub fn jobs(&self) -> u32 {
        self.jobs
    }

    /// The number of the next slot.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Appends a buffer. There are never more slots than the ring has entries.
    #[inline]
    pub fn push(&mut self, id: u16, descs: u16, len: u32) {
        let tail = self.tail;
        *self.slot_mut(tail) = Slot { id, descs, len, jobs: 0, buffers: 1, packet: None };
        self.tail = tail.wrapping_add(1);
    }

    /// Ends a packet: the slots from `first` on are its buffers, and it has `jobs` copies.
    #[inline]
    pub fn close(&mut self, first: u32, jobs: u16, packet: Option<Packet>) {
        let buffers = self.tail.wrapping_sub(first) as u16;
        self.jobs += u32::from(jobs);
        let slot = self.slot_mut(first);
        (slot.jobs, slot.buffers, slot.packet) = (jobs, buffers, packet);
    }

    /// Records that a copy of the packet at `slot` was made.
    #[inline]
    pub fn done(&mut self, slot: u32) {
        debug_assert!(slot.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head));
        self.jobs -= 1;
        self.slot_mut(slot).jobs -= 1;
    }

    /// If the oldest packet is done: its number of buffers, and the packet to deliver.
    #[inline]
    pub fn oldest(&mut self) -> Option<(u16, &mut Option<Packet>)> {
        let (head, is_empty) = (self.head, self.is_empty());
        let slot = self.slot_mut(head);
        let is_done = slot.jobs == 0;
        (is_done && !is_empty).then_some((slot.buffers, &mut slot.packet))
    }

    /// Removes the oldest buffer.
    #[inline]
    pub fn pop(&mut self) -> Used {
        let head = self.head;
        self.head = head.wrapping_add(1);
        let Slot { id, descs, len, .. } = self.slot_mut(head);
        Used { id: *id, descs: *descs, len: *len }
    }

    /// Removes all slots, none of which waits for a copy; packets that were to be delivered go to
    /// `packets`.
    pub fn abandon(&mut self, packets: &mut Vec<Packet>) {
        debug_assert_eq!(self.jobs, 0);
        while let Some((buffers, packet)) = self.oldest() {
            packets.extend(packet.take());
            self.head = self.head.wrapping_add(buffers.into());
        }
    }
}
