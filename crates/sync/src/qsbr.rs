//! Quiescent-state-based reclamation: one epoch counter per reader, in its own cache line.
//!
//! What is published stays alive as long as a [`Guard`] does. A [`Reader`]'s guards end before its
//! next quiescent point, and the [`Writer`]'s before it frees memory: both take `&mut self`. A
//! guard takes no memory and no time, except in debug builds, where it knows its domain.

use crate::atomics::{Arc, AtomicBool, AtomicPtr, AtomicU64, Mutex, Ordering, fence};
use std::marker::PhantomData;

/// The epoch of a reader that is offline: it sleeps, or has not started, and holds nothing.
const OFFLINE: u64 = u64::MAX;

#[repr(align(64))]
struct Slot {
    seen: AtomicU64,
    alive: AtomicBool,
}

/// A set of readers, and retired memory that waits for them. A clone is the same domain.
#[derive(Clone)]
pub struct Domain {
    inner: Arc<Inner>,
}

struct Inner {
    epoch: AtomicU64,
    /// True: there is a [`Writer`].
    written: AtomicBool,
    slots: Mutex<Vec<Arc<Slot>>>,
    garbage: Mutex<Vec<(u64, Box<dyn Send>)>>,
}

/// A point in time that every reader must pass before memory retired before it may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grace(u64);

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

impl Domain {
    /// An empty domain.
    pub fn new() -> Self {
        Domain {
            inner: Arc::new(Inner {
                epoch: AtomicU64::new(1),
                written: AtomicBool::new(false),
                slots: Mutex::new(Vec::new()),
                garbage: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Registers a reader, which one thread at a time uses; it starts online.
    pub fn reader(&self) -> Reader {
        let slot = Arc::new(Slot {
            seen: AtomicU64::new(self.inner.epoch.load(Ordering::SeqCst)),
            alive: AtomicBool::new(true),
        });
        self.inner.slots.lock().unwrap().push(slot.clone());
        fence(Ordering::SeqCst);
        Reader { slot, domain: self.inner.clone() }
    }

    /// A number that no other existing domain has.
    #[inline]
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref::<Inner>(&self.inner).addr()
    }

    /// The writer of this domain, which frees memory. There is only one.
    ///
    /// # Panics
    ///
    /// The domain has a writer already.
    pub fn writer(&self) -> Writer {
        let taken = self.inner.written.swap(true, Ordering::AcqRel);
        assert!(!taken, "a domain has one writer");
        Writer { domain: self.clone() }
    }

    /// Starts a grace period: everything published before this call is seen by every reader once
    /// [`Domain::passed`] returns true.
    pub fn grace(&self) -> Grace {
        Grace(self.inner.epoch.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// True if every reader has passed a quiescent point (or gone offline) since `grace`.
    pub fn passed(&self, grace: Grace) -> bool {
        fence(Ordering::SeqCst);
        let mut slots = self.inner.slots.lock().unwrap();
        slots.retain(|s| s.alive.load(Ordering::Acquire));
        slots.iter().all(|s| s.seen.load(Ordering::Acquire) >= grace.0)
    }

    /// Gives a value to be dropped by [`Writer::reclaim`], when no reader can hold it any more.
    pub fn retire<T: Send + 'static>(&self, value: T) {
        let grace = self.grace();
        self.inner.garbage.lock().unwrap().push((grace.0, Box::new(value)));
    }
}

/// The one who frees memory that is retired in a [`Domain`]. It may read without being waited for,
/// as memory is freed only by its own call.
pub struct Writer {
    domain: Domain,
}

impl Writer {
    /// Its domain.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// A guard: what is published stays as long as it lives.
    #[inline]
    pub fn pin(&self) -> Guard<'_> {
        Guard::of(&self.domain.inner)
    }

    /// Drops retired values that no reader can hold; returns how many still wait.
    pub fn reclaim(&mut self) -> usize {
        let inner = &self.domain.inner;
        let mut garbage = std::mem::take(&mut *inner.garbage.lock().unwrap());
        if garbage.is_empty() {
            return 0;
        }
        fence(Ordering::SeqCst);
        let floor = {
            let slots = inner.slots.lock().unwrap();
            let alive = slots.iter().filter(|s| s.alive.load(Ordering::Acquire));
            alive.map(|s| s.seen.load(Ordering::Acquire)).min().unwrap_or(OFFLINE)
        };
        garbage.retain(|(epoch, _)| *epoch > floor);
        let left = garbage.len();
        inner.garbage.lock().unwrap().append(&mut garbage);
        left
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.domain.inner.written.store(false, Ordering::Release);
    }
}

/// Permits its owner to read values published in the domain, and to keep references for `'g`:
/// during that time no published value is freed. Made by [`Reader::pin`] and [`Writer::pin`].
///
/// ```
/// let domain = sync::Domain::new();
/// let (mut reader, list) = (domain.reader(), sync::Published::new(domain.clone(), [1, 2]));
/// let read = list.read(reader.pin());
/// assert_eq!(read[1], 2);
/// reader.quiescent();
/// ```
/// What was read does not outlive the quiescent point:
/// ```compile_fail,E0502
/// let domain = sync::Domain::new();
/// let (mut reader, list) = (domain.reader(), sync::Published::new(domain.clone(), [1, 2]));
/// let read = list.read(reader.pin());
/// reader.quiescent();
/// assert_eq!(read[1], 2);
/// ```
/// nor does it go to another thread:
/// ```compile_fail,E0277
/// let reader = sync::Domain::new().reader();
/// let guard = reader.pin();
/// std::thread::scope(|s| drop(s.spawn(move || drop(guard))));
/// ```
#[derive(Clone, Copy)]
pub struct Guard<'g> {
    #[cfg(debug_assertions)]
    domain: Option<&'g Inner>,
    /// Makes the guard neither Send nor Sync: its reader reads on its own thread only.
    of: PhantomData<(&'g Inner, *mut ())>,
}

impl<'g> Guard<'g> {
    #[inline]
    #[cfg_attr(not(debug_assertions), allow(unused_variables))]
    fn of(domain: &'g Inner) -> Self {
        Guard {
            #[cfg(debug_assertions)]
            domain: Some(domain),
            of: PhantomData,
        }
    }

    /// A guard for what no other thread can change for `'g`.
    ///
    /// # Safety
    /// It is used with such structures only: a lock is held without which nothing is unlinked from
    /// them, or no other thread has them.
    #[inline]
    pub unsafe fn unprotected() -> Self {
        Guard {
            #[cfg(debug_assertions)]
            domain: None,
            of: PhantomData,
        }
    }

    /// In debug builds [`Domain::id`] of its domain, if known; otherwise 0.
    #[inline]
    pub(crate) fn domain(self) -> usize {
        #[cfg(debug_assertions)]
        return self.domain.map_or(0, |own| std::ptr::from_ref(own).addr());
        #[cfg(not(debug_assertions))]
        0
    }

    /// In debug builds: panics if the guard is of another domain.
    #[inline]
    pub fn check(self, domain: &Domain) {
        debug_assert!([0, domain.id()].contains(&self.domain()), "a guard of another domain");
    }
}

/// The membership of one reader thread in a [`Domain`].
pub struct Reader {
    slot: Arc<Slot>,
    domain: Arc<Inner>,
}

impl Reader {
    /// A guard: what is published stays as long as it lives.
    ///
    /// # Panics
    ///
    /// The reader is offline.
    #[inline]
    pub fn pin(&self) -> Guard<'_> {
        assert!(self.is_online(), "an offline reader reads");
        Guard::of(&self.domain)
    }

    /// Passes a quiescent point: the reader holds no published reference now. Call it once per
    /// loop. The reader is online afterwards.
    #[inline]
    pub fn quiescent(&mut self) {
        let now = self.domain.epoch.load(Ordering::Acquire);
        if self.slot.seen.load(Ordering::Relaxed) != now {
            self.slot.seen.store(now, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Goes offline: the reader holds nothing until [`Reader::online`]. Call it before sleeping or
    /// blocking.
    pub fn offline(&mut self) {
        self.slot.seen.store(OFFLINE, Ordering::SeqCst);
    }

    /// Goes online again after [`Reader::offline`].
    pub fn online(&mut self) {
        self.slot.seen.store(self.domain.epoch.load(Ordering::SeqCst), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// True if the reader is online, so that grace periods wait for it.
    #[inline]
    pub fn is_online(&self) -> bool {
        self.slot.seen.load(Ordering::Relaxed) != OFFLINE
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.slot.alive.store(false, Ordering::Release);
    }
}

/// A pointer to an immutable value that one writer replaces and many readers follow.
pub struct Published<T: Send + Sync + 'static> {
    now: AtomicPtr<T>,
    domain: Domain,
}

impl<T: Send + Sync + 'static> Published<T> {
    /// Publishes a first value.
    pub fn new(domain: Domain, value: T) -> Self {
        Published { now: AtomicPtr::new(Box::into_raw(Box::new(value))), domain }
    }

    /// The current value.
    #[inline]
    pub fn read<'g>(&'g self, guard: Guard<'g>) -> &'g T {
        guard.check(&self.domain);
        // SAFETY: never null. What is replaced is retired, and freed by the writer when no guard of
        // the domain is left that was made before: readers' guards end before their next quiescent
        // point, the writer's before it frees. An unprotected guard's maker promised that nothing
        // is replaced. The value itself outlives `self`'s borrow.
        unsafe { &*self.now.load(Ordering::Acquire) }
    }

    /// Replaces the value; the old one is retired.
    pub fn publish(&self, value: T) {
        let old = self.now.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        self.domain.retire(Retired(old));
    }
}

/// A value that was replaced. It is kept as a pointer until it is dropped: a box would claim that
/// no other thread uses it, while readers still do.
struct Retired<T>(*mut T);

// SAFETY: it has the value, as a box would.
unsafe impl<T: Send> Send for Retired<T> {}

impl<T> Drop for Retired<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw, and no reader can hold it any more when
        // `Writer::reclaim` drops it.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: exclusive access; the pointer came from Box::into_raw.
        drop(unsafe { Box::from_raw(self.now.load(Ordering::Relaxed)) });
    }
}
