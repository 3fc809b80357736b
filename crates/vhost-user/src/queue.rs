//! Receive and send handles for packets from and to a guest.

use crate::copies::{self, At};
use crate::counters::Counters;
use crate::dma_thread;
use crate::pair_choice::{Turn, ring_of};
use crate::rarp::{RARP_BYTES, rarp};
use crate::rings::OwnRing;
use crate::shared::{PAIRS_MAX, Shared};
use packet::{Packet, Pool};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use vhost::{Batch, Moved, steps_max};

thread_local! {
    /// Buffers read from a ring: one batch for all rings of a thread, so that it stays in the
    /// cache.
    static BATCH: RefCell<Batch> = RefCell::default();
}

/// True if this thread lists copies of the ring for its engine.
#[inline]
fn may_list(own: &OwnRing) -> bool {
    copies::lists() && !own.ring.has_offloads() && is_in_reach(own)
}

/// True if this thread's engine reaches the guest's memory; counts if not.
#[inline]
fn is_in_reach(own: &OwnRing) -> bool {
    let is = own.dma.as_ref().is_none_or(|map| dma_thread::is_in_reach(map));
    if !is {
        copies::count_unmapped();
    }
    is
}

/// Least number of buffers that a receive queue prefetches, if available.
const FEW: usize = 4;

/// Receives the packets of a guest. Handle 0 also serves guest queues that have no handle.
pub struct Rx<P> {
    shared: Arc<Shared>,
    pool: Arc<P>,
    /// `pool`, as copies in flight refer to it.
    shared_pool: Arc<dyn Pool>,
    /// Index of each guest queue in the thread's `Copies::targets`.
    targets: [usize; PAIRS_MAX],
    index: usize,
    /// Guest queue to start with, so that each queue is served.
    next: u32,
    /// Packets expected in a burst.
    expected: usize,
    /// Guest queues from which something was taken since `notify`.
    pending_notify: u64,
    /// One of the guest's queues may want to be notified.
    wants_notify: bool,
    /// Cycles that bursts lost to the guest's violations since `take_penalty`.
    penalty: u64,
}

/// Sends to a guest, on the guest queue that belongs to this handle.
pub struct Tx<P> {
    shared: Arc<Shared>,
    pool: Arc<P>,
    /// `pool`, as copies in flight refer to it.
    shared_pool: Arc<dyn Pool>,
    /// Index of the guest's queue in the thread's `Copies::targets`.
    target: usize,
    index: usize,
    /// Another sender held the ring at the last burst.
    busy: bool,
    /// Ring to which something was added since `notify`, and whether the guest may want a
    /// notification.
    pending_notify: Option<(u16, bool)>,
    /// Cycles that bursts lost to the guest's violations since `take_penalty`.
    penalty: u64,
}

impl<P: Pool + 'static> Rx<P> {
    /// Takes the handle of a queue; None if there is one already.
    pub(crate) fn take(shared: &Arc<Shared>, pool: &Arc<P>, index: usize) -> Option<Self> {
        let bit = 1u64.checked_shl(index as u32)?;
        if shared.taken_rx.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return None;
        }
        Some(Rx {
            shared: shared.clone(),
            pool: pool.clone(),
            shared_pool: pool.clone(),
            targets: [usize::MAX; PAIRS_MAX],
            index,
            next: 0,
            expected: 0,
            pending_notify: 0,
            wants_notify: false,
            penalty: 0,
        })
    }

    /// Appends up to `max` packets to `out`, as far as it has room; returns how many. Without a
    /// guest this costs a load and a compare.
    #[inline]
    pub fn burst(&mut self, out: &mut Vec<Packet>, max: usize) -> usize {
        let mask = self.shared.rx_mask(self.index);
        if mask == 0 || !self.shared.up.load(Ordering::Relaxed) {
            return 0;
        }
        let end = out.len() + max.min(out.capacity() - out.len());
        self.receive(mask, out, end)
    }

    /// Prefetches what the next burst reads: see `port::RxQueue::prepare`.
    #[inline]
    pub fn prepare(&self, phase: usize) {
        let mask = self.shared.rx_mask(self.index);
        if mask != 0
            && let Some(pair) = Turn::new(mask, self.next).pair()
        {
            let (ring, n) = (2 * pair as usize + 1, self.expected.max(FEW * phase));
            self.shared.prepare(ring, phase, n);
        }
    }

    /// Notifies the guest of the buffers taken, if it wants that: see `port::RxQueue::notify`.
    #[inline]
    pub fn notify(&mut self, all: bool) {
        if !all && !self.wants_notify {
            return;
        }
        self.wants_notify = false;
        while self.pending_notify != 0 {
            let pair = self.pending_notify.trailing_zeros();
            self.pending_notify &= self.pending_notify - 1;
            self.shared.notify(2 * pair as usize + 1);
        }
    }

    /// Cycles that bursts of this handle lost to the guest's violations since the last call.
    #[inline]
    pub fn take_penalty(&mut self) -> u64 {
        std::mem::take(&mut self.penalty)
    }

    /// Cycles that all handles lost since the last call; 0 for handles other than 0.
    pub fn take_port_penalty(&self) -> u64 {
        if self.index == 0 { self.shared.take_penalty() } else { 0 }
    }

    /// Receives from the guest's queues in `mask`, until `out` has `end` packets or the limit of
    /// descriptors read for one queue is reached.
    #[inline]
    fn receive(&mut self, mask: u64, out: &mut Vec<Packet>, end: usize) -> usize {
        let mut moved = Moved::default();
        let mut turn = Turn::new(mask, self.next);
        if self.index == 0 && out.len() < end {
            self.announce(out, &mut moved);
        }
        let (mut steps, steps_max) = (0, steps_max(end - out.len()) as u64);
        while out.len() < end
            && steps < steps_max
            && let Some(pair) = turn.pair()
        {
            let ring = 2 * pair as usize + 1;
            let Some(mut held) = self.shared.rings.try_hold(ring) else { continue };
            let Some(own) = held.get() else { continue };
            let room = end - out.len();
            let (before, began) = (moved.packets + moved.dropped, own.timer.begin());
            let steps_before = own.ring.steps();
            BATCH.with_borrow_mut(|batch| match may_list(own) || own.ring.has_slots() {
                false => own.ring.dequeue(batch, &*self.pool, out, room, &mut moved),
                true => {
                    let target = &mut self.targets[pair as usize];
                    let (shared, pool) = (&self.shared, &self.shared_pool);
                    let mut at = At { shared, ring, pool, target };
                    copies::dequeue(&mut at, own, batch, out, room, &mut moved);
                }
            });
            steps += own.ring.steps() - steps_before;
            self.pending_notify |= u64::from(moved.packets + moved.dropped > before) << pair;
            self.wants_notify |= !own.ring.notifications_suppressed();
            self.penalty += self.shared.end(own, began, &mut moved);
            moved.exhausted = false;
        }
        self.next = turn.next;
        self.expected = moved.packets.max(self.expected / 2);
        if moved.packets == 0 && self.pending_notify != 0 {
            // There will be no later call of `notify` for this queue.
            fence(Ordering::SeqCst);
            self.notify(true);
        }
        self.shared.counted.rx[self.index].count(&Counters {
            packets: moved.packets as u64,
            bytes: moved.bytes,
            dropped: moved.dropped as u64,
            retries: 0,
        });
        moved.packets
    }

    /// Appends the announcement of a guest that was migrated to this host, if one is due.
    #[inline]
    fn announce(&self, out: &mut Vec<Packet>, moved: &mut Moved) {
        if let Some(mac) = self.shared.announced()
            && let Some(packet) = self.pool.packet(&rarp(mac))
        {
            out.push(packet);
            moved.packets += 1;
            moved.bytes += RARP_BYTES as u64;
        }
    }
}

impl<P> Drop for Rx<P> {
    fn drop(&mut self) {
        self.shared.taken_rx.fetch_and(!(1 << self.index), Ordering::AcqRel);
    }
}

impl<P: Pool + 'static> Tx<P> {
    /// Takes the handle of a queue; None if it is already in use, or there is no such handle.
    pub(crate) fn take(shared: &Arc<Shared>, pool: &Arc<P>, index: usize) -> Option<Self> {
        let taken = shared.taken_tx.get(index)?.swap(true, Ordering::AcqRel);
        (!taken).then(|| Tx {
            shared: shared.clone(),
            pool: pool.clone(),
            shared_pool: pool.clone(),
            target: usize::MAX,
            index,
            busy: false,
            pending_notify: None,
            penalty: 0,
        })
    }

    /// The guest's ring to which packets are sent at present.
    #[inline]
    fn ring(&self) -> Option<u16> {
        ring_of(self.shared.tx_mask(), self.index)
    }

    /// Prefetches what the next burst uses: see `port::RxQueue::prepare`.
    #[inline]
    pub fn prepare(&self, phase: usize, n: usize) {
        if let Some(ring) = self.ring() {
            self.shared.prepare(ring.into(), phase, n);
        }
    }

    /// Notifies the guest of the packets sent, if it wants that: see `port::TxQueue::notify`.
    #[inline]
    pub fn notify(&mut self, all: bool) {
        if let Some((ring, _)) =
            self.pending_notify.take_if(|(_, wants_notify)| all || *wants_notify)
        {
            self.shared.notify(ring.into());
        }
    }

    /// Cycles that bursts of this handle lost to the guest's violations since the last call.
    #[inline]
    pub fn take_penalty(&mut self) -> u64 {
        std::mem::take(&mut self.penalty)
    }

    /// How many of `n` packets the guest has buffers for, at most; `n` where that is not known.
    pub fn room(&self, n: usize) -> usize {
        let up = self.shared.up.load(Ordering::Relaxed);
        let ring = self.ring().filter(|_| up).and_then(|i| self.shared.rings.try_hold(i.into()));
        ring.and_then(|mut held| held.get().map(|own| own.ring.room(n))).unwrap_or(n)
    }

    /// Whether the last burst sent nothing because another thread held the ring.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Sends packets from the front of `packets`; returns how many were accepted. Without a guest,
    /// or without an enabled queue, all are accepted, dropped and counted. If the ring is not
    /// available (the guest is changing it) none is accepted.
    #[inline]
    pub fn burst(&mut self, packets: &[Packet]) -> usize {
        let Some(ring) = self.ring().filter(|_| self.shared.up.load(Ordering::Relaxed)) else {
            return self.drop_all(packets);
        };
        let held = self.shared.rings.hold(ring.into());
        self.busy = held.is_none();
        let Some(mut held) = held else { return 0 };
        let Some(own) = held.get() else { return 0 };
        let most = self.shared.retries_max.load(Ordering::Relaxed);
        let (mut moved, mut retries) = (Moved::default(), 0);
        let began = own.timer.begin();
        let lists =
            may_list(own) && copies::wants(own, ring.into(), packets) || own.ring.has_slots();
        loop {
            let (before, rest) = (moved.packets, &packets[moved.packets..]);
            BATCH.with_borrow_mut(|batch| match lists {
                false => own.ring.enqueue(batch, rest, &mut moved),
                true => {
                    let (shared, pool) = (&self.shared, &self.shared_pool);
                    let mut at = At { shared, ring: ring.into(), pool, target: &mut self.target };
                    copies::enqueue(&mut at, own, batch, rest, &mut moved);
                }
            });
            let stuck = moved.packets == before || moved.exhausted;
            if moved.packets == packets.len() || stuck || retries == most {
                break;
            }
            retries += 1;
        }
        self.penalty += self.shared.end(own, began, &mut moved);
        self.pending_notify = Some((ring, !own.ring.notifications_suppressed()));
        drop(held);
        let (taken, dropped) = (moved.packets, moved.dropped as u64);
        if !lists {
            self.pool.free(&packets[..taken]);
            if copies::lists() {
                copies::count_short(moved.bytes);
            }
        }
        self.shared.counted.tx[self.index].count(&Counters {
            packets: taken as u64 - dropped,
            bytes: moved.bytes,
            dropped,
            retries: retries.into(),
        });
        taken
    }

    #[cold]
    fn drop_all(&self, packets: &[Packet]) -> usize {
        self.pool.free(packets);
        let dropped = packets.len() as u64;
        self.shared.counted.tx[self.index].count(&Counters { dropped, ..Default::default() });
        packets.len()
    }
}

impl<P> Drop for Tx<P> {
    fn drop(&mut self) {
        self.shared.taken_tx[self.index].store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of a guest's memory with a split ring, each of whose buffers begins with descriptor
    /// 0: an indirect table of 32,768 entries.
    #[repr(align(4096))]
    struct Page([u16; 2048]);

    const RING_SIZE: u16 = 64;

    impl Page {
        fn new() -> Box<Page> {
            let mut page = Box::new(Page([0; 2048]));
            (page.0[5], page.0[6]) = (8, 4);
            page
        }
    }

    fn ring(at: *mut u8) -> crate::rings::OwnRing {
        let memory = vhost::Memory::new([vhost::Region { guest: 0, size: 4096, host: at }]);
        let areas = [0, 0x400, 0x600].map(|offset| at.wrapping_add(offset));
        let setup = vhost::RingSetup { features: 0, size: RING_SIZE, areas, base: 0 };
        // SAFETY: the page at `at` outlives the ring in the test.
        let ring = unsafe { vhost::Ring::new(&setup, memory.into()) }.unwrap();
        crate::rings::OwnRing::new(ring, None, None)
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(&crate::Config {
            path: String::new(),
            mode: crate::Mode::Server,
            n_txq: 1,
            tx_retries: 8,
            offloads: false,
            on_change: None,
            warn: None,
            info: None,
        }))
    }

    /// Its packets are dropped and counted, whichever of its rings had a thread wait.
    #[test]
    fn a_guest_whose_memory_had_a_thread_wait_is_left_alone() {
        let mut pages = [Page::new(), Page::new()];
        let at = pages.each_mut().map(|page| (&raw mut **page).cast::<u8>());
        let shared = shared();
        (0..2).for_each(|i| drop(shared.rings.put(i, Some(ring(at[i])))));
        shared.publish(1, 1);
        let pool = Arc::new(packet::HeapPool::new());
        let mut tx = Tx::take(&shared, &pool, 0).unwrap();
        let rx = Rx::take(&shared, &pool, 0).unwrap();
        let waits = || std::thread::sleep(std::time::Duration::from_millis(10));
        waits();
        sync::waits::look(true);
        let held = shared.rings.try_hold(1);
        waits();
        drop(held);
        assert!(shared.rings.rest());
        assert_eq!((rx.shared.rx_mask(0), tx.ring()), (0, None));
        assert_eq!(tx.burst(&[pool.packet(&[7; 64]).unwrap()]), 1);
        assert_eq!(shared.counters().1.dropped, 1);
        while shared.rings.rest() {}
        assert_eq!((rx.shared.rx_mask(0), tx.ring()), (1, Some(0)));
        assert_eq!(tx.burst(&[]), 0);
        (0..2).for_each(|i| drop(shared.rings.put(i, None)));
    }

    /// A guest whose buffers are all malformed: what that costs the threads that poll it and send
    /// to it is counted for each, and charged to the port.
    #[test]
    fn what_a_guests_violations_cost_is_known() {
        let mut pages = [Page::new(), Page::new()];
        let at = pages.each_mut().map(|page| (&raw mut **page).cast::<u8>());
        // The index of available buffers.
        let offer = |i: usize, n: u16| {
            // SAFETY: a word of a page, to which no reference is used any more.
            unsafe { at[i].add(0x402).cast::<u16>().write_volatile(n) }
        };
        let shared = shared();
        (0..2).for_each(|i| drop(shared.rings.put(i, Some(ring(at[i])))));
        shared.publish(1, 1);
        let pool = Arc::new(packet::HeapPool::new());
        let mut tx = Tx::take(&shared, &pool, 0).unwrap();
        let mut rx = Rx::take(&shared, &pool, 0).unwrap();
        let packets = [pool.packet(&[7; 64]).unwrap()];
        let mut out = Vec::with_capacity(32);
        for round in 1..=3 {
            (0..2).for_each(|i| offer(i, round * RING_SIZE));
            assert_eq!(tx.burst(&packets), 0);
            let sending = tx.take_penalty();
            assert_eq!((0..2).map(|_| rx.burst(&mut out, 32)).sum::<usize>(), 0);
            let receiving = rx.take_penalty();
            // The first call on a ring is not timed.
            assert!(receiving > 0 && (sending > 0) == (round > 1), "{round} {sending}");
            assert_eq!(rx.take_port_penalty(), sending + receiving);
        }
        assert_eq!((tx.take_penalty(), rx.take_penalty(), rx.take_port_penalty()), (0, 0, 0));
        let counted = shared.ring_errors()[vhost::RingError::Indirect as usize];
        assert_eq!(counted, (vhost::RingError::Indirect, 6 * u64::from(RING_SIZE)));
        // Nothing more is wrong: nothing more is lost.
        assert_eq!((tx.burst(&packets), tx.take_penalty()), (0, 0));
        pool.free(&packets);
        (0..2).for_each(|i| drop(shared.rings.put(i, None)));
    }
}
