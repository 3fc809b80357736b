//! Which guest is served, by whom, and how it goes away.
//!
//! A *slot* belongs to one queue handle (or to the control side). Its owner marks it busy, looks at
//! the guest's id, and uses the guest only if there is one. Whoever takes the guest away clears the
//! id and waits until no slot is busy: from then on no thread uses it. Full fences on both sides
//! make sure that either the owner sees the id gone or the other sees the mark.

use super::front_end::FrontEnd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
use vhost_user::{Counters, PAIRS_MAX};

/// No guest.
const NONE: i32 = -1;

/// The busy mark and the counters of one queue handle; only its owner writes.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct QueueSlot {
    busy: AtomicBool,
    counters: vhost_user::Slot,
}

impl QueueSlot {
    /// Adds to the counters.
    #[inline]
    pub(crate) fn count(&self, add: &Counters) {
        self.counters.count(add);
    }
}

/// The right to use guest `vid` until it is dropped.
pub(crate) struct Use<'a> {
    slot: &'a QueueSlot,
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
    /// Enabled queues we receive from, and send to: bit i for queue pair i.
    rx: u64,
    tx: u64,
}

type Connections<'a> = std::sync::MutexGuard<'a, Vec<Connection>>;

/// The state of one socket, shared by its handle, its queues and the callbacks.
pub(crate) struct VhostState {
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
    pub(crate) rx: Vec<QueueSlot>,
    pub(crate) tx: Vec<QueueSlot>,
    control: QueueSlot,
    connections: Mutex<Vec<Connection>>,
    pub(crate) front_end: FrontEnd,
}

impl VhostState {
    pub(crate) fn new(n_txq: usize, retries_max: u32) -> Self {
        let slots = |n: usize| (0..n).map(|_| QueueSlot::default()).collect();
        VhostState {
            vid: AtomicI32::new(NONE),
            rx_mask: AtomicU64::new(0),
            tx_mask: AtomicU64::new(0),
            taken_rx: AtomicU64::new(0),
            taken_tx: (0..n_txq).map(|_| AtomicBool::new(false)).collect(),
            up: AtomicBool::new(true),
            retries_max: AtomicU32::new(retries_max),
            changes: AtomicU64::new(0),
            rx: slots(PAIRS_MAX),
            tx: slots(n_txq),
            control: QueueSlot::default(),
            connections: Mutex::new(Vec::new()),
            front_end: FrontEnd::default(),
        }
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

    /// True if a guest is served.
    pub(crate) fn connected(&self) -> bool {
        self.vid.load(Ordering::Relaxed) != NONE
    }

    /// Uses the guest, if there is one. `slot` is the caller's own.
    #[inline]
    pub(crate) fn enter<'a>(&'a self, slot: &'a QueueSlot) -> Option<Use<'a>> {
        slot.busy.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let held = Use { slot, vid: self.vid.load(Ordering::Acquire) };
        (held.vid != NONE).then_some(held)
    }

    /// Uses the guest from the control side, one at a time (the socket's handle is not shared).
    pub(crate) fn enter_control(&self) -> Option<Use<'_>> {
        self.enter(&self.control)
    }

    /// Receive queues enabled, with a handle or without.
    pub(crate) fn all_rx(&self) -> u64 {
        self.rx_mask.load(Ordering::Relaxed)
    }

    /// Sums of the receive and of the send counters.
    pub(crate) fn counters(&self) -> (Counters, Counters) {
        let mut sums = (Counters::default(), Counters::default());
        self.rx.iter().for_each(|slot| slot.counters.add_to(&mut sums.0));
        self.tx.iter().for_each(|slot| slot.counters.add_to(&mut sums.1));
        sums
    }

    /// A guest's rings are ready.
    pub(crate) fn started(&self, vid: i32) {
        self.change(vid, |c| c.running = true);
    }

    /// A guest stops. When this returns no thread uses it.
    pub(crate) fn stopped(&self, vid: i32) {
        self.change(vid, |c| c.running = false);
    }

    /// A connection ends for good.
    pub(crate) fn closed(&self, vid: i32) {
        self.change(vid, |c| c.running = false);
        self.lock().retain(|c| c.vid != vid);
    }

    /// A ring is enabled or disabled. Must not wait: the library holds the ring's lock, which a
    /// sender may be waiting for.
    pub(crate) fn ring(&self, vid: i32, ring: u16, enabled: bool) {
        let pair = ring as usize / 2;
        if pair >= PAIRS_MAX {
            return;
        }
        self.change(vid, |c| {
            // The guest's even rings are the ones it receives on.
            let mask = if ring.is_multiple_of(2) { &mut c.tx } else { &mut c.rx };
            *mask = *mask & !(1 << pair) | u64::from(enabled) << pair;
        });
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
            connections.push(Connection { vid, running: false, rx: 0, tx: 0 });
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
        }
        self.rx_mask.store(next.map_or(0, |c| c.rx), Ordering::Relaxed);
        self.tx_mask.store(next.map_or(0, |c| c.tx), Ordering::Relaxed);
        if vid != served {
            self.vid.store(vid, Ordering::Release);
        }
    }

    /// No thread starts to use the guest any more, and those that used it have finished.
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
    use std::time::{Duration, Instant};

    /// How long a thread may wait for a core.
    const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

    #[test]
    fn queues_come_and_go() {
        let shared = VhostState::new(1, 8);
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
        let shared = VhostState::new(1, 8);
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
        let shared = Arc::new(VhostState::new(1, 8));
        let alive = Arc::new(AtomicI32::new(NONE));
        let end = Arc::new(AtomicBool::new(false));
        let met = Arc::new(AtomicBool::new(false));
        let user = {
            let (shared, alive, end) = (shared.clone(), alive.clone(), end.clone());
            let met = met.clone();
            std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    if let Some(guest) = shared.enter(&shared.rx[0]) {
                        for _ in 0..20 {
                            assert_eq!(alive.load(Ordering::SeqCst), guest.vid);
                        }
                        met.store(true, Ordering::Relaxed);
                    }
                }
            })
        };
        let began = Instant::now();
        for vid in 0.. {
            // On a busy machine the user's thread may not have had a core yet.
            let met = met.load(Ordering::Relaxed) || began.elapsed() > WAIT_TIME_MAX;
            if vid >= 2000 && met {
                break;
            }
            alive.store(vid, Ordering::SeqCst);
            shared.started(vid);
            std::thread::yield_now();
            shared.stopped(vid);
            alive.store(NONE, Ordering::SeqCst);
            shared.closed(vid);
        }
        end.store(true, Ordering::Relaxed);
        user.join().unwrap();
        assert!(met.load(Ordering::Relaxed), "the guest was never used");
    }
}
