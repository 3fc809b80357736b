//! Packets to and from a guest.

use super::rings::Owner;
use super::state::{Shared, VhostCounters};
use crate::DpdkPool;
use crate::pool::{drop_chains, free};
use dpdk_sys as sys;
use packet::Packet;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vhost::{Batch, Moved};

thread_local! {
    /// Room for buffers that were read from a ring: one for all rings of a thread, so that it stays
    /// in the cache.
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// Fewest buffers that a receive queue fetches ahead, if there are any.
const FEW: usize = 4;
/// Most packets the library takes at once.
const LIBRARY_BURST: usize = 32;

/// Receives what a guest sends. Handle 0 also serves guest queues that have no handle.
pub struct VhostRx {
    shared: Arc<Shared>,
    pool: Arc<DpdkPool>,
    index: usize,
    /// Guest queue to start with, so that none starves.
    next: u32,
    /// Packets that a burst brings.
    expected: usize,
    /// Guest queues that something was taken from since `notify`.
    untold: u64,
    /// One of them may want to be notified.
    loud: bool,
}

/// Sends to a guest, on the guest queue that falls to this handle.
pub struct VhostTx {
    shared: Arc<Shared>,
    index: usize,
    /// Another sender had the ring at the last burst.
    busy: bool,
    /// Ring that something was put on since `notify`, and whether the guest may want to be notified.
    untold: Option<(u16, bool)>,
}

impl VhostRx {
    /// None if there is a handle for this queue already.
    pub(crate) fn take(shared: &Arc<Shared>, pool: &Arc<DpdkPool>, index: usize) -> Option<Self> {
        let bit = 1u64.checked_shl(index as u32)?;
        if shared.taken_rx.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return None;
        }
        Some(VhostRx {
            shared: shared.clone(),
            pool: pool.clone(),
            index,
            next: 0,
            expected: 0,
            untold: 0,
            loud: false,
        })
    }

    /// Appends up to `max` packets to `out`, as far as it has room; returns how many. Without a
    /// guest this is a load and a compare.
    #[inline]
    pub fn burst(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let mask = self.shared.rx_mask(self.index);
        if mask == 0 || !self.shared.up.load(Ordering::Relaxed) {
            return 0;
        }
        let start = out.len();
        let end = start + max.min(out.capacity() - start);
        if self.shared.is_own() {
            return self.own_burst(mask, out, end);
        }
        let slot = &self.shared.rx[self.index];
        let Some(guest) = self.shared.enter(slot) else { return 0 };
        let mut turn = Turn::new(mask, self.next);
        while out.len() < end
            && let Some(pair) = turn.pair()
        {
            let room = (end - out.len()).min(LIBRARY_BURST);
            dequeue(guest.vid, pair as u16, &self.pool, out, room);
        }
        self.next = turn.next;
        drop(guest);
        if out.len() == start {
            return 0;
        }
        let (bytes, chained) = clean(&mut out[start..]);
        let dropped = if chained { drop_chains(out, start) } else { 0 };
        let packets = out.len() - start;
        let bytes = if dropped == 0 { bytes } else { sum(&out[start..]) };
        slot.count(&VhostCounters {
            packets: packets as u64,
            bytes,
            dropped: dropped as u64,
            retries: 0,
        });
        packets
    }

    /// Starts to fetch what the next burst will read: see `port::RxQueue::prepare`.
    #[inline]
    pub fn prepare(&self, step: usize) {
        let mask = self.shared.rx_mask(self.index);
        if mask != 0
            && self.shared.is_own()
            && let Some(pair) = Turn::new(mask, self.next).pair()
        {
            let (ring, n) = (2 * pair as usize + 1, self.expected.max(FEW * step));
            self.shared.prepare(ring, Owner::rx(self.index), step, n);
        }
    }

    /// Notifies the guest of what was taken, if it wants that: see `port::RxQueue::notify`.
    #[inline]
    pub fn notify(&mut self, all: bool) {
        if !all && !self.loud {
            return;
        }
        self.loud = false;
        while self.untold != 0 {
            let pair = self.untold.trailing_zeros();
            self.untold &= self.untold - 1;
            self.shared.notify(2 * pair as usize + 1, Owner::rx(self.index));
        }
    }

    /// From the guest's queues in `mask`, until `out` is `end` long.
    #[inline]
    fn own_burst(&mut self, mask: u64, out: &mut Vec<Packet>, end: usize) -> usize {
        let mut moved = Moved::default();
        let mut turn = Turn::new(mask, self.next);
        while out.len() < end
            && let Some(pair) = turn.pair()
        {
            let (ring, owner) = (2 * pair as usize + 1, Owner::rx(self.index));
            let Some(mut held) = self.shared.rings.try_hold(ring, owner) else { continue };
            let Some(own) = held.get() else { continue };
            let room = end - out.len();
            let before = moved.packets + moved.dropped;
            BATCH.with_borrow_mut(|batch| {
                own.ring.dequeue(batch, &*self.pool, out, room, &mut moved);
            });
            self.untold |= u64::from(moved.packets + moved.dropped > before) << pair;
            self.loud |= !own.ring.is_quiet();
            if std::mem::take(&mut moved.blamed) {
                self.shared.blame(own);
            }
        }
        self.next = turn.next;
        self.expected = moved.packets.max(self.expected / 2);
        if moved.packets == 0 && self.untold != 0 {
            // Nobody will ask for it.
            fence(Ordering::SeqCst);
            self.notify(true);
        }
        self.shared.rx[self.index].count(&VhostCounters {
            packets: moved.packets as u64,
            bytes: moved.bytes,
            dropped: moved.dropped as u64,
            retries: 0,
        });
        moved.packets
    }
}

/// A guest's queues, each once, beginning with another one each time.
struct Turn {
    left: u64,
    /// Where to begin the next time.
    next: u32,
}

impl Turn {
    fn new(mask: u64, first: u32) -> Turn {
        Turn { left: mask, next: first }
    }

    #[inline]
    fn pair(&mut self) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        let pair = (self.left.rotate_right(self.next).trailing_zeros() + self.next) % u64::BITS;
        self.left &= !(1 << pair);
        self.next = (pair + 1) % u64::BITS;
        Some(pair)
    }
}

impl Drop for VhostRx {
    fn drop(&mut self) {
        self.shared.taken_rx.fetch_and(!(1 << self.index), Ordering::AcqRel);
    }
}

/// Takes up to `room` packets from the guest's send ring of `pair`. `out` has that much room.
fn dequeue(vid: i32, pair: u16, pool: &DpdkPool, out: &mut Vec<Packet>, room: usize) {
    // SAFETY: the caller holds the guest; `room` pointers fit behind the vector's end and the
    // library writes the first `n` of them. It checks the ring's state under the ring's lock.
    unsafe {
        let end = out.as_mut_ptr().add(out.len()).cast();
        let n = sys::rte_vhost_dequeue_burst(vid, pair * 2 + 1, pool.raw(), end, room as u16);
        out.set_len(out.len() + n as usize);
    }
}

/// Strips what the guest asked of offloads: none is offered, so a request is a mistake or a trick,
/// and must not reach a driver. Returns the bytes, and whether any packet is a chain.
fn clean(packets: &mut [Packet]) -> (u64, bool) {
    let (mut bytes, mut chained) = (0, false);
    for packet in packets {
        let mbuf = packet.mbuf();
        mbuf.ol_flags = 0;
        bytes += u64::from(mbuf.pkt_len);
        chained |= mbuf.nb_segs > 1;
    }
    (bytes, chained)
}

fn sum(packets: &[Packet]) -> u64 {
    packets.iter().map(|p| p.len() as u64).sum()
}

impl VhostTx {
    /// None if this handle is out already, or there are not so many.
    pub(crate) fn take(shared: &Arc<Shared>, index: usize) -> Option<Self> {
        let taken = shared.taken_tx.get(index)?.swap(true, Ordering::AcqRel);
        (!taken).then(|| VhostTx { shared: shared.clone(), index, busy: false, untold: None })
    }

    /// The guest's queue that is sent on, as things are.
    #[inline]
    fn ring(&self) -> Option<u16> {
        match self.shared.tx_mask() {
            0 => None,
            1 => Some(0),
            mask => Some(nth_bit(mask, self.index as u32 % mask.count_ones()) as u16 * 2),
        }
    }

    /// Starts to fetch what the next burst will touch: see `port::RxQueue::prepare`.
    #[inline]
    pub fn prepare(&self, step: usize, n: usize) {
        if let Some(ring) = self.ring()
            && self.shared.is_own()
        {
            self.shared.prepare(ring.into(), Owner::tx(self.index), step, n);
        }
    }

    /// Notifies the guest of what was sent, if it wants that: see `port::TxQueue::notify`.
    #[inline]
    pub fn notify(&mut self, all: bool) {
        if let Some((ring, _)) = self.untold.take_if(|(_, loud)| all || *loud) {
            self.shared.notify(ring.into(), Owner::tx(self.index));
        }
    }

    /// Did the last burst take nothing because another thread has the ring?
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Sends from the front; returns how many packets were taken. Without a guest, or one with no
    /// queue enabled, all are taken, dropped and counted.
    #[inline]
    pub fn burst(&mut self, packets: &[Packet]) -> usize {
        let Some(ring) = self.ring().filter(|_| self.shared.up.load(Ordering::Relaxed)) else {
            return self.drop_all(packets);
        };
        if self.shared.is_own() {
            return self.own_burst(ring, packets);
        }
        let slot = &self.shared.tx[self.index];
        let Some(guest) = self.shared.enter(slot) else { return self.drop_all(packets) };
        let (sent, retries) = self.enqueue(guest.vid, ring, packets);
        drop(guest);
        let bytes = sum(&packets[..sent]);
        free(&packets[..sent]);
        slot.count(&VhostCounters {
            packets: sent as u64,
            bytes,
            dropped: 0,
            retries: retries.into(),
        });
        sent
    }

    /// As [`VhostTx::burst`], on a ring of ours. Without it (the guest is changing something)
    /// nothing is taken.
    #[inline]
    fn own_burst(&mut self, ring: u16, packets: &[Packet]) -> usize {
        let held = self.shared.rings.hold(ring.into(), Owner::tx(self.index));
        self.busy = held.is_none();
        let Some(mut held) = held else { return 0 };
        let Some(own) = held.get() else { return 0 };
        let most = self.shared.retries_max.load(Ordering::Relaxed);
        let (mut moved, mut retries) = (Moved::default(), 0);
        loop {
            let before = moved.packets;
            BATCH.with_borrow_mut(|batch| {
                own.ring.enqueue(batch, &packets[before..], &mut moved);
            });
            if std::mem::take(&mut moved.blamed) {
                self.shared.blame(own);
            }
            if moved.packets == packets.len() || moved.packets == before || retries == most {
                break;
            }
            retries += 1;
        }
        self.untold = Some((ring, !own.ring.is_quiet()));
        drop(held);
        let (taken, dropped) = (moved.packets, moved.dropped as u64);
        free(&packets[..taken]);
        self.shared.tx[self.index].count(&VhostCounters {
            packets: taken as u64 - dropped,
            bytes: moved.bytes,
            dropped,
            retries: retries.into(),
        });
        taken
    }

    /// Copies packets into the guest's ring by the library. A full ring is tried again while it moves.
    fn enqueue(&self, vid: i32, ring: u16, packets: &[Packet]) -> (usize, u32) {
        let most = self.shared.retries_max.load(Ordering::Relaxed);
        let (mut sent, mut retries) = (0, 0);
        while sent < packets.len() {
            let part = &packets[sent..packets.len().min(sent + LIBRARY_BURST)];
            // SAFETY: the caller holds the guest; the library copies the packets and only reads
            // the array. It checks the ring's state under the ring's lock, which also keeps
            // several senders apart.
            let n = unsafe {
                let pointers = part.as_ptr().cast_mut().cast();
                sys::rte_vhost_enqueue_burst(vid, ring, pointers, part.len() as u16) as usize
            };
            sent += n;
            if n == part.len() {
                continue;
            }
            if n == 0 || retries == most {
                break;
            }
            retries += 1;
        }
        (sent, retries)
    }

    #[cold]
    fn drop_all(&self, packets: &[Packet]) -> usize {
        free(packets);
        let dropped = packets.len() as u64;
        self.shared.tx[self.index].count(&VhostCounters { dropped, ..Default::default() });
        packets.len()
    }
}

impl Drop for VhostTx {
    fn drop(&mut self) {
        self.shared.taken_tx[self.index].store(false, Ordering::Release);
    }
}

/// The position of the `n`-th set bit, counted from 0; there are more than `n`.
fn nth_bit(mut mask: u64, n: u32) -> u32 {
    for _ in 0..n {
        mask &= mask - 1;
    }
    mask.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_spread_over_enabled_queues() {
        let spread = |mask: u64| -> Vec<u32> {
            (0..4).map(|i: u32| nth_bit(mask, i % mask.count_ones())).collect()
        };
        assert_eq!(spread(0b1), [0, 0, 0, 0]);
        assert_eq!(spread(0b1011), [0, 1, 3, 0]);
        assert_eq!(spread(1 << 63), [63; 4]);
    }
}
