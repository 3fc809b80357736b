//! All bonds, and all ports that speak LACP, as the control side keeps them.

use super::bond::{self, Bond, LacpStatus, Mode};
use super::bond_conf;
use super::lacp::{self, Lacp};
use crate::config::{LacpMode, PortConf};
use datapath::BondHash;
use flow::PortNo;
use ofproto::{BridgeId, LacpPort, PortSpec, Switch};
use openflow::OfPort;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All bonds, and all ports that speak LACP, by name.
#[derive(Default)]
pub struct Bonds {
    pub(super) all: BTreeMap<String, Entry>,
}

/// A port's name, bridge, bond and LACP.
pub type Parts<'a> = (&'a str, BridgeId, Option<&'a Bond>, Option<&'a Lacp>);

/// A port.
pub(super) struct Entry {
    pub bridge: BridgeId,
    /// OpenFlow numbers of the interfaces that work.
    pub members: BTreeMap<String, OfPort>,
    pub lacp: Option<Lacp>,
    pub bond: Option<Bond>,
    pub spread: Option<Spread>,
    /// Stations are being announced on other interfaces than before.
    pub announcement: Option<Announcement>,
    pub lb_output: bool,
    /// What is wrong with the settings, as the log has it.
    pub wrong: Vec<String>,
}

/// How far the stations of a bridge are announced.
pub(super) struct Announcement {
    /// The place of the MAC table that is looked at next.
    pub next: usize,
    /// Stations that may still be announced.
    pub left: usize,
}

/// What the switch half has to know of an interface of a port that speaks LACP.
pub(super) fn lacp_port(lacp: &Lacp, iface: &str) -> LacpPort {
    let gate = lacp.gate(iface).cloned().unwrap_or_default();
    LacpPort { gate, carries: lacp.may_enable(iface) }
}

/// A bond in the packet side.
pub(super) struct Spread {
    pub no: PortNo,
    pub table: Arc<datapath::Bond>,
    pub how: (BondHash, u32),
}

impl Entry {
    pub fn new(bridge: BridgeId) -> Entry {
        Entry {
            bridge,
            members: BTreeMap::new(),
            lacp: None,
            bond: None,
            spread: None,
            announcement: None,
            lb_output: false,
            wrong: Vec::new(),
        }
    }

    pub fn lacp_status(&self) -> LacpStatus {
        match &self.lacp {
            None => LacpStatus::Off,
            Some(lacp) if lacp.is_negotiated() => LacpStatus::Negotiated,
            Some(_) => LacpStatus::Configured,
        }
    }

    /// The bond's id, from 1; 0: packets are not spread.
    pub fn id(&self) -> u16 {
        self.spread.as_ref().map_or(0, |s| s.no - flow::BOND_NO_MIN + 1)
    }
}

impl Bonds {
    /// Sets what LACP says of an interface's port: LACP takes its packets, and whether it may carry
    /// others.
    pub fn describe(&self, spec: &mut PortSpec, port: &PortConf) {
        let lacp = self.all.get(&spec.bundle).and_then(|e| e.lacp.as_ref());
        // A new interface carries nothing before LACP has agreed.
        let begins = (port.lacp != LacpMode::Off).then(LacpPort::default);
        spec.lacp = lacp.map(|lacp| lacp_port(lacp, &spec.name)).or(begins);
    }

    /// `Port.bond_active_slave`, zeros where no member is active; None: the port is no bond.
    pub fn active_mac(&self, name: &str) -> Option<String> {
        let bond = self.all.get(name)?.bond.as_ref()?;
        Some(lacp::mac_text(bond.active_mac().unwrap_or_default()))
    }

    /// `Interface.lacp_current`; None: its port does not speak LACP.
    pub fn is_current(&self, name: &str, iface: &str) -> Option<bool> {
        self.all.get(name)?.lacp.as_ref().map(|lacp| lacp.is_current(iface))
    }

    /// What sFlow tells of an interface whose port speaks LACP.
    pub fn lacp_counters(&self, name: &str, iface: &str) -> Option<export::sflow::Lacp> {
        self.all.get(name)?.lacp.as_ref()?.sflow_counters(iface)
    }

    /// A bond's own part.
    pub fn bond_mut(&mut self, name: &str) -> Option<&mut Bond> {
        self.all.get_mut(name)?.bond.as_mut()
    }

    /// A port of the packet side goes: no bond sends packets to its number, which others may get.
    pub fn forget_port(&self, no: PortNo) {
        let tables = self.all.values().filter_map(|e| Some(&e.spread.as_ref()?.table));
        tables.for_each(|table| table.forget(no));
    }

    /// `bond/list`.
    pub fn list(&self) -> String {
        let bonds = self.all.iter().filter_map(|(n, e)| Some((n, e, e.bond.as_ref()?)));
        bonds.map(|(name, e, bond)| bond.list(name, e.id())).collect()
    }

    /// `bond/show`, by name.
    pub fn show(&self, now: u64) -> impl Iterator<Item = (&String, String)> {
        let bonds = self.all.iter().filter_map(|(n, e)| Some((n, e, e.bond.as_ref()?)));
        bonds.map(move |(name, e, bond)| (name, bond.show(name, e.id(), e.lb_output, now)))
    }

    /// The buckets of bonds that spread packets: each one's id, and the interface's port in the
    /// packet side by bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, Vec<PortNo>)> + '_ {
        self.all.values().filter_map(|e| Some((e.id(), e.spread.as_ref()?.table.members())))
    }

    /// Every port's name, bridge, bond and LACP.
    pub fn parts(&self) -> impl Iterator<Item = Parts<'_>> {
        self.all.iter().map(|(name, e)| (name.as_str(), e.bridge, e.bond.as_ref(), e.lacp.as_ref()))
    }

    /// `lacp/show`, by port.
    pub fn show_lacp(&self) -> impl Iterator<Item = (&String, String)> {
        let all = self.all.iter().filter_map(|(n, e)| Some((n, e.lacp.as_ref()?)));
        all.map(|(name, lacp)| (name, lacp.show(name)))
    }

    /// `lacp/show-stats`, by port.
    pub fn show_lacp_stats(&self) -> impl Iterator<Item = (&String, String)> {
        let all = self.all.iter().filter_map(|(n, e)| Some((n, e.lacp.as_ref()?)));
        all.map(|(name, lacp)| (name, lacp.show_stats(name)))
    }
}

impl Entry {
    pub fn configure_bond(&mut self, conf: Option<bond::Conf>, of: &Switch, now: u64) {
        let Some(conf) = conf else { return self.bond = None };
        let bond = self.bond.get_or_insert_with(|| Bond::new(conf.clone(), [0; 6], now));
        bond.configure(conf, now);
        bond.retain(|name| self.members.contains_key(name));
        for (name, of_port) in &self.members {
            let mac = of.port(self.bridge, *of_port).map_or([0; 6], |p| p.hw_addr);
            bond.set_member(name, *of_port, mac);
        }
    }

    pub fn configure_lacp(&mut self, conf: Option<lacp::Conf>, port: &PortConf, now: u64) {
        let Some(conf) = conf else { return self.lacp = None };
        let lacp = self.lacp.get_or_insert_with(|| Lacp::new(conf.clone()));
        lacp.configure(conf);
        lacp.retain(|name| self.members.contains_key(name));
        for iface in &port.interfaces {
            if let Some(of_port) = self.members.get(&iface.name) {
                lacp.set_member(&iface.name, bond_conf::member(iface, *of_port), now);
            }
        }
    }

    /// How packets are spread; None: they are not, or some interface has no port in the packet
    /// side.
    pub fn how(&self, of: &Switch) -> Option<(BondHash, u32)> {
        let conf = self.bond.as_ref().filter(|b| b.spreads())?.conf();
        let has_port = |p: &OfPort| of.port(self.bridge, *p).is_some_and(|p| p.dp_port.is_some());
        let hash = match conf.mode {
            Mode::ActiveBackup => return None,
            Mode::BalanceSlb => BondHash::Source,
            Mode::BalanceTcp => BondHash::Connection,
        };
        self.members.values().all(has_port).then_some((hash, conf.basis))
    }
}
