//! What a bridge itself is: its address, its datapath id, its settings.

use crate::config::{BridgeConf, FailMode, FlowTableConf};
use crate::of::Kind;
use crate::state::State;
use crate::vlog;
use ofproto::{BridgeConfig, McastConfig, TableConfig};

const MODULE: &str = "bridge";

pub(super) fn bridge_config(conf: &BridgeConf, mac: [u8; 6], dpid: u64) -> BridgeConfig {
    let number = |key: &str| conf.other_config.get(key).and_then(|v| v.parse().ok());
    let size = |key: &str| -> Option<usize> {
        let n = conf.other_config.get(key)?.parse::<u64>().ok()?;
        Some(usize::try_from(n).unwrap_or(usize::MAX))
    };
    let flag = |key: &str| conf.other_config.get(key).is_some_and(|v| v == "true");
    BridgeConfig {
        dpid,
        mac,
        fail_mode: match conf.fail_mode {
            FailMode::Secure => ofproto::FailMode::Secure,
            FailMode::Standalone => ofproto::FailMode::Standalone,
        },
        mac_aging_s: number("mac-aging-time").unwrap_or(300),
        mac_table_size: size("mac-table-size").unwrap_or(8192),
        forward_bpdu: flag("forward-bpdu"),
        flood_vlans: conf.flood_vlans.clone(),
        tables: conf.flow_tables.iter().map(|(n, t)| (*n, table_config(t))).collect(),
        mcast: conf.mcast_snooping.then(|| McastConfig {
            aging_s: number("mcast-snooping-aging-time").unwrap_or(300),
            table_size: size("mcast-snooping-table-size").unwrap_or(2048),
            flood_unregistered: !flag("mcast-snooping-disable-flood-unregistered"),
        }),
        ..BridgeConfig::default()
    }
}

fn table_config(t: &FlowTableConf) -> TableConfig {
    let groups = t.groups.iter().filter_map(|g| ofproto::parse_subfield(g).ok()).collect();
    let name = t.name.clone().unwrap_or_default();
    TableConfig { name, limit: t.flow_limit, evict: t.evict, groups }
}

/// A bridge without its ports.
pub fn configure_own(s: &mut State, conf: &BridgeConf) {
    let mac = crate::bridge_address::wanted(s, conf);
    let Some(bridge) = s.bridges.get_mut(&conf.name) else { return };
    bridge.mac = mac;
    let dpid = conf.datapath_id().unwrap_or_else(|| mac_to_dpid(mac));
    let before = std::mem::replace(&mut bridge.dpid, dpid);
    bridge.conf = conf.clone();
    let (id, restoring) = (bridge.id, s.applied.restoring);
    if dpid != before {
        vlog::info!(MODULE, "bridge {}: using datapath ID {dpid:016x}", conf.name);
        // There is no message about that: controllers find it out when they connect again.
        let is_controller = |kind: &Kind| matches!(kind, Kind::Row { primary: true, .. });
        s.conns.retain(|_, c| c.bridge != conf.name || !is_controller(&c.kind));
    }
    // With dummies.
    let test_actions = s.dp.settings().debug.own_masks;
    // What connections and time have made of it stays.
    s.change_bridge(id, |c| {
        *c = BridgeConfig {
            miss_to_controller: c.miss_to_controller,
            misses: c.misses.clone(),
            frag: c.frag,
            fail_open: c.fail_open,
            in_band: c.in_band,
            restoring,
            tree: c.tree,
            export: c.export.clone(),
            test_actions,
            ..bridge_config(conf, mac, dpid)
        };
    });
}

pub(super) fn mac_to_dpid(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}
