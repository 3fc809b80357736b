//! The prefix trie, which holds the rules of access lists: a trie of destination prefixes, a byte
//! at a time, and where many rules share a destination a trie of their sources (a hierarchical
//! trie, Gupta and McKeown 2001; nodes that split only when they are full are those of a burst
//! trie, Heinz et al. 2002).
//!
//! Five-tuple rules have thousands of masks. A hash table for each, even if several share one,
//! costs a lookup a probe. Here a lookup follows a few pointers, and the bits that decide are a
//! prefix of either address and a few bits of the rest, whatever the rules elsewhere look like.
//! Each rule is in one place, so changes are local.
//!
//! A rule is as near to the root as there is room: a full node moves its rules with longer prefixes
//! to children, or all of them to its source trie. Readers may see a move half done. So `moves` is
//! counted between a rule's arrival at the new place and its departure from the old one, and a
//! reader that sees the count change searches again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flow::{Key, Mask, at};
use sync::{Domain, Guard};

use crate::chain::Handle;
use crate::node::{self, DEPTHS, Node, Record};
use crate::prefixes;
use crate::rule::Rule;

/// Rules of a node from which on some are moved.
const NODE_RULES_MAX: usize = 16;

/// Rules with the same prefixes from which on further ones go to subtables.
const SAME_PREFIX_RULES_MAX: usize = 64;

/// Key bytes that rules here may match on, besides the Ethertype: addresses, ports, protocol, TOS,
/// TTL, fragments and TCP flags.
const L3_L4: std::ops::Range<usize> = at::IP_SRC..at::TCP_FLAGS + 2;

/// The words with these bytes.
pub(crate) const LOOKED_WORDS: u64 = {
    let last = (L3_L4.end - 1) / 8;
    (1 << (at::ETH_TYPE / 8)) | ((2 << last) - (1 << (L3_L4.start / 8)))
};

/// Nodes on the path to a rule, at most.
const PATH_NODES_MAX: usize = 2 * (DEPTHS as usize + 1);

/// The destination and the source prefix of a rule.
pub(crate) type Place = [(u32, u8); 2];

/// A trie of destination prefixes, with tries of sources. Readers share it with the one writer.
pub(crate) struct PrefixTrie<T: Send + Sync + 'static> {
    pub root: Node<T>,
    /// Number of times that rules were moved.
    pub moves: AtomicU64,
}

impl<T: Send + Sync + 'static> Default for PrefixTrie<T> {
    fn default() -> Self {
        PrefixTrie { root: Node::new(0, 0), moves: AtomicU64::new(0) }
    }
}

impl<T: Send + Sync + 'static> Drop for PrefixTrie<T> {
    fn drop(&mut self) {
        // SAFETY: no other reference to the prefix trie exists.
        unsafe { node::give_up(&self.root) };
    }
}

/// The place of a rule with this match: its destination and source prefixes. None: it cannot be in
/// a prefix trie.
pub(crate) fn place(key: &Key, mask: &Mask) -> Option<Place> {
    let allowed = |byte: usize| L3_L4.contains(&byte) || (at::ETH_TYPE..at::VLAN).contains(&byte);
    let few = mask.bytes().iter().enumerate().all(|(i, b)| *b == 0 || allowed(i));
    let ipv4 = mask.u16(at::ETH_TYPE) == 0xffff && key.u16(at::ETH_TYPE) == wire::ETH_IPV4;
    let place = prefixes::FIELDS.map(|at| {
        let mask = mask.u32(at);
        let prefix = mask.leading_ones() == mask.count_ones();
        prefix.then_some((key.u32(at) & mask, mask.leading_ones() as u8))
    });
    let [Some(dst), Some(src)] = place else { return None };
    (few && ipv4 && (dst.1, src.1) != (0, 0)).then_some([dst, src])
}

/// Both addresses of a place.
fn addresses([dst, src]: Place) -> u64 {
    u64::from(src.0) << 32 | u64::from(dst.0)
}

/// True if the prefix is long enough for a child of this node.
fn goes_below<T: 'static>(node: &Node<T>, place: Place) -> bool {
    node.depth < DEPTHS && place[usize::from(node.along)].1 >= 8 * (node.depth + 1)
}

/// The byte of the child in which a rule of this place is, or belongs, below this node.
fn byte_below<T: Send + Sync + 'static>(node: &Node<T>, place: Place) -> Option<usize> {
    (node.is_deep() && goes_below(node, place)).then(|| node.byte(addresses(place)))
}

/// Methods: `unsafe` ones are for the only writer.
impl<T: Send + Sync + 'static> PrefixTrie<T> {
    /// The node for rules of this place, if there is one, behind all nodes on the path to it.
    fn way<'g>(
        &'g self,
        guard: Guard<'g>,
        place: Place,
    ) -> ([Option<&'g Node<T>>; PATH_NODES_MAX], usize) {
        let (mut way, mut n, mut at) = ([None; PATH_NODES_MAX], 0, Some(&self.root));
        while let Some(node) = at {
            (way[n], n) = (at, n + 1);
            at = match byte_below(node, place) {
                Some(byte) => match node.child(guard, byte) {
                    None => return (way, 0),
                    child => child,
                },
                None => node.source_trie(guard),
            };
        }
        (way, n)
    }

    fn node_for<'g>(&'g self, guard: Guard<'g>, place: Place) -> Option<&'g Node<T>> {
        let (way, n) = self.way(guard, place);
        way[n.checked_sub(1)?]
    }

    /// True if the place has as many rules as it may have.
    pub fn is_full(&self, guard: Guard<'_>, place: Place) -> bool {
        self.node_for(guard, place)
            .is_some_and(|n| n.live() >= SAME_PREFIX_RULES_MAX && !splits(n, guard, place))
    }

    /// The rules with these prefixes, among others.
    pub fn same<'g>(
        &'g self,
        guard: Guard<'g>,
        place: Place,
    ) -> impl Iterator<Item = Handle<'g, T>> {
        let records = self.node_for(guard, place).into_iter().flat_map(move |n| n.records(guard));
        records.filter_map(|r| r.rule().get())
    }

    /// Calls `each` with the rules that may share packets with a match, until it returns false;
    /// returns false then.
    pub fn around(
        &self,
        guard: Guard<'_>,
        key: &Key,
        mask: &Mask,
        each: &mut dyn FnMut(Handle<'_, T>) -> bool,
    ) -> bool {
        let place = prefixes::FIELDS.map(|at| (key.u32(at), mask.u32(at).leading_ones() as u8));
        around(&self.root, guard, place, &mut |node| {
            node.records(guard).filter_map(|r| r.rule().get()).all(&mut *each)
        })
    }

    /// Every rule.
    pub fn each(&self, guard: Guard<'_>, each: &mut dyn FnMut(Handle<'_, T>)) {
        self.around(guard, &Key::ZERO, &Mask::ZERO, &mut |r| {
            each(r);
            true
        });
    }

    /// Links a rule.
    pub unsafe fn link(&self, rule: Arc<Rule<T>>, place: Place, domain: &Domain) {
        let priority = rule.priority();
        // SAFETY: the caller's promise; the rule is kept until it is unlinked, and no node is
        // unlinked meanwhile.
        unsafe {
            let guard = Guard::unprotected();
            let Some(rule) = Handle::new(Arc::into_raw(rule).cast_mut()) else { return };
            let record = Record::new(rule);
            let mut node = &self.root;
            loop {
                node.announce(priority);
                let further = match byte_below(node, place) {
                    Some(byte) => node.make(guard, byte),
                    None => node.source_trie(guard),
                };
                match further {
                    Some(further) => node = further,
                    None if node.live() >= NODE_RULES_MAX && splits(node, guard, place) => {
                        self.split(node, place, domain)
                    }
                    None => return node.add(record, domain),
                }
            }
        }
    }

    /// Moves rules to children or to the source trie.
    unsafe fn split(&self, node: &Node<T>, place: Place, domain: &Domain) {
        // SAFETY: the caller's promise.
        unsafe {
            let below = |p: &Place| goes_below(node, *p);
            let all: Vec<_> = node.records(Guard::unprotected()).collect();
            let deep =
                !node.is_deep() && all.iter().map(Record::place).chain([place]).any(|p| below(&p));
            let (go, stay): (Vec<_>, Vec<_>) = all.iter().partition(|r| !deep || below(&r.place()));
            match deep {
                true => node.deepen(&go, domain),
                false => node.spread(&go, domain),
            }
            self.moves.fetch_add(1, Ordering::AcqRel);
            node.publish(&stay, domain);
        }
    }

    /// Unlinks a rule and returns the reference to it; None: it is not here.
    pub unsafe fn unlink(
        &self,
        rule: &Rule<T>,
        place: Place,
        domain: &Domain,
    ) -> Option<Arc<Rule<T>>> {
        // SAFETY: the caller's promise.
        unsafe {
            let guard = Guard::unprotected();
            let (way, n) = self.way(guard, place);
            let way = &way[..n];
            let home = way.last().copied().flatten()?;
            let mut records = home.records(guard).map(|r| r.rule().pointer());
            let pointer = records.find(|p| std::ptr::eq(*p, rule))?;
            home.take(rule, domain);
            for (i, node) in way.iter().enumerate().rev() {
                let Some(node) = node else { continue };
                if !node.settle(guard, rule.priority())
                    && let Some(Some(above)) = i.checked_sub(1).map(|i| way[i])
                {
                    above.cut(node, above.byte(addresses(place)), domain);
                }
            }
            Some(Arc::from_raw(pointer))
        }
    }

    /// Heap memory of the nodes, bytes.
    pub fn bytes(&self, guard: Guard<'_>) -> usize {
        let mut sum = 0;
        let all = [(0, 0); 2];
        around(&self.root, guard, all, &mut |node| {
            sum += node.bytes(guard);
            true
        });
        sum - size_of::<Node<T>>()
    }
}

/// True if a node can move some of its rules, or this one.
fn splits<T: Send + Sync + 'static>(node: &Node<T>, guard: Guard<'_>, place: Place) -> bool {
    let any = |f: &dyn Fn(Place) -> bool| f(place) || node.records(guard).any(|r| f(r.place()));
    let below = !node.is_deep() && any(&|p| goes_below(node, p));
    below || node.along == 0 && any(&|p| p[1].1 >= 8)
}

/// Calls `each` with all nodes that may have rules whose places overlap this one, until it returns
/// false.
fn around<T: 'static>(
    node: &Node<T>,
    guard: Guard<'_>,
    place: Place,
    each: &mut dyn FnMut(&Node<T>) -> bool,
) -> bool {
    if !each(node) {
        return false;
    }
    let (value, len) = place[usize::from(node.along)];
    let bits = u32::from(len.saturating_sub(8 * node.depth)).min(8);
    let wanted = node.byte(addresses(place));
    debug_assert!(node.depth < DEPTHS || node.below(guard).next().is_none(), "{value}");
    let near = |byte: usize| (byte ^ wanted) >> (8 - bits) == 0;
    let below = node.below(guard).filter(|(byte, _)| near(*byte));
    below.map(|(_, c)| c).chain(node.source_trie(guard)).all(|n| around(n, guard, place, each))
}
