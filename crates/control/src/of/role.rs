//! Controller roles (OpenFlow 1.3 section 6.3.6): one primary, generation ids that only grow.

use super::ConnId;
use crate::state::State;
use openflow::{OfError, Reply, Role, Version};

/// `OFPCRR_MASTER_REQUEST`: another controller became primary.
const PRIMARY_REQUEST: u8 = 0;

/// A role request.
pub fn set(
    s: &mut State,
    id: ConnId,
    role: Role,
    generation: Option<u64>,
) -> Result<Reply, OfError> {
    let name = s.conns.get(&id).map(|c| c.bridge.clone()).unwrap_or_default();
    let known = s.bridges.get_mut(&name).ok_or(OfError::BadType)?;
    if let (Role::Primary | Role::Secondary, Some(g)) = (role, generation) {
        if known.generation.is_some_and(|old| (g.wrapping_sub(old) as i64) < 0) {
            return Err(OfError::RoleStale);
        }
        known.generation = Some(g);
    }
    let generation = known.generation.unwrap_or(u64::MAX);
    if role == Role::Primary {
        step_down(s, &name, id, generation);
    }
    s.status_dirty = true;
    let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
    if role != Role::NoChange {
        conn.role = role;
    }
    let reply = Reply::Role { role: conn.role, generation };
    if let Some(bridge) = s.bridge_id(id) {
        // A secondary may want other packet-ins.
        s.update_misses(bridge);
    }
    Ok(reply)
}

/// All other primaries become secondary, and get a role-status message if their version has one.
fn step_down(s: &mut State, bridge: &str, id: ConnId, generation: u64) {
    for (other, conn) in s.conns.iter_mut() {
        if *other == id || conn.bridge != bridge || conn.role != Role::Primary {
            continue;
        }
        conn.role = Role::Secondary;
        if conn.version().is_some_and(|v| v >= Version::V13) {
            let (role, reason) = (Role::Secondary, PRIMARY_REQUEST);
            conn.notify(&Reply::RoleStatus { role, reason, generation });
        }
    }
}
