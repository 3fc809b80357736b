//! Buffers that were taken from a ring and not published yet, and the copies that they wait for.
//!
//! Each buffer has a slot, in the order in which buffers were taken. A packet whose copies are all
//! made is *done*; the guest is shown the longest row of done packets from the oldest on, so
//! it does not matter to it what makes the copies, and in which order.

use crate::raw;
use packet::Packet;

/// A copy between a packet and the guest's memory that an engine is to make.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// First byte to read.
    pub from: *const u8,
    /// First byte to write.
    pub to: *mut u8,
    /// Bytes, at least one.
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

/// What a call on a ring is to list, and what it listed.
#[derive(Default)]
pub struct List {
    /// Copies for an engine to make.
    pub jobs: Vec<Job>,
    /// How many more of them may be listed.
    pub room: usize,
    /// Frames of more bytes are listed.
    pub threshold: usize,
    /// Packets with jobs, by their place among those that were given to
    /// [`crate::Ring::enqueue_listed`]: they must stay as they are until those are done. In the
    /// order of the jobs.
    pub kept: Vec<u32>,
    /// Bytes that were copied at once.
    pub copied: u64,
    /// Frames above the threshold that were copied at once, for want of room.
    pub crowded: u64,
    /// Empty packets.
    pub(crate) fresh: Vec<Packet>,
}

impl List {
    /// Forgets what was listed.
    pub fn clear(&mut self) {
        self.jobs.clear();
        self.kept.clear();
    }
}

struct Slot {
    id: u16,
    /// Entries of a packed ring.
    descs: u16,
    /// Bytes written.
    len: u32,
    /// In the first slot of a packet: copies that are not made, and buffers.
    jobs: u16,
    buffers: u16,
    /// In the first slot: what is delivered when it is done.
    packet: Option<Packet>,
}

/// One slot for each entry of a ring, used in a circle.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// Numbers of the oldest slot and of the next one; they only grow.
    head: u32,
    tail: u32,
    /// Copies that are not made.
    jobs: u32,
}

/// A buffer to be published.
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
    fn at(&mut self, slot: u32) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[slot as usize & mask]
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Copies that are not made.
    #[inline]
    pub fn jobs(&self) -> u32 {
        self.jobs
    }

    /// The number of the next slot.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Appends a buffer. The ring never has more of them than entries.
    #[inline]
    pub fn push(&mut self, id: u16, descs: u16, len: u32) {
        let tail = self.tail;
        *self.at(tail) = Slot { id, descs, len, jobs: 0, buffers: 1, packet: None };
        self.tail = tail.wrapping_add(1);
    }

    /// The slots from `first` on are of one packet, which has `jobs` copies.
    #[inline]
    pub fn close(&mut self, first: u32, jobs: u16, packet: Option<Packet>) {
        let buffers = self.tail.wrapping_sub(first) as u16;
        self.jobs += u32::from(jobs);
        let slot = self.at(first);
        (slot.jobs, slot.buffers, slot.packet) = (jobs, buffers, packet);
    }

    /// Notes that a copy of the packet at `slot` was made.
    #[inline]
    pub fn done(&mut self, slot: u32) {
        debug_assert!(slot.wrapping_sub(self.head) < self.tail.wrapping_sub(self.head));
        self.jobs -= 1;
        self.at(slot).jobs -= 1;
    }

    /// Buffers of the oldest packet, if it is done, and what it has to deliver.
    #[inline]
    pub fn oldest(&mut self) -> Option<(u16, &mut Option<Packet>)> {
        let (head, is_empty) = (self.head, self.is_empty());
        let slot = self.at(head);
        let is_done = slot.jobs == 0;
        (is_done && !is_empty).then_some((slot.buffers, &mut slot.packet))
    }

    /// Takes the oldest buffer.
    #[inline]
    pub fn pop(&mut self) -> Used {
        let head = self.head;
        self.head = head.wrapping_add(1);
        let Slot { id, descs, len, .. } = self.at(head);
        Used { id: *id, descs: *descs, len: *len }
    }

    /// Forgets all slots, none of which waits for a copy; what they had to deliver goes to
    /// `packets`.
    pub fn abandon(&mut self, packets: &mut Vec<Packet>) {
        debug_assert_eq!(self.jobs, 0);
        while let Some((buffers, packet)) = self.oldest() {
            packets.extend(packet.take());
            self.head = self.head.wrapping_add(buffers.into());
        }
    }
}
