//! A subtable: rules under one mask, which is theirs or is contained in theirs.

use std::sync::Arc;

use flow::{Key, Mask};
use sync::{Domain, Guard};

use crate::batch::{BATCH, Batch};
use crate::chain::{self, Handle, chain};
use crate::filter::Filter;
use crate::hash::Secret;
use crate::merge;
use crate::parts::{Array, Parts};
use crate::prefixes::{self, Lengths, Prefixes};
use crate::priorities::Priorities;
use crate::rule::{Rule, Shape, bits};
use crate::slots::Slots;
use crate::stage::{Step, steps};

/// Slots from which on prefetching them pays.
const PREFETCH_SLOTS_MIN: usize = 256;

/// Keys that are prefetched together, at most.
const PREFETCH_KEYS: usize = 8;

/// A subtable, as readers see it.
pub(crate) struct Subtable<T: Send + Sync + 'static> {
    pub mask: Mask,
    /// Number in the order of creation, which orders subtables of equal priority.
    pub serial: u64,
    secret: Secret,
    steps: Box<[Step]>,
    /// The words of the mask, with their numbers.
    words: Box<[(u8, u64)]>,
    map: u64,
    /// Where each stage ends in `steps`; the last end is `steps.len()`.
    stages: Box<[usize]>,
    /// The step that compares the IPv4 addresses, if they are matched by prefix; otherwise beyond
    /// all.
    addresses: usize,
    pub lengths: Lengths,
    /// True: some of `lengths` is not 0.
    by_prefix: bool,
    slots: Parts<Slots<T>>,
    /// A filter for each stage except the last.
    filters: Box<[Parts<Filter>]>,
}

/// What a lookup searches: rules for this key, at this version, of at least this priority.
pub(crate) struct Wanted<'a> {
    pub key: &'a Key,
    pub version: u64,
    pub least: u32,
}

/// The hashes of a key at the end of each stage; the last is the hash of the whole masked key.
struct Hashes {
    at: [u64; crate::stage::STAGES],
    stages: usize,
}

impl Hashes {
    fn whole(&self) -> u64 {
        self.at[self.stages - 1]
    }
}

impl<T: Send + Sync + 'static> Subtable<T> {
    fn new(domain: &Domain, shape: &Shape, serial: u64) -> Self {
        let mask = shape.mask();
        let (steps, stages) = steps(&mask);
        let filters = (1..stages.len()).map(|_| Parts::new(domain)).collect();
        let lengths = prefixes::lengths(&mask);
        let word = steps.iter().position(|s| usize::from(s.word) == prefixes::WORD);
        let by_prefix = lengths != Lengths::default();
        let addresses = word.filter(|_| by_prefix).unwrap_or(steps.len());
        let secret = Secret::get();
        let words = bits(shape.map).zip(&shape.masks).map(|(i, m)| (i as u8, *m)).collect();
        let map = shape.map;
        Subtable {
            mask,
            serial,
            secret,
            steps,
            words,
            map,
            stages,
            addresses,
            lengths,
            by_prefix,
            slots: Parts::new(domain),
            filters,
        }
    }

    /// The first wanted rule of the key's chain; marks in `wildcards` the bits that decided.
    #[inline]
    pub fn lookup<'a>(
        &'a self,
        guard: Guard<'a>,
        want: &Wanted<'_>,
        prefixes: &mut Prefixes<'a>,
        wildcards: &mut Mask,
    ) -> Option<Handle<'a, T>> {
        chain(self.head(guard, want.key, prefixes, wildcards))
            .take_while(|r| u32::from(r.priority()) >= want.least)
            .find(|r| r.visible(want.version) && self.decides(r, want.key, wildcards))
    }

    /// As [`Rule::decides`], for a rule of a chain that [`Subtable::head`] returned.
    #[inline]
    fn decides(&self, rule: &Rule<T>, key: &Key, wildcards: &mut Mask) -> bool {
        // The key agrees with the chain on the subtable's mask, whose bits are marked.
        rule.has_mask(self.map, &self.words) || rule.decides(key, wildcards)
    }

    /// Calls `each` with all wanted rules of the key's chain.
    pub fn lookup_each<'a>(
        &'a self,
        guard: Guard<'a>,
        want: &Wanted<'_>,
        prefixes: &mut Prefixes<'a>,
        wildcards: &mut Mask,
        each: &mut dyn FnMut(&'a Rule<T>),
    ) {
        chain(self.head(guard, want.key, prefixes, wildcards))
            .take_while(|r| u32::from(r.priority()) >= want.least)
            .filter(|r| r.visible(want.version) && self.decides(r, want.key, wildcards))
            .for_each(|r| each(r.get()));
    }

    /// The key's chain; marks in `wildcards` the bits that decided.
    #[inline]
    fn head<'a>(
        &'a self,
        guard: Guard<'a>,
        key: &Key,
        prefixes: &mut Prefixes<'a>,
        wildcards: &mut Mask,
    ) -> Option<Handle<'a, T>> {
        if self.by_prefix && prefixes.excluded(self.lengths, wildcards) {
            return None;
        }
        let (head, seen) = self.walk(guard, key);
        if head.is_none()
            && seen > self.addresses
            && prefixes.exclude(guard, key, self.lengths, wildcards)
        {
            return None;
        }
        for step in &self.steps[..seen] {
            wildcards.words[step.word as usize] |= step.mask;
        }
        head
    }

    /// The key's chain, and how many steps were needed.
    #[inline]
    fn walk<'a>(&'a self, guard: Guard<'a>, key: &Key) -> (Option<Handle<'a, T>>, usize) {
        let mut hash = self.secret.start();
        let mut from = 0;
        for (i, &end) in self.stages.iter().enumerate() {
            for step in &self.steps[from..end] {
                hash = self.secret.mix(hash, key.words[step.word as usize] & step.mask);
            }
            from = end;
            if let Some(filter) = self.filters.get(i)
                && !filter.array(guard, hash).may_contain(hash)
            {
                return (None, end);
            }
        }
        let same = |rule: &Rule<T>| rule.agrees_by_words(key, self.map, &self.words, &self.steps);
        (self.slots.array(guard, hash).find(guard, hash, same), from)
    }

    /// Replaces what is known of these keys by better rules.
    pub fn lookup_all<'a>(&'a self, guard: Guard<'a>, batch: &mut Batch<'_, 'a, T>) {
        let mut hashes = [0; BATCH];
        for (hash, key) in hashes.iter_mut().zip(batch.keys) {
            *hash = self.hash(key);
        }
        self.prefetch(guard, &hashes[..batch.keys.len()]);
        batch.looked |= self.map;
        for (i, (key, hash)) in batch.keys.iter().zip(hashes).enumerate() {
            let same =
                |rule: &Rule<T>| rule.agrees_by_words(key, self.map, &self.words, &self.steps);
            let least = batch.least(i);
            let mut rules = chain(self.slots.array(guard, hash).find(guard, hash, same));
            while let Some(rule) = rules.next().filter(|r| u32::from(r.priority()) >= least) {
                batch.looked |= rule.looks_at();
                if rule.visible(batch.version) && rule.matches_by_words(key, self.map, &self.words)
                {
                    batch.best[i] = Some(rule);
                    break;
                }
            }
        }
    }

    /// The hash of the whole masked key.
    #[inline]
    fn hash(&self, key: &Key) -> u64 {
        let mix = |h, s: &Step| self.secret.mix(h, key.words[usize::from(s.word)] & s.mask);
        self.steps.iter().fold(self.secret.start(), mix)
    }

    /// Prefetches what looking these keys up reads: slots first, then the rules in them.
    pub fn prepare(&self, guard: Guard<'_>, keys: &[&Key]) {
        for keys in keys.chunks(PREFETCH_KEYS) {
            let mut hashes = [0; PREFETCH_KEYS];
            hashes.iter_mut().zip(keys).for_each(|(hash, key)| *hash = self.hash(key));
            self.prefetch(guard, &hashes[..keys.len()]);
        }
    }

    /// Prefetches the slots of these hashes, then the rules in them, if the slots are many.
    #[inline]
    fn prefetch(&self, guard: Guard<'_>, hashes: &[u64]) {
        if self.slots.places_of_one(guard).is_some_and(|n| n < PREFETCH_SLOTS_MIN) {
            return;
        }
        hashes.iter().for_each(|hash| self.slots.array(guard, *hash).prefetch(*hash));
        hashes.iter().for_each(|hash| self.slots.array(guard, *hash).prefetch_rule(*hash));
    }

    /// The hash of a linked rule's masked key.
    fn hash_of(&self, rule: *mut Rule<T>) -> u64 {
        // SAFETY: the writer asks, and a rule that is linked is alive until it is unlinked.
        self.hash(&unsafe { &*rule }.key())
    }

    fn hashes(&self, key: &Key) -> Hashes {
        let mut out = Hashes { at: [0; crate::stage::STAGES], stages: self.stages.len() };
        let mut hash = self.secret.start();
        let mut from = 0;
        for (i, &end) in self.stages.iter().enumerate() {
            for step in &self.steps[from..end] {
                hash = self.secret.mix(hash, key.words[step.word as usize] & step.mask);
            }
            from = end;
            out.at[i] = hash;
        }
        out
    }
}

impl<T: Send + Sync + 'static> Drop for Subtable<T> {
    fn drop(&mut self) {
        // SAFETY: no other thread holds the subtable, so none publishes or reads.
        let alone = unsafe { Guard::unprotected() };
        for array in self.slots.arrays(alone) {
            // SAFETY: linked rules hold one strong count each; no thread reads.
            array.for_each(|head| unsafe { chain::give_up(head) });
        }
    }
}

/// A subtable, with what only the writer knows.
pub(crate) struct Owned<T: Send + Sync + 'static> {
    pub shared: Arc<Subtable<T>>,
    pub priorities: Priorities,
    pub rules: usize,
    /// Number of rules whose own mask is another.
    pub merged: usize,
}

impl<T: Send + Sync + 'static> Owned<T> {
    pub fn new(domain: &Domain, shape: &Shape, serial: u64) -> Self {
        Owned {
            shared: Arc::new(Subtable::new(domain, shape, serial)),
            priorities: Priorities::default(),
            rules: 0,
            merged: 0,
        }
    }

    /// The highest priority; None: there is no rule.
    pub fn max_priority(&self) -> Option<u16> {
        self.priorities.max()
    }

    /// A guard for reading what is only changed by methods that borrow all of it.
    fn guard(&self) -> Guard<'_> {
        // SAFETY: the subtable's rules and arrays are unlinked and replaced by methods that take
        // `&mut self`.
        unsafe { Guard::unprotected() }
    }

    fn slots(&self, hash: u64) -> &Slots<T> {
        self.shared.slots.array(self.guard(), hash)
    }

    /// The filters of all stages but the last, with the key's hashes at them.
    fn filters<'a>(&'a self, hashes: &'a Hashes) -> impl Iterator<Item = (&'a Parts<Filter>, u64)> {
        self.shared.filters.iter().zip(hashes.at)
    }

    /// Counts a rule to be linked, so that the maximum can be published before the rule.
    pub fn announce(&mut self, priority: u16) {
        self.priorities.add(priority);
        self.rules += 1;
    }

    /// Links a rule that was announced.
    pub fn link(&mut self, rule: Arc<Rule<T>>) {
        self.merged += usize::from(rule.mask() != self.shared.mask);
        let key = rule.key();
        let hashes = self.shared.hashes(&key);
        for (filter, hash) in self.filters(&hashes) {
            // SAFETY: this is the writer.
            unsafe { filter.reserve(hash, Filter::hash_of) };
            filter.array(self.guard(), hash).add(hash);
        }
        let hash = hashes.whole();
        // SAFETY: this is the writer.
        unsafe { self.shared.slots.reserve(hash, |head| self.shared.hash_of(head)) };
        let slots = self.slots(hash);
        // SAFETY: this is the writer.
        let found = unsafe { slots.locate(hash, |r| self.agree(r, &key)) };
        // SAFETY: this is the writer.
        let head = unsafe { chain::link(found.head, rule) };
        if found.head.is_null() {
            slots.add(found.slot, found.fresh, hash, head);
        } else if head != found.head {
            slots.store(found.slot, hash, head);
        }
    }

    /// Unlinks a rule and returns the table's reference to it; None: it is not here.
    pub fn unlink(&mut self, rule: &Rule<T>) -> Option<Arc<Rule<T>>> {
        let key = rule.key();
        let hashes = self.shared.hashes(&key);
        let hash = hashes.whole();
        let slots = self.slots(hash);
        // SAFETY: this is the writer.
        let found = unsafe { slots.locate(hash, |r| self.agree(r, &key)) };
        // SAFETY: this is the writer.
        let (handle, head) = unsafe { chain::unlink(found.head, rule) }?;
        if head.is_null() {
            slots.clear(found.slot);
            // SAFETY: this is the writer.
            unsafe { self.shared.slots.shrink(hash, |head| self.shared.hash_of(head)) };
        } else if head != found.head {
            slots.store(found.slot, hash, head);
        }
        for (filter, hash) in self.filters(&hashes) {
            filter.array(self.guard(), hash).sub(hash);
            // SAFETY: this is the writer.
            unsafe { filter.shrink(hash, Filter::hash_of) };
        }
        self.merged -= usize::from(rule.mask() != self.shared.mask);
        self.rules -= 1;
        self.priorities.sub(rule.priority());
        Some(handle)
    }

    fn agree(&self, rule: &Rule<T>, key: &Key) -> bool {
        rule.agrees(key, &self.shared.steps)
    }

    /// True if the rule, whose key this is, is linked here.
    pub fn holds(&self, rule: &Rule<T>, key: &Key) -> bool {
        self.same(key).any(|r| std::ptr::eq(r.get(), rule))
    }

    /// True if the key's chain has as many rules as it may have.
    pub fn is_full(&self, key: &Key) -> bool {
        self.same(key).nth(merge::MERGED_CHAIN_RULES_MAX - 1).is_some()
    }

    /// The rules that agree with `key` under this mask, by falling priority.
    pub fn same(&self, key: &Key) -> impl Iterator<Item = Handle<'_, T>> {
        let hashes = self.shared.hashes(key);
        let hash = hashes.whole();
        chain(self.slots(hash).find(self.guard(), hash, |r| self.agree(r, key)))
    }

    /// All rules.
    pub fn all(&self) -> impl Iterator<Item = Handle<'_, T>> {
        let arrays = self.shared.slots.arrays(self.guard());
        arrays.flat_map(|slots| slots.chains(self.guard())).flat_map(|head| chain(Some(head)))
    }

    /// Heap memory of the hash table, bytes.
    pub fn bytes(&self) -> usize {
        let filters = self.shared.filters.iter();
        self.shared.slots.bytes(self.guard())
            + filters.map(|f| f.bytes(self.guard())).sum::<usize>()
    }
}
