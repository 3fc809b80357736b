//! Bridges without their ports: made, changed and removed as the database says.

use super::port_spec::mac_of;
use crate::config::{BridgeConf, FailMode, FlowTableConf};
use crate::of::connect::{self, Service};
use crate::of::{Kind, change};
use crate::ports;
use crate::state::{Bridge, Shared, State};
use crate::vlog;
use ofproto::{BridgeConfig, McastConfig, TableConfig};
use std::collections::BTreeMap;
use std::path::Path;

const MODULE: &str = "bridge";

/// Whether a bridge has primary controllers, and what it does while none of them is connected.
pub(super) fn fail_state(s: &State, name: &str) -> Option<(bool, FailMode)> {
    let conf = &s.bridges.get(name)?.conf;
    Some((conf.controllers.iter().any(|c| c.primary), conf.fail_mode))
}

/// The first controller finds no flows, the last leaves none; nor does a change of what a bridge
/// without controllers does.
pub(super) async fn start_over(state: &Shared, name: &str, before: Option<(bool, FailMode)>) {
    let after = fail_state(&state.borrow(), name);
    let (Some((had, old)), Some((has, new))) = (before, after) else { return };
    let same = had == has && (has || old == new);
    let id = state.borrow().bridges.get(name).map(|b| b.id).filter(|_| !same);
    let Some(id) = id else { return };
    change::forget(state, id).await;
    if !has {
        change::finished(state).await;
        let s = &mut state.borrow_mut();
        let now = s.now_ns();
        let _ = s.ofproto.install_default_flow(id, now);
    }
}

/// Removes the flows of a bridge that goes, a slice at a time. Its connections end before.
pub(super) async fn forget_flows(state: &Shared, name: &str) {
    let Some(id) = state.borrow().bridges.get(name).map(|b| b.id) else { return };
    state.borrow_mut().conns.retain(|_, c| c.bridge != name);
    change::turn(state, id).await;
    let _ = change::run(state, None, id, ofproto::all_that_flows_are()).await;
}

/// Takes a bridge down, and its ports out of it. They are the caller's to close, after changes are
/// flushed.
pub fn remove_bridge(s: &mut State, name: &str) -> Vec<flow::PortNo> {
    let Some(bridge) = s.bridges.remove(name) else { return Vec::new() };
    vlog::info!(MODULE, "bridge {name}: deleted");
    crate::export::remove(s, bridge.id);
    let now = s.now_ns();
    let _ = s.ofproto.remove_bridge(bridge.id, now);
    s.pending.injected.forget(bridge.id);
    s.pending.paused.forget(bridge.id);
    s.conns.retain(|_, c| c.bridge != name);
    s.of.snoops.forget(name);
    bridge.ifaces.values().filter_map(|iface| iface.dp_port).collect()
}

/// Its datapath id; None if it could not be made.
pub(super) fn add_bridge(state: &Shared, conf: &BridgeConf, rundir: &Path) -> Option<u64> {
    let mac = conf.hwaddr().and_then(ports::parse_mac).unwrap_or_else(|| mac_of(conf.uuid));
    let dpid = conf.datapath_id().unwrap_or_else(|| mac_to_dpid(mac));
    let restoring = state.borrow().applied.restoring;
    let config = BridgeConfig { restoring, ..bridge_config(conf, mac, dpid) };
    let now = state.borrow().now_ns();
    let id = match state.borrow_mut().ofproto.add_bridge(&conf.name, config, now) {
        Ok(id) => id,
        Err(e) => {
            vlog::err!(MODULE, "bridge {}: {e}", conf.name);
            return None;
        }
    };
    let sockets = [("mgmt", Service::OpenFlow(Kind::Service)), ("snoop", Service::Snoop)]
        .into_iter()
        .filter_map(|(suffix, service)| {
            let path = rundir.join(format!("{}.{suffix}", conf.name));
            connect::listen_unix(state, &path, &conf.name, service)
                .inspect_err(|e| vlog::err!(MODULE, "{}: {e}", path.display()))
                .ok()
        })
        .collect();
    let bridge = Bridge {
        id,
        conf: conf.clone(),
        dpid,
        mac,
        ifaces: BTreeMap::new(),
        sockets,
        controllers: BTreeMap::new(),
        in_band: Default::default(),
        next_port: 1,
        mirror_notices: Default::default(),
        generation: None,
    };
    let mut s = state.borrow_mut();
    s.bridges.insert(conf.name.clone(), bridge);
    if !conf.controllers.iter().any(|c| c.primary) && conf.fail_mode == FailMode::Standalone {
        let now = s.now_ns();
        let _ = s.ofproto.install_default_flow(id, now);
    }
    Some(dpid)
}

fn bridge_config(conf: &BridgeConf, mac: [u8; 6], dpid: u64) -> BridgeConfig {
    let number = |key: &str| conf.other_config.get(key).and_then(|v| v.parse().ok());
    let flag = |key: &str| conf.other_config.get(key).is_some_and(|v| v == "true");
    BridgeConfig {
        dpid,
        mac,
        fail_mode: match conf.fail_mode {
            FailMode::Secure => ofproto::FailMode::Secure,
            FailMode::Standalone => ofproto::FailMode::Standalone,
        },
        mac_aging_s: number("mac-aging-time").unwrap_or(300),
        mac_table_size: number("mac-table-size").unwrap_or(8192) as usize,
        forward_bpdu: flag("forward-bpdu"),
        flood_vlans: conf.flood_vlans.clone(),
        tables: conf.flow_tables.iter().map(|(n, t)| (*n, table_config(t))).collect(),
        mcast: conf.mcast_snooping.then(|| McastConfig {
            aging_s: number("mcast-snooping-aging-time").unwrap_or(300),
            table_size: number("mcast-snooping-table-size").unwrap_or(2048) as usize,
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

/// Flows of a table with a lower limit that are evicted in one turn: a few milliseconds' work.
const EVICTED_TURN_MAX: usize = 256;

/// Evicts some of the flows that tables have beyond their limits; true: there are more.
pub(super) async fn shrink_tables(state: &Shared, name: &str) -> bool {
    let Some(id) = state.borrow().bridges.get(name).map(|b| b.id) else { return false };
    let shrink = |n| {
        let s = &mut state.borrow_mut();
        let now = s.now_ns();
        s.ofproto.shrink_tables(id, n, now)
    };
    if !shrink(0) {
        return false;
    }
    // Else it would have to be finished in one go.
    change::turn(state, id).await;
    shrink(EVICTED_TURN_MAX)
}

fn mac_to_dpid(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}
