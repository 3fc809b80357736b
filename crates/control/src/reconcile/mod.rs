//! From desired to actual: makes bridges and ports be as the database says. Whatever fails ends in
//! that interface's error and disturbs nothing else; it is tried again at the next change.

mod bridge;
mod interface;
mod link_features;
mod numbers;
mod own;
mod port_spec;
mod prepare;
mod turn;

pub use bridge::remove_bridge;
pub use interface::{lost, take_returned};
pub use numbers::dummy_number;
pub use own::configure_own;
pub use port_spec::{describe, mac_of};

use crate::config::{BridgeConf, Desired, IfaceConf, PortConf};
use crate::state::{Shared, State};
use crate::{controllers, settings, vlog};
use bridge::{add_bridge, fail_state, forget_flows, shrink_tables, start_over};
use interface::{configure_iface, remove_ifaces};
use numbers::Claims;
use prepare::{PREPARED_INTERFACES_MAX, prepare};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;
use turn::give_turn;

const MODULE: &str = "bridge";
/// Applies a whole configuration, some interfaces at a time. Ports that leave are closed at its
/// end.
pub async fn apply(state: &Shared, desired: &Desired, rundir: &Path) {
    let mut turn = Instant::now();
    let gone: Vec<String> = {
        let mut s = state.borrow_mut();
        // Links may have changed since the last configuration.
        s.ofproto.take_reconfigured();
        settings::apply(&mut s, desired);
        crate::vhost_async::apply(&mut s, desired);
        crate::userspace_tso::apply(&mut s, desired);
        crate::ct_timeouts::apply(&mut s, desired);
        await_flows(&mut s, desired);
        log_notices(&mut s, desired);
        controllers::set_ssl(state, &s, desired.ssl.as_ref());
        let wanted: BTreeSet<&str> = desired.bridges.iter().map(|b| b.name.as_str()).collect();
        s.bridges.keys().filter(|n| !wanted.contains(n.as_str())).cloned().collect()
    };
    // Ports leave before others come: an interface may move between bridges.
    let mut leaving = Vec::new();
    for name in &gone {
        forget_flows(state, name).await;
        leaving.extend(remove_bridge(&mut state.borrow_mut(), name));
        give_turn(state, &mut turn).await;
    }
    for conf in &desired.bridges {
        remove_ifaces(state, conf, &mut leaving, &mut turn).await;
    }
    {
        let mut s = state.borrow_mut();
        s.flush_changes();
        s.close_ports(leaving);
    }
    for conf in &desired.bridges {
        let is_new = !state.borrow().bridges.contains_key(&conf.name);
        let dpid = if is_new { add_bridge(state, conf, rundir) } else { None };
        let before = fail_state(&state.borrow(), &conf.name);
        configure_bridge(state, conf, &mut turn).await;
        if let Some(dpid) = dpid.filter(|id| id_of(&state.borrow(), &conf.name) == Some(*id)) {
            vlog::info!(MODULE, "bridge {}: using datapath ID {dpid:016x}", conf.name);
        }
        let connects = !state.borrow().applied.restoring;
        let controllers = if connects { &conf.controllers[..] } else { &[] };
        if connects {
            crate::local_address::configure(state, conf).await;
        }
        controllers::reconcile(state, &conf.name, controllers);
        start_over(state, &conf.name, before).await;
    }
    let closing = {
        let mut s = state.borrow_mut();
        crate::oam::sweep(&mut s);
        crate::bonds::sweep(&mut s);
        crate::trees::sweep(&mut s);
        crate::in_band::configure(&mut s, desired);
        s.flush_changes();
        s.status_dirty = true;
        s.recent.reconfigured += u64::from(s.ofproto.take_reconfigured());
        s.closing.clone()
    };
    // A client that waits for the configuration finds MTUs and queues set, and devices gone that
    // the switch had made.
    crate::device_changer::finished(state).await;
    crate::qos::finished(state).await;
    closing.finished().await;
}

/// `other_config:flow-restore-wait`: true at the start, it keeps bridges from forwarding and from
/// their controllers until it is cleared. As in ovs-vswitchd it is not looked at again after that.
fn await_flows(s: &mut State, desired: &Desired) {
    let was = s.applied.restoring;
    s.applied.restoring &=
        desired.other_config.get("flow-restore-wait").is_some_and(|v| v == "true");
    match (was.then_some(s.bridges.is_empty()), s.applied.restoring) {
        (Some(true), true) => vlog::info!(
            MODULE,
            "flow-restore-wait is set: nothing is forwarded and no controller connected to until it is cleared"
        ),
        (Some(false), false) => vlog::info!(MODULE, "flow-restore-wait is over"),
        _ => {}
    }
}

/// Says once what is set and has no effect, and again when it was changed; of very many it says how
/// many there are.
fn log_notices(s: &mut State, desired: &Desired) {
    let now = s.now_ms();
    let new = desired.notices.difference(&s.applied.notices).map(|notice| {
        let level = if notice.missed { vlog::Level::Warn } else { vlog::Level::Info };
        (level, MODULE, notice.text.as_str())
    });
    s.applied.setting_log.say(now, new);
    s.applied.notices.clone_from(&desired.notices);
}

/// A bridge's datapath id.
fn id_of(s: &State, bridge: &str) -> Option<u64> {
    s.bridges.get(bridge).map(|bridge| bridge.dpid)
}

/// `turn`: when others last had their turn.
async fn configure_bridge(state: &Shared, conf: &BridgeConf, turn: &mut Instant) {
    configure_own(&mut state.borrow_mut(), conf);
    while shrink_tables(state, &conf.name).await {
        give_turn(state, turn).await;
    }
    // Requested numbers first, so that no other interface takes them.
    let mut all: Vec<(&PortConf, &IfaceConf)> =
        conf.ports.iter().flat_map(|p| p.interfaces.iter().map(move |i| (p, i))).collect();
    all.sort_by_key(|(_, i)| i.ofport_request.is_none());
    let mut claims = Claims::default();
    for some in all.chunks(PREPARED_INTERFACES_MAX) {
        let mut prepared = prepare(state, conf, some).await;
        for (port, iface) in some {
            prepared = configure_iface(state, (conf, port), iface, &mut claims, prepared).await;
            give_turn(state, turn).await;
        }
        state.borrow().closing.close(prepared.unused(), BTreeMap::new());
    }
    let s = &mut state.borrow_mut();
    crate::bridge_address::follow(s, conf);
    crate::mtu::follow(s, &conf.name);
    crate::bonds::configure(s, conf);
    crate::mirrors::apply(s, conf);
    crate::trees::configure(s, conf);
    crate::export::apply(s, conf);
}
