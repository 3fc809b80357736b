//! Internal and tap ports have the smallest MTU of their bridge's other ports, as in OVS, unless
//! `mtu_request` says otherwise. It is set when that smallest MTU changes, so what a user sets in
//! between stays until then.

use crate::ports::{self, Iface};
use crate::state::State;
use crate::vlog;

/// The smallest MTU of a bridge without ports (Ethernet's).
const MTU_DEFAULT: u16 = 1500;

/// True if the interface's MTU follows that of others.
fn follows(iface: &Iface) -> bool {
    ["internal", "tap"].contains(&iface.conf.kind.as_str())
}

/// Brings the MTUs of a bridge's ports up to date.
pub fn follow(s: &mut State, bridge: &str) {
    let Some(bridge) = s.bridges.get_mut(bridge) else { return };
    let mtu_of = |iface: &Iface, s: &mut datapath::Datapath| {
        let port = iface.dp_port.filter(|_| !iface.is_virtual() && !follows(iface));
        Some(s.port_mut(port?)?.mtu())
    };
    let others: Vec<u16> =
        bridge.ifaces.values().filter_map(|iface| mtu_of(iface, &mut s.dp)).collect();
    let least = others.into_iter().min().unwrap_or(MTU_DEFAULT);
    let local = (bridge.conf.name.clone(), bridge.mac);
    for (name, iface) in bridge.ifaces.iter_mut().filter(|(_, iface)| follows(iface)) {
        let Some(no) = iface.dp_port else { continue };
        if iface.conf.mtu_request.is_some() {
            iface.mtu_given = None;
            continue;
        }
        if iface.mtu_given.replace(least) == Some(least) {
            continue;
        }
        let Some(port) = s.dp.port_mut(no).filter(|port| port.mtu() != least) else { continue };
        let mac = (*name == local.0).then_some(local.1);
        let mut config = ports::port_config(&iface.conf, mac, 1);
        (config.kind, config.mtu_request) = (port.kind().to_owned(), Some(least));
        let which = ((local.0.clone(), name.clone()), no);
        if let Err(e) = s.pending.devices.configure_port(&mut s.dp, which, config) {
            vlog::warn!("bridge", "{e}");
        }
        s.status_dirty = true;
    }
}
