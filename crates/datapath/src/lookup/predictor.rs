//! Predicts a packet's subtable: the one in which flows near it were found. The decision about a
//! new flow mostly has the mask of the last decision about its neighbourhood, and probing one
//! subtable costs much less than asking the pipeline. Where all flows are new: 1,049 cycles a
//! packet with it and 2,519 without (docs/perf/heuristics.md).

use crate::mem::fold;
use crate::mem::prefetch;

/// Entries of each memory of earlier packets: neighbourhoods here, masks in `subtable_memo.rs`. 256
/// KiB each.
pub(crate) const HISTORY_ENTRIES: usize = 1 << 16;

/// The bits of word 2 of a key, bytes 16 to 24, that make a neighbourhood: 8 bits of the source
/// address and 24 of the destination. An access list with 10 % new flows takes 199 to 208 cycles a
/// packet; 229 and 252 if only the 24 bits of the destination count, 326 and 368 if both whole
/// addresses do.
const NEIGHBOURHOOD_BITS: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0]);

/// Predicted subtables of a packet, at most: as many as an entry holds. With one, an access list
/// with 10 % new flows takes 245 and 247 cycles a packet, with two 238 and 243.
pub(crate) const PREDICTIONS_MAX: usize = 4;

/// The subtables in which flows of each neighbourhood were found lately, the latest first. These
/// are hints: they must be verified.
pub(super) struct SubtablePredictor {
    near: Box<[[u8; PREDICTIONS_MAX]]>,
}

impl SubtablePredictor {
    pub fn new() -> Self {
        SubtablePredictor { near: vec![[0; PREDICTIONS_MAX]; HISTORY_ENTRIES].into() }
    }

    #[inline(always)]
    fn entry(addresses: u64) -> usize {
        (fold(addresses & NEIGHBOURHOOD_BITS) >> 48) as usize % HISTORY_ENTRIES
    }

    /// The subtables in which flows near these addresses (word 2 of a key) were found; 0: no more
    /// are known.
    #[inline(always)]
    pub fn get(&self, addresses: u64) -> [u8; PREDICTIONS_MAX] {
        self.near[Self::entry(addresses)]
    }

    /// Prefetches the entry of these addresses.
    #[inline]
    pub fn prefetch(&self, addresses: u64) {
        prefetch(&self.near[Self::entry(addresses)]);
    }

    /// Records that a flow with these addresses was found in this subtable.
    pub fn put(&mut self, addresses: u64, subtable: usize) {
        let near = &mut self.near[Self::entry(addresses)];
        let before =
            near.iter().position(|s| usize::from(*s) == subtable).unwrap_or(PREDICTIONS_MAX - 1);
        near.copy_within(..before, 1);
        near[0] = subtable as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_known() {
        let mut g = SubtablePredictor::new();
        let of = |src: u8, net: u8, host: u8| u64::from_ne_bytes([10, src, 3, 4, 10, 5, net, host]);
        assert_eq!(g.get(of(1, 1, 1)), [0; PREDICTIONS_MAX]);
        [7, 8, 7, 9, 10, 11, 8]
            .iter()
            .for_each(|subtable| g.put(of(1, 1, *subtable), usize::from(*subtable)));
        assert_eq!(g.get(of(9, 1, 9)), [8, 11, 10, 9]);
        assert_eq!(g.get(of(1, 2, 1)), [0; PREDICTIONS_MAX]);
    }
}
