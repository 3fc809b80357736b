//! Changes kernel devices. The thread that asks the kernel about devices does it, because the
//! kernel takes milliseconds for each change, and tenths of a second while others make devices.

use crate::device_changes::{DueChange, Name};
use crate::links;
use crate::state::{Shared, State};
use crate::vlog;
use ::port::Inquiry;
use flow::PortNo;
use std::time::Duration;

/// No device is changed for this long after some were taken up or down, which takes the kernel
/// long: links are looked at meanwhile.
const REST: Duration = Duration::from_millis(20);
/// How often a task that waits for changes looks whether they were made.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Makes changes until the daemon ends.
pub async fn run(state: Shared) {
    let wake = state.borrow().pending.devices.wake.clone();
    loop {
        let some = state.borrow_mut().pending.devices.take();
        if some.is_empty() {
            wake.notified().await;
            continue;
        }
        let inquiries = some.iter().filter_map(|one| inquiry(&mut state.borrow_mut(), one));
        let inquiries: Vec<_> = inquiries.collect();
        let (n, is_costly) = (some.len(), some.iter().any(|(_, c)| c.admin_up.is_some()));
        match links::answers(inquiries).await {
            Ok(answers) => take_over(&mut state.borrow_mut(), some, answers),
            Err(e) => vlog::warn!("netdev_linux", "changing devices: {e}"),
        }
        state.borrow_mut().pending.devices.were_made(n);
        if is_costly {
            tokio::time::sleep(REST).await;
        }
    }
}

/// Waits until the changes so far were made, and gives others their turn meanwhile.
pub async fn finished(state: &Shared) {
    let until = state.borrow().pending.devices.asked();
    while !state.borrow().pending.devices.is_made(until) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn inquiry(s: &mut State, (name, change): &(Name, DueChange)) -> Option<(PortNo, Inquiry)> {
    let no = number(s, name)?;
    let mut inquiry = s.dp.port_mut(no)?.inquiry()?;
    if let Some(config) = &change.config {
        inquiry = inquiry.after(config);
    }
    Some((
        no,
        match change.admin_up {
            Some(up) => inquiry.after_admin(up),
            None => inquiry,
        },
    ))
}

fn number(s: &State, (bridge, name): &Name) -> Option<PortNo> {
    s.bridges.get(bridge)?.ifaces.get(name)?.dp_port
}

/// Takes over what devices are now.
fn take_over(s: &mut State, some: Vec<(Name, DueChange)>, answers: links::Answers) {
    let names: Vec<Name> = some.iter().map(|(name, _)| name.clone()).collect();
    let numbers: Vec<PortNo> = answers.keys().copied().collect();
    links::take_over(s, &names, answers);
    for (name, change) in some {
        let Some(no) = number(s, &name).filter(|no| numbers.contains(no)) else { continue };
        let (Some(config), Some(port)) = (change.config, s.dp.port_mut(no)) else { continue };
        // It was made already; this says how that went.
        match port.reconfigure(&config) {
            Ok(_) => s.dp.refresh(no),
            Err(e) => vlog::warn!("bridge", "{e}"),
        }
        s.status_dirty = true;
    }
}
