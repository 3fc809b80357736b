//! Chooses which of a guest's queues is served next, and which queue a sender uses.

/// Iterates over a guest's queues, each once, from a different one each time.
pub struct Turn {
    left: u64,
    /// The queue to begin with the next time.
    pub next: u32,
}

impl Turn {
    /// The queues in `mask`, from number `first` on.
    pub fn new(mask: u64, first: u32) -> Turn {
        Turn { left: mask, next: first }
    }

    /// The next queue.
    #[inline]
    pub fn pair(&mut self) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        let pair = (self.left.rotate_right(self.next).trailing_zeros() + self.next) % u64::BITS;
        self.left &= !(1 << pair);
        self.next = (pair + 1) % u64::BITS;
        Some(pair)
    }
}

/// The ring that send handle `index` uses when the queues in `mask` are enabled.
#[inline]
pub fn ring_of(mask: u64, index: usize) -> Option<u16> {
    match mask {
        0 => None,
        1 => Some(0),
        mask => Some(nth_bit(mask, index as u32 % mask.count_ones()) as u16 * 2),
    }
}

/// The position of the `n`-th set bit, counted from 0; there are more than `n`.
fn nth_bit(mut mask: u64, n: u32) -> u32 {
    for _ in 0..n {
        mask &= mask - 1;
    }
    mask.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_spread_over_enabled_queues() {
        let spread = |mask: u64| -> Vec<u32> {
            (0..4).map(|i: u32| nth_bit(mask, i % mask.count_ones())).collect()
        };
        assert_eq!(spread(0b1), [0, 0, 0, 0]);
        assert_eq!(spread(0b1011), [0, 1, 3, 0]);
        assert_eq!(spread(1 << 63), [63; 4]);
    }
}
