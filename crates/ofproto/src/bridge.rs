//! A bridge as the control side keeps it: ports, learned addresses.

use crate::groups::history::GroupTable;
use crate::groups::liveness::Groups;
use crate::learned::Learning;
use crate::mac_index::MacIndex;
use crate::mac_table::MacTable;
use crate::meter_table::MeterTable;
use crate::mirroring::Places;
use crate::tables::table::{N_TABLES, Tables};
use crate::tables::tlv::{Masks, TlvTable};
use crate::types::*;
use crate::victims::Victims;
use openflow::OfPort;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use sync::Domain;

/// Counters of one flow table, and what controllers configured for it.
#[derive(Default)]
pub(crate) struct TableRec {
    pub active: u32,
    pub matched: u64,
    pub missed: u64,
    /// The name that a controller gave the table; empty: none.
    pub name: String,
    /// True: a controller has switched eviction on.
    pub evict: bool,
    /// Lower and upper threshold of vacancy events, in percent of free places (`OFPTMPT_VACANCY`).
    pub vacancy: Option<[u8; 2]>,
    /// True: free places have fallen below the lower threshold, so the next event is that they rise
    /// above the upper one.
    pub scarce: bool,
    /// The flows that may be evicted, if the table was full since it evicts.
    pub victims: Option<Box<Victims>>,
}

/// The Geneve options of a bridge, as the fields `tun_metadataN`.
#[derive(Default)]
pub(crate) struct TunnelOptions {
    /// The option of each field.
    pub tlv: Arc<TlvTable>,
    /// Sets of masks under which flows match on the fields. Grows until the mapping changes.
    pub masks: Vec<Masks>,
    /// How many flows use each of the fields, without those that none uses.
    pub users: BTreeMap<u8, u32>,
}

/// A bridge as the control side keeps it.
pub(crate) struct Bridge {
    pub id: u32,
    pub name: String,
    pub config: BridgeConfig,
    pub ports: BTreeMap<OfPort, PortSpec>,
    pub tables: Arc<Tables>,
    pub table_recs: Box<[TableRec; N_TABLES]>,
    /// Tables for which a controller set vacancy thresholds, ascending.
    pub vacancies: Vec<u8>,
    pub groups: GroupTable,
    pub meters: MeterTable,
    pub learning: Learning,
    pub macs: MacTable,
    pub mac_index: Arc<MacIndex>,
    /// Credit ids of patch and tunnel ports: the id of received traffic; that of sent traffic is
    /// the next.
    pub patch_counts: BTreeMap<OfPort, u32>,
    pub miss_base: u32,
    pub ports_credit: u32,
    pub monitored: bool,
    /// True: some controller wants packets whose TTL expired.
    pub expired_wanted: Arc<AtomicBool>,
    pub options: TunnelOptions,
    pub mirrors: Places,
    /// The bonds, by port name.
    pub bonds: BTreeMap<String, BondSpec>,
}

impl Bridge {
    pub fn new(
        id: u32,
        name: &str,
        config: BridgeConfig,
        domain: Domain,
        (miss_base, ports_credit): (u32, u32),
    ) -> Bridge {
        Bridge {
            id,
            name: name.into(),
            ports: BTreeMap::new(),
            tables: Arc::new(Tables::new(domain.clone())),
            table_recs: Box::new(std::array::from_fn(|_| TableRec::default())),
            vacancies: Vec::new(),
            groups: GroupTable::new(domain.clone()),
            meters: MeterTable::new(domain.clone()),
            learning: Learning::new(domain.clone()),
            macs: MacTable::new(mac_limit(&config), config.mac_aging_s),
            mac_index: Arc::new(MacIndex::new(domain, 64)),
            patch_counts: BTreeMap::new(),
            config,
            miss_base,
            ports_credit,
            monitored: false,
            expired_wanted: Arc::default(),
            options: TunnelOptions::default(),
            mirrors: Places::default(),
            bonds: BTreeMap::new(),
        }
    }

    /// True if the table has as many flows as its limit allows.
    pub fn full(&self, table: u8) -> bool {
        let limit = self.config.tables.get(&table).and_then(|t| t.limit);
        limit.is_some_and(|n| self.table_recs[usize::from(table)].active >= n)
    }

    /// True if the table has more flows than its limit allows.
    pub fn over(&self, table: u8) -> bool {
        let limit = self.config.tables.get(&table).and_then(|t| t.limit);
        limit.is_some_and(|n| self.table_recs[usize::from(table)].active > n)
    }

    /// True if the table evicts a flow when it is full and a new one is added.
    pub fn evicts(&self, table: u8) -> bool {
        self.config.tables.get(&table).is_some_and(|t| t.evict)
            || self.table_recs[usize::from(table)].evict
    }

    /// Forgets which flows may be evicted in tables that do not evict, or by other groups.
    pub fn forget_victims(&mut self) {
        for table in 0..N_TABLES as u8 {
            let evicts = self.evicts(table);
            let groups = self.config.tables.get(&table).map_or(&[][..], |t| &t.groups);
            let victims = &mut self.table_recs[usize::from(table)].victims;
            if !victims.as_ref().is_some_and(|v| evicts && v.fields() == groups) {
                *victims = None;
            }
        }
    }

    /// The groups as the open change has left them, to be changed further.
    pub fn staged_groups<'t>(&self, staged: &'t mut Option<Groups>) -> &'t mut Groups {
        let staged = staged.get_or_insert_with(|| self.groups.shown.clone());
        staged.see_ports(self.groups.port_changes, |p| self.is_live(p));
        staged
    }

    /// True if the port exists and can carry packets now.
    pub fn is_live(&self, of_port: OfPort) -> bool {
        self.ports.get(&of_port).is_some_and(PortSpec::live)
    }

    /// True if decisions may depend on whether the port is live, not counting bundle actions.
    pub fn liveness_decides(&self, spec: &PortSpec) -> bool {
        let member = |p: &PortSpec| p.bundle == spec.bundle && p.of_port != spec.of_port;
        self.groups.shown.watches_port(spec.of_port) || self.ports.values().any(member)
    }

    /// The datapath port of an OpenFlow port.
    pub fn dp_port(&self, of_port: OfPort) -> Option<u16> {
        self.ports.get(&of_port)?.dp_port
    }
}

/// The limit of a bridge's MAC table, within OVS's bounds.
pub(crate) fn mac_limit(config: &BridgeConfig) -> usize {
    config.mac_table_size.clamp(10, 1_000_000)
}
