//! Where the rules of access lists live: a trie of destination prefixes, each with a trie of the source
//! prefixes that rules have beside it, each with a chain of rules (a hierarchical trie, Gupta and McKeown 2001).
//!
//! Five-tuple rules have thousands of masks, and a hash table for each, even for several together, costs a
//! lookup a probe. Here it follows two paths, and what decided are a prefix of either address and a few bits
//! of what is left, whatever the rules elsewhere look at. A rule stands in one place: changes are local.

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

use flow::{Key, Mask, at};
use sync::Domain;

use crate::chain::{self, Handle, chain};
use crate::prefixes;
use crate::rule::Rule;
use crate::subtable::Wanted;
use crate::trie::{Payload, Trie};

/// Rules with the same prefixes, from which on there is no place for one more: they go by hash.
const CROWD: usize = 24;

/// What all rules here say about the Ethertype.
const IPV4: u16 = 0x0800;

/// Bytes that rules here may look at, besides the Ethertype: addresses, ports, protocol, TOS, TTL,
/// fragments and TCP flags.
const L3_L4: std::ops::Range<usize> = at::IP_SRC..at::TCP_FLAGS + 2;

/// Walks that go side by side.
const AT_ONCE: usize = 8;

/// Prefixes that contain one another: one of each length.
const NESTED: usize = 33;

/// The destination and the source prefix of a rule.
pub(crate) type Place = [(u32, u8); 2];

/// See the module. Readers share it with the one writer.
pub(crate) struct Grid<T: Send + Sync + 'static> {
    cells: Trie<Cell<T>>,
}

/// The rules of one destination prefix, by source.
struct Cell<T: Send + Sync + 'static> {
    /// At least the highest priority in the cell.
    max: AtomicU16,
    sources: Trie<Chain<T>>,
}

/// The rules of a pair of prefixes.
struct Chain<T: Send + Sync + 'static>(AtomicPtr<Rule<T>>);

impl<T: Send + Sync + 'static> Default for Grid<T> {
    fn default() -> Self {
        Grid { cells: Trie::default() }
    }
}

impl<T: Send + Sync + 'static> Default for Cell<T> {
    fn default() -> Self {
        Cell { max: AtomicU16::new(0), sources: Trie::default() }
    }
}

impl<T: Send + Sync + 'static> Default for Chain<T> {
    fn default() -> Self {
        Chain(AtomicPtr::new(null_mut()))
    }
}

impl<T: Send + Sync + 'static> Payload for Cell<T> {
    fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
}

impl<T: Send + Sync + 'static> Payload for Chain<T> {
    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire).is_null()
    }
}

impl<T: Send + Sync + 'static> Drop for Chain<T> {
    fn drop(&mut self) {
        // SAFETY: a node is dropped when nobody reads it; with rules only when the whole grid is.
        unsafe { chain::give_up(*self.0.get_mut()) };
    }
}

impl<T: Send + Sync + 'static> Chain<T> {
    /// Its rules.
    ///
    /// # Safety
    /// As [`chain`].
    #[inline]
    unsafe fn rules<'a>(&self) -> impl Iterator<Item = Handle<'a, T>> {
        // SAFETY: the caller's promise.
        unsafe { chain(self.0.load(Ordering::Acquire)) }
    }
}

/// Where a rule of this match stands: its destination and source prefixes. None: not in a grid.
pub(crate) fn place(key: &Key, mask: &Mask) -> Option<Place> {
    let allowed = |byte: usize| L3_L4.contains(&byte) || (at::ETH_TYPE..at::VLAN).contains(&byte);
    let few = mask.bytes().iter().enumerate().all(|(i, b)| *b == 0 || allowed(i));
    let ipv4 = mask.u16(at::ETH_TYPE) == 0xffff && key.u16(at::ETH_TYPE) == IPV4;
    let place = prefixes::FIELDS.map(|at| {
        let mask = mask.u32(at);
        let prefix = mask.leading_ones() == mask.count_ones();
        prefix.then_some((key.u32(at) & mask, mask.leading_ones() as u8))
    });
    let [Some(dst), Some(src)] = place else { return None };
    (few && ipv4 && (dst.1, src.1) != (0, 0)).then_some([dst, src])
}

impl<T: Send + Sync + 'static> Grid<T> {
    /// The rule of the highest priority that is wanted; marks in `wildcards` the bits that decided.
    ///
    /// # Safety
    /// As [`sync::Published::read`].
    pub unsafe fn lookup(&self, want: &Wanted<'_>, wildcards: &mut Mask) -> Option<Handle<'_, T>> {
        wildcards.set_u16(at::ETH_TYPE, 0xffff);
        if want.key.u16(at::ETH_TYPE) != IPV4 {
            return None;
        }
        // SAFETY: the caller's promise.
        let mut walk = unsafe { self.cells.walk(want.key.u32(at::IP_DST)) };
        let mut cells = [None; NESTED];
        let mut n = 0;
        // SAFETY: as above.
        while let Some((_, cell)) = unsafe { walk.step() } {
            let max = cell.max.load(Ordering::Acquire);
            if u32::from(max) >= want.least && !cell.is_empty() {
                // By falling priority.
                let mut to = n;
                while to > 0 && cells[to - 1].is_some_and(|(m, _)| m < max) {
                    cells[to] = cells[to - 1];
                    to -= 1;
                }
                cells[to] = Some((max, cell));
                n += 1;
            }
        }
        prefixes::mark(wildcards, at::IP_DST, walk.bits);
        let mut best: Option<Handle<'_, T>> = None;
        for (max, cell) in cells[..n].iter().flatten() {
            let least = best.map_or(want.least, |b| u32::from(b.priority()) + 1);
            if u32::from(*max) < least {
                break;
            }
            // SAFETY: as above.
            best = unsafe { cell.lookup(&Wanted { least, ..*want }, wildcards) }.or(best);
        }
        best
    }

    /// Asks for the memory that looking these keys up will read. Walks go side by side, each step asking
    /// for what the next one of the same walk looks at.
    ///
    /// # Safety
    /// As [`Grid::lookup`].
    pub unsafe fn prepare(&self, keys: &[&Key]) {
        if self.cells.is_empty() {
            return;
        }
        for keys in keys.chunks(AT_ONCE) {
            // SAFETY: the caller's promise.
            unsafe { self.prepare_few(keys) };
        }
    }

    /// # Safety
    /// As [`Grid::lookup`].
    unsafe fn prepare_few(&self, keys: &[&Key]) {
        // SAFETY: the caller's promise.
        let mut walks: [_; AT_ONCE] = std::array::from_fn(|i| unsafe {
            self.cells.walk(keys.get(i).map_or(0, |k| k.u32(at::IP_DST)))
        });
        let mut found: [Option<(&Cell<T>, u32)>; 4 * AT_ONCE] = [None; 4 * AT_ONCE];
        let (mut n, mut on) = (0, true);
        while std::mem::take(&mut on) {
            for (walk, key) in walks.iter_mut().zip(keys) {
                // SAFETY: as above.
                if let Some((_, cell)) = unsafe { walk.step() } {
                    on = true;
                    walk.prefetch();
                    if n < found.len() && !cell.is_empty() {
                        found[n] = Some((cell, key.u32(at::IP_SRC)));
                        n += 1;
                    }
                }
            }
        }
        for cells in found[..n].chunks(AT_ONCE) {
            // SAFETY: as above.
            let mut walks = cells.iter().flatten().map(|(c, src)| unsafe { c.sources.walk(*src) });
            let mut walks: [_; AT_ONCE] = std::array::from_fn(|_| walks.next());
            walks.iter().flatten().for_each(|w| w.prefetch());
            on = true;
            while std::mem::take(&mut on) {
                for walk in walks.iter_mut().flatten() {
                    // SAFETY: as above.
                    if let Some((_, chain)) = unsafe { walk.step() } {
                        on = true;
                        walk.prefetch();
                        crate::slots::prefetch(chain.0.load(Ordering::Acquire));
                    }
                }
            }
        }
    }

    /// Has the place of this match as many rules as it should have?
    ///
    /// # Safety
    /// The caller is the only writer; so in what follows.
    pub unsafe fn crowded(&self, [dst, src]: Place) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.chain(dst, src) }
            .is_some_and(|c| unsafe { c.rules() }.nth(CROWD - 1).is_some())
    }

    unsafe fn chain(&self, dst: (u32, u8), src: (u32, u8)) -> Option<&Chain<T>> {
        // SAFETY: the caller's promise.
        unsafe { self.cells.get(dst.0, dst.1)?.sources.get(src.0, src.1) }
    }

    /// The rules with exactly these prefixes.
    pub unsafe fn same(&self, [dst, src]: Place) -> impl Iterator<Item = Handle<'_, T>> {
        // SAFETY: the caller's promise.
        unsafe { self.chain(dst, src) }.into_iter().flat_map(|c| unsafe { c.rules() })
    }

    /// The rules whose prefixes have something in common with those of a match.
    pub unsafe fn around(&self, key: &Key, mask: &Mask, each: &mut dyn FnMut(Handle<'_, T>)) {
        let [dst, src] = prefixes::FIELDS.map(|at| {
            let bits = mask.u32(at).leading_ones() as u8;
            (key.u32(at), bits)
        });
        // SAFETY: the caller's promise.
        unsafe {
            self.cells.around(dst.0, dst.1, &mut |cell| {
                cell.sources.around(src.0, src.1, &mut |chain| chain.rules().for_each(&mut *each));
            });
        }
    }

    /// Every rule.
    pub unsafe fn each(&self, each: &mut dyn FnMut(Handle<'_, T>)) {
        // SAFETY: the caller's promise.
        unsafe { self.around(&Key::ZERO, &Mask::ZERO, each) };
    }

    /// Links a rule.
    pub unsafe fn link(&self, rule: Arc<Rule<T>>, [dst, src]: Place) {
        // SAFETY: the caller's promise.
        unsafe {
            let cell = self.cells.make(dst.0, dst.1);
            // Before the rule can be found.
            cell.max.fetch_max(rule.priority(), Ordering::AcqRel);
            let chain = &cell.sources.make(src.0, src.1).0;
            let head = chain::link(chain.load(Ordering::Relaxed), rule);
            chain.store(head, Ordering::Release);
        }
    }

    /// Unlinks a rule and gives back the handle on it; None if it is not here.
    pub unsafe fn unlink(
        &self,
        rule: &Rule<T>,
        [dst, src]: Place,
        domain: &Domain,
    ) -> Option<Arc<Rule<T>>> {
        // SAFETY: the caller's promise.
        unsafe {
            let cell = self.cells.get(dst.0, dst.1)?;
            let chain = cell.sources.get(src.0, src.1)?;
            let (handle, head) = chain::unlink(chain.0.load(Ordering::Relaxed), rule)?;
            chain.0.store(head, Ordering::Release);
            cell.sources.trim(src.0, src.1, domain);
            self.cells.trim(dst.0, dst.1, domain);
            Some(handle)
        }
    }

    /// Heap bytes of the tries.
    pub unsafe fn bytes(&self) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = self.cells.bytes();
            self.cells.around(0, 0, &mut |cell| sum += cell.sources.bytes());
            sum
        }
    }
}

impl<T: Send + Sync + 'static> Cell<T> {
    /// As [`Grid::lookup`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    unsafe fn lookup(&self, want: &Wanted<'_>, wildcards: &mut Mask) -> Option<Handle<'_, T>> {
        // SAFETY: the caller's promise.
        let mut walk = unsafe { self.sources.walk(want.key.u32(at::IP_SRC)) };
        let mut best: Option<Handle<'_, T>> = None;
        let mut least = want.least;
        // SAFETY: as above.
        while let Some((_, chain)) = unsafe { walk.step() } {
            // SAFETY: as above.
            let found = unsafe { chain.rules() }
                .take_while(|r| u32::from(r.priority()) >= least)
                .find(|r| r.visible(want.version) && r.decides(want.key, wildcards));
            if let Some(rule) = found {
                (best, least) = (found, u32::from(rule.priority()) + 1);
            }
        }
        prefixes::mark(wildcards, at::IP_SRC, walk.bits);
        best
    }
}
