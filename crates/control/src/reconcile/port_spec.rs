//! What the database says of a port, for the switch half.

use super::link_features;
use crate::config::{BridgeConf, IfaceConf, PortConf, VlanMode};
use crate::state::State;
use crate::tunnel_options::{self, is_tunnel};
use ::port::Link;
use ofproto::{McastPort, PortSpec, PriorityTags, VlanSet};
use openflow::OfPort;
use std::sync::Arc;
use wire::{ETH_QINQ, ETH_VLAN};

pub(super) fn port_spec(
    s: &mut State,
    (br, port): (&BridgeConf, &PortConf),
    conf: &IfaceConf,
    of_port: OfPort,
    dp_port: Option<flow::PortNo>,
) -> PortSpec {
    let mut spec = PortSpec {
        of_port,
        name: conf.name.clone(),
        bundle: port.name.clone(),
        dp_port,
        vlan: vlan_mode(port),
        patch_peer: (conf.kind == "patch").then(|| conf.options.get("peer").cloned()).flatten(),
        queue_dscp: conf.queue_dscp.clone(),
        protected: port.protected,
        priority_tags: priority_tags(port),
        mcast: mcast_port(port),
        ..PortSpec::default()
    };
    if is_tunnel(&conf.kind) {
        // The configuration was found good when the port was opened.
        spec.tunnel = tunnel_options::parse(conf).ok();
        spec.hw_addr = mac_of(conf.uuid);
    } else if let Some(p) = dp_port.and_then(|no| s.dp.port_mut(no)) {
        // Links are looked at when the kernel says that they changed, and each second.
        let link = p.last_link();
        describe(&mut spec, p, &link);
    } else {
        spec.hw_addr = mac_of(conf.uuid);
    }
    spec.oam = s.oam.filters(&conf.name);
    spec.faulty = s.oam.is_faulty(&conf.name);
    s.bonds.describe(&mut spec, port);
    s.trees.describe(&mut spec, br, port);
    spec
}

fn mcast_port(port: &PortConf) -> McastPort {
    let flag = |key: &str| port.other_config.get(key).is_some_and(|v| v == "true");
    McastPort {
        flood: flag("mcast-snooping-flood"),
        flood_reports: flag("mcast-snooping-flood-reports"),
    }
}

fn priority_tags(port: &PortConf) -> PriorityTags {
    match port.other_config.get("priority-tags").map(String::as_str) {
        Some("if-nonzero" | "true") => PriorityTags::IfNonzero,
        Some("always") => PriorityTags::Always,
        _ => PriorityTags::Never,
    }
}

/// What the port says of itself, in OpenFlow's terms.
pub fn describe(spec: &mut PortSpec, port: &dyn ::port::Port, link: &Link) {
    spec.hw_addr = port.mac();
    spec.config = if link.admin_up { 0 } else { openflow::port_config::PORT_DOWN };
    spec.state = if link.up { openflow::port_state::LIVE } else { openflow::port_state::LINK_DOWN };
    (spec.features, spec.speeds) = link_features::of(link);
}

/// `tag`, `trunks` and `vlan_mode` of the Port table; a mode that needs a tag and has none trunks.
fn vlan_mode(port: &PortConf) -> ofproto::VlanMode {
    let set = |vids: &[u16]| match vids {
        [] => Arc::new(VlanSet::ALL),
        vids => Arc::new(vids.iter().copied().collect()),
    };
    let Some(tag) = port.tag else { return ofproto::VlanMode::Trunk(set(&port.trunks)) };
    match port.vlan_mode {
        VlanMode::Trunk => ofproto::VlanMode::Trunk(set(&port.trunks)),
        VlanMode::Access => ofproto::VlanMode::Access(tag),
        VlanMode::NativeTagged => {
            ofproto::VlanMode::NativeTagged { tag, trunks: set(&port.trunks) }
        }
        VlanMode::NativeUntagged => {
            ofproto::VlanMode::NativeUntagged { tag, trunks: set(&port.trunks) }
        }
        VlanMode::Dot1qTunnel => {
            let single = port.other_config.get("qinq-ethtype").is_some_and(|t| t == "802.1q");
            let ethertype = if single { ETH_VLAN } else { ETH_QINQ };
            ofproto::VlanMode::Dot1qTunnel { tag, cvlans: set(&port.cvlans), ethertype }
        }
    }
}

/// A locally administered unicast address that stays the same as long as the database row.
pub fn mac_of(row: ovsdb::Uuid) -> [u8; 6] {
    let b = row.0.to_be_bytes();
    let mix = |i: usize| b[i] ^ b[i + 6];
    [mix(0) & 0xfc | 2, mix(1), mix(2), mix(3), mix(4), mix(5)]
}
