//! The rings of the guest that is served.
//!
//! A ring is held by the thread that moves packets on it, for one burst, and by the control side
//! while it replaces the ring ([`sync::Place`]). To take the rings away is therefore to wait for
//! current bursts only.

use crate::call;
use crate::call_timer::CallTimer;
use crate::cost::RingCost;
use crate::dma_map::DmaMap;
use crate::violation::Violation;
use packet::Pool;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sync::waits::{self, Rest};
use sync::{Held, Place};
use vhost::{Ring, RingErrors};

/// Attempts to hold a ring on which another thread sends: together about as long as a burst takes.
/// A thread that holds the ring for longer was preempted, and waiting for it would stop all our
/// ports.
const ATTEMPTS_MAX: usize = 256;

/// The eventfd of a front-end that notifies its guest.
pub(crate) struct Call(OwnedFd);

impl Call {
    /// Takes a descriptor, which must be an eventfd.
    pub fn new(fd: OwnedFd) -> Result<Call, Violation> {
        if call::is_eventfd(fd.as_raw_fd()) { Ok(Call(fd)) } else { Err(Violation::Call) }
    }
}

/// A ring of the guest, and how to notify the guest.
pub(crate) struct OwnRing {
    pub ring: Ring,
    /// How the guest is notified; None if the guest polls.
    call: Option<Arc<Call>>,
    /// Violations already counted at the port.
    pub reported: Box<RingErrors>,
    /// Decides which calls on the ring are timed.
    pub timer: CallTimer,
    /// What the CPU's copies on this ring cost.
    pub cost: RingCost,
    /// The guest's memory as engines use it; None: all engines reach it.
    pub dma: Option<Arc<DmaMap>>,
    /// Unique among all rings, also former ones.
    pub id: u64,
    /// The ring will soon be taken away: no more copies are listed.
    pub closing: bool,
    /// Pool to which packets that are not delivered return.
    pub pool: Option<Arc<dyn Pool>>,
}

fn new_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl OwnRing {
    pub fn new(ring: Ring, call: Option<Arc<Call>>, dma: Option<Arc<DmaMap>>) -> OwnRing {
        OwnRing {
            ring,
            call,
            reported: Box::default(),
            timer: CallTimer::default(),
            cost: RingCost::default(),
            dma,
            id: new_id(),
            closing: false,
            pool: None,
        }
    }

    /// Frees packets that were taken and not delivered: the guest still has their buffers. No
    /// copies are in flight.
    pub fn abandon(&mut self) {
        let mut packets = Vec::new();
        self.ring.abandon(&mut packets);
        if let Some(pool) = &self.pool {
            pool.free(&packets);
        }
    }

    /// Notifies the guest of the published descriptors, if it wants that. Never waits. The
    /// caller executes a full fence after it published them.
    #[inline]
    pub fn notify(&mut self) {
        if self.ring.needs_notification()
            && let Some(call) = &self.call
        {
            // The descriptor was checked, and an eventfd remains one.
            let _ = call::signal(call.0.as_raw_fd());
        }
    }
}

/// One place per ring of a guest.
pub(crate) struct Rings {
    places: Box<[Place<OwnRing>]>,
    /// On after the guest's memory had a thread wait, also when another front-end connects.
    rest: Rest,
}

/// A ring, or its empty place, that this thread holds until this is dropped.
pub(crate) struct HeldRing<'a> {
    held: Held<'a, OwnRing>,
    began: Option<u64>,
    rest: &'a Rest,
}

impl HeldRing<'_> {
    /// The ring, if there is one.
    #[inline]
    pub fn get(&mut self) -> Option<&mut OwnRing> {
        self.held.get()
    }
}

impl Drop for HeldRing<'_> {
    #[inline]
    fn drop(&mut self) {
        self.rest.ended(self.began);
    }
}

impl Rings {
    /// Empty places for `n` rings.
    pub fn new(n: usize) -> Rings {
        Rings { places: (0..n).map(|_| Place::default()).collect(), rest: Rest::default() }
    }

    /// True if no packets are to be moved on any ring at present.
    #[inline]
    pub fn rest(&self) -> bool {
        self.rest.is_on()
    }

    /// Holds ring `i`, or its empty place, unless another thread holds it.
    #[inline]
    pub fn try_hold(&self, i: usize) -> Option<HeldRing<'_>> {
        let held = self.places[i].try_hold()?;
        Some(HeldRing { held, began: waits::begin(), rest: &self.rest })
    }

    /// Holds ring `i`, unless another thread holds it for longer than a burst should take.
    #[inline]
    pub fn hold(&self, i: usize) -> Option<HeldRing<'_>> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(held) = self.try_hold(i) {
                return Some(held);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Puts a ring in place `i`; returns the ring that was there.
    pub fn put(&self, i: usize, ring: Option<OwnRing>) -> Option<OwnRing> {
        self.places[i].put(ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Writing to it may block the thread that notifies.
    #[test]
    fn a_call_descriptor_that_is_no_eventfd_is_a_violation() {
        let (_reader, writer) = std::io::pipe().unwrap();
        assert_eq!(Call::new(writer.into()).err(), Some(Violation::Call));
        assert!(Call::new(crate::memory::event().unwrap()).is_ok());
    }

    #[test]
    fn a_ring_has_one_holder_and_the_others_stay_free() {
        let rings = Rings::new(2);
        let mut held = rings.try_hold(0).unwrap();
        assert!(held.get().is_none());
        assert!(rings.try_hold(0).is_none() && rings.hold(0).is_none());
        assert!(rings.try_hold(1).is_some());
        drop(held);
        assert!(rings.hold(0).is_some());
        assert!(rings.put(0, None).is_none());
    }

    /// The control side takes a ring away only between bursts.
    #[test]
    fn put_waits_for_who_holds_a_ring() {
        let rings = Rings::new(1);
        let held = rings.try_hold(0).unwrap();
        let taken = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                rings.put(0, None);
                taken.store(true, Ordering::Release);
            });
            (0..1000).for_each(|_| std::thread::yield_now());
            assert!(!taken.load(Ordering::Acquire));
            drop(held);
        });
    }
}
