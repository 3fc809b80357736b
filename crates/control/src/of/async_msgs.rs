//! Asynchronous messages: packet-ins, flow-removed, port status, flow-monitor updates.

use super::encoded::Encoded;
use super::{Conn, ConnId};
use crate::config::queue_size;
use crate::state::State;
use crate::vlog;
use datapath::PuntEvent;
use flow::at;
use ofproto::{BridgeId, Event, PacketInContext};
use openflow::{
    GROUP_ANY, GroupMod, Instruction, MonitorRequest, MonitorUpdate, NO_BUFFER, PacketIn, PortDesc,
    Reason, Reply, TABLE_ALL, Version, monitor_flag, packet_type, port, port_state,
};
use std::collections::BTreeMap;

/// A change of a flow, with what it did before if it was modified.
type Update = (MonitorUpdate, Vec<Instruction>);

/// An Ethernet header without tags.
const ETHERNET_BYTES: usize = 14;

/// The request that a change comes from.
pub type Origin = Option<(ConnId, u32)>;

/// Packet-ins that a bridge's connections get in one turn of the control thread: some milliseconds'
/// work. A packet more goes to none of them, and counts as one packet-in that was not sent.
const TURN_PACKET_INS_MAX: usize = 4096;
/// Bytes of packets in these, which matter to bridges of more than eight connections: each takes
/// 1 MiB and drops the rest.
const TURN_PACKET_IN_BYTES_MAX: usize = 8 << 20;

/// Packet-ins of one turn, and their packets' bytes, by bridge.
#[derive(Default)]
pub struct PacketInTurn(BTreeMap<BridgeId, (usize, usize)>);

impl PacketInTurn {
    /// True if a bridge's connections have got all that they get in this turn.
    fn is_over(&self, bridge: BridgeId) -> bool {
        let (count, bytes) = self.0.get(&bridge).copied().unwrap_or_default();
        count >= TURN_PACKET_INS_MAX || bytes >= TURN_PACKET_IN_BYTES_MAX
    }

    /// One of them gets a packet of so many bytes.
    fn add(&mut self, bridge: BridgeId, bytes: usize) {
        let (count, sum) = self.0.entry(bridge).or_default();
        *count += 1;
        *sum += bytes;
    }
}

/// Turns a punted packet into packet-ins for the connections that want it.
pub fn packet_in(s: &mut State, punt: &PuntEvent, turn: &mut PacketInTurn) {
    let Some(context) = punt.punt.context.downcast_ref::<PacketInContext>() else { return };
    if turn.is_over(context.bridge) {
        s.of.counts.packet_ins_dropped += 1;
        return;
    }
    let Some(name) = s.bridge_name(context.bridge) else { return };
    let matching = context.fields_of(&punt.key);
    let data = match matching.key.u32(at::PACKET_TYPE) {
        packet_type::ETHERNET => &punt.packet[..],
        // In memory it still has its Ethernet header.
        _ => punt.packet.get(ETHERNET_BYTES..).unwrap_or_default(),
    };
    let (bytes, removed) = (data.len(), punt.packet.len() - data.len());
    let mut message = Reply::PacketIn(PacketIn {
        buffer_id: NO_BUFFER,
        total_len: punt.total_len.saturating_sub(removed).min(0xffff) as u16,
        reason: context.reason,
        table: context.table,
        cookie: context.cookie,
        data: data.to_vec(),
        matching,
        userdata: context.userdata.clone(),
        continuation: context.continuation.clone().map(Box::new),
    });
    let now = s.now_ms();
    let Some(bridge) = s.bridges.get_mut(&name) else { return };
    let of_service = queue_size(&bridge.conf.other_config);
    let mut sent = false;
    for (id, conn) in s.conns.iter_mut().filter(|(_, c)| c.bridge == name) {
        let Some(reason) = reason_for(conn, context) else { continue };
        if conn.id != context.controller_id || !conn.wants_packet_in(reason) {
            continue;
        }
        let mut row = conn.kind.target().and_then(|t| bridge.controllers.get_mut(t));
        if row.as_mut().is_some_and(|c| !c.admit(reason == Reason::TableMiss, now)) {
            continue;
        }
        if let Reply::PacketIn(p) = &mut message {
            p.reason = reason;
        }
        turn.add(context.bridge, bytes);
        sent = true;
        let waiting_max = row.map_or(of_service, |c| c.conf.queue_size);
        if !conn.send_packet_in(&message, waiting_max) {
            let name = conn.name(*id);
            vlog::info!("connmgr", "{name}: dropping packet-in due to queue overflow");
        }
    }
    if let Some(port) = context.continuation.as_ref().filter(|_| sent).map(|c| c.odp_port) {
        s.pending.paused.add(context.bridge, port);
    }
}

/// What a connection's version calls the reason; None: it does not know such packet-ins.
fn reason_for(conn: &Conn, context: &PacketInContext) -> Option<Reason> {
    let version = conn.version()?;
    match context.reason {
        _ if context.no_flow && version >= Version::V13 => None,
        // Also where a group's bucket led to the table-miss flow.
        Reason::Action | Reason::Group if context.miss_flow && version >= Version::V13 => {
            Some(Reason::TableMiss)
        }
        Reason::Group | Reason::ActionSet | Reason::PacketOut if version < Version::V14 => {
            Some(Reason::Action)
        }
        reason => Some(reason),
    }
}

/// Sends what the switch half noticed. Flow updates of one change share a message.
pub fn events(s: &mut State, events: Vec<Event>, origin: Origin) {
    let mut updates: Vec<(BridgeId, Vec<Update>)> = Vec::new();
    for event in events {
        match event {
            Event::FlowRemoved(bridge, removed) => {
                let Some(name) = s.bridge_name(bridge) else { continue };
                let reply = Reply::FlowRemoved((*removed).clone());
                let mut message = Encoded::new(&reply);
                for conn in s.conns.values_mut() {
                    if conn.bridge == name && conn.wants_flow_removed(removed.reason) {
                        conn.notify_with(&mut message);
                    }
                }
            }
            Event::PortStatus(bridge, reason, desc, old) => {
                if let Some(name) = s.bridge_name(bridge) {
                    port_status(s, &name, reason, &desc, old.as_deref());
                }
            }
            Event::TableStatus(bridge, more, table) => {
                let Some(name) = s.bridge_name(bridge) else { continue };
                let reply = Reply::TableStatus { more, table: *table };
                let mut message = Encoded::new(&reply);
                for conn in s.conns.values_mut() {
                    if conn.bridge == name && conn.wants_vacancy(more) {
                        conn.notify_with(&mut message);
                    }
                }
            }
            Event::Flow(bridge, update, old) => match updates.last_mut() {
                Some((b, list)) if *b == bridge => list.push((*update, old)),
                _ => updates.push((bridge, vec![(*update, old)])),
            },
        }
    }
    for (bridge, list) in updates {
        if let Some(name) = s.bridge_name(bridge) {
            monitor(s, &name, &list, origin);
        }
    }
    s.settle_accounts();
}

/// Tells other connections of a group-mod that was done. Versions before 1.5 have no word for
/// single buckets.
pub fn forward(s: &mut State, (origin, xid): (ConnId, u32), group: &GroupMod) {
    use openflow::GroupCommand::{InsertBucket, RemoveBucket};
    let single = matches!(group.command, InsertBucket(_) | RemoveBucket(_));
    let Some(bridge) = s.conns.get(&origin).map(|c| c.bridge.clone()) else { return };
    let reply = Reply::RequestForward { xid, group: group.clone() };
    let mut message = Encoded::new(&reply);
    for (id, conn) in s.conns.iter_mut() {
        let knows = !single || matches!(conn.version(), Some(Version::V10 | Version::V15));
        if *id != origin && conn.bridge == bridge && knows && conn.wants_group_mods() {
            conn.notify_with(&mut message);
        }
    }
}

/// Reason 0: added, 1: deleted, 2: modified; `old`: what it was before. OpenFlow 1.0 has no word
/// for a live port, and gets no message about what it cannot see.
fn port_status(s: &mut State, bridge: &str, reason: u8, desc: &PortDesc, old: Option<&PortDesc>) {
    let dead = |d: &PortDesc| PortDesc { state: d.state & !port_state::LIVE, ..d.clone() };
    let unseen = old.is_some_and(|old| dead(old) == dead(desc));
    let reply = Reply::PortStatus { reason, desc: desc.clone() };
    let mut message = Encoded::new(&reply);
    for conn in s.conns.values_mut() {
        let sees = !unseen || conn.version() != Some(Version::V10);
        if conn.bridge == bridge && sees && conn.wants_port_status(reason) {
            conn.notify_with(&mut message);
        }
    }
}

fn monitor(s: &mut State, bridge: &str, updates: &[Update], origin: Origin) {
    let watching = |c: &&mut Conn| c.bridge == bridge && !c.monitors.is_empty();
    for (id, conn) in s.conns.iter_mut() {
        if !watching(&conn) {
            continue;
        }
        let own = origin.filter(|(c, _)| c == id).map(|(_, xid)| xid);
        let list = seen_by(conn, updates, own);
        if !list.is_empty() {
            conn.notify(&Reply::MonitorUpdate(list));
        }
    }
}

/// The updates that a connection asked for; `own`: it made the change, under this transaction id.
fn seen_by(conn: &Conn, updates: &[Update], own: Option<u32>) -> Vec<MonitorUpdate> {
    let mut list = Vec::new();
    for (update, old) in updates {
        let flags = conn.monitors.values().filter(|m| watches(m, update, old)).map(|m| m.flags);
        let Some(flags) = flags.reduce(|a, b| a | b) else { continue };
        match own {
            Some(xid) if flags & monitor_flag::OWN == 0 => {
                let short = MonitorUpdate::Abbrev { xid };
                if list.last() != Some(&short) {
                    list.push(short);
                }
            }
            _ => list.push(shown(update, flags)),
        }
    }
    list
}

/// An update with its instructions only if they are wanted.
pub fn shown(update: &MonitorUpdate, flags: u16) -> MonitorUpdate {
    let mut update = update.clone();
    if flags & monitor_flag::ACTIONS == 0 {
        match &mut update {
            MonitorUpdate::Added(f) | MonitorUpdate::Modified(f) | MonitorUpdate::Deleted(f, _) => {
                f.instructions.clear()
            }
            MonitorUpdate::Abbrev { .. } => {}
        }
    }
    update
}

/// True if the monitor asked for changes like this one.
fn watches(m: &MonitorRequest, update: &MonitorUpdate, old: &[Instruction]) -> bool {
    let (flag, flow) = match update {
        MonitorUpdate::Added(f) => (monitor_flag::ADD, f),
        MonitorUpdate::Modified(f) => (monitor_flag::MODIFY, f),
        MonitorUpdate::Deleted(f, _) => (monitor_flag::DELETE, f),
        MonitorUpdate::Abbrev { .. } => return false,
    };
    m.flags & flag != 0
        && (m.table == TABLE_ALL || m.table == flow.table)
        && (m.out_port == port::ANY
            || ofproto::outputs_to(&flow.instructions, m.out_port)
            || ofproto::outputs_to(old, m.out_port))
        && (m.out_group == GROUP_ANY || ofproto::uses_group(&flow.instructions, m.out_group))
        && m.matching.covers(&flow.matching)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_ins_of_a_turn_are_bounded_however_many_connections_a_bridge_has() {
        const PUNTS: usize = 1024;
        let mut switch = ofproto::Switch::new(sync::Domain::new().writer());
        let mut bridge = |name| switch.add_bridge(name, Default::default(), 0).unwrap();
        let [a, b] = ["a", "b"].map(&mut bridge);
        for (connections, bytes) in [(1, 1500), (3, 128), (512, 64), (512, 65_535), (16, 9000)] {
            let (mut turn, mut sent) = (PacketInTurn::default(), 0);
            while sent < PUNTS && !turn.is_over(a) {
                (0..connections).for_each(|_| turn.add(a, bytes));
                sent += 1;
            }
            let (count, sum) = (sent * connections, sent * connections * bytes);
            assert!(count < TURN_PACKET_INS_MAX + connections, "{connections}: {count}");
            assert!(sum < TURN_PACKET_IN_BYTES_MAX + connections * bytes, "{connections}: {sum}");
            assert!(sent == PUNTS || connections > 8, "few connections get all");
            assert!(sent > 0 && !turn.is_over(b), "other bridges have their own");
        }
    }
}
