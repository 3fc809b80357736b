//! A counted set of hash prefixes at one stage of a subtable: it answers whether any rule agrees
//! with the key so far.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The low bits of a cell: the number of rules with the prefix. The upper 48 bits are of its hash,
/// with the top bit set so that no cell in use is zero.
const COUNT_MASK: u64 = 0xffff;
const CELL_USED_BIT: u64 = 1 << 63;
const CELLS_MIN: usize = 4;

/// Open addressing over cells of 47 bits of hash and a 16-bit count. A count that has reached its
/// limit stays there. One writer; readers need no lock. Two prefixes are confused with a
/// probability of about 2^-47, which makes a lookup mark more bits than necessary, never fewer.
pub(crate) struct Filter {
    cells: Box<[AtomicU64]>,
    /// Number of cells that are or were in use. Only the writer uses this.
    dirty: AtomicUsize,
}

impl Filter {
    /// An empty set with room for a quarter of `size` prefixes.
    pub fn new(size: usize) -> Filter {
        let size = size.next_power_of_two().max(CELLS_MIN);
        Filter { cells: (0..size).map(|_| AtomicU64::new(0)).collect(), dirty: AtomicUsize::new(0) }
    }

    /// Heap memory, bytes.
    pub fn bytes(&self) -> usize {
        self.cells.len() * 8
    }

    /// True if another prefix can be added in place.
    pub fn has_room(&self) -> bool {
        (self.dirty.load(Ordering::Relaxed) + 1) * 2 <= self.cells.len()
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
        if cell == 0 {
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
        if cell & COUNT_MASK != COUNT_MASK {
            self.cells[i].store(
                ((hash | CELL_USED_BIT) & !COUNT_MASK | cell & COUNT_MASK) + 1,
                Ordering::Release,
            );
        }
    }

    /// Adds a rule to a set that no thread reads yet; makes room if necessary.
    pub fn add_or_grow(&mut self, hash: u64) {
        if !self.has_room() {
            let new = Filter::new(self.cells.len() * 4);
            for cell in self.cells.iter().map(|c| c.load(Ordering::Relaxed)).filter(|c| *c != 0) {
                new.put(cell);
            }
            *self = new;
        }
        self.add(hash);
    }

    /// Adds a cell of another set.
    fn put(&self, cell: u64) {
        let (i, _) = self.probe(cell);
        self.cells[i].store(cell, Ordering::Relaxed);
        self.dirty.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a rule.
    pub fn sub(&self, hash: u64) {
        let (i, cell) = self.probe(hash);
        if cell & COUNT_MASK != COUNT_MASK && cell & COUNT_MASK != 0 {
            self.cells[i].store(cell - 1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_grows() {
        let mut filter = Filter::new(0);
        let hash = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for round in 1..=2 {
            (1..500).for_each(|i| filter.add_or_grow(hash(i)));
            assert!((1..500).all(|i| filter.may_contain(hash(i))), "round {round}");
        }
        assert!((500..1000).all(|i| !filter.may_contain(hash(i))));
        (1..500).for_each(|i| filter.sub(hash(i)));
        assert!((1..500).all(|i| filter.may_contain(hash(i))));
        (1..500).for_each(|i| filter.sub(hash(i)));
        assert!((1..500).all(|i| !filter.may_contain(hash(i))));
    }

    #[test]
    fn a_full_count_stays() {
        let filter = Filter::new(4);
        (0..70_000).for_each(|_| filter.add(1 << 20));
        (0..70_000).for_each(|_| filter.sub(1 << 20));
        assert!(filter.may_contain(1 << 20));
    }
}
