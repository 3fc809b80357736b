//! The switch half: bridges with their tables and controllers, connections, tunnels.

use crate::of::{Conn, Kind};
use crate::state::{Bridge, State};
use crate::{tunnel_options, tunnels as t};
use openflow::{Role, TableStats};
use serde_json::{Map, Value, json};

/// Bridges by name.
pub fn bridges(s: &mut State) -> Value {
    Value::Object(s.bridges.iter().map(|(name, b)| (name.clone(), bridge(s, b))).collect())
}

fn bridge(s: &State, b: &Bridge) -> Value {
    let macs = s.ofproto.fdb_stats(b.id).unwrap_or_default();
    let tables = s.ofproto.table_stats(b.id).unwrap_or_default();
    let used = tables.iter().filter(|t| t.active > 0 || t.lookups > 0);
    let controllers = b.controllers.iter().map(|(target, c)| {
        let held_back = c.held_back().map_or(0, |[misses, others]| misses + others);
        let about = json!({
            "connected": c.connected(), "connections": c.connections,
            "last_error": c.last_error, "packet_ins_held_back": held_back,
        });
        (target.clone(), about)
    });
    json!({
        "datapath_id": format!("{:016x}", b.dpid),
        "fail_mode": format!("{:?}", b.conf.fail_mode).to_lowercase(),
        "flows": s.ofproto.n_flows(b.id).unwrap_or(0),
        "ports": b.ifaces.keys().collect::<Vec<_>>(),
        "tables": used.map(table).collect::<Map<_, _>>(),
        "macs": {
            "current": macs.current, "static": macs.fixed, "max": macs.max,
            "learned": macs.learned, "expired": macs.expired, "evicted": macs.evicted,
            "moved": macs.moved,
        },
        "controllers": controllers.collect::<Map<_, _>>(),
    })
}

fn table(t: &TableStats) -> (String, Value) {
    let about = json!({
        "name": t.name, "flows": t.active, "flows_max": t.max_entries,
        "lookups": t.lookups, "matched": t.matched,
    });
    (t.table.to_string(), about)
}

/// OpenFlow connections by name.
pub fn connections(s: &mut State) -> Value {
    let one = |(id, c): (&u64, &Conn)| (s.conn_name(*id), connection(c));
    Value::Object(s.conns.iter().map(one).collect())
}

fn connection(c: &Conn) -> Value {
    let role = match c.role {
        Role::Primary => "master",
        Role::Secondary => "slave",
        _ => "other",
    };
    json!({
        "bridge": c.bridge,
        "controller": c.kind.target(),
        "active": matches!(c.kind, Kind::Row { active: true, .. }),
        "version": c.version().map(|v| format!("{v:?}")),
        "role": role,
        "bytes_held": c.held(),
        "bytes_waiting": c.backlog.bytes(),
        "bundles": c.bundles.count(),
        "monitors": c.monitors.len(),
        "packet_ins_dropped": c.counts.packet_ins_dropped,
        "malformed": c.counts.malformed,
        "refused": c.counts.refused,
    })
}

/// Tunnel ports by name: where they lead, by which device.
pub fn tunnels(s: &mut State) -> Value {
    s.count_patches();
    let (mut all, mut carriers) = (Map::new(), t::Carriers::default());
    for (name, b) in &s.bridges {
        for iface in b.ifaces.values().filter(|i| tunnel_options::is_tunnel(&i.conf.kind)) {
            let [rx, tx] = iface.patch;
            let about = json!({
                "bridge": name, "type": iface.conf.kind, "options": iface.conf.options,
                "error": iface.error,
                "egress": t::status(&s.ofproto, b.id, iface, &mut carriers),
                "rx_packets": rx.0, "rx_bytes": rx.1, "tx_packets": tx.0, "tx_bytes": tx.1,
            });
            all.insert(iface.conf.name.clone(), about);
        }
    }
    Value::Object(all)
}
