//! Links that go up and down: netlink says so of the kernel's, the others are looked at once per
//! second.

use crate::state::{Shared, State};
use crate::vlog;
use ::port::{LinkEvent, LinkWatch};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Changes come in flocks: one look for all, not more often.
const LOOK_MS: u64 = 20;

/// After `LINK_CHANGES_BURST` (`ports.rs`) changes of an interface's link one is taken over in
/// this time; those in between are passed over. What the link is in the end, the look of each
/// second sees.
const LINK_CHANGE_MS: u64 = 100;

/// Follows the kernel's links until the daemon ends.
pub async fn run(state: Shared) {
    let mut watch = match LinkWatch::new().and_then(register) {
        Ok(watch) => watch,
        Err(e) => return vlog::err!("netdev_linux", "the kernel's links cannot be followed: {e}"),
    };
    loop {
        if let Ok(mut ready) = watch.readable().await {
            ready.clear_ready();
        }
        follow(&mut state.borrow_mut(), &watch.get_mut().events());
        tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
    }
}

fn follow(s: &mut State, events: &[LinkEvent]) {
    let names = events.iter().map(|event| match event {
        LinkEvent::Changed(link) => Some(link.name.as_str()),
        LinkEvent::Gone { name, .. } => Some(name.as_str()),
        LinkEvent::Lost => None,
    });
    match names.collect::<Option<BTreeSet<_>>>() {
        Some(names) => look_at(s, |name| names.contains(name)),
        None => look(s),
    }
    s.flush_changes();
}

/// Looks at the links of guests that came or went.
pub fn look_at_guests(s: &mut State) {
    let now = s.now_ms();
    if now.saturating_sub(s.recent.guests_ms) >= LOOK_MS
        && s.guests_changed.swap(false, Ordering::AcqRel)
    {
        s.recent.guests_ms = now;
        look_at(s, |_| true);
        s.status_dirty = true;
    }
}

fn register(watch: LinkWatch) -> std::io::Result<AsyncFd<LinkWatch>> {
    // SAFETY: the watch keeps one open descriptor, the same for ever.
    unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }.map_err(Into::into)
}

/// Shows the switch half which links went up or down, and the packet side new queues.
pub fn look(s: &mut State) {
    look_at(s, |_| true);
}

/// As [`look`], at the interfaces whose names are `wanted` only.
fn look_at(s: &mut State, wanted: impl Fn(&str) -> bool) {
    let now = s.now_ms();
    let (mut lost, mut touched) = (Vec::new(), BTreeSet::new());
    for (bridge_name, bridge) in &mut s.bridges {
        let ifaces = bridge.ifaces.iter_mut().filter(|(name, _)| wanted(name));
        for (name, iface) in ifaces.filter(|(_, i)| !i.is_virtual()) {
            let (Some(of_port), Some(no)) = (iface.of_port, iface.dp_port) else { continue };
            let Some(port) = s.dp.port_mut(no) else { continue };
            touched.insert(bridge_name.clone());
            if let Err(e) = port.health() {
                lost.push((bridge_name.clone(), name.clone(), e.to_string()));
                continue;
            }
            if let Some(complaint) = port.complaint() {
                vlog::warn!("netdev", "{name}: {complaint}");
            }
            let Some(old) = s.ofproto.port(bridge.id, of_port) else { continue };
            let mut spec = old.clone();
            crate::reconcile::describe(&mut spec, port);
            s.dp.refresh(no);
            // What a controller configured stays; only the device's own state is taken over.
            spec.config |= old.config & !openflow::port_config::PORT_DOWN;
            if spec != *old && iface.link_changes.has(now, LINK_CHANGE_MS) {
                iface.link_changes.spend();
                let _ = s.ofproto.update_port(bridge.id, spec);
                s.status_dirty = true;
            }
        }
    }
    for (bridge, name, error) in lost {
        crate::reconcile::lost(s, &bridge, &name, error);
    }
    if !touched.is_empty() {
        crate::bonds::turn(s);
    }
    touched.iter().for_each(|bridge| crate::mtu::follow(s, bridge));
}
