//! Interfaces, and the guests behind those that are vhost-user ports.

use super::cores;
use crate::ports::Iface;
use crate::state::State;
use datapath::{Datapath, RxqInfo};
use flow::PortNo;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use telemetry::Drop;

/// Virtio's feature bits that are worth a name (virtio 1.2, sections 5.1.3 and 6).
const FEATURES: &[(u32, &str)] = &[
    (0, "csum"),
    (1, "guest_csum"),
    (7, "guest_tso4"),
    (8, "guest_tso6"),
    (11, "host_tso4"),
    (12, "host_tso6"),
    (15, "mrg_rxbuf"),
    (22, "mq"),
    (28, "indirect_desc"),
    (29, "event_idx"),
    (32, "version_1"),
    (33, "iommu_platform"),
    (34, "ring_packed"),
    (35, "in_order"),
];

/// An interface, and the receive queues of its port.
pub struct Interface {
    bridge: String,
    /// Its name.
    pub name: String,
    queues: Vec<RxqInfo>,
}

/// All interfaces as they are now.
pub fn interfaces(s: &mut State) -> Vec<Interface> {
    s.count_patches();
    let mut queues: BTreeMap<PortNo, Vec<RxqInfo>> = BTreeMap::new();
    for queue in s.dp.rxq_info() {
        queues.entry(queue.port).or_default().push(queue);
    }
    let mut all = Vec::new();
    for (bridge, b) in &s.bridges {
        for (name, iface) in &b.ifaces {
            let queues = iface.dp_port.and_then(|no| queues.remove(&no)).unwrap_or_default();
            all.push(Interface { bridge: bridge.clone(), name: name.clone(), queues });
        }
    }
    all
}

fn find<'a>(s: &'a mut State, of: &Interface) -> Option<(&'a mut Iface, &'a mut Datapath)> {
    let iface = s.bridges.get_mut(&of.bridge)?.ifaces.get_mut(&of.name)?;
    Some((iface, &mut s.dp))
}

/// What there is to say of an interface; of one that does not work its error, too.
pub fn port(s: &mut State, of: &Interface) -> Option<Value> {
    let (iface, dp) = find(s, of)?;
    let mut one = about(iface, &of.bridge, dp);
    one.insert("queues".into(), of.queues.iter().map(cores::queue).collect());
    Some(Value::Object(one))
}

fn about(iface: &mut Iface, bridge: &str, dp: &mut Datapath) -> Map<String, Value> {
    let conf = &iface.conf;
    let of_port = iface.of_port.map(|no| if no == openflow::port::LOCAL { 65534 } else { no });
    let mut one = object(json!({
        "bridge": bridge,
        "type": conf.kind,
        "ofport": of_port,
        "error": iface.error,
        "options": conf.options,
        "other_config": conf.other_config,
    }));
    one.insert("counters".into(), json!(iface.counters(dp)));
    let Some(no) = iface.dp_port.filter(|_| !iface.is_virtual()) else { return one };
    if let Some(port) = dp.port_mut(no) {
        let (link, mac) =
            (port.last_link(), port.mac().map(|byte| format!("{byte:02x}")).join(":"));
        one.extend(object(json!({
            "link": {
                "up": link.up, "admin_up": link.admin_up, "mbps": link.mbps,
                "resets": link.resets,
            },
            "mac": mac,
            "mtu": port.mtu(),
            "numa": port.numa(),
            "status": port.status(),
        })));
    }
    if let Some(seen) = dp.port_stats(no) {
        let lost = Drop::ALL.iter().map(|d| (d.name(), seen.drops[*d as usize]));
        one.extend(object(json!({
            "traffic": {
                "rx_packets": seen.rx_packets, "rx_bytes": seen.rx_bytes,
                "tx_packets": seen.tx_packets, "tx_bytes": seen.tx_bytes,
                "tx_bursts": seen.tx_bursts, "tx_held": seen.tx_held,
                "copies": seen.copies, "punted": seen.punted, "injected": seen.injected,
            },
            "drops": lost.filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>(),
        })));
    }
    one
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(o) = value { o } else { Map::new() }
}

/// What was agreed with the guest behind a port, and what the guest did that it must not do.
pub fn guest(s: &mut State, of: &Interface) -> Option<Value> {
    let (iface, dp) = find(s, of)?;
    if !iface.conf.kind.starts_with("dpdkvhostuser") {
        return None;
    }
    let counters = iface.counters(dp);
    let port = dp.port_mut(iface.dp_port?)?;
    Some(about_guest(&port.status(), &counters))
}

fn about_guest(status: &BTreeMap<String, String>, counters: &BTreeMap<String, u64>) -> Value {
    let get = |key: &str| status.get(key).map(String::as_str);
    let number = |key: &str| get(key).and_then(|v| v.parse::<u64>().ok());
    let bits =
        get("features").and_then(|f| u64::from_str_radix(f.trim_start_matches("0x"), 16).ok());
    let named = |bits: u64| {
        let has = FEATURES.iter().filter(move |(bit, _)| bits >> bit & 1 == 1);
        has.map(|(_, name)| *name).collect::<Vec<_>>()
    };
    let rings = (0..).map_while(|i| number(&format!("vring_{i}_size")));
    // The port's counters have both, with what they are in front of their name.
    let named_so = |prefix: &str| {
        let all = counters.iter();
        let own = all.filter_map(|(name, n)| Some((name.strip_prefix(prefix)?.to_string(), *n)));
        own.collect::<BTreeMap<_, _>>()
    };
    json!({
        "connected": get("status") == Some("connected"),
        "mode": get("mode"),
        "socket": get("socket"),
        "features": bits.map(named),
        "feature_bits": get("features"),
        "ring_sizes": rings.collect::<Vec<_>>(),
        "rings": get("rings"),
        "numa": number("numa"),
        "mtu": number("mtu"),
        // Frames of more bytes are worth a copy engine, as measured.
        "rx_async_thresh": number("rx_async_thresh"),
        "tx_async_thresh": number("tx_async_thresh"),
        "ring_errors": named_so("guest_"),
        "violations": named_so("frontend_"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_read_from_its_port() {
        let pairs = [
            ("status", "connected"),
            ("features", "0x0000000110008000"),
            ("vring_0_size", "256"),
            ("vring_1_size", "512"),
        ];
        let status = pairs.map(|(k, v)| (k.to_string(), v.to_string())).into();
        let counters =
            BTreeMap::from([("rx_packets".to_string(), 5), ("guest_bad_index".to_string(), 2)]);
        let g = about_guest(&status, &counters);
        assert_eq!(g["connected"], true);
        assert_eq!(g["features"], json!(["mrg_rxbuf", "indirect_desc", "version_1"]));
        assert_eq!(g["ring_sizes"], json!([256, 512]));
        assert_eq!(g["ring_errors"], json!({"bad_index": 2}));
        let gone = about_guest(&BTreeMap::new(), &BTreeMap::new());
        assert_eq!((&gone["connected"], &gone["features"]), (&json!(false), &Value::Null));
    }
}
