//! Links that go up and down: netlink says so of the kernel's, the others are looked at once per
//! second.

use crate::ports::Iface;
use crate::state::{Shared, State};
use crate::vlog;
use ::port::{LinkEvent, LinkWatch};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
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
        Some(names) => look_at(s, |name, _| names.contains(name)),
        None => look(s),
    }
    s.flush_changes();
}

/// Looks at the links of guests when some came or went; a look at one makes no system call, so a
/// front-end that comes and goes costs others nothing.
pub fn look_at_guests(s: &mut State) {
    let now = s.now_ms();
    if is_due(&mut s.recent.guests_ms, now, &s.recent.guests_changed) {
        look_at(s, |_, iface| has_guest(&iface.conf.kind));
        s.status_dirty = true;
    }
}

/// Is a look to be taken for what has changed? Not sooner than [`LOOK_MS`] after the last one; what
/// changes in between waits for its time.
fn is_due(last_ms: &mut u64, now_ms: u64, changed: &AtomicBool) -> bool {
    let due = now_ms.saturating_sub(*last_ms) >= LOOK_MS && changed.swap(false, Ordering::AcqRel);
    if due {
        *last_ms = now_ms;
    }
    due
}

/// Are guests behind interfaces of this type?
fn has_guest(kind: &str) -> bool {
    ["dpdkvhostuser", "dpdkvhostuserclient"].contains(&kind)
}

fn register(watch: LinkWatch) -> std::io::Result<AsyncFd<LinkWatch>> {
    // SAFETY: the watch keeps one open descriptor, the same for ever.
    unsafe { AsyncFd::register_with_interest(watch, Interest::READABLE) }.map_err(Into::into)
}

/// Shows the switch half which links went up or down, and the packet side new queues.
pub fn look(s: &mut State) {
    look_at(s, |_, _| true);
}

/// As [`look`], at the interfaces that are `wanted` only.
fn look_at(s: &mut State, wanted: impl Fn(&str, &Iface) -> bool) {
    let now = s.now_ms();
    let (mut lost, mut touched) = (Vec::new(), BTreeSet::new());
    for (bridge_name, bridge) in &mut s.bridges {
        let ifaces = bridge.ifaces.iter_mut().filter(|(name, iface)| wanted(name, iface));
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
    crate::reconcile::lost(s, lost);
    if !touched.is_empty() {
        crate::bonds::turn(s);
        crate::trees::turn(s);
    }
    touched.iter().for_each(|bridge| crate::mtu::follow(s, bridge));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_come_and_go_all_the_time_cause_few_looks() {
        let (changed, mut last) = (AtomicBool::new(false), 0);
        // Ten seconds; a change in each millisecond of the first.
        let looks = (1000..11_000).filter(|now| {
            changed.fetch_or(*now < 2000, Ordering::Relaxed);
            is_due(&mut last, *now, &changed)
        });
        let looks: Vec<u64> = looks.collect();
        assert_eq!(looks.len() as u64, 1000 / LOOK_MS + 1);
        assert!(looks.last() >= Some(&1999), "the last change was not missed");
        assert!(has_guest("dpdkvhostuserclient") && !has_guest("system"));
    }
}
