//! CFM of all interfaces.

use super::point::{MaintenancePoint, Status};
use crate::oam::wakeups::Wakeups;
use ofproto::{CfmFilter, Gate};
use ovsdb::Datum;
use std::collections::BTreeMap;

/// CFM of all interfaces.
#[derive(Default)]
pub struct Points {
    /// Points, by interface.
    pub(super) all: BTreeMap<String, PointEntry>,
    /// What is wrong with an interface's settings, as the log has it.
    pub(super) wrong: BTreeMap<String, Vec<String>>,
    /// When which is to be run.
    pub wakeups: Wakeups,
    /// How often sessions were run: for a message, or because it was time to.
    pub runs: u64,
    /// Messages that were not looked at, as their interface had more than its share of them.
    pub unheard: u64,
}

/// An interface's CFM.
pub(super) struct PointEntry {
    pub point: MaintenancePoint,
    /// Whether its messages are handed over to the control side.
    pub gate: Gate,
    /// As the switch half and the database have it.
    pub published: Status,
}

impl Points {
    /// The packets that the port is to take for it.
    pub fn filter(&self, iface: &str) -> Option<CfmFilter> {
        self.all.get(iface).map(|e| e.point.conf().filter(&e.gate))
    }

    /// True if packets get through. None: the interface has no CFM.
    pub fn forwards(&self, iface: &str) -> Option<bool> {
        self.all.get(iface).map(|e| !e.published.is_faulty())
    }

    /// Columns of the interface's row; empty ones without CFM.
    pub fn columns(&self, iface: &str) -> Vec<(&'static str, Datum)> {
        let is = self.all.get(iface).map(|e| &e.published);
        let state = is.and_then(|s| s.remote_up).map(|up| if up { "up" } else { "down" });
        let number = |n: u64| n as i64;
        vec![
            ("cfm_fault", Datum::optional(is.map(|s| !s.faults.names().is_empty()))),
            ("cfm_fault_status", Datum::set(is.map(|s| s.faults.names()).unwrap_or_default())),
            ("cfm_flap_count", Datum::optional(is.map(|s| number(s.flaps)))),
            ("cfm_health", Datum::optional(is.and_then(|s| s.health).map(i64::from))),
            (
                "cfm_remote_mpids",
                Datum::set(is.into_iter().flat_map(|s| &s.remotes).map(|n| number(*n))),
            ),
            ("cfm_remote_opstate", Datum::optional(state)),
        ]
    }

    /// What `cfm/show` prints, by interface.
    pub fn show(&self, now: u64) -> impl Iterator<Item = (&str, String)> {
        self.all.iter().map(move |(name, e)| {
            (name.as_str(), format!("---- {name} ----\n{}", e.point.show(now)))
        })
    }

    /// Keeps what is wrong with an interface's settings; false: the same was wrong before.
    pub(super) fn keep_wrong(&mut self, iface: &str, wrong: &[String]) -> bool {
        let known = match wrong {
            [] => self.wrong.remove(iface),
            wrong => self.wrong.insert(iface.into(), wrong.to_vec()),
        };
        known.unwrap_or_default() != wrong
    }

    pub(super) fn add(&mut self, iface: &str, point: MaintenancePoint) {
        let published = point.status();
        let entry = PointEntry { point, gate: Gate::default(), published };
        self.all.insert(iface.into(), entry);
    }

    pub(super) fn remove(&mut self, iface: &str) {
        self.all.remove(iface);
        self.wakeups.remove(iface);
    }
}
