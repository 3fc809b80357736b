//! The signature cache: 64-byte buckets of ten (signature, rule index), verified by the caller.

use super::prefetch;
use super::store::Reserved;
use super::subtable::equal8;

const WAYS: usize = 10;

#[repr(C)]
struct Bucket {
    sig: [u16; WAYS],
    idx: [u32; WAYS],
    /// Next way to replace.
    hand: u32,
}

/// One worker's cache. It never forgets actively: a stale index fails verification.
pub(crate) struct SigCache {
    buckets: Reserved<Bucket>,
    mask: usize,
    /// Entries that others took the place of, since this was taken.
    replaced: usize,
}

impl SigCache {
    /// For about `flows` flows.
    pub fn new(flows: usize) -> Self {
        let n = (flows / 8).next_power_of_two().max(64);
        SigCache { buckets: Reserved::new(n), mask: n - 1, replaced: 0 }
    }

    /// Flows that it is made for.
    pub fn flows(&self) -> usize {
        (self.mask + 1) * 8
    }

    #[inline]
    fn at(&self, hash: u64) -> *mut Bucket {
        self.buckets.at(hash as usize & self.mask)
    }

    /// How many entries lost their place to others since the last call.
    pub fn take_replaced(&mut self) -> usize {
        std::mem::take(&mut self.replaced)
    }

    /// Brings the bucket closer.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(self.at(hash));
    }

    /// The places under the signature, one bit each, and the indices of all places; 0 is none.
    #[inline(always)]
    pub fn ways(&self, hash: u64) -> (u32, &[u32; WAYS]) {
        let sig = (hash >> 48) as u16;
        // SAFETY: only this thread uses buckets.
        let b = unsafe { &*self.at(hash) };
        let mut m = equal8(b.sig.first_chunk().expect("ten ways"), sig);
        m |= ((b.sig[8] == sig) as u32) << 8 | ((b.sig[9] == sig) as u32) << 9;
        (m, &b.idx)
    }

    /// The first index under the signature, 0: none.
    #[inline]
    pub fn candidate(&self, hash: u64) -> u32 {
        let (mut m, rules) = self.ways(hash);
        while m != 0 {
            let idx = rules[m.trailing_zeros() as usize];
            if idx != 0 {
                return idx;
            }
            m &= m - 1;
        }
        0
    }

    /// Remembers `idx` for `hash`, replacing a same signature, an empty way or the next in turn.
    pub fn insert(&mut self, hash: u64, idx: u32) {
        let sig = (hash >> 48) as u16;
        // SAFETY: as above, `&mut self`.
        let b = unsafe { &mut *self.at(hash) };
        let same = (0..WAYS).find(|i| b.sig[*i] == sig && b.idx[*i] != 0);
        let way = same.or_else(|| (0..WAYS).find(|i| b.idx[*i] == 0)).unwrap_or_else(|| {
            b.hand = (b.hand + 1) % WAYS as u32;
            self.replaced += 1;
            b.hand as usize
        });
        b.sig[way] = sig;
        b.idx[way] = idx;
    }
}

const _: () = assert!(size_of::<Bucket>() == 64);
