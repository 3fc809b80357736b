//! Timeout policies of connection tracking's zones: tables Datapath, CT_Zone and CT_Timeout_Policy.

use super::rows::{rows, str_uuid_map};
use conntrack::{CLASS_NAMES, CLASSES};
use ovsdb::{Atom, Datum, Replica, Row};
use std::collections::BTreeMap;

/// Seconds per class of connections; None: the default.
pub type Timeouts = [Option<u32>; CLASSES];

/// The policies of zones that have one. There is one datapath: what rows of several datapath types
/// say of a zone, `netdev` decides.
pub(super) fn read(db: &Replica, root: &Row) -> BTreeMap<u16, Timeouts> {
    let mut datapaths: Vec<_> = str_uuid_map(root, "datapaths").into_iter().collect();
    datapaths.sort_by_key(|(name, _)| name == "netdev");
    let mut zones = BTreeMap::new();
    for row in datapaths.iter().filter_map(|(_, uuid)| db.row("Datapath", *uuid)) {
        for (zone, uuid) in row.int_uuid_map("ct_zones") {
            let Some(zone_row) = db.row("CT_Zone", uuid) else { continue };
            let policy = rows(db, "CT_Timeout_Policy", zone_row, "timeout_policy").next();
            if let (Ok(zone), Some((_, policy))) = (u16::try_from(zone), policy) {
                zones.insert(zone, timeouts(policy));
            }
        }
    }
    zones
}

fn timeouts(row: &Row) -> Timeouts {
    let Some(Datum::Map(pairs)) = row.get("timeouts") else { return [None; CLASSES] };
    let seconds = |name: &str| {
        let pair = pairs.iter().find(|(key, _)| matches!(key, Atom::String(s) if s == name))?;
        match &pair.1 {
            Atom::Integer(n) => Some((*n).clamp(0, u32::MAX.into()) as u32),
            _ => None,
        }
    };
    CLASS_NAMES.map(seconds)
}
