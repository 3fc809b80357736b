//! How many counters a bridge's changes of groups have given up lately.
//!
//! A group that changes gets new counters for all of its buckets, and the old ones wait before they
//! are used again. A message of few bytes can change a group of thousands of buckets, so what waits
//! is bounded by bridge.

use crate::tables::counters::QUARANTINE_NS;
use std::collections::VecDeque;

/// Counters of groups and buckets of a bridge that wait, about, from which on its groups neither
/// come nor change: 180 MB.
pub(crate) const REPLACED_MAX: usize = 1 << 21;

/// Counters that are given up within this time are forgotten together, ns.
const TOGETHER_NS: u64 = QUARANTINE_NS / 100;

/// Counters of a bridge's groups and buckets that wait.
#[derive(Default)]
pub(crate) struct Replaced {
    /// When the first of some were given up (ns), and how many these are; oldest first.
    lately: VecDeque<(u64, usize)>,
    total: usize,
}

impl Replaced {
    /// True if a group may come or change. Forgets counters that need not wait any longer.
    pub fn has_room(&mut self, now: u64) -> bool {
        let waits = QUARANTINE_NS + TOGETHER_NS;
        while let Some((_, n)) = self.lately.pop_front_if(|(at, _)| *at + waits <= now) {
            self.total -= n;
        }
        self.total < REPLACED_MAX
    }

    /// Records that a change of groups gave up `n` counters at `now` (ns).
    pub fn add(&mut self, n: usize, now: u64) {
        self.total += n;
        match self.lately.back_mut().filter(|(at, _)| now < *at + TOGETHER_NS) {
            Some((_, same)) => *same += n,
            None => self.lately.push_back((now, n)),
        }
    }
}
