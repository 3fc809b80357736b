//! Changes of bridges through which tunnelled packets go, in a bounded number of pieces.
//!
//! An encapsulated packet goes through the tables of its bridge with outer headers, which are no
//! part of the packet that the decision is about. So a region of a flow there does not overlap the
//! decision's megaflow. [`Effects::outer_bridges`] of a decision has the bridges through which its
//! encapsulated packets went; a change of one of these makes the decision stale.

use crate::mac_changes::Mac;
use crate::translate::effects::Effects;
use std::collections::BTreeSet;

/// Addresses that are kept singly until changes are taken; more of them count as all addresses.
const MACS_COUNT_MAX: usize = 256;

/// Changes since they were last taken.
#[derive(Default)]
pub(crate) struct OuterChanges {
    /// Bridges whose flows changed, or of which many addresses did.
    pub bridges: BTreeSet<u32>,
    /// Addresses that were learned, moved or removed, in any bridge.
    pub macs: BTreeSet<[u8; 6]>,
    /// True: more addresses changed than are kept.
    pub all_macs: bool,
}

impl OuterChanges {
    pub fn bridge(&mut self, bridge: u32) {
        self.bridges.insert(bridge);
    }

    pub fn mac(&mut self, mac: Mac) {
        let (Mac::New(mac) | Mac::Known(mac)) = mac;
        match self.macs.len() < MACS_COUNT_MAX {
            true => drop(self.macs.insert(mac)),
            false => self.all_macs = true,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bridges.is_empty() && self.macs.is_empty()
    }

    /// True if the outer packets of this decision may take another way now.
    pub fn reach(&self, e: &Effects) -> bool {
        let of_bridge = e.outer_bridges.iter().any(|b| self.bridges.contains(b));
        let is_changed = |mac: [u8; 6]| self.all_macs || self.macs.contains(&mac);
        of_bridge || e.hops.iter().any(|h| h.used.is_some_and(is_changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::effects::Hop;

    /// A flood of addresses takes bounded memory, and then reaches all decisions with a next hop.
    #[test]
    fn many_addresses_count_as_all() {
        let used = Some([9; 6]);
        let [source, next] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(std::net::IpAddr::from);
        let hop = Hop { from: 1, bridge: 0, port: 2, source, next, used };
        let e = Effects { hops: vec![hop], ..Effects::default() };
        let mut changes = OuterChanges::default();
        for i in 0..MACS_COUNT_MAX as u32 {
            let [a, b, c, d] = i.to_be_bytes();
            changes.mac(Mac::New([2, 0, a, b, c, d]));
        }
        assert!(!changes.reach(&e));
        (0..1000).for_each(|_| changes.mac(Mac::New([3; 6])));
        assert!(changes.reach(&e) && changes.macs.len() == MACS_COUNT_MAX);
    }
}
