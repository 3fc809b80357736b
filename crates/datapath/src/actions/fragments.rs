//! `ct` of fragments: each waits, with the operations that are left, until all fragments of its
//! datagram have arrived. Connection tracking tracks the datagram as a whole; what it says holds
//! for each fragment, and then their operations are continued.
//!
//! Fragments of a datagram may be received by several workers, so all wait in one store behind a
//! lock. No worker waits for the lock: after [`ATTEMPTS_COUNT_MAX`] attempts the fragment is
//! invalid, and counted.

use crate::actions::ct;
use crate::parse::frame::Frame;
use action::{Ct, Op};
use conntrack::ipf::{DATAGRAM_BYTES_MAX, FRAGMENTS_OF_DATAGRAM_COUNT_MAX, assemble, spread};
use conntrack::ipf::{Fragment, Fragments, Gathered, Rejected};
use conntrack::{Arrival, Count, IpHeader, Meta, Store, state};
use packet::Packet;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use telemetry::Drop;

/// Attempts to take the lock: about ten microseconds in all. The thread that holds it needs a few.
const ATTEMPTS_COUNT_MAX: usize = 1000;
/// Expired fragments that a worker drops per millisecond, at most.
const EXPIRED_COUNT_MAX: usize = 64;
/// Depth of lists inside lists in which operations can be continued.
const LEVELS_COUNT_MAX: usize = 4;

/// This bit in the index of an operation with two lists means its first list. Lists have some
/// thousand operations at most, so the bit is free.
const MORE: u16 = 1 << 15;

/// The fragments of all workers that wait.
pub(crate) type FragmentStore = Mutex<Fragments<Paused>>;

/// An operation in a list, or in lists inside it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    path: [u16; LEVELS_COUNT_MAX],
    level: usize,
}

impl Position {
    /// Goes to the first operation of the current operation's list.
    pub fn enter(&mut self) {
        self.level += 1;
    }

    /// Goes back to the operation that has the list.
    pub fn leave(&mut self) {
        self.level -= 1;
    }

    /// Goes to operation `i` of the current list.
    #[inline]
    pub fn set(&mut self, i: usize) {
        if let Some(at) = self.path.get_mut(self.level) {
            *at = i as u16;
        }
    }

    /// Chooses the first list of the current operation, which has two.
    pub fn choose_more(&mut self) {
        if let Some(at) = self.path.get_mut(self.level) {
            *at |= MORE;
        }
    }

    /// True if execution can be continued at this position.
    pub fn is_exact(&self) -> bool {
        self.level < LEVELS_COUNT_MAX && self.path[self.level] < u16::MAX
    }

    /// The list of this position; `all` is the outermost list.
    pub fn list<'a>(&self, all: &'a [Op]) -> &'a [Op] {
        let inside = |ops: &'a [Op], i: &u16| match ops.get(usize::from(*i & !MORE)) {
            Some(Op::Clone(ops) | Op::Sample { ops, .. }) => &ops[..],
            Some(Op::CheckLen { more, .. }) if *i & MORE != 0 => &more[..],
            Some(Op::CheckLen { others, .. }) => &others[..],
            _ => &[],
        };
        self.path[..self.level].iter().fold(all, inside)
    }

    /// The index of the next operation in the list.
    pub fn next(&self) -> usize {
        usize::from(self.path[self.level]) + 1
    }
}

/// A fragment, or a packet of the control side, that waits, and the operations that are left.
pub(crate) struct Paused {
    pub packet: Packet,
    pub frame: Frame,
    pub ops: Arc<[Op]>,
    /// The operation behind which it continues: for a fragment the `ct` at which it waits.
    pub position: Position,
    /// The reason of its drop if no operation sends it.
    pub why: Drop,
    /// The packet is the control side's, of which only some operations are executed at once.
    pub paced: bool,
    /// How many ports had got a number when it began to wait, if it is a fragment.
    pub newest_port: u64,
}

/// A worker's access to the fragments that wait.
pub(crate) struct Gatherer {
    waiting: Arc<FragmentStore>,
    /// Fragments that were just taken from the store: those of a complete datagram, or expired
    /// ones.
    taken: Vec<(Fragment, Paused)>,
    /// Fragments that gave way to another port's.
    evicted: Vec<(Fragment, Paused)>,
    /// Fragments whose operations are continued now.
    ready: VecDeque<Paused>,
    /// Memory in which a datagram is reassembled.
    whole: Box<[u8; DATAGRAM_BYTES_MAX]>,
}

impl Gatherer {
    /// Access for one more worker.
    pub fn new(waiting: &Arc<FragmentStore>) -> Self {
        let most = FRAGMENTS_OF_DATAGRAM_COUNT_MAX + EXPIRED_COUNT_MAX;
        Gatherer {
            waiting: waiting.clone(),
            taken: Vec::with_capacity(most),
            evicted: Vec::with_capacity(most),
            ready: VecDeque::with_capacity(most),
            whole: Box::new([0; DATAGRAM_BYTES_MAX]),
        }
    }

    /// Adds a fragment to the store. If its datagram is complete, it is tracked, and its fragments
    /// are the next that [`Gatherer::next`] returns. Returns a fragment that cannot wait.
    pub fn gather(
        &mut self,
        worker: &mut conntrack::Worker,
        ct: &Ct,
        fragment: Fragment,
        paused: Paused,
        now: u64,
    ) -> Option<Paused> {
        let Some(mut waiting) = lock(&self.waiting) else {
            worker.count(Count::FragmentBusy);
            return Some(paused);
        };
        let came = Arrival { port: paused.frame.in_port(), now };
        let (taken, evicted) = (&mut self.taken, &mut self.evicted);
        let settings = &worker.table().fragments;
        let gathered = waiting.gather(settings, fragment, paused, came, taken, evicted);
        drop(waiting);
        self.give_up(worker);
        match gathered {
            Gathered::Waits => {}
            Gathered::Complete => self.track(worker, ct, now),
            Gathered::Rejected(paused, why) => {
                if why == Rejected::Full {
                    worker.count(Count::FragmentFull);
                }
                return Some(paused);
            }
        }
        None
    }

    /// Continues fragments that gave way, as invalid ones, like fragments that never waited.
    fn give_up(&mut self, worker: &mut conntrack::Worker) {
        for (fragment, mut paused) in self.evicted.drain(..) {
            worker.count(Count::FragmentFull);
            let (f, zone) = (&mut paused.frame, fragment.datagram.zone);
            f.ct = Meta { state: state::INV | state::TRK, zone, ..Meta::default() };
            ct::write_ct_fields(&f.ct, &mut f.line, &mut f.ext[2], &mut f.have);
            self.ready.push_back(paused);
        }
    }

    /// Tracks a complete datagram.
    fn track(&mut self, worker: &mut conntrack::Worker, ct: &Ct, now: u64) {
        let pieces = self.taken.iter().map(|(f, paused)| (f, paused.packet.data()));
        let len = assemble(pieces, &mut self.whole).unwrap_or(0);
        let whole = &mut self.whole[..len];
        let (first, Paused { frame, .. }) = &self.taken[0];
        let (first, mut meta) = (*first, frame.ct);
        let ip = IpHeader { l3: 0, sound: false };
        let came = Arrival { port: frame.in_port(), now };
        // Fragments keep their lengths, so no text in the datagram is replaced.
        if conntrack::track(worker, ct, whole, ip, &mut meta, came).is_some() {
            meta.state = state::INV | state::TRK;
        }
        for (f, mut paused) in self.taken.drain(..) {
            if ct.nat.is_some() && len > 0 {
                spread(&f, &first, whole, paused.packet.data_mut());
                paused.frame.reparse(paused.packet.data(), paused.frame.tags);
            }
            paused.frame.ct = meta;
            let f = &mut paused.frame;
            ct::write_ct_fields(&f.ct, &mut f.line, &mut f.ext[2], &mut f.have);
            self.ready.push_back(paused);
        }
    }

    /// The next fragment whose operations are continued.
    #[inline]
    pub fn next(&mut self) -> Option<Paused> {
        self.ready.pop_front()
    }

    /// Takes some of the expired fragments from the store.
    pub fn expire(&mut self, worker: &conntrack::Worker, now: u64) {
        let settings = &worker.table().fragments;
        if settings.waiting() > 0
            && let Ok(mut waiting) = self.waiting.try_lock()
        {
            waiting.expire(settings, now, EXPIRED_COUNT_MAX, &mut self.taken);
        }
    }

    /// The next expired fragment, to be dropped.
    pub fn next_expired(&mut self) -> Option<Paused> {
        self.taken.pop().map(|(_, paused)| paused)
    }
}

/// Takes the lock of the store; None: other threads held it for too long.
fn lock(waiting: &FragmentStore) -> Option<MutexGuard<'_, Fragments<Paused>>> {
    for _ in 0..ATTEMPTS_COUNT_MAX {
        match waiting.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(_)) => return None,
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}
