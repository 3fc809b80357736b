//! The rings of the guest that is served, as long as they are ours.
//!
//! A ring is held by whoever moves packets on it, for one burst. Taking the rings away therefore
//! waits for bursts under way and for nothing else: no lock of the library is held here.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::{Misdeeds, Moved, Ring};

/// Looks at a ring that another thread sends on: about as long as a burst takes. A thread that has it
/// for longer has lost its core, and waiting would stop all our ports.
const PATIENCE: usize = 256;

/// A ring of the guest's, and how to notify it.
pub(crate) struct OwnRing {
    pub ring: Ring,
    /// The guest's; belongs to the library. Not negative if there is one.
    pub call_fd: RawFd,
    /// Misdeeds that were counted at the port already.
    pub told: Misdeeds,
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

    /// Does what follows a burst.
    #[inline]
    pub fn after(&self, moved: &Moved) {
        if moved.call && self.call_fd >= 0 {
            self.call();
        }
    }
}

#[repr(align(128))]
struct Cell {
    held: AtomicBool,
    ring: UnsafeCell<Option<OwnRing>>,
}

/// One place per ring of a guest.
pub(crate) struct Rings(Box<[Cell]>);

// SAFETY: a cell's content is only touched by the thread that set `held`.
unsafe impl Sync for Rings {}

/// A held ring, or the empty place of one.
pub(crate) struct Held<'a>(&'a Cell);

impl Held<'_> {
    #[inline]
    pub fn get(&mut self) -> Option<&mut OwnRing> {
        // SAFETY: held by us alone, and only one reference at a time.
        unsafe { &mut *self.0.ring.get() }.as_mut()
    }

    fn replace(&mut self, ring: Option<OwnRing>) -> Option<OwnRing> {
        // SAFETY: as above.
        std::mem::replace(unsafe { &mut *self.0.ring.get() }, ring)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}

impl Rings {
    pub fn new(n: usize) -> Rings {
        let cell = |_| Cell { held: AtomicBool::new(false), ring: UnsafeCell::new(None) };
        Rings((0..n).map(cell).collect())
    }

    /// Holds ring `i` if nobody else does.
    #[inline]
    pub fn try_hold(&self, i: usize) -> Option<Held<'_>> {
        let cell = &self.0[i];
        (!cell.held.swap(true, Ordering::Acquire)).then(|| Held(cell))
    }

    /// Holds ring `i`, unless another thread keeps it for longer than a burst should take.
    #[inline]
    pub fn hold(&self, i: usize) -> Option<Held<'_>> {
        for _ in 0..PATIENCE {
            if !self.0[i].held.load(Ordering::Relaxed)
                && let Some(held) = self.try_hold(i)
            {
                return Some(held);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Takes every ring away; when this returns nobody uses one.
    pub fn clear(&self, mut taken: impl FnMut(usize, OwnRing)) {
        for i in 0..self.0.len() {
            if let Some(ring) = self.put(i, None) {
                taken(i, ring);
            }
        }
    }

    /// Puts a ring in its place; returns what was there.
    pub fn put(&self, i: usize, ring: Option<OwnRing>) -> Option<OwnRing> {
        loop {
            if let Some(mut held) = self.hold(i) {
                return held.replace(ring);
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let rings = Rings::new(2);
        let held = rings.try_hold(0).unwrap();
        for _ in 0..2 {
            assert!(rings.try_hold(0).is_none() && rings.hold(0).is_none());
        }
        assert!(rings.try_hold(1).is_some_and(|mut other| other.get().is_none()));
        drop(held);
        assert!(rings.hold(0).is_some());
    }
}
