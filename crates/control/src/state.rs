//! Everything the control thread owns, and how its parts reach each other.

use crate::of::{Conn, ConnId, Kind};
use crate::ports::Iface;
use datapath::{Datapath, Ticket};
use ofproto::{BridgeId, Switch};
use openflow::{FragHandling, OfError, PacketOut, PortDesc, PortStats, Reply, Version};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// The state, shared by the tasks of the control thread; never borrowed across an await.
pub type Shared = Rc<RefCell<State>>;

/// A snoop reader: bridge, writer, bytes waiting.
pub type Snoop = (String, UnboundedSender<Vec<u8>>, Rc<Cell<usize>>);

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
    /// Where what packet threads read is published.
    pub domain: sync::Domain,
    /// Connections.
    pub conns: BTreeMap<ConnId, Conn>,
    /// Readers of `.snoop` sockets.
    pub snoops: Vec<Snoop>,
    next_conn: ConnId,
    /// Invalidations under way, oldest first.
    tickets: VecDeque<Ticket>,
    /// Something in a database row changed that should be written soon.
    pub status_dirty: bool,
    /// Events for `coverage/show`.
    pub coverage: crate::appctl::coverage::Coverage,
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
    /// Highest role generation seen.
    pub generation: Option<u64>,
}

impl State {
    /// A state without bridges.
    pub fn new(
        ofproto: Switch,
        dp: Datapath,
        devices: port_dpdk::Devices,
        domain: sync::Domain,
    ) -> Self {
        State {
            ofproto,
            dp,
            devices,
            domain,
            bridges: BTreeMap::new(),
            conns: BTreeMap::new(),
            snoops: Vec::new(),
            next_conn: 1,
            tickets: VecDeque::new(),
            status_dirty: false,
            coverage: Default::default(),
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
        let Some(conn) = self.conns.remove(&id) else { return };
        if let (Kind::Controller(target), Some(_)) = (&conn.kind, conn.dialect) {
            self.controller_left(&conn.bridge, target);
        }
    }

    /// A connection has agreed on a version.
    pub fn conn_ready(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        if let Kind::Controller(target) = conn.kind.clone() {
            let bridge = conn.bridge.clone();
            self.controller_joined(&bridge, &target);
        }
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
        for event in self.ofproto.take_events() {
            crate::of::async_msgs::event(self, event);
        }
    }

    /// Have all changes so far reached every packet?
    pub fn settled(&mut self) -> bool {
        self.dp.poll(datapath::now_ms());
        while let Some(t) = self.tickets.front() {
            if !self.dp.ticket_done(*t) {
                return false;
            }
            self.tickets.pop_front();
        }
        true
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
        let now = self.now_ns();
        for id in &decision.credits {
            self.ofproto.credit(*id, 1, po.data.len() as u64, now);
        }
        if let Some(effects) = &decision.effects {
            self.ofproto.effects(effects, now);
        }
        self.dp.execute(&po.data, in_port, &decision.ops).map_err(|_| OfError::BadPacket)
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
        let Some(bridge) = self.bridges.get_mut(&name) else { return Vec::new() };
        let mut all: Vec<PortStats> =
            bridge.ifaces.values_mut().filter_map(|i| i.of_stats(&mut self.dp, now)).collect();
        all.sort_by_key(|p| p.port);
        all
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
        }
        Ok(())
    }

    /// Fragment handling is per bridge.
    pub fn set_frag(&mut self, id: ConnId, frag: FragHandling) -> Result<(), OfError> {
        let bridge = self.bridge_id(id).ok_or(OfError::BadType)?;
        let mut config = self.ofproto.bridge_config(bridge).ok_or(OfError::BadType)?.clone();
        config.frag_drop = match frag {
            FragHandling::Normal | FragHandling::NxMatch => false,
            FragHandling::Drop => true,
            FragHandling::Reassemble => return Err(OfError::SwitchConfigBadFlags),
        };
        let _ = self.ofproto.configure_bridge(bridge, config);
        Ok(())
    }

    /// The datapath port behind an OpenFlow port.
    pub fn dp_port(&self, bridge: BridgeId, of_port: openflow::OfPort) -> Option<flow::PortNo> {
        self.ofproto.port(bridge, of_port)?.dp_port
    }
}

/// Waits until every change made so far is seen by every packet.
pub async fn settle(state: &Shared) {
    for round in 0u32.. {
        if state.borrow_mut().settled() {
            return;
        }
        if round < 200 {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// OpenFlow 1.0, 1.3, 1.4 and 1.5.
pub const DEFAULT_VERSIONS: u32 = 1 << Version::V10 as u32
    | 1 << Version::V13 as u32
    | 1 << Version::V14 as u32
    | 1 << Version::V15 as u32;

/// `Bridge.protocols` as a bitmap; empty means the default, unknown names are passed over.
fn versions(protocols: &[String]) -> u32 {
    let bits = protocols.iter().fold(0, |bits, p| {
        bits | match p.as_str() {
            "OpenFlow10" => 1 << Version::V10 as u32,
            "OpenFlow13" => 1 << Version::V13 as u32,
            "OpenFlow14" => 1 << Version::V14 as u32,
            "OpenFlow15" => 1 << Version::V15 as u32,
            _ => 0,
        }
    });
    if bits == 0 { DEFAULT_VERSIONS } else { bits }
}
