//! Remembers in which subtable a decision's mask was last placed: most decisions have one of few
//! masks. Where all flows are new: 1,049 cycles a packet with it and 1,477 without
//! (docs/perf/heuristics.md).

use super::predictor::HISTORY_ENTRIES;
use crate::batch::keys::Words;

/// Pairs of mask and subtable. Pairs are lost when others take their entry, and a mask may be taken
/// for another: a remembered subtable must be checked.
pub(crate) struct SubtableMemo {
    /// A check of 24 bits above the subtable's number of 8 bits.
    entries: Box<[u32]>,
    /// Part of every tag: when it changes, all entries are invalid.
    epoch: u64,
}

impl SubtableMemo {
    pub fn new() -> Self {
        SubtableMemo { entries: vec![0; HISTORY_ENTRIES].into(), epoch: 0 }
    }

    /// A number that stands for a mask of a port; `few`: while masks are widened to whole bytes.
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
        // Never 0, which marks an empty entry.
        ((mixed >> 48) as usize, (mixed as u32 ^ (mixed >> 20) as u32 | 1) & 0xff_ffff)
    }

    /// The subtable under this tag.
    #[inline]
    pub fn get(&self, tag: u64) -> Option<usize> {
        let (at, check) = self.entry(tag);
        let known = self.entries[at];
        (known >> 8 == check).then_some(known as usize & 0xff)
    }

    /// Records the subtable under this tag.
    pub fn put(&mut self, tag: u64, subtable: usize) {
        let (at, check) = self.entry(tag);
        self.entries[at] = check << 8 | subtable as u32;
    }

    /// Makes all entries invalid: subtables were added, or may be removed.
    pub fn forget(&mut self) {
        self.epoch += 1;
    }
}

const _: () = assert!(HISTORY_ENTRIES == 1 << (64 - 48) && super::flow_store::MASKS <= 256);
