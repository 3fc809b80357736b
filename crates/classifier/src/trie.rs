//! The IPv4 prefixes of a table's rules, to tell how few address bits prove that none matches.
//!
//! A path-compressed binary trie. Nodes keep their whole prefix, so that a split adds a node above
//! and changes none: the writer's every change is one pointer store, and readers follow pointers
//! without a lock. A trie counts its prefixes and gives up (is dropped as a whole) past
//! [`MAX_PREFIXES`]: a table of a million host routes should not pay 100 bytes more per rule for
//! it.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use sync::Domain;

/// Distinct prefixes that a trie holds at most.
pub(crate) const MAX_PREFIXES: usize = 100_000;

struct Node {
    /// The prefix, left-aligned; bits past `len` are zero.
    value: u32,
    len: u8,
    /// Rules with exactly this prefix; 0 in a mere branching point.
    rules: AtomicU32,
    child: [AtomicPtr<Node>; 2],
}

/// A set of counted prefixes.
pub(crate) struct Trie {
    root: AtomicPtr<Node>,
    prefixes: AtomicUsize,
}

/// What a trie says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Bit `n`: there is a rule whose prefix of length `n` (1..=32) has the address in it.
    pub lengths: u64,
    /// Upper bits of the address that decided this.
    pub bits: u8,
}

/// A lookup under way.
struct Walk {
    address: u32,
    at: *mut Node,
    answer: Answer,
}

impl Walk {
    /// Looks at one more node; false: there is none.
    ///
    /// # Safety
    /// As [`Trie::lookup`].
    #[inline]
    unsafe fn step(&mut self) -> bool {
        // SAFETY: the caller's promise.
        let Some(node) = (unsafe { self.at.as_ref() }) else { return false };
        self.at = null_mut();
        let same = common(self.address, node.value, node.len);
        if same < node.len {
            self.answer.bits = same + 1;
            return false;
        }
        if node.rules.load(Ordering::Acquire) != 0 {
            self.answer.lengths |= 1 << node.len;
        }
        self.answer.bits = node.len;
        if node.len == 32 {
            return false;
        }
        let child = [0, 1].map(|i| node.child[i].load(Ordering::Acquire));
        if child.iter().any(|c| !c.is_null()) {
            self.answer.bits += 1;
            self.at = child[bit(self.address, node.len)];
        }
        !self.at.is_null()
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
fn common(a: u32, b: u32, len: u8) -> u8 {
    ((a ^ b).leading_zeros() as u8).min(len)
}

impl Node {
    fn new(value: u32, len: u8, rules: u32) -> *mut Node {
        Box::into_raw(Box::new(Node {
            value,
            len,
            rules: AtomicU32::new(rules),
            child: Default::default(),
        }))
    }
}

impl Trie {
    pub fn new() -> Trie {
        Trie { root: AtomicPtr::new(null_mut()), prefixes: AtomicUsize::new(0) }
    }

    /// Which prefixes hold `address`?
    ///
    /// # Safety
    /// As [`sync::Published::read`]: nodes reachable from here must not be freed during the call.
    #[cfg(test)]
    pub unsafe fn lookup(&self, address: u32) -> Answer {
        // SAFETY: the caller's promise.
        let [answer] = unsafe { Trie::lookup_all([(Some(self), address)]) };
        answer
    }

    /// As `lookup`, in several tries at once, so that their cache misses overlap. No trie: no answer
    /// that means anything.
    ///
    /// # Safety
    /// As `lookup`, for each of them.
    pub unsafe fn lookup_all<const N: usize>(of: [(Option<&Trie>, u32); N]) -> [Answer; N] {
        let mut walks = of.map(|(trie, address)| {
            let at = trie.map_or(null_mut(), |t| t.root.load(Ordering::Acquire));
            Walk { address, at, answer: Answer { lengths: 0, bits: 0 } }
        });
        loop {
            // SAFETY: the caller's promise.
            let on = walks.iter_mut().fold(false, |on, w| on | unsafe { w.step() });
            if !on {
                return walks.map(|w| w.answer);
            }
        }
    }

    /// Counts one more rule with a prefix of `len` bits (1..=32). False: the trie is full.
    ///
    /// # Safety
    /// The caller is the only writer.
    pub unsafe fn insert(&self, value: u32, len: u8) -> bool {
        let value = value & upper(len);
        let mut link = &self.root;
        loop {
            let at = link.load(Ordering::Relaxed);
            // SAFETY: linked nodes live until the writer unlinks them.
            let Some(node) = (unsafe { at.as_ref() }) else {
                link.store(Node::new(value, len, 1), Ordering::Release);
                break;
            };
            let same = common(value, node.value, len.min(node.len));
            if same < node.len {
                let above = Node::new(value & upper(same), same, u32::from(same == len));
                // SAFETY: just made, nobody else has it.
                let fresh = unsafe { &*above };
                fresh.child[bit(node.value, same)].store(at, Ordering::Relaxed);
                if same < len {
                    let leaf = Node::new(value, len, 1);
                    fresh.child[bit(value, same)].store(leaf, Ordering::Relaxed);
                }
                link.store(above, Ordering::Release);
                break;
            }
            if node.len == len {
                if node.rules.fetch_add(1, Ordering::Release) > 0 {
                    return true;
                }
                break;
            }
            link = &node.child[bit(value, node.len)];
        }
        self.prefixes.fetch_add(1, Ordering::Relaxed) < MAX_PREFIXES
    }

    /// Counts one rule less; nodes that are no longer needed go through `domain`.
    ///
    /// # Safety
    /// The caller is the only writer.
    pub unsafe fn remove(&self, value: u32, len: u8, domain: &Domain) {
        let mut above: Option<&AtomicPtr<Node>> = None;
        let mut link = &self.root;
        loop {
            let at = link.load(Ordering::Relaxed);
            // SAFETY: linked nodes live until the writer unlinks them.
            let Some(node) = (unsafe { at.as_ref() }) else { return };
            if node.len > len || (value ^ node.value) & upper(node.len) != 0 {
                return;
            }
            if node.len == len {
                if node.rules.load(Ordering::Relaxed) == 0
                    || node.rules.fetch_sub(1, Ordering::Release) > 1
                {
                    return;
                }
                break;
            }
            above = Some(link);
            link = &node.child[bit(value, node.len)];
        }
        self.prefixes.fetch_sub(1, Ordering::Relaxed);
        for link in [Some(link), above].into_iter().flatten() {
            // SAFETY: as above; `link` is in a node that is still linked or was just spliced out
            // and not freed.
            unsafe { splice(link, domain) };
        }
    }
}

/// Takes the node that `link` points at out of the way if it has no rules and no two children.
///
/// # Safety
/// The caller is the only writer; `link` belongs to a node that is not freed.
unsafe fn splice(link: &AtomicPtr<Node>, domain: &Domain) {
    let at = link.load(Ordering::Relaxed);
    // SAFETY: linked nodes live until the writer unlinks them.
    let Some(node) = (unsafe { at.as_ref() }) else { return };
    let child = [0, 1].map(|i| node.child[i].load(Ordering::Relaxed));
    let two = child.iter().all(|c| !c.is_null());
    if two || node.rules.load(Ordering::Relaxed) != 0 {
        return;
    }
    let only = child.into_iter().find(|c| !c.is_null()).unwrap_or(null_mut());
    link.store(only, Ordering::Release);
    // SAFETY: made by Box::into_raw and unlinked now; freed when no reader can hold it.
    domain.retire(unsafe { Box::from_raw(at) });
}

impl Drop for Trie {
    fn drop(&mut self) {
        let mut left = vec![*self.root.get_mut()];
        while let Some(at) = left.pop() {
            if !at.is_null() {
                // SAFETY: exclusive access; each node is linked once.
                let mut node = unsafe { Box::from_raw(at) };
                left.extend(node.child.iter_mut().map(|c| *c.get_mut()));
            }
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
            let domain = Domain::new();
            let (trie, mut set) = (Trie::new(), set);
            // SAFETY: one thread does everything.
            unsafe {
                set.iter().for_each(|(v, l)| assert!(trie.insert(*v, *l)));
                for i in gone {
                    if !set.is_empty() {
                        let (v, l) = set.swap_remove(i % set.len());
                        trie.remove(v, l, &domain);
                    }
                }
                domain.reclaim();
                for a in addresses.iter().flat_map(|a| [*a, a & 0xc300_00c3]) {
                    let answer = trie.lookup(a);
                    prop_assert_eq!(answer.lengths, slow(&set, a));
                    for b in &addresses {
                        let twin = a & upper(answer.bits) | b & !upper(answer.bits);
                        prop_assert_eq!(trie.lookup(twin), answer);
                    }
                }
                for (v, l) in set {
                    trie.remove(v, l, &domain);
                }
            }
            prop_assert!(trie.root.load(Ordering::Relaxed).is_null());
        }
    }
}
