//! The signature cache: 64-byte buckets of ten (signature, megaflow index) pairs, which the caller
//! verifies. With an access list of 1k rules and 1M flows: 209 cycles a packet with it and 708
//! without (docs/perf/heuristics.md).

use super::flow_store::Reserved;
use super::subtable::{BUCKET_FILL_MAX, BUCKET_WAYS, equal10};
use crate::mem::prefetch;

#[repr(C)]
struct Bucket {
    sig: [u16; BUCKET_WAYS],
    /// The low [`MEGAFLOW_BITS`] are an index; the bits above are those of the hash that choose a
    /// bucket beyond [`FIRST_BUCKETS`].
    idx: [u32; BUCKET_WAYS],
    /// The way that is replaced next.
    hand: u32,
}

/// Buckets at first, 2 MB: this many bits of a hash choose one. Beyond that, bits of the hash that
/// are stored beside each index choose as well, so a bucket can be split without the hashes of its
/// megaflows.
const FIRST_BUCKETS: usize = 1 << FIRST_BITS;
const FIRST_BITS: u32 = 15;

/// Bits of an index.
const MEGAFLOW_BITS: u32 = 25;
const MEGAFLOW: u32 = (1 << MEGAFLOW_BITS) - 1;

/// One worker's cache. Entries of ended megaflows stay until they are replaced: they fail
/// verification. The cache grows by one bucket at a time (linear hashing) and keeps its entries
/// when it grows.
pub(crate) struct SigCache {
    buckets: Reserved<Bucket>,
    size: usize,
    /// `size` rounded up to a power of two, minus one.
    wrap: usize,
    /// Entries in use.
    used: usize,
}

/// The megaflow indices of a bucket.
#[derive(Clone, Copy)]
pub(crate) struct Ways<'a>(&'a [u32; BUCKET_WAYS]);

impl Ways<'_> {
    /// The index in this way; 0: none.
    #[inline(always)]
    pub fn get(self, way: u32) -> u32 {
        self.0[way as usize] & MEGAFLOW
    }
}

impl SigCache {
    /// An empty cache that grows to hold about `flows` flows.
    pub fn new(flows: usize) -> Self {
        let room = (flows / 8).next_power_of_two().clamp(64, FIRST_BUCKETS << (32 - MEGAFLOW_BITS));
        let size = room.min(FIRST_BUCKETS);
        SigCache { buckets: Reserved::new(room), size, wrap: size - 1, used: 0 }
    }

    /// Flows for which there is room now.
    #[cfg(test)]
    pub fn flows(&self) -> usize {
        self.size * 8
    }

    /// The bits of a hash that are stored beside an index.
    #[inline]
    fn upper(hash: u64) -> u32 {
        (hash >> 40) as u32 & (u32::MAX >> MEGAFLOW_BITS)
    }

    #[inline]
    fn at(&self, hash: u64) -> *mut Bucket {
        let number =
            hash as usize & (FIRST_BUCKETS - 1) | (Self::upper(hash) as usize) << FIRST_BITS;
        let b = number & self.wrap;
        self.buckets.at(b & self.wrap >> usize::from(b >= self.size))
    }

    /// Adds a bucket, and moves the entries that belong there from the bucket that it is split
    /// from.
    fn grow(&mut self) {
        let new = self.size;
        if new >= self.buckets.len() {
            return;
        }
        self.size += 1;
        self.wrap = self.size.next_power_of_two() - 1;
        let from = new & (self.wrap >> 1);
        // The bit of the hash that tells the two buckets apart. There are at least `FIRST_BUCKETS`,
        // so it is one of those beside the index.
        let bit = (new ^ from) as u32 >> FIRST_BITS << MEGAFLOW_BITS;
        // SAFETY: both are inside and not the same; only this thread uses buckets.
        let (from, to) = unsafe { (&mut *self.buckets.at(from), &mut *self.buckets.at(new)) };
        for way in 0..BUCKET_WAYS {
            if from.idx[way] & bit != 0 {
                (to.sig[way], to.idx[way]) = (from.sig[way], std::mem::take(&mut from.idx[way]));
            }
        }
    }

    /// Prefetches the bucket of this hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.at(hash));
    }

    /// The ways with this hash's signature, one bit each, and the bucket's indices.
    #[inline(always)]
    pub fn ways(&self, hash: u64) -> (u32, Ways<'_>) {
        let sig = (hash >> 48) as u16;
        // SAFETY: only this thread uses buckets.
        let b = unsafe { &*self.at(hash) };
        // SAFETY: half of the bucket, read as other numbers.
        let half = unsafe { &*std::ptr::from_ref(b).cast() };
        (equal10(half, sig), Ways(&b.idx))
    }

    /// The first index with this hash's signature; 0: none.
    #[inline]
    pub fn candidate(&self, hash: u64) -> u32 {
        let (mut m, megaflows) = self.ways(hash);
        while m != 0 {
            let idx = megaflows.get(m.trailing_zeros());
            if idx != 0 {
                return idx;
            }
            m &= m - 1;
        }
        0
    }

    /// Records `idx` for `hash`. It replaces an entry with the same signature, else an empty one,
    /// else the next in turn; true: no other entry was lost.
    pub fn insert(&mut self, hash: u64, idx: u32) -> bool {
        let sig = (hash >> 48) as u16;
        // SAFETY: as above, `&mut self`.
        let b = unsafe { &mut *self.at(hash) };
        let upper = Self::upper(hash);
        let is =
            |i: &usize| b.sig[*i] == sig && b.idx[*i] >> MEGAFLOW_BITS == upper && b.idx[*i] != 0;
        let same = (0..BUCKET_WAYS).find(is);
        let place = same.or_else(|| (0..BUCKET_WAYS).find(|i| b.idx[*i] == 0));
        let way = place.unwrap_or_else(|| {
            b.hand = (b.hand + 1) % BUCKET_WAYS as u32;
            b.hand as usize
        });
        self.used += usize::from(b.idx[way] == 0);
        b.sig[way] = sig;
        b.idx[way] = idx | upper << MEGAFLOW_BITS;
        if self.used > self.size * BUCKET_FILL_MAX {
            self.grow();
        }
        place.is_some()
    }
}

const _: () = assert!(size_of::<Bucket>() == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::fold;

    #[test]
    fn it_grows_and_forgets_little_until_there_is_no_more_room() {
        let mut cache = SigCache::new(1 << 20);
        let known = |c: &SigCache, range: std::ops::Range<u32>| {
            let is = |i: &u32| {
                let (ways, megaflows) = c.ways(fold(u64::from(*i)));
                (0..BUCKET_WAYS as u32).any(|way| ways >> way & 1 != 0 && megaflows.get(way) == *i)
            };
            range.filter(is).count()
        };
        let first = cache.flows();
        for i in 1..=400_000 {
            cache.insert(fold(i.into()), i);
        }
        assert!(cache.flows() > 400_000 && cache.flows() > 2 * first, "{}", cache.flows());
        let n = known(&cache, 1..400_001);
        assert!(n > 394_000, "{n}");
        for i in 400_001..=5_000_000 {
            cache.insert(fold(i.into()), i);
        }
        assert_eq!(cache.flows(), 1 << 20, "all the room there is");
        let n = known(&cache, 4_000_001..5_000_001);
        assert!(n > 400_000, "{n}");
    }
}
