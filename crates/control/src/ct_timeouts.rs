//! Timeout policies on their way from the database to connections.

use crate::config::Desired;
use crate::state::State;
use crate::vlog;
use conntrack::{CLASSES, POLICIES_COUNT_MAX};
use std::collections::BTreeMap;

/// Applies what the database says of zones.
pub fn apply(s: &mut State, desired: &Desired) {
    if s.ct.timeouts == desired.zone_timeouts {
        return;
    }
    s.ct.timeouts.clone_from(&desired.zone_timeouts);
    let policies = &s.dp.conntrack().policies;
    let numbers = &mut s.ct.policies;
    for gone in numbers.retain(&desired.zone_timeouts) {
        policies.set(gone, &[None; CLASSES]);
    }
    let mut zones = BTreeMap::new();
    for (zone, policy) in &desired.zone_timeouts {
        let Some((number, is_new)) = numbers.of(policy) else {
            vlog::warn!(
                "conntrack",
                "zone {zone} has default timeouts: there are {POLICIES_COUNT_MAX} other policies"
            );
            continue;
        };
        if is_new {
            policies.set(number, policy);
        }
        zones.insert(*zone, number);
    }
    s.ofproto.set_zone_timeouts(zones);
}
