//! Timeout policies on their way from the database to connections: equal ones share a number, by which
//! decisions and connections know them.

use crate::config::{Desired, Timeouts};
use crate::state::State;
use crate::vlog;
use conntrack::{CLASSES, POLICIES_COUNT_MAX};
use std::collections::BTreeMap;

/// Which policy has which number.
#[derive(Default)]
pub struct Numbers {
    used: BTreeMap<Timeouts, u32>,
    /// Where to look for the next free number. One that was freed is taken last: connections that were
    /// committed under it may live on for a while, with default timeouts.
    next: u32,
}

impl Numbers {
    /// Keeps the numbers of policies that are wanted still; those whose policies left.
    fn retain(&mut self, wanted: &BTreeMap<u16, Timeouts>) -> Vec<u32> {
        let left = |t: &Timeouts| !wanted.values().any(|w| w == t);
        let gone = self.used.iter().filter(|(t, _)| left(t)).map(|(_, n)| *n).collect();
        self.used.retain(|t, _| wanted.values().any(|w| w == t));
        gone
    }

    /// The number of a policy, and whether it is a new one; None: there are too many.
    fn of(&mut self, policy: &Timeouts) -> Option<(u32, bool)> {
        if let Some(n) = self.used.get(policy) {
            return Some((*n, false));
        }
        let most = POLICIES_COUNT_MAX as u32;
        let free = |n: &u32| !self.used.values().any(|u| u == n);
        let n = (0..most).map(|i| (self.next + i) % most).find(free)?;
        self.next = n + 1;
        self.used.insert(*policy, n);
        Some((n, true))
    }
}

/// Applies what the database says of zones.
pub fn apply(s: &mut State, desired: &Desired) {
    if s.ct_timeouts.0 == desired.zone_timeouts {
        return;
    }
    s.ct_timeouts.0.clone_from(&desired.zone_timeouts);
    let policies = &s.dp.conntrack().policies;
    let numbers = &mut s.ct_timeouts.1;
    for gone in numbers.retain(&desired.zone_timeouts) {
        policies.set(gone, &[None; CLASSES]);
    }
    let mut zones = BTreeMap::new();
    for (zone, policy) in &desired.zone_timeouts {
        let Some((number, is_new)) = numbers.of(policy) else {
            vlog::warn!(
                "conntrack",
                "zone {zone} has default timeouts: there are {POLICIES_COUNT_MAX} other policies"
            );
            continue;
        };
        if is_new {
            policies.set(number, policy);
        }
        zones.insert(*zone, number);
    }
    s.ofproto.set_zone_timeouts(zones);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(n: u32) -> Timeouts {
        [Some(n); CLASSES]
    }

    #[test]
    fn equal_policies_share_a_number_and_a_freed_one_comes_last() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.of(&policy(1)), Some((0, true)));
        assert_eq!(numbers.of(&policy(2)), Some((1, true)));
        assert_eq!(numbers.of(&policy(1)), Some((0, false)));
        assert_eq!(numbers.retain(&BTreeMap::from([(7, policy(2))])), [0]);
        for n in 2..=POLICIES_COUNT_MAX as u32 {
            let number = n % POLICIES_COUNT_MAX as u32;
            assert_eq!(numbers.of(&policy(n + 1)), Some((number, true)));
        }
        assert_eq!(numbers.of(&policy(9_999)), None);
    }
}
