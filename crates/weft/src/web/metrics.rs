//! The state tree as Prometheus reads it (text exposition format 0.0.4), with that project's names:
//! base units, `_total` for counters.

use crate::view::{PortState, Tree};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Ports that have metrics of their own: each has about twenty series, and each reason for drops.
const PORTS_SHOWN_MAX: usize = 1000;

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Values with their labels.
type Samples<'a> = Vec<(Vec<(&'a str, &'a str)>, f64)>;

fn metric(out: &mut String, name: &str, kind: &str, help: &str, samples: Samples<'_>) {
    if samples.is_empty() {
        return;
    }
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (labels, value) in samples {
        let labels: Vec<String> =
            labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
        let braces = |l: String| if l.is_empty() { l } else { format!("{{{l}}}") };
        let _ = writeln!(out, "{name}{} {value}", braces(labels.join(",")));
    }
}

/// All metrics; without a tree only that the switch does not answer.
pub fn text(tree: Option<&Tree>) -> String {
    let mut out = String::new();
    let up = if tree.is_some() { 1.0 } else { 0.0 };
    metric(&mut out, "weft_up", "gauge", "Whether the switch answers.", vec![(vec![], up)]);
    if let Some(tree) = tree {
        switch(&mut out, tree);
        cores(&mut out, tree);
        ports(&mut out, tree);
        bonds(&mut out, tree);
        guests(&mut out, tree);
    }
    out
}

fn get(numbers: &BTreeMap<String, u64>, name: &str) -> f64 {
    numbers.get(name).copied().unwrap_or(0) as f64
}

fn switch(out: &mut String, t: &Tree) {
    let one = |value: f64| vec![(vec![], value)];
    let version = vec![(vec![("version", t.switch.version.as_str())], 1.0)];
    metric(out, "weft_build_info", "gauge", "The switch's version.", version);
    let moved = |name: &str| one(get(&t.switch.packets, name));
    for (name, key, help) in [
        ("weft_received_packets_total", "received", "Packets received."),
        ("weft_sent_packets_total", "sent", "Packets sent."),
        ("weft_copied_packets_total", "copies", "Copies made of packets."),
        ("weft_punted_packets_total", "punted", "Packets handed to the control side."),
    ] {
        metric(out, name, "counter", help, moved(key));
    }
    let drops = t.drops.iter().map(|(why, d)| (vec![("reason", why.as_str())], d.packets as f64));
    let help = "Packets dropped, by reason.";
    metric(out, "weft_dropped_packets_total", "counter", help, drops.collect());
    let pool = |name: &str| t.memory.packet_pools.iter().map(|p| get(p, name)).sum();
    for (name, help, value) in [
        ("weft_packet_buffers", "Packet buffers of all pools.", pool("buffers")),
        ("weft_packet_buffers_in_use", "Packet buffers in use.", pool("in_use")),
        ("weft_openflow_flows", "OpenFlow flows of all bridges.", t.memory.flows as f64),
        ("weft_megaflows", "Megaflows in all caches.", t.memory.megaflows as f64),
        (
            "weft_openflow_connections_bytes",
            "Bytes kept for OpenFlow connections.",
            t.memory.connections_bytes as f64,
        ),
    ] {
        metric(out, name, "gauge", help, one(value));
    }
    let resident = t.memory.resident_bytes.map_or(vec![], |n| one(n as f64));
    metric(out, "weft_resident_memory_bytes", "gauge", "The daemon's resident memory.", resident);
}

fn cores(out: &mut String, t: &Tree) {
    let hz = t.switch.cycles_per_second.max(1) as f64;
    let seconds = |label: &'static str, states: &[&'static str]| -> Samples<'_> {
        let all = t.cores.iter().flat_map(|(core, c)| {
            let of = |s: &&'static str| {
                (vec![("core", core.as_str()), (label, *s)], get(&c.cycles, s) / hz)
            };
            states.iter().map(of).collect::<Vec<_>>()
        });
        all.collect()
    };
    let help = "Seconds that a thread was busy, idle or asleep.";
    let all = seconds("state", &["busy", "idle", "sleep"]);
    metric(out, "weft_core_seconds_total", "counter", help, all);
    let help = "Seconds of busy threads by stage; misses are part of lookup.";
    let all = seconds("stage", &["rx", "parse", "lookup", "misses", "act_tx"]);
    metric(out, "weft_core_stage_seconds_total", "counter", help, all);
    let waited = t
        .cores
        .iter()
        .filter_map(|(core, c)| Some((vec![("core", core.as_str())], c.waited_ns? as f64 / 1e9)));
    let help = "Seconds in which other threads had a PMD thread's core.";
    metric(out, "weft_core_waiting_seconds_total", "counter", help, waited.collect());
    let received = t
        .cores
        .iter()
        .map(|(core, c)| (vec![("core", core.as_str())], get(&c.packets, "received")));
    let help = "Packets received by a thread.";
    metric(out, "weft_core_received_packets_total", "counter", help, received.collect());
    let lookups = t.cores.iter().flat_map(|(core, c)| {
        let by = ["signature_cache", "megaflow_table", "pipeline"];
        by.map(|by| (vec![("core", core.as_str()), ("by", by)], get(&c.lookups, by)))
    });
    let help = "Packets by what decided about them.";
    metric(out, "weft_core_lookups_total", "counter", help, lookups.collect());
    let cached =
        t.caches.iter().map(|(core, c)| (vec![("core", core.as_str())], c.megaflows as f64));
    metric(out, "weft_core_megaflows", "gauge", "Megaflows of a thread.", cached.collect());
    let masks = t.caches.iter().map(|(core, c)| (vec![("core", core.as_str())], c.masks as f64));
    metric(out, "weft_core_masks", "gauge", "Masks of a thread's megaflows.", masks.collect());
}

fn ports(out: &mut String, t: &Tree) {
    let shown: Vec<_> = t.ports.iter().take(PORTS_SHOWN_MAX).collect();
    let hidden = (t.ports.len() - shown.len()) as f64;
    let help = "Ports without metrics of their own, because there are too many.";
    metric(out, "weft_ports_not_shown", "gauge", help, vec![(vec![], hidden)]);
    for (name, key, help) in [
        ("weft_port_received_packets_total", "rx_packets", "Packets received by a port."),
        ("weft_port_received_bytes_total", "rx_bytes", "Bytes received by a port."),
        ("weft_port_sent_packets_total", "tx_packets", "Packets sent by a port."),
        ("weft_port_sent_bytes_total", "tx_bytes", "Bytes sent by a port."),
    ] {
        let count = |p: &PortState| get(p.traffic.as_ref().unwrap_or(&p.counters), key);
        let all = shown.iter().map(|(port, p)| (labels(port, p), count(p)));
        metric(out, name, "counter", help, all.collect());
    }
    let drops = shown.iter().flat_map(|(port, p)| {
        let of = p.drops.iter().map(move |(why, n)| {
            let mut l = labels(port, p);
            l.push(("reason", why.as_str()));
            (l, *n as f64)
        });
        of.collect::<Vec<_>>()
    });
    let help = "Packets dropped that came in by, or were to leave by, a port.";
    metric(out, "weft_port_dropped_packets_total", "counter", help, drops.collect());
    let up = shown.iter().map(|(port, p)| {
        let up = p.error.is_none() && (p.traffic.is_none() || p.link.up);
        (labels(port, p), if up { 1.0 } else { 0.0 })
    });
    metric(out, "weft_port_up", "gauge", "Whether a port works and its link is up.", up.collect());
}

fn labels<'a>(port: &'a str, p: &'a PortState) -> Vec<(&'a str, &'a str)> {
    vec![("bridge", p.bridge.as_str()), ("port", port), ("type", p.kind.as_str())]
}

fn bonds(out: &mut String, t: &Tree) {
    let members = t.bonds.iter().flat_map(|(bond, b)| {
        b.members.iter().map(move |(iface, m)| {
            let labels = vec![("bond", bond.as_str()), ("port", iface.as_str())];
            (labels, if m.enabled { 1.0 } else { 0.0 })
        })
    });
    let help = "Whether a bond may send by an interface.";
    let shown = members.take(PORTS_SHOWN_MAX).collect();
    metric(out, "weft_bond_member_enabled", "gauge", help, shown);
}

fn guests(out: &mut String, t: &Tree) {
    let shown = || t.guests.iter().take(PORTS_SHOWN_MAX);
    let there =
        shown().map(|(port, g)| (vec![("port", port.as_str())], f64::from(u8::from(g.connected))));
    metric(out, "weft_guest_connected", "gauge", "Whether a port has its guest.", there.collect());
    let wrong = shown().flat_map(|(port, g)| {
        let kinds = [("ring", &g.ring_errors), ("front_end", &g.violations)];
        kinds.map(|(by, n)| {
            (vec![("port", port.as_str()), ("by", by)], n.values().sum::<u64>() as f64)
        })
    });
    let help = "What a guest did with its rings, or its front-end said, that it may not.";
    metric(out, "weft_guest_errors_total", "counter", help, wrong.collect());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_limited_and_labels_escaped() {
        let port =
            |_| json!({"bridge": "b\"r\\", "traffic": {"rx_packets": 5}, "drops": {"policy": 2}});
        let ports: BTreeMap<String, _> = (0..1200).map(|i| (format!("p{i:04}"), port(i))).collect();
        let tree: Tree = serde_json::from_value(json!({"ports": ports})).unwrap();
        let text = text(Some(&tree));
        let of = |name: &str| text.lines().filter(|l| l.starts_with(&format!("{name}{{"))).count();
        assert_eq!(of("weft_port_received_packets_total"), PORTS_SHOWN_MAX);
        assert!(text.contains("weft_ports_not_shown 200\n"));
        let line = r#"weft_port_dropped_packets_total{bridge="b\"r\\",port="p0007",type="",reason="policy"} 2"#;
        assert!(text.contains(line), "{}", &text[..2000]);
    }

    #[test]
    fn interfaces_of_bonds_are_shown() {
        let members = json!({"n0": {"enabled": true}, "n1": {}});
        let tree = json!({"bonds": {"bond": {"mode": "balance-tcp", "members": members}}});
        let text = text(Some(&serde_json::from_value(tree).unwrap()));
        assert!(text.contains("weft_bond_member_enabled{bond=\"bond\",port=\"n0\"} 1\n"));
        assert!(text.contains("weft_bond_member_enabled{bond=\"bond\",port=\"n1\"} 0\n"));
    }

    #[test]
    fn a_switch_that_is_not_there_is_a_zero() {
        assert!(text(None).ends_with("\nweft_up 0\n"));
    }
}
