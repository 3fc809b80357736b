//! What was seen before: most flows that were never seen are never seen again, and only those that
//! are deserve a place.

use crate::lookup::flow_store::Reserved;

/// Words of the memory: 2^25 bits, 4 MB, of which only what is used exists. A hash has two bits in
/// one word.
const FILTER_WORDS: usize = 1 << 19;

/// After so many new ones a word is cleared: what was seen is forgotten after half of 2^22 others
/// on average.
const SWEEP_FLOWS: u32 = 8;

/// An aged Bloom filter of flow hashes: old ones are forgotten, and when it is full about one new
/// hash in fifty is taken for a known one.
pub(crate) struct SeenFlows {
    words: Reserved<u64>,
    /// The word that is cleared next.
    sweep_word: usize,
    new_flows: u32,
}

impl SeenFlows {
    pub fn new() -> Self {
        SeenFlows { words: Reserved::new(FILTER_WORDS), sweep_word: 0, new_flows: 0 }
    }

    fn place(hash: u64) -> (usize, u64) {
        ((hash >> 12) as usize % FILTER_WORDS, 1 << (hash & 63) | 1 << (hash >> 6 & 63))
    }

    /// Brings the place of a hash closer.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        crate::mem::prefetch(self.words.at(Self::place(hash).0));
    }

    /// Was it seen before? From now on it was.
    #[inline]
    pub fn test_and_set(&mut self, hash: u64) -> bool {
        let (at, bits) = Self::place(hash);
        // SAFETY: `place` stays inside; only this thread uses the words, zero is valid.
        let word = unsafe { &mut *self.words.at(at) };
        let again = *word & bits == bits;
        *word |= bits;
        if !again {
            self.sweep();
        }
        again
    }

    fn sweep(&mut self) {
        self.new_flows += 1;
        if self.new_flows.is_multiple_of(SWEEP_FLOWS) {
            // SAFETY: as in `again`.
            unsafe { *self.words.at(self.sweep_word) = 0 };
            self.sweep_word = (self.sweep_word + 1) % FILTER_WORDS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::fold;

    #[test]
    fn the_second_time_is_known_and_long_ago_is_forgotten() {
        let mut s = SeenFlows::new();
        let known = |s: &mut SeenFlows, range: std::ops::Range<u64>| {
            range.filter(|i| s.test_and_set(fold(*i))).count()
        };
        assert!(known(&mut s, 0..100_000) < 300);
        assert!(known(&mut s, 0..100_000) > 96_000);
        let full = known(&mut s, 100_000..20_000_000);
        assert!(full < 19_900_000 / 25, "{full} of those that were never seen");
        let old = known(&mut s, 0..100_000);
        assert!(old < 100_000 / 5, "{old} of those that were seen long ago");
    }
}
