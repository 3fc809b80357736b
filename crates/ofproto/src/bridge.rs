//! A bridge as the control side keeps it: ports, learned addresses.

use crate::events::Event;
use crate::groups::liveness::Groups;
use crate::mac_index::MacIndex;
use crate::mac_table::{Learned, MacEntry, MacStats, MacTable};
use crate::published::{GroupHistory, GroupsAt};
use crate::switch::Switch;
use crate::switch::change::Txn;
use crate::switch::groups::GroupRec;
use crate::switch::learning::Learning;
use crate::switch::meters::MeterTable;
use crate::switch::mirrors::Places;
use crate::tables::counters::{Counter, Slot};
use crate::tables::table::{N_TABLES, Tables};
use crate::tables::tlv::{Masks, TlvTable};
use crate::types::*;
use action::Region;
use openflow::{OfError, OfPort, PortDesc, PortMod, port, port_config, port_state};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use sync::{Domain, Published};

/// `OFPPR_*`.
const ADDED: u8 = 0;
const DELETED: u8 = 1;
const MODIFIED: u8 = 2;

/// Counters of one flow table.
#[derive(Clone, Copy, Default)]
pub(crate) struct TableRec {
    pub active: u32,
    pub matched: u64,
    pub missed: u64,
    /// A controller wants it to evict.
    pub evict: bool,
    /// From and to which percentage of free places a controller wants to be told.
    pub vacancy: Option<[u8; 2]>,
    /// The next to be told is that there are more free places than that again.
    pub scarce: bool,
}

pub(crate) struct Bridge {
    pub id: u32,
    pub name: String,
    pub config: BridgeConfig,
    pub ports: BTreeMap<OfPort, PortSpec>,
    pub tables: Arc<Tables>,
    pub table_recs: Box<[TableRec; N_TABLES]>,
    /// Those of them with a vacancy.
    pub vacancies: Vec<u8>,
    pub groups: BTreeMap<u32, GroupRec>,
    pub group_index: Arc<Published<GroupsAt>>,
    pub group_history: GroupHistory,
    /// As packets see them now.
    pub shown_groups: Groups,
    /// Counts changes of ports.
    pub port_changes: u64,
    /// How many flows name a group.
    pub group_refs: HashMap<u32, u32>,
    pub meters: MeterTable,
    pub learning: Learning,
    pub macs: MacTable,
    pub mac_index: Arc<MacIndex>,
    /// By patch or tunnel port: the credit id of what it received; that of what it sent follows.
    pub patch_counts: BTreeMap<OfPort, u32>,
    pub miss_base: u32,
    pub monitored: bool,
    /// Some controller wants packets whose TTL expired.
    pub expired_wanted: Arc<AtomicBool>,
    /// Which options tunnel fields are.
    pub tlv: Arc<TlvTable>,
    /// What flows look at of them; grows until the table changes.
    pub tun_masks: Vec<Masks>,
    pub mirrors: Places,
}

impl Bridge {
    pub fn new(
        id: u32,
        name: &str,
        config: BridgeConfig,
        domain: Domain,
        miss_base: u32,
    ) -> Bridge {
        Bridge {
            id,
            name: name.into(),
            ports: BTreeMap::new(),
            tables: Arc::new(Tables::new(domain.clone())),
            table_recs: Box::new([TableRec::default(); N_TABLES]),
            vacancies: Vec::new(),
            groups: BTreeMap::new(),
            group_index: Arc::new(Published::new(domain.clone(), GroupsAt::default())),
            group_history: GroupHistory::default(),
            shown_groups: Groups::default(),
            port_changes: 0,
            group_refs: HashMap::new(),
            meters: MeterTable::new(domain.clone()),
            learning: Learning::new(domain.clone()),
            macs: MacTable::new(mac_limit(&config), config.mac_aging_s),
            mac_index: Arc::new(MacIndex::new(domain, 64)),
            patch_counts: BTreeMap::new(),
            config,
            miss_base,
            monitored: false,
            expired_wanted: Arc::default(),
            tlv: Arc::default(),
            tun_masks: Vec::new(),
            mirrors: Places::new(),
        }
    }

    /// Has the table as many flows as it may have?
    pub fn full(&self, table: u8) -> bool {
        let limit = self.config.tables.get(&table).and_then(|t| t.limit);
        limit.is_some_and(|n| self.table_recs[usize::from(table)].active >= n)
    }

    /// Does it have more flows than it may have?
    pub fn over(&self, table: u8) -> bool {
        let limit = self.config.tables.get(&table).and_then(|t| t.limit);
        limit.is_some_and(|n| self.table_recs[usize::from(table)].active > n)
    }

    /// Does it evict a flow when a new one comes and it is full?
    pub fn evicts(&self, table: u8) -> bool {
        self.config.tables.get(&table).is_some_and(|t| t.evict)
            || self.table_recs[usize::from(table)].evict
    }

    /// The groups as a change leaves them so far, to be changed further.
    pub fn staged_groups<'t>(&self, txn: &'t mut Txn) -> &'t mut Groups {
        let staged = txn.groups.get_or_insert_with(|| self.shown_groups.clone());
        staged.see_ports(self.port_changes, |p| self.is_live(p));
        staged
    }

    /// Is there such a port, and can it carry packets now?
    pub fn is_live(&self, of_port: OfPort) -> bool {
        self.ports.get(&of_port).is_some_and(PortSpec::live)
    }

    /// The datapath port of an OpenFlow port.
    pub fn dp_port(&self, of_port: OfPort) -> Option<u16> {
        self.ports.get(&of_port)?.dp_port
    }
}

fn describe(spec: &PortSpec) -> Box<PortDesc> {
    let down = spec.state & port_state::LINK_DOWN != 0 || spec.config & port_config::PORT_DOWN != 0;
    Box::new(PortDesc {
        port: spec.of_port,
        hw_addr: spec.hw_addr,
        name: spec.name.clone(),
        config: spec.config,
        state: spec.state & !port_state::LIVE | if down { 0 } else { port_state::LIVE },
        curr: spec.curr,
        curr_speed: spec.curr_speed,
        max_speed: spec.max_speed,
        ..PortDesc::default()
    })
}

/// Bits a port-mod may change.
const CONFIGURABLE: u32 = port_config::PORT_DOWN
    | port_config::NO_STP
    | port_config::NO_RECV
    | port_config::NO_FLOOD
    | port_config::NO_FWD
    | port_config::NO_PACKET_IN;

/// Entries that a bridge's MAC table may have, within the bounds that OVS sets.
pub(crate) fn mac_limit(config: &BridgeConfig) -> usize {
    config.mac_table_size.clamp(10, 1_000_000)
}

impl Switch {
    fn check_port(&self, id: BridgeId, spec: &PortSpec) -> Result<(), ConfigError> {
        let valid = (1..port::MAX).contains(&spec.of_port) && spec.of_port < 0xff00;
        if !valid && spec.of_port != port::LOCAL {
            return Err(ConfigError::BadPort(spec.of_port));
        }
        let Some(dp) = spec.dp_port else { return Ok(()) };
        let used = self.bridges.iter().flatten().any(|b| {
            let other = |p: &&PortSpec| (b.id, p.of_port) != (id.0, spec.of_port);
            let shared = |p: &PortSpec| p.tunnel.is_some() && spec.tunnel.is_some();
            b.ports.values().filter(other).any(|p| p.dp_port == Some(dp) && !shared(p))
        });
        if used { Err(ConfigError::DpPortInUse(dp)) } else { Ok(()) }
    }

    /// Adds a port.
    pub fn add_port(&mut self, id: BridgeId, spec: PortSpec) -> Result<(), ConfigError> {
        self.check_port(id, &spec)?;
        let b = self.bridge_mut(id)?;
        if b.ports.contains_key(&spec.of_port) {
            return Err(ConfigError::PortInUse(spec.of_port));
        }
        if spec.patch_peer.is_some() {
            self.rewritten.add_patch();
        }
        self.put_port(id, spec, ADDED)
    }

    /// Changes a port (found by its OpenFlow number).
    pub fn update_port(&mut self, id: BridgeId, spec: PortSpec) -> Result<(), ConfigError> {
        self.check_port(id, &spec)?;
        match self.bridge(id)?.ports.get(&spec.of_port) {
            None => return Err(ConfigError::NoPort(spec.of_port)),
            Some(old) if *old == spec => return Ok(()),
            Some(_) => {}
        }
        if spec.patch_peer.is_some() {
            self.rewritten.add_patch();
        }
        self.put_port(id, spec, MODIFIED)
    }

    fn put_port(&mut self, id: BridgeId, spec: PortSpec, reason: u8) -> Result<(), ConfigError> {
        if spec.vlan != VlanMode::default() {
            self.rewritten.vlan();
        }
        let desc = describe(&spec);
        let virt = spec.patch_peer.is_some() || spec.tunnel.is_some();
        if virt && !self.bridge(id)?.patch_counts.contains_key(&spec.of_port) {
            let base = self.slots.push_run(2, |_| Slot::Count(Counter::default()));
            self.bridge_mut(id)?.patch_counts.insert(spec.of_port, base);
        }
        let b = self.bridge_mut(id)?;
        let old = b.ports.insert(spec.of_port, spec).map(|old| describe(&old));
        let events = &mut self.outbox.events;
        match old {
            Some(old) if old == desc => {}
            Some(old) => events.push(Event::PortStatus(id, reason, desc, Some(old))),
            // A port comes as OVS's come: first it is there, then it lives.
            None => {
                let state = desc.state & !port_state::LIVE;
                let first = Box::new(PortDesc { state, ..(*desc).clone() });
                events.push(Event::PortStatus(id, reason, first.clone(), None));
                if first != desc {
                    events.push(Event::PortStatus(id, MODIFIED, desc, Some(first)));
                }
            }
        }
        self.publish();
        self.ports_changed(id);
        self.outbox.region(Region::ALL);
        Ok(())
    }

    /// Removes a port and what was learned behind it. Flows that name it stay.
    pub fn remove_port(&mut self, id: BridgeId, of_port: OfPort) -> Result<(), ConfigError> {
        let b = self.bridge_mut(id)?;
        let spec = b.ports.remove(&of_port).ok_or(ConfigError::NoPort(of_port))?;
        b.macs.remove_port(&b.mac_index, of_port);
        self.outbox.events.push(Event::PortStatus(id, DELETED, describe(&spec), None));
        self.forget_neighbours(&[&spec.name]);
        self.publish();
        self.ports_changed(id);
        self.outbox.region(Region::ALL);
        Ok(())
    }

    /// What a patch or tunnel port received and sent so far, as (packets, bytes); None for other ports. The
    /// counts stay with the number: a port that comes back under it goes on counting.
    pub fn patch_counters(&self, id: BridgeId, of_port: OfPort) -> Option<[(u64, u64); 2]> {
        let b = self.bridge(id).ok()?;
        let base = *b.patch_counts.get(&of_port)?;
        let spec = b.ports.get(&of_port)?;
        if spec.patch_peer.is_none() && spec.tunnel.is_none() {
            return None;
        }
        Some([base, base + 1].map(|id| self.slots.count(id)).map(|c| (c.packets, c.bytes)))
    }

    /// A port as it is now.
    pub fn port(&self, id: BridgeId, of_port: OfPort) -> Option<&PortSpec> {
        self.bridge(id).ok()?.ports.get(&of_port)
    }

    /// All ports of a bridge, ascending by number.
    pub fn ports(&self, id: BridgeId) -> impl Iterator<Item = &PortSpec> {
        self.bridge(id).ok().into_iter().flat_map(|b| b.ports.values())
    }

    /// Descriptions for OpenFlow.
    pub fn port_descs(&self, id: BridgeId) -> Vec<PortDesc> {
        self.ports(id).map(|p| *describe(p)).collect()
    }

    /// Handles a port-mod; the caller reads the port's new `config` for what the driver must do.
    pub fn port_mod(&mut self, id: BridgeId, m: &PortMod) -> Result<(), OfError> {
        let b = self.of_bridge(id)?;
        let mut spec = b.ports.get(&m.port).cloned().ok_or(OfError::PortModBadPort)?;
        if m.hw_addr != spec.hw_addr {
            return Err(OfError::PortModBadHwAddr);
        }
        let mask = m.mask & CONFIGURABLE;
        let config = spec.config & !mask | m.config & mask;
        if config != spec.config {
            spec.config = config;
            self.put_port(id, spec, MODIFIED).map_err(|_| OfError::PortModBadPort)?;
        }
        Ok(())
    }

    pub(crate) fn learn(&mut self, bridge: u32, vlan: u16, mac: [u8; 6], port: OfPort, now: u64) {
        let Some(Some(b)) = self.bridges.get_mut(bridge as usize) else { return };
        if !b.ports.contains_key(&port) {
            return;
        }
        let learned = b.macs.learn(&b.mac_index, vlan, mac, port, now);
        if let Learned::Evicted(vlan, old) = learned {
            self.outbox.macs.push(bridge, vlan, old);
        }
        if matches!(learned, Learned::Changed | Learned::Evicted(..)) {
            self.outbox.macs.push(bridge, vlan, mac);
        }
    }

    /// The packet side met `n` packets on a datapath port of which it could not say what they teach: too many waited.
    pub fn passed_over(&mut self, dp_port: u16, n: u64) {
        // SAFETY: this is the thread of the only writer.
        let found = unsafe { self.shared.world.read() }.dp_ports.get(usize::from(dp_port)).copied();
        match found.flatten().map(|(bridge, port)| (self.bridges.get_mut(bridge as usize), port)) {
            Some((Some(Some(b)), port)) => b.macs.passed_over(port, n),
            _ => self.passed_over += n,
        }
    }

    /// Sightings of addresses that were not learned because their port showed too many, over all ports (those of
    /// tunnels, which share a datapath port, included).
    pub fn macs_not_learned(&self) -> u64 {
        let all = self.bridges.iter().flatten();
        self.passed_over + all.flat_map(|b| b.macs.limited()).map(|(_, n)| n).sum::<u64>()
    }

    /// Ports that showed more new addresses than they may teach, and how many sightings of such there were since
    /// that was last told, which is once a minute for each port: (bridge, port, sightings). `now` in ns.
    pub fn take_limited(&mut self, now: u64) -> Vec<(BridgeId, OfPort, u64)> {
        let all = self.bridges.iter_mut().flatten();
        all.flat_map(|b| b.macs.take_limited(now).map(|(p, n)| (BridgeId(b.id), p, n))).collect()
    }

    /// Sightings of addresses that were not learned because their port showed too many, by port.
    pub fn fdb_limited(&self, id: BridgeId) -> Result<Vec<(OfPort, u64)>, ConfigError> {
        Ok(self.bridge(id)?.macs.limited().collect())
    }

    /// Learned addresses (`fdb/show`), by VLAN and address.
    pub fn fdb(&self, id: BridgeId) -> Result<Vec<MacEntry>, ConfigError> {
        Ok(self.bridge(id)?.macs.entries())
    }

    /// Counters (`fdb/stats-show`).
    pub fn fdb_stats(&self, id: BridgeId) -> Result<MacStats, ConfigError> {
        Ok(self.bridge(id)?.macs.stats())
    }

    /// `fdb/stats-clear`.
    pub fn fdb_clear_stats(&mut self, id: BridgeId) -> Result<(), ConfigError> {
        self.bridge_mut(id)?.macs.clear_stats();
        Ok(())
    }

    /// Forgets what was learned (`fdb/flush`); static entries stay.
    pub fn fdb_flush(&mut self, id: BridgeId) -> Result<(), ConfigError> {
        let b = self.bridge_mut(id)?;
        let gone = b.macs.flush(&b.mac_index);
        gone.iter().for_each(|(vlan, mac)| self.outbox.macs.push(id.0, *vlan, *mac));
        Ok(())
    }

    /// Adds a static entry (`fdb/add`).
    pub fn fdb_add(
        &mut self,
        id: BridgeId,
        of_port: OfPort,
        vlan: u16,
        mac: [u8; 6],
        now: u64,
    ) -> Result<(), ConfigError> {
        let b = self.bridge_mut(id)?;
        if !b.ports.contains_key(&of_port) {
            return Err(ConfigError::NoPort(of_port));
        }
        b.macs.add_static(&b.mac_index, vlan, mac, of_port, now);
        self.outbox.macs.push(id.0, vlan, mac);
        Ok(())
    }

    /// Removes an entry, static or learned (`fdb/del`); was there one?
    pub fn fdb_del(&mut self, id: BridgeId, vlan: u16, mac: [u8; 6]) -> Result<bool, ConfigError> {
        let b = self.bridge_mut(id)?;
        let was = b.macs.remove(&b.mac_index, vlan, mac);
        self.outbox.macs.push(id.0, vlan, mac);
        Ok(was)
    }

    /// Removes addresses that are too old, `n` of them at most; says how many.
    pub(crate) fn expire_macs(&mut self, now: u64, n: usize) -> usize {
        let mut left = n;
        for b in self.bridges.iter_mut().flatten() {
            let gone = b.macs.expire(&b.mac_index, now, left);
            left -= gone.len();
            gone.iter().for_each(|(vlan, mac)| self.outbox.macs.push(b.id, *vlan, *mac));
        }
        n - left
    }
}
