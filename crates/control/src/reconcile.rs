//! From desired to actual: makes bridges and ports be as the database says. Whatever fails ends in
//! that interface's error and disturbs nothing else; it is tried again at the next change.

use crate::config::{BridgeConf, Desired, IfaceConf, PortConf};
use crate::config::{FailMode, FlowTableConf, VlanMode};
use crate::of::Kind;
use crate::of::connect::{self, Service};
use crate::ports::{self, Iface};
use crate::state::{Bridge, Shared, State};
use crate::tunnel_options::{self, is_tunnel};
use crate::{controllers, settings, tunnels, vlog};
use ofproto::{BridgeConfig, McastConfig, McastPort, PortSpec, PriorityTags, TableConfig, VlanSet};
use openflow::{OfPort, port as of_port};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{ETH_QINQ, ETH_VLAN};

const MODULE: &str = "bridge";

/// How long a configuration is applied before others have their turn.
const TURN_TIME_MAX: Duration = Duration::from_millis(5);
/// OpenFlow numbers that interfaces may have.
const OF_PORTS: std::ops::Range<OfPort> = 1..0xff00;

/// Applies a whole configuration, some interfaces at a time. Ports that leave are closed at its
/// end.
pub async fn apply(state: &Shared, desired: &Desired, rundir: &Path) {
    let mut turn = Instant::now();
    {
        let mut s = state.borrow_mut();
        settings::apply(&mut s, desired);
        crate::vhost_async::apply(&mut s, desired);
        crate::ct_timeouts::apply(&mut s, desired);
        await_flows(&mut s, desired);
        log_notices(&mut s, desired);
        controllers::set_ssl(state, &s, desired.ssl.as_ref());
        let wanted: BTreeSet<&str> = desired.bridges.iter().map(|b| b.name.as_str()).collect();
        let gone: Vec<String> =
            s.bridges.keys().filter(|n| !wanted.contains(n.as_str())).cloned().collect();
        // Ports leave before others come: an interface may move between bridges.
        let mut leaving: Vec<_> =
            gone.iter().flat_map(|name| remove_bridge(&mut s, name)).collect();
        leaving.extend(desired.bridges.iter().flat_map(|conf| remove_ifaces(&mut s, conf)));
        s.flush_changes();
        s.close_ports(leaving);
    }
    for conf in &desired.bridges {
        let is_new = !state.borrow().bridges.contains_key(&conf.name);
        let dpid = if is_new { add_bridge(state, conf, rundir) } else { None };
        let before = fail_state(&state.borrow(), &conf.name);
        configure_bridge(state, conf, &mut turn).await;
        if let Some(dpid) = dpid {
            vlog::info!(MODULE, "bridge {}: using datapath ID {dpid:016x}", conf.name);
        }
        let connects = !state.borrow().applied.restoring;
        let controllers = if connects { &conf.controllers[..] } else { &[] };
        if connects {
            crate::local_address::configure(&state.borrow(), conf);
        }
        controllers::reconcile(state, &conf.name, controllers);
        start_over(&mut state.borrow_mut(), &conf.name, before);
    }
    while crate::qos::turn(&mut state.borrow_mut()) {
        tokio::task::yield_now().await;
    }
    let closing = {
        let mut s = state.borrow_mut();
        crate::oam::sweep(&mut s);
        crate::bonds::sweep(&mut s);
        crate::trees::sweep(&mut s);
        crate::in_band::configure(&mut s, desired);
        s.flush_changes();
        s.status_dirty = true;
        s.closing.clone()
    };
    // A client that waits for the configuration finds devices gone that the switch had made.
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

/// Says once what is set and has no effect, and again when it was changed.
fn log_notices(s: &mut State, desired: &Desired) {
    for notice in desired.notices.difference(&s.applied.notices) {
        let level = if notice.known { vlog::Level::Warn } else { vlog::Level::Info };
        // Each says something else: no limit on messages from one place.
        vlog::write(&vlog::Site::new(), level, MODULE, format_args!("{}", notice.text));
    }
    s.applied.notices.clone_from(&desired.notices);
}

/// Does a bridge have primary controllers, and what does it do while none is connected?
fn fail_state(s: &State, name: &str) -> Option<(bool, FailMode)> {
    let conf = &s.bridges.get(name)?.conf;
    Some((conf.controllers.iter().any(|c| c.primary), conf.fail_mode))
}

/// The first controller finds no flows, the last leaves none; nor does a change of what a bridge
/// without controllers does.
fn start_over(s: &mut State, name: &str, before: Option<(bool, FailMode)>) {
    let after = fail_state(s, name);
    let (Some((had, old)), Some((has, new))) = (before, after) else { return };
    let same = had == has && (has || old == new);
    let Some(id) = s.bridges.get(name).map(|b| b.id).filter(|_| !same) else { return };
    let now = s.now_ns();
    let _ = s.ofproto.flush_flows(id, now);
    if !has {
        let _ = s.ofproto.install_default_flow(id, now);
    }
}

/// Takes a bridge down, and its ports out of it. They are the caller's to close, after changes are
/// flushed.
pub fn remove_bridge(s: &mut State, name: &str) -> Vec<flow::PortNo> {
    let Some(bridge) = s.bridges.remove(name) else { return Vec::new() };
    vlog::info!(MODULE, "bridge {name}: deleted");
    crate::export::remove(s, bridge.id);
    let now = s.now_ns();
    let _ = s.ofproto.remove_bridge(bridge.id, now);
    s.conns.retain(|_, c| c.bridge != name);
    s.of.snoops.forget(name);
    bridge.ifaces.values().filter_map(|iface| iface.dp_port).collect()
}

/// Is there an interface whose kernel device was not there and is now? Then the configuration is to
/// be applied again. Other failures are tried again when the configuration changes.
pub fn has_come_back(state: &Shared) -> bool {
    let came_back =
        |i: &Iface| !i.works() && i.conf.kind == "system" && device_exists(&i.conf.name);
    state.borrow().bridges.values().any(|b| b.ifaces.values().any(came_back))
}

/// Is there a kernel device of this name in our network namespace (which /sys may not show)?
fn device_exists(name: &str) -> bool {
    // SAFETY: the string is NUL-terminated and only read.
    std::ffi::CString::new(name).is_ok_and(|n| unsafe { libc::if_nametoindex(n.as_ptr()) } != 0)
}

/// Devices of interfaces (bridge, name, what is wrong) have vanished: their ports go, their errors
/// say why, [`has_come_back`] sees them again.
pub fn lost(s: &mut State, all: Vec<(String, String, String)>) {
    if all.is_empty() {
        return;
    }
    let mut leaving = Vec::new();
    for (bridge, name, error) in all {
        let Some(bridge) = s.bridges.get_mut(&bridge) else { continue };
        let Some(iface) = bridge.ifaces.get_mut(&name) else { continue };
        // Nothing went wrong here: as in ovs-vswitchd it is worth an INFO.
        vlog::info!(MODULE, "interface {name}: {error}");
        iface.error = Some(error);
        leaving.extend(iface.dp_port.take());
        if let Some(of_port) = iface.of_port.take() {
            let _ = s.ofproto.remove_port(bridge.id, of_port);
        }
    }
    s.flush_changes();
    s.close_ports(leaving);
    s.status_dirty = true;
}

/// Takes interfaces out of a bridge that are gone, or changed in a way that needs reopening. Their
/// ports are the caller's to close, after changes are flushed.
fn remove_ifaces(s: &mut State, conf: &BridgeConf) -> Vec<flow::PortNo> {
    let Some(bridge) = s.bridges.get_mut(&conf.name) else { return Vec::new() };
    let wanted: BTreeMap<&str, &IfaceConf> =
        conf.ports.iter().flat_map(|p| &p.interfaces).map(|i| (i.name.as_str(), i)).collect();
    let mut gone = Vec::new();
    for (name, iface) in &bridge.ifaces {
        let stays = wanted.get(name.as_str()).is_some_and(|new| same_port(iface, new));
        if !stays {
            gone.push(name.clone());
        }
    }
    gone.extend(renumbered(bridge, &wanted, &gone));
    let bridge_id = bridge.id;
    let removed: Vec<Iface> = gone.iter().filter_map(|n| bridge.ifaces.remove(n)).collect();
    for iface in &removed {
        if let Some(of_port) = iface.of_port {
            vlog::info!(
                MODULE,
                "bridge {}: deleted interface {} on port {}",
                conf.name,
                iface.conf.name,
                database_number(of_port)
            );
            let _ = s.ofproto.remove_port(bridge_id, of_port);
        }
    }
    removed.iter().filter_map(|iface| iface.dp_port).collect()
}

/// Interfaces that leave to get other numbers, as in ovs-vswitchd: those that ask for another one
/// than they have, unless its holder asked for it, too, and those that hold one which they did not
/// ask for and such an interface does. A new interface waits for the next change.
fn renumbered(
    bridge: &Bridge,
    wanted: &BTreeMap<&str, &IfaceConf>,
    gone: &[String],
) -> Vec<String> {
    let gone: BTreeSet<&str> = gone.iter().map(String::as_str).collect();
    let request = |name: &str| {
        let asked = wanted.get(name)?.ofport_request.map(OfPort::from);
        asked.filter(|n| OF_PORTS.contains(n))
    };
    // Interface, the number it has, the number it asks for.
    let all = bridge.ifaces.iter().filter(|(name, i)| !gone.contains(name.as_str()) && i.works());
    let all = all.filter_map(|(name, i)| Some((name, i.of_port?, request(name))));
    let all: Vec<_> = all.filter(|(_, has, _)| *has != of_port::LOCAL).collect();
    let settled = all.iter().filter(|(_, has, asked)| *asked == Some(*has));
    let settled: BTreeSet<OfPort> = settled.map(|(_, has, _)| *has).collect();
    let moving = |(_, has, asked): &&(&String, OfPort, Option<OfPort>)| {
        asked.is_some_and(|n| n != *has && !settled.contains(&n))
    };
    let asked: BTreeSet<OfPort> = all.iter().filter(moving).filter_map(|(.., n)| *n).collect();
    let leaves = all.iter().filter(|i| moving(i) || asked.contains(&i.1));
    leaves.map(|(name, ..)| (*name).clone()).collect()
}

/// Can the port stay open under the new configuration (what it applies live aside)?
fn same_port(iface: &Iface, new: &IfaceConf) -> bool {
    let old = &iface.conf;
    let patch = new.kind == "patch" && new.options.contains_key("peer");
    let same_options = patch || !iface.is_virtual() || old.options == new.options;
    old.kind == new.kind && same_options
}

/// Its datapath id; None if it could not be made.
fn add_bridge(state: &Shared, conf: &BridgeConf, rundir: &Path) -> Option<u64> {
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

/// `turn`: when others last had their turn.
async fn configure_bridge(state: &Shared, conf: &BridgeConf, turn: &mut Instant) {
    configure_own(&mut state.borrow_mut(), conf);
    // Requested numbers first, so that no other interface takes them.
    let mut all: Vec<(&PortConf, &IfaceConf)> =
        conf.ports.iter().flat_map(|p| p.interfaces.iter().map(move |i| (p, i))).collect();
    all.sort_by_key(|(_, i)| i.ofport_request.is_none());
    for (port, iface) in all {
        configure_iface(&mut state.borrow_mut(), conf, port, iface);
        if turn.elapsed() > TURN_TIME_MAX {
            state.borrow_mut().flush_changes();
            tokio::task::yield_now().await;
            *turn = Instant::now();
        }
    }
    let s = &mut state.borrow_mut();
    crate::mtu::follow(s, &conf.name);
    crate::bonds::configure(s, conf);
    crate::mirrors::apply(s, conf);
    crate::trees::configure(s, conf);
    crate::export::apply(s, conf);
}

/// A bridge without its ports.
fn configure_own(s: &mut State, conf: &BridgeConf) {
    let Some(bridge) = s.bridges.get_mut(&conf.name) else { return };
    if let Some(mac) = conf.hwaddr().and_then(ports::parse_mac) {
        bridge.mac = mac;
    }
    bridge.dpid = conf.datapath_id().unwrap_or_else(|| mac_to_dpid(bridge.mac));
    bridge.conf = conf.clone();
    let (id, mac, dpid, restoring) = (bridge.id, bridge.mac, bridge.dpid, s.applied.restoring);
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
    let now = s.now_ns();
    s.ofproto.shrink_tables(id, now);
}

fn configure_iface(s: &mut State, br: &BridgeConf, port: &PortConf, conf: &IfaceConf) {
    let now = s.now_ms();
    crate::oam::configure(s, conf);
    let Some(bridge) = s.bridges.get_mut(&br.name) else { return };
    let (id, mac) = (bridge.id, bridge.mac);
    let iface =
        bridge.ifaces.entry(conf.name.clone()).or_insert_with(|| Iface::new(conf.clone(), now));
    let local = conf.name == br.name;
    let device = iface.dp_port.filter(|_| local).and_then(|no| s.dp.port_mut(no));
    let moved = device.is_some_and(|d| d.mac() != mac);
    let changed = moved || iface.conf != *conf;
    if iface.conf.mac != conf.mac || !iface.works() {
        ports::judge_mac(conf, local);
    }
    if iface.conf.mtu_request != conf.mtu_request || !iface.works() {
        ports::judge_mtu(conf);
    }
    iface.conf = conf.clone();
    if changed || iface.of_port.is_none() {
        iface.mtu_given = None;
    }
    if let Some(of_port) = iface.of_port {
        let (dp_port, config) = (iface.dp_port, port_conf(s, br, conf, mac));
        // Whatever changes in the database, dummies open their captures again, as in ovs-vswitchd:
        // tests remove these files.
        let changed = changed || config.kind.starts_with("dummy");
        if changed && !reconfigure(s, dp_port, &config, conf) {
            reopen(s, br, conf);
            return configure_iface(s, br, port, conf);
        }
        if let Some(no) = dp_port {
            crate::qos::apply(s, conf, no);
        }
        let mut spec = port_spec(s, (br, port), conf, of_port, dp_port);
        // What a controller configured stays; that the port is down is the device's to say.
        let old = s.ofproto.port(id, of_port).map_or(0, |old| old.config);
        spec.config |= old & !openflow::port_config::PORT_DOWN;
        let _ = s.ofproto.update_port(id, spec);
        return;
    }
    let result = attach(s, br, port, conf);
    if let Some(iface) = s.bridges.get_mut(&br.name).and_then(|b| b.ifaces.get_mut(&conf.name)) {
        match result {
            Ok((of_port, dp_port)) => {
                (iface.of_port, iface.dp_port, iface.error) = (Some(of_port), dp_port, None);
                iface.last_port = Some(of_port);
                vlog::info!(
                    MODULE,
                    "bridge {}: added interface {} on port {}",
                    br.name,
                    conf.name,
                    database_number(of_port)
                );
            }
            Err(error) => {
                if iface.error.as_ref() != Some(&error) {
                    vlog::warn!(MODULE, "bridge {}: {error}", br.name);
                }
                iface.error = Some(error);
            }
        }
    }
}

/// An OpenFlow port as the database and logs have it, in OpenFlow 1.0's 16 bits.
fn database_number(port: OfPort) -> u16 {
    port as u16
}

fn port_conf(s: &State, br: &BridgeConf, conf: &IfaceConf, mac: [u8; 6]) -> ::port::PortConfig {
    let local = (conf.name == br.name).then_some(mac);
    let mut config = ports::port_config(conf, local, s.dp.tx_threads());
    if !ports::takes_mtu(conf) {
        let iface = s.bridges.get(&br.name).and_then(|bridge| bridge.ifaces.get(&conf.name));
        let port = iface.and_then(|iface| s.dp.port(iface.dp_port?));
        config.mtu_request = port.map(|port| port.mtu());
    }
    // A dummy datapath has no devices: internal ports are inert, as in ovs-vswitchd.
    if local.is_some() || conf.kind == "internal" {
        let dummy = br.datapath_type == "dummy";
        config.kind = if dummy { "dummy-internal".into() } else { "internal".into() };
    }
    config
}

/// Applies a changed configuration to a live port; false: it must be reopened.
fn reconfigure(
    s: &mut State,
    dp_port: Option<flow::PortNo>,
    config: &::port::PortConfig,
    conf: &IfaceConf,
) -> bool {
    s.police(conf, dp_port);
    let Some(no) = dp_port.filter(|_| !is_tunnel(&conf.kind)) else { return true };
    let _ = s.dp.set_affinity(no, ports::affinity(conf));
    let result = s.dp.port_mut(no).map(|p| p.reconfigure(config));
    s.dp.refresh(no);
    match result {
        Some(Ok(live)) => live,
        Some(Err(e)) => {
            vlog::warn!(MODULE, "{}: {e}", conf.name);
            false
        }
        None => false,
    }
}

/// Closes the port of an interface so that the next attempt opens it anew, under the same number.
fn reopen(s: &mut State, br: &BridgeConf, conf: &IfaceConf) {
    let Some(bridge) = s.bridges.get_mut(&br.name) else { return };
    let id = bridge.id;
    let Some(iface) = bridge.ifaces.get_mut(&conf.name) else { return };
    let (of_port, dp_port) = (iface.of_port.take(), iface.dp_port.take());
    if let Some(of_port) = of_port {
        let _ = s.ofproto.remove_port(id, of_port);
    }
    s.flush_changes();
    s.close_ports(dp_port);
}

/// Opens the port, gives it numbers on both sides.
fn attach(
    s: &mut State,
    br: &BridgeConf,
    port: &PortConf,
    conf: &IfaceConf,
) -> Result<(OfPort, Option<flow::PortNo>), String> {
    let bridge = s.bridges.get(&br.name).ok_or("no bridge")?;
    let (id, mac, is_dummy) = (bridge.id, bridge.mac, bridge.is_dummy());
    if let Some(other) = holder(s, br, &conf.name) {
        return Err(format!(
            "could not add network device {} to ofproto (it is in bridge {other})",
            conf.name
        ));
    }
    let (of_port, next_port) = of_number(bridge, br, conf)?;
    let dp_port = if conf.kind == "patch" {
        if !conf.options.contains_key("peer") {
            return Err(format!("{}: patch type requires valid 'peer' argument", conf.name));
        }
        None
    } else if is_tunnel(&conf.kind) {
        Some(tunnels::attach(s, conf)?)
    } else {
        let config = port_conf(s, br, conf, mac);
        s.closing.wait_for(&conf.kind, &conf.name);
        let mut opened = ports::open(&s.devices, &config).map_err(|e| e.to_string())?;
        // A TAP keeps its addresses over a crash or restart of the daemon.
        let _ = opened.set_persistent(true);
        let affinity = ports::affinity(conf);
        let added = match is_dummy.then(|| dummy_number(s, &conf.name)).flatten() {
            Some(no) => s.dp.add_port_at(no, opened, affinity),
            None => s.dp.add_port(opened, affinity),
        };
        Some(added.map_err(|e| e.to_string())?)
    };
    s.police(conf, dp_port);
    if let Some(no) = dp_port {
        crate::qos::apply(s, conf, no);
    }
    let spec = port_spec(s, (br, port), conf, of_port, dp_port);
    if let Err(e) = s.ofproto.add_port(id, spec) {
        if let Some(no) = dp_port {
            s.close_ports([no]);
        }
        return Err(e.to_string());
    }
    if let Some(bridge) = s.bridges.get_mut(&br.name) {
        bridge.next_port = next_port;
    }
    Ok((of_port, dp_port))
}

/// The datapath number that ovs-vswitchd gives a port of this name in a dummy datapath: the first
/// number in the name, counted from 100 if the name begins with "br", or the lowest free one if
/// there is none or it is in use; never 0, which is the datapath's own port there.
pub(crate) fn dummy_number(s: &State, name: &str) -> Option<flow::PortNo> {
    let mut numbers = number_in(name).into_iter().chain(1..flow::BOND_NO_MIN);
    numbers.find(|no| !s.dp.has_port(*no))
}

fn number_in(name: &str) -> Option<flow::PortNo> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let first = if name.starts_with("br") { 100 } else { 0 };
    let no = digits[..end].parse::<flow::PortNo>().ok()?.checked_add(first)?;
    (1..flow::BOND_NO_MIN).contains(&no).then_some(no)
}

/// The other bridge in which an interface of this name works already.
fn holder(s: &State, br: &BridgeConf, iface: &str) -> Option<String> {
    let others = s.bridges.iter().filter(|(n, _)| **n != br.name);
    others
        .filter(|(_, b)| b.ifaces.get(iface).is_some_and(Iface::works))
        .map(|(n, _)| n.clone())
        .next()
}

/// LOCAL, the requested number, the one that the interface had before, or the next free one; and
/// where to look for a free one next time.
fn of_number(
    bridge: &Bridge,
    br: &BridgeConf,
    conf: &IfaceConf,
) -> Result<(OfPort, OfPort), String> {
    if conf.name == br.name {
        return Ok((of_port::LOCAL, bridge.next_port));
    }
    let valid = |n: &OfPort| OF_PORTS.contains(n);
    let used = numbers(bridge.ifaces.values().filter_map(|i| i.of_port).filter(valid));
    let requested = |i: &IfaceConf| i.ofport_request.map(OfPort::from).filter(valid);
    let last = |i: &IfaceConf| {
        let known = bridge.ifaces.get(&i.name).and_then(|i| i.last_port);
        known.or(i.last_ofport.0.map(OfPort::from)).filter(valid)
    };
    // Numbers that others ask for or had are theirs even before they are there.
    let others = || br.interfaces().filter(|i| i.name != conf.name);
    let asked = numbers(others().filter_map(requested));
    let open = |n: &OfPort| !used[*n as usize] && !asked[*n as usize];
    let wish = requested(conf).filter(|n| !used[*n as usize]);
    let mut free = (bridge.next_port..0xff00).chain(1..bridge.next_port).filter(open);
    if let Some(n) = wish.or_else(|| last(conf).filter(open)) {
        return Ok((n, bridge.next_port));
    }
    let had = numbers(others().filter_map(last));
    let found = free.clone().find(|n| !had[*n as usize]).or_else(|| free.next());
    let n = found.ok_or("no free OpenFlow port number")?;
    Ok((n, n % 0xfeff + 1))
}

/// Which OpenFlow port numbers are among these.
fn numbers(all: impl Iterator<Item = OfPort>) -> Vec<bool> {
    let mut found = vec![false; 0xff00];
    all.for_each(|n| found[n as usize] = true);
    found
}

fn port_spec(
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
        describe(&mut spec, p);
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
pub fn describe(spec: &mut PortSpec, port: &mut dyn ::port::Port) {
    let link = port.link();
    spec.hw_addr = port.mac();
    spec.config = if link.admin_up { 0 } else { openflow::port_config::PORT_DOWN };
    spec.state = if link.up { openflow::port_state::LIVE } else { openflow::port_state::LINK_DOWN };
    spec.speeds[0] = link.mbps.saturating_mul(1000);
    let duplex = usize::from(link.full_duplex == Some(true));
    spec.curr = match link.mbps {
        10 => 1 << duplex,
        100 => 4 << duplex,
        1000 => 16 << duplex,
        10_000 => 64,
        40_000 => 128,
        100_000 => 256,
        1_000_000 => 512,
        0 => 0,
        _ => 1024,
    };
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

fn mac_to_dpid(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}
