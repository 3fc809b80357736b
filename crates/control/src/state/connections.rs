//! OpenFlow connections: who comes and goes, and what the switch does for them.

use super::{DEFAULT_VERSIONS, State, versions};
use crate::of::{Conn, ConnId, message_text};
use crate::vlog;
use ofproto::BridgeId;
use openflow::codec::ReplyTo;
use openflow::{Reply, Version};
use std::collections::BTreeMap;

impl State {
    /// Adds a connection.
    pub fn add_conn(&mut self, mut conn: Conn) -> ConnId {
        let id = self.of.next_conn;
        self.of.next_conn += 1;
        conn.vconn = conn.vconn_name(id);
        self.conns.insert(id, conn);
        id
    }

    /// Forgets a connection.
    pub fn remove_conn(&mut self, id: ConnId) {
        let name = self.conn_name(id);
        let now = self.now_ms();
        let Some(mut conn) = self.conns.remove(&id) else { return };
        self.of.counts.add(&name, &conn.counts);
        if let Some(text) = conn.flow_mods.take(now) {
            vlog::info!("connmgr", "{name}: {text}");
        }
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

    /// Counts a flow-mod of a connection, for the log.
    pub fn count_flow_mod(&mut self, id: ConnId, command: openflow::FlowModCommand) {
        let now = self.now_ms();
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.flow_mods.count(command, now);
        }
    }

    /// Tells the log of connections' flow-mods.
    pub fn report_flow_mods(&mut self) {
        let now = self.now_ms();
        for (id, conn) in self.conns.iter_mut().filter(|(_, c)| c.flow_mods.is_due(now)) {
            if let Some(text) = conn.flow_mods.take(now) {
                vlog::info!("connmgr", "{}: {text}", conn.name(*id));
            }
        }
    }

    /// A connection's name in the log.
    pub fn conn_name(&self, id: ConnId) -> String {
        self.conns.get(&id).map_or_else(|| format!("#{id}"), |conn| conn.name(id))
    }

    /// Sends a reply, if the connection is still there.
    pub fn reply(&mut self, id: ConnId, to: impl Into<ReplyTo>, reply: &Reply) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.reply(to, reply);
        }
    }

    /// Sends a reply in another version than the connection's: the answer to a message in that
    /// version.
    pub fn reply_in(&mut self, id: ConnId, version: Version, xid: u32, reply: &Reply) {
        if let Some(conn) = self.conns.get_mut(&id) {
            let messages = openflow::codec::encode(version, xid, reply);
            conn.send_all(messages, || message_text::reply(reply, version));
        }
    }

    /// Answers an echo request (the whole message) in its own version, which may be none that is
    /// known.
    pub fn echo(&mut self, id: ConnId, request: &[u8]) {
        const ECHO_REPLY: u8 = 3;
        let mut reply = request.to_vec();
        if let (Some(kind), Some(conn)) = (reply.get_mut(1), self.conns.get_mut(&id)) {
            *kind = ECHO_REPLY;
            let payload = reply.len().saturating_sub(8);
            conn.send_all(vec![reply], || format!(" {payload} bytes of payload"));
        }
    }

    /// Makes the packet side send misses, and packets whose TTL expired, to controllers as long as
    /// some connection expects them.
    pub fn update_misses(&mut self, bridge: BridgeId) {
        let Some(name) = self.bridge_name(bridge) else { return };
        let mut conns = self.conns.values().filter(|c| c.bridge == name);
        let wanted = conns.clone().any(Conn::wants_misses);
        let expired = conns.any(|c| c.wants_packet_in(openflow::Reason::InvalidTtl));
        let _ = self.ofproto.set_expired_wanted(bridge, expired);
        self.change_bridge(bridge, |c| c.miss_to_controller = wanted);
    }

    /// Makes the switch half report changes of flows as long as a connection monitors them.
    pub fn update_monitored(&mut self, bridge: BridgeId) {
        let Some(name) = self.bridge_name(bridge) else { return };
        let mut conns = self.conns.values().filter(|c| c.bridge == name);
        let wanted = conns.any(|c| !c.monitors.is_empty());
        let _ = self.ofproto.set_monitored(bridge, wanted);
    }

    /// How many monitors all connections of a bridge have.
    pub fn monitors_of(&self, bridge: BridgeId) -> usize {
        let Some(name) = self.bridge_name(bridge) else { return 0 };
        let conns = self.conns.values().filter(|c| c.bridge == name);
        conns.map(|c| c.monitors.len()).sum()
    }

    /// What a change of a flow of a bridge costs its connections ([`Conn::watches`]).
    pub fn watches_of(&self, bridge: BridgeId) -> usize {
        let Some(name) = self.bridge_name(bridge) else { return 0 };
        self.conns.values().filter(|c| c.bridge == name).map(Conn::watches).sum()
    }

    /// As much, of the bridge where it is most.
    pub fn watches_of_any(&self) -> usize {
        let mut each: BTreeMap<&str, usize> = BTreeMap::new();
        for (c, watches) in self.conns.values().map(|c| (c, c.watches())).filter(|(_, n)| *n > 0) {
            *each.entry(&c.bridge).or_default() += watches;
        }
        each.into_values().max().unwrap_or(0)
    }

    /// The bridge of a connection.
    pub fn bridge_id(&self, id: ConnId) -> Option<BridgeId> {
        let conn = self.conns.get(&id)?;
        self.bridges.get(&conn.bridge).map(|b| b.id)
    }

    /// Versions (bitmap of wire numbers) that a connection may speak.
    pub fn versions_of(&self, id: ConnId) -> u32 {
        let bridge = self.conns.get(&id).and_then(|c| self.bridges.get(&c.bridge));
        bridge.map_or(DEFAULT_VERSIONS, |b| versions(&b.conf.protocols))
    }
}
