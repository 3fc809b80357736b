//! `other_config:vhost-async-support`: PMD threads are given copy engines and give them back.

use crate::config::Desired;
use crate::engines::Device;
use crate::state::State;
use crate::vlog;

/// Applies `vhost-async-support`, which takes effect at once.
pub fn apply(s: &mut State, desired: &Desired) {
    let text = desired.other_config.get("vhost-async-support").map(String::as_str);
    let enabled = text == Some("true");
    if enabled == s.engines.enabled {
        return;
    }
    s.engines.enabled = enabled;
    s.engines.reported.clear();
    let word = if enabled { "enabled" } else { "disabled" };
    vlog::info!("netdev_dpdk", "Async support {word} for vhost-user-client.");
    if enabled {
        port::set_iteration_hooks(port::IterationHooks {
            begin: vhost_user::begin_iteration,
            end: vhost_user::end_iteration,
            stop: vhost_user::leave_seat,
        });
        vhost_user::use_engines();
    }
    tick(s);
}

/// Gives threads engines and takes them back. Called often: without engines it costs nothing.
pub fn tick(s: &mut State) {
    if !s.engines.enabled && !s.engines.devices.iter().flatten().any(Device::is_in_use) {
        return;
    }
    let numa = |core: usize| {
        let infos = s.dp.pmd_info();
        infos.iter().find(|p| p.worker == datapath::WorkerId::Pmd(core)).map_or(0, |p| p.numa)
    };
    let engines = &mut s.engines;
    for seat in vhost_user::seats() {
        engines.look(&seat, &numa);
        if seat.is_gone() && engines.device_of(seat.core).is_none() {
            engines.past = engines.past.plus(&seat.tally.read());
            vhost_user::forget_seat(&seat);
        }
    }
}
