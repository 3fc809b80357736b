//! Remembers flows that were seen: most new flows never come again, and only those that do are
//! worth storing.

use crate::batch::keys::KeyRef;
use crate::lookup::flow_store::Reserved;
use crate::lookup::predictor::HISTORY_ENTRIES;
use crate::miss::policy::SAMPLE_INTERVALS;

/// Words of the filter: 2^25 bits, 4 MB of address space, of which only used pages take memory.
/// Each hash has two bits in one word.
const FILTER_WORDS: usize = 8 * HISTORY_ENTRIES;

/// New flows after which one word is cleared: their bits would fill a quarter of a word. So a flow
/// is forgotten after 2^21 others on average.
const SWEEP_FLOWS: u32 = u64::BITS / 2 / 4;

/// An aged Bloom filter of flow hashes: old ones are forgotten. When it is full about one new hash
/// in fifty is taken for a known one.
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

    /// Prefetches the word of a hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        crate::mem::prefetch(self.words.at(Self::place(hash).0));
    }

    /// True if a flow with this hash was seen before. The flow counts as seen from now on.
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
            // SAFETY: as in `test_and_set`.
            unsafe { *self.words.at(self.sweep_word) = 0 };
            self.sweep_word = (self.sweep_word + 1) % FILTER_WORDS;
        }
    }
}

/// One flow in this many is in a sample (docs/decisions/0009-direct-mode.md).
pub(crate) const SAMPLE_FLOWS: u64 = 64;

/// The two samples of a port's flows that are resolved with masks even in direct mode. The fixed
/// sample shows whether flows come back, however long that takes. The changing sample has other
/// flows every few intervals: it lets flows in that come back soon while most do not.
pub(crate) struct FlowSamples {
    /// A secret, without which the hashes cannot be computed.
    secret: u64,
}

impl FlowSamples {
    pub fn new(secret: u64) -> Self {
        FlowSamples { secret }
    }

    /// A hash of Ethernet and IP addresses and the fields behind them on line 0, independent of
    /// masks. The flow's sample is its low part, modulo [`SAMPLE_FLOWS`].
    #[inline]
    fn flow_hash(&self, key: &KeyRef<'_>) -> u64 {
        let both = |w: &[u64]| {
            let (a, b) = (w[0] ^ self.secret, w[1] ^ 0xd6e8_feb8_6659_fd93);
            let p = a as u128 * b as u128;
            p as u64 ^ (p >> 64) as u64
        };
        let h = both(&key.line[..2]).rotate_left(32) ^ both(&key.line[2..4]);
        let ext = &key.ext[0];
        let long = if key.have & 1 == 0 { 0 } else { both(&ext[..2]) ^ both(&ext[2..4]) };
        (h ^ long.rotate_left(16)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }

    /// True if this packet's flow is in neither sample in this interval.
    #[inline]
    pub fn is_in_none(&self, key: &KeyRef<'_>, interval: u32) -> bool {
        let changing = u64::from(interval / SAMPLE_INTERVALS) % (SAMPLE_FLOWS - 1) + 1;
        ![0, changing].contains(&(self.flow_hash(key) % SAMPLE_FLOWS))
    }

    /// The hash of this packet's flow, if the flow is in the fixed sample.
    pub fn in_fixed_sample(&self, key: &KeyRef<'_>) -> Option<u64> {
        Some(self.flow_hash(key)).filter(|hash| hash.is_multiple_of(SAMPLE_FLOWS))
    }
}

/// True if a flow with this hash is in the sample of flows that are looked up.
#[inline(always)]
pub(crate) fn is_sampled(hash: u64) -> bool {
    hash >> 48 & (SAMPLE_FLOWS - 1) == 0
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

    #[test]
    fn every_flow_is_in_a_sample_now_and_then_and_some_always_are() {
        const ROUND: u32 = (SAMPLE_FLOWS - 1) as u32 * SAMPLE_INTERVALS;
        let (s, ext) = (FlowSamples::new(5), [[0; 8]; 3]);
        let mut times = [0; 1000];
        for interval in 0..ROUND {
            for (flow, times) in times.iter_mut().enumerate() {
                let key = KeyRef { line: &[0, 0, flow as u64, 0, 0, 0, 0, 0], ext: &ext, have: 0 };
                *times += u32::from(!s.is_in_none(&key, interval));
                assert!(s.in_fixed_sample(&key).is_none() || !s.is_in_none(&key, interval));
            }
        }
        let always = times.iter().filter(|t| **t == ROUND).count();
        assert!((1..50).contains(&always), "{always}");
        assert!(times.iter().all(|t| [SAMPLE_INTERVALS, ROUND].contains(t)));
    }
}
