//! Links that go up and down: the kernel's tell of it, the others are looked at once per second.

use crate::state::{Shared, State};
use crate::vlog;
use ::port::{LinkEvent, LinkWatch};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Changes come in flocks: one look for all.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

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
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn follow(s: &mut State, events: &[LinkEvent]) {
    if events.iter().any(|event| concerns(s, event)) {
        look(s);
        s.flush_changes();
    }
}

/// Is it about a port of ours, as far as one can know?
fn concerns(s: &State, event: &LinkEvent) -> bool {
    let ours = |name: &String| s.bridges.values().any(|b| b.ifaces.contains_key(name));
    match event {
        LinkEvent::Changed(link) => ours(&link.name),
        LinkEvent::Gone { name, .. } => ours(name),
        LinkEvent::Lost => true,
    }
}

fn register(watch: LinkWatch) -> std::io::Result<AsyncFd<LinkWatch>> {
    // SAFETY: the watch keeps one open descriptor, the same for ever.
    unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }.map_err(Into::into)
}

/// Tells the switch half about links that went up or down, and the packet side about new queues.
pub fn look(s: &mut State) {
    let mut lost = Vec::new();
    for (bridge_name, bridge) in &s.bridges {
        for (name, iface) in bridge.ifaces.iter().filter(|(_, i)| !i.is_virtual()) {
            let (Some(of_port), Some(no)) = (iface.of_port, iface.dp_port) else { continue };
            let Some(port) = s.dp.port_mut(no) else { continue };
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
            if spec != *old {
                let _ = s.ofproto.update_port(bridge.id, spec);
                s.status_dirty = true;
            }
        }
    }
    for (bridge, name, error) in lost {
        crate::reconcile::lost(s, &bridge, &name, error);
    }
    crate::bonds::turn(s);
    crate::mtu::follow_all(s);
}
