//! Messages nobody asked for: packet-ins, flow-removed, port status, flow-monitor updates.

use crate::state::State;
use datapath::PuntEvent;
use ofproto::{Event, PacketInContext};
use openflow::{
    MonitorRequest, MonitorUpdate, NO_BUFFER, PacketIn, PortDesc, Reason, Reply, TABLE_ALL,
    monitor_flag,
};

/// Turns a punted packet into packet-ins for the connections that want it.
pub fn packet_in(s: &mut State, punt: &PuntEvent) {
    let Some(context) = punt.punt.context.downcast_ref::<PacketInContext>() else { return };
    let Some(bridge) = s.bridge_name(context.bridge) else { return };
    let base = PacketIn {
        buffer_id: NO_BUFFER,
        total_len: punt.total_len.min(0xffff) as u16,
        reason: context.reason,
        table: context.table,
        cookie: context.cookie,
        matching: context.matching.clone(),
        data: punt.packet.clone(),
        userdata: context.userdata.clone(),
        continuation: None,
    };
    for conn in s.conns.values_mut().filter(|c| c.bridge == bridge) {
        if conn.id != context.controller_id || !conn.wants_packet_in(context.reason) {
            continue;
        }
        let mut message = base.clone();
        if context.reason == Reason::TableMiss {
            message.data.truncate(usize::from(conn.config.miss_send_len));
        }
        conn.notify(&Reply::PacketIn(message));
    }
}

/// Sends what the switch half noticed.
pub fn event(s: &mut State, event: Event) {
    match event {
        Event::FlowRemoved(bridge, removed) => {
            let Some(name) = s.bridge_name(bridge) else { return };
            let reply = Reply::FlowRemoved((*removed).clone());
            for conn in s.conns.values_mut() {
                if conn.bridge == name && conn.wants_flow_removed(removed.reason) {
                    conn.notify(&reply);
                }
            }
        }
        Event::PortStatus(bridge, reason, desc) => {
            if let Some(name) = s.bridge_name(bridge) {
                port_status(s, &name, reason, &desc);
            }
        }
        Event::Flow(bridge, update) => {
            if let Some(name) = s.bridge_name(bridge) {
                monitor(s, &name, &update);
            }
        }
    }
}

/// Reason 0: added, 1: deleted, 2: modified.
pub fn port_status(s: &mut State, bridge: &str, reason: u8, desc: &PortDesc) {
    let reply = Reply::PortStatus { reason, desc: desc.clone() };
    for conn in s.conns.values_mut() {
        if conn.bridge == bridge && conn.wants_port_status(reason) {
            conn.notify(&reply);
        }
    }
}

fn monitor(s: &mut State, bridge: &str, update: &MonitorUpdate) {
    for conn in s.conns.values_mut().filter(|c| c.bridge == bridge) {
        if conn.monitors.values().any(|m| watches(m, update)) {
            conn.notify(&Reply::MonitorUpdate(vec![update.clone()]));
        }
    }
}

/// Is this change one that the monitor asked for?
fn watches(m: &MonitorRequest, update: &MonitorUpdate) -> bool {
    let (flag, flow) = match update {
        MonitorUpdate::Added(f) => (monitor_flag::ADD, f),
        MonitorUpdate::Modified(f) => (monitor_flag::MODIFY, f),
        MonitorUpdate::Deleted(f, _) => (monitor_flag::DELETE, f),
        MonitorUpdate::Abbrev { .. } => return false,
    };
    m.flags & flag != 0
        && (m.table == TABLE_ALL || m.table == flow.table)
        && m.matching.mask.subset_of(&flow.matching.mask)
        && m.matching.key.matches(&flow.matching.key, &m.matching.mask)
}
