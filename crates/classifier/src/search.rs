//! Lookups in a prefix trie, of several keys together: each step prefetches what the next one
//! reads, for all keys.

use std::sync::atomic::{Ordering, fence};

use flow::{Key, Mask, at};
use sync::Guard;

use crate::chain::Handle;
use crate::node::{Block, DEPTHS, L4, LANES, Node, addresses};
use crate::prefix_trie::PrefixTrie;
use crate::prefixes;
use crate::subtable::Wanted;
use sync::prefetch;

/// Nodes on the path of one address, at most.
const ADDRESS_NODES_MAX: usize = DEPTHS as usize + 1;

/// Nodes with rules for one key, at most: those of the destination, and of a source trie at each.
const KEY_NODES_MAX: usize = ADDRESS_NODES_MAX * (ADDRESS_NODES_MAX + 1);

/// Rules with matching addresses that are read together, at most.
const RULES_AT_ONCE: usize = 32;

/// The nodes that may have rules for some keys.
struct Paths<'a, T, const N: usize> {
    addresses: [u64; N],
    nodes: [[Option<&'a Node<T>>; KEY_NODES_MAX]; N],
    n: [usize; N],
}

impl<'a, T: 'static, const N: usize> Paths<'a, T, N> {
    /// Paths from the root. Unused keys have no nodes.
    fn from(root: &'a Node<T>, guard: Guard<'a>, keys: &[&Key]) -> Self {
        let ipv4 = |i: usize| keys.get(i).filter(|k| k.u16(at::ETH_TYPE) == wire::ETH_IPV4);
        let mut paths = Paths {
            addresses: std::array::from_fn(|i| ipv4(i).map_or(0, |k| addresses(k))),
            nodes: [[None; KEY_NODES_MAX]; N],
            n: [0; N],
        };
        paths.walk(guard, std::array::from_fn(|i| ipv4(i).map(|_| root)));
        for k in 0..ADDRESS_NODES_MAX {
            let at = std::array::from_fn(|i| {
                paths.nodes[i][k].filter(|n| n.along == 0)?.source_trie(guard)
            });
            paths.walk(guard, at);
        }
        paths
    }

    /// Continues from these nodes to the ends of the paths.
    #[inline]
    fn walk(&mut self, guard: Guard<'a>, mut at: [Option<&'a Node<T>>; N]) {
        while at.iter().any(Option::is_some) {
            let mut slots = [None; N];
            for i in 0..N {
                let Some(node) = at[i] else { continue };
                (self.nodes[i][self.n[i]], self.n[i]) = (at[i], self.n[i] + 1);
                node.prefetch_blocks();
                let byte = node.byte(self.addresses[i]);
                if node.depth < DEPTHS && node.has(byte) {
                    slots[i] = node.slot(guard, byte);
                    slots[i].iter().for_each(|s| prefetch(*s));
                }
            }
            for (at, slot) in at.iter_mut().zip(slots) {
                *at = slot.and_then(|s| s.get(guard));
                at.iter().for_each(|n| prefetch(*n));
            }
        }
    }

    fn nodes(&self, i: usize) -> impl Iterator<Item = &'a Node<T>> {
        self.nodes[i][..self.n[i]].iter().flatten().copied()
    }
}

/// A rule with matching addresses for a key.
struct Candidate<'a, T> {
    key: usize,
    block: &'a Block<T>,
    lane: usize,
    /// None: it does not match the key.
    rule: Option<Handle<'a, T>>,
    /// True if the rule matches on more than its record has.
    more: bool,
}

/// The keys and what was found for them.
pub(crate) struct Search<'k, 'b, 'a, T> {
    pub keys: &'k [&'k Key],
    pub version: u64,
    pub best: &'b mut [Option<Handle<'a, T>>],
}

impl<'a, T: 'static> Search<'_, '_, 'a, T> {
    #[inline]
    fn least(&self, i: usize) -> u32 {
        self.best[i].map_or(0, |b| u32::from(b.priority()) + 1)
    }

    /// Examines all rules in these nodes.
    fn all<const N: usize>(&mut self, guard: Guard<'a>, paths: &Paths<'a, T, N>) {
        let mut found: [Option<Candidate<'a, T>>; RULES_AT_ONCE] = [const { None }; RULES_AT_ONCE];
        let mut n = 0;
        for key in 0..self.keys.len().min(N) {
            let addresses = paths.addresses[key];
            let least = self.least(key);
            for node in paths.nodes(key).filter(|n| u32::from(n.max()) >= least) {
                // The newest rules come first.
                for block in node.blocks(guard).iter().rev() {
                    let mut having = block.having(addresses);
                    while having != 0 {
                        let lane = having.ilog2() as usize;
                        having ^= 1 << lane;
                        block.prefetch_rest();
                        if n == RULES_AT_ONCE {
                            self.settle(guard, &mut found);
                            n = 0;
                        }
                        found[n] = Some(Candidate { key, block, lane, rule: None, more: false });
                        n += 1;
                    }
                }
            }
        }
        self.settle(guard, &mut found[..n]);
    }

    /// Examines these candidates, in order, and keeps the best.
    fn settle(&mut self, guard: Guard<'a>, found: &mut [Option<Candidate<'a, T>>]) {
        for c in found.iter_mut().flatten() {
            let word = c.block.word(guard, c.lane);
            if c.block.agrees(c.lane, self.keys[c.key].words[L4])
                && u32::from(word.priority()) >= self.least(c.key)
            {
                (c.rule, c.more) = (word.get(), word.more());
                crate::slots::prefetch(word.pointer());
            }
        }
        for c in found.iter().flatten() {
            let Some(rule) = c.rule else { continue };
            if u32::from(rule.priority()) >= self.least(c.key)
                && rule.visible(self.version)
                && (!c.more || rule.matches(self.keys[c.key]))
            {
                self.best[c.key] = Some(rule);
            }
        }
    }
}

/// Marks the bits of a key that exclude all rules of at least this priority, except those that
/// match.
fn exclude<'a, T: 'static>(
    guard: Guard<'a>,
    nodes: impl Iterator<Item = &'a Node<T>>,
    want: &Wanted<'_>,
    marked: &mut Mask,
) {
    let own = addresses(want.key);
    let matters = |priority: u16| u32::from(priority) >= want.least;
    let mut nodes = nodes.peekable();
    while let Some(node) = nodes.next() {
        if !matters(node.reach()) {
            continue;
        }
        let field = prefixes::FIELDS[usize::from(node.along)];
        prefixes::mark(marked, field, 8 * node.depth);
        // A child with relevant rules is excluded by itself; one that was added since has a later
        // version.
        let child = nodes.peek().filter(|c| c.depth > node.depth);
        if node.depth < DEPTHS && !child.is_some_and(|c| matters(c.reach())) {
            let bits = node.bits_apart(node.byte(own));
            prefixes::mark(marked, field, 8 * node.depth + bits);
        }
        if !matters(node.max()) {
            continue;
        }
        for (block, lane) in node.blocks(guard).iter().flat_map(Block::lanes) {
            if block.is_away(lane, own, addresses(marked)) {
                continue;
            }
            let record = block.record(guard, lane);
            let word = record.rule();
            if !word.is_null()
                && matters(word.priority())
                && !record.exclude(want.key, marked)
                && word.more()
                && let Some(rule) = word.get()
                && rule.visible(want.version)
            {
                rule.decides(want.key, marked);
            }
        }
    }
}

impl<T: Send + Sync + 'static> PrefixTrie<T> {
    /// The wanted rule of the highest priority; marks in `wildcards` the bits that decided.
    pub fn lookup<'a>(
        &'a self,
        guard: Guard<'a>,
        want: &Wanted<'_>,
        wildcards: &mut Mask,
    ) -> Option<Handle<'a, T>> {
        wildcards.set_u16(at::ETH_TYPE, 0xffff);
        if want.key.u16(at::ETH_TYPE) != wire::ETH_IPV4 {
            return None;
        }
        loop {
            let moves = self.moves.load(Ordering::Acquire);
            let (keys, mut best) = ([want.key], [None]);
            let paths = Paths::<T, 1>::from(&self.root, guard, &keys);
            Search { keys: &keys, version: want.version, best: &mut best }.all(guard, &paths);
            let best = best[0].filter(|b: &Handle<'_, T>| u32::from(b.priority()) >= want.least);
            let least = best.map_or(want.least, |b| u32::from(b.priority()));
            if let Some(best) = best {
                best.decides(want.key, wildcards);
            }
            exclude(guard, paths.nodes(0), &Wanted { least, ..*want }, wildcards);
            if self.same_since(moves) {
                return best;
            }
        }
    }

    /// Replaces what is known of these keys by better rules.
    pub fn lookup_all<'a, const N: usize>(
        &'a self,
        guard: Guard<'a>,
        search: &mut Search<'_, '_, 'a, T>,
    ) {
        loop {
            let moves = self.moves.load(Ordering::Acquire);
            search.all(guard, &Paths::<T, N>::from(&self.root, guard, search.keys));
            if self.same_since(moves) {
                return;
            }
        }
    }

    fn same_since(&self, moves: u64) -> bool {
        fence(Ordering::Acquire);
        self.moves.load(Ordering::Relaxed) == moves
    }

    /// Prefetches what looking these keys up reads.
    pub fn prepare(&self, guard: Guard<'_>, keys: &[&Key]) {
        const PREPARED_KEYS: usize = 8;
        for keys in keys.chunks(PREPARED_KEYS) {
            let mut best = [None; PREPARED_KEYS];
            let mut search = Search { keys, version: 0, best: &mut best };
            self.lookup_all::<PREPARED_KEYS>(guard, &mut search);
        }
    }
}

const _: () = assert!(LANES <= 32);
