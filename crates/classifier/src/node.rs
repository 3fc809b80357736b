//! Nodes of a prefix trie: the rules of a prefix, in blocks, and the child nodes by the next byte
//! of the address.

use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};

use flow::{Key, Mask, at};
use sync::{Domain, Guard, Link};

use crate::chain::Handle;
use crate::prefix_trie::Place;
use crate::prefixes::WORD;
use crate::rule::Rule;
use sync::prefetch;

/// The word of ports, protocol, TOS, TTL and fragments.
pub(crate) const L4: usize = at::TP_SRC / 8;

/// Rules of a block.
pub(crate) const LANES: usize = 4;

/// Bytes of an address: nodes of this depth stand for whole addresses.
pub(crate) const DEPTHS: u8 = 4;

const PRIORITY_SHIFT: u32 = 48;
const ADDRESS: usize = (1 << PRIORITY_SHIFT) - 2;
/// Bit of a rule's word: the rule matches on more than its record has.
const MORE_BLOCKS_BIT: usize = 1;

/// Both IPv4 addresses of a key: the source in the upper half, the destination in the lower.
#[inline]
pub(crate) fn addresses(key: &Key) -> u64 {
    u64::from_be(key.words[WORD])
}

/// A rule, in the form that blocks have.
pub(crate) struct Record<'g, T> {
    addresses: u64,
    address_mask: u64,
    l4: u64,
    l4_mask: u64,
    rule: Word<'g, T>,
}

impl<T> Clone for Record<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Record<'_, T> {}

impl<'g, T> Record<'g, T> {
    /// The record of a rule.
    pub fn new(rule: Handle<'g, T>) -> Record<'g, T> {
        let (key, mask) = (rule.key(), rule.mask());
        let known = |i: usize| [at::ETH_TYPE / 8, WORD, L4].contains(&i);
        let more = (0..flow::WORDS).any(|i| mask.words[i] != 0 && !known(i));
        let tag = (usize::from(rule.priority()) << PRIORITY_SHIFT)
            | (usize::from(more) * MORE_BLOCKS_BIT);
        Record {
            addresses: addresses(&key) & addresses(&mask),
            address_mask: addresses(&mask),
            l4: key.words[L4] & mask.words[L4],
            l4_mask: mask.words[L4],
            rule: Word(rule.pointer().map_addr(|a| a | tag), PhantomData),
        }
    }

    /// Destination and source prefix.
    pub fn place(&self) -> Place {
        [0, 32].map(|by| {
            let mask = (self.address_mask >> by) as u32;
            ((self.addresses >> by) as u32, mask.count_ones() as u8)
        })
    }

    /// Its rule.
    pub fn rule(&self) -> Word<'g, T> {
        self.rule
    }
}

/// A pointer to a rule as [`Handle`] has it, with the rule's priority; null: no rule.
pub(crate) struct Word<'g, T>(*mut Rule<T>, PhantomData<&'g Rule<T>>);

impl<T> Clone for Word<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Word<'_, T> {}

impl<'g, T> Word<'g, T> {
    /// The rule's priority; 0 if there is no rule.
    #[inline]
    pub fn priority(self) -> u16 {
        (self.0.addr() >> PRIORITY_SHIFT) as u16
    }

    /// True if the rule matches on more than its record has.
    #[inline]
    pub fn more(self) -> bool {
        self.0.addr() & MORE_BLOCKS_BIT != 0
    }

    /// The rule's address.
    #[inline]
    pub fn pointer(self) -> *mut Rule<T> {
        self.0.map_addr(|a| a & ADDRESS)
    }

    /// True if there is no rule.
    #[inline]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The rule.
    #[inline]
    pub fn get(self) -> Option<Handle<'g, T>> {
        // SAFETY: read from a block, or a handle's.
        unsafe { Handle::new(self.pointer()) }
    }
}

/// Four rules; a packet with other addresses reads only the first line. One writer changes blocks
/// in place: a rule's word is written last when it is added, and first when it is removed, and its
/// lane is not used again.
#[repr(align(64))]
pub(crate) struct Block<T> {
    addresses: [AtomicU64; LANES],
    address_masks: [AtomicU64; LANES],
    l4: [AtomicU64; LANES],
    l4_masks: [AtomicU64; LANES],
    rules: [AtomicPtr<Rule<T>>; LANES],
}

impl<T> Block<T> {
    fn new() -> Block<T> {
        let zero = || [const { AtomicU64::new(0) }; LANES];
        Block {
            // No packet has these addresses under masks of zero.
            addresses: [const { AtomicU64::new(1) }; LANES],
            address_masks: zero(),
            l4: zero(),
            l4_masks: zero(),
            rules: [const { AtomicPtr::new(null_mut()) }; LANES],
        }
    }

    /// This block, with each of its lanes.
    pub fn lanes(&self) -> impl Iterator<Item = (&Block<T>, usize)> {
        (0..LANES).map(move |i| (self, i))
    }

    /// The lanes whose prefixes contain these addresses, a bit each.
    #[inline]
    pub fn having(&self, addresses: u64) -> u32 {
        (0..LANES).fold(0, |found, i| {
            let same = addresses & self.address_masks[i].load(Ordering::Relaxed)
                == self.addresses[i].load(Ordering::Relaxed);
            found | u32::from(same) << i
        })
    }

    /// True if a lane's rule differs from these addresses in bits that are marked. Reads the first
    /// line only.
    #[inline]
    pub fn is_away(&self, lane: usize, addresses: u64, marked: u64) -> bool {
        let differ = addresses ^ self.addresses[lane].load(Ordering::Relaxed);
        differ & self.address_masks[lane].load(Ordering::Relaxed) & marked != 0
    }

    /// Prefetches what is read when addresses agree.
    #[inline]
    pub fn prefetch_rest(&self) {
        prefetch(&raw const self.l4);
        prefetch(&raw const self.rules);
    }

    /// True if a key's word agrees with a rule's ports and protocol.
    #[inline]
    pub fn agrees(&self, lane: usize, l4: u64) -> bool {
        l4 & self.l4_masks[lane].load(Ordering::Relaxed) == self.l4[lane].load(Ordering::Relaxed)
    }

    /// The rule of a lane.
    #[inline]
    pub fn word<'g>(&'g self, _: Guard<'g>, lane: usize) -> Word<'g, T> {
        Word(self.rules[lane].load(Ordering::Acquire), PhantomData)
    }

    /// The record of a lane.
    #[inline]
    pub fn record<'g>(&'g self, guard: Guard<'g>, lane: usize) -> Record<'g, T> {
        Record {
            rule: self.word(guard, lane),
            addresses: self.addresses[lane].load(Ordering::Relaxed),
            address_mask: self.address_masks[lane].load(Ordering::Relaxed),
            l4: self.l4[lane].load(Ordering::Relaxed),
            l4_mask: self.l4_masks[lane].load(Ordering::Relaxed),
        }
    }

    fn put(&self, lane: usize, record: Record<'_, T>) {
        self.l4[lane].store(record.l4, Ordering::Relaxed);
        self.l4_masks[lane].store(record.l4_mask, Ordering::Relaxed);
        self.address_masks[lane].store(record.address_mask, Ordering::Relaxed);
        self.addresses[lane].store(record.addresses, Ordering::Relaxed);
        self.rules[lane].store(record.rule.0, Ordering::Release);
    }

    fn clear(&self, lane: usize) {
        self.rules[lane].store(null_mut(), Ordering::Release);
        self.addresses[lane].store(1, Ordering::Relaxed);
        self.address_masks[lane].store(0, Ordering::Relaxed);
    }
}

impl<T> Record<'_, T> {
    /// Marks something in which the key differs from the record: nothing new if it differs in
    /// marked bits, else a prefix of an address, else a bit of ports and protocol. False: the key
    /// agrees.
    #[inline]
    pub fn exclude(&self, key: &Key, marked: &mut Mask) -> bool {
        let differ = (addresses(key) ^ self.addresses) & self.address_mask;
        let l4 = (key.words[L4] ^ self.l4) & self.l4_mask;
        if differ & addresses(marked) != 0 || l4 & marked.words[L4] != 0 {
            return true;
        }
        let (dst, src) = (differ as u32, (differ >> 32) as u32);
        if dst != 0 {
            crate::prefixes::mark(marked, at::IP_DST, dst.leading_zeros() as u8 + 1);
        } else if src != 0 {
            crate::prefixes::mark(marked, at::IP_SRC, src.leading_zeros() as u8 + 1);
        } else if l4 != 0 {
            marked.words[L4] |= crate::rule::one_bit(L4, l4);
        }
        differ != 0 || l4 != 0
    }
}

/// The child nodes, by the next byte of the address.
pub(crate) type Children<T> = [Link<Node<T>>; 256];

/// The rules whose prefix begins with the node's prefix, except those in its children or in its
/// source trie.
#[repr(align(64))]
pub(crate) struct Node<T> {
    /// Which children exist, a bit each.
    bitmap: [AtomicU64; 4],
    /// The blocks; the upper bits of the pointer are their number.
    body: AtomicPtr<Block<T>>,
    children: Link<Children<T>>,
    /// A trie of the rules by source, of a destination's node with many rules.
    source_trie: Link<Node<T>>,
    /// An upper bound of the priorities of the rules here.
    max: AtomicU16,
    /// An upper bound of the priorities of the rules in children and the source trie.
    reach: AtomicU16,
    /// Number of rules here; then the number of lanes that were ever used.
    live: AtomicU8,
    used: AtomicU8,
    /// Number of whole bytes of the prefix.
    pub depth: u8,
    /// The address of the trie: 0 destination, 1 source.
    pub along: u8,
}

const BLOCKS_SHIFT: u32 = 48;

impl<T: 'static> Node<T> {
    pub fn new(depth: u8, along: u8) -> Node<T> {
        Node {
            bitmap: Default::default(),
            body: AtomicPtr::new(null_mut()),
            children: Link::null(),
            source_trie: Link::null(),
            max: AtomicU16::new(0),
            reach: AtomicU16::new(0),
            live: AtomicU8::new(0),
            used: AtomicU8::new(0),
            depth,
            along,
        }
    }

    /// An upper bound of the priorities of the rules here.
    #[inline]
    pub fn max(&self) -> u16 {
        self.max.load(Ordering::Acquire)
    }

    /// An upper bound of the priorities of the rules here, in children, and in the source trie.
    #[inline]
    pub fn reach(&self) -> u16 {
        self.reach.load(Ordering::Acquire)
    }

    /// Number of rules here.
    pub fn live(&self) -> usize {
        usize::from(self.live.load(Ordering::Relaxed))
    }

    /// The blocks of its rules.
    #[inline]
    pub fn blocks<'g>(&'g self, _: Guard<'g>) -> &'g [Block<T>] {
        let word = self.body.load(Ordering::Acquire);
        let first = word.map_addr(|a| a & ((1 << BLOCKS_SHIFT) - 1));
        match word.addr() >> BLOCKS_SHIFT {
            0 => &[],
            // SAFETY: published by `publish` with this number, and retired when replaced.
            n => unsafe { std::slice::from_raw_parts(first, n) },
        }
    }

    /// Prefetches the first lines of its blocks.
    #[inline]
    pub fn prefetch_blocks(&self) {
        let word = self.body.load(Ordering::Acquire);
        let first = word.map_addr(|a| a & ((1 << BLOCKS_SHIFT) - 1));
        (0..word.addr() >> BLOCKS_SHIFT).for_each(|i| prefetch(first.wrapping_add(i)));
    }

    /// The byte of the address in which the children differ.
    #[inline]
    pub fn byte(&self, addresses: u64) -> usize {
        let address = addresses >> (32 * self.along) & u64::from(u32::MAX);
        (address << (8 * self.depth) >> 24) as usize & 0xff
    }

    /// True if there is a child for this byte.
    #[inline]
    pub fn has(&self, byte: usize) -> bool {
        self.bitmap[byte / 64].load(Ordering::Acquire) >> (byte % 64) & 1 != 0
    }

    /// The link to the child of a byte.
    #[inline]
    pub fn slot<'g>(&'g self, guard: Guard<'g>, byte: usize) -> Option<&'g Link<Node<T>>> {
        self.children.get(guard).map(|c| &c[byte])
    }

    /// The child of a byte.
    #[inline]
    pub fn child<'g>(&'g self, guard: Guard<'g>, byte: usize) -> Option<&'g Node<T>> {
        self.slot(guard, byte)?.get(guard)
    }

    /// The root of the node's source trie.
    #[inline]
    pub fn source_trie<'g>(&'g self, guard: Guard<'g>) -> Option<&'g Node<T>> {
        self.source_trie.get(guard)
    }

    /// Number of a byte's upper bits that distinguish it from the bytes of all other children.
    pub fn bits_apart(&self, byte: usize) -> u8 {
        let bitmap = self.bitmap.each_ref().map(|w| w.load(Ordering::Acquire));
        let bitmap: [u64; 4] = std::array::from_fn(|w| match w == byte / 64 {
            true => bitmap[w] & !(1 << (byte % 64)),
            false => bitmap[w],
        });
        // Whether there are others among the 2^n bytes around it, from all bytes down to two.
        let others = |bits: u32| {
            let (size, from) = (256 >> bits, byte & !((256 >> bits) - 1));
            match size {
                64.. => bitmap[from / 64..(from + size) / 64].iter().any(|w| *w != 0),
                _ => bitmap[from / 64] >> (from % 64) & ((1 << size) - 1) != 0,
            }
        };
        (0..8).take_while(|bits| others(*bits)).count() as u8
    }

    /// The rules here.
    pub fn records<'g>(&'g self, guard: Guard<'g>) -> impl Iterator<Item = Record<'g, T>> {
        let lanes = self.blocks(guard).iter().flat_map(Block::lanes);
        let all = lanes.map(move |(b, i)| b.record(guard, i));
        all.filter(|r| !r.rule.is_null())
    }

    /// Its children.
    pub fn below<'g>(&'g self, guard: Guard<'g>) -> impl Iterator<Item = (usize, &'g Node<T>)> {
        let all = self.children.get(guard).into_iter().flatten().enumerate();
        all.filter_map(move |(byte, c)| Some((byte, c.get(guard)?)))
    }

    /// Heap memory, bytes.
    pub fn bytes(&self, guard: Guard<'_>) -> usize {
        let children = !self.children.is_null();
        let own = size_of_val(self.blocks(guard));
        own + size_of::<Node<T>>() + usize::from(children) * size_of::<Children<T>>()
    }
}

/// Methods for the writer: `unsafe` ones are for the only writer.
impl<T: Send + Sync + 'static> Node<T> {
    /// Announces a rule to be added, here or below.
    pub fn announce(&self, priority: u16) {
        self.reach.fetch_max(priority, Ordering::AcqRel);
    }

    /// Adds a rule.
    pub unsafe fn add(&self, record: Record<'_, T>, domain: &Domain) {
        self.max.fetch_max(record.rule.priority(), Ordering::AcqRel);
        self.announce(record.rule.priority());
        let used = usize::from(self.used.load(Ordering::Relaxed));
        // SAFETY: this is the writer, and does not replace what it reads before it is done.
        let guard = unsafe { Guard::unprotected() };
        match self.blocks(guard).get(used / LANES) {
            Some(block) => {
                block.put(used % LANES, record);
                self.used.fetch_add(1, Ordering::Relaxed);
                self.live.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                let all: Vec<_> = self.records(guard).chain([record]).collect();
                // SAFETY: the caller's promise.
                unsafe { self.publish(&all, domain) };
            }
        }
    }

    /// Removes a rule; false: it is not here.
    pub unsafe fn take(&self, rule: &Rule<T>, domain: &Domain) -> bool {
        // SAFETY: as in `add`.
        let guard = unsafe { Guard::unprotected() };
        let mut lanes = self.blocks(guard).iter().flat_map(Block::lanes);
        let is = |(b, i): &(&Block<T>, usize)| std::ptr::eq(b.word(guard, *i).pointer(), rule);
        let Some((block, lane)) = lanes.find(is) else { return false };
        block.clear(lane);
        let live = self.live.fetch_sub(1, Ordering::Relaxed) - 1;
        if usize::from(live) * 2 + LANES < usize::from(self.used.load(Ordering::Relaxed)) {
            let all: Vec<_> = self.records(guard).collect();
            // SAFETY: the caller's promise.
            unsafe { self.publish(&all, domain) };
        } else if rule.priority() == self.max() {
            let max = self.records(guard).map(|r| r.rule.priority()).max();
            self.max.store(max.unwrap_or(0), Ordering::Release);
        }
        true
    }

    /// Publishes new blocks with these rules and no others.
    pub unsafe fn publish(&self, records: &[Record<'_, T>], domain: &Domain) {
        let blocks: Box<[Block<T>]> =
            (0..records.len().div_ceil(LANES)).map(|_| Block::new()).collect();
        let lanes = blocks.iter().flat_map(Block::lanes);
        lanes.zip(records).for_each(|((b, i), r)| b.put(i, *r));
        let n = blocks.len();
        let first = match n {
            0 => null_mut(),
            _ => Box::into_raw(blocks).cast::<Block<T>>().map_addr(|a| a | n << BLOCKS_SHIFT),
        };
        let old = self.body.swap(first, Ordering::AcqRel);
        // SAFETY: published once, and no longer.
        if let Some(old) = unsafe { owned(old) } {
            domain.retire(old);
        }
        let max = records.iter().map(|r| r.rule.priority()).max();
        self.max.store(max.unwrap_or(0), Ordering::Release);
        self.used.store(records.len() as u8, Ordering::Relaxed);
        self.live.store(records.len() as u8, Ordering::Relaxed);
    }

    /// Adds room for children, to which these rules are moved.
    pub unsafe fn deepen(&self, records: &[Record<'_, T>], domain: &Domain) {
        drop(self.children.fill(Box::new([const { Link::null() }; 256])));
        for r in records {
            // SAFETY: the caller's promise; no node is unlinked here.
            unsafe {
                if let Some(child) = self.make(Guard::unprotected(), self.byte(r.addresses)) {
                    child.add(*r, domain);
                }
            }
        }
    }

    /// Makes a source trie, to which these rules are moved.
    pub unsafe fn spread(&self, records: &[Record<'_, T>], domain: &Domain) {
        let root = Node::new(0, 1);
        // SAFETY: the caller's promise.
        unsafe { root.publish(records, domain) };
        root.announce(root.max());
        drop(self.source_trie.fill(Box::new(root)));
    }

    /// True if the node has room for children.
    pub fn is_deep(&self) -> bool {
        !self.children.is_null()
    }

    /// The child of a byte, which is made if there is none. The node has room for children.
    pub unsafe fn make<'g>(&'g self, guard: Guard<'g>, byte: usize) -> Option<&'g Node<T>> {
        let slot = self.slot(guard, byte)?;
        if slot.is_null() {
            drop(slot.fill(Box::new(Node::new(self.depth + 1, self.along))));
            self.bitmap[byte / 64].fetch_or(1 << (byte % 64), Ordering::Release);
        }
        slot.get(guard)
    }

    /// Updates what the node reaches, after a rule of this priority was removed. False: nothing is
    /// left.
    pub fn settle(&self, guard: Guard<'_>, priority: u16) -> bool {
        let rest = || self.below(guard).map(|(_, c)| c).chain(self.source_trie(guard));
        if self.live() == 0 && rest().next().is_none() {
            return false;
        }
        if priority == self.reach() {
            let reach = rest().map(Node::reach).fold(self.max(), u16::max);
            self.reach.store(reach, Ordering::Release);
        }
        true
    }

    /// Unlinks a child, or the source trie, that is empty.
    pub unsafe fn cut(&self, gone: &Node<T>, byte: usize, domain: &Domain) {
        let link = match gone.along == self.along {
            // SAFETY: this is the writer, and children are as many as ever.
            true => match self.slot(unsafe { Guard::unprotected() }, byte) {
                Some(slot) => slot,
                None => return,
            },
            false => &self.source_trie,
        };
        if gone.along == self.along {
            self.bitmap[byte / 64].fetch_and(!(1 << (byte % 64)), Ordering::Release);
        }
        // SAFETY: nodes are linked once, and readers' guards are of this domain.
        unsafe { link.retire(domain) };
    }
}

/// The blocks of a body.
///
/// # Safety
/// No other function makes a box of them.
unsafe fn owned<T>(word: *mut Block<T>) -> Option<Box<[Block<T>]>> {
    let first = word.map_addr(|a| a & ((1 << BLOCKS_SHIFT) - 1));
    let n = word.addr() >> BLOCKS_SHIFT;
    // SAFETY: made by Box::into_raw in `publish`.
    (n > 0).then(|| unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(first, n)) })
}

/// Drops the table's references to the rules of a node and of all nodes below.
///
/// # Safety
///
/// No thread reads or writes the nodes any more, except to drop them.
pub(crate) unsafe fn give_up<T: 'static>(node: &Node<T>) {
    // SAFETY: the caller's promise; a linked rule holds one strong count.
    unsafe {
        let guard = Guard::unprotected();
        node.records(guard).for_each(|r| drop(Arc::from_raw(r.rule.pointer())));
        node.below(guard).map(|(_, c)| c).chain(node.source_trie(guard)).for_each(|n| give_up(n));
    }
}

impl<T> Drop for Node<T> {
    fn drop(&mut self) {
        // SAFETY: exclusive access; all were made by Box::into_raw and are linked once.
        unsafe {
            drop(owned(*self.body.get_mut()));
            drop(self.source_trie.take_mut());
            if let Some(mut children) = self.children.take_mut() {
                children.iter_mut().for_each(|c| drop(c.take_mut()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_told_from_others_by_as_few_bits_as_do() {
        let (domain, node) = (Domain::new(), Node::<()>::new(0, 0));
        // SAFETY: one thread does everything.
        unsafe {
            node.deepen(&[], &domain);
            for (byte, bits) in [(0x00, 0), (0x0f, 5), (0x80, 1), (0x81, 8), (0x10, 4)] {
                assert_eq!(node.bits_apart(byte), bits, "{byte}");
                node.make(Guard::unprotected(), byte);
            }
        }
        let asked = [(0x80, 8), (0x00, 5), (0x40, 2), (0x30, 3), (0xff, 2), (0x82, 7), (0x0e, 8)];
        let bits = asked.map(|(byte, _)| (byte, node.bits_apart(byte)));
        assert_eq!(bits, asked);
    }
}
