//! RSTP (IEEE 802.1D-2004, clause 17), with STP to neighbours that speak nothing else.
//!
//! The standard's state machines run by turns until none has anything to do ([`Rstp::settle`]),
//! once for all that came since the last time ([`Rstp::run`]):
//! - what a bridge and its ports know, and what is asked of them: here
//! - BPDUs that come in, and what they say (17.22, 17.24, 17.25, 17.27): `receive`
//! - which port has which role (17.28): `roles`
//! - what a port does in its role (17.29, 17.30): `transitions`
//! - changes of the topology (17.31): `topology`
//! - BPDUs that are sent (17.26): `transmit`
//!
//! A timer is the time until which it runs, so nothing counts down.

mod receive;
mod roles;
mod topology;
mod transitions;
mod transmit;

use crate::bpdu::Rst;
use crate::{BridgeId, Output, PortState, TreeRole};
use std::collections::BTreeMap;

/// Ports of a bridge that speaks RSTP: a number has twelve bits, and 0 is none.
pub const RSTP_PORTS_MAX: u16 = 4095;
/// How often ports say what they know (table 17-1), ms.
const HELLO_MS: u64 = 2000;
/// How long a port waits before it changes its protocol again (table 17-1), ms.
const MIGRATE_MS: u64 = 3000;
/// Turns of all state machines that may follow from one event: some for each bridge, none without a
/// change. Generated networks need 12.
const ROUNDS_MAX: usize = 40;

/// The settings of a bridge. Times are taken as near as the standard allows (17.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RstpConf {
    /// Priority and address.
    pub id: BridgeId,
    /// When the root's word is too old, ms.
    pub max_age_ms: u64,
    /// How long a port listens, and how long it learns, where there is no quicker way, ms.
    pub forward_delay_ms: u64,
    /// BPDUs that a port may send at once; one more each second.
    pub hold_count: u32,
    /// STP only, whatever the neighbours speak.
    pub stp_only: bool,
}

/// Times of a tree, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub message_age: u64,
    pub max_age: u64,
    pub forward_delay: u64,
    pub hello: u64,
}

impl RstpConf {
    fn times(&self) -> Times {
        let max_age = self.max_age_ms.clamp(2 * (HELLO_MS + 1000), 40_000);
        let forward_delay = self.forward_delay_ms.clamp(max_age / 2 + 1000, 30_000);
        Times { message_age: 0, max_age, forward_delay, hello: HELLO_MS }
    }
}

/// The settings of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RstpPortConf {
    /// Priority: of two ports that are equal otherwise, the one with the lower number is better.
    /// Its upper four bits count.
    pub priority: u8,
    /// What a way by this port costs.
    pub path_cost: u32,
    /// No bridge is behind the port: it forwards at once.
    pub admin_edge: bool,
    /// The port finds out by itself that no bridge is behind it.
    pub auto_edge: bool,
    /// True if one bridge at most is behind the port.
    pub point_to_point: bool,
}

/// The way to the root that a network has (17.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Vector {
    pub root: BridgeId,
    pub cost: u32,
    pub bridge: BridgeId,
    pub port: u16,
}

/// Where what a port knows comes from (17.19.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InfoIs {
    Disabled,
    Aged,
    Mine,
    Received,
}

/// Which protocol a port speaks, and whether it may change that (17.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Migration {
    CheckingRstp,
    SelectingStp,
    Sensing,
}

/// What a port does about changes of the topology (17.31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    Inactive,
    Learning,
    Active,
}

/// Variables of the standard that are true or false (17.19).
#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    agree: bool,
    agreed: bool,
    disputed: bool,
    forward: bool,
    forwarding: bool,
    learn: bool,
    learning: bool,
    new_info: bool,
    oper_edge: bool,
    proposed: bool,
    proposing: bool,
    re_root: bool,
    reselect: bool,
    selected: bool,
    send_rstp: bool,
    sync: bool,
    synced: bool,
    update_info: bool,
}

/// What a port has received and has not acted on yet (the standard's `rcvd` variables).
#[derive(Clone, Copy, Debug, Default)]
struct Rcvd {
    rstp: bool,
    stp: bool,
    /// A change of the topology: in a BPDU, as a notification, as its acknowledgement, and from
    /// another port of the bridge.
    tc: bool,
    tcn: bool,
    tc_ack: bool,
    tc_prop: bool,
    /// The next BPDU acknowledges a notification.
    owes_tc_ack: bool,
}

/// Until when timers run (17.17), ms.
#[derive(Clone, Copy, Debug, Default)]
struct Until {
    edge_delay: u64,
    fd: u64,
    hello: u64,
    migrate: u64,
    rb: u64,
    info: u64,
    rr: u64,
    tc: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// BPDUs sent lately.
    tx_count: u32,
    sent: u64,
    received: u64,
    errors: u64,
}

/// A port of the tree.
#[derive(Clone, Debug)]
pub struct RstpPort {
    conf: RstpPortConf,
    /// Priority and number.
    id: u16,
    enabled: bool,
    /// When the link came up, ms.
    up_since: u64,
    info_is: InfoIs,
    migration: Migration,
    topology: Topology,
    role: TreeRole,
    selected_role: TreeRole,
    /// What the network behind the port knows from this bridge, or the other way round.
    priority: Vector,
    times: Times,
    /// What this bridge offers to it.
    designated_priority: Vector,
    designated_times: Times,
    is: Flags,
    rcvd: Rcvd,
    until: Until,
    counts: Counts,
}

impl RstpPort {
    fn new(id: u16, conf: RstpPortConf, times: Times) -> RstpPort {
        RstpPort {
            conf,
            id,
            enabled: false,
            up_since: 0,
            info_is: InfoIs::Disabled,
            migration: Migration::Sensing,
            topology: Topology::Inactive,
            role: TreeRole::Disabled,
            selected_role: TreeRole::Disabled,
            priority: Vector::default(),
            times: Times::default(),
            designated_priority: Vector::default(),
            designated_times: times,
            is: Flags { reselect: true, send_rstp: true, ..Flags::default() },
            rcvd: Rcvd::default(),
            until: Until::default(),
            counts: Counts::default(),
        }
    }

    /// Priority and number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The settings.
    pub fn conf(&self) -> RstpPortConf {
        self.conf
    }

    /// The port's place in the tree.
    pub fn role(&self) -> TreeRole {
        self.role
    }

    /// What the port does with frames; a port that discards them is blocking.
    pub fn state(&self) -> PortState {
        match (self.enabled, self.is.forwarding, self.is.learning) {
            (false, ..) => PortState::Disabled,
            (_, true, _) => PortState::Forwarding,
            (_, _, true) => PortState::Learning,
            _ => PortState::Blocking,
        }
    }

    /// The bridge by which its network reaches the root, that bridge's port, and the cost.
    pub fn designated(&self) -> (BridgeId, u16, u32) {
        (self.priority.bridge, self.priority.port, self.priority.cost)
    }

    /// BPDUs sent, good ones received, and bad ones.
    pub fn counts(&self) -> [u64; 3] {
        [self.counts.sent, self.counts.received, self.counts.errors]
    }

    /// Seconds since the link came up.
    pub fn uptime(&self, now: u64) -> u64 {
        if self.enabled { now.saturating_sub(self.up_since) / 1000 } else { 0 }
    }

    /// True if the role is decided, and what follows from it is done.
    fn is_settled(&self) -> bool {
        self.is.selected && !self.is.update_info
    }

    /// True if the port has done what the tree asks of it. The root port has by itself.
    fn is_ready(&self) -> bool {
        let decided = self.is_settled() && self.role == self.selected_role;
        decided && (self.role == TreeRole::Root || self.is.synced)
    }

    /// How long the port waits in a state: short where both ends speak RSTP (17.20.6).
    fn wait_ms(&self) -> u64 {
        if self.is.send_rstp {
            self.designated_times.hello
        } else {
            self.designated_times.forward_delay
        }
    }
}

/// A bridge's part of the tree.
#[derive(Debug)]
pub struct Rstp {
    conf: RstpConf,
    /// Ports by their number, from 1.
    ports: BTreeMap<u16, RstpPort>,
    root: Vector,
    /// What the best way's last port is; None: this bridge is the root.
    root_port: Option<u16>,
    root_times: Times,
    /// Until when sent BPDUs are forgotten, ms.
    second: u64,
    /// Ports that have not done yet what the tree asks of them.
    unready: usize,
    out: Output,
    steps: u64,
    rounds: usize,
}

impl Rstp {
    /// A bridge without ports, which is its own root.
    pub fn new(conf: RstpConf, now: u64) -> Rstp {
        Rstp {
            conf,
            ports: BTreeMap::new(),
            root: Vector { root: conf.id, bridge: conf.id, ..Vector::default() },
            root_port: None,
            root_times: conf.times(),
            second: now,
            unready: 0,
            out: Output::default(),
            steps: 0,
            rounds: 0,
        }
    }

    /// Changes the settings of the bridge, as of the next [`Rstp::run`].
    pub fn configure(&mut self, conf: RstpConf, now: u64) {
        if self.conf == conf {
            return;
        }
        let restarts = self.conf.stp_only != conf.stp_only;
        let old = std::mem::replace(&mut self.conf, conf).id;
        for port in self.ports.values_mut() {
            (port.is.reselect, port.is.selected) = (true, false);
            // What it received of itself before is no bridge's information now.
            if old != conf.id && port.info_is == InfoIs::Received && port.priority.bridge == old {
                port.info_is = InfoIs::Aged;
            }
            if restarts {
                port.check_protocol(!conf.stp_only, now);
            }
        }
        self.choose_root();
    }

    /// Adds a port, whose link is down, or changes one, as of the next [`Rstp::run`]. Numbers are
    /// from 1 to [`RSTP_PORTS_MAX`]; others are passed over.
    pub fn set_port(&mut self, number: u16, conf: RstpPortConf) {
        if number == 0 || number > RSTP_PORTS_MAX {
            return;
        }
        let id = u16::from(conf.priority & 0xf0) << 8 | number;
        let new = || RstpPort::new(id, conf, self.root_times);
        let port = self.ports.entry(number).or_insert_with(new);
        if port.conf != conf {
            if port.conf.admin_edge != conf.admin_edge || !conf.auto_edge {
                port.is.oper_edge = conf.admin_edge;
            }
            (port.conf, port.id) = (conf, id);
            (port.is.reselect, port.is.selected) = (true, false);
        }
    }

    /// Removes a port. What follows for the others is done by the next [`Rstp::run`].
    pub fn remove_port(&mut self, number: u16) {
        let Some(gone) = self.ports.remove(&number) else { return };
        self.out.flush |= gone.topology != Topology::Inactive;
        if let Some(port) = self.ports.values_mut().next() {
            port.is.reselect = true;
        }
    }

    /// A port's link is up or down, as of the next [`Rstp::run`].
    pub fn set_link(&mut self, number: u16, up: bool, now: u64) {
        let (rapid, max_age) = (!self.conf.stp_only, self.root_times.max_age);
        let Some(port) = self.ports.get_mut(&number).filter(|p| p.enabled != up) else { return };
        port.until.fd = now + max_age;
        port.enabled = up;
        port.up_since = now;
        port.is.oper_edge = port.conf.admin_edge;
        port.until.edge_delay = now + MIGRATE_MS;
        (port.counts.tx_count, port.is.new_info) = (0, true);
        port.until.hello = now + HELLO_MS;
        (port.rcvd.rstp, port.rcvd.stp) = (false, false);
        port.check_protocol(rapid, now);
        port.forget_info();
        port.info_is = if up { InfoIs::Aged } else { InfoIs::Disabled };
        (port.is.reselect, port.is.selected) = (true, false);
    }

    /// The port speaks RSTP again, until it hears STP (`mcheck`), as of the next [`Rstp::run`].
    pub fn check(&mut self, number: u16, now: u64) {
        let rapid = !self.conf.stp_only;
        if let Some(port) = self.ports.get_mut(&number) {
            port.check_protocol(rapid, now);
        }
    }

    /// Lets time pass until `now`, and does what follows from that, and from all that was said
    /// since the last call.
    pub fn run(&mut self, now: u64) {
        let seconds = now.saturating_sub(self.second) / 1000;
        self.second += seconds * 1000;
        for port in self.ports.values_mut() {
            port.counts.tx_count =
                port.counts.tx_count.saturating_sub(seconds.min(u32::MAX.into()) as u32);
            port.keep_timers(now);
        }
        self.settle(now);
    }

    /// Tells the tree of a change of the topology, as of the next [`Rstp::run`].
    pub fn change_topology(&mut self) {
        // From each port to all others: with one port there is no other.
        let others = self.ports.len() > 1;
        self.ports.values_mut().for_each(|port| port.rcvd.tc_prop |= others);
        self.steps += self.ports.len() as u64;
        self.out.changed = true;
    }

    /// Runs all state machines until none has anything to do.
    fn settle(&mut self, now: u64) {
        let numbers = self.numbers();
        for round in 0..ROUNDS_MAX {
            self.rounds = self.rounds.max(round);
            self.steps += numbers.len() as u64;
            let mut changed = self.select_roles();
            self.unready = self.ports.values().filter(|p| !p.is_ready()).count();
            for number in &numbers {
                let unready = |ports: &BTreeMap<u16, RstpPort>| {
                    usize::from(ports.get(number).is_some_and(|p| !p.is_ready()))
                };
                let before = unready(&self.ports);
                changed |= self.turn(*number, now);
                self.unready = self.unready + unready(&self.ports) - before;
            }
            if !changed {
                return;
            }
        }
    }

    fn turn(&mut self, number: u16, now: u64) -> bool {
        let rapid = !self.conf.stp_only;
        let Some(port) = self.ports.get_mut(&number) else { return false };
        let mut changed = port.migrate(rapid, now) | port.detect_edge(now) | port.take_info(now);
        changed |= self.change_role(number, now);
        if let Some(port) = self.ports.get_mut(&number) {
            changed |= port.change_state();
        }
        changed |= self.run_topology(number, now);
        changed | self.transmit(number, now)
    }

    fn numbers(&self) -> Vec<u16> {
        self.ports.keys().copied().collect()
    }

    /// What is to be done since the last call.
    pub fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.out)
    }

    /// The settings of the bridge.
    pub fn conf(&self) -> &RstpConf {
        &self.conf
    }

    /// The root of the tree.
    pub fn root(&self) -> BridgeId {
        self.root.root
    }

    /// What the way to the root costs.
    pub fn root_cost(&self) -> u32 {
        self.root.cost
    }

    /// The bridge that leads to the root, and its port.
    pub fn designated(&self) -> (BridgeId, u16) {
        (self.root.bridge, self.root.port)
    }

    /// The number of the port that leads to the root; None: this bridge is the root.
    pub fn root_port(&self) -> Option<u16> {
        self.root_port
    }

    /// Hello time, maximum age and forward delay that this bridge would have the tree use, ms.
    pub fn own_times(&self) -> [u64; 3] {
        let Times { hello, max_age, forward_delay, .. } = self.conf.times();
        [hello, max_age, forward_delay]
    }

    /// Hello time, maximum age and forward delay that the tree uses, which are the root's, ms.
    pub fn times(&self) -> [u64; 3] {
        let Times { hello, max_age, forward_delay, .. } = self.root_times;
        [hello, max_age, forward_delay]
    }

    /// All ports, by number.
    pub fn ports(&self) -> impl Iterator<Item = (u16, &RstpPort)> {
        self.ports.iter().map(|(number, port)| (*number, port))
    }

    /// A port.
    pub fn port(&self, number: u16) -> Option<&RstpPort> {
        self.ports.get(&number)
    }

    /// Ports visited so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Turns of all state machines that one event took at most.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// What a received BPDU says as a way to the root.
    fn vector(rst: &Rst) -> Vector {
        let c = &rst.config;
        Vector { root: c.root, cost: c.cost, bridge: c.bridge, port: c.port }
    }
}
