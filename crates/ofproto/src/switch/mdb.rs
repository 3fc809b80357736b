//! Multicast snooping of bridges: memberships and routers are learned from packets of IGMP and MLD.

use super::Switch;
use crate::mcast::members::{Changed, McastEntry, McastPlace, McastTable};
use crate::mcast::messages::{self, Said};
use crate::translate::effects::McastContext;
use crate::types::{BridgeId, McastConfig};
use action::Region;
use flow::{Key, Mask, at};
use openflow::OfPort;

impl Switch {
    /// Handles a packet of IGMP or MLD that came in at `now` (ns).
    pub fn snoop_mcast(&mut self, to: &McastContext, frame: &[u8], now: u64) {
        let Ok(b) = self.bridge(to.bridge) else { return };
        let Some(port) = b.ports.get(&to.port).map(|p| p.mcast) else { return };
        let Some(table) = self.mcast.get_mut(&to.bridge.0) else { return };
        if port.flood || !table.hears(to.port, now) {
            return;
        }
        // A router's port gets all multicast anyway.
        let silent = |t: &McastTable| t.is_router(to.vlan, to.port);
        for said in messages::read(frame) {
            if !table.hears(to.port, now) {
                break;
            }
            match said {
                Said::Router => table.router(to.vlan, to.port, now),
                Said::Join(group) if !silent(table) => {
                    table.join((to.vlan, group), to.port, now);
                }
                // Behind a port that gets reports there are several hosts.
                Said::Leave(group) if !port.flood_reports => {
                    table.leave((to.vlan, group), to.port);
                }
                _ => {}
            }
        }
        self.publish_mcast(to.bridge);
    }

    /// Number of packets of IGMP and MLD, and of reported memberships, that were ignored because
    /// their port sent too many.
    pub fn mcast_not_heard(&self) -> u64 {
        self.mcast.values().map(McastTable::not_heard).sum()
    }

    /// Members and routers (`mdb/show`); None: the bridge does not snoop.
    pub fn mdb(&self, id: BridgeId) -> Option<Vec<McastEntry>> {
        Some(self.mcast.get(&id.0)?.entries())
    }

    /// Number of members and routers, and of those that are still to be removed; None: the bridge
    /// does not snoop.
    pub fn mdb_len(&self, id: BridgeId) -> Option<usize> {
        Some(self.mcast.get(&id.0)?.len())
    }

    /// Some members and routers, by group and VLAN: examines `looks` behind a place, and the rest
    /// of a group. Returns the place to continue behind; None: there are no more.
    pub fn mdb_after(
        &self,
        id: BridgeId,
        place: Option<McastPlace>,
        looks: usize,
        each: &mut dyn FnMut(McastEntry),
    ) -> Option<McastPlace> {
        self.mcast.get(&id.0)?.entries_after(place, looks, each)
    }

    /// Removes members and routers (`mdb/flush`); false: the bridge does not snoop.
    pub fn mdb_flush(&mut self, id: BridgeId) -> bool {
        let Some(table) = self.mcast.get_mut(&id.0) else { return false };
        table.flush();
        self.publish_mcast(id);
        true
    }

    pub(super) fn configure_mcast(&mut self, id: BridgeId, config: Option<McastConfig>) {
        let domain = self.shared.domain.clone();
        match config {
            Some(config) => self
                .mcast
                .entry(id.0)
                .or_insert_with(|| McastTable::new(domain, config))
                .configure(config),
            None => {
                let Some(mut table) = self.mcast.remove(&id.0) else { return };
                table.flush();
                self.mcast_gone.push(table);
            }
        }
    }

    /// Removes members and routers behind a port that is removed, or is in other VLANs now.
    pub(super) fn forget_mcast(&mut self, id: BridgeId, port: OfPort) {
        let Some(table) = self.mcast.get_mut(&id.0) else { return };
        table.remove_port(port);
        self.publish_mcast(id);
    }

    /// Removes members and routers that are too old, at most `n`; returns how many.
    pub(super) fn expire_mcast(&mut self, now: u64, n: usize) -> usize {
        let mut left = n;
        while left > 0
            && let Some(table) = self.mcast_gone.last_mut()
        {
            left -= table.sweep(left);
            table.publish();
            if !table.is_unswept() {
                self.mcast_gone.pop();
            }
        }
        let all: Vec<u32> = self.mcast.keys().copied().collect();
        for id in all {
            left -= self.mcast.get_mut(&id).map_or(0, |t| t.expire(now, left));
            self.publish_mcast(BridgeId(id));
        }
        n - left
    }

    fn publish_mcast(&mut self, id: BridgeId) {
        let changed = self.mcast.get_mut(&id.0).map(McastTable::publish);
        for changed in changed.into_iter().flatten() {
            let region = self.rewritten.before(&to_group(changed));
            self.region_of(id.0, region);
        }
    }
}

/// The region of packets that NORMAL may send to other ports after this change.
fn to_group(changed: Changed) -> Region {
    let (mut key, mut mask) = (Key::ZERO, Mask::ZERO);
    match changed {
        Changed::All => {
            mask.set_u8(at::ETH_DST, 1);
            key.set_u8(at::ETH_DST, 1);
        }
        Changed::Group(group) => match group.to_ipv4_mapped() {
            Some(v4) => {
                mask.set_u32(at::IP_DST, !0);
                key.set_u32(at::IP_DST, v4.into());
            }
            None => {
                mask.set(at::IPV6_DST, [0xff; 16]);
                key.set(at::IPV6_DST, group.octets());
            }
        },
    }
    Region::new(key, mask)
}
