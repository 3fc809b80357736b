//! Which subtable the flows near this one were in: a decision about a flow that was never seen
//! mostly looks at the same bits as the one before it about the same neighbourhood, and probing one
//! subtable costs much less than deciding. Where all flows are new: 1,049 cycles a packet with it
//! and 2,519 without (docs/perf/heuristics.md).

use crate::mem::fold;
use crate::mem::prefetch;

/// Entries; neighbourhoods share them.
const PREDICTOR_ENTRIES: usize = 1 << 16;

/// What makes a neighbourhood: 8 bits of the source and 24 of the destination, bytes 16 to 24 of a
/// key.
const NEIGHBOURHOOD: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0]);

/// Guesses per packet at most.
pub(super) const PREDICTIONS_MAX: usize = 4;

/// Guesses that say whether more are worth it.
const TRIAL_PREDICTIONS_MIN: u64 = 256;
/// One in so many must be right: deciding costs as much as so many probes.
const TRIAL_RIGHT_RATIO: u64 = 8;
/// A port whose flows are not guessed is tried again after so many judgements.
const TRIAL_RETRY_INTERVALS: u32 = 16;

/// See the module: subtables by neighbourhood, the latest first; what they say must be checked.
pub(super) struct SubtablePredictor {
    near: Box<[[u8; PREDICTIONS_MAX]]>,
}

impl SubtablePredictor {
    pub fn new() -> Self {
        SubtablePredictor { near: vec![[0; PREDICTIONS_MAX]; PREDICTOR_ENTRIES].into() }
    }

    #[inline(always)]
    fn entry(addresses: u64) -> usize {
        (fold(addresses & NEIGHBOURHOOD) >> 48) as usize % PREDICTOR_ENTRIES
    }

    /// Where flows near these addresses (word 2 of a key) were; 0: nothing is known.
    #[inline(always)]
    pub fn get(&self, addresses: u64) -> [u8; PREDICTIONS_MAX] {
        self.near[Self::entry(addresses)]
    }

    /// Brings the entry closer.
    #[inline]
    pub fn prefetch(&self, addresses: u64) {
        prefetch(&self.near[Self::entry(addresses)]);
    }

    /// A flow of these addresses was in this subtable.
    pub fn put(&mut self, addresses: u64, slot: usize) {
        let near = &mut self.near[Self::entry(addresses)];
        let before =
            near.iter().position(|s| usize::from(*s) == slot).unwrap_or(PREDICTIONS_MAX - 1);
        near.copy_within(..before, 1);
        near[0] = slot as u8;
    }
}

/// Is guessing worth it for a port?
#[derive(Clone, Copy)]
pub(super) struct PredictorTrial {
    pub on: bool,
    wait: u32,
    made: u64,
    right: u64,
}

impl Default for PredictorTrial {
    fn default() -> Self {
        PredictorTrial { on: true, wait: 0, made: 0, right: 0 }
    }
}

impl PredictorTrial {
    /// Counts predictions, and those that were right.
    pub fn count(&mut self, made: u64, right: u64) {
        self.made += made;
        self.right += right;
    }

    /// Every now and then.
    pub fn judge(&mut self) {
        if !self.on {
            self.wait -= 1;
            self.on = self.wait == 0;
        } else if self.made >= TRIAL_PREDICTIONS_MIN {
            self.on = self.right * TRIAL_RIGHT_RATIO >= self.made;
            self.wait = TRIAL_RETRY_INTERVALS;
        }
        (self.made, self.right) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_that_are_wrong_are_rarely_made() {
        let mut j = PredictorTrial::default();
        j.count(1000, 900);
        j.judge();
        assert!(j.on);
        j.count(10, 0);
        j.judge();
        assert!(j.on, "ten say nothing");
        let on = |right| {
            let mut j = PredictorTrial::default();
            (0..170)
                .filter(|_| {
                    let on = j.on;
                    j.count(if on { 1000 } else { 0 }, right);
                    j.judge();
                    on
                })
                .count()
        };
        assert_eq!((on(0), on(500)), (10, 170));
    }

    #[test]
    fn neighbours_are_known() {
        let mut g = SubtablePredictor::new();
        let of = |src: u8, net: u8, host: u8| u64::from_ne_bytes([10, src, 3, 4, 10, 5, net, host]);
        assert_eq!(g.get(of(1, 1, 1)), [0; PREDICTIONS_MAX]);
        [7, 8, 7, 9, 10, 11, 8].iter().for_each(|slot| g.put(of(1, 1, *slot), usize::from(*slot)));
        assert_eq!(g.get(of(9, 1, 9)), [8, 11, 10, 9]);
        assert_eq!(g.get(of(1, 2, 1)), [0; PREDICTIONS_MAX]);
    }
}
