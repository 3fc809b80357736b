//! Which guest is served, by whom, and how it goes away.
//!
//! A *slot* belongs to one queue handle (or to the control side). Its owner marks it busy, looks
//! at the guest's id, and uses the guest only if there is one. Whoever takes the guest away clears
//! the id and waits until no slot is busy: from then on nobody uses it. Full fences on both sides
//! make sure that either the owner sees the id gone or the other sees the mark.
//!
//! That is so for calls into the library. Rings that we serve ourselves are held one by one
//! ([`super::rings`]), and a guest is served in one of the two ways from when it comes until it
//! goes, but for one change: to the library, when it starts to log its pages.

use super::leaving::Leaving;
use super::rings::{OwnRing, Owner, Rings};
use super::takeover;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// Most queue pairs of a guest that are served: one bit each in a mask.
pub(crate) const MAX_PAIRS: usize = 64;
/// No guest.
const NONE: i32 = -1;

/// The busy mark and the counters of one queue handle; only its owner writes.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Slot {
    busy: AtomicBool,
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
    retries: AtomicU64,
}

/// Sums over the queues of a socket since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostCounters {
    /// Packets moved.
    pub packets: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Received: chains that no buffer holds, bad buffers. Sent: no guest, or no queue enabled, or
    /// larger than the guest's buffers.
    pub dropped: u64,
    /// Further attempts because the guest's queue was full.
    pub retries: u64,
}

impl Slot {
    /// Adds to the counters. One writer, so plain loads and stores do.
    #[inline]
    pub(crate) fn count(&self, add: &VhostCounters) {
        let bump = |counter: &AtomicU64, n: u64| {
            if n > 0 {
                counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
            }
        };
        bump(&self.packets, add.packets);
        bump(&self.bytes, add.bytes);
        bump(&self.dropped, add.dropped);
        bump(&self.retries, add.retries);
    }

    fn add_to(&self, sum: &mut VhostCounters) {
        sum.packets += self.packets.load(Ordering::Relaxed);
        sum.bytes += self.bytes.load(Ordering::Relaxed);
        sum.dropped += self.dropped.load(Ordering::Relaxed);
        sum.retries += self.retries.load(Ordering::Relaxed);
    }
}

/// The right to use guest `vid` until it is dropped.
pub(crate) struct Use<'a> {
    slot: &'a Slot,
    pub(crate) vid: i32,
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.slot.busy.store(false, Ordering::Release);
    }
}

/// A connection on the socket. There is normally one; a guest that was killed and restarted may
/// connect before its old connection is seen to be dead.
#[derive(Debug, Clone, Copy)]
struct Connection {
    vid: i32,
    running: bool,
    /// The memory table is as the guest set it last.
    mapped: bool,
    /// Enabled queues we receive from, and send to: bit i for queue pair i.
    rx: u64,
    tx: u64,
}

type Connections<'a> = std::sync::MutexGuard<'a, Vec<Connection>>;

/// The state of one socket, shared by its handle, its queues and the callbacks.
pub(crate) struct Shared {
    vid: AtomicI32,
    rx_mask: AtomicU64,
    tx_mask: AtomicU64,
    /// Receive queues that have a handle of their own.
    pub(crate) taken_rx: AtomicU64,
    /// Send handles that are out.
    pub(crate) taken_tx: Vec<AtomicBool>,
    pub(crate) up: AtomicBool,
    pub(crate) retries_max: AtomicU32,
    /// Times a guest came or went.
    pub(crate) changes: AtomicU64,
    pub(crate) rx: Vec<Slot>,
    pub(crate) tx: Vec<Slot>,
    control: Slot,
    connections: Mutex<Vec<Connection>>,
    pub(crate) leaving: Leaving,
    /// May rings be ours at all?
    own_wanted: bool,
    /// Are those of the guest that is served?
    own: AtomicBool,
    pub(crate) rings: Rings,
    /// By [`vhost::Misdeed`], over all guests.
    misdeeds: [AtomicU64; vhost::Misdeed::COUNT],
}

impl Shared {
    pub(crate) fn new(n_txq: usize, retries_max: u32, own_wanted: bool) -> Self {
        let slots = |n: usize| (0..n).map(|_| Slot::default()).collect();
        Shared {
            vid: AtomicI32::new(NONE),
            rx_mask: AtomicU64::new(0),
            tx_mask: AtomicU64::new(0),
            taken_rx: AtomicU64::new(0),
            taken_tx: (0..n_txq).map(|_| AtomicBool::new(false)).collect(),
            up: AtomicBool::new(true),
            retries_max: AtomicU32::new(retries_max),
            changes: AtomicU64::new(0),
            rx: slots(MAX_PAIRS),
            tx: slots(n_txq),
            control: Slot::default(),
            connections: Mutex::new(Vec::new()),
            leaving: Leaving::default(),
            own_wanted,
            own: AtomicBool::new(false),
            rings: Rings::new(2 * MAX_PAIRS, n_txq),
            misdeeds: Default::default(),
        }
    }

    /// Does the guest use rings that we serve ourselves?
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.own.load(Ordering::Relaxed)
    }

    /// Lets ring `i` fetch what its next burst touches, if it is ours and nobody holds it.
    #[inline]
    pub(crate) fn prepare(&self, i: usize, owner: Owner, step: usize, n: usize) {
        if let Some(mut held) = self.rings.try_hold(i, owner)
            && let Some(own) = held.get()
        {
            own.ring.prepare(step, n as u16, i % 2 == 1);
        }
    }

    /// Notifies the guest of what it was shown on ring `i`, if it wants that. If somebody else holds the
    /// ring, that is up to him.
    #[inline]
    pub(crate) fn notify(&self, i: usize, owner: Owner) {
        if let Some(mut held) = self.rings.try_hold(i, owner)
            && let Some(own) = held.get()
        {
            own.notify();
        }
    }

    /// Counts what the guest did wrong on a ring since this was called last.
    #[cold]
    pub(crate) fn blame(&self, ring: &mut OwnRing) {
        for (what, n) in ring.ring.misdeeds().since(&ring.told) {
            self.misdeeds[what as usize].fetch_add(n, Ordering::Relaxed);
        }
        *ring.told = *ring.ring.misdeeds();
    }

    /// What guests did wrong, and how often.
    pub(crate) fn misdeeds(&self) -> Vec<(vhost::Misdeed, u64)> {
        let count = |what: &vhost::Misdeed| self.misdeeds[*what as usize].load(Ordering::Relaxed);
        vhost::Misdeed::ALL.iter().map(|what| (*what, count(what))).collect()
    }

    /// Guest queues that receive handle `index` serves now: its own, and for handle 0 also those
    /// that have no handle.
    #[inline]
    pub(crate) fn rx_mask(&self, index: usize) -> u64 {
        let mask = self.rx_mask.load(Ordering::Relaxed);
        match index {
            0 if mask > 1 => mask & !(self.taken_rx.load(Ordering::Relaxed) & !1),
            _ => mask & (1 << index),
        }
    }

    /// Guest queues that can be sent to now.
    #[inline]
    pub(crate) fn tx_mask(&self) -> u64 {
        self.tx_mask.load(Ordering::Relaxed)
    }

    /// Queues the guest sends on, as far as we know, at least one.
    pub(crate) fn n_rxq(&self) -> usize {
        let mask = self.rx_mask.load(Ordering::Relaxed);
        (u64::BITS - mask.leading_zeros()).max(1) as usize
    }

    /// Is a guest served?
    pub(crate) fn connected(&self) -> bool {
        self.vid.load(Ordering::Relaxed) != NONE
    }

    /// Uses the guest by the library, if there is one and its rings are the library's. `slot` is
    /// the caller's own.
    #[inline]
    pub(crate) fn enter<'a>(&'a self, slot: &'a Slot) -> Option<Use<'a>> {
        let held = self.enter_any(slot)?;
        // The id is stored after this, and was seen.
        (!self.is_own()).then_some(held)
    }

    fn enter_any<'a>(&'a self, slot: &'a Slot) -> Option<Use<'a>> {
        slot.busy.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let held = Use { slot, vid: self.vid.load(Ordering::Acquire) };
        (held.vid != NONE).then_some(held)
    }

    /// Uses the guest from the control side, one at a time (the socket's handle is not shared).
    pub(crate) fn enter_control(&self) -> Option<Use<'_>> {
        self.enter_any(&self.control)
    }

    /// Receive queues enabled, whoever serves them.
    pub(crate) fn all_rx(&self) -> u64 {
        self.rx_mask.load(Ordering::Relaxed)
    }

    /// Sums of the receive and of the send counters.
    pub(crate) fn counters(&self) -> (VhostCounters, VhostCounters) {
        let mut sums = (VhostCounters::default(), VhostCounters::default());
        self.rx.iter().for_each(|slot| slot.add_to(&mut sums.0));
        self.tx.iter().for_each(|slot| slot.add_to(&mut sums.1));
        sums
    }

    /// A guest's rings are ready.
    pub(crate) fn started(&self, vid: i32) {
        self.change(vid, |c| c.running = true);
    }

    /// A guest stops. When this returns nobody uses it.
    pub(crate) fn stopped(&self, vid: i32) {
        self.change(vid, |c| c.running = false);
    }

    /// A connection ends for good.
    pub(crate) fn closed(&self, vid: i32) {
        self.leaving.begins(vid);
        self.change(vid, |c| c.running = false);
        self.lock().retain(|c| c.vid != vid);
    }

    /// A ring is enabled or disabled. Must not wait: the library holds the ring's lock, which a
    /// sender may be waiting for.
    pub(crate) fn ring(&self, vid: i32, ring: u16, enabled: bool) {
        let pair = ring as usize / 2;
        if pair >= MAX_PAIRS {
            return;
        }
        self.change(vid, |c| {
            // The guest's even rings are the ones it receives on.
            let mask = if ring.is_multiple_of(2) { &mut c.tx } else { &mut c.rx };
            *mask = *mask & !(1 << pair) | u64::from(enabled) << pair;
        });
    }

    /// The library is about to act on a message of this guest.
    pub(crate) fn before_message(&self, vid: i32, sets_memory: bool) {
        let _connections = match sets_memory {
            true => self.edit(vid, |c| c.mapped = false),
            false => self.lock(),
        };
        if self.vid.load(Ordering::Relaxed) == vid {
            self.give_back(vid);
        }
    }

    /// The library acted on it, with success.
    pub(crate) fn after_message(&self, vid: i32, sets_memory: bool) {
        let connections = match sets_memory {
            true => self.edit(vid, |c| c.mapped = true),
            false => self.lock(),
        };
        let connection = connections.iter().find(|c| c.vid == vid && c.mapped);
        if let Some(connection) = connection
            && self.vid.load(Ordering::Relaxed) == vid
            && self.is_own()
        {
            self.take_over(connection);
        }
    }

    /// The guest's rings are the library's.
    fn give_back(&self, vid: i32) {
        self.rings.clear(|i, ring| {
            // SAFETY: the guest is still there: its end is told to us first.
            unsafe { takeover::give_back(vid, i, ring) };
        });
    }

    /// The guest's rings are ours if they can be. Nobody uses them through the library.
    fn take_over(&self, connection: &Connection) {
        let vid = connection.vid;
        // SAFETY: the guest lives, and what it says next is told to us first.
        unsafe {
            let own = self.own_wanted && connection.mapped && takeover::is_ours(vid);
            self.own.store(own, Ordering::Relaxed);
            if own {
                for (i, ring) in takeover::take(vid) {
                    if i < 2 * MAX_PAIRS {
                        self.rings.put(i, Some(ring));
                    }
                }
            }
        }
    }

    fn lock(&self) -> Connections<'_> {
        self.connections.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn change(&self, vid: i32, edit: impl FnOnce(&mut Connection)) {
        let connections = self.edit(vid, edit);
        self.publish(&connections);
    }

    fn edit(&self, vid: i32, edit: impl FnOnce(&mut Connection)) -> Connections<'_> {
        let mut connections = self.lock();
        let position = connections.iter().position(|c| c.vid == vid).unwrap_or_else(|| {
            connections.push(Connection { vid, running: false, mapped: false, rx: 0, tx: 0 });
            connections.len() - 1
        });
        edit(&mut connections[position]);
        connections
    }

    /// Serves the connection that is served already if it still runs, else the newest that does.
    fn publish(&self, connections: &[Connection]) {
        let served = self.vid.load(Ordering::Relaxed);
        let running = || connections.iter().filter(|c| c.running);
        let next = running().find(|c| c.vid == served).or_else(|| running().next_back());
        let vid = next.map_or(NONE, |c| c.vid);
        // Before the guest is seen to be gone or there.
        self.changes.fetch_add(u64::from(vid != served), Ordering::Relaxed);
        if vid != served && served != NONE {
            self.retire();
            self.give_back(served);
        }
        self.rx_mask.store(next.map_or(0, |c| c.rx), Ordering::Relaxed);
        self.tx_mask.store(next.map_or(0, |c| c.tx), Ordering::Relaxed);
        if vid != served {
            if let Some(connection) = next {
                self.take_over(connection);
            }
            self.vid.store(vid, Ordering::Release);
        }
    }

    /// Nobody starts using the guest any more, and those who do have finished.
    fn retire(&self) {
        self.vid.store(NONE, Ordering::Release);
        fence(Ordering::SeqCst);
        for slot in self.rx.iter().chain(&self.tx).chain([&self.control]) {
            let mut spins = 0;
            while slot.busy.load(Ordering::Acquire) {
                spins += 1;
                if spins % 64 == 0 {
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn queues_come_and_go() {
        let shared = Shared::new(1, 8, false);
        shared.ring(5, 0, true);
        shared.ring(5, 1, true);
        assert!(!shared.connected() && shared.rx_mask(0) == 0, "rings alone are no guest");
        shared.started(5);
        assert_eq!((shared.connected(), shared.rx_mask(0), shared.tx_mask()), (true, 1, 1));
        shared.ring(5, 7, true);
        assert_eq!((shared.n_rxq(), shared.rx_mask(0), shared.rx_mask(3)), (4, 0b1001, 0b1000));
        shared.taken_rx.store(0b1001, Ordering::Relaxed);
        assert_eq!((shared.rx_mask(0), shared.rx_mask(3)), (1, 0b1000));
        shared.ring(5, 7, false);
        assert_eq!((shared.n_rxq(), shared.rx_mask(3)), (1, 0));
        shared.ring(5, 999, true);
        shared.stopped(5);
        assert_eq!((shared.connected(), shared.rx_mask(0), shared.tx_mask()), (false, 0, 0));
    }

    #[test]
    fn a_new_connection_waits_for_the_old_one() {
        let shared = Shared::new(1, 8, false);
        let connect = |vid| {
            shared.ring(vid, 0, true);
            shared.ring(vid, 1, true);
            shared.started(vid);
        };
        connect(1);
        connect(2);
        assert_eq!(shared.enter_control().unwrap().vid, 1);
        shared.stopped(1);
        assert_eq!(shared.enter_control().unwrap().vid, 2);
        shared.closed(1);
        shared.closed(2);
        assert!(shared.enter_control().is_none() && shared.lock().is_empty());
    }

    /// No burst may see a guest that `stopped` has taken away.
    #[test]
    fn nobody_uses_a_stopped_guest() {
        let shared = Arc::new(Shared::new(1, 8, false));
        let alive = Arc::new(AtomicI32::new(NONE));
        let end = Arc::new(AtomicBool::new(false));
        let user = {
            let (shared, alive, end) = (shared.clone(), alive.clone(), end.clone());
            std::thread::spawn(move || {
                let mut used = 0u64;
                while !end.load(Ordering::Relaxed) {
                    if let Some(guest) = shared.enter(&shared.rx[0]) {
                        for _ in 0..20 {
                            assert_eq!(alive.load(Ordering::SeqCst), guest.vid);
                        }
                        used += 1;
                    }
                }
                used
            })
        };
        for vid in 0..2000 {
            alive.store(vid, Ordering::SeqCst);
            shared.started(vid);
            std::thread::yield_now();
            shared.stopped(vid);
            alive.store(NONE, Ordering::SeqCst);
            shared.closed(vid);
        }
        end.store(true, Ordering::Relaxed);
        assert!(user.join().unwrap() > 0);
    }
}
