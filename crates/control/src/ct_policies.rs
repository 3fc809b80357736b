//! Numbers of timeout policies, by which decisions and connections know them: equal policies share
//! one.

use crate::config::Timeouts;
use conntrack::POLICIES_COUNT_MAX;
use std::collections::BTreeMap;

/// The numbers that timeout policies have.
#[derive(Default)]
pub struct Numbers {
    used: BTreeMap<Timeouts, u32>,
    /// Where to look for the next free number. One that was freed is taken last: connections that
    /// were committed under it may live on for a while, with default timeouts.
    next: u32,
}

impl Numbers {
    /// Keeps the numbers of policies that are wanted still; those whose policies left.
    pub fn retain(&mut self, wanted: &BTreeMap<u16, Timeouts>) -> Vec<u32> {
        let left = |t: &Timeouts| !wanted.values().any(|w| w == t);
        let gone = self.used.iter().filter(|(t, _)| left(t)).map(|(_, n)| *n).collect();
        self.used.retain(|t, _| wanted.values().any(|w| w == t));
        gone
    }

    /// The number of a policy, and whether it is a new one; None: there are too many.
    pub fn of(&mut self, policy: &Timeouts) -> Option<(u32, bool)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use conntrack::CLASSES;

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
