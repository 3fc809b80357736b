//! Which subtable a mask went to the last time: most decisions have one of few masks. Where all
//! flows are new: 1,049 cycles a packet with it and 1,477 without (docs/perf/heuristics.md).

use super::predictor::HISTORY_ENTRIES;
use crate::batch::keys::Words;

/// A memory of (mask, subtable) that may forget, and may take one mask for another: what it says
/// must be checked.
pub(crate) struct SubtableMemo {
    /// A check of 24 bits and the subtable.
    entries: Box<[u32]>,
    /// Part of every tag: another number, and nothing is known.
    epoch: u64,
}

impl SubtableMemo {
    pub fn new() -> Self {
        SubtableMemo { entries: vec![0; HISTORY_ENTRIES].into(), epoch: 0 }
    }

    /// Stands for a mask of a port, while megaflows are few or not.
    #[inline]
    pub fn tag(mask: &Words, port: u16, few: bool) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let turned = mask.iter().zip(1..).map(|(w, i)| w.wrapping_mul(ODD.rotate_left(i) | 1));
        let start = u64::from(port) << 32 | u64::from(few) << 16;
        turned.fold(start, |h: u64, w| h.wrapping_add(w ^ w >> 29))
    }

    #[inline]
    fn entry(&self, tag: u64) -> (usize, u32) {
        let mixed = (tag ^ self.epoch).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // Never 0: that is an empty place.
        ((mixed >> 48) as usize, (mixed as u32 ^ (mixed >> 20) as u32 | 1) & 0xff_ffff)
    }

    /// The subtable under this tag.
    #[inline]
    pub fn get(&self, tag: u64) -> Option<usize> {
        let (at, check) = self.entry(tag);
        let known = self.entries[at];
        (known >> 8 == check).then_some(known as usize & 0xff)
    }

    /// Remembers.
    pub fn put(&mut self, tag: u64, slot: usize) {
        let (at, check) = self.entry(tag);
        self.entries[at] = check << 8 | slot as u32;
    }

    /// Subtables came or may go: everything is looked for again.
    pub fn forget(&mut self) {
        self.epoch += 1;
    }
}

const _: () = assert!(HISTORY_ENTRIES == 1 << (64 - 48) && super::flow_store::MASKS <= 256);
