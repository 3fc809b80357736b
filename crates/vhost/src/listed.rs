//! Packets that are received from or sent to a ring by copies that an engine makes.

use crate::ahead::PREFETCH_BUFFERS;
use crate::batch::{BATCH, Batch, behind};
use crate::copier::{Copier, EngineCopier};
use crate::ring::{Moved, PREFETCH_PACKETS, Ring, make_room};
use crate::ring_error::RingError;
use crate::slots::{List, Slots};
use packet::{Packet, Pool};

impl Ring {
    /// True if buffers were taken that are not published yet. Then only calls that list copies,
    /// even without room in the list, keep the order.
    #[inline]
    pub fn has_slots(&self) -> bool {
        self.slots.as_ref().is_some_and(|slots| !slots.is_empty())
    }

    /// Number of copies that were listed and not made yet.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.slots.as_ref().map_or(0, |slots| slots.jobs())
    }

    /// True if copies may be listed. While the guest is migrated they may not: engines do not mark
    /// the pages that they write.
    #[inline]
    pub fn may_list(&self) -> bool {
        self.log.is_none()
    }

    #[inline]
    fn take_slots(&mut self) -> Box<Slots> {
        let size = self.size();
        self.slots.take().unwrap_or_else(|| Slots::new(size))
    }

    /// As [`Ring::enqueue`], except that copies above the threshold of `list` are listed and not
    /// made.
    pub fn enqueue_listed(
        &mut self,
        batch: &mut Batch,
        packets: &[Packet],
        list: &mut List,
        moved: &mut Moved,
    ) {
        let mut slots = self.take_slots();
        self.enqueue_by(batch, packets, moved, &mut EngineCopier::new(&mut slots, list));
        self.slots = Some(slots);
        self.publish_done();
    }

    /// Records that a copy of this slot was made.
    #[inline]
    pub fn done(&mut self, slot: u32) {
        if let Some(slots) = &mut self.slots {
            slots.done(slot);
        }
    }

    /// Publishes buffers of packets sent to the guest whose copies were made. True: there were
    /// some.
    #[inline]
    pub fn publish_done(&mut self) -> bool {
        let Some(mut slots) = self.slots.take() else { return false };
        let before = self.base();
        while let Some((buffers, &mut None)) = slots.oldest() {
            self.put_oldest(&mut slots, buffers);
        }
        self.slots = Some(slots);
        self.publish_used(before);
        before != self.base()
    }

    #[inline]
    fn put_oldest(&mut self, slots: &mut Slots, buffers: u16) {
        for _ in 0..buffers {
            let used = slots.pop();
            self.layout.write_used_taken(used.id, used.descs, used.len);
        }
    }

    /// As [`Ring::dequeue`], except that copies above the threshold of `list` are listed and not
    /// made: later calls return those packets, when their copies are made. The order of packets is
    /// kept.
    pub fn dequeue_listed(
        &mut self,
        batch: &mut Batch,
        pool: &dyn Pool,
        out: &mut Vec<Packet>,
        max: usize,
        list: &mut List,
        moved: &mut Moved,
    ) {
        let (before, began) = (self.base(), moved.packets);
        let end = out.len() + max.min(BATCH);
        let mut slots = self.take_slots();
        self.deliver(&mut slots, out, end, moved);
        if !self.is_broken() && out.len() < end {
            let max = end - out.len();
            let other = self.read_plain_ahead(max);
            let n = self.ahead.len().min(max);
            if n > 0 && slots.is_empty() && self.are_short(n, list.threshold) {
                let bytes = moved.bytes;
                moved.starved |= !self.take_plain(pool, out, n, moved);
                list.copied += moved.bytes - bytes;
                self.slots = Some(slots);
                return self.end(before, began, moved);
            }
            let mut copier = EngineCopier::new(&mut slots, list);
            if n > 0 {
                self.list_plain(pool, n, &mut copier, moved);
            } else if other {
                self.list_chains(batch, pool, max, &mut copier, moved);
            }
            self.deliver(&mut slots, out, end, moved);
        }
        self.slots = Some(slots);
        self.end(before, began, moved);
    }

    /// True if none of the next `n` buffers that were read has a frame of more than `threshold`
    /// bytes.
    #[inline]
    fn are_short(&self, n: usize, threshold: usize) -> bool {
        (0..n).all(|i| self.ahead.get(i).len as usize - self.header <= threshold)
    }

    /// Appends packets whose copies were made to `out`, until it has `end` packets, and gives their
    /// buffers back.
    fn deliver(&mut self, slots: &mut Slots, out: &mut Vec<Packet>, end: usize, moved: &mut Moved) {
        while let Some((buffers, packet)) = slots.oldest() {
            if packet.is_some() && out.len() == end {
                return;
            }
            if let Some(packet) = packet.take() {
                sync::prefetch(packet.data().as_ptr());
                moved.packets += 1;
                moved.bytes += packet.len() as u64;
                out.push(packet);
            }
            self.put_oldest(slots, buffers);
        }
    }

    /// Receives the packets of the first `n` plain buffers.
    fn list_plain(
        &mut self,
        pool: &dyn Pool,
        n: usize,
        copier: &mut EngineCopier,
        moved: &mut Moved,
    ) {
        self.fetch(n, PREFETCH_BUFFERS);
        if !fill(pool, copier, n) {
            moved.starved = true;
            return;
        }
        for i in 0..n {
            self.ahead.fetch(i + PREFETCH_BUFFERS, self.header);
            if let Some(soon) = copier.list.fresh.len().checked_sub(1 + PREFETCH_PACKETS) {
                sync::prefetch_write(copier.list.fresh[soon].data().as_ptr());
            }
            let buffer = self.ahead.get(i);
            let len = buffer.len as usize - self.header;
            match next(copier, len as u64) {
                Ok((packet, to)) => {
                    copier.begin(len, || 1);
                    // SAFETY: the buffer is mapped and longer than the header; there is room for
                    // the rest.
                    unsafe { copier.copy(buffer.host.add(self.header), to, len) };
                    copier.write_used(&mut self.layout, buffer.id, 1, 0);
                    copier.end(Some(packet));
                }
                Err(error) => {
                    self.count_error(error);
                    moved.dropped += 1;
                    copier.return_unused(&mut self.layout, buffer.id, 1);
                }
            }
        }
        self.ahead.used(n);
        pool.free(&copier.list.fresh);
    }

    /// Receives packets from buffers of any kind.
    fn list_chains(
        &mut self,
        batch: &mut Batch,
        pool: &dyn Pool,
        max: usize,
        copier: &mut EngineCopier,
        moved: &mut Moved,
    ) {
        self.read_chains(batch, max, moved);
        if !fill(pool, copier, batch.chains.len()) {
            moved.starved = true;
            return;
        }
        for chain in &batch.chains {
            let frame = chain.frame(self.header).and_then(|len| Ok((len, next(copier, len)?)));
            match frame {
                Ok((len, (packet, mut to))) => {
                    let pieces = batch.pieces(chain);
                    copier.begin(len as usize, || pieces.len());
                    for (from, n) in behind(pieces, self.header) {
                        // SAFETY: the piece is mapped; the pieces without the header have len bytes
                        // together.
                        unsafe {
                            copier.copy(from, to, n);
                            to = to.add(n);
                        }
                    }
                    copier.write_used(&mut self.layout, chain.id, chain.descs, 0);
                    copier.end(Some(packet));
                }
                Err(error) => {
                    self.count_error(error);
                    moved.dropped += 1;
                    copier.return_unused(&mut self.layout, chain.id, chain.descs);
                }
            }
        }
        pool.free(&copier.list.fresh);
    }

    /// Ends the use of the ring, which has no copy in flight. Packets that were to be delivered go
    /// to `packets`. Buffers that are not published count as not taken for the device that
    /// continues at [`Ring::base`].
    pub fn abandon(&mut self, packets: &mut Vec<Packet>) {
        self.broken = true;
        if let Some(slots) = &mut self.slots {
            slots.abandon(packets);
        }
    }
}

/// Gets `n` empty packets from the pool; false: the pool has too few.
fn fill(pool: &dyn Pool, copier: &mut EngineCopier, n: usize) -> bool {
    copier.list.fresh.clear();
    pool.alloc(&mut copier.list.fresh, n)
}

/// An empty packet with room for `len` bytes, and the address for them. On an error the packet is
/// kept for the next frame.
#[inline]
fn next(copier: &mut EngineCopier, len: u64) -> Result<(Packet, *mut u8), RingError> {
    let packet = copier.list.fresh.last_mut().ok_or(RingError::Long)?;
    let to = make_room(packet, len)?;
    let packet = copier.list.fresh.pop().ok_or(RingError::Long)?;
    Ok((packet, to))
}
