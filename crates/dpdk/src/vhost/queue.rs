//! Packets to and from a guest.

use super::state::VhostState;
use crate::DpdkPool;
use crate::pool::{drop_chains, free};
use dpdk_sys as sys;
use packet::Packet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vhost_user::{Counters, Turn, ring_of};

/// Most packets the library takes at once.
const LIBRARY_BURST: usize = 32;

/// Receives what a guest sends. Handle 0 also serves guest queues that have no handle.
pub struct VhostRx {
    shared: Arc<VhostState>,
    pool: Arc<DpdkPool>,
    index: usize,
    /// Guest queue to start with, so that none starves.
    next: u32,
}

/// Sends to a guest, on the guest queue that falls to this handle.
pub struct VhostTx {
    shared: Arc<VhostState>,
    index: usize,
}

impl VhostRx {
    /// Takes the handle of a queue; None if there is one already.
    pub(crate) fn take(
        shared: &Arc<VhostState>,
        pool: &Arc<DpdkPool>,
        index: usize,
    ) -> Option<Self> {
        let bit = 1u64.checked_shl(index as u32)?;
        if shared.taken_rx.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return None;
        }
        Some(VhostRx { shared: shared.clone(), pool: pool.clone(), index, next: 0 })
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
        slot.count(&Counters {
            packets: packets as u64,
            bytes,
            dropped: dropped as u64,
            retries: 0,
        });
        packets
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
    /// Takes the handle of a queue; None if there is one already, or there are not so many.
    pub(crate) fn take(shared: &Arc<VhostState>, index: usize) -> Option<Self> {
        let taken = shared.taken_tx.get(index)?.swap(true, Ordering::AcqRel);
        (!taken).then(|| VhostTx { shared: shared.clone(), index })
    }

    /// Sends from the front; returns how many packets were taken. Without a guest, or one with no
    /// queue enabled, all are taken, dropped and counted.
    #[inline]
    pub fn burst(&mut self, packets: &[Packet]) -> usize {
        let ring = ring_of(self.shared.tx_mask(), self.index);
        let Some(ring) = ring.filter(|_| self.shared.up.load(Ordering::Relaxed)) else {
            return self.drop_all(packets);
        };
        let slot = &self.shared.tx[self.index];
        let Some(guest) = self.shared.enter(slot) else { return self.drop_all(packets) };
        let (sent, retries) = self.enqueue(guest.vid, ring, packets);
        drop(guest);
        let bytes = sum(&packets[..sent]);
        free(&packets[..sent]);
        slot.count(&Counters { packets: sent as u64, bytes, dropped: 0, retries: retries.into() });
        sent
    }

    /// Copies packets into the guest's ring by the library. A full ring is tried again while it
    /// moves.
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
        self.shared.tx[self.index].count(&Counters { dropped, ..Default::default() });
        packets.len()
    }
}

impl Drop for VhostTx {
    fn drop(&mut self) {
        self.shared.taken_tx[self.index].store(false, Ordering::Release);
    }
}
