//! The network under the tunnels and around the switch: what the kernel knows of it goes to the
//! switch half, what the switch half wants to know goes out as ARP and Neighbour Discovery.

use crate::state::{Shared, State};
use crate::vlog;
use ::port::{KernelNeighbour, KernelRoute, Snapshot, UnderlayMonitor};
use ofproto::{Addresses, KernelRoutes, Route, source_for};
use openflow::{Action, Match, NO_BUFFER, PacketOut, port};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const MODULE: &str = "route_table";
/// Changes come in flocks: one look for all. The more there is to look at, the rarer are looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const LOOK_INTERVAL_EACH: Duration = Duration::from_micros(5);
/// After an error of the kernel's.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Follows the kernel until the daemon ends.
pub async fn run(state: Shared) {
    let register = |w| {
        // SAFETY: the monitor keeps one open descriptor, the same for ever.
        unsafe { AsyncFd::register_with_interest(w, Interest::READABLE) }.map_err(Into::into)
    };
    let monitor = UnderlayMonitor::open().and_then(register);
    let mut monitor = match monitor {
        Ok(monitor) => monitor,
        Err(e) => return vlog::err!(MODULE, "the kernel's routes cannot be followed: {e}"),
    };
    loop {
        let is_empty = monitor.get_mut().drain();
        let old = state.borrow().underlay.kernel.clone();
        // On another thread: there may be very many, and the kernel's lock is waited for.
        let looked = tokio::task::spawn_blocking(move || look(old)).await;
        match looked.unwrap_or_else(|e| Err(std::io::Error::other(e))) {
            Ok(None) => {}
            Ok(Some(changes)) => {
                apply(&mut state.borrow_mut(), changes);
                crate::in_band::follow(&state).await;
            }
            Err(e) => {
                vlog::warn!(MODULE, "asking for the kernel's routes: {e}");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
        let known = state.borrow().underlay.kernel.as_ref().map_or(0, |now| now.len());
        tokio::time::sleep(look_interval(known)).await;
        if is_empty && let Ok(mut ready) = monitor.readable().await {
            ready.clear_ready();
        }
    }
}

/// How long no look is taken after one at so many objects.
fn look_interval(known: usize) -> Duration {
    LOOK_INTERVAL + LOOK_INTERVAL_EACH * u32::try_from(known).unwrap_or(u32::MAX)
}

/// What is not as it was at the look before.
struct Changes {
    now: Arc<Snapshot>,
    /// Routes as tunnels see them, if routes or addresses are not what they were.
    routes: Option<KernelRoutes>,
    /// Neighbours that are new or changed.
    neighbours: Vec<KernelNeighbour>,
}

/// Asks the kernel; None: all is as it was.
fn look(old: Option<Arc<Snapshot>>) -> std::io::Result<Option<Changes>> {
    let now = Snapshot::take()?;
    if old.as_deref() == Some(&now) {
        return Ok(None);
    }
    let same = |o: &Snapshot| o.routes == now.routes && o.addresses == now.addresses;
    let is_same = old.as_deref().is_some_and(same);
    let routes = (!is_same).then(|| routes(&now));
    let neighbours = now.neighbours_since(old.as_deref().unwrap_or(&Snapshot::default()));
    Ok(Some(Changes { now: Arc::new(now), routes, neighbours }))
}

fn apply(s: &mut State, changes: Changes) {
    let Changes { now: new, routes, neighbours } = changes;
    s.underlay.kernel = Some(new.clone());
    if !s.underlay.system_routes {
        return;
    }
    if let Some(routes) = routes {
        replace_routes(s, &new, routes);
    }
    let (now, mut devices) = (s.now_ns(), HashMap::new());
    for n in neighbours.iter().filter(|n| !n.ip.is_multicast()) {
        let bridges = &s.bridges;
        let is_ours = || bridges.values().any(|b| b.ifaces.contains_key(&n.device));
        if *devices.entry(&n.device).or_insert_with(is_ours) {
            s.ofproto.kernel_neighbour(&n.device, n.ip, n.mac, n.sure, now);
        }
    }
    s.flush_changes();
}

fn replace_routes(s: &mut State, new: &Snapshot, routes: KernelRoutes) {
    let addresses = [&new.addresses[..], &s.underlay.dummy_addresses].concat();
    s.ofproto.change_routes(|t| t.replace_kernel(routes, addresses));
    s.status_dirty = true;
}

/// The kernel's routes as tunnels see them.
fn routes(new: &Snapshot) -> KernelRoutes {
    new.routes.iter().filter_map(|r| route(r, &new.addresses)).collect()
}

/// Reads the kernel's routes and addresses at once: what a command asks about may have changed a
/// moment ago, and the kernel's message about it may not have come yet.
pub fn read_now(s: &mut State) {
    if !s.underlay.system_routes {
        return;
    }
    match Snapshot::take() {
        Ok(now) => replace_routes(s, &now, routes(&now)),
        Err(e) => vlog::warn!(MODULE, "asking for the kernel's routes: {e}"),
    }
    s.flush_changes();
}

/// A kernel's route as tunnels see it; None: there is no address to send from.
fn route(r: &KernelRoute, addresses: &Addresses) -> Option<Route> {
    let near = r.gateway.unwrap_or(r.prefix);
    let own = r.source.or_else(|| source_for(addresses, &r.device, near));
    Some(Route {
        prefix: r.prefix,
        len: r.len,
        device: r.device.clone(),
        gateway: r.gateway,
        source: own.or(r.local.then_some(r.prefix))?,
        mark: 0,
        local: r.local,
        user: false,
    })
}

/// Sends the switch half's questions for next hops through the tables of their bridges.
pub fn solicit(s: &mut State) {
    for q in s.ofproto.take_solicitations() {
        let mut matching = Match::default();
        matching.key.set_u32(flow::at::OF_IN_PORT, q.port);
        matching.mask.set_u32(flow::at::OF_IN_PORT, u32::MAX);
        let actions = vec![Action::output(port::TABLE)];
        let out = PacketOut { buffer_id: NO_BUFFER, matching, actions, data: q.frame };
        if let Err(e) = s.packet_out(q.bridge, &out) {
            vlog::warn!(MODULE, "asking for a next hop: {e:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_there_is_the_rarer_are_looks() {
        for known in [10, 10_000, 1_000_000] {
            let looks = 1.0 / look_interval(known).as_secs_f64();
            assert!(looks <= 50.0 && looks * known as f64 <= 200_000.0, "{known}: {looks}");
        }
    }
}
