//! Quiescent-state-based reclamation: one epoch counter per reader, in its own cache line.

use crate::atomics::{Arc, AtomicBool, AtomicPtr, AtomicU64, Mutex, Ordering, fence};

/// An epoch that means "this reader holds nothing" (offline: asleep, or not started).
const OFFLINE: u64 = u64::MAX;

#[repr(align(64))]
struct Slot {
    seen: AtomicU64,
    alive: AtomicBool,
}

/// A set of readers and the garbage that waits for them. Cheap to clone (shared).
#[derive(Clone)]
pub struct Domain {
    inner: Arc<Inner>,
}

struct Inner {
    epoch: AtomicU64,
    slots: Mutex<Vec<Arc<Slot>>>,
    garbage: Mutex<Vec<(u64, Box<dyn Send>)>>,
}

/// A point in time that every reader must pass before retired memory may go.
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
                slots: Mutex::new(Vec::new()),
                garbage: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Registers the calling thread as a reader; it starts online.
    pub fn reader(&self) -> Reader {
        let slot = Arc::new(Slot {
            seen: AtomicU64::new(self.inner.epoch.load(Ordering::SeqCst)),
            alive: AtomicBool::new(true),
        });
        self.inner.slots.lock().unwrap().push(slot.clone());
        fence(Ordering::SeqCst);
        Reader { slot, domain: self.inner.clone() }
    }

    /// Starts a grace period: everything published before this call is seen by every reader once
    /// [`Domain::passed`] says so.
    pub fn grace(&self) -> Grace {
        Grace(self.inner.epoch.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Has every reader passed a quiescent point (or gone offline) since `grace`?
    pub fn passed(&self, grace: Grace) -> bool {
        fence(Ordering::SeqCst);
        let mut slots = self.inner.slots.lock().unwrap();
        slots.retain(|s| s.alive.load(Ordering::Acquire));
        slots.iter().all(|s| s.seen.load(Ordering::Acquire) >= grace.0)
    }

    /// Drops `value` on a later [`Domain::reclaim`], when no reader can hold it any more.
    pub fn retire<T: Send + 'static>(&self, value: T) {
        let grace = self.grace();
        self.inner.garbage.lock().unwrap().push((grace.0, Box::new(value)));
    }

    /// Drops what all readers are done with; returns how many objects still wait.
    pub fn reclaim(&self) -> usize {
        let mut garbage = std::mem::take(&mut *self.inner.garbage.lock().unwrap());
        if garbage.is_empty() {
            return 0;
        }
        fence(Ordering::SeqCst);
        let floor = {
            let slots = self.inner.slots.lock().unwrap();
            let alive = slots.iter().filter(|s| s.alive.load(Ordering::Acquire));
            alive.map(|s| s.seen.load(Ordering::Acquire)).min().unwrap_or(OFFLINE)
        };
        garbage.retain(|(epoch, _)| *epoch > floor);
        let left = garbage.len();
        self.inner.garbage.lock().unwrap().append(&mut garbage);
        left
    }
}

/// One reader thread's membership in a [`Domain`].
pub struct Reader {
    slot: Arc<Slot>,
    domain: Arc<Inner>,
}

impl Reader {
    /// "I hold no published reference now." Call once per loop.
    #[inline]
    pub fn quiescent(&self) {
        let now = self.domain.epoch.load(Ordering::Acquire);
        if self.slot.seen.load(Ordering::Relaxed) != now {
            self.slot.seen.store(now, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// Holds nothing until [`Reader::online`]: call before sleeping or blocking.
    pub fn offline(&self) {
        self.slot.seen.store(OFFLINE, Ordering::SeqCst);
    }

    /// Back from [`Reader::offline`].
    pub fn online(&self) {
        self.slot.seen.store(self.domain.epoch.load(Ordering::SeqCst), Ordering::SeqCst);
        fence(Ordering::SeqCst);
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
    ///
    /// # Safety
    /// The caller is a registered online reader of the domain and drops the reference before its
    /// next quiescent point; or it is the only thread that calls [`Published::publish`].
    #[inline]
    pub unsafe fn read(&self) -> &T {
        // SAFETY: never null; retired values outlive every reader's current epoch.
        unsafe { &*self.now.load(Ordering::Acquire) }
    }

    /// Replaces the value; the old one is retired.
    pub fn publish(&self, value: T) {
        let old = self.now.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        self.domain.retire(Retired(old));
    }
}

/// A value that was replaced. It stays a pointer until it is dropped: a box would say that nothing
/// else has it, while readers still do.
struct Retired<T>(*mut T);

// SAFETY: it has the value, as a box would.
unsafe impl<T: Send> Send for Retired<T> {}

impl<T> Drop for Retired<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw, and no reader can hold it any more when
        // `Domain::reclaim` drops it.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: exclusive access; the pointer came from Box::into_raw.
        drop(unsafe { Box::from_raw(self.now.load(Ordering::Relaxed)) });
    }
}
