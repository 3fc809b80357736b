//! What a peer may have the control side do: some at once, then at a rate.

/// Units that come over time, up to a limit; each is for one piece of work.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u64,
    /// Until when what came was reckoned, ms.
    since: u64,
    most: u64,
}

impl Budget {
    /// `most` units, and never more, at `now` (ms).
    pub fn full(most: u64, now: u64) -> Budget {
        Budget { left: most, since: now, most }
    }

    /// True if there is a unit at `now`, when one comes every `price` ms.
    pub fn has(&mut self, now: u64, price: u64) -> bool {
        let earned = now.saturating_sub(self.since) / price;
        self.since += earned * price;
        self.left = self.left.saturating_add(earned).min(self.most);
        self.left > 0
    }

    /// Takes one, if there is one.
    pub fn spend(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// When there is one again, as of the last [`Budget::has`]; None: there is one.
    pub fn next(&self, price: u64) -> Option<u64> {
        (self.left == 0).then(|| self.since.saturating_add(price))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_at_their_price_up_to_the_limit() {
        let mut b = Budget::full(3, 1000);
        let mut spend = |now| b.has(now, 10).then(|| b.spend()).is_some();
        assert_eq!(
            [1000, 1000, 1000, 1000, 1009].map(&mut spend),
            [true, true, true, false, false]
        );
        assert_eq!([1010, 1019, 1020].map(&mut spend), [true, false, true]);
        assert_eq!(b.next(10), Some(1030));
        assert!(b.has(u64::MAX, 10) && b.next(10).is_none());
        (0..3).for_each(|_| b.spend());
        assert!(!b.has(0, 10), "time that went back brings nothing");
    }
}
