//! What the database asks for: `Bridge.other_config` and `Port.other_config` with `stp-*` and
//! `rstp-*`.

use crate::bonds::parse_mac;
use crate::config::{BridgeConf, PortConf, parse_number};
use openflow::OfPort;
use std::collections::BTreeMap;
use stp::{BridgeId, RSTP_PORTS_MAX, RstpPortConf, STP_PORTS_MAX};

/// Speed of links that do not say theirs, Mbit/s (as in ovs-vswitchd).
const DEFAULT_MBPS: u32 = 10_000;
const DEFAULT_BRIDGE_PRIORITY: u16 = 0x8000;
const DEFAULT_PORT_PRIORITY: u8 = 0x80;
const DEFAULT_HOLD_COUNT: u64 = 6;
/// The lowest `rstp-force-protocol-version` that is RSTP.
const RSTP_VERSION: u64 = 2;

/// A bridge's tree.
pub struct Asked {
    /// RSTP.
    pub rapid: bool,
    pub id: BridgeId,
    /// STP only.
    pub hello_ms: u64,
    pub max_age_ms: u64,
    pub forward_delay_ms: u64,
    /// RSTP only: BPDUs that a port may send at once.
    pub hold_count: u32,
    /// RSTP only: it speaks STP.
    pub stp_only: bool,
    pub ports: Vec<PortAsked>,
}

/// A port of the tree.
pub struct PortAsked {
    pub iface: String,
    pub of_port: OfPort,
    pub number: u16,
    pub priority: u8,
    pub path_cost: u32,
    /// RSTP only.
    pub rapid: RstpPortConf,
    /// RSTP only (`rstp-port-mcheck`): it is to speak RSTP again.
    pub checks: bool,
}

/// What settings of a protocol begin with, and what its objects are called.
#[derive(Clone, Copy)]
struct Protocol {
    prefix: &'static str,
    name: &'static str,
    ports_max: u16,
}

const STP: Protocol = Protocol { prefix: "stp", name: "STP", ports_max: STP_PORTS_MAX };
const RSTP: Protocol = Protocol { prefix: "rstp", name: "RSTP", ports_max: RSTP_PORTS_MAX };

impl Protocol {
    /// The protocol that a bridge is to speak.
    fn of(bridge: &BridgeConf) -> Option<Protocol> {
        match (bridge.rstp, bridge.stp) {
            (true, _) => Some(RSTP),
            (false, true) => Some(STP),
            (false, false) => None,
        }
    }

    fn bridge<'a>(&self, bridge: &'a BridgeConf, key: &str) -> Option<&'a String> {
        bridge.other_config.get(&format!("{}-{key}", self.prefix))
    }

    fn port<'a>(&self, port: &'a PortConf, key: &str) -> Option<&'a String> {
        port.other_config.get(&format!("{}-{key}", self.prefix))
    }

    fn is_enabled(&self, port: &PortConf) -> bool {
        self.port(port, "enable").is_none_or(|v| v != "false")
    }

    fn takes_part(&self, bridge: &BridgeConf, port: &PortConf) -> bool {
        let single = matches!(&port.interfaces[..], [iface] if iface.kind != "internal");
        let mirrors = bridge.mirrors.iter().any(|m| m.output_port.as_ref() == Some(&port.name));
        self.is_enabled(port) && single && !mirrors
    }
}

/// True if the port takes part in a tree, as long as there are not too many ports.
pub fn takes_part(bridge: &BridgeConf, port: &PortConf) -> bool {
    Protocol::of(bridge).is_some_and(|protocol| protocol.takes_part(bridge, port))
}

/// The tree that the bridge is to have, and what is wrong with its settings. `before`: numbers that
/// interfaces have, which they keep where none is set. `found`: an interface's OpenFlow port, and
/// its speed in Mbit/s, 0 where that is not known; None: it does not work.
pub fn read(
    bridge: &BridgeConf,
    mac: [u8; 6],
    before: &BTreeMap<String, u16>,
    found: impl Fn(&str) -> Option<(OfPort, u32)>,
) -> (Option<Asked>, Vec<String>) {
    let mut wrong = Vec::new();
    let Some(protocol) = Protocol::of(bridge) else { return (None, wrong) };
    let (rapid, name) = (bridge.rstp, &bridge.name);
    if bridge.rstp && bridge.stp {
        wrong.push(format!(
            "{name}: RSTP and STP are mutually exclusive but both are configured; enabling RSTP"
        ));
    }
    let of = |key: &str| protocol.bridge(bridge, key).and_then(|v| v.parse::<u64>().ok());
    let address = if rapid { "address" } else { "system-id" };
    let mac = match protocol.bridge(bridge, address).map(|text| parse_mac(text)) {
        Some(None) => {
            let own = mac.map(|byte| format!("{byte:02x}")).join(":");
            let key = format!("{}-{address}", protocol.prefix);
            wrong.push(format!("bridge {name}: invalid {key}, defaulting to {own}"));
            mac
        }
        Some(Some(mac)) => mac,
        None => mac,
    };
    let priority = of("priority").and_then(|p| u16::try_from(p).ok());
    let priority = priority.unwrap_or(DEFAULT_BRIDGE_PRIORITY);
    // The other bits are part of the address (IEEE 802.1D-2004, 9.2.5).
    let priority = if rapid { priority & 0xf000 } else { priority };
    let seconds = |key: &str, default: u64| of(key).unwrap_or(default).saturating_mul(1000);
    let Some(ports) = ports(bridge, protocol, (before, &found), &mut wrong) else {
        return (None, wrong);
    };
    let asked = Asked {
        rapid,
        id: BridgeId::new(priority, mac),
        hello_ms: seconds("hello-time", 2),
        max_age_ms: seconds("max-age", 20),
        forward_delay_ms: seconds("forward-delay", 15),
        hold_count: of("transmit-hold-count").unwrap_or(DEFAULT_HOLD_COUNT).clamp(1, 10) as u32,
        stp_only: of("force-protocol-version").is_some_and(|v| v < RSTP_VERSION),
        ports,
    };
    (Some(asked), wrong)
}

/// What is known of interfaces: the numbers that they have, and what is found of them.
type Known<'a, F> = (&'a BTreeMap<String, u16>, &'a F);

/// The ports; None: some have numbers and others do not, so there is no tree (STP).
fn ports(
    bridge: &BridgeConf,
    protocol: Protocol,
    (before, found): Known<'_, impl Fn(&str) -> Option<(OfPort, u32)>>,
    wrong: &mut Vec<String>,
) -> Option<Vec<PortAsked>> {
    let (mut given, mut others) = (BTreeMap::new(), Vec::new());
    let Protocol { prefix, name: protocol_name, ports_max } = protocol;
    for port in &bridge.ports {
        let name = &port.name;
        if port.interfaces.len() > 1 && protocol.is_enabled(port) {
            wrong.push(format!("port {name}: cannot enable {protocol_name} on bonds, disabling"));
        }
        if !protocol.takes_part(bridge, port) {
            continue;
        }
        match protocol.port(port, "port-num").map(|text| parse_number(text)) {
            None => others.push(port),
            Some(Some(n)) if (1..=u64::from(ports_max)).contains(&n) => {
                let taken = given.contains_key(&(n as u16));
                match (taken, bridge.rstp) {
                    (false, _) => _ = given.insert(n as u16, port),
                    (true, true) => others.push(port),
                    (true, false) => {
                        wrong.push(format!("port {name}: duplicate stp-port-num {n}, disabling"));
                    }
                }
            }
            Some(_) => wrong.push(format!("port {name}: invalid {prefix}-port-num")),
        }
    }
    if !bridge.rstp && !given.is_empty() && !others.is_empty() {
        let name = &bridge.name;
        wrong.push(format!(
            "bridge {name}: must manually configure all STP port IDs or none, disabling"
        ));
        return None;
    }
    let kept = |port: &PortConf| before.get(&port.interfaces[0].name).copied();
    others.sort_by_key(|port| kept(port).is_none());
    let mut next = 1;
    for port in others {
        let own = kept(port).filter(|n| !given.contains_key(n));
        let number = own.or_else(|| {
            next = (next..=ports_max).find(|n| !given.contains_key(n)).unwrap_or(ports_max + 1);
            (next <= ports_max).then_some(next)
        });
        match number {
            Some(number) => _ = given.insert(number, port),
            None => {
                let name = &port.name;
                wrong.push(format!("port {name}: too many {protocol_name} ports, disabling"));
            }
        }
    }
    let asked = |(number, port): (u16, &PortConf)| {
        let iface = port.interfaces[0].name.clone();
        let (of_port, mbps) = found(&iface)?;
        Some(port_asked((protocol, port), iface, of_port, (number, mbps)))
    };
    Some(given.into_iter().filter_map(asked).collect())
}

fn port_asked(
    (protocol, port): (Protocol, &PortConf),
    iface: String,
    of_port: OfPort,
    (number_in_tree, mbps): (u16, u32),
) -> PortAsked {
    let of = |key: &str| protocol.port(port, key);
    let is = |key: &str, default: bool| match of(key).map(String::as_str) {
        Some("true") => true,
        Some("false") => false,
        _ => default,
    };
    let rapid = protocol.prefix == RSTP.prefix;
    // 0: no, 1: yes, 2: as the link is, of which nothing is known: no.
    let link_kind = of("admin-p2p-mac").and_then(|v| v.parse::<i64>().ok());
    let mbps = if mbps == 0 { DEFAULT_MBPS } else { mbps };
    let cost = of("path-cost").map(|text| text.parse().unwrap_or(0));
    let priority = of("port-priority").and_then(|text| parse_number(text)?.try_into().ok());
    let priority = priority.unwrap_or(DEFAULT_PORT_PRIORITY);
    let path_cost = cost.unwrap_or_else(|| if rapid { rapid_cost_of(mbps) } else { cost_of(mbps) });
    PortAsked {
        iface,
        of_port,
        number: number_in_tree,
        priority,
        path_cost,
        rapid: RstpPortConf {
            priority,
            path_cost,
            admin_edge: is("port-admin-edge", false),
            auto_edge: is("port-auto-edge", true),
            point_to_point: !matches!(link_kind, Some(0 | 2)),
        },
        checks: is("port-mcheck", false),
    }
}

/// The cost that IEEE 802.1D-1998 recommends (table 8-5), in ovs-vswitchd's steps.
fn cost_of(mbps: u32) -> u32 {
    match mbps {
        10_000.. => 2,
        1000.. => 4,
        100.. => 19,
        16.. => 62,
        10.. => 100,
        4.. => 250,
        _ => 2,
    }
}

/// The cost that IEEE 802.1D-2004 recommends (table 17-3), in ovs-vswitchd's steps.
fn rapid_cost_of(mbps: u32) -> u32 {
    match mbps {
        10_000_000.. => 2,
        1_000_000.. => 20,
        100_000.. => 200,
        10_000.. => 2000,
        1000.. => 20_000,
        100.. => 200_000,
        10.. => 2_000_000,
        1.. => 20_000_000,
        0 => 2000,
    }
}

#[cfg(test)]
#[path = "tree_conf_tests.rs"]
mod tests;
