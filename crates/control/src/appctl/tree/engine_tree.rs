//! `engines`: by name, the PMD thread that each copy engine serves and what it did for it.

use crate::engines::User;
use crate::state::State;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;

/// The engines that DPDK knows, once copies are left to them.
pub fn engines(s: &mut State) -> Value {
    let seats = vhost_user::seats();
    let one = |(name, numa, user): (&str, Option<usize>, User)| {
        let (state, core) = match user {
            User::Unused => ("free", None),
            User::Pmd(core) => ("working", Some(core)),
            User::Barred => ("given up", None),
        };
        let mut value = json!({"state": state, "numa": numa, "core": core});
        let seat = seats.iter().find(|seat| Some(seat.core) == core && !seat.is_gone());
        if let (Some(seat), Value::Object(value)) = (seat, &mut value) {
            let t = seat.tally.read();
            let counters = [
                ("doorbells", t.doorbells),
                ("copies", t.copies),
                ("completed", t.completed),
                ("failed", t.errors),
                ("redone", t.redone),
                ("bytes", t.engine_bytes),
                ("cpu_bytes", t.cpu_bytes),
                ("full", t.full),
                ("bursts_of_migrating_guests", t.logged),
                ("bursts_of_closing_rings", t.closing),
                ("bursts_of_unmapped_guests", t.unmapped),
                ("bursts_of_ports_whose_copies_failed", t.barred),
                ("in_flight_max", t.in_flight_max),
            ];
            let costs = [
                ("copy_cycles_to_guests", &seat.copy_cycles[0]),
                ("copy_cycles_from_guests", &seat.copy_cycles[1]),
                ("doorbell_cycles", &seat.doorbell_cycles),
            ];
            value.extend(costs.map(|(key, n)| (key.to_string(), json!(n.load(Ordering::Relaxed)))));
            value.extend(counters.map(|(key, n)| (key.to_string(), json!(n))));
        }
        (name.to_string(), value)
    };
    let devices: Map<_, _> = s.engines.devices().map(one).collect();
    json!({
        "enabled": s.engines.enabled(),
        "threshold_bytes": vhost_user::threshold(),
        "mapped_bytes": vhost_user::mapped_bytes(),
        "devices": devices,
    })
}
