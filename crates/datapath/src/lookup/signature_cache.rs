//! The signature cache: 64-byte buckets of ten (signature, megaflow index), verified by the caller.
//! Access list of 1k rules, 1M flows: 209 cycles a packet with it and 708 without
//! (docs/perf/heuristics.md).

use super::flow_store::Reserved;
use super::subtable::{BUCKET_FILL_MAX, BUCKET_WAYS, equal10};
use crate::mem::prefetch;

#[repr(C)]
struct Bucket {
    sig: [u16; BUCKET_WAYS],
    /// An index, and above it the bits of the hash that choose a bucket beyond [`FIRST_BUCKETS`].
    idx: [u32; BUCKET_WAYS],
    /// Next way to replace.
    hand: u32,
}

/// Buckets at first, 2 MB: these bits of a hash choose one of them. Where there are more, so do
/// bits that stand beside each index, so that a bucket can be split without asking anybody for
/// hashes.
const FIRST_BUCKETS: usize = 1 << FIRST_BITS;
const FIRST_BITS: u32 = 15;

/// Bits of an index.
const MEGAFLOW_BITS: u32 = 25;
const MEGAFLOW: u32 = (1 << MEGAFLOW_BITS) - 1;

/// One worker's cache. It never forgets actively: a stale index fails verification. It grows by a
/// bucket at a time (linear hashing) and loses nothing when it grows.
pub(crate) struct SigCache {
    buckets: Reserved<Bucket>,
    size: usize,
    /// One less than the power of two from `size` on.
    wrap: usize,
    /// Places in use.
    used: usize,
}

/// The indices of a bucket.
#[derive(Clone, Copy)]
pub(crate) struct Ways<'a>(&'a [u32; BUCKET_WAYS]);

impl Ways<'_> {
    /// The index at a place; 0: none.
    #[inline(always)]
    pub fn get(self, way: u32) -> u32 {
        self.0[way as usize] & MEGAFLOW
    }
}

impl SigCache {
    /// For at most about `flows` flows.
    pub fn new(flows: usize) -> Self {
        let room = (flows / 8).next_power_of_two().clamp(64, FIRST_BUCKETS << (32 - MEGAFLOW_BITS));
        let size = room.min(FIRST_BUCKETS);
        SigCache { buckets: Reserved::new(room), size, wrap: size - 1, used: 0 }
    }

    /// Flows that there is room for now.
    #[cfg(test)]
    pub fn flows(&self) -> usize {
        self.size * 8
    }

    /// The bits of a hash that stand beside an index.
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

    /// Opens another bucket, with what belongs there of the one that it is split from.
    fn grow(&mut self) {
        let new = self.size;
        if new >= self.buckets.len() {
            return;
        }
        self.size += 1;
        self.wrap = self.size.next_power_of_two() - 1;
        let from = new & (self.wrap >> 1);
        // The bit that tells the two apart: there are `FIRST_BUCKETS` at least, or no room for
        // more.
        let bit = (new ^ from) as u32 >> FIRST_BITS << MEGAFLOW_BITS;
        // SAFETY: both are inside and not the same; only this thread uses buckets.
        let (from, to) = unsafe { (&mut *self.buckets.at(from), &mut *self.buckets.at(new)) };
        for way in 0..BUCKET_WAYS {
            if from.idx[way] & bit != 0 {
                (to.sig[way], to.idx[way]) = (from.sig[way], std::mem::take(&mut from.idx[way]));
            }
        }
    }

    /// Brings the bucket closer.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.at(hash));
    }

    /// The places under the signature, one bit each, and what to ask for their indices.
    #[inline(always)]
    pub fn ways(&self, hash: u64) -> (u32, Ways<'_>) {
        let sig = (hash >> 48) as u16;
        // SAFETY: only this thread uses buckets.
        let b = unsafe { &*self.at(hash) };
        // SAFETY: half of the bucket, read as other numbers.
        let half = unsafe { &*std::ptr::from_ref(b).cast() };
        (equal10(half, sig), Ways(&b.idx))
    }

    /// The first index under the signature, 0: none.
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

    /// Remembers `idx` for `hash`, replacing a same signature, an empty way or the next in turn;
    /// true: no other lost its place.
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
