//! A place for a value that one thread at a time uses.

use crate::atomics::{AtomicBool, Ordering, UnsafeCell, wait};

/// A place for one value. A thread holds the place to use or replace the value; it has one holder
/// at most, whatever the thread and the purpose.
///
/// Holding costs one exchange and one store, measured as no dearer than a lock biased to one
/// thread.
#[repr(align(128))]
pub struct Place<T> {
    /// Set by the holder, and only read by others.
    held: AtomicBool,
    /// Accessed by the holder only.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is reached through `Held` only, of which there is one at a time; the exchange
// that makes one sees all that the one before did.
unsafe impl<T: Send> Sync for Place<T> {}

/// A held place; it is free again when this is dropped.
pub struct Held<'a, T> {
    place: &'a Place<T>,
}

impl<T> Default for Place<T> {
    fn default() -> Self {
        Place { held: AtomicBool::new(false), value: UnsafeCell::new(None) }
    }
}

impl<T> Place<T> {
    /// Holds the place; None: another thread holds it.
    #[inline]
    pub fn try_hold(&self) -> Option<Held<'_, T>> {
        // The load keeps the line shared while another thread holds the place.
        if self.held.load(Ordering::Relaxed) { None } else { self.exchange() }
    }

    #[inline]
    fn exchange(&self) -> Option<Held<'_, T>> {
        let held = self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        held.is_ok().then(|| Held { place: self })
    }

    /// Replaces the value, and returns the old one, which no thread uses any more. Waits for the
    /// holder of the place.
    pub fn put(&self, value: Option<T>) -> Option<T> {
        let mut attempts = 0;
        let mut held = loop {
            match self.exchange() {
                Some(held) => break held,
                None => attempts += 1,
            }
            wait(attempts);
        };
        std::mem::replace(held.value(), value)
    }
}

impl<T> Held<'_, T> {
    /// The value, if there is one.
    #[inline]
    pub fn get(&mut self) -> Option<&mut T> {
        self.value().as_mut()
    }

    #[inline]
    fn value(&mut self) -> &mut Option<T> {
        // SAFETY: the place is held by `self` alone, which is borrowed as long as the result.
        self.place.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.place.held.store(false, Ordering::Release);
    }
}
