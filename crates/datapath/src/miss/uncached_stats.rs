//! Traffic of decisions that were not stored: sums by counter, for the control side.
//!
//! A small table holds the sums that still grow, one place for each counter. A counter that needs a
//! place moves the sum that is there to a list, which the control side gets about once per
//! millisecond. Nothing is hashed or allocated per packet.

use crate::events::PortEffects;
use crate::messages::{PORT_EFFECTS_MAX, Sum, UncachedReport};
use flow::PortNo;

/// Places of the table: as many as fit into a core's level 1 cache.
const SUM_PLACES: usize = 1 << (L1_CACHE_BYTES / size_of::<Sum>()).ilog2();
const L1_CACHE_BYTES: usize = 32 << 10;

/// Sums in the list from which on equal counters are merged.
const SUMS_MERGE_MIN: usize = 16 * SUM_PLACES;

/// One port's share of the effects that are kept.
#[derive(Clone, Copy, Default)]
struct PortShare {
    /// The number of the list that the counts belong to.
    list: u64,
    /// Effects that were kept.
    effects: u32,
    /// Effects that were not kept.
    lost: u64,
}

/// Sums of traffic of decisions that were not stored, by counter.
pub(crate) struct UncachedStats {
    /// Sums that still grow, by the low bits of the counter's number; a sum without packets is an
    /// empty place.
    places: Box<[Sum; SUM_PLACES]>,
    list: Vec<Sum>,
    /// Length of the list from which on equal counters are merged.
    merge: usize,
    effects: Vec<(PortNo, PortEffects, u32)>,
    /// The shares of ports, by port number.
    shares: Vec<PortShare>,
    /// Ports that have a share of the current list.
    ports: Vec<PortNo>,
    /// The number of the current list.
    list_no: u64,
    used_ms: u64,
    any: bool,
}

impl Default for UncachedStats {
    fn default() -> Self {
        UncachedStats {
            places: Box::new([Sum::default(); SUM_PLACES]),
            list: Vec::new(),
            merge: SUMS_MERGE_MIN,
            effects: Vec::new(),
            shares: Vec::new(),
            ports: Vec::new(),
            list_no: 1,
            used_ms: 0,
            any: false,
        }
    }
}

impl UncachedStats {
    /// Credits a packet of `bytes` bytes to these counters.
    pub fn credit(&mut self, counters: &[u32], bytes: u64, now_ms: u64) {
        (self.any, self.used_ms) = (true, now_ms);
        for (counter, bytes) in action::credited(counters, 1, bytes) {
            let place = &mut self.places[counter as usize % SUM_PLACES];
            if place.counter != counter && place.packets > 0 {
                self.list.push(std::mem::take(place));
            }
            place.counter = counter;
            place.packets += 1;
            place.bytes += bytes;
        }
        if self.list.len() >= self.merge {
            self.merge_sums();
        }
    }

    /// Keeps the effects of a decision about a packet of `bytes` bytes from `port` for the control
    /// side, within the port's share: each of the n ports that have some since the last report may
    /// keep [`PORT_EFFECTS_MAX`] divided by n, so all together keep less than that times 1 + ln n.
    /// Beyond that only credits are kept.
    pub fn effects(&mut self, port: PortNo, effects: Option<PortEffects>, bytes: usize) {
        let Some(effects) = effects else { return };
        let at = usize::from(port);
        if self.shares.len() <= at {
            self.shares.resize(at + 1, PortShare::default());
        }
        if self.shares[at].list != self.list_no {
            self.shares[at] = PortShare { list: self.list_no, ..PortShare::default() };
            self.ports.push(port);
        }
        let share = &mut self.shares[at];
        if share.effects as usize * self.ports.len() < PORT_EFFECTS_MAX {
            share.effects += 1;
            self.effects.push((port, effects, bytes as u32));
        } else {
            share.lost += 1;
        }
    }

    /// Merges sums of equal counters: the list is not longer than there are counters, however late
    /// the control side takes it.
    fn merge_sums(&mut self) {
        self.list.sort_unstable_by_key(|s| s.counter);
        self.list.dedup_by(|from, into| {
            let same = from.counter == into.counter;
            if same {
                into.packets += from.packets;
                into.bytes += from.bytes;
            }
            same
        });
        self.merge = (2 * self.list.len()).max(SUMS_MERGE_MIN);
    }

    /// True if nothing was credited since the last [`UncachedStats::take`].
    pub fn is_empty(&self) -> bool {
        !self.any
    }

    /// Takes everything that was credited and kept since the last call.
    pub fn take(&mut self) -> UncachedReport {
        let running = self.places.iter_mut().filter(|s| s.packets > 0);
        self.list.extend(running.map(std::mem::take));
        (self.any, self.merge) = (false, SUMS_MERGE_MIN);
        let next = Vec::with_capacity(self.list.len().min(SUMS_MERGE_MIN));
        self.list_no += 1;
        let shares = &self.shares;
        let lost = self.ports.drain(..).map(|p| (p, shares[usize::from(p)].lost));
        let lost = lost.filter(|(_, n)| *n > 0).collect();
        UncachedReport {
            sums: std::mem::replace(&mut self.list, next),
            effects: std::mem::take(&mut self.effects),
            lost,
            used_ms: self.used_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    #[test]
    fn no_packet_and_no_byte_is_lost() {
        let (mut p, mut expected) = (UncachedStats::default(), BTreeMap::<u32, (u64, u64)>::new());
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
        assert!(p.list.len() < 4 * expected.len() + SUMS_MERGE_MIN, "{} sums", p.list.len());
        let (mut sums, uncached) = (BTreeMap::<u32, (u64, u64)>::new(), p.take());
        assert_eq!(uncached.used_ms, 199_999);
        for s in uncached.sums {
            let e = sums.entry(s.counter).or_default();
            *e = (e.0 + s.packets, e.1 + s.bytes);
        }
        assert_eq!(sums, expected);
        assert!(p.is_empty() && p.take().sums.is_empty());
    }

    #[test]
    fn effects_have_a_limit_and_ports_a_share() {
        let mut p = UncachedStats::default();
        for n in 0..2 * PORT_EFFECTS_MAX {
            p.credit(&[], 1, 1);
            p.effects(7, Some(Arc::new(n)), 1);
        }
        // A port that comes when the list is full has its share all the same.
        (0..PORT_EFFECTS_MAX).for_each(|n| p.effects(3, Some(Arc::new(n)), 1));
        let uncached = p.take();
        let of = |port| uncached.effects.iter().filter(|(p, ..)| *p == port).count();
        assert_eq!((of(7), of(3)), (PORT_EFFECTS_MAX, PORT_EFFECTS_MAX / 2));
        assert_eq!(uncached.lost, [(7, PORT_EFFECTS_MAX as u64), (3, PORT_EFFECTS_MAX as u64 / 2)]);
        assert!(p.take().effects.is_empty());
        // Many ports: not much more than the limit altogether.
        (0..500).for_each(|port| {
            (0..PORT_EFFECTS_MAX).for_each(|n| p.effects(port, Some(Arc::new(n)), 1))
        });
        let all = p.take().effects.len();
        assert!((PORT_EFFECTS_MAX..8 * PORT_EFFECTS_MAX).contains(&all), "{all}");
    }
}
