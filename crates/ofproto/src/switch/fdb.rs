//! Learned addresses (FDB) of bridges.

use super::Switch;
use crate::mac_changes::Mac;
use crate::mac_table::{Learned, MacEntry, MacStats};
use crate::types::*;
use openflow::OfPort;

/// Addresses of a port that is gone which each other bridge forgets.
pub(super) const MOVED_MACS_MAX: usize = 1024;

impl Switch {
    pub(crate) fn learn(&mut self, bridge: u32, vlan: u16, mac: [u8; 6], port: OfPort, now: u64) {
        let Some(Some(b)) = self.bridges.get_mut(bridge as usize) else { return };
        if !b.ports.contains_key(&port) {
            return;
        }
        let index = b.mac_index.writer(self.writer.pin());
        let learned = b.macs.learn(index, vlan, mac, port, now);
        if let Learned::Evicted(vlan, old) = learned {
            self.outbox.macs.push(bridge, vlan, Mac::Known(old));
        }
        match learned {
            Learned::New | Learned::Evicted(..) => {
                self.outbox.macs.push(bridge, vlan, Mac::New(mac));
            }
            Learned::Moved => self.outbox.macs.push(bridge, vlan, Mac::Known(mac)),
            _ => {}
        }
    }

    /// Records that effects of `n` packets of a datapath port were dropped before they could be
    /// learned, as too many waited.
    pub fn passed_over(&mut self, dp_port: u16, n: u64) {
        let published = self.published();
        let found = published.dp_ports.get(usize::from(dp_port)).copied();
        match found.flatten().map(|(bridge, port)| (self.bridges.get_mut(bridge as usize), port)) {
            Some((Some(Some(b)), port)) => b.macs.passed_over(port, n),
            _ => self.passed_over += n,
        }
    }

    /// Number of addresses that were not learned because their port showed too many new ones,
    /// summed over all ports (those of tunnels, which share a datapath port, included).
    pub fn macs_not_learned(&self) -> u64 {
        let all = self.bridges.iter().flatten();
        self.passed_over + all.flat_map(|b| b.macs.limited()).map(|(_, n)| n).sum::<u64>()
    }

    /// Number of packets from static addresses that came in on other ports.
    pub fn macs_not_moved(&self) -> u64 {
        self.bridges.iter().flatten().map(|b| b.macs.stats().fixed_elsewhere).sum()
    }

    /// Ports that showed too many new addresses since they were last reported: (bridge, port,
    /// number of addresses not learned). Each port is reported once a minute. `now` in ns.
    pub fn take_limited(&mut self, now: u64) -> Vec<(BridgeId, OfPort, u64)> {
        let all = self.bridges.iter_mut().flatten();
        all.flat_map(|b| b.macs.take_limited(now).map(|(p, n)| (BridgeId(b.id), p, n))).collect()
    }

    /// Number of addresses that were not learned because the port showed too many, by port.
    pub fn fdb_limited(&self, id: BridgeId) -> Result<Vec<(OfPort, u64)>, ConfigError> {
        Ok(self.bridge(id)?.macs.limited().collect())
    }

    /// Addresses (`fdb/show`); the one that was not seen for the longest time is first.
    pub fn fdb(&self, id: BridgeId) -> Result<Vec<MacEntry>, ConfigError> {
        Ok(self.bridge(id)?.macs.entries())
    }

    /// Some addresses, in no order: examines `looks` places from place `from` on, until `each`
    /// returns false. Returns the place to continue from; None: there are no more.
    pub fn fdb_from(
        &self,
        id: BridgeId,
        from: usize,
        looks: usize,
        each: &mut dyn FnMut(&MacEntry) -> bool,
    ) -> Option<usize> {
        self.bridge(id).ok()?.macs.entries_from(from, looks, each)
    }

    /// Counters (`fdb/stats-show`).
    pub fn fdb_stats(&self, id: BridgeId) -> Result<MacStats, ConfigError> {
        Ok(self.bridge(id)?.macs.stats())
    }

    /// Clears counters (`fdb/stats-clear`).
    pub fn fdb_clear_stats(&mut self, id: BridgeId) -> Result<(), ConfigError> {
        self.bridge_mut(id)?.macs.clear_stats();
        Ok(())
    }

    /// Removes learned addresses (`fdb/flush`); static entries stay.
    pub fn fdb_flush(&mut self, id: BridgeId) -> Result<(), ConfigError> {
        let (b, guard) = self.bridge_pinned(id)?;
        match b.macs.flush(b.mac_index.writer(guard)) {
            None => self.outbox.macs.push_bridge(id.0),
            Some(gone) => gone
                .iter()
                .for_each(|(vlan, mac)| self.outbox.macs.push(id.0, *vlan, Mac::Known(*mac))),
        }
        Ok(())
    }

    /// Adds a static entry (`fdb/add`); returns the entry that it replaces.
    pub fn fdb_add(
        &mut self,
        id: BridgeId,
        of_port: OfPort,
        vlan: u16,
        mac: [u8; 6],
        now: u64,
    ) -> Result<Option<MacEntry>, ConfigError> {
        let (b, guard) = self.bridge_pinned(id)?;
        if !b.ports.contains_key(&of_port) {
            return Err(ConfigError::NoPort(of_port));
        }
        let before = b.macs.add_static(b.mac_index.writer(guard), vlan, mac, of_port, now);
        self.outbox.macs.push(id.0, vlan, Mac::Known(mac));
        Ok(before)
    }

    /// Removes an entry, static or learned (`fdb/del`). False: there is none.
    pub fn fdb_del(&mut self, id: BridgeId, vlan: u16, mac: [u8; 6]) -> Result<bool, ConfigError> {
        let (b, guard) = self.bridge_pinned(id)?;
        let was = b.macs.remove(b.mac_index.writer(guard), vlan, mac);
        self.outbox.macs.push(id.0, vlan, Mac::Known(mac));
        Ok(was)
    }

    /// Makes all other bridges forget addresses that were learned behind a port that is gone. Of a
    /// port with more addresses than a guest has these are some only, which bounds the work.
    pub(crate) fn forget_moved(&mut self, gone_from: BridgeId, macs: &[(u16, [u8; 6])]) {
        let others = self.bridges.iter_mut().flatten().filter(|b| b.id != gone_from.0);
        for b in others {
            let index = b.mac_index.writer(self.writer.pin());
            for (vlan, mac) in macs {
                if b.macs.remove_learned(index, *vlan, *mac) {
                    self.outbox.macs.push(b.id, *vlan, Mac::Known(*mac));
                }
            }
        }
    }

    /// Removes addresses that are too old, at most `n`; returns how many.
    pub(crate) fn expire_macs(&mut self, now: u64, n: usize) -> usize {
        let mut left = n;
        for b in self.bridges.iter_mut().flatten() {
            let index = b.mac_index.writer(self.writer.pin());
            left -= b.macs.sweep(index, left);
            let gone = b.macs.expire(index, now, left);
            left -= gone.len();
            gone.iter()
                .for_each(|(vlan, mac)| self.outbox.macs.push(b.id, *vlan, Mac::Known(*mac)));
        }
        n - left
    }
}
