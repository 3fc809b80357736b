//! All megaflows of one mask: a hash table with buckets of 10 signatures and indices, each in one
//! cache line.
//!
//! A megaflow is in its first bucket, or in its second (then a bit in the first says so), or in a
//! small stash. The table grows by one bucket at a time (linear hashing), so no insertion is
//! expensive. Splitting a bucket also moves megaflows back to their first buckets.

use super::flow_store::{MASKS, Reserved, Store};
use crate::batch::keys::{KeyRef, Keys, Words};
use crate::mem::prefetch;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Entries of a bucket, and of a stash.
pub(super) const BUCKET_WAYS: usize = 10;
/// Megaflows per bucket, on average, beyond which a bucket is added: buckets that are not split yet
/// have up to twice as many, and need room for more.
pub(super) const BUCKET_FILL_MAX: usize = (BUCKET_WAYS - 2) / 2;

#[repr(C, align(64))]
pub(crate) struct Bucket {
    sig: [u16; BUCKET_WAYS],
    idx: [u32; BUCKET_WAYS],
    /// A bit for each signature (modulo 32) whose megaflows belong here and may be in their second
    /// bucket. Bits are never cleared, so splitting need not know which megaflows those are.
    overflow: u32,
}

/// The hash table of all megaflows of one mask.
pub(crate) struct Subtable {
    pub mask: Words,
    /// Number of bits of the mask.
    pub weight: u32,
    /// In which of lines 1 to 3 the mask has bits, as in [`crate::batch::keys::KeyRef::have`].
    pub ext: u8,
    hasher: Hasher,
    buckets: Reserved<Bucket>,
    size: usize,
    /// `size` rounded up to a power of two, minus one.
    wrap: usize,
    stash: Vec<(u16, u32)>,
    /// Megaflows that are linked.
    pub len: u32,
    /// Megaflows that are linked, or whose index the control thread has not given back yet.
    pub refs: u32,
}

/// The signature: 16 bits of the hash that do not choose the bucket; 0 marks an empty place.
#[inline]
fn sig(hash: u64) -> u16 {
    ((hash >> 48) as u16).max(1)
}

/// The address of a subtable's buckets, by value: a loop over packets keeps it in registers,
/// whereas the subtable's own fields would be read again after each store.
#[derive(Clone, Copy)]
pub(super) struct FirstBuckets<'a> {
    buckets: *const Bucket,
    size: usize,
    wrap: usize,
    has_stash: bool,
    of: PhantomData<&'a Subtable>,
}

impl FirstBuckets<'_> {
    /// The bucket's number for a half of a hash.
    #[inline(always)]
    fn addr(self, h: u32) -> usize {
        let b = h as usize & self.wrap;
        // Without a branch: for half of the sizes it would be mispredicted often.
        b & self.wrap >> usize::from(b >= self.size)
    }

    #[inline(always)]
    fn at(self, h: u32) -> *const Bucket {
        // SAFETY: addr() < size <= room.
        unsafe { self.buckets.add(self.addr(h)) }
    }

    /// Prefetches the first bucket of a hash.
    #[inline(always)]
    pub fn prefetch(self, hash: u64) {
        prefetch(self.at(hash as u32));
    }

    /// The first index with the signature of `hash` in its first bucket, 0: none; and whether
    /// [`Subtable::search`] may find others. If it may, and there is no index, this prefetches the
    /// second bucket.
    #[inline(always)]
    pub fn candidate(self, hash: u64) -> (u32, bool) {
        // SAFETY: the subtable is there, and only this thread uses buckets.
        let b = unsafe { &*self.at(hash as u32) };
        let s = sig(hash);
        let hits = b.matches(s);
        if hits != 0 {
            return (b.idx[hits.trailing_zeros() as usize], true);
        }
        let overflowed = b.overflowed(s);
        if overflowed {
            prefetch(self.at((hash >> 32) as u32));
        }
        (0, overflowed || self.has_stash)
    }
}

fn ext_lines(mask: &Words) -> u8 {
    let lines = mask.chunks_exact(8).skip(1).enumerate();
    lines.fold(0, |bits, (l, words)| bits | u8::from(words.iter().any(|w| *w != 0)) << l)
}

impl Subtable {
    /// An empty subtable for up to `capacity` megaflows; `huge`: in huge pages where possible.
    pub fn new(mask: Words, secret: u64, capacity: usize, huge: bool) -> Self {
        let room = (capacity / 2).next_power_of_two().max(4);
        Subtable {
            weight: super::mask::weight(&mask),
            ext: ext_lines(&mask),
            hasher: Hasher::new(&mask, secret),
            mask,
            buckets: if huge { Reserved::new(room) } else { Reserved::small(room) },
            size: 4.min(room),
            wrap: 4.min(room) - 1,
            stash: Vec::with_capacity(BUCKET_WAYS),
            len: 0,
            refs: 0,
        }
    }

    /// Hash of a key under this subtable's mask.
    #[inline]
    pub fn hash(&self, key: &KeyRef<'_>) -> u64 {
        self.hasher.hash(key)
    }

    #[inline]
    fn addr(&self, h: u32) -> usize {
        self.first_buckets().addr(h)
    }

    #[inline]
    fn bucket(&self, i: usize) -> &Bucket {
        // SAFETY: addr() < size <= room; only this thread uses buckets.
        unsafe { &*self.buckets.at(i) }
    }

    /// The buckets' address, for the first step of a search for many packets.
    #[inline]
    pub fn first_buckets(&self) -> FirstBuckets<'_> {
        let (size, wrap, has_stash) = (self.size, self.wrap, !self.stash.is_empty());
        FirstBuckets { buckets: self.buckets.at(0), size, wrap, has_stash, of: PhantomData }
    }

    fn bucket_mut(&mut self, i: usize) -> &mut Bucket {
        // SAFETY: as above, `&mut self`.
        unsafe { &mut *self.buckets.at(i) }
    }

    /// Hashes the keys of these packets, and prefetches their first buckets.
    #[inline(always)]
    pub fn hash_all(&self, keys: &mut Keys, packets: &[u8]) {
        let first = self.first_buckets();
        self.hasher.hash_all(keys, packets, |hash| first.prefetch(hash));
    }

    /// Prefetches the first bucket of a hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.first_buckets().prefetch(hash);
    }

    /// The first index with the signature of `hash` in its second bucket, 0: none.
    pub fn second_candidate(&self, hash: u64) -> u32 {
        let b = self.bucket(self.addr((hash >> 32) as u32));
        b.matches(sig(hash)).checked_ilog2().map_or(0, |way| b.idx[way as usize])
    }

    /// Calls `found` with every index that may be the megaflow of `hash`, until it returns true.
    pub fn search(&self, hash: u64, mut found: impl FnMut(u32) -> bool) -> bool {
        let (first, second) = self.both(hash);
        let s = sig(hash);
        if self.bucket(first).any(s, &mut found) {
            return true;
        }
        if self.bucket(first).overflowed(s) && self.bucket(second).any(s, &mut found) {
            return true;
        }
        self.stash.iter().any(|(x, i)| *x == s && found(*i))
    }

    /// Links megaflow `idx`; false if there is no room for it.
    pub fn insert(&mut self, store: &Store, hash: u64, idx: u32) -> bool {
        if self.len as usize + 1 > self.size * BUCKET_FILL_MAX {
            self.grow(store);
        }
        let linked = self.link(store, hash, idx);
        self.len += linked as u32;
        linked
    }

    fn link(&mut self, store: &Store, hash: u64, idx: u32) -> bool {
        let (first, second) = self.both(hash);
        let s = sig(hash);
        if self.bucket_mut(first).put(s, idx) {
            return true;
        }
        if self.bucket_mut(second).put(s, idx) {
            self.bucket_mut(first).overflows(s);
            return true;
        }
        if self.make_room(store, first) {
            return self.bucket_mut(first).put(s, idx);
        }
        if self.make_room(store, second) {
            self.bucket_mut(first).overflows(s);
            return self.bucket_mut(second).put(s, idx);
        }
        let room = self.stash.len() < BUCKET_WAYS;
        if room {
            self.stash.push((s, idx));
        }
        room
    }

    /// The first and second bucket of a hash.
    fn both(&self, hash: u64) -> (usize, usize) {
        (self.addr(hash as u32), self.addr((hash >> 32) as u32))
    }

    /// Moves one megaflow of a full bucket to its other bucket (cuckoo, one step).
    fn make_room(&mut self, store: &Store, from: usize) -> bool {
        for way in 0..BUCKET_WAYS {
            let idx = self.bucket(from).idx[way];
            let (first, second) = self.both(hash_of(store, idx));
            let to = if from == first { second } else { first };
            let s = self.bucket(from).sig[way];
            if to != from && self.bucket_mut(to).put(s, idx) {
                if to == second {
                    self.bucket_mut(first).overflows(s);
                }
                let b = self.bucket_mut(from);
                (b.sig[way], b.idx[way]) = (0, 0);
                return true;
            }
        }
        false
    }

    /// Splits one bucket. Megaflows in it that are in their second bucket go back to their first if
    /// that has room now.
    fn grow(&mut self, store: &Store) {
        let new = self.size;
        if new >= self.buckets.len() {
            return;
        }
        let parent = new & ((new + 1).next_power_of_two() - 1) >> 1;
        self.size += 1;
        self.wrap = self.size.next_power_of_two() - 1;
        let overflow = self.bucket(parent).overflow;
        self.bucket_mut(new).overflow = overflow;
        for way in 0..BUCKET_WAYS {
            let (s, idx) = (self.bucket(parent).sig[way], self.bucket(parent).idx[way]);
            if idx == 0 {
                continue;
            }
            let (a, b) = self.both(hash_of(store, idx));
            if a != parent
                && (self.bucket_mut(a).put(s, idx) || b == new && self.bucket_mut(new).put(s, idx))
            {
                let b = self.bucket_mut(parent);
                (b.sig[way], b.idx[way]) = (0, 0);
            }
        }
        let stash = std::mem::take(&mut self.stash);
        for (_, idx) in stash {
            self.link(store, hash_of(store, idx), idx);
        }
    }

    /// Unlinks megaflow `idx`.
    pub fn remove(&mut self, hash: u64, idx: u32) -> bool {
        let (first, second) = self.both(hash);
        let found = self.bucket_mut(first).take(idx) || self.bucket_mut(second).take(idx) || {
            let before = self.stash.len();
            self.stash.retain(|(_, i)| *i != idx);
            self.stash.len() < before
        };
        self.len -= found as u32;
        found
    }
}

fn hash_of(store: &Store, idx: u32) -> u64 {
    store.counters(idx).hash.load(Ordering::Relaxed)
}

impl Bucket {
    /// True if a megaflow with this signature that belongs here may be in its second bucket.
    #[inline]
    fn overflowed(&self, s: u16) -> bool {
        self.overflow >> (s & 31) & 1 != 0
    }
    fn overflows(&mut self, s: u16) {
        self.overflow |= 1 << (s & 31);
    }
    /// Which ways have the signature, bit i for way i.
    #[inline]
    fn matches(&self, s: u16) -> u32 {
        // SAFETY: half of the bucket, read as other numbers.
        equal10(unsafe { &*std::ptr::from_ref(self).cast() }, s)
    }
    fn any(&self, s: u16, found: &mut impl FnMut(u32) -> bool) -> bool {
        let mut m = self.matches(s);
        while m != 0 {
            if found(self.idx[m.trailing_zeros() as usize]) {
                return true;
            }
            m &= m - 1;
        }
        false
    }
    fn put(&mut self, s: u16, idx: u32) -> bool {
        match self.idx.iter().position(|i| *i == 0) {
            Some(way) => {
                self.sig[way] = s;
                self.idx[way] = idx;
                true
            }
            None => false,
        }
    }
    fn take(&mut self, idx: u32) -> bool {
        match self.idx.iter().position(|i| *i == idx) {
            Some(way) => {
                self.idx[way] = 0;
                self.sig[way] = 0;
                true
            }
            None => false,
        }
    }
}

/// Bit i, for the first ten elements: `v[i] == x`.
#[inline]
pub(crate) fn equal10(v: &[u16; 16], x: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86-64; the loads take exactly the array, unaligned.
    unsafe {
        use std::arch::x86_64::*;
        let (v, x) = (v.as_ptr().cast::<__m128i>(), _mm_set1_epi16(x as i16));
        let low = _mm_cmpeq_epi16(_mm_loadu_si128(v), x);
        let high = _mm_cmpeq_epi16(_mm_loadu_si128(v.add(1)), x);
        _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32 & 0x3ff
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        v[..10].iter().enumerate().fold(0, |m, (i, y)| m | ((*y == x) as u32) << i)
    }
}

/// A keyed hash of a key's bits under a mask: multiply-fold, two words at a time.
pub(crate) struct Hasher {
    /// (word, mask), significant words of line 0; padded with zero masks to an even number.
    line: [(u8, u64); 8],
    pairs: usize,
    /// (word, mask), significant words of the lines beyond line 0.
    ext: Vec<(u8, u64)>,
    secret: u64,
}

impl Hasher {
    /// A hasher for the words in which `mask` has bits.
    pub fn new(mask: &Words, secret: u64) -> Self {
        let mut line = [(0, 0); 8];
        let mut n = 0;
        for w in (0..7).filter(|w| mask[*w] != 0) {
            line[n] = (w as u8, mask[w]);
            n += 1;
        }
        let ext = (8..mask.len()).filter(|w| mask[*w] != 0).map(|w| (w as u8, mask[w]));
        Hasher { line, pairs: n.div_ceil(2), ext: ext.collect(), secret }
    }

    /// Hashes the keys of these packets; `fetch` prefetches the memory that a hash leads to.
    #[inline(always)]
    pub fn hash_all(&self, keys: &mut Keys, packets: &[u8], fetch: impl Fn(u64)) {
        match (self.pairs, self.ext.is_empty()) {
            (1, true) => self.hash_pairs::<1>(keys, packets, fetch),
            (2, true) => self.hash_pairs::<2>(keys, packets, fetch),
            (3, true) => self.hash_pairs::<3>(keys, packets, fetch),
            _ => packets.iter().map(|i| usize::from(*i)).for_each(|i| {
                keys.hash[i] = self.hash(&keys.get(i));
                fetch(keys.hash[i]);
            }),
        }
    }

    #[inline(always)]
    fn hash_pairs<const PAIRS: usize>(&self, keys: &mut Keys, packets: &[u8], fetch: impl Fn(u64)) {
        // Copies stay in registers; through references these would be read again after each store.
        let (words, secret) = (self.line, self.secret);
        let (lines, hashes) = (&keys.line.0, &mut keys.hash);
        for i in packets.iter().map(|i| usize::from(*i)) {
            let word = |(w, m): (u8, u64)| lines[i][w as usize & 7] & m;
            let mut h = secret;
            for n in 0..PAIRS {
                h = fold2(word(words[2 * n]) ^ h, word(words[2 * n + 1]) ^ K);
            }
            hashes[i] = fold2(h, K ^ secret);
            fetch(hashes[i]);
        }
    }

    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &KeyRef<'_>) -> u64 {
        let word = |(w, m): (u8, u64)| key.line[w as usize & 7] & m;
        let mut h = self.secret;
        for pair in self.line.chunks_exact(2).take(self.pairs) {
            h = fold2(word(pair[0]) ^ h, word(pair[1]) ^ K);
        }
        for (w, m) in &self.ext {
            h = fold2((key.word(*w as usize) & m) ^ h, K);
        }
        fold2(h, K ^ self.secret)
    }
}

/// An odd constant with mixed bits.
const K: u64 = 0xd6e8_feb8_6659_fd93;

/// A 64x64-bit multiplication whose halves are combined.
#[inline]
fn fold2(a: u64, b: u64) -> u64 {
    let p = a as u128 * b as u128;
    p as u64 ^ (p >> 64) as u64
}

const _: () = assert!(size_of::<Bucket>() == 64 && MASKS <= 256);

#[cfg(test)]
mod tests {
    use super::super::flow_store::Payload;
    use super::*;

    #[test]
    fn few_megaflows_are_outside_their_first_bucket_and_all_are_found() {
        let mostly_returning = 100_000;
        let (store, mut mask) = (Store::new(mostly_returning as usize), [0; 32]);
        mask[2] = u64::MAX;
        let mut sub = Subtable::new(mask, 1, mostly_returning as usize, false);
        let key = |i: u32| -> Words { std::array::from_fn(|w| u64::from(i) * (w == 2) as u64) };
        let hash = |sub: &Subtable, i| {
            let (words, ext) = (key(i), [[0; 8]; 3]);
            sub.hash(&KeyRef { line: words.first_chunk().unwrap(), ext: &ext, have: 0 })
        };
        for i in 1..=mostly_returning {
            let h = hash(&sub, i);
            store.write(i, &key(i), false, Payload::new(1, 1, 0), h);
            assert!(sub.insert(&store, h, i));
            if i >= mostly_returning / 2 && i.is_multiple_of(5000) {
                let first = |i: &u32| sub.first_buckets().candidate(hash(&sub, *i)).0 == *i;
                let far = (1..=i).filter(|i| !first(i)).count();
                assert!(far > 0 && far * 50 < i as usize, "{far} of {i}");
            }
        }
        for i in 1..=mostly_returning {
            let h = hash(&sub, i);
            assert!(sub.search(h, |found| found == i));
            assert!(sub.remove(h, i) && !sub.search(h, |found| found == i));
        }
        assert_eq!(sub.len, 0);
    }
}
