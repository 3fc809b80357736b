//! Traffic of decisions that were not stored: summed up by counter, for control.
//!
//! A small table of sums that are going on, one place for each counter; who takes a place pushes the sum there out,
//! to a list that control gets about once per millisecond. No hash is made, and nothing is allocated per packet.

use crate::events::{Passed, Sum};
use std::any::Any;
use std::sync::Arc;

/// Places of sums that are going on.
const PLACES: usize = 1024;

/// Sums from which on the list is worth making shorter.
const LONG: usize = 1 << 14;

/// Effects remembered until control is told; beyond, only credits are.
const EFFECTS: usize = 4096;

/// See the module.
pub(super) struct Passing {
    /// By the low bits of the counter's number; no packets: nothing.
    places: Box<[Sum; PLACES]>,
    list: Vec<Sum>,
    /// Length of the list at which equal counters are merged.
    merge: usize,
    effects: Vec<Arc<dyn Any + Send + Sync>>,
    used_ms: u64,
    any: bool,
}

impl Default for Passing {
    fn default() -> Self {
        Passing {
            places: Box::new([Sum::default(); PLACES]),
            list: Vec::new(),
            merge: LONG,
            effects: Vec::new(),
            used_ms: 0,
            any: false,
        }
    }
}

impl Passing {
    /// A packet of `bytes` was treated as decided: these counters count it.
    pub fn credit(&mut self, counters: &[u32], bytes: u64, now_ms: u64) {
        (self.any, self.used_ms) = (true, now_ms);
        for counter in counters {
            let place = &mut self.places[*counter as usize % PLACES];
            if place.counter != *counter && place.packets > 0 {
                self.list.push(std::mem::take(place));
            }
            place.counter = *counter;
            place.packets += 1;
            place.bytes += bytes;
        }
        if self.list.len() >= self.merge {
            self.shorten();
        }
    }

    /// And this is what else control wants to know.
    pub fn effects(&mut self, effects: Option<Arc<dyn Any + Send + Sync>>) {
        if let Some(e) = effects
            && self.effects.len() < EFFECTS
        {
            self.effects.push(e);
        }
    }

    /// One sum for each counter: there are not more than counters however long control does not listen.
    fn shorten(&mut self) {
        self.list.sort_unstable_by_key(|s| s.counter);
        self.list.dedup_by(|from, into| {
            let same = from.counter == into.counter;
            if same {
                into.packets += from.packets;
                into.bytes += from.bytes;
            }
            same
        });
        self.merge = (2 * self.list.len()).max(LONG);
    }

    pub fn is_empty(&self) -> bool {
        !self.any
    }

    /// All that was not taken before.
    pub fn take(&mut self) -> Passed {
        let going_on = self.places.iter_mut().filter(|s| s.packets > 0);
        self.list.extend(going_on.map(std::mem::take));
        (self.any, self.merge) = (false, LONG);
        let next = Vec::with_capacity(self.list.len().min(LONG));
        Passed {
            sums: std::mem::replace(&mut self.list, next),
            effects: std::mem::take(&mut self.effects),
            used_ms: self.used_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn no_packet_and_no_byte_is_lost() {
        let (mut p, mut expected) = (Passing::default(), BTreeMap::<u32, (u64, u64)>::new());
        let mut state = 1u32;
        for n in 0..200_000u64 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let counters = [state >> 15, 7, state >> 30];
            p.credit(&counters, n, n);
            for c in counters {
                let e = expected.entry(c).or_default();
                *e = (e.0 + 1, e.1 + n);
            }
        }
        assert!(p.list.len() < 4 * expected.len() + LONG, "{} sums", p.list.len());
        let (mut sums, passed) = (BTreeMap::<u32, (u64, u64)>::new(), p.take());
        assert_eq!(passed.used_ms, 199_999);
        for s in passed.sums {
            let e = sums.entry(s.counter).or_default();
            *e = (e.0 + s.packets, e.1 + s.bytes);
        }
        assert_eq!(sums, expected);
        assert!(p.is_empty() && p.take().sums.is_empty());
    }

    #[test]
    fn effects_have_a_limit() {
        let mut p = Passing::default();
        for n in 0..2 * EFFECTS {
            p.credit(&[], 1, 1);
            p.effects(Some(Arc::new(n)));
        }
        assert_eq!(p.take().effects.len(), EFFECTS);
        assert!(p.take().effects.is_empty());
    }
}
