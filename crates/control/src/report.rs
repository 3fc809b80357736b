//! What is written back to the database: the state of bridges, interfaces and controllers.

use crate::appctl::implementations;
use crate::config::{
    BridgeConf, BridgeStatus, ControllerStatus, Database, Desired, InterfaceStatus, PortConf,
    PortStatus, Status, SwitchStatus,
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
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Interfaces that are looked at in one turn: each takes some system calls.
const TURN_INTERFACES_MAX: usize = 32;
/// After a report none is put together for this long for each interface, unless a configuration is
/// to be acknowledged or statistics are due.
const REST_EACH: Duration = Duration::from_micros(100);

/// Decides when to write, and puts together what.
#[derive(Default)]
pub struct Reporter {
    acknowledged: Option<i64>,
    /// When statistics were last written, ms of the daemon's clock (which tests may put forward).
    last_statistics: Option<u64>,
    /// What is being put together.
    draft: Option<Draft>,
    /// No report before this.
    rests_until: Option<Instant>,
}

/// A report that is being put together, in turns.
struct Draft {
    desired: Rc<Desired>,
    /// True if statistics are reported, too.
    statistics: bool,
    /// True if it says that the configuration has been applied.
    acknowledges: bool,
    status: Status,
    /// The bridge and its port that are next, by their place in `desired`.
    next: (usize, usize),
    interfaces: u32,
    carriers: tunnels::Carriers,
}

impl Reporter {
    /// The configuration has been applied.
    pub fn acknowledge(&mut self, desired: &Desired) {
        self.acknowledged = Some(desired.next_cfg);
    }

    /// True if a report is being put together ([`Reporter::go_on`]).
    pub fn is_under_way(&self) -> bool {
        self.draft.is_some()
    }

    /// True if a client waits for what is being put together.
    pub fn owes(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.acknowledges)
    }

    /// Writes what changed, or begins to; statistics with it when their interval is over. `now`:
    /// the configuration has been applied.
    pub fn write(&mut self, s: &mut State, desired: &Rc<Desired>, db: &mut Database, now: bool) {
        let due = self
            .last_statistics
            .is_none_or(|t| datapath::now_ms() - t >= desired.stats_interval().as_millis() as u64);
        let rests =
            db.writing().is_under_way() || self.rests_until.is_some_and(|t| Instant::now() < t);
        let wanted = due || s.status_dirty && !rests;
        if !now && (self.draft.is_some() || !wanted) {
            s.recent.reports.is_wanted &= self.draft.is_some() || s.status_dirty;
            return;
        }
        if due {
            self.last_statistics = Some(datapath::now_ms());
        }
        s.status_dirty = false;
        s.recent.reports.begin(db);
        let statistics = due || self.draft.take().is_some_and(|draft| draft.statistics);
        self.draft = Some(self.begin(s, desired, (statistics, now)));
        self.go_on(s, db);
    }

    /// Looks at some interfaces more, between turns of others; writes when that were all.
    pub fn go_on(&mut self, s: &mut State, db: &mut Database) {
        let Some(draft) = &mut self.draft else { return };
        if draft.turn(s) {
            return;
        }
        self.rests_until = Some(Instant::now() + REST_EACH * draft.interfaces);
        db.write(std::mem::take(&mut draft.status));
        s.recent.reports.end();
        self.draft = None;
    }

    fn begin(
        &self,
        s: &mut State,
        desired: &Rc<Desired>,
        (statistics, acknowledges): (bool, bool),
    ) -> Draft {
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
                .map(|uuid| (*uuid, implementations::capabilities(s)))
                .collect(),
            ..Status::default()
        };
        for c in &desired.conflicts {
            status.interfaces.insert(c.interface, InterfaceStatus::failed(c.error.clone()));
        }
        s.count_patches();
        Draft {
            desired: desired.clone(),
            statistics,
            acknowledges,
            status,
            next: (0, 0),
            interfaces: 0,
            carriers: tunnels::Carriers::default(),
        }
    }
}

impl Draft {
    /// Adds some rows; false: that were all.
    fn turn(&mut self, s: &mut State) -> bool {
        let (desired, mut left) = (self.desired.clone(), TURN_INTERFACES_MAX);
        s.recent.reported[1] += 1;
        while left > 0 {
            let (bridge, port) = self.next;
            let Some(conf) = desired.bridges.get(bridge) else { return false };
            if port == 0 {
                self.add_bridge(s, conf);
            }
            let Some(port_conf) = conf.ports.get(port) else {
                self.next = (bridge + 1, 0);
                left -= 1;
                continue;
            };
            self.add_port(s, conf, port_conf);
            self.next.1 += 1;
            self.interfaces += port_conf.interfaces.len() as u32;
            left = left.saturating_sub(port_conf.interfaces.len().max(1));
        }
        true
    }

    /// Adds the rows of a bridge, its mirrors and controllers.
    fn add_bridge(&mut self, s: &mut State, conf: &BridgeConf) {
        if self.statistics {
            self.status.mirrors.extend(crate::mirrors::statistics(s, conf));
        }
        let Some(bridge) = s.bridges.get_mut(&conf.name) else { return };
        let (tree_status, rstp_status) = s.trees.bridge_columns(&conf.name);
        self.status.bridges.insert(
            conf.uuid,
            BridgeStatus {
                datapath_id: Some(bridge.dpid),
                datapath_version: "<built-in>".into(),
                status: tree_status,
                rstp_status,
            },
        );
        for c in &conf.controllers {
            let mine = |conn: &&crate::of::Conn| {
                conn.bridge == conf.name && conn.kind.target() == Some(&c.target)
            };
            let role = s.conns.values().find(mine).map(|conn| conn.role);
            if let Some(known) = bridge.controllers.get(&c.target) {
                self.status.controllers.insert(c.uuid, controller(known, role));
            }
        }
    }

    /// Adds the rows of a port and its interfaces.
    fn add_port(&mut self, s: &mut State, conf: &BridgeConf, port: &PortConf) {
        let Some(bridge) = s.bridges.get_mut(&conf.name) else { return };
        let trunks = s.oam.lldp.trunks.take(&port.name, &port.trunks);
        let row = match &port.interfaces[..] {
            [iface] => tree_port(s.trees.port_columns(&conf.name, &iface.name, datapath::now_ms())),
            _ => PortStatus {
                bond_active: s.bonds.active_mac(&port.name),
                ..tree_port(PortColumns::default())
            },
        };
        self.status.ports.insert(port.uuid, PortStatus { trunks, ..row });
        let kind = if bridge.is_dummy() { "dummy" } else { "netdev" };
        for conf in &port.interfaces {
            let Some(iface) = bridge.ifaces.get_mut(&conf.name) else { continue };
            s.recent.reported[0] += 1;
            let mut row = interface(iface, &mut s.dp, self.statistics);
            if let Some(peer) = s.ofproto.missing_peer(bridge.id, iface.of_port) {
                row.error = Some(format!("No usable peer '{peer}' exists in '{kind}' datapath."));
            }
            if tunnel_options::is_tunnel(&iface.conf.kind) {
                row.status = tunnels::status(&s.ofproto, bridge.id, iface, &mut self.carriers);
            }
            row.lacp_current = s.bonds.is_current(&port.name, &conf.name);
            row.bfd = s.oam.bfd.status(&conf.name).map(|b| b.columns()).unwrap_or_default();
            row.cfm = s.oam.cfm.columns(&conf.name);
            self.status.interfaces.insert(iface.conf.uuid, row);
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
        trunks: None,
    }
}

/// `Open_vSwitch.statistics`: nothing unless it is asked for.
fn machine(desired: &Desired) -> BTreeMap<String, String> {
    let wanted = desired.other_config.get("enable-statistics").is_some_and(|v| v == "true");
    if wanted { system_stats::read(&Dirs::from_env().run) } else { BTreeMap::new() }
}

/// A row of an interface; `statistics`: with them, as in the first report since it works, for which
/// its client waits.
fn interface(iface: &mut Iface, dp: &mut Datapath, statistics: bool) -> InterfaceStatus {
    let Some(of_port) = iface.of_port else {
        iface.has_statistics = false;
        return InterfaceStatus::failed(iface.error.clone().unwrap_or_else(|| "not there".into()));
    };
    let ofport = if of_port == port::LOCAL { 65534 } else { i64::from(of_port) };
    let mut row = InterfaceStatus { ofport: Some(ofport), ..InterfaceStatus::default() };
    if statistics || !iface.has_statistics {
        iface.has_statistics = true;
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
    let link = port.last_link();
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
    let age = |t: u64| (datapath::now_ms().saturating_sub(t) / 1000).to_string();
    if c.active() {
        put("state", if c.connected() { "ACTIVE" } else { "BACKOFF" }.into());
    } else if c.connections > 1 {
        put("n_connections", c.connections.to_string());
    }
    if c.active() || c.connections == 1 {
        c.connected_at.map(|t| put("sec_since_connect", age(t)));
        c.disconnected_at.map(|t| put("sec_since_disconnect", age(t)));
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
