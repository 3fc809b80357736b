//! LLDP of all interfaces, and what `autoattach/...` prints of it.

use super::Trunks;
use super::agent::Agent;
use crate::oam::wakeups::Wakeups;
use ofproto::Gate;
use std::collections::BTreeMap;

/// LLDP of all interfaces.
#[derive(Default)]
pub struct Agents {
    /// Agents, by interface.
    pub(super) all: BTreeMap<String, Agent>,
    /// When which is to be run.
    pub wakeups: Wakeups,
    /// VLANs that ports are to carry for Auto Attach.
    pub trunks: Trunks,
    /// How many mappings of an interface had no room, as the log says.
    left_out: BTreeMap<String, usize>,
    /// How often agents were run because it was time to.
    pub runs: u64,
    /// Data units that were not looked at, as their interface had more than its share of them.
    pub unheard: u64,
}

impl Agents {
    /// The gate of the data units that the port is to take.
    pub fn filter(&self, iface: &str) -> Option<Gate> {
        self.all.get(iface).map(|agent| agent.gate().clone())
    }

    /// True if the log does not have this number yet.
    pub(super) fn says_left_out(&mut self, iface: &str, mappings: usize) -> bool {
        self.left_out.insert(iface.into(), mappings) != Some(mappings)
    }

    pub(super) fn remove(&mut self, iface: &str) {
        self.all.remove(iface);
        self.left_out.remove(iface);
        self.wakeups.remove(iface);
    }

    /// What `autoattach/status` prints.
    pub fn show_status(&self) -> String {
        self.each(|name, agent| format!("LLDP: {name}\n{}", agent.show_servers()))
    }

    /// What `autoattach/show-isid` prints.
    pub fn show_isids(&self) -> String {
        self.each(|name, agent| format!("LLDP: {name}\n{}", agent.show_isids()))
    }

    /// What `autoattach/statistics` prints.
    pub fn show_statistics(&self) -> String {
        self.each(|name, agent| format!("Statistics: {name}\n{}", agent.show_statistics()))
    }

    fn each(&self, one: impl Fn(&str, &Agent) -> String) -> String {
        self.all.iter().map(|(name, agent)| one(name, agent)).collect()
    }
}
