//! Which subtable a mask went to the last time: most decisions have one of few masks.

use super::mask::Words;

/// Entries; a mask has one place.
const ENTRIES: usize = 1024;

/// A memory of (mask, subtable) that may forget, and may take one mask for another: what it says must
/// be checked.
pub(crate) struct Places(Box<[(u64, u8); ENTRIES]>);

impl Places {
    pub fn new() -> Self {
        Places(Box::new([(0, 0); ENTRIES]))
    }

    /// Stands for a mask of a port, while rules are few or not; never 0.
    #[inline]
    pub fn tag(mask: &Words, port: u16, few: bool) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let turned = mask.iter().zip(1..).map(|(w, i)| w.wrapping_mul(ODD.rotate_left(i) | 1));
        let start = u64::from(port) << 32 | u64::from(few) << 16;
        turned.fold(start, |h: u64, w| h.wrapping_add(w ^ w >> 29)) | 1
    }

    #[inline]
    fn entry(tag: u64) -> usize {
        (tag.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 54) as usize
    }

    /// The subtable under this tag.
    #[inline]
    pub fn get(&self, tag: u64) -> Option<usize> {
        let (known, slot) = self.0[Self::entry(tag)];
        (known == tag).then_some(slot.into())
    }

    /// Remembers.
    pub fn put(&mut self, tag: u64, slot: usize) {
        self.0[Self::entry(tag)] = (tag, slot as u8);
    }

    /// Subtables came or may go: everything is looked for again.
    pub fn forget(&mut self) {
        self.0.fill((0, 0));
    }
}

const _: () = assert!(ENTRIES == 1 << (64 - 54) && super::store::MASKS <= 256);
