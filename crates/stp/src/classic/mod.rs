//! STP (IEEE 802.1D-1998, clause 8), as Open vSwitch speaks it: a port that takes no part forwards.
//!
//! - what a bridge and its ports know, and what is asked of them: here
//! - who is root, which ports lead where: `choose`
//! - BPDUs that come in, timers, changes of topology: `events`

mod choose;
mod events;

use crate::bpdu::{Bpdu, Config, from_ms};
use crate::timer::Timer;
use crate::{AGE_PER_BRIDGE_MS, BridgeId, Output, PortState, STP_PORTS_MAX, TreeRole};
use std::collections::BTreeMap;

/// A port sends one configuration BPDU in this time (8.10.2).
const HOLD_MS: u64 = 1000;

/// The settings of a bridge. Times are taken as near as the standard allows (8.10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StpConf {
    /// Priority and address.
    pub id: BridgeId,
    /// How often the root sends, ms.
    pub hello_ms: u64,
    /// When the root's word is too old, ms.
    pub max_age_ms: u64,
    /// How long a port listens, and how long it learns, ms.
    pub forward_delay_ms: u64,
}

impl StpConf {
    /// The times that go with each other.
    fn times(&self) -> Times {
        let hello = self.hello_ms.clamp(1000, 10_000);
        let max_age = self.max_age_ms.clamp((2 * (hello + 1000)).max(6000), 40_000);
        let forward_delay = self.forward_delay_ms.clamp(max_age / 2 + 1000, 30_000);
        Times { hello, max_age, forward_delay }
    }
}

/// Times of a tree, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    hello: u64,
    max_age: u64,
    forward_delay: u64,
}

/// The settings of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StpPortConf {
    /// Priority: of two ports that are equal otherwise, the one with the lower number is better.
    pub priority: u8,
    /// What a way by this port costs.
    pub path_cost: u16,
}

/// What is the best that was heard on a port: the way to the root that its network has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Vector {
    root: BridgeId,
    cost: u32,
    bridge: BridgeId,
    port: u16,
}

/// A port of the tree.
#[derive(Clone, Debug)]
pub struct StpPort {
    conf: StpPortConf,
    /// Priority and number.
    id: u16,
    state: PortState,
    designated: Vector,
    /// The next configuration BPDU says that a change was heard of.
    acknowledges: bool,
    /// A configuration BPDU waits for the hold timer.
    pending: bool,
    message_age: Timer,
    forward_delay: Timer,
    hold: Timer,
    sent: u64,
    received: u64,
    errors: u64,
}

impl StpPort {
    /// Priority and number.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// What the port does with frames.
    pub fn state(&self) -> PortState {
        self.state
    }

    /// The settings.
    pub fn conf(&self) -> StpPortConf {
        self.conf
    }

    /// BPDUs sent, good ones received, and bad ones, since the link came up.
    pub fn counts(&self) -> [u64; 3] {
        [self.sent, self.received, self.errors]
    }
}

/// A bridge's part of the tree.
#[derive(Debug)]
pub struct Stp {
    conf: StpConf,
    /// The root's times.
    times: Times,
    /// Ports by their number, from 1.
    ports: BTreeMap<u16, StpPort>,
    root: BridgeId,
    root_cost: u32,
    /// None: this bridge is the root.
    root_port: Option<u16>,
    /// This bridge tells the root of a change.
    change_detected: bool,
    /// Configuration BPDUs say that the topology changes.
    topology_change: bool,
    hello: Timer,
    notify: Timer,
    topology: Timer,
    out: Output,
    steps: u64,
}

impl Stp {
    /// A bridge without ports, which is its own root.
    pub fn new(conf: StpConf, now: u64) -> Stp {
        let mut stp = Stp {
            conf,
            times: conf.times(),
            ports: BTreeMap::new(),
            root: conf.id,
            root_cost: 0,
            root_port: None,
            change_detected: false,
            topology_change: false,
            hello: Timer::default(),
            notify: Timer::default(),
            topology: Timer::default(),
            out: Output::default(),
            steps: 0,
        };
        stp.hello.start(now);
        stp
    }

    /// Changes the settings of the bridge.
    pub fn configure(&mut self, conf: StpConf, now: u64) {
        let old = std::mem::replace(&mut self.conf, conf);
        if old.id != conf.id {
            let was_root = self.root_port.is_none();
            for port in self.ports.values_mut().filter(|p| p.designated.bridge == old.id) {
                if port.designated.port == port.id {
                    port.designated.bridge = conf.id;
                }
            }
            self.choose(now);
            self.after_root(was_root, now);
        }
        if self.is_root() {
            self.times = conf.times();
        }
    }

    /// Adds a port, whose link is down, or changes one. Numbers are from 1 to [`STP_PORTS_MAX`];
    /// others are passed over.
    pub fn set_port(&mut self, number: u16, conf: StpPortConf, now: u64) {
        if number == 0 || number > STP_PORTS_MAX {
            return;
        }
        let id = u16::from(conf.priority) << 8 | number;
        let Some(port) = self.ports.get_mut(&number) else {
            let designated = self.own(id);
            let port = StpPort {
                conf,
                id,
                state: PortState::Disabled,
                designated,
                acknowledges: false,
                pending: false,
                message_age: Timer::default(),
                forward_delay: Timer::default(),
                hold: Timer::default(),
                sent: 0,
                received: 0,
                errors: 0,
            };
            self.ports.insert(number, port);
            return;
        };
        if port.conf == conf {
            return;
        }
        let was_root = self.root_port.is_none();
        if port.designated.bridge == self.conf.id && port.designated.port == port.id {
            port.designated.port = id;
        }
        (port.conf, port.id) = (conf, id);
        if self.is_designated(number) || self.own(id) < self.ports[&number].designated {
            self.become_designated(number);
        }
        self.choose(now);
        self.after_root(was_root, now);
    }

    /// Removes a port.
    pub fn remove_port(&mut self, number: u16, now: u64) {
        self.set_link(number, false, now);
        self.ports.remove(&number);
    }

    /// A port's link is up or down now. The standard sees a change of the topology only when
    /// another port forwards in its place; here it is one already that a port ends which did.
    pub fn set_link(&mut self, number: u16, up: bool, now: u64) {
        let Some(port) = self.ports.get_mut(&number) else { return };
        if up == (port.state != PortState::Disabled) {
            return;
        }
        let (was_root, forwarded) = (self.root_port.is_none(), port.state == PortState::Forwarding);
        port.state = if up { PortState::Blocking } else { PortState::Disabled };
        (port.acknowledges, port.pending) = (false, false);
        port.message_age.stop();
        port.forward_delay.stop();
        port.hold.stop();
        (port.sent, port.received, port.errors) = (0, 0, 0);
        self.become_designated(number);
        self.choose(now);
        self.after_root(was_root, now);
        if forwarded {
            self.change_topology(now);
        }
    }

    /// What is to be done since the last call.
    pub fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.out)
    }

    /// The settings of the bridge.
    pub fn conf(&self) -> &StpConf {
        &self.conf
    }

    /// The root of the tree.
    pub fn root(&self) -> BridgeId {
        self.root
    }

    /// What the way to the root costs.
    pub fn root_cost(&self) -> u32 {
        self.root_cost
    }

    /// The number of the port that leads to the root; None: this bridge is the root.
    pub fn root_port(&self) -> Option<u16> {
        self.root_port
    }

    /// Hello time, maximum age and forward delay that this bridge would have the tree use, ms.
    pub fn own_times(&self) -> [u64; 3] {
        let Times { hello, max_age, forward_delay } = self.conf.times();
        [hello, max_age, forward_delay]
    }

    /// Hello time, maximum age and forward delay that the tree uses, which are the root's, ms.
    pub fn times(&self) -> [u64; 3] {
        [self.times.hello, self.times.max_age, self.times.forward_delay]
    }

    /// All ports, by number.
    pub fn ports(&self) -> impl Iterator<Item = (u16, &StpPort)> {
        self.ports.iter().map(|(number, port)| (*number, port))
    }

    /// A port.
    pub fn port(&self, number: u16) -> Option<&StpPort> {
        self.ports.get(&number)
    }

    /// A port's place in the tree; as in Open vSwitch a port whose link is down is designated.
    pub fn role(&self, number: u16) -> TreeRole {
        if self.root_port == Some(number) {
            TreeRole::Root
        } else if self.is_designated(number) {
            TreeRole::Designated
        } else if self.ports.get(&number).is_none_or(|p| p.state == PortState::Disabled) {
            TreeRole::Disabled
        } else {
            TreeRole::Alternate
        }
    }

    /// Ports visited so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn is_root(&self) -> bool {
        self.root_port.is_none()
    }

    /// What this bridge offers to the network of a port.
    fn own(&self, port_id: u16) -> Vector {
        Vector { root: self.root, cost: self.root_cost, bridge: self.conf.id, port: port_id }
    }

    fn is_designated(&self, number: u16) -> bool {
        let is = |p: &StpPort| p.designated.bridge == self.conf.id && p.designated.port == p.id;
        self.ports.get(&number).is_some_and(is)
    }

    /// Numbers of ports whose links are up.
    fn enabled(&mut self) -> Vec<u16> {
        self.steps += self.ports.len() as u64;
        let up = self.ports.iter().filter(|(_, p)| p.state != PortState::Disabled);
        up.map(|(number, _)| *number).collect()
    }

    /// Sends what this bridge knows, unless the port has just done so (8.6.1).
    fn send_config(&mut self, number: u16, now: u64) {
        let age = match self.root_port.and_then(|root| self.ports.get(&root)) {
            None => 0,
            Some(root) => root.message_age.age(now) + AGE_PER_BRIDGE_MS,
        };
        let times = self.times;
        let (root, cost, bridge) = (self.root, self.root_cost, self.conf.id);
        let topology_change = self.topology_change;
        let Some(port) = self.ports.get_mut(&number) else { return };
        if port.hold.runs() {
            return port.pending = true;
        }
        port.pending = false;
        if port.state == PortState::Disabled || age >= times.max_age {
            return;
        }
        let config = Config {
            topology_change,
            topology_change_ack: std::mem::take(&mut port.acknowledges),
            root,
            cost,
            bridge,
            port: port.id,
            message_age: from_ms(age),
            max_age: from_ms(times.max_age),
            hello_time: from_ms(times.hello),
            forward_delay: from_ms(times.forward_delay),
        };
        port.hold.start(now);
        port.sent += 1;
        self.out.bpdus.push((number, Bpdu::Config(config)));
    }

    /// Sends what this bridge knows to all networks that reach the root by it (8.6.4).
    fn send_configs(&mut self, now: u64) {
        for number in self.enabled() {
            if self.is_designated(number) {
                self.send_config(number, now);
            }
        }
    }
}
