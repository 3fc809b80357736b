//! Chains: rules that share a place, by falling priority; of equal priority the newest is first.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::rule::Rule;

/// A rule that is linked, or was when a guard of `'a` was made, and was made by `Arc::into_raw`. It
/// is alive for `'a`, and so are the rules behind it.
pub(crate) struct Handle<'a, T> {
    rule: NonNull<Rule<T>>,
    alive: PhantomData<&'a Rule<T>>,
}

impl<T> Clone for Handle<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<'_, T> {}

impl<T> std::ops::Deref for Handle<'_, T> {
    type Target = Rule<T>;

    #[inline]
    fn deref(&self) -> &Rule<T> {
        self.get()
    }
}

impl<'a, T> Handle<'a, T> {
    /// A handle of a linked rule; None for null.
    ///
    /// # Safety
    ///
    /// As [`Handle`] demands.
    #[inline]
    pub unsafe fn new(rule: *mut Rule<T>) -> Option<Self> {
        Some(Handle { rule: NonNull::new(rule)?, alive: PhantomData })
    }

    /// The rule.
    #[inline]
    pub fn get(self) -> &'a Rule<T> {
        // SAFETY: alive for 'a, as the maker of the handle promised.
        unsafe { self.rule.as_ref() }
    }

    /// The rule's address.
    #[inline]
    pub fn pointer(self) -> *mut Rule<T> {
        self.rule.as_ptr()
    }

    /// The next rule of the chain.
    #[inline]
    pub fn next(self) -> Option<Self> {
        // SAFETY: a rule that is linked now, or was when this one was unlinked, which is not before
        // the guard was made.
        unsafe { Handle::new(self.get().next.load(Ordering::Acquire)) }
    }

    /// A counted reference to the rule.
    pub fn share(self) -> Arc<Rule<T>> {
        let rule = self.rule.as_ptr();
        // SAFETY: made by Arc::into_raw and alive, so at least one strong count exists.
        unsafe {
            Arc::increment_strong_count(rule);
            Arc::from_raw(rule)
        }
    }
}

/// The rules of a chain.
#[inline]
pub(crate) fn chain<'a, T: 'a>(head: Option<Handle<'a, T>>) -> impl Iterator<Item = Handle<'a, T>> {
    let mut at = head;
    std::iter::from_fn(move || {
        let handle = at?;
        at = handle.next();
        Some(handle)
    })
}

/// Links a rule at its place in the chain. Returns the chain's first rule, which the caller
/// publishes if it is another.
///
/// # Safety
///
/// `head` is null or a linked rule; the caller is the only writer.
pub(crate) unsafe fn link<T>(head: *mut Rule<T>, rule: Arc<Rule<T>>) -> *mut Rule<T> {
    let priority = rule.priority();
    let new = Arc::into_raw(rule).cast_mut();
    // SAFETY: linked rules are alive.
    let last = chain(unsafe { Handle::new(head) }).take_while(|r| r.priority() > priority).last();
    // SAFETY: `new` was an Arc a moment ago and is not reclaimed.
    let new_next = unsafe { &(*new).next };
    let next = last.map_or(head, |l| l.next.load(Ordering::Relaxed));
    new_next.store(next, Ordering::Relaxed);
    match last {
        Some(last) => {
            last.next.store(new, Ordering::Release);
            head
        }
        None => new,
    }
}

/// Unlinks a rule. Returns the chain's reference to it, and the chain's first rule, which the
/// caller publishes if it is another. None: the rule is not in the chain.
///
/// # Safety
///
/// As [`link`].
#[allow(clippy::type_complexity)]
pub(crate) unsafe fn unlink<T>(
    head: *mut Rule<T>,
    rule: &Rule<T>,
) -> Option<(Arc<Rule<T>>, *mut Rule<T>)> {
    let mut before: Option<Handle<'_, T>> = None;
    // SAFETY: linked rules are alive.
    let at = chain(unsafe { Handle::new(head) }).find(|r| {
        let here = std::ptr::eq(r.get(), rule);
        before = if here { before } else { Some(*r) };
        here
    })?;
    let next = at.next.load(Ordering::Relaxed);
    let (target, head) = match before {
        Some(before) => (before.next.swap(next, Ordering::AcqRel), head),
        None => (head, next),
    };
    // SAFETY: `target` came from Arc::into_raw in `link`, and is unlinked when the caller has
    // published.
    Some((unsafe { Arc::from_raw(target) }, head))
}

/// Drops the chain's references to all its rules.
///
/// # Safety
///
/// `head` is null or a linked rule; no thread reads or writes the chain any more.
pub(crate) unsafe fn give_up<T>(head: *mut Rule<T>) {
    let mut rule = head;
    while !rule.is_null() {
        // SAFETY: linked rules hold one strong count each, given up here.
        let owned = unsafe { Arc::from_raw(rule) };
        rule = owned.next.load(Ordering::Relaxed);
    }
}
