//! In-band control: which controllers and managers a bridge lets through to its own port, whatever
//! its flows say, and what is known of the way to them.

use crate::config::Desired;
use crate::of::change::finished;
use crate::state::{Bridge, Remotes, Shared, State};
use crate::vlog;
use ::port::Snapshot;
use ofproto::InBand;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

const MODULE: &str = "in_band";
/// Ports where a target names none, as assigned to OpenFlow and OVSDB.
const OPENFLOW_PORT: u16 = 6653;
const OVSDB_PORT: u16 = 6640;

/// Makes all bridges let those controllers and managers through that the database names.
pub fn configure(s: &mut State, desired: &Desired) {
    let connects = !s.applied.restoring;
    let managers = desired.managers.iter().filter_map(|target| remote(target, OVSDB_PORT));
    // As in ovs-vswitchd: loopback is not behind a bridge.
    let managers: Vec<_> = managers.filter(|m| !m.ip().is_loopback()).collect();
    for conf in &desired.bridges {
        let Some(bridge) = s.bridges.get_mut(&conf.name) else { continue };
        let flag = |key: &str| conf.other_config.get(key).is_some_and(|v| v == "true");
        let number = |key: &str| conf.other_config.get(key).and_then(|v| v.parse::<i32>().ok());
        let controllers = conf.controllers.iter().filter(|c| connects && !c.out_of_band);
        let controllers = controllers.filter_map(|c| remote(&c.target, OPENFLOW_PORT));
        bridge.in_band.queue = number("in-band-queue").and_then(|n| u32::try_from(n).ok());
        bridge.in_band.all = match flag("disable-in-band") {
            true => BTreeSet::new(),
            false => controllers.chain(managers.iter().copied()).collect(),
        };
    }
    refresh(s);
}

/// Changes hidden flows as the kernel's routes and neighbours change, once no change of flows is
/// under way.
pub async fn follow(state: &Shared) {
    if state.borrow().bridges.values().any(|b| b.in_band.is_used()) {
        finished(state).await;
        refresh(&mut state.borrow_mut());
    }
}

/// Changes hidden flows as the addresses of LOCAL ports change, which a user may set.
pub fn follow_local(s: &mut State) {
    let moved = |b: &Bridge| b.in_band.is_used() && b.in_band.applied.local != local(s, b);
    if !s.ofproto.busy() && s.bridges.values().any(moved) {
        refresh(s);
    }
}

/// What the kernel knows of the way to a host.
enum Way {
    /// The kernel knows no way.
    Missing,
    /// The hardware address of the next hop, if that was asked for and answered.
    By(Option<[u8; 6]>),
}

/// Brings hidden flows up to date. Takes steps for each remote and each route and neighbour of the
/// kernel's.
fn refresh(s: &mut State) {
    let (ways, now) = (ways(s), s.now_ns());
    let used = s.bridges.iter().filter(|(_, b)| b.in_band.is_used());
    let all: Vec<_> =
        used.map(|(name, b)| (name.clone(), b.id, wanted(b, local(s, b), &ways))).collect();
    for (name, id, (flows, unreachable)) in all {
        let Some(in_band) = s.bridges.get_mut(&name).map(|b| &mut b.in_band) else { continue };
        for ip in unreachable.difference(&in_band.unreachable) {
            vlog::warn!(MODULE, "{name}: cannot find route for controller ({ip})");
        }
        in_band.unreachable = unreachable;
        if in_band.applied != flows {
            in_band.applied = flows.clone();
            if let Err(e) = s.ofproto.set_in_band(id, &flows, now) {
                vlog::err!(MODULE, "{name}: {e}");
            }
        }
    }
    s.flush_changes();
}

/// The ways to all remotes. A dummy has no routes, and loopback no hardware addresses.
fn ways(s: &State) -> BTreeMap<Ipv4Addr, Way> {
    let Some(kernel) = s.underlay.kernel.as_deref() else { return BTreeMap::new() };
    let bridges = s.bridges.values().filter(|b| !b.is_dummy());
    let hosts: BTreeSet<Ipv4Addr> =
        bridges.flat_map(|b| &b.in_band.all).map(|remote| *remote.ip()).collect();
    let way = |ip| match next_hop(kernel, ip) {
        Some((device, hop)) => Way::By(hardware_address(kernel, device, hop)),
        None => Way::Missing,
    };
    hosts.into_iter().filter(|ip| !ip.is_loopback()).map(|ip| (ip, way(ip))).collect()
}

/// What a bridge's hidden flows are to be made of, and the remotes to which there is no route.
fn wanted(
    bridge: &Bridge,
    local: Option<[u8; 6]>,
    ways: &BTreeMap<Ipv4Addr, Way>,
) -> (InBand, BTreeSet<Ipv4Addr>) {
    let Remotes { all, queue, .. } = &bridge.in_band;
    if all.is_empty() {
        return (InBand::default(), BTreeSet::new());
    }
    let (mut next_hops, mut unreachable) = (BTreeSet::new(), BTreeSet::new());
    for ip in all.iter().map(SocketAddrV4::ip) {
        match ways.get(ip) {
            Some(Way::Missing) => drop(unreachable.insert(*ip)),
            Some(Way::By(mac)) => next_hops.extend(*mac),
            None => {}
        }
    }
    (InBand { remotes: all.clone(), next_hops, local, queue: *queue }, unreachable)
}

/// The hardware address of a bridge's own port, once that is there.
fn local(s: &State, bridge: &Bridge) -> Option<[u8; 6]> {
    let iface = bridge.ifaces.get(&bridge.conf.name)?;
    s.dp.port(iface.dp_port?).map(|port| port.mac()).filter(|mac| *mac != [0; 6])
}

/// Where a controller or manager is that is connected to over IPv4; `port`: where the target names
/// none.
fn remote(target: &str, port: u16) -> Option<SocketAddrV4> {
    let place = target.strip_prefix("tcp:").or_else(|| target.strip_prefix("ssl:"))?;
    place.parse().ok().or_else(|| Some(SocketAddrV4::new(place.parse().ok()?, port)))
}

/// The device by which packets to a host leave, and where they go first.
fn next_hop(kernel: &Snapshot, ip: Ipv4Addr) -> Option<(&str, IpAddr)> {
    let leads = |prefix: &IpAddr, len: u8| match prefix {
        IpAddr::V4(prefix) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            (prefix.to_bits() ^ ip.to_bits()) & mask == 0
        }
        IpAddr::V6(_) => false,
    };
    let routes = kernel.routes.iter().filter(|r| !r.local && leads(&r.prefix, r.len));
    // Of several to one destination, the one that is used comes last.
    let best = routes.max_by_key(|r| r.len)?;
    Some((&best.device, best.gateway.unwrap_or(ip.into())))
}

fn hardware_address(kernel: &Snapshot, device: &str, ip: IpAddr) -> Option<[u8; 6]> {
    kernel.neighbours.iter().find(|n| n.ip == ip && n.device == device).map(|n| n.mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::port::{KernelNeighbour, KernelRoute};

    #[test]
    fn those_that_are_connected_to_by_ipv4_are_remotes() {
        let at = |text: &str| remote(text, OPENFLOW_PORT).map(|at| at.to_string());
        assert_eq!(at("tcp:192.0.2.1").as_deref(), Some("192.0.2.1:6653"));
        assert_eq!(at("ssl:192.0.2.1:7").as_deref(), Some("192.0.2.1:7"));
        for other in [
            "ptcp:6653",
            "pssl:6653",
            "unix:/x",
            "punix:/x",
            "tcp:[fd00::1]:1",
            "tcp:host:1",
            "tcp:",
        ] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn the_longest_prefix_says_where_packets_go_first() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let route = |prefix: &str, len, device: &str, gateway: Option<&str>| KernelRoute {
            prefix: ip(prefix),
            len,
            device: device.into(),
            gateway: gateway.map(ip),
            source: None,
            local: false,
            metric: 0,
        };
        let mut kernel = Snapshot {
            routes: vec![
                route("10.0.0.0", 24, "br0", None),
                route("10.1.0.0", 16, "br0", Some("10.0.0.9")),
                route("::", 0, "eth6", None),
            ],
            neighbours: vec![KernelNeighbour {
                device: "br0".into(),
                ip: ip("10.0.0.9"),
                mac: [2; 6],
                sure: false,
            }],
            ..Snapshot::default()
        };
        let hop = |kernel: &Snapshot, to: &str| {
            next_hop(kernel, to.parse().unwrap()).map(|(d, ip)| (d.to_string(), ip.to_string()))
        };
        let said = |device: &str, ip: &str| Some((device.to_string(), ip.to_string()));
        assert_eq!(hop(&kernel, "10.0.0.1"), said("br0", "10.0.0.1"));
        assert_eq!(hop(&kernel, "10.1.2.3"), said("br0", "10.0.0.9"));
        assert_eq!(hop(&kernel, "192.0.2.1"), None);
        kernel.routes.push(route("0.0.0.0", 0, "eth0", Some("10.9.9.9")));
        kernel.routes.push(route("0.0.0.0", 0, "eth1", Some("10.9.9.8")));
        assert_eq!(hop(&kernel, "192.0.2.1"), said("eth1", "10.9.9.8"), "the last of its like");
        assert_eq!(hardware_address(&kernel, "br0", ip("10.0.0.9")), Some([2; 6]));
        assert_eq!(hardware_address(&kernel, "eth0", ip("10.0.0.9")), None);
        kernel.routes.push(KernelRoute { local: true, ..route("10.0.0.2", 32, "br0", None) });
        assert_eq!(hop(&kernel, "10.0.0.2"), said("br0", "10.0.0.2"), "not a way out");
    }
}
