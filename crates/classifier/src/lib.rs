//! The classifier of OpenFlow flow tables: which rule of the highest priority matches a key, and
//! which of the key's bits decided that.
//!
//! *Place*: flow row. *Knows*: keys, masks, priorities, versions. *Does not know*: OpenFlow, what
//! a rule's value means, packets.
//!
//! The scheme is tuple space search. Rules with the same mask form a *subtable*, a hash table of
//! masked keys; with many masks, rules of several share one with a coarser mask (`merge`). Rules
//! about nothing but IPv4 prefixes, protocol and ports stand in tries of prefixes instead
//! (`prefix_trie`, `node`, `search`). A lookup tries the subtables and the prefix trie by falling
//! maximum priority and stops when no later one can win. One writer (serialised by a lock that
//! readers never see) changes the tables in place; readers follow pointers only, under the
//! quiescent-state rules of [`sync::Domain`].
//!
//! # Versions
//! A reader looks up *at a version*: it sees the rules with `add <= version < remove`. A change of
//! many rules is made one by one under a version that no thread reads yet and becomes visible when
//! the caller publishes that version. A rule that was replaced must stay linked until no reader
//! uses an older version: set its remove version, publish, wait for a grace period, then
//! [`Classifier::remove`].
//!
//! # Un-wildcarding
//! [`Classifier::lookup`] marks every bit its outcome depended on: any key that agrees on the
//! marked bits gets the same outcome. Subtables compare a key in stages (metadata, L2, L3, L4) and
//! a miss marks only the bits of the stages compared so far; tries of the IPv4 prefixes in use show
//! when a few address bits suffice. Marking more than necessary is allowed (it makes datapath
//! flows narrower, not wrong); marking less never is.
//!
//! # Invariants
//! - Inserting, removing and finding an exact rule cost the same in a table of a hundred rules and
//!   of a million (hash arrays grow by doubling, which is amortised).
//! - A rule of a new mask, or of a new highest priority of its mask, has a piece of the list of
//!   subtables copied, and the row of pieces ([`list`]), not the list.
//! - A reader that starts after a rule was linked at a version it sees finds that rule or a better
//!   one: a subtable's maximum is published before the rule, and lowered after removal.
//! - [`Linear`] defines what is right.
#![deny(unsafe_op_in_unsafe_fn)]

mod batch;
mod chain;
mod filter;
mod hash;
mod linear;
mod list;
mod merge;
mod node;
mod parts;
mod prefix_trie;
mod prefixes;
mod priorities;
mod rule;
mod search;
mod slots;
mod stage;
mod subtable;
mod trie;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use flow::{Key, Mask};
use sync::{Domain, Guard, Published};

pub use batch::BATCH;
use chain::Handle;
pub use linear::Linear;
use list::{List, Listed};
use prefix_trie::PrefixTrie;
use prefixes::{Prefixes, Tries};
use priorities::Priorities;
use rule::Shape;
pub use rule::{NEVER, Rule};
use subtable::{Owned, Subtable, Wanted};

struct Writer<T: Send + Sync + 'static> {
    by_mask: HashMap<Shape, Owned<T>>,
    /// Priorities of the rules in the prefix trie.
    priorities: Priorities,
    serial: u64,
    /// Number of entries and pieces of published lists that were copied for later lists.
    copied: usize,
    /// Number of rules in subtables whose mask is not the rule's own.
    merged: usize,
}

impl<T: Send + Sync + 'static> Writer<T> {
    /// A guard for reading this table. The caller has the writer's lock.
    fn guard(&self) -> Guard<'_> {
        // SAFETY: the table is changed only under the lock, and not while this is borrowed.
        unsafe { Guard::unprotected() }
    }

    /// The mask of the subtable in which a new rule is linked.
    fn subtable_for(&self, rule: &Rule<T>) -> Shape {
        let own = rule.shape();
        if self.by_mask.contains_key(&own) || self.by_mask.len() < merge::UNMERGED_SUBTABLES_MAX {
            return own;
        }
        let key = rule.key();
        let has_room = |s: &Shape| self.by_mask.get(s).is_none_or(|o| !o.is_full(&key));
        merge::coarser_masks(&rule.mask()).iter().map(Shape::of).find(has_room).unwrap_or(own)
    }

    /// Masks of the subtables in which a rule with this mask may be.
    fn subtables_for(&self, own: Shape, mask: &Mask) -> Vec<Shape> {
        let mut all = vec![own];
        if self.merged > 0 {
            all.extend(merge::coarser_masks(mask).iter().map(Shape::of));
        }
        all
    }
}

/// The table's reference to a rule that it has unlinked and that readers may still use.
/// [`Unlinked::retire`] drops it; otherwise it is leaked.
#[must_use = "readers may still use the rule"]
pub struct Unlinked<T>(ManuallyDrop<Arc<Rule<T>>>);

impl<T: Send + Sync + 'static> Unlinked<T> {
    /// Drops references when no reader can use their rules. `domain`: that of the tables.
    pub fn retire(all: Vec<Self>, domain: &Domain) {
        let handles = all.into_iter().map(|unlinked| ManuallyDrop::into_inner(unlinked.0));
        domain.retire(handles.collect::<Vec<_>>());
    }
}

/// Number of subtables, those with the highest priorities, that are prefetched ahead of lookups.
const PREPARED_SUBTABLES: usize = 4;

/// A table of prioritised rules; see the crate's documentation.
///
/// What a change leaves behind waits in the domain and keeps the domain itself alive: call
/// [`sync::Writer::reclaim`] now and then, and once more after dropping the last table.
///
/// All methods without a [`Guard`] take the writer's lock and are meant for control threads; those
/// with one take no lock and never wait.
pub struct Classifier<T: Send + Sync + 'static> {
    list: Published<List<T>>,
    prefix_trie: PrefixTrie<T>,
    tries: Tries,
    writer: Mutex<Writer<T>>,
    rules: AtomicUsize,
    /// True: rules may be in the prefix trie.
    by_prefix_trie: bool,
    domain: Domain,
}

impl<T: Send + Sync + 'static> Classifier<T> {
    /// An empty table whose readers are registered in `domain`.
    pub fn new(domain: Domain) -> Self {
        Classifier {
            list: Published::new(domain.clone(), List::default()),
            prefix_trie: PrefixTrie::default(),
            tries: Tries::new(&domain),
            writer: Mutex::new(Writer {
                by_mask: HashMap::new(),
                priorities: Priorities::default(),
                serial: 0,
                copied: 0,
                merged: 0,
            }),
            rules: AtomicUsize::new(0),
            by_prefix_trie: true,
            domain,
        }
    }

    /// As [`Classifier::new`], with all rules in subtables, so that
    /// [`Classifier::each_in_subtables`] finds them.
    pub fn without_prefix_trie(domain: Domain) -> Self {
        Classifier { by_prefix_trie: false, ..Self::new(domain) }
    }

    /// Number of linked rules of all versions.
    pub fn len(&self) -> usize {
        self.rules.load(Ordering::Relaxed)
    }

    /// True if no rule is linked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of places that a lookup may have to visit: subtables, and the prefix trie.
    pub fn subtables(&self) -> usize {
        let writer = self.lock();
        writer.by_mask.len() + usize::from(writer.priorities.max().is_some())
    }

    /// Heap memory of hash arrays and linked rules, bytes, without what values point to.
    pub fn bytes(&self) -> usize {
        let writer = self.lock();
        let each = |o: &Owned<T>| o.bytes() + o.all().map(|r| r.bytes() + 16).sum::<usize>();
        let mut sum: usize = writer.by_mask.values().map(each).sum();
        self.prefix_trie.each(writer.guard(), &mut |r| sum += r.bytes() + 16);
        sum + self.prefix_trie.bytes(writer.guard())
    }

    /// Links a rule. Growing leaves memory to [`sync::Writer::reclaim`], as removing does. Several
    /// rules with the same match and priority are allowed (they should differ in their versions);
    /// the newest visible one wins.
    ///
    /// # Panics
    /// When the rule was inserted into a classifier before.
    pub fn insert(&self, rule: Arc<Rule<T>>) {
        assert!(!rule.used.swap(true, Ordering::AcqRel), "a rule is inserted at most once");
        let mut writer = self.lock();
        self.rules.fetch_add(1, Ordering::Relaxed);
        let free = |p: &prefix_trie::Place| !self.prefix_trie.is_full(writer.guard(), *p);
        let place = prefix_trie::place(&rule.key(), &rule.mask());
        if let Some(place) = place.filter(|_| self.by_prefix_trie).filter(free) {
            let before = writer.priorities.max();
            writer.priorities.add(rule.priority());
            let after = writer.priorities.max();
            self.publish_change(&mut writer, None, [before, after]);
            // SAFETY: the lock makes this the only writer.
            return unsafe { self.prefix_trie.link(rule, place, &self.domain) };
        }
        let shape = writer.subtable_for(&rule);
        writer.merged += usize::from(shape != rule.shape());
        writer.serial += 1;
        let serial = writer.serial;
        let owned = writer
            .by_mask
            .entry(shape.clone())
            .or_insert_with(|| Owned::new(&self.domain, &shape, serial));
        let before = owned.max_priority();
        owned.announce(rule.priority());
        let (subtable, after) = (owned.shared.clone(), owned.max_priority());
        self.publish_change(&mut writer, Some(subtable), [before, after]);
        if let Some(owned) = writer.by_mask.get_mut(&shape) {
            // SAFETY: the lock makes this the only writer.
            unsafe { self.tries.insert(&rule.key(), owned.shared.lengths, self.len() == 1) };
            owned.link(rule);
        }
    }

    /// Unlinks a rule; readers that hold it may use it until their next quiescent point. False: it
    /// is not linked here. The table's reference is dropped through [`Domain::retire`], so the
    /// owner must call [`sync::Writer::reclaim`] now and then.
    pub fn remove(&self, rule: &Arc<Rule<T>>) -> bool {
        match self.take(rule) {
            Some(handle) => {
                self.domain.retire(handle);
                true
            }
            None => false,
        }
    }

    /// Unlinks a rule and returns the table's reference, which the caller retires: to remove many
    /// rules.
    pub fn unlink(&self, rule: &Arc<Rule<T>>) -> Option<Unlinked<T>> {
        self.take(rule).map(|handle| Unlinked(ManuallyDrop::new(handle)))
    }

    /// Unlinks a rule, which readers may still use; returns the table's reference.
    fn take(&self, rule: &Arc<Rule<T>>) -> Option<Arc<Rule<T>>> {
        let mut writer = self.lock();
        if let Some(place) = prefix_trie::place(&rule.key(), &rule.mask())
            // SAFETY: the lock makes this the only writer.
            && let Some(handle) = unsafe { self.prefix_trie.unlink(rule, place, &self.domain) }
        {
            let before = writer.priorities.max();
            writer.priorities.sub(rule.priority());
            let after = writer.priorities.max();
            self.publish_change(&mut writer, None, [before, after]);
            self.rules.fetch_sub(1, Ordering::Relaxed);
            return Some(handle);
        }
        let (own, key) = (rule.shape(), rule.key());
        let subtables_for = writer.subtables_for(own.clone(), &rule.mask());
        let linked = |s: &&Shape| writer.by_mask.get(*s).is_some_and(|o| o.holds(rule, &key));
        let shape = subtables_for.iter().find(linked)?;
        let owned = writer.by_mask.get_mut(shape)?;
        let before = owned.max_priority();
        let handle = owned.unlink(rule)?;
        // SAFETY: the lock makes this the only writer.
        unsafe { self.tries.remove(&key, owned.shared.lengths, &self.domain) };
        let (subtable, after) = (owned.shared.clone(), owned.max_priority());
        if after.is_none() {
            writer.by_mask.remove(shape);
        }
        writer.merged -= usize::from(*shape != own);
        self.publish_change(&mut writer, Some(subtable), [before, after]);
        self.rules.fetch_sub(1, Ordering::Relaxed);
        Some(handle)
    }

    /// The rule with exactly this match and priority that is visible at `version`
    /// (strict flow-mods).
    pub fn find_exact(
        &self,
        key: &Key,
        mask: &Mask,
        priority: u16,
        version: u64,
    ) -> Option<Arc<Rule<T>>> {
        let writer = self.lock();
        let own = Shape::of(mask);
        let subtables_for = writer.subtables_for(own.clone(), mask);
        let is = |r: &Handle<'_, T>| {
            r.priority() == priority && r.visible(version) && r.has_match(key, &own)
        };
        let place = prefix_trie::place(key, mask);
        let mut found = place.and_then(|p| self.prefix_trie.same(writer.guard(), p).find(is));
        if found.is_none() {
            found = subtables_for.iter().find_map(|s| writer.by_mask.get(s)?.same(key).find(is));
        }
        found.map(Handle::share)
    }

    /// All rules of all versions, in no order. A snapshot: the table may change meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Rule<T>>> + use<T> {
        let writer = self.lock();
        let mut out = Vec::new();
        writer.by_mask.values().for_each(|owned| out.extend(owned.all().map(Handle::share)));
        self.prefix_trie.each(writer.guard(), &mut |r| out.push(r.share()));
        out.into_iter()
    }

    /// All rules of all versions that are at least as specific as (`key`,`mask`): those that a
    /// non-strict flow-mod or a statistics request selects. A snapshot, in no order.
    pub fn iter_loose(
        &self,
        key: &Key,
        mask: &Mask,
    ) -> impl Iterator<Item = Arc<Rule<T>>> + use<T> {
        let mut looks = usize::MAX;
        self.pick_loose(key, mask, &mut looks, |_| true).into_iter().flatten()
    }

    /// The rules of [`Classifier::iter_loose`] that `want` accepts. None if that takes examining
    /// more than `looks` rules, from which examined rules are subtracted. `want` is called under
    /// the writer's lock, so it must not call the classifier.
    pub fn pick_loose(
        &self,
        key: &Key,
        mask: &Mask,
        looks: &mut usize,
        mut want: impl FnMut(&Rule<T>) -> bool,
    ) -> Option<Vec<Arc<Rule<T>>>> {
        let any = mask.is_zero();
        let mut out = Vec::new();
        let mut look = |r: Handle<'_, T>| {
            let Some(left) = looks.checked_sub(1) else { return false };
            *looks = left;
            out.extend(((any || r.within(key, mask)) && want(&r)).then(|| r.share()));
            true
        };
        let writer = self.lock();
        let mut all = self.prefix_trie.around(writer.guard(), key, mask, &mut look);
        for owned in writer.by_mask.values() {
            let their = &owned.shared.mask;
            all = all
                && match () {
                    () if any => owned.all().all(&mut look),
                    () if their.subset_of(mask) => owned.same(key).all(&mut look),
                    () if owned.merged > 0 || mask.subset_of(their) => owned.all().all(&mut look),
                    () => true,
                };
        }
        all.then_some(out)
    }

    /// True if `want` accepts a rule, of any version, with this priority that shares at least one
    /// packet with (`key`,`mask`) (OpenFlow's CHECK_OVERLAP; a rule with the same match counts).
    /// None if that takes examining more than `looks` rules, from which examined rules are
    /// subtracted. `want` is called under the writer's lock, so it must not call the classifier.
    pub fn overlapping(
        &self,
        key: &Key,
        mask: &Mask,
        priority: u16,
        looks: &mut usize,
        want: impl Fn(&Rule<T>) -> bool,
    ) -> Option<bool> {
        let writer = self.lock();
        let (mut found, mut too_many) = (false, false);
        let mut goes_on = |r: Handle<'_, T>| {
            too_many = *looks == 0;
            *looks = looks.saturating_sub(1);
            found = !too_many && r.priority() == priority && r.overlaps(key, mask) && want(&r);
            !found && !too_many
        };
        let mut all = !writer.priorities.has(priority)
            || self.prefix_trie.around(writer.guard(), key, mask, &mut goes_on);
        for owned in writer.by_mask.values().filter(|o| o.priorities.has(priority)) {
            all = all
                && match owned.shared.mask.subset_of(mask) {
                    true => owned.same(key).all(&mut goes_on),
                    false => owned.all().all(&mut goes_on),
                };
        }
        (!too_many).then_some(!all)
    }

    /// The matching rule of the highest priority visible at `version`, if any. Sets in `wildcards`
    /// the bits of `key` that decided; bits already set stay.
    #[inline]
    pub fn lookup<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        version: u64,
        wildcards: &mut Mask,
    ) -> Option<&'a Rule<T>> {
        self.lookup_counted(guard, key, version, wildcards, &mut 0)
    }

    /// As [`Classifier::lookup`]; adds the number of visited places (subtables, and the prefix
    /// trie) to `tried`.
    #[inline]
    pub fn lookup_counted<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        version: u64,
        wildcards: &mut Mask,
        tried: &mut usize,
    ) -> Option<&'a Rule<T>> {
        self.best(guard, key, version, wildcards, tried).map(Handle::get)
    }

    /// The most places that a lookup visits.
    pub fn places(&self, guard: Guard<'_>) -> usize {
        self.list.read(guard).len()
    }

    /// Calls `each` with all matching rules that have at least this priority and are visible at
    /// `version`, in no order, except those in the prefix trie: these match on headers of IPv4 and
    /// on nothing else. Sets in `wildcards` the bits of `key` that decided which rules match.
    pub fn each_in_subtables<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        version: u64,
        least: u32,
        wildcards: &mut Mask,
        each: &mut dyn FnMut(&'a Rule<T>),
    ) {
        let mut prefixes = Prefixes::new(&self.tries);
        let want = Wanted { key, version, least };
        let list = self.list.read(guard);
        let high = list.iter().take_while(|e| u32::from(e.max_priority) >= least);
        for subtable in high.filter_map(|e| e.subtable.as_ref()) {
            subtable.lookup_each(guard, &want, &mut prefixes, wildcards, each);
        }
    }

    /// Prefetches what looking these keys up reads, if it is probably not in the cache.
    pub fn prepare(&self, guard: Guard<'_>, keys: &[&Key]) {
        let list = self.list.read(guard);
        for entry in list.iter().take(PREPARED_SUBTABLES) {
            match &entry.subtable {
                Some(subtable) => subtable.prepare(guard, keys),
                None => self.prefix_trie.prepare(guard, keys),
            }
        }
    }

    /// As [`Classifier::lookup`], for control threads: takes the writer's lock.
    pub fn find(&self, key: &Key, version: u64, wildcards: &mut Mask) -> Option<Arc<Rule<T>>> {
        let writer = self.lock();
        self.best(writer.guard(), key, version, wildcards, &mut 0).map(Handle::share)
    }

    #[inline]
    fn best<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        version: u64,
        wildcards: &mut Mask,
        tried: &mut usize,
    ) -> Option<Handle<'a, T>> {
        let mut best: Option<Handle<'_, T>> = None;
        let mut prefixes = Prefixes::new(&self.tries);
        for piece in self.list.read(guard).pieces() {
            for entry in piece {
                if best.is_some_and(|b| b.priority() >= entry.max_priority) {
                    return best;
                }
                *tried += 1;
                let least = best.map_or(0, |b| u32::from(b.priority()) + 1);
                let want = Wanted { key, version, least };
                let found = match &entry.subtable {
                    Some(subtable) => subtable.lookup(guard, &want, &mut prefixes, wildcards),
                    None => self.prefix_trie.lookup(guard, &want, wildcards),
                };
                best = found.or(best);
            }
        }
        best
    }

    fn lock(&self) -> MutexGuard<'_, Writer<T>> {
        self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Publishes the highest priority of a subtable or of the prefix trie, after it changed: None
    /// before there is a rule, and after the last one was removed.
    fn publish_change(
        &self,
        writer: &mut Writer<T>,
        subtable: Option<Arc<Subtable<T>>>,
        [before, after]: [Option<u16>; 2],
    ) {
        if before == after {
            return;
        }
        let entry = |max: Option<u16>| {
            max.map(|max_priority| Listed { max_priority, subtable: subtable.clone() })
        };
        let mut copied = 0;
        let list = self.list.read(writer.guard());
        let changed = list.changed(entry(before), entry(after), &mut copied);
        writer.copied += copied;
        self.list.publish(changed);
    }
}
