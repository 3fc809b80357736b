//! The network under the tunnels and around the switch: what the kernel knows of it goes to the
//! switch half, what the switch half wants to know goes out as ARP and Neighbour Discovery.

use crate::state::{Shared, State};
use crate::vlog;
use ::port::{KernelRoute, Snapshot, UnderlayWatch};
use ofproto::{Addresses, Route, source_for};
use openflow::{Action, Match, NO_BUFFER, PacketOut, port};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const MODULE: &str = "route_table";
/// Changes come in flocks: one look for all.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// After an error of the kernel's.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Follows the kernel until the daemon ends.
pub async fn run(state: Shared) {
    let register = |w| {
        // SAFETY: the watch keeps one open descriptor, the same for ever.
        unsafe { AsyncFd::register_with_interest(w, Interest::READABLE) }.map_err(Into::into)
    };
    let watch = UnderlayWatch::open().and_then(register);
    let mut watch = match watch {
        Ok(watch) => watch,
        Err(e) => return vlog::err!(MODULE, "the kernel's routes cannot be followed: {e}"),
    };
    loop {
        watch.get_mut().drain();
        match watch.get_mut().snapshot() {
            Ok(now) if state.borrow().underlay.kernel.as_deref() == Some(&now) => {}
            Ok(now) => {
                apply(&mut state.borrow_mut(), Rc::new(now));
                crate::in_band::follow(&state).await;
            }
            Err(e) => {
                vlog::warn!(MODULE, "asking for the kernel's routes: {e}");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
        if let Ok(mut ready) = watch.readable().await {
            ready.clear_ready();
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn apply(s: &mut State, new: Rc<Snapshot>) {
    let old = s.underlay.kernel.replace(new.clone());
    if !s.underlay.system_routes {
        return;
    }
    let same = |o: &Rc<Snapshot>| o.routes == new.routes && o.addresses == new.addresses;
    if !old.as_ref().is_some_and(same) {
        replace_routes(s, &new);
    }
    let now = s.now_ns();
    for n in &new.neighbours {
        let ours = s.bridges.values().any(|b| b.ifaces.contains_key(&n.device));
        let fresh = old.as_ref().is_none_or(|o| !o.neighbours.contains(n));
        if ours && fresh && !n.ip.is_multicast() {
            s.ofproto.kernel_neighbour(&n.device, n.ip, n.mac, n.sure, now);
        }
    }
    s.flush_changes();
}

fn replace_routes(s: &mut State, new: &Snapshot) {
    let routes = new.routes.iter().filter_map(|r| route(r, &new.addresses)).collect();
    let addresses = [&new.addresses[..], &s.underlay.dummy_addresses].concat();
    s.ofproto.change_routes(|t| t.replace_kernel(routes, addresses));
    s.status_dirty = true;
}

/// Reads the kernel's routes and addresses at once: what a command asks about may have changed a
/// moment ago, and the kernel's message about it may not have come yet.
pub fn read_now(s: &mut State) {
    if !s.underlay.system_routes {
        return;
    }
    match UnderlayWatch::open().and_then(|mut kernel| kernel.snapshot()) {
        Ok(now) => replace_routes(s, &now),
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
