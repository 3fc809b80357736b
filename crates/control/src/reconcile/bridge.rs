//! Bridges without their ports: made, changed and removed as the database says.

use super::own::{bridge_config, mac_to_dpid};
use super::port_spec::mac_of;
use crate::config::{BridgeConf, FailMode};
use crate::of::connect::{self, Service};
use crate::of::{Kind, change};
use crate::ports;
use crate::state::{Bridge, Shared, State};
use crate::vlog;
use ofproto::BridgeConfig;
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
