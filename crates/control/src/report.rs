//! What is written back to the database: the state of bridges, interfaces and controllers.

use crate::appctl::implementations;
use crate::config::{
    BridgeConf, BridgeStatus, ControllerStatus, Desired, InterfaceStatus, OvsdbClient, PortStatus,
    Status, SwitchStatus,
};
use crate::daemon::{Dirs, system_stats};
use crate::of::controller::Controller;
use crate::ports::{IFACE_TYPES, Iface};
use crate::state::State;
use crate::trees::tree_show::PortColumns;
use crate::{tunnel_options, tunnels};
use datapath::Datapath;
use openflow::{Role, port};
use std::collections::BTreeMap;
use std::time::Instant;

/// Decides when to write, and puts together what.
#[derive(Default)]
pub struct Reporter {
    acknowledged: Option<i64>,
    /// When statistics were last written, ms of the daemon's clock (which tests may put forward).
    last_statistics: Option<u64>,
}

impl Reporter {
    /// The configuration has been applied.
    pub fn acknowledge(&mut self, desired: &Desired) {
        self.acknowledged = Some(desired.next_cfg);
    }

    /// Writes what changed; statistics with it when their interval is over.
    pub fn write(&mut self, s: &mut State, desired: &Desired, db: &mut OvsdbClient, now: bool) {
        let due = self
            .last_statistics
            .is_none_or(|t| datapath::now_ms() - t >= desired.stats_interval().as_millis() as u64);
        if !now && !due && !s.status_dirty {
            return;
        }
        if due {
            self.last_statistics = Some(datapath::now_ms());
        }
        s.status_dirty = false;
        db.write(&self.status(s, desired, due));
    }

    fn status(&self, s: &mut State, desired: &Desired, statistics: bool) -> Status {
        let mut status = Status {
            switch: SwitchStatus {
                cur_cfg: self.acknowledged,
                dpdk_initialized: Some(
                    desired.other_config.get("dpdk-init").is_none_or(|v| v != "false"),
                ),
                dpdk_version: Some(dpdk::dpdk_version()),
                iface_types: Some(IFACE_TYPES.iter().map(|t| t.to_string()).collect()),
                datapath_types: Some(vec!["netdev".into(), "system".into()]),
                statistics: statistics.then(|| machine(desired)),
            },
            datapaths: desired
                .datapaths
                .values()
                .map(|uuid| (*uuid, implementations::capabilities()))
                .collect(),
            ..Status::default()
        };
        s.count_patches();
        for conf in &desired.bridges {
            if statistics {
                status.mirrors.extend(crate::mirrors::statistics(s, conf));
            }
            bridge_status(s, conf, statistics, &mut status);
        }
        for c in &desired.conflicts {
            // The same row may work elsewhere, when two ports refer to it.
            let failed = || InterfaceStatus::failed(c.error.clone());
            status.interfaces.entry(c.interface).or_insert_with(failed);
        }
        status
    }
}

/// Adds the rows of a bridge, its ports, interfaces and controllers.
fn bridge_status(s: &mut State, conf: &BridgeConf, statistics: bool, status: &mut Status) {
    let Some(bridge) = s.bridges.get_mut(&conf.name) else { return };
    let (tree_status, rstp_status) = s.trees.bridge_columns(&conf.name);
    status.bridges.insert(
        conf.uuid,
        BridgeStatus {
            datapath_id: Some(bridge.dpid),
            datapath_version: "<built-in>".into(),
            status: tree_status,
            rstp_status,
        },
    );
    let now = datapath::now_ms();
    for port in &conf.ports {
        let row = match &port.interfaces[..] {
            [iface] => tree_port(s.trees.port_columns(&conf.name, &iface.name, now)),
            _ => PortStatus {
                bond_active: s.bonds.active_mac(&port.name),
                ..tree_port(PortColumns::default())
            },
        };
        status.ports.insert(port.uuid, row);
    }
    for iface in bridge.ifaces.values_mut() {
        let mut row = interface(iface, &mut s.dp, statistics);
        if tunnel_options::is_tunnel(&iface.conf.kind) {
            row.status = tunnels::status(&s.ofproto, bridge.id, iface);
        }
        row.lacp_current = lacp_current(&s.bonds, conf, &iface.conf.name);
        row.bfd = s.oam.bfd.status(&iface.conf.name).map(|b| b.columns()).unwrap_or_default();
        row.cfm = s.oam.cfm.columns(&iface.conf.name);
        status.interfaces.insert(iface.conf.uuid, row);
    }
    for c in &conf.controllers {
        let mine = |conn: &&crate::of::Conn| {
            conn.bridge == conf.name && conn.kind.target() == Some(&c.target)
        };
        let role = s.conns.values().find(mine).map(|conn| conn.role);
        if let Some(known) = bridge.controllers.get(&c.target) {
            status.controllers.insert(c.uuid, controller(known, role));
        }
    }
}

fn tree_port(columns: PortColumns) -> PortStatus {
    PortStatus {
        status: Some(columns.status),
        statistics: Some(columns.statistics),
        rstp_status: Some(columns.rstp_status),
        rstp_statistics: Some(columns.rstp_statistics),
        bond_active: None,
    }
}

/// `Open_vSwitch.statistics`: nothing unless it is asked for.
fn machine(desired: &Desired) -> BTreeMap<String, String> {
    let wanted = desired.other_config.get("enable-statistics").is_some_and(|v| v == "true");
    if wanted { system_stats::read(&Dirs::from_env().run) } else { BTreeMap::new() }
}

/// `Interface.lacp_current`.
fn lacp_current(
    bonds: &crate::bonds::all::Bonds,
    bridge: &BridgeConf,
    iface: &str,
) -> Option<bool> {
    let port = bridge.ports.iter().find(|p| p.interfaces.iter().any(|i| i.name == iface))?;
    bonds.is_current(&port.name, iface)
}

fn interface(iface: &mut Iface, dp: &mut Datapath, statistics: bool) -> InterfaceStatus {
    let Some(of_port) = iface.of_port else {
        return InterfaceStatus::failed(iface.error.clone().unwrap_or_else(|| "not there".into()));
    };
    let ofport = if of_port == port::LOCAL { 65534 } else { i64::from(of_port) };
    let mut row = InterfaceStatus { ofport: Some(ofport), ..InterfaceStatus::default() };
    if statistics {
        row.statistics = Some(iface.counters(dp).into_iter().map(|(k, v)| (k, v as i64)).collect());
    }
    let device = iface.dp_port.filter(|_| !iface.is_virtual());
    let Some(port) = device.and_then(|no| dp.port_mut(no)) else {
        // A patch or tunnel port: always there, always up.
        row.mac_in_use = Some(crate::reconcile::mac_of(iface.conf.uuid));
        row.ifindex = Some(0);
        (row.admin_up, row.link_up, row.link_resets) = (Some(true), Some(true), Some(0));
        return row;
    };
    let link = port.link();
    row.mac_in_use = Some(port.mac());
    row.mtu = Some(i64::from(port.mtu()));
    row.ifindex = Some(i64::from(port.ifindex().unwrap_or(0)));
    row.admin_up = Some(link.admin_up);
    row.link_up = Some(link.up);
    row.link_resets = Some(link.resets as i64);
    row.link_speed = (link.mbps > 0).then(|| i64::from(link.mbps) * 1_000_000);
    row.full_duplex = link.full_duplex;
    row.status = port.status();
    row
}

fn controller(c: &Controller, role: Option<Role>) -> ControllerStatus {
    let mut status = BTreeMap::new();
    let mut put = |key: &str, value: String| status.insert(key.to_string(), value);
    let age = |t: Instant| t.elapsed().as_secs().to_string();
    if c.active() {
        put("state", if c.connected() { "ACTIVE" } else { "BACKOFF" }.into());
    } else if c.connections > 1 {
        put("n_connections", c.connections.to_string());
    }
    if c.active() || c.connections == 1 {
        c.connected_at.map(|t| put("sec_since_connect", age(t)));
        c.left_at.map(|t| put("sec_since_disconnect", age(t)));
    }
    c.last_error.as_ref().map(|e| put("last_error", e.clone()));
    if let Some([misses, actions]) = c.held_back() {
        put("packet-in-miss-dropped", misses.to_string());
        put("packet-in-action-dropped", actions.to_string());
    }
    let role = role.filter(|_| c.connected()).map(|r| match r {
        Role::Primary => "master",
        Role::Secondary => "slave",
        _ => "other",
    });
    ControllerStatus { is_connected: c.connected(), role: role.map(Into::into), status }
}
