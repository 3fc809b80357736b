//! The spanning trees of all bridges, as the control side keeps them.

use super::tree_conf::{self, Asked};
use super::tree_machine::Machine;
use crate::budget::Budget;
use crate::config::{BridgeConf, PortConf};
use ofproto::{BridgeId, Gate, PortSpec, TreePort, TreeState};
use openflow::OfPort;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A neighbour sends one BPDU a second by STP, and up to ten by RSTP. Twice as many are taken, one
/// each so many milliseconds, after so many at once.
const BPDU_MS: u64 = 50;
const BPDUS_BURST: u64 = 32;
/// Learned addresses of a bridge are forgotten so often at once, and then once a second
/// (`super::FLUSH_MS`).
const FLUSHES_BURST: u64 = 4;
/// Ports that what is heard may have a tree visit each millisecond, some hundredths of the control
/// thread's time, and how many at once: after more, what is heard waits.
const STEPS_MS: u64 = 1000;
const STEPS_BURST: u64 = 20_000;

/// The trees of all bridges.
#[derive(Default)]
pub struct Trees {
    /// Trees, by bridge.
    pub(super) all: BTreeMap<String, Tree>,
    /// Errors about settings that the log has, by bridge.
    pub(super) logged: BTreeMap<String, Vec<String>>,
    /// BPDUs that were not looked at, as their port had more than its share of them.
    pub refused_bpdus: u64,
}

/// A bridge's part of a tree.
pub(super) struct Tree {
    pub bridge: BridgeId,
    pub machine: Machine,
    /// Ports whose BPDUs wait to be taken in, in the order in which they came.
    heard: VecDeque<u16>,
    /// Visits that what was heard has caused, less those that time since then allows, and when
    /// that was reckoned, ms.
    owed: (u64, u64),
    /// Ports, by number in the tree.
    pub ports: BTreeMap<u16, TreePlace>,
    /// Numbers in the tree by OpenFlow port.
    places: BTreeMap<OfPort, u16>,
    /// Interfaces with `rstp-port-mcheck`.
    checked: BTreeSet<String>,
    /// Learned addresses are to be forgotten.
    pub flush: bool,
    /// How often learned addresses may be forgotten.
    pub flushes: Budget,
}

/// A port of the tree in the switch.
pub(super) struct TreePlace {
    pub iface: String,
    pub of_port: OfPort,
    /// As the switch half has it.
    pub state: stp::PortState,
    /// When it began, ms.
    pub since_ms: u64,
    /// Its last BPDU that was not taken in.
    heard: Option<Vec<u8>>,
    budget: Budget,
    gate: Gate,
}

impl TreePlace {
    pub fn tree_port(&self, rapid: bool) -> TreePort {
        TreePort { gate: self.gate.clone(), state: tree_state(self.state, rapid) }
    }
}

/// True if addresses are learned in this state.
pub(super) fn learns(state: stp::PortState) -> bool {
    matches!(state, stp::PortState::Learning | stp::PortState::Forwarding)
}

impl Trees {
    /// Sets what a tree says of an interface's port. One that will take part forwards nothing
    /// before the tree has said so.
    pub fn describe(&self, spec: &mut PortSpec, bridge: &BridgeConf, port: &PortConf) {
        let place = self.all.get(&bridge.name).and_then(|tree| {
            let place = tree.ports.values().find(|p| p.iface == spec.name)?;
            Some(place.tree_port(tree.machine.is_rapid()))
        });
        spec.tree = place.or_else(|| tree_conf::takes_part(bridge, port).then(closed));
    }

    /// True if some bridge has a tree.
    pub fn any(&self) -> bool {
        !self.all.is_empty()
    }
}

fn closed() -> TreePort {
    TreePort { state: TreeState::Blocking, ..TreePort::default() }
}

impl Tree {
    pub fn new(bridge: BridgeId, machine: Machine) -> Tree {
        let (heard, ports, places, checked) = Default::default();
        let (owed, flush, flushes) = ((0, 0), false, Budget::full(FLUSHES_BURST, 0));
        Tree { bridge, machine, heard, owed, ports, places, checked, flush, flushes }
    }

    /// Which number each interface has.
    pub fn numbers(&self) -> BTreeMap<String, u16> {
        self.ports.iter().map(|(number, port)| (port.iface.clone(), *number)).collect()
    }

    /// Takes over settings.
    pub fn configure(&mut self, asked: Asked, now: u64) {
        self.machine.configure(&asked, now);
        let ifaces: BTreeMap<u16, &str> =
            asked.ports.iter().map(|p| (p.number, p.iface.as_str())).collect();
        let stays =
            |number: &u16, port: &TreePlace| ifaces.get(number).is_some_and(|i| *i == port.iface);
        let gone = self.ports.extract_if(.., |number, port| !stays(number, port));
        gone.for_each(|(number, _)| self.machine.remove_port(number, now));
        for port in &asked.ports {
            // The setting is a command: it holds when it is set.
            let checks = port.checks && !self.checked.contains(&port.iface);
            self.machine.set_port(port, checks, now);
            let place = self.ports.entry(port.number).or_insert_with(|| TreePlace {
                iface: port.iface.clone(),
                of_port: port.of_port,
                state: stp::PortState::Disabled,
                since_ms: now,
                heard: None,
                budget: Budget::full(BPDUS_BURST, now),
                gate: Gate::default(),
            });
            place.of_port = port.of_port;
        }
        self.places = self.ports.iter().map(|(number, port)| (port.of_port, *number)).collect();
        let checked = asked.ports.into_iter().filter(|p| p.checks).map(|p| p.iface);
        self.checked = checked.collect();
    }

    /// The number in the tree of an OpenFlow port.
    pub fn number_of(&self, of_port: OfPort) -> Option<u16> {
        self.places.get(&of_port).copied()
    }

    /// Takes a BPDU from a port's budget; false: the budget is used up, and the BPDU is refused.
    pub fn admits(&mut self, number: u16, now: u64) -> bool {
        let Some(port) = self.ports.get_mut(&number) else { return false };
        let admitted = port.budget.has(now, BPDU_MS);
        port.budget.spend();
        port.gate.set(admitted);
        admitted
    }

    /// A BPDU of a port waits to be taken in, in place of one that does already.
    pub fn hear(&mut self, number: u16, frame: Vec<u8>) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        if port.heard.replace(frame).is_none() {
            self.heard.push_back(number);
        }
    }

    /// True if something waits that may be taken in now.
    pub fn hears(&mut self, now: u64) -> bool {
        let (steps, since) = self.owed;
        self.owed = (steps.saturating_sub(now.saturating_sub(since).saturating_mul(STEPS_MS)), now);
        !self.heard.is_empty() && self.owed.0 <= STEPS_BURST
    }

    /// Takes in what was heard, if it is time for that, and lets time pass; what the log says of
    /// it. All that is heard together causes one turn of RSTP's state machines. What it costs, this
    /// tree's BPDUs pay for with time, so others' work does not wait for many bridges and ports.
    pub fn run(&mut self, now: u64) -> Vec<String> {
        let (before, mut errors) = (self.machine.steps(), Vec::new());
        let hears = self.hears(now);
        while hears && self.machine.steps() - before <= STEPS_BURST {
            let Some(number) = self.heard.pop_front() else { break };
            let heard = self.ports.get_mut(&number).and_then(|port| port.heard.take());
            let Some(frame) = heard else { continue };
            errors.extend(self.machine.receive(number, &frame, now).err());
        }
        self.machine.run(now);
        if hears {
            self.owed.0 += self.machine.steps() - before;
        }
        errors
    }

    /// Has BPDUs handed over again where there is a budget for them.
    pub fn open_gates(&mut self, now: u64) {
        for port in self.ports.values_mut() {
            port.gate.set(port.budget.has(now, BPDU_MS));
        }
    }
}

/// The state of a port in the switch half's words. What discards by RSTP is listening in port
/// descriptions, and sends BPDUs.
fn tree_state(state: stp::PortState, rapid: bool) -> TreeState {
    match state {
        stp::PortState::Disabled => TreeState::Disabled,
        stp::PortState::Blocking if rapid => TreeState::Listening,
        stp::PortState::Blocking => TreeState::Blocking,
        stp::PortState::Listening => TreeState::Listening,
        stp::PortState::Learning => TreeState::Learning,
        stp::PortState::Forwarding => TreeState::Forwarding,
    }
}

#[cfg(test)]
#[path = "bridge_trees_tests.rs"]
mod tests;
