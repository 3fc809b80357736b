//! IPv4 prefixes with the number of rules that have each: a path-compressed binary trie.
//!
//! Nodes keep their whole prefix, so a split adds a node above and changes none: each change of the
//! tree is one pointer store, and readers follow pointers without a lock.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sync::{Domain, Guard, Link};

#[repr(align(64))]
struct Node {
    /// The prefix, left-aligned; bits beyond `len` are zero.
    value: u32,
    len: u8,
    child: [Link<Node>; 2],
    here: Count,
}

/// A set of prefixes (0 to 32 bits) with counts. Nodes without a count are branching points, and
/// are removed when they do not branch. One writer, the caller; readers need no lock.
#[derive(Default)]
pub(crate) struct Trie {
    root: Link<Node>,
}

/// The path of an address through a trie, from the shortest prefix to the longest. `'a` is a
/// guard's.
pub(crate) struct Walk<'a> {
    address: u32,
    at: Option<&'a Node>,
    /// Number of upper bits of the address that decided the path so far.
    pub bits: u8,
}

impl<'a> Walk<'a> {
    /// The next prefix that contains the address: its length and its count.
    #[inline]
    pub fn step(&mut self) -> Option<(u8, &'a Count)> {
        let node = self.at.take()?;
        let same = common(self.address, node.value, node.len);
        if same < node.len {
            self.bits = same + 1;
            return None;
        }
        self.bits = node.len;
        if node.len < 32 {
            let child = [0, 1].map(|i| node.child[i].load());
            if child.iter().any(|c| !c.is_null()) {
                self.bits += 1;
                // SAFETY: as in `Link::get`; `'a` is a guard's.
                self.at = unsafe { child[bit(self.address, node.len)].as_ref() };
            }
        }
        Some((node.len, &node.here))
    }
}

/// The upper `len` bits.
pub(crate) fn upper(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

/// The bit after the first `len`, as an index; `len` is below 32.
fn bit(value: u32, len: u8) -> usize {
    (value >> (31 - len) & 1) as usize
}

/// How many leading bits two prefixes have in common.
#[inline]
fn common(a: u32, b: u32, len: u8) -> u8 {
    ((a ^ b).leading_zeros() as u8).min(len)
}

impl Node {
    fn new(value: u32, len: u8) -> *mut Node {
        let (child, here) = Default::default();
        Box::into_raw(Box::new(Node { value, len, child, here }))
    }
}

impl Trie {
    /// True if there is no prefix.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.root.is_null()
    }

    /// The path of an address.
    #[inline]
    pub fn walk<'a>(&'a self, guard: Guard<'a>, address: u32) -> Walk<'a> {
        Walk { address, at: self.root.get(guard), bits: 0 }
    }

    /// The count of a prefix, which is made if there is none; the caller counts.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn make(&self, value: u32, len: u8) -> &Count {
        let value = value & upper(len);
        // SAFETY: linked nodes live until the writer unlinks them.
        let guard = unsafe { Guard::unprotected() };
        let mut link = &self.root;
        loop {
            let same = link.get(guard).map(|n| (n, common(value, n.value, len.min(n.len))));
            match same {
                Some((node, same)) if same == node.len && same == len => return &node.here,
                Some((node, same)) if same == node.len => link = &node.child[bit(value, same)],
                Some((node, same)) => {
                    // The prefix itself, or the point where it branches off.
                    let above = Node::new(value & upper(same), same);
                    // SAFETY: just made, and linked by this alone; the node below moves under it.
                    let fresh = unsafe {
                        (*above).child[bit(node.value, same)].store(link.load());
                        link.store(above);
                        &*above
                    };
                    if same == len {
                        return &fresh.here;
                    }
                    link = &fresh.child[bit(value, same)];
                }
                None => {
                    let leaf = Node::new(value, len);
                    // SAFETY: just made, linked, and only the writer unlinks.
                    return unsafe {
                        link.store(leaf);
                        &(*leaf).here
                    };
                }
            }
        }
    }

    /// The count of a prefix.
    ///
    /// # Safety
    /// The caller is the only writer.
    pub unsafe fn get(&self, value: u32, len: u8) -> Option<&Count> {
        // SAFETY: only the writer unlinks.
        let guard = unsafe { Guard::unprotected() };
        self.link(guard, value, len)?.0.get(guard).map(|n| &n.here)
    }

    /// The link to a prefix's node, and the link to the node above.
    #[allow(clippy::type_complexity)]
    fn link<'a>(
        &'a self,
        guard: Guard<'a>,
        value: u32,
        len: u8,
    ) -> Option<(&'a Link<Node>, Option<&'a Link<Node>>)> {
        let (mut above, mut link) = (None, &self.root);
        loop {
            let node = link.get(guard)?;
            if node.len > len || (value ^ node.value) & upper(node.len) != 0 {
                return None;
            }
            if node.len == len {
                return Some((link, above));
            }
            above = Some(link);
            link = &node.child[bit(value, node.len)];
        }
    }

    /// Removes the node of a prefix, if its count is zero; nodes are retired in `domain`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn trim(&self, value: u32, len: u8, domain: &Domain) {
        // SAFETY: only the writer unlinks, below.
        let guard = unsafe { Guard::unprotected() };
        let Some((link, above)) = self.link(guard, value, len) else { return };
        for link in [Some(link), above].into_iter().flatten() {
            // SAFETY: as above; `link` is in a node that is still linked or was just spliced out
            // and not freed.
            unsafe { splice(link, domain) };
        }
    }
}

/// Unlinks the node that `link` points to, if its count is zero and it does not have two children.
///
/// # Safety
///
/// The caller is the only writer; `link` belongs to a node that is not freed.
unsafe fn splice(link: &Link<Node>, domain: &Domain) {
    let at = link.load();
    // SAFETY: linked nodes live until the writer unlinks them.
    let Some(node) = (unsafe { at.as_ref() }) else { return };
    let child = [0, 1].map(|i| node.child[i].load());
    let two = child.iter().all(|c| !c.is_null());
    if two || !node.here.is_empty() {
        return;
    }
    let only = child.into_iter().find(|c| !c.is_null()).unwrap_or(null_mut());
    // SAFETY: `only` moves up; `at` was made by Box::into_raw and is unlinked now, and its own link
    // to `only` is not followed by writers any more.
    unsafe {
        link.store(only);
        domain.retire(Box::from_raw(at));
    }
}

impl Drop for Trie {
    fn drop(&mut self) {
        // SAFETY: each node that is linked is so once.
        let taken = |link: &mut Link<Node>| unsafe { link.take_mut() };
        let mut left = Vec::from_iter(taken(&mut self.root));
        while let Some(mut node) = left.pop() {
            left.extend(node.child.iter_mut().filter_map(taken));
        }
    }
}

/// Distinct prefixes that a [`Counted`] holds, at most: a table of a million host routes should
/// not have 100 bytes more per rule for it.
pub(crate) const PREFIXES_MAX: usize = 100_000;

/// Number of rules with exactly one prefix.
#[derive(Default)]
pub(crate) struct Count(AtomicU32);

impl Count {
    /// True if there is no rule.
    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// The prefixes in use, with the number of rules that have each.
#[derive(Default)]
pub(crate) struct Counted {
    trie: Trie,
    prefixes: AtomicUsize,
}

/// What a set of prefixes says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixAnswer {
    /// Bit `n`: there is a rule whose prefix of length `n` (1..=32) contains the address.
    pub lengths: u64,
    /// Number of upper bits of the address that decided this.
    pub bits: u8,
}

impl Counted {
    /// Which prefixes contain `address`.
    #[cfg(test)]
    pub fn lookup(&self, guard: Guard<'_>, address: u32) -> PrefixAnswer {
        let [answer] = Counted::lookup_all(guard, [(Some(self), address)]);
        answer
    }

    /// As `lookup`, in several sets at once, so that their cache misses overlap. Without a set the
    /// answer is meaningless.
    pub fn lookup_all<const N: usize>(
        guard: Guard<'_>,
        of: [(Option<&Counted>, u32); N],
    ) -> [PrefixAnswer; N] {
        let none = Trie::default();
        let mut walks =
            of.map(|(set, address)| (set.map_or(&none, |s| &s.trie).walk(guard, address), 0));
        let mut on = true;
        while on {
            on = false;
            for (walk, lengths) in &mut walks {
                if let Some((len, count)) = walk.step() {
                    on = true;
                    *lengths |= u64::from(!count.is_empty()) << len;
                }
            }
        }
        walks.map(|(walk, lengths)| PrefixAnswer { lengths, bits: walk.bits })
    }

    /// Counts a rule with a prefix of `len` bits (1..=32). False: there are too many prefixes.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn insert(&self, value: u32, len: u8) -> bool {
        // SAFETY: the caller's promise.
        let known = unsafe { self.trie.make(value, len) }.0.fetch_add(1, Ordering::Release) > 0;
        known || self.prefixes.fetch_add(1, Ordering::Relaxed) < PREFIXES_MAX
    }

    /// Removes a rule from the count; nodes that are not needed any more are retired in `domain`.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn remove(&self, value: u32, len: u8, domain: &Domain) {
        // SAFETY: the caller's promise.
        let Some(count) = (unsafe { self.trie.get(value, len) }).filter(|c| !c.is_empty()) else {
            return;
        };
        if count.0.fetch_sub(1, Ordering::Release) == 1 {
            self.prefixes.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe { self.trie.trim(value, len, domain) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By scanning: the lengths that match, and whether they do for every address that agrees.
    fn slow(set: &[(u32, u8)], address: u32) -> u64 {
        let within = set.iter().filter(|(v, l)| (v ^ address) & upper(*l) == 0);
        within.fold(0, |lengths, (_, l)| lengths | 1 << l)
    }

    fn prefix() -> impl Strategy<Value = (u32, u8)> {
        // Few bits that vary, so that prefixes nest and meet.
        (any::<u32>(), 1u8..=32).prop_map(|(v, l)| (v & 0xc300_00c3 & upper(l), l))
    }

    proptest! {
        #[test]
        fn agrees_with_a_scan(
            set in prop::collection::vec(prefix(), 0..40),
            gone in prop::collection::vec(any::<usize>(), 0..40),
            addresses in prop::collection::vec(any::<u32>(), 20),
        ) {
            let mut writer = Domain::new().writer();
            let domain = writer.domain().clone();
            let (trie, mut set) = (Counted::default(), set);
            // SAFETY: one thread does everything.
            unsafe {
                set.iter().for_each(|(v, l)| assert!(trie.insert(*v, *l)));
                for i in gone {
                    if !set.is_empty() {
                        let (v, l) = set.swap_remove(i % set.len());
                        trie.remove(v, l, &domain);
                    }
                }
                writer.reclaim();
                let guard = writer.pin();
                for a in addresses.iter().flat_map(|a| [*a, a & 0xc300_00c3]) {
                    let answer = trie.lookup(guard, a);
                    prop_assert_eq!(answer.lengths, slow(&set, a));
                    for b in &addresses {
                        let twin = a & upper(answer.bits) | b & !upper(answer.bits);
                        prop_assert_eq!(trie.lookup(guard, twin), answer);
                    }
                }
                for (v, l) in set {
                    trie.remove(v, l, &domain);
                }
            }
            prop_assert!(trie.trie.is_empty());
        }
    }
}
