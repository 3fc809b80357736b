//! Limits the time that a worker spends on NAT's searches for free ports.
//!
//! When all ports of a range are in use, each further packet searches the whole range, with a
//! lookup for each port. So the tries of a search beyond the first [`SEARCH_TRIES_MIN`] are charged
//! to the packet's input port. A port has [`PORT_TRIES_MS_MAX`] of them per millisecond, and all
//! ports of a worker together have [`ALL_TRIES_MS_MAX`].

use crate::track::Arrival;
use std::collections::HashMap;

/// Tries that each search has, even if its port has no others left.
const SEARCH_TRIES_MIN: u32 = 16;
/// Tries of a port in a millisecond, beyond those: two whole searches, which take a worker some
/// 25 us.
const PORT_TRIES_MS_MAX: u32 = 512;
/// Tries of all ports of a worker in a millisecond: a tenth of its time.
const ALL_TRIES_MS_MAX: u32 = 2048;

/// Tries of this millisecond.
#[derive(Default)]
pub struct Searches {
    now: u64,
    of_all: u32,
    of_ports: HashMap<u16, u32>,
}

impl Searches {
    /// Tries that a search may have for a packet that arrived like this.
    pub fn allowed(&mut self, came: Arrival) -> u32 {
        if self.now != came.now {
            (self.now, self.of_all) = (came.now, 0);
            self.of_ports.clear();
        }
        let of_port = || self.of_ports.get(&came.port).copied().unwrap_or(0);
        let had = if self.of_all == 0 { 0 } else { of_port() };
        SEARCH_TRIES_MIN + PORT_TRIES_MS_MAX.min(ALL_TRIES_MS_MAX - self.of_all).saturating_sub(had)
    }

    /// Counts the tries that a search had.
    pub fn had(&mut self, came: Arrival, tries: u32) {
        let counted = tries.saturating_sub(SEARCH_TRIES_MIN);
        if counted > 0 {
            *self.of_ports.entry(came.port).or_default() += counted;
            self.of_all = (self.of_all + counted).min(ALL_TRIES_MS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries of a thousand searches that find no free port, all in this millisecond.
    fn fruitless(s: &mut Searches, port: u16, now: u64) -> u32 {
        let came = Arrival { port, now };
        let one = |_| {
            let tries = s.allowed(came).min(248);
            s.had(came, tries);
            tries
        };
        (0..1000).map(one).sum()
    }

    #[test]
    fn searches_without_a_find_have_few_tries_and_leave_other_ports_theirs() {
        let mut s = Searches::default();
        for now in [5, 6] {
            assert_eq!(fruitless(&mut s, 1, now), 1000 * SEARCH_TRIES_MIN + PORT_TRIES_MS_MAX);
            assert_eq!(s.allowed(Arrival { port: 2, now }), SEARCH_TRIES_MIN + PORT_TRIES_MS_MAX);
            let others: u32 = (2..100).map(|port| fruitless(&mut s, port, now)).sum();
            assert!(
                others <= 98 * 1000 * SEARCH_TRIES_MIN + ALL_TRIES_MS_MAX - PORT_TRIES_MS_MAX,
                "{others}"
            );
            assert_eq!(s.allowed(Arrival { port: 200, now }), SEARCH_TRIES_MIN);
        }
    }
}
