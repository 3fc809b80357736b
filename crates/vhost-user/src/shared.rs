//! State that a socket's handle, its queues and its connections share.
//!
//! One connection at a time is *served*: its rings are in their places, and the masks say which are
//! enabled. Only the connection's thread puts rings there and takes them away; a thread that moves
//! packets holds a place for one burst.

use crate::budget::Budget;
use crate::counters::{Counters, Slot};
use crate::failures::Barred;
use crate::rings::{OwnRing, Rings};
use crate::violation::{Violation, Violations};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vhost::Moved;

/// Most queue pairs of a guest that are served: each has one bit in a mask.
pub const PAIRS_MAX: usize = 64;
/// Most rings: two for each pair.
pub const RINGS_MAX: usize = 2 * PAIRS_MAX;
/// Least time between two log lines about one socket, so that a front-end cannot fill a disk.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait for copies in flight: an engine that hangs is stopped much earlier, and the CPU
/// makes its copies.
const QUIESCE_SECONDS_MAX: Duration = Duration::from_secs(30);
/// Interval of checks for copies in flight on a ring. A copy takes a turn of a thread, and some
/// microseconds.
const QUIESCE_INTERVAL: Duration = Duration::from_micros(20);
/// `served`: no connection.
const NONE: u64 = 0;
/// Flag beside a MAC address: the address is to be announced.
const ANNOUNCE: u64 = 1 << 63;

/// Called when a guest, or one of its queues, appears or disappears. Runs on a thread of the
/// socket's and must neither block nor use the socket.
pub type OnChange = std::sync::Arc<dyn Fn() + Send + Sync>;
/// Writes a warning to the log, from any thread.
pub type Warn = std::sync::Arc<dyn Fn(&str) + Send + Sync>;
/// Writes a line to the log that is not a warning, with the ovs-vswitchd module that logs it.
pub type Inform = std::sync::Arc<dyn Fn(&'static str, &str) + Send + Sync>;

/// Information about a guest that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// NUMA node of its memory, if known.
    pub numa: Option<usize>,
    /// Path of the socket.
    pub socket: String,
    /// Negotiated virtio features.
    pub features: u64,
    /// The guest's MTU, if it is known.
    pub mtu: Option<u16>,
    /// Entries of each ring.
    pub vrings: Vec<u16>,
}

#[derive(Default)]
struct Log {
    last: Option<Instant>,
    suppressed: u64,
}

/// Counters of a socket, over all its guests.
pub(crate) struct Counted {
    /// Handles by queue.
    pub rx: Vec<Slot>,
    pub tx: Vec<Slot>,
    /// Errors by [`vhost::RingError`].
    ring_errors: [AtomicU64; vhost::RingError::COUNT],
    /// Length of the longest frame to the guest, and from it, that the CPU copies for less than an
    /// engine, as last measured; 0: not yet measured.
    pub floors: [AtomicU32; 2],
    /// Whether the CPU makes all copies, as too many of an engine's failed.
    pub barred: Barred,
    /// Cycles lost to the guests' violations, not yet charged to the port.
    penalty: AtomicU64,
    pub violations: Violations,
}

pub(crate) struct Shared {
    /// Enabled queues we receive from, and send to: bit i for queue pair i. No guest: none.
    rx_mask: AtomicU64,
    tx_mask: AtomicU64,
    /// A MAC address to announce to the network, with the flag [`ANNOUNCE`].
    announce: AtomicU64,
    /// The connection that is served.
    served: AtomicU64,
    pub up: AtomicBool,
    pub retries_max: AtomicU32,
    /// [`crate::Config::offloads`].
    pub offloads: bool,
    /// Receive queues that have a handle of their own.
    pub taken_rx: AtomicU64,
    /// Send handles in use.
    pub taken_tx: Vec<AtomicBool>,
    /// How often a guest appeared or disappeared.
    pub changes: AtomicU64,
    pub counted: Counted,
    pub rings: Rings,
    info: Mutex<Info>,
    budget: Mutex<Budget>,
    log: Mutex<Log>,
    pub path: String,
    on_change: Option<OnChange>,
    warn: Option<Warn>,
    inform: Option<Inform>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The virtio features that are offered to the guest.
    pub fn features(&self) -> u64 {
        crate::FEATURES | if self.offloads { crate::OFFLOADS } else { 0 }
    }

    pub fn new(config: &crate::Config) -> Shared {
        let slots = |n: usize| (0..n).map(|_| Slot::default()).collect();
        let n_txq = config.n_txq.max(1);
        Shared {
            rx_mask: AtomicU64::new(0),
            tx_mask: AtomicU64::new(0),
            announce: AtomicU64::new(0),
            served: AtomicU64::new(NONE),
            up: AtomicBool::new(true),
            retries_max: AtomicU32::new(config.tx_retries),
            offloads: config.offloads,
            taken_rx: AtomicU64::new(0),
            taken_tx: (0..n_txq).map(|_| AtomicBool::new(false)).collect(),
            changes: AtomicU64::new(0),
            counted: Counted {
                rx: slots(PAIRS_MAX),
                tx: slots(n_txq),
                ring_errors: Default::default(),
                floors: Default::default(),
                barred: Barred::default(),
                penalty: AtomicU64::new(0),
                violations: Violations::default(),
            },
            rings: Rings::new(RINGS_MAX),
            info: Mutex::default(),
            budget: Mutex::default(),
            log: Mutex::default(),
            path: config.path.clone(),
            on_change: config.on_change.clone(),
            warn: config.warn.clone(),
            inform: config.info.clone(),
        }
    }

    /// Guest queues that receive handle `index` serves at present: its own, and for handle 0 also
    /// those without a handle.
    #[inline]
    pub fn rx_mask(&self, index: usize) -> u64 {
        let mask = self.rx_mask.load(Ordering::Relaxed);
        match index {
            _ if self.rings.rest() => 0,
            0 if mask > 1 => mask & !(self.taken_rx.load(Ordering::Relaxed) & !1),
            _ => mask & (1 << index),
        }
    }

    /// Enabled guest queues to which packets can be sent at present.
    #[inline]
    pub fn tx_mask(&self) -> u64 {
        if self.rings.rest() { 0 } else { self.tx_mask.load(Ordering::Relaxed) }
    }

    /// Number of queues on which the guest sends, as far as known; at least one.
    pub fn n_rxq(&self) -> usize {
        let mask = self.rx_mask.load(Ordering::Relaxed);
        (u64::BITS - mask.leading_zeros()).max(1) as usize
    }

    /// Whether a guest is served.
    pub fn connected(&self) -> bool {
        self.served.load(Ordering::Relaxed) != NONE
    }

    /// Makes this connection the served one if there is none; returns whether it is.
    pub fn claim(&self, connection: u64) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match self.served.compare_exchange(NONE, connection, success, failure) {
            Ok(_) => {
                self.changes.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(served) => served == connection,
        }
    }

    /// Ends the service of this connection, whose rings were all taken away.
    pub fn release(&self, connection: u64) {
        if self.served.load(Ordering::Acquire) == connection {
            self.publish(0, 0);
            self.announce.store(0, Ordering::Relaxed);
            self.changes.fetch_add(1, Ordering::Relaxed);
            self.served.store(NONE, Ordering::Release);
            self.say_of_device("removed");
            self.tell();
        }
    }

    /// Sets the queues that are served. Returns whether they changed.
    pub fn publish(&self, rx: u64, tx: u64) -> bool {
        let before = self.rx_mask.swap(rx, Ordering::Relaxed);
        self.tx_mask.swap(tx, Ordering::Relaxed) != tx || before != rx
    }

    /// Calls `on_change`.
    pub fn tell(&self) {
        if let Some(on_change) = &self.on_change {
            on_change();
        }
    }

    /// Information about the guest; None without one.
    pub fn info(&self) -> Option<Info> {
        self.connected().then(|| Info { socket: self.path.clone(), ..lock(&self.info).clone() })
    }

    pub fn set_info(&self, info: Info) {
        *lock(&self.info) = info;
    }

    /// Uses units of work caused by a front-end; returns how long its thread has to sleep.
    pub fn spend(&self, units: u32) -> Option<Duration> {
        lock(&self.budget).spend(units, Instant::now())
    }

    /// Orders the announcement of a MAC address to the network.
    pub fn announce(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.announce.store(mac | ANNOUNCE, Ordering::Relaxed);
    }

    /// Takes the MAC address to announce.
    #[inline]
    pub fn announced(&self) -> Option<[u8; 6]> {
        match self.announce.load(Ordering::Relaxed) {
            0 => None,
            _ => self.announced_now(),
        }
    }

    #[cold]
    fn announced_now(&self) -> Option<[u8; 6]> {
        let mac = self.announce.swap(0, Ordering::Relaxed);
        let [_, _, rest @ ..] = mac.to_be_bytes();
        (mac & ANNOUNCE != 0).then_some(rest)
    }

    /// Prefetches what the next burst on ring `i` uses, if no thread holds the ring.
    #[inline]
    pub fn prepare(&self, i: usize, phase: usize, n: usize) {
        if let Some(mut held) = self.rings.try_hold(i)
            && let Some(own) = held.get()
        {
            own.ring.prepare(phase, n as u16, i % 2 == 1);
        }
    }

    /// Notifies the guest of descriptors published on ring `i`, if it wants that. If another thread
    /// holds the ring, that thread notifies.
    #[inline]
    pub fn notify(&self, i: usize) {
        if let Some(mut held) = self.rings.try_hold(i)
            && let Some(own) = held.get()
        {
            own.notify();
        }
    }

    /// Takes ring `i` away, if there is one. On return no other thread uses the ring, none of its
    /// copies is in flight, and the guest was notified of all published descriptors.
    pub fn take(&self, i: usize) -> Option<OwnRing> {
        let is_quiet = self.quiesce(i);
        let mut ring = self.rings.put(i, None)?;
        self.count_error(&mut ring);
        if !is_quiet {
            // An engine that cannot be stopped may still write: the guest's memory stays mapped
            // until the process ends.
            let base = ring.ring.base();
            self.complain(&format!("copies of ring {i} never ended; it was given up at {base}"));
            std::mem::forget(ring);
            return None;
        }
        ring.abandon();
        fence(Ordering::SeqCst);
        ring.notify();
        Some(ring)
    }

    /// Stops the listing of copies of ring `i`, and waits for those in flight. Returns false if
    /// some still are.
    fn quiesce(&self, i: usize) -> bool {
        let began = Instant::now();
        loop {
            if let Some(mut held) = self.rings.hold(i) {
                let Some(own) = held.get() else { return true };
                own.closing = true;
                if own.ring.in_flight() == 0 {
                    return true;
                }
            }
            if began.elapsed() > QUIESCE_SECONDS_MAX {
                return false;
            }
            std::thread::sleep(QUIESCE_INTERVAL);
        }
    }

    /// Writes a warning to the log.
    fn complain(&self, what: &str) {
        (self.complainer())(what);
    }

    /// Writes warnings about this socket to the log, however long it is kept.
    pub fn complainer(&self) -> Box<dyn Fn(&str) + Send + Sync> {
        let (warn, path) = (self.warn.clone(), self.path.clone());
        Box::new(move |what| {
            if let Some(warn) = &warn {
                warn(&format!("vhost-user socket '{path}': {what}"));
            }
        })
    }

    /// Counts the guest's errors on a ring since the last call.
    #[cold]
    pub fn count_error(&self, ring: &mut OwnRing) {
        for (what, n) in ring.ring.ring_errors().since(&ring.reported) {
            self.counted.ring_errors[what as usize].fetch_add(n, Ordering::Relaxed);
        }
        *ring.reported = *ring.ring.ring_errors();
    }

    /// Cycles lost since the last call.
    pub fn take_penalty(&self) -> u64 {
        match self.counted.penalty.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.counted.penalty.swap(0, Ordering::Relaxed),
        }
    }

    /// Ends a call on a ring that began at `began` with the result `moved`: counts the guest's
    /// errors, and returns the cycles lost to them.
    #[inline]
    pub fn end(&self, ring: &mut OwnRing, began: Option<u64>, moved: &mut Moved) -> u64 {
        let penalty = ring.timer.end(began, moved);
        if penalty > 0 {
            self.counted.penalty.fetch_add(penalty, Ordering::Relaxed);
        }
        if std::mem::take(&mut moved.has_errors) {
            self.count_error(ring);
        }
        penalty
    }

    /// The guests' errors with their numbers.
    pub fn ring_errors(&self) -> Vec<(vhost::RingError, u64)> {
        let count = |what: &vhost::RingError| {
            self.counted.ring_errors[*what as usize].load(Ordering::Relaxed)
        };
        vhost::RingError::ALL.iter().map(|what| (*what, count(what))).collect()
    }

    /// Sums of the receive and of the send counters.
    pub fn counters(&self) -> (Counters, Counters) {
        let mut sums = (Counters::default(), Counters::default());
        self.counted.rx.iter().for_each(|slot| slot.add_to(&mut sums.0));
        self.counted.tx.iter().for_each(|slot| slot.add_to(&mut sums.1));
        sums
    }

    /// Logs a line in the form of DPDK's library.
    pub fn say(&self, text: &str) {
        if let Some(inform) = &self.inform {
            inform("dpdk", &format!("VHOST_CONFIG: ({}) {text}", self.path));
        }
    }

    /// Logs that a guest with memory on this NUMA node connected.
    pub fn say_added(&self, numa: usize) {
        self.say("virtio is now ready for processing.");
        self.say_of_device(&format!("added on numa node {numa}"));
    }

    /// Logs a line in the form of ovs-vswitchd.
    fn say_of_device(&self, what: &str) {
        if let Some(inform) = &self.inform {
            inform("netdev_dpdk", &format!("vHost Device '{}' has been {what}", self.path));
        }
    }

    /// Destination of warnings.
    pub fn warn(&self) -> Option<&Warn> {
        self.warn.as_ref()
    }

    /// Counts a violation, and logs it unless one was logged within [`LOG_INTERVAL`].
    pub fn violation(&self, what: Violation, request: Option<u32>) {
        self.counted.violations.count(what);
        let Some(warn) = &self.warn else { return };
        let mut log = lock(&self.log);
        if log.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            log.suppressed += 1;
            return;
        }
        let suppressed = std::mem::take(&mut log.suppressed);
        log.last = Some(Instant::now());
        drop(log);
        let during = request.map_or(String::new(), |n| format!(" in request {n}"));
        let more = match suppressed {
            0 => String::new(),
            n => format!(" ({n} more violations were not logged)"),
        };
        warn(&format!("vhost-user socket '{}': {}{during}{more}", self.path, what.name()));
    }
}
