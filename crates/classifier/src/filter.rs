//! A counted set of hash prefixes at one stage of a subtable: it answers whether any rule agrees
//! with the key so far.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::parts::{Array, Fill};

/// The low bits of a cell: the number of rules with the prefix. The upper 48 bits are of its hash,
/// with the top bit set so that no cell in use is zero.
const COUNT_MASK: u64 = 0xffff;
const CELL_USED_BIT: u64 = 1 << 63;

/// Open addressing over cells of 47 bits of hash and a 16-bit count. A count that has reached its
/// limit stays there. One writer; readers need no lock. Two prefixes are confused with a
/// probability of about 2^-47, which makes a lookup mark more bits than necessary, never fewer.
pub(crate) struct Filter {
    cells: Box<[AtomicU64]>,
    /// Entries are cells whose count is not 0. Cells that were in use stay dirty.
    fill: Fill,
}

impl Array for Filter {
    /// A cell in use.
    type Entry = u64;

    fn new(places: usize) -> Filter {
        let cells = (0..places).map(|_| AtomicU64::new(0)).collect();
        Filter { cells, fill: Fill::default() }
    }

    fn places(&self) -> usize {
        self.cells.len()
    }

    fn fill(&self) -> &Fill {
        &self.fill
    }

    fn for_each(&self, each: impl FnMut(u64)) {
        let cells = self.cells.iter().map(|c| c.load(Ordering::Relaxed));
        cells.filter(|c| c & COUNT_MASK != 0).for_each(each);
    }

    fn put(&self, hash: u64, cell: u64) {
        let (i, _) = self.probe(hash);
        self.cells[i].store(cell, Ordering::Relaxed);
        self.fill.add(true);
    }
}

impl Filter {
    /// The hash of a prefix, as far as its cell has it.
    pub fn hash_of(cell: u64) -> u64 {
        cell
    }

    /// The index and content of the prefix's cell, or of the empty cell that ends its probe run.
    #[inline]
    fn probe(&self, hash: u64) -> (usize, u64) {
        let hash = hash | CELL_USED_BIT;
        let mask = self.cells.len() - 1;
        // From the bits that a cell keeps, so that growing needs no rules.
        let mut i = (hash >> 16) as usize & mask;
        loop {
            let cell = self.cells[i].load(Ordering::Acquire);
            if cell == 0 || (cell ^ hash) & !COUNT_MASK == 0 {
                return (i, cell);
            }
            i = (i + 1) & mask;
        }
    }

    /// False if certainly no rule has this prefix.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.probe(hash).1 & COUNT_MASK != 0
    }

    /// Adds a rule. There must be room.
    pub fn add(&self, hash: u64) {
        let (i, cell) = self.probe(hash);
        if cell & COUNT_MASK == 0 {
            self.fill.add(cell == 0);
        }
        if cell & COUNT_MASK != COUNT_MASK {
            let prefix = (hash | CELL_USED_BIT) & !COUNT_MASK;
            self.cells[i].store((prefix | cell & COUNT_MASK) + 1, Ordering::Release);
        }
    }

    /// Removes a rule.
    pub fn sub(&self, hash: u64) {
        let (i, cell) = self.probe(hash);
        if cell & COUNT_MASK != COUNT_MASK && cell & COUNT_MASK != 0 {
            if cell & COUNT_MASK == 1 {
                self.fill.sub(false);
            }
            self.cells[i].store(cell - 1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let filter = Filter::new(2048);
        let hash = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for round in 1..=2 {
            (1..500).for_each(|i| filter.add(hash(i)));
            assert!((1..500).all(|i| filter.may_contain(hash(i))), "round {round}");
            assert_eq!(filter.entries(), 499, "round {round}");
        }
        assert!((500..1000).all(|i| !filter.may_contain(hash(i))));
        (1..500).for_each(|i| filter.sub(hash(i)));
        assert!((1..500).all(|i| filter.may_contain(hash(i))));
        (1..500).for_each(|i| filter.sub(hash(i)));
        assert!((1..500).all(|i| !filter.may_contain(hash(i))));
        assert_eq!(filter.entries(), 0);
    }

    #[test]
    fn a_full_count_stays() {
        let filter = Filter::new(4);
        (0..70_000).for_each(|_| filter.add(1 << 20));
        (0..70_000).for_each(|_| filter.sub(1 << 20));
        assert!(filter.may_contain(1 << 20));
    }
}
