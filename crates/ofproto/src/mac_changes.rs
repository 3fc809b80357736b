//! Learned addresses whose port changed, in a bounded number of pieces.

use std::collections::{BTreeMap, BTreeSet};

/// Addresses that are kept singly, over all bridges. Each is at most two regions (from it, to it),
/// so this is what one change may have of them before they are merged.
const SINGLE_MACS_MAX: usize = 2048;

/// If there are too many addresses, the VLAN with the most is merged, unless it has fewer than
/// this: then its bridge is.
const VLAN_MACS_MIN: usize = 64;

/// VLANs of a bridge that are kept singly; with more, the whole bridge is merged. Each VLAN is as
/// many regions as the bridge has ports.
const BRIDGE_VLANS_MAX: usize = 16;

/// Addresses whose port changed since the regions were last taken.
#[derive(Default)]
pub(crate) struct Macs {
    single: BTreeMap<(u32, u16), Vec<Mac>>,
    n: usize,
    vlans: BTreeSet<(u32, u16)>,
    bridges: BTreeSet<u32>,
}

/// An address whose port changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mac {
    /// The address was not known. Decisions about packets from it stay right: they teach it.
    New([u8; 6]),
    /// The address was known, and what packets from it have taught is not true any more.
    Known([u8; 6]),
}

/// A piece of the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// An address of a bridge.
    Mac(u32, Mac),
    /// Many addresses of one VLAN of a bridge.
    Vlan(u32, u16),
    /// Many addresses of a bridge.
    Bridge(u32),
}

impl Macs {
    pub fn push(&mut self, bridge: u32, vlan: u16, mac: Mac) {
        if self.bridges.contains(&bridge) || self.vlans.contains(&(bridge, vlan)) {
            return;
        }
        let list = self.single.entry((bridge, vlan)).or_default();
        if list.last() == Some(&mac) {
            return;
        }
        list.push(mac);
        self.n += 1;
        if self.n > SINGLE_MACS_MAX {
            self.widen();
        }
    }

    /// Many addresses of a bridge changed.
    pub fn push_bridge(&mut self, bridge: u32) {
        self.single.retain(|(b, _), _| *b != bridge);
        self.vlans.retain(|(b, _)| *b != bridge);
        self.bridges.insert(bridge);
        self.n = self.single.values().map(Vec::len).sum();
    }

    /// Merges the addresses of the VLAN with the most; those of its bridge, if these are few.
    fn widen(&mut self) {
        let largest = self.single.iter().max_by_key(|(_, list)| list.len());
        let Some(((bridge, vlan), n)) = largest.map(|(k, list)| (*k, list.len())) else { return };
        let wide = self.vlans.range((bridge, 0)..=(bridge, u16::MAX)).count();
        if n >= VLAN_MACS_MIN && wide < BRIDGE_VLANS_MAX {
            self.single.remove(&(bridge, vlan));
            self.vlans.insert((bridge, vlan));
            self.n = self.single.values().map(Vec::len).sum();
        } else {
            self.push_bridge(bridge);
        }
    }

    pub fn drain(self) -> impl Iterator<Item = Changed> {
        let of = |((b, _), macs): ((u32, u16), Vec<Mac>)| {
            macs.into_iter().map(move |mac| Changed::Mac(b, mac))
        };
        let single = self.single.into_iter().flat_map(of);
        let vlans = self.vlans.into_iter().map(|(b, v)| Changed::Vlan(b, v));
        single.chain(vlans).chain(self.bridges.into_iter().map(Changed::Bridge))
    }
}
