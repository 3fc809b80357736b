//! Interfaces of bridges: opened, changed and closed as the database says.

use super::numbers::{Claims, database_number, dummy_number, of_number, renumbered};
use super::port_spec::port_spec;
use super::prepare::{Opened, Prepared, prepare};
use super::turn::give_turn;
use crate::config::{BridgeConf, IfaceConf, PortConf};
use crate::ports::{self, Iface};
use crate::state::{Shared, State};
use crate::tunnel_options::is_tunnel;
use crate::{tunnels, vlog};
use datapath::PortService;
use openflow::OfPort;
use std::collections::BTreeMap;
use std::time::Instant;

const MODULE: &str = "bridge";

/// Attempts to open a device of DPDK again after its adapter was reset, one a second: an adapter
/// takes its time.
const RESET_REOPENS_MAX: u8 = 10;

/// Looks for an interface whose kernel device was missing and is there now, or whose adapter was
/// reset. True if there is one: the configuration then has to be applied again. Other failures are
/// tried again when the configuration changes.
pub fn take_returned(state: &Shared) -> bool {
    let mut s = state.borrow_mut();
    let mut all = s.bridges.values_mut().flat_map(|b| b.ifaces.values_mut());
    all.any(|iface| came_back(iface, device_exists))
}

/// True if an interface that does not work is to be opened again; `exists`: whether there is a
/// kernel device of a name.
fn came_back(i: &mut Iface, exists: impl Fn(&str) -> bool) -> bool {
    !i.works()
        && match (i.conf.kind.as_str(), xdp_device(&i.conf)) {
            (_, Some(device)) => i.xdp_reopens > 0 && exists(device),
            ("system", _) => exists(&i.conf.name),
            ("dpdk", _) if i.reset_reopens > 0 => {
                i.reset_reopens -= 1;
                true
            }
            _ => false,
        }
}

/// The kernel device that DPDK's driver for AF_XDP opens for an interface, if it is that driver's.
fn xdp_device(conf: &IfaceConf) -> Option<&str> {
    match conf.kind.as_str() {
        "afxdp" => Some(&conf.name),
        "dpdk" => {
            let (driver, args) = conf.options.get("dpdk-devargs")?.split_once(',')?;
            let mut devices = args.split(',').filter_map(|arg| arg.strip_prefix("iface="));
            devices.next().filter(|_| driver.starts_with("net_af_xdp"))
        }
        _ => None,
    }
}

/// The error of an interface whose AF_XDP device could not be opened, or was lost, and was tried
/// often enough since its row changed: each attempt costs memory. Else this is one more attempt.
pub(super) fn given_up(iface: Option<&mut Iface>, conf: &IfaceConf) -> Option<String> {
    let device = xdp_device(conf)?;
    let iface = iface.filter(|i| i.conf == *conf)?;
    let error = iface.error.clone().filter(|_| device_exists(device))?;
    let is_spent = iface.xdp_reopens == 0;
    iface.xdp_reopens = iface.xdp_reopens.saturating_sub(1);
    is_spent.then_some(error)
}

/// True if there is a kernel device of this name in our network namespace, which /sys may not show.
fn device_exists(name: &str) -> bool {
    // SAFETY: the string is NUL-terminated and only read.
    std::ffi::CString::new(name).is_ok_and(|n| unsafe { libc::if_nametoindex(n.as_ptr()) } != 0)
}

/// Devices of interfaces (bridge, name, what is wrong) have vanished: their ports go, their errors
/// say why, [`take_returned`] sees them again.
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
        iface.reset_reopens = RESET_REOPENS_MAX;
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
pub(super) async fn remove_ifaces(
    state: &Shared,
    conf: &BridgeConf,
    leaving: &mut Vec<flow::PortNo>,
    turn: &mut Instant,
) {
    let (bridge_id, removed) = {
        let mut s = state.borrow_mut();
        let Some(bridge) = s.bridges.get_mut(&conf.name) else { return };
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
        let removed: Vec<Iface> = gone.iter().filter_map(|n| bridge.ifaces.remove(n)).collect();
        (bridge.id, removed)
    };
    for iface in &removed {
        if let Some(of_port) = iface.of_port {
            vlog::info!(
                MODULE,
                "bridge {}: deleted interface {} on port {}",
                conf.name,
                iface.conf.name,
                database_number(of_port)
            );
            let _ = state.borrow_mut().ofproto.remove_port(bridge_id, of_port);
            give_turn(state, turn).await;
        }
    }
    leaving.extend(removed.iter().filter_map(|iface| iface.dp_port));
}

/// True if the port can stay open under the new configuration, apart from what is applied while it
/// is open.
fn same_port(iface: &Iface, new: &IfaceConf) -> bool {
    let old = &iface.conf;
    let patch = new.kind == "patch" && new.options.get("peer").is_some_and(|p| *p != new.name);
    let same_options = patch || !iface.is_virtual() || old.options == new.options;
    let same_queues = ports::tx_by_hash(old) == ports::tx_by_hash(new);
    old.kind == new.kind && same_options && same_queues
}

/// Makes an interface be as the database says; others have their turn while a port of its name is
/// still being closed. `prepared`: what another thread did before, so that nothing waits for the
/// kernel here.
pub(super) async fn configure_iface(
    state: &Shared,
    (br, port): (&BridgeConf, &PortConf),
    conf: &IfaceConf,
    claims: &mut Claims,
    mut prepared: Prepared,
) -> Prepared {
    let has_port = || {
        let s = state.borrow();
        let iface = s.bridges.get(&br.name).and_then(|bridge| bridge.ifaces.get(&conf.name));
        iface.is_some_and(Iface::works)
    };
    for _ in 0..2 {
        if !has_port() {
            let closing = state.borrow().closing.clone();
            closing.gone(&conf.kind, &conf.name).await;
        }
        if configured(&mut state.borrow_mut(), (br, port), conf, (claims, &mut prepared)) {
            break;
        }
        prepared.add(prepare(state, br, &[(port, conf)]).await);
    }
    prepared
}

/// Configures an interface; false: its port was closed, and the next call opens it anew.
fn configured(
    s: &mut State,
    (br, port): (&BridgeConf, &PortConf),
    conf: &IfaceConf,
    given: (&mut Claims, &mut Prepared),
) -> bool {
    let now = s.now_ms();
    crate::oam::configure(s, conf);
    let Some(bridge) = s.bridges.get_mut(&br.name) else { return true };
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
    (iface.conf, iface.is_changing) = (conf.clone(), false);
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
            return false;
        }
        if let Some(no) = dp_port {
            crate::qos::apply(s, conf, no);
        }
        let mut spec = port_spec(s, (br, port), conf, of_port, dp_port);
        // What a controller configured stays; that the port is down is the device's to say.
        let old = s.ofproto.port(id, of_port).map_or(0, |old| old.config);
        spec.config |= old & !openflow::port_config::PORT_DOWN;
        let _ = s.ofproto.update_port(id, spec);
        return true;
    }
    let result = attach(s, (br, port), conf, given);
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
                    match error.as_str() {
                        RESERVED => vlog::warn!(
                            MODULE,
                            "could not create interface {}, name is reserved",
                            conf.name
                        ),
                        _ => vlog::warn!(MODULE, "bridge {}: {error}", br.name),
                    }
                }
                iface.error = Some(error);
            }
        }
    }
    true
}

pub(super) fn port_conf(
    s: &State,
    br: &BridgeConf,
    conf: &IfaceConf,
    mac: [u8; 6],
) -> ::port::PortConfig {
    let local = (conf.name == br.name).then_some(mac);
    let mut config = ports::port_config(conf, local, s.dp.tx_threads());
    config.userspace_tso = s.devices.userspace_tso;
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
            // The device refuses an MTU or an address and goes on as it is, or it is gone, which
            // the next look at it finds out.
            vlog::warn!(MODULE, "{e}");
            true
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

/// The error of an interface whose name is reserved, of which the database hears nothing else, as
/// from ovs-vswitchd.
const RESERVED: &str = "";

/// Names that ovs-vswitchd keeps for devices of its own.
pub(super) fn is_reserved(name: &str) -> bool {
    let devices = ["erspan", "genev", "gre", "ip6erspan", "ip6gre", "lisp", "stt", "vxlan"];
    let is_device = |kind| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with("_sys"));
    devices.into_iter().any(is_device) || ["ovs-netdev", "ovs-system", "ovs-dummy"].contains(&name)
}

/// Opens the port, gives it numbers on both sides.
fn attach(
    s: &mut State,
    (br, port): (&BridgeConf, &PortConf),
    conf: &IfaceConf,
    (claims, prepared): (&mut Claims, &mut Prepared),
) -> Result<(OfPort, Option<flow::PortNo>), String> {
    if is_reserved(&conf.name) {
        return Err(RESERVED.into());
    }
    let bridge = s.bridges.get(&br.name).ok_or("no bridge")?;
    let (id, mac, is_dummy) = (bridge.id, bridge.mac, bridge.is_dummy());
    if let Some(other) = holder(s, br, &conf.name) {
        return Err(format!(
            "could not add network device {} to ofproto (it is in bridge {other})",
            conf.name
        ));
    }
    let is_used = |n| s.ofproto.port(id, n).is_some();
    let known = (&bridge.ifaces, bridge.next_port);
    let (of_port, next_port) = of_number(known, (br, conf), claims, is_used)?;
    let dp_port = if conf.kind == "patch" {
        match conf.options.get("peer") {
            Some(peer) if *peer != conf.name => None,
            Some(_) => return Err(format!("{}: patch peer must not be self", conf.name)),
            None => {
                return Err(format!("{}: patch type requires valid 'peer' argument", conf.name));
            }
        }
    } else if is_tunnel(&conf.kind) {
        Some(tunnels::attach(s, conf)?)
    } else {
        let Opened { port: opened, has_default_qdisc } = match prepared.take(&conf.name) {
            Some(opened) => opened?,
            None => open_now(s, br, conf, mac)?,
        };
        let tx_by_hash = ports::tx_by_hash(conf);
        let by_hash = tx_by_hash && opened.n_txq() > 1;
        let service = PortService { affinity: ports::affinity(conf), tx_by_hash };
        let added = match is_dummy.then(|| dummy_number(s, &conf.name)).flatten() {
            Some(no) => s.dp.add_port_at(no, opened, service),
            None => s.dp.add_port(opened, service),
        };
        if by_hash {
            vlog::info!(
                "dpif_netdev",
                "{}: Tx packet steering mode has been set to 'hash'.",
                conf.name
            );
        }
        let no = added.map_err(|e| e.to_string())?;
        if has_default_qdisc {
            s.applied.qos.entry(no).or_default().set_default();
        }
        Some(no)
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

/// Opens a port on this thread.
fn open_now(
    s: &mut State,
    br: &BridgeConf,
    conf: &IfaceConf,
    mac: [u8; 6],
) -> Result<Opened, String> {
    let config = port_conf(s, br, conf, mac);
    let mut port = ports::open(&s.devices, &config).map_err(|e| e.to_string())?;
    // A TAP keeps its addresses over a crash or restart of the daemon.
    let _ = port.set_persistent(true);
    Ok(Opened { port, has_default_qdisc: false })
}

/// The other bridge in which an interface of this name works already.
pub(super) fn holder(s: &State, br: &BridgeConf, iface: &str) -> Option<String> {
    let others = s.bridges.iter().filter(|(n, _)| **n != br.name);
    others
        .filter(|(_, b)| b.ifaces.get(iface).is_some_and(Iface::works))
        .map(|(n, _)| n.clone())
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost_port(devargs: &str) -> Iface {
        let options = [("dpdk-devargs".to_owned(), devargs.to_owned())].into();
        let kind = "dpdk".to_owned();
        let mut iface = Iface::new(IfaceConf { kind, options, ..IfaceConf::default() }, 0);
        iface.reset_reopens = RESET_REOPENS_MAX;
        iface
    }

    /// Looks, one a second, that have a lost port opened again.
    fn reopened(devargs: &str, exists: bool) -> usize {
        let mut iface = lost_port(devargs);
        (0..100).filter(|_| came_back(&mut iface, |name| name == "eth9" && exists)).count()
    }

    #[test]
    fn an_adapter_that_was_reset_is_opened_again_some_times() {
        assert_eq!(reopened("0000:01:00.0", false), usize::from(RESET_REOPENS_MAX));
        assert_eq!(reopened("net_tap0,iface=eth9", true), usize::from(RESET_REOPENS_MAX));
    }

    /// Its limit counts attempts, which [`given_up`] does.
    #[test]
    fn an_afxdp_device_of_type_dpdk_is_waited_for() {
        let devargs = "net_af_xdp_x,iface=eth9,queue_count=2";
        assert_eq!((reopened(devargs, false), reopened(devargs, true)), (0, 100));
        let mut iface = lost_port(devargs);
        iface.xdp_reopens = 0;
        assert!(!came_back(&mut iface, |_| true));
        let other = IfaceConf { name: "eth9".into(), kind: "afxdp".into(), ..Default::default() };
        assert_eq!((xdp_device(&iface.conf), xdp_device(&other)), (Some("eth9"), Some("eth9")));
        assert_eq!(xdp_device(&lost_port("net_af_xdp_x").conf), None, "no device is named");
    }
}
