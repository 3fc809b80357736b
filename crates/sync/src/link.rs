//! Pointers inside of published structures.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::qsbr::{Domain, Guard};

/// Null, or a pointer to a boxed value that readers follow. Dropping a link leaks its value: the
/// structure that contains the link frees it ([`Link::take_mut`]).
pub struct Link<T>(AtomicPtr<T>);

impl<T> Default for Link<T> {
    fn default() -> Self {
        Link::null()
    }
}

impl<T> Link<T> {
    /// A link to nothing.
    pub const fn null() -> Self {
        Link(AtomicPtr::new(null_mut()))
    }

    /// The value.
    #[inline]
    pub fn get<'g>(&'g self, _: Guard<'g>) -> Option<&'g T> {
        // SAFETY: what was put here is a live box, which is retired when it is taken out (or, by
        // `store`'s promise, lives as long as if it were): not freed while the guard lives.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// True if the link is to nothing.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.0.load(Ordering::Acquire).is_null()
    }

    /// Sets the value, if there is none.
    ///
    /// # Errors
    ///
    /// There is a value already; the new one is returned.
    pub fn fill(&self, value: Box<T>) -> Result<(), Box<T>> {
        let new = Box::into_raw(value);
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        match self.0.compare_exchange(null_mut(), new, done, failed) {
            Ok(_) => Ok(()),
            // SAFETY: made above, and not given away.
            Err(_) => Err(unsafe { Box::from_raw(new) }),
        }
    }

    /// Removes the value, to be freed when no reader can hold it. False: there is none.
    ///
    /// # Safety
    ///
    /// No other link points at the value, and its readers' guards are of this domain.
    pub unsafe fn retire(&self, domain: &Domain) -> bool
    where
        T: Send + 'static,
    {
        let old = self.0.swap(null_mut(), Ordering::AcqRel);
        if old.is_null() {
            return false;
        }
        // SAFETY: a box by `fill` or `store`, unlinked now, and no other link's.
        domain.retire(unsafe { Box::from_raw(old) });
        true
    }

    /// The pointer, for writers.
    #[inline]
    pub fn load(&self) -> *mut T {
        self.0.load(Ordering::Acquire)
    }

    /// Sets the pointer.
    ///
    /// # Safety
    /// It is null or a live value's, made by `Box::into_raw`; once no link points at it any more,
    /// it is freed by [`Domain::retire`], of the domain whose guards readers have, or not at all.
    #[inline]
    pub unsafe fn store(&self, to: *mut T) {
        self.0.store(to, Ordering::Release);
    }

    /// Removes the value of a link that no other thread uses.
    ///
    /// # Safety
    ///
    /// No other link points at the value.
    pub unsafe fn take_mut(&mut self) -> Option<Box<T>> {
        let old = std::mem::replace(self.0.get_mut(), null_mut());
        // SAFETY: a box by `fill` or `store`, and no other link's.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

/// A place for one boxed value at a time: any thread fills it, readers follow it, and a value that
/// is removed is freed when no reader can hold it.
pub struct Slot<T> {
    link: Link<T>,
    domain: OneDomain,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { link: Link::null(), domain: OneDomain::default() }
    }
}

impl<T> Slot<T> {
    /// The value.
    #[inline]
    pub fn get<'g>(&'g self, guard: Guard<'g>) -> Option<&'g T> {
        self.domain.see(guard.domain());
        self.link.get(guard)
    }

    /// Sets the value, if there is none.
    ///
    /// # Errors
    ///
    /// There is a value already; the new one is returned.
    pub fn fill(&self, value: Box<T>) -> Result<(), Box<T>> {
        self.link.fill(value)
    }

    /// Removes the value, to be freed when no reader of the domain can hold it.
    pub fn clear(&self, domain: &Domain)
    where
        T: Send + 'static,
    {
        self.domain.see(domain.id());
        // SAFETY: only `fill` sets values here, so no other link points at it.
        unsafe { self.link.retire(domain) };
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        // SAFETY: as in `clear`.
        drop(unsafe { self.link.take_mut() });
    }
}

/// In debug builds: which domain a slot's readers and its value's end belong to.
#[derive(Default)]
struct OneDomain(#[cfg(debug_assertions)] std::sync::atomic::AtomicUsize);

impl OneDomain {
    /// In debug builds: panics if another domain was seen before. 0: unknown.
    #[inline]
    #[cfg_attr(not(debug_assertions), allow(unused_variables))]
    fn see(&self, domain: usize) {
        #[cfg(debug_assertions)]
        if domain != 0 {
            let seen = self.0.swap(domain, Ordering::Relaxed);
            assert!(seen == 0 || seen == domain, "a guard of another domain");
        }
    }
}
