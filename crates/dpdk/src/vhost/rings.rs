//! The rings of the guest that is served, as long as they are ours.
//!
//! A ring is held by whoever moves packets on it, for one burst. Taking the rings away therefore
//! waits for bursts under way and for nothing else: no lock of the library is held here.
//!
//! A locked instruction waits until every store before it is in the cache, those into the guest's
//! memory too, and that costs more than all else of a short burst. So a ring has a *friend*: the
//! handle that alone held it for some time. The friend holds it by marking itself and looking whether
//! somebody took it, without a fence. Whoever else wants it takes it first, has the kernel put a
//! fence into every running thread (`membarrier`), and then either sees the mark or was seen; and
//! the ring has no friend any more.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};
use vhost::{Misdeeds, Ring};

/// Times that a handle holds a ring, nobody else between, until it is its friend.
const FRIENDLY: u32 = 256;
/// No handle: the control side, or no friend.
const NOBODY: u32 = 0;

/// Looks at a ring that another thread sends on: about as long as a burst takes. A thread that has it
/// for longer has lost its core, and waiting would stop all our ports.
const PATIENCE: usize = 256;

/// A ring of the guest's, and how to notify it.
pub(crate) struct OwnRing {
    pub ring: Ring,
    /// The guest's; belongs to the library. Not negative if there is one.
    pub call_fd: RawFd,
    /// Misdeeds that were counted at the port already.
    pub told: Box<Misdeeds>,
}

impl OwnRing {
    /// Notifies the guest. Never blocks: if the guest's counter is full it knows.
    #[cold]
    fn call(&self) {
        let one = 1u64;
        // SAFETY: eight bytes that live here; a descriptor that is not an event's fails or eats
        // them, which is the guest's affair.
        unsafe { libc::write(self.call_fd, (&raw const one).cast(), 8) };
    }

    /// Notifies the guest of what was shown to it, if it wants that. A full fence lies between.
    #[inline]
    pub fn notify(&mut self) {
        if self.ring.wants_call() && self.call_fd >= 0 {
            self.call();
        }
    }
}

/// A handle that holds rings, one at a time: receive handle `i` of a socket is `1 + i`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    pub fn rx(index: usize) -> Owner {
        Owner(1 + index as u32)
    }

    pub fn tx(index: usize) -> Owner {
        Owner::rx(super::state::MAX_PAIRS + index)
    }
}

/// "I hold a ring of which I am the friend": written by its handle only.
#[repr(align(128))]
#[derive(Default)]
struct Mark(AtomicBool);

#[repr(align(128))]
struct Cell {
    /// Somebody who is not its friend holds the ring, or is about to.
    taken: AtomicBool,
    /// Changes while `taken` only, and while the friend's mark is not set.
    friend: AtomicU32,
    /// Who held it last without being its friend, and how often in a row. Belong to who took it.
    last: AtomicU32,
    streak: AtomicU32,
    ring: UnsafeCell<Option<OwnRing>>,
}

/// One place per ring of a guest.
pub(crate) struct Rings {
    cells: Box<[Cell]>,
    /// By [`Owner`].
    marks: Box<[Mark]>,
}

// SAFETY: a cell's content is only touched by who holds it, see above.
unsafe impl Sync for Rings {}

/// A held ring, or the empty place of one.
pub(crate) struct Held<'a> {
    cell: &'a Cell,
    /// What keeps others away.
    flag: &'a AtomicBool,
}

impl Held<'_> {
    #[inline]
    pub fn get(&mut self) -> Option<&mut OwnRing> {
        // SAFETY: held by us alone, and only one reference at a time.
        unsafe { &mut *self.cell.ring.get() }.as_mut()
    }

    fn replace(&mut self, ring: Option<OwnRing>) -> Option<OwnRing> {
        // SAFETY: as above.
        std::mem::replace(unsafe { &mut *self.cell.ring.get() }, ring)
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.flag.store(false, Ordering::Release);
    }
}

impl Rings {
    /// For `n` rings, and handles of as many pairs and `n_txq` senders.
    pub fn new(n: usize, n_txq: usize) -> Rings {
        let cell = |_| Cell {
            taken: AtomicBool::new(false),
            friend: AtomicU32::new(NOBODY),
            last: AtomicU32::new(NOBODY),
            streak: AtomicU32::new(0),
            ring: UnsafeCell::new(None),
        };
        let marks = Owner::tx(n_txq).0 as usize;
        Rings {
            cells: (0..n).map(cell).collect(),
            marks: (0..marks).map(|_| Mark::default()).collect(),
        }
    }

    /// Holds ring `i` if nobody else does. Whoever calls is the only user of `owner`, and holds no
    /// other ring by it.
    #[inline]
    pub fn try_hold(&self, i: usize, owner: Owner) -> Option<Held<'_>> {
        let cell = &self.cells[i];
        if cell.friend.load(Ordering::Relaxed) == owner.0 {
            let mark = &self.marks[owner.0 as usize].0;
            mark.store(true, Ordering::Relaxed);
            // The processor may swap the two; `membarrier` makes up for it.
            compiler_fence(Ordering::SeqCst);
            // In this order: who changes the friend gives the cell back afterwards.
            if !cell.taken.load(Ordering::Acquire) && cell.friend.load(Ordering::Relaxed) == owner.0
            {
                return Some(Held { cell, flag: mark });
            }
            mark.store(false, Ordering::Release);
        }
        self.take(cell, owner.0)
    }

    /// Holds a ring without being its friend, if nobody else does.
    #[cold]
    fn take<'a>(&self, cell: &'a Cell, owner: u32) -> Option<Held<'a>> {
        if cell.taken.load(Ordering::Relaxed) || cell.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let held = Held { cell, flag: &cell.taken };
        let friend = cell.friend.load(Ordering::Relaxed);
        if friend != NOBODY {
            membarrier::fence_everywhere();
            if self.marks[friend as usize].0.load(Ordering::Acquire) {
                return None;
            }
            cell.friend.store(NOBODY, Ordering::Relaxed);
        }
        let again = cell.last.swap(owner, Ordering::Relaxed) == owner;
        let streak = if again { cell.streak.load(Ordering::Relaxed) + 1 } else { 0 };
        let friends = streak >= FRIENDLY && owner != NOBODY && membarrier::is_there();
        cell.streak.store(if friends { 0 } else { streak }, Ordering::Relaxed);
        if friends {
            // From the next time on.
            cell.friend.store(owner, Ordering::Relaxed);
        }
        Some(held)
    }

    /// Holds ring `i`, unless another thread keeps it for longer than a burst should take.
    #[inline]
    pub fn hold(&self, i: usize, owner: Owner) -> Option<Held<'_>> {
        for _ in 0..PATIENCE {
            if let Some(held) = self.try_hold(i, owner) {
                return Some(held);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Takes every ring away; when this returns nobody uses one.
    pub fn clear(&self, mut taken: impl FnMut(usize, OwnRing)) {
        for i in 0..self.cells.len() {
            if let Some(ring) = self.put(i, None) {
                taken(i, ring);
            }
        }
    }

    /// Puts a ring in its place; returns what was there.
    pub fn put(&self, i: usize, ring: Option<OwnRing>) -> Option<OwnRing> {
        loop {
            if let Some(mut held) = self.hold(i, Owner(NOBODY)) {
                return held.replace(ring);
            }
            std::thread::yield_now();
        }
    }
}

/// A fence in every thread of this process that runs (membarrier(2), Linux 4.14).
mod membarrier {
    use super::*;

    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    fn call(command: libc::c_int) -> bool {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Can it be had?
    pub fn is_there() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| call(REGISTER_PRIVATE_EXPEDITED))
    }

    /// Called only where it can be had.
    pub fn fence_everywhere() {
        assert!(call(PRIVATE_EXPEDITED), "membarrier worked before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Owner = Owner(1);

    fn befriend(rings: &Rings, i: usize, owner: Owner) {
        for _ in 0..=FRIENDLY + 1 {
            assert!(rings.try_hold(i, owner).is_some());
        }
        let friend = rings.cells[i].friend.load(Ordering::Relaxed);
        assert_eq!(friend, if membarrier::is_there() { owner.0 } else { NOBODY });
    }

    #[test]
    fn one_holder_at_a_time() {
        for friends in [false, true] {
            let rings = Rings::new(2, 1);
            let b = Owner::tx(0);
            if friends {
                befriend(&rings, 0, A);
            }
            let held = rings.try_hold(0, A).unwrap();
            for _ in 0..2 {
                assert!(rings.try_hold(0, b).is_none() && rings.hold(0, b).is_none());
            }
            assert!(rings.try_hold(1, b).is_some_and(|mut other| other.get().is_none()));
            drop(held);
            drop(rings.hold(0, b).unwrap());
            drop(rings.hold(0, A).unwrap());
            let held = rings.hold(0, b);
            assert!(rings.try_hold(0, A).is_none() && held.is_some());
        }
    }

    #[test]
    fn a_friend_is_one_no_longer_when_somebody_else_comes() {
        let rings = Rings::new(1, 1);
        befriend(&rings, 0, A);
        assert!(rings.put(0, None).is_none());
        assert_eq!(rings.cells[0].friend.load(Ordering::Relaxed), NOBODY);
        befriend(&rings, 0, A);
    }

    /// What is held is held by one: two handles, and the control side, count in turn.
    #[test]
    fn friends_and_others_exclude_each_other() {
        const TURNS: u64 = 200_000;
        let rings = Rings::new(1, 1);
        let inside = AtomicBool::new(false);
        let count = AtomicU32::new(0);
        let visit = |owner: Owner| {
            let Some(_held) = rings.try_hold(0, owner) else { return };
            assert!(!inside.load(Ordering::Relaxed));
            inside.store(true, Ordering::Relaxed);
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            inside.store(false, Ordering::Relaxed);
        };
        std::thread::scope(|s| {
            s.spawn(|| (0..TURNS).for_each(|_| visit(A)));
            s.spawn(|| {
                (0..TURNS / 2000).for_each(|_| {
                    visit(Owner::tx(0));
                    std::thread::sleep(std::time::Duration::from_micros(100));
                })
            });
            s.spawn(|| {
                (0..20).for_each(|_| {
                    rings.put(0, None);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                })
            });
        });
        assert!(count.load(Ordering::Relaxed) > 0);
    }
}
