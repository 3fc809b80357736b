//! An array of a subtable's hash table: open addressing over chains of rules with the same masked
//! key.
//!
//! A slot is a pointer to the first rule of a chain, with 16 bits of the hash in the pointer's
//! unused upper bits, so a probe reads a rule only if it is almost certainly the right one. One
//! writer changes slots in place; readers need no lock. Growing makes new arrays that point to the
//! same chains.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use sync::Guard;

use crate::chain::Handle;
use crate::parts::{Array, Fill};
use crate::rule::Rule;

const TAG_SHIFT: u32 = 48;
const ADDRESS: usize = (1 << TAG_SHIFT) - 1;
/// The address of no rule: it marks a slot that was freed inside a probe run.
const FREED: usize = 1;
/// How many slots ahead rules are prefetched when all are read.
const PREFETCH_SLOTS: usize = 32;

/// Prefetches a rule, with the counts that an `Arc` has in front of it. Any address is allowed.
#[inline]
pub(crate) fn prefetch<T>(rule: *const Rule<T>) {
    for offset in [-16, 64, 120] {
        sync::prefetch(rule.cast::<i8>().wrapping_offset(offset));
    }
}

pub(crate) struct Slots<T> {
    slots: Box<[AtomicPtr<Rule<T>>]>,
    /// Entries are chains.
    fill: Fill,
}

/// The result of a writer's search for a chain.
pub(crate) struct Found<T> {
    /// The slot of the chain, or the slot for a new chain.
    pub slot: usize,
    /// First rule of the chain; null if there is none.
    pub head: *mut Rule<T>,
    /// If there is no chain: true if the slot was never used.
    pub fresh: bool,
}

impl<T: Send + Sync + 'static> Array for Slots<T> {
    /// The first rule of a chain.
    type Entry = *mut Rule<T>;

    fn new(places: usize) -> Self {
        let slots = (0..places).map(|_| AtomicPtr::new(null_mut())).collect();
        Slots { slots, fill: Fill::default() }
    }

    fn places(&self) -> usize {
        self.slots.len()
    }

    fn fill(&self) -> &Fill {
        &self.fill
    }

    fn for_each(&self, each: impl FnMut(*mut Rule<T>)) {
        self.heads().for_each(each);
    }

    fn put(&self, hash: u64, head: *mut Rule<T>) {
        let mask = self.slots.len() - 1;
        let empty = |slot: &usize| self.slots[*slot].load(Ordering::Relaxed).is_null();
        let slot = (0..=mask).map(|i| (hash as usize + i) & mask).find(empty);
        self.add(slot.unwrap_or(0), true, hash, head);
    }
}

impl<T: Send + Sync + 'static> Slots<T> {
    #[inline]
    fn tag(hash: u64) -> usize {
        ((hash >> TAG_SHIFT) as usize) << TAG_SHIFT
    }

    /// The first rule of the chain that `same` accepts.
    #[inline]
    pub fn find<'g>(
        &'g self,
        _: Guard<'g>,
        hash: u64,
        same: impl Fn(&Rule<T>) -> bool,
    ) -> Option<Handle<'g, T>> {
        let mask = self.slots.len() - 1;
        let tag = Self::tag(hash);
        for i in 0..=mask {
            let word = self.slots[(hash as usize + i) & mask].load(Ordering::Acquire);
            if word.is_null() {
                break;
            }
            if word.addr() & !ADDRESS == tag && word.addr() & ADDRESS != FREED {
                // SAFETY: a tagged slot holds a linked rule, which the guard keeps alive.
                let head = unsafe { Handle::new(word.map_addr(|a| a & ADDRESS)) };
                if head.is_some_and(|h| same(h.get())) {
                    return head;
                }
            }
        }
        None
    }

    /// Prefetches the first slot of a hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        sync::prefetch(&raw const self.slots[hash as usize & (self.slots.len() - 1)]);
    }

    /// Prefetches the rule in the first slot of a hash.
    #[inline]
    pub fn prefetch_rule(&self, hash: u64) {
        let word = self.slots[hash as usize & (self.slots.len() - 1)].load(Ordering::Acquire);
        prefetch(word.map_addr(|a| a & ADDRESS));
    }

    /// As [`Slots::find`], for the writer: also says where a new chain goes. The array must have an
    /// unused slot.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn locate(&self, hash: u64, same: impl Fn(&Rule<T>) -> bool) -> Found<T> {
        let mask = self.slots.len() - 1;
        let tag = Self::tag(hash);
        let mut free = None;
        for i in 0..=mask {
            let slot = (hash as usize + i) & mask;
            let word = self.slots[slot].load(Ordering::Relaxed);
            if word.is_null() {
                let found = free.unwrap_or((slot, true));
                return Found { slot: found.0, head: null_mut(), fresh: found.1 };
            }
            if word.addr() & ADDRESS == FREED {
                free.get_or_insert((slot, false));
            } else if word.addr() & !ADDRESS == tag {
                let head = word.map_addr(|a| a & ADDRESS);
                // SAFETY: rules in slots are alive until the writer unlinks and retires them.
                if same(unsafe { &*head }) {
                    return Found { slot, head, fresh: false };
                }
            }
        }
        let (slot, fresh) = free.unwrap_or((0, false));
        Found { slot, head: null_mut(), fresh }
    }

    /// Sets the first rule of a slot's chain.
    pub fn store(&self, slot: usize, hash: u64, head: *mut Rule<T>) {
        debug_assert_eq!(head.addr() & !ADDRESS, 0);
        let word = head.map_addr(|a| a | Self::tag(hash));
        self.slots[slot].store(word, Ordering::Release);
    }

    /// Puts a chain into a slot; `fresh`: the slot was never used.
    pub fn add(&self, slot: usize, fresh: bool, hash: u64, head: *mut Rule<T>) {
        self.store(slot, hash, head);
        self.fill.add(fresh);
    }

    /// Frees a slot.
    pub fn clear(&self, slot: usize) {
        let next = (slot + 1) & (self.slots.len() - 1);
        let last = self.slots[next].load(Ordering::Relaxed).is_null();
        let word = if last { null_mut() } else { std::ptr::without_provenance_mut(FREED) };
        self.slots[slot].store(word, Ordering::Release);
        // A slot that no search passes counts as never used.
        self.fill.sub(last);
    }

    /// The first rules of all chains.
    pub fn chains<'g>(&'g self, _: Guard<'g>) -> impl Iterator<Item = Handle<'g, T>> {
        // SAFETY: linked rules, which the guard keeps alive.
        self.heads().filter_map(|head| unsafe { Handle::new(head) })
    }

    /// The addresses of the first rules of all chains.
    fn heads(&self) -> impl Iterator<Item = *mut Rule<T>> {
        let address = |s: &AtomicPtr<Rule<T>>| s.load(Ordering::Acquire).map_addr(|a| a & ADDRESS);
        self.slots.iter().enumerate().filter_map(move |(i, s)| {
            if let Some(later) = self.slots.get(i + PREFETCH_SLOTS) {
                prefetch(address(later));
            }
            let head = address(s);
            (head.addr() > FREED).then_some(head)
        })
    }
}
