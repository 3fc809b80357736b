//! Everything the control thread owns, and how its parts reach each other.

use crate::of::async_msgs::{self, Origin};
use crate::of::snoop::Snoops;
use crate::of::{Conn, ConnId, Kind};
use crate::ports::Iface;
use crate::vlog;
use action::Decision;
use datapath::{Datapath, Ticket};
use flow::PortNo;
use ofproto::{BridgeId, Switch};
use openflow::codec::ReplyTo;
use openflow::{FragHandling, OfError, PacketOut, PortDesc, PortStats, Reply, Resume, Version};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The state, shared by the tasks of the control thread; never borrowed across an await.
pub type Shared = Rc<RefCell<State>>;

/// The control side's state.
pub struct State {
    /// Bridges as OpenFlow sees them, compiled for the packet side.
    pub ofproto: Switch,
    /// The packet side's handle.
    pub dp: Datapath,
    /// What opens DPDK ports, with the packet pools.
    pub devices: port_dpdk::Devices,
    /// Bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// Datapath ports of tunnels.
    pub tunnels: crate::tunnels::TunnelPorts,
    /// Addresses that tests gave to devices.
    pub dummy_addresses: ofproto::Addresses,
    /// Where what packet threads read is published.
    pub domain: sync::Domain,
    /// Connections.
    pub conns: BTreeMap<ConnId, Conn>,
    /// What went wrong on connections that ended.
    pub of_counts: crate::of::account::Counts,
    /// Readers of `.snoop` sockets.
    pub snoops: Snoops,
    next_conn: ConnId,
    /// Told when the packet side's queues were emptied and changes may be complete.
    pub progress: Rc<tokio::sync::Notify>,
    /// Invalidations under way, oldest first.
    tickets: VecDeque<Ticket>,
    /// How long a bundle may be left alone, ns.
    pub bundle_timeout: u64,
    /// The kernel's routes count (not so with `--disable-system-route`).
    pub system_routes: bool,
    /// `flow-restore-wait` was set when the database was first read, and still is.
    pub restoring: bool,
    /// `Open_vSwitch.other_config`.
    pub other_config: BTreeMap<String, String>,
    /// What the log has been told of settings without effect.
    pub notices: std::collections::BTreeSet<crate::config::Notice>,
    /// Something in a database row changed that should be written soon.
    pub status_dirty: bool,
    /// A guest or one of its queues came or went; set by a thread of the driver's.
    pub guests_changed: Arc<AtomicBool>,
    /// Events for `coverage/show`.
    pub coverage: crate::appctl::coverage::Coverage,
    /// Which copy engine serves which PMD thread.
    pub engines: crate::engines::Engines,
    /// Rules in adapters.
    pub offload: crate::offload::Offload,
    /// How busy workers were lately, for `dpif-netdev/pmd-rxq-show`.
    pub usage: crate::appctl::usage::Usage,
    /// Timeouts of connections as they were last applied, by zone, and the numbers of policies.
    pub ct_timeouts: (BTreeMap<u16, crate::config::Timeouts>, crate::ct_timeouts::Numbers),
}

/// A bridge.
pub struct Bridge {
    /// In the switch half.
    pub id: BridgeId,
    /// Its configuration.
    pub conf: crate::config::BridgeConf,
    /// Datapath id in use.
    pub dpid: u64,
    /// Address of its LOCAL port.
    pub mac: [u8; 6],
    /// Interfaces by name (also those that failed to open).
    pub ifaces: BTreeMap<String, Iface>,
    /// `.mgmt` and `.snoop`.
    pub sockets: Vec<crate::of::server::UnixSocket>,
    /// Controllers by target.
    pub controllers: BTreeMap<String, crate::controllers::Controller>,
    /// Where to look for a port number that is free: one that was just given up is not taken again
    /// soon, as flows may still name it.
    pub next_port: openflow::OfPort,
    /// What is wrong with its mirrors.
    pub mirror_notices: BTreeSet<crate::mirrors::Notice>,
    /// Highest role generation seen.
    pub generation: Option<u64>,
}

impl State {
    /// A state without bridges.
    pub fn new(
        ofproto: Switch,
        dp: Datapath,
        mut devices: port_dpdk::Devices,
        domain: sync::Domain,
    ) -> Self {
        let guests_changed = Arc::new(AtomicBool::new(false));
        let flag = guests_changed.clone();
        devices.on_change = Some(Arc::new(move || flag.store(true, Ordering::Release)));
        devices.warn = Some(Arc::new(|text| crate::vlog::warn!("netdev_dpdk", "{text}")));
        State {
            guests_changed,
            ofproto,
            dp,
            devices,
            domain,
            bridges: BTreeMap::new(),
            tunnels: Default::default(),
            dummy_addresses: Default::default(),
            conns: BTreeMap::new(),
            of_counts: Default::default(),
            snoops: Snoops::default(),
            next_conn: 1,
            progress: Rc::default(),
            tickets: VecDeque::new(),
            bundle_timeout: crate::of::bundle::IDLE_TIMEOUT,
            system_routes: true,
            restoring: true,
            other_config: BTreeMap::new(),
            notices: Default::default(),
            status_dirty: false,
            coverage: Default::default(),
            engines: Default::default(),
            offload: crate::offload::Offload::default(),
            usage: Default::default(),
            ct_timeouts: Default::default(),
        }
    }

    /// The clock of the whole daemon, milliseconds.
    pub fn now_ms(&self) -> u64 {
        datapath::now_ms()
    }

    /// The same in the switch half's nanoseconds.
    pub fn now_ns(&self) -> u64 {
        datapath::now_ms() * 1_000_000
    }

    /// Adds a connection.
    pub fn add_conn(&mut self, conn: Conn) -> ConnId {
        let id = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(id, conn);
        id
    }

    /// Forgets a connection.
    pub fn remove_conn(&mut self, id: ConnId) {
        let name = self.conn_name(id);
        let Some(conn) = self.conns.remove(&id) else { return };
        self.of_counts.add(&name, &conn.counts);
        if let (Some(target), Some(_)) = (conn.kind.target(), conn.dialect) {
            self.controller_left(&conn.bridge, target);
        }
        if let Some(bridge) = self.bridges.get(&conn.bridge).map(|b| b.id) {
            self.update_misses(bridge);
            self.update_monitored(bridge);
        }
    }

    /// A connection has agreed on a version.
    pub fn conn_ready(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (bridge, kind) = (conn.bridge.clone(), conn.kind.clone());
        if let Some(target) = kind.target() {
            self.controller_joined(&bridge, target);
        }
        if let Some(bridge) = self.bridge_id(id) {
            self.update_misses(bridge);
        }
    }

    /// A connection's name in the log.
    pub fn conn_name(&self, id: ConnId) -> String {
        match self.conns.get(&id) {
            Some(Conn { bridge, kind: Kind::Row { target, active: true, .. }, .. }) => {
                format!("{bridge}<->{target}")
            }
            Some(conn) => format!("{}<->#{id}", conn.bridge),
            None => format!("#{id}"),
        }
    }

    /// Sends a reply, if the connection is still there.
    pub fn reply(&mut self, id: ConnId, to: impl Into<ReplyTo>, reply: &Reply) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.reply(to, reply);
        }
    }

    /// The same, in another version than the connection's: the answer to a message in that version.
    pub fn reply_in(&mut self, id: ConnId, version: Version, xid: u32, reply: &Reply) {
        if let Some(conn) = self.conns.get_mut(&id) {
            openflow::codec::encode(version, xid, reply).into_iter().for_each(|m| conn.send(m));
        }
    }

    /// Answers an echo request (the whole message) in its own version, which may be none that is known.
    pub fn echo(&mut self, id: ConnId, request: &[u8]) {
        const ECHO_REPLY: u8 = 3;
        let mut reply = request.to_vec();
        if let (Some(kind), Some(conn)) = (reply.get_mut(1), self.conns.get_mut(&id)) {
            *kind = ECHO_REPLY;
            conn.send(reply);
        }
    }

    /// Has misses, and packets whose TTL expired, sent to controllers as long as some connection expects that.
    pub fn update_misses(&mut self, bridge: BridgeId) {
        let Some(name) = self.bridge_name(bridge) else { return };
        let mut conns = self.conns.values().filter(|c| c.bridge == name);
        let wanted = conns.clone().any(Conn::wants_misses);
        let expired = conns.any(|c| c.wants_packet_in(openflow::Reason::InvalidTtl));
        let _ = self.ofproto.set_expired_wanted(bridge, expired);
        self.change_bridge(bridge, |c| c.miss_to_controller = wanted);
    }

    /// Has changes of flows told as long as some connection monitors them.
    pub fn update_monitored(&mut self, bridge: BridgeId) {
        let Some(name) = self.bridge_name(bridge) else { return };
        let mut conns = self.conns.values().filter(|c| c.bridge == name);
        let wanted = conns.any(|c| !c.monitors.is_empty());
        let _ = self.ofproto.set_monitored(bridge, wanted);
    }

    /// Changes settings of a bridge that do not come from the database.
    pub fn change_bridge(&mut self, bridge: BridgeId, f: impl FnOnce(&mut ofproto::BridgeConfig)) {
        let Some(config) = self.ofproto.bridge_config(bridge) else { return };
        let mut new = config.clone();
        f(&mut new);
        let _ = self.ofproto.configure_bridge(bridge, new);
    }

    /// The bridge of a connection.
    pub fn bridge_id(&self, id: ConnId) -> Option<BridgeId> {
        let conn = self.conns.get(&id)?;
        self.bridges.get(&conn.bridge).map(|b| b.id)
    }

    /// The name of a bridge.
    pub fn bridge_name(&self, id: BridgeId) -> Option<String> {
        self.bridges.iter().find(|(_, b)| b.id == id).map(|(n, _)| n.clone())
    }

    /// Versions (bitmap of wire numbers) that a connection may speak.
    pub fn versions_of(&self, id: ConnId) -> u32 {
        let bridge = self.conns.get(&id).and_then(|c| self.bridges.get(&c.bridge));
        bridge.map_or(DEFAULT_VERSIONS, |b| versions(&b.conf.protocols))
    }

    /// Tells the packet side what may have changed since the last call.
    pub fn flush_changes(&mut self) {
        let regions = self.ofproto.take_regions();
        if !regions.is_empty() {
            self.tickets.push_back(self.dp.invalidate(&regions));
        }
        if let Some(stale) = self.ofproto.take_stale() {
            self.tickets.push_back(self.dp.invalidate_stale(Box::new(stale)));
        }
        self.deliver(None);
    }

    /// Tells connections what happened; `origin`: the request that brought it about.
    pub fn deliver(&mut self, origin: Origin) {
        let events = self.ofproto.take_events();
        if !events.is_empty() {
            async_msgs::events(self, events, origin);
        }
    }

    /// Have all changes so far reached every packet?
    pub fn settled(&mut self) -> bool {
        let now_ms = datapath::now_ms();
        self.dp.poll(now_ms);
        let done = self.tickets.iter().take_while(|t| self.dp.ticket_done(**t)).count();
        let passed = self.offload.pass(&mut self.dp, now_ms, done);
        self.tickets.drain(..passed);
        self.tickets.is_empty()
    }

    /// Brings the rules' counters up to date with the packet side.
    pub fn collect(&mut self) {
        let ofproto = &mut self.ofproto;
        self.dp.collect(&mut |used| {
            let used_ns = used.used_ms * 1_000_000;
            for id in used.credits {
                ofproto.credit(*id, used.packets, used.bytes, used_ns);
            }
            if let Some(effects) = used.effects {
                ofproto.effects(effects, used_ns);
            }
        });
    }

    /// Executes a packet-out.
    pub fn packet_out(&mut self, bridge: BridgeId, po: &PacketOut) -> Result<(), OfError> {
        let in_port = self.dp_port(bridge, po.matching.key.u32(flow::at::OF_IN_PORT));
        let in_port = in_port.unwrap_or(flow::NO_PORT);
        let limit = self.dp.settings().vlan_limit;
        let key = datapath::extract(&po.data, in_port, limit).ok_or(OfError::BadPacket)?;
        let decision = self.ofproto.packet_out(bridge, po, &key)?;
        self.send_packet(bridge, po, &decision)
    }

    /// Has a paused pipeline of a bridge go on.
    pub fn resume(&mut self, bridge: BridgeId, r: &Resume) -> Result<(), OfError> {
        let in_port = PortNo::try_from(r.continuation.odp_port).unwrap_or(flow::NO_PORT);
        let limit = self.dp.settings().vlan_limit;
        let key = datapath::extract(&r.data, in_port, limit).ok_or(OfError::BadPacket)?;
        let decision = self.ofproto.resume(bridge, r, &key)?;
        self.execute(&r.data, in_port, &decision)
    }

    /// Does with a controller's packet what was decided.
    pub fn send_packet(
        &mut self,
        bridge: BridgeId,
        po: &PacketOut,
        decision: &Decision,
    ) -> Result<(), OfError> {
        let in_port = self.dp_port(bridge, po.matching.key.u32(flow::at::OF_IN_PORT));
        let in_port = in_port.unwrap_or(flow::NO_PORT);
        self.execute(&po.data, in_port, decision)
    }

    fn execute(
        &mut self,
        packet: &[u8],
        in_port: PortNo,
        decision: &Decision,
    ) -> Result<(), OfError> {
        let now = self.now_ns();
        for id in &decision.credits {
            self.ofproto.credit(*id, 1, packet.len() as u64, now);
        }
        if let Some(effects) = &decision.effects {
            self.ofproto.effects(effects, now);
            // What the packet taught holds for packets that it brings about.
            self.flush_changes();
        }
        self.dp.execute(packet, in_port, &decision.ops).map_err(|_| OfError::BadPacket)
    }

    /// The reply to a features request.
    pub fn features(&mut self, id: ConnId) -> Reply {
        let ports = self.port_descs(id);
        let dpid =
            self.conns.get(&id).and_then(|c| self.bridges.get(&c.bridge)).map_or(0, |b| b.dpid);
        Reply::Features { dpid, n_buffers: 0, n_tables: 254, ports }
    }

    /// Descriptions of a connection's bridge's ports.
    pub fn port_descs(&mut self, id: ConnId) -> Vec<PortDesc> {
        self.bridge_id(id).map_or(Vec::new(), |b| self.ofproto.port_descs(b))
    }

    /// Counters of a connection's bridge's ports.
    pub fn port_stats(&mut self, id: ConnId) -> Vec<PortStats> {
        let Some(name) = self.conns.get(&id).map(|c| c.bridge.clone()) else { return Vec::new() };
        let now = self.now_ms();
        self.count_patches();
        let Some(bridge) = self.bridges.get_mut(&name) else { return Vec::new() };
        let mut all: Vec<PortStats> =
            bridge.ifaces.values_mut().filter_map(|i| i.of_stats(&mut self.dp, now)).collect();
        all.sort_by_key(|p| p.port);
        all
    }

    /// Looks at the counters of patch and tunnel ports, which the switch half keeps.
    pub fn count_patches(&mut self) {
        for bridge in self.bridges.values_mut() {
            for iface in bridge.ifaces.values_mut().filter(|i| i.is_virtual()) {
                let counted = iface.of_port.map(|no| self.ofproto.patch_counters(bridge.id, no));
                iface.patch = counted.flatten().unwrap_or(iface.patch);
            }
        }
    }

    /// A controller's change of a port's configuration.
    pub fn port_mod(&mut self, id: ConnId, pm: &openflow::PortMod) -> Result<(), OfError> {
        let bridge = self.bridge_id(id).ok_or(OfError::BadType)?;
        self.ofproto.port_mod(bridge, pm)?;
        if pm.mask & openflow::port_config::PORT_DOWN != 0 {
            let up = pm.config & openflow::port_config::PORT_DOWN == 0;
            if let Some(port) = self.dp_port(bridge, pm.port).and_then(|p| self.dp.port_mut(p)) {
                let _ = port.set_admin_up(up);
            }
            crate::links::look(self);
        }
        Ok(())
    }

    /// Fragment handling is per bridge.
    pub fn set_frag(&mut self, id: ConnId, frag: FragHandling) -> Result<(), OfError> {
        let bridge = self.bridge_id(id).ok_or(OfError::BadType)?;
        if frag == FragHandling::Reassemble {
            vlog::warn!("ofproto", "ignoring a controller's wish to reassemble fragments");
            return Ok(());
        }
        self.change_bridge(bridge, |c| c.frag = frag);
        Ok(())
    }

    /// How a connection's bridge treats fragments now.
    pub fn frag(&self, id: ConnId) -> FragHandling {
        let config = self.bridge_id(id).and_then(|b| self.ofproto.bridge_config(b));
        config.map_or(FragHandling::Normal, |c| c.frag)
    }

    /// The datapath port behind an OpenFlow port.
    pub fn dp_port(&self, bridge: BridgeId, of_port: openflow::OfPort) -> Option<flow::PortNo> {
        self.ofproto.port(bridge, of_port)?.dp_port
    }
}

/// Waits until every change made so far is seen by every packet.
pub async fn settle(state: &Shared) {
    for round in 0u32.. {
        let progress = {
            let mut s = state.borrow_mut();
            if s.settled() {
                return;
            }
            s.progress.clone()
        };
        // Few rounds only: who waits without sleeping keeps the workers from their cores.
        if round < 8 {
            tokio::task::yield_now().await;
        } else {
            let _ = tokio::time::timeout(Duration::from_millis(1), progress.notified()).await;
        }
    }
}

/// OpenFlow 1.0 to 1.5.
pub const DEFAULT_VERSIONS: u32 = 1 << Version::V10 as u32
    | 1 << Version::V11 as u32
    | 1 << Version::V12 as u32
    | 1 << Version::V13 as u32
    | 1 << Version::V14 as u32
    | 1 << Version::V15 as u32;

/// `Bridge.protocols` as a bitmap; empty means the default, unknown names are passed over.
fn versions(protocols: &[String]) -> u32 {
    let bits = protocols.iter().fold(0, |bits, p| {
        bits | match p.as_str() {
            "OpenFlow10" => 1 << Version::V10 as u32,
            "OpenFlow11" => 1 << Version::V11 as u32,
            "OpenFlow12" => 1 << Version::V12 as u32,
            "OpenFlow13" => 1 << Version::V13 as u32,
            "OpenFlow14" => 1 << Version::V14 as u32,
            "OpenFlow15" => 1 << Version::V15 as u32,
            _ => 0,
        }
    });
    if bits == 0 { DEFAULT_VERSIONS } else { bits }
}
