//! `bonds`: by port, which of its interfaces carry packets, and what LACP says.

use crate::state::State;
use serde_json::{Map, Value, json};

/// Ports of several interfaces, and those that speak LACP.
pub fn bonds(s: &mut State) -> Value {
    let of_bridge = |id| s.bridges.iter().find(|(_, b)| b.id == id).map(|(name, _)| name.clone());
    let one = |(name, bridge, bond, lacp): crate::bonds::all::Parts<'_>| {
        let members = bond.iter().flat_map(|bond| bond.member_states()).map(|(name, m)| {
            let lacp = lacp.map(|lacp| lacp.is_current(name));
            let value = json!({
                "enabled": m.enabled,
                "active": m.active,
                "up": m.up,
                "buckets": m.buckets,
                "recent_bytes": m.bytes,
                "lacp_current": lacp,
            });
            (name.to_string(), value)
        });
        let value = json!({
            "bridge": of_bridge(bridge),
            "mode": bond.map(|bond| bond.conf().mode.text()),
            "lacp_negotiated": lacp.map(|lacp| lacp.is_negotiated()),
            "members": members.collect::<Map<_, _>>(),
        });
        (name.to_string(), value)
    };
    Value::Object(s.bonds.parts().map(one).collect())
}
