//! The address of a bridge, its own port's, from which its datapath id follows: as with
//! ovs-vswitchd that of a device behind it, so that a host keeps its address when its adapter
//! becomes a port.

use crate::config::BridgeConf;
use crate::ports;
use crate::reconcile::{configure_own, mac_of};
use crate::state::{Bridge, State};
use std::collections::BTreeSet;

/// The first bytes of addresses that IEEE 802.1D keeps for protocols of bridges.
const RESERVED: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];

/// The address that a bridge is to have: the configured one; else the least of its ports, of which
/// those count that are unique in the world; else its own. A port has that of the first of its
/// interfaces by name; outputs of mirrors do not count.
pub fn wanted(s: &State, conf: &BridgeConf) -> [u8; 6] {
    if let Some(mac) = conf.hwaddr().and_then(ports::parse_mac) {
        return mac;
    }
    let bridge = s.bridges.get(&conf.name);
    bridge.and_then(|bridge| of_ports(s, bridge, conf)).unwrap_or_else(|| mac_of(conf.uuid))
}

fn of_ports(s: &State, bridge: &Bridge, conf: &BridgeConf) -> Option<[u8; 6]> {
    let outputs: BTreeSet<&str> =
        conf.mirrors.iter().filter_map(|m| m.output_port.as_deref()).collect();
    let ports = conf.ports.iter();
    let ports = ports.filter(|p| p.name != conf.name && !outputs.contains(p.name.as_str()));
    let first = ports.filter_map(|p| p.interfaces.iter().map(|i| &i.name).min());
    let number = |name: &String| bridge.ifaces.get(name)?.dp_port;
    let mac = first.filter_map(number).filter_map(|no| Some(s.dp.port(no)?.mac()));
    mac.filter(|mac| counts(*mac)).min()
}

/// True if an address is unique in the world.
fn counts(mac: [u8; 6]) -> bool {
    mac[0] & 3 == 0 && mac != [0; 6] && mac[..5] != RESERVED
}

/// Gives a bridge the address that it is to have now. True if it had another one.
pub fn follow(s: &mut State, conf: &BridgeConf) -> bool {
    let mac = wanted(s, conf);
    if s.bridges.get(&conf.name).is_none_or(|b| b.mac == mac) {
        return false;
    }
    configure_own(s, conf);
    let Some(bridge) = s.bridges.get(&conf.name) else { return false };
    let own = bridge.ifaces.get(&conf.name).and_then(|i| Some((i.conf.clone(), i.dp_port?)));
    if let Some((own, no)) = own
        && let Some(port) = s.dp.port_mut(no)
    {
        let mut config = ports::port_config(&own, Some(mac), 1);
        config.kind = port.kind().to_owned();
        let which = ((conf.name.clone(), conf.name.clone()), no);
        // A port that has no address of its own need not take it.
        let _ = s.pending.devices.configure_port(&mut s.dp, which, config);
    }
    s.status_dirty = true;
    true
}

/// As [`follow`], when devices of a bridge changed.
pub fn follow_devices(s: &mut State, name: &str) {
    let differs = |b: &&Bridge| wanted(s, &b.conf) != b.mac;
    let Some(conf) = s.bridges.get(name).filter(differs).map(|b| b.conf.clone()) else { return };
    if follow(s, &conf) {
        crate::bonds::configure(s, &conf);
        crate::trees::configure(s, &conf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_are_unique_in_the_world_count() {
        assert!(counts([0, 0x11, 0x22, 0x33, 0x44, 0x55]));
        for none in [[0; 6], [2, 0, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1], [0x01, 0x80, 0xc2, 0, 0, 0]]
        {
            assert!(!counts(none), "{none:?}");
        }
    }
}
