//! `ct` of fragments: each waits, with what is left to do, until all fragments of its datagram have
//! come. The datagram goes through connection tracking as a whole; its fragments go on with what
//! that says.
//!
//! Fragments of a datagram may come to several workers, so they wait in one place. No worker waits
//! for its lock: a fragment that finds it taken for long is invalid, and counted.

use crate::actions::ct;
use crate::parse::frame::Frame;
use action::{Ct, Op};
use conntrack::ipf::{DATAGRAM_BYTES_MAX, FRAGMENTS_OF_DATAGRAM_COUNT_MAX, assemble, spread};
use conntrack::ipf::{Fragment, Fragments, Gathered, Unheld};
use conntrack::{Arrival, At, Count, Store, state};
use packet::Packet;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use telemetry::Drop;

/// Attempts at the lock: some ten microseconds, of which the thread that has it needs a few.
const ATTEMPTS_COUNT_MAX: usize = 1000;
/// Fragments that a worker drops in one millisecond because they have waited for too long.
const EXPIRED_COUNT_MAX: usize = 64;
/// Lists inside lists that can be gone on with.
const LEVELS_COUNT_MAX: usize = 4;

/// In the number of an operation with two lists: the first of them. Operations are some thousand.
const MORE: u16 = 1 << 15;

/// Fragments that wait, of all workers.
pub(crate) type Waiting = Mutex<Fragments<Held>>;

/// Which operation of a list, or of lists inside it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    path: [u16; LEVELS_COUNT_MAX],
    level: usize,
}

impl Position {
    /// Inside the list of the operation.
    pub fn enter(&mut self) {
        self.level += 1;
    }

    /// Back to the operation that has the list.
    pub fn leave(&mut self) {
        self.level -= 1;
    }

    /// At number `i` of the list.
    #[inline]
    pub fn set(&mut self, i: usize) {
        if let Some(at) = self.path.get_mut(self.level) {
            *at = i as u16;
        }
    }

    /// Of the operation's two lists, the first is the one.
    pub fn choose_more(&mut self) {
        if let Some(at) = self.path.get_mut(self.level) {
            *at |= MORE;
        }
    }

    /// Is it one that can be returned to?
    pub fn is_exact(&self) -> bool {
        self.level < LEVELS_COUNT_MAX && self.path[self.level] < u16::MAX
    }

    /// The list that it is in; `all`: the outermost one.
    pub fn list<'a>(&self, all: &'a [Op]) -> &'a [Op] {
        let inside = |ops: &'a [Op], i: &u16| match ops.get(usize::from(*i & !MORE)) {
            Some(Op::Clone(ops) | Op::Sample { ops, .. }) => &ops[..],
            Some(Op::CheckLen { more, .. }) if *i & MORE != 0 => &more[..],
            Some(Op::CheckLen { others, .. }) => &others[..],
            _ => &[],
        };
        self.path[..self.level].iter().fold(all, inside)
    }

    /// The number behind it.
    pub fn next(&self) -> usize {
        usize::from(self.path[self.level]) + 1
    }
}

/// A fragment that waits, and what is left to do.
pub(crate) struct Held {
    pub packet: Packet,
    pub frame: Frame,
    pub ops: Arc<[Op]>,
    /// The `ct` that it waits at.
    pub at: Position,
    /// The reason if it goes nowhere.
    pub why: Drop,
}

/// A worker's way to the fragments that wait.
pub(crate) struct Gatherer {
    waiting: Arc<Waiting>,
    /// Fragments that were just taken out of the store: of a complete datagram, or expired ones.
    taken: Vec<(Fragment, Held)>,
    /// Fragments that go on now.
    ready: VecDeque<Held>,
    /// A datagram.
    whole: Box<[u8; DATAGRAM_BYTES_MAX]>,
}

impl Gatherer {
    /// For one more worker.
    pub fn new(waiting: &Arc<Waiting>) -> Self {
        let most = FRAGMENTS_OF_DATAGRAM_COUNT_MAX + EXPIRED_COUNT_MAX;
        Gatherer {
            waiting: waiting.clone(),
            taken: Vec::with_capacity(most),
            ready: VecDeque::with_capacity(most),
            whole: Box::new([0; DATAGRAM_BYTES_MAX]),
        }
    }

    /// Has a fragment wait. If its datagram is complete, that is tracked, and its fragments are the
    /// next to go on. Gives back a fragment that does not wait.
    pub fn gather(
        &mut self,
        worker: &mut conntrack::Worker,
        ct: &Ct,
        fragment: Fragment,
        held: Held,
        now: u64,
    ) -> Option<Held> {
        let Some(mut waiting) = lock(&self.waiting) else {
            worker.count(Count::FragmentBusy);
            return Some(held);
        };
        let (settings, port) = (&worker.table().fragments, held.frame.in_port());
        let gathered = waiting.gather(settings, fragment, port, held, now, &mut self.taken);
        drop(waiting);
        match gathered {
            Gathered::Waits => {}
            Gathered::Complete => self.track(worker, ct, now),
            Gathered::Unheld(held, why) => {
                if why == Unheld::Full {
                    worker.count(Count::FragmentFull);
                }
                return Some(held);
            }
        }
        None
    }

    /// Sends a complete datagram through connection tracking.
    fn track(&mut self, worker: &mut conntrack::Worker, ct: &Ct, now: u64) {
        let pieces = self.taken.iter().map(|(f, held)| (f, held.packet.data()));
        let len = assemble(pieces, &mut self.whole).unwrap_or(0);
        let whole = &mut self.whole[..len];
        let (first, Held { frame, .. }) = &self.taken[0];
        let (first, mut meta) = (*first, frame.ct);
        let at = At { l3: 0, sound: false };
        let came = Arrival { port: frame.in_port(), now };
        // Fragments keep their lengths, so no text in them is replaced.
        if conntrack::track(worker, ct, whole, at, &mut meta, came).is_some() {
            meta.state = state::INV | state::TRK;
        }
        for (f, mut held) in self.taken.drain(..) {
            if ct.nat.is_some() && len > 0 {
                spread(&f, &first, whole, held.packet.data_mut());
                held.frame.reparse(held.packet.data(), held.frame.tags);
            }
            held.frame.ct = meta;
            let f = &mut held.frame;
            ct::write_ct_fields(&f.ct, &mut f.line, &mut f.ext[2], &mut f.have);
            self.ready.push_back(held);
        }
    }

    /// The next fragment that goes on.
    #[inline]
    pub fn next(&mut self) -> Option<Held> {
        self.ready.pop_front()
    }

    /// Takes out fragments that have waited for too long, some of them.
    pub fn expire(&mut self, worker: &conntrack::Worker, now: u64) {
        let settings = &worker.table().fragments;
        if settings.held() > 0
            && let Ok(mut waiting) = self.waiting.try_lock()
        {
            waiting.expire(settings, now, EXPIRED_COUNT_MAX, &mut self.taken);
        }
    }

    /// One of those.
    pub fn next_expired(&mut self) -> Option<Held> {
        self.taken.pop().map(|(_, held)| held)
    }
}

fn lock(waiting: &Waiting) -> Option<MutexGuard<'_, Fragments<Held>>> {
    for _ in 0..ATTEMPTS_COUNT_MAX {
        match waiting.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(_)) => return None,
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}
