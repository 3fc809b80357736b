//! Networks of bridges: BPDUs arrive at once, time passes in steps of a quarter of a second.

use std::collections::BTreeMap;
use stp::bpdu::{Bpdu, frame, read};
use stp::{BridgeId, Output, PortState, Rstp, RstpConf, RstpPortConf, Stp, StpConf, StpPortConf};

/// Between two looks at the clock.
const STEP_MS: u64 = 250;
/// BPDUs that may follow from each other at one point in time, per port of the network.
const BPDUS_MAX: usize = 200;

/// What a network needs of a bridge.
pub trait Bridge {
    /// How long a loop may last, ms. While word of a root that is gone goes round, as long as it is
    /// young, bridges of RSTP may agree on what has changed meanwhile.
    const LOOP_MS_MAX: u64;
    fn new(id: BridgeId) -> Self;
    /// `pair`: the LAN has two ports.
    fn add_port(&mut self, number: u16, cost: u16, pair: bool);
    fn set_link(&mut self, number: u16, up: bool, now: u64);
    fn set_id(&mut self, id: BridgeId, now: u64);
    fn receive(&mut self, number: u16, frame: &[u8], now: u64);
    fn run(&mut self, now: u64);
    fn sends(&mut self) -> (Vec<(u16, Bpdu)>, bool);
    fn root(&self) -> BridgeId;
    fn state(&self, number: u16) -> PortState;
}

fn conf(id: BridgeId) -> StpConf {
    StpConf { id, hello_ms: 2000, max_age_ms: 20_000, forward_delay_ms: 15_000 }
}

impl Bridge for Stp {
    const LOOP_MS_MAX: u64 = 0;
    fn new(id: BridgeId) -> Self {
        Stp::new(conf(id), 0)
    }
    fn add_port(&mut self, number: u16, path_cost: u16, _: bool) {
        self.set_port(number, StpPortConf { priority: 128, path_cost }, 0);
    }
    fn set_link(&mut self, number: u16, up: bool, now: u64) {
        Stp::set_link(self, number, up, now);
    }
    fn set_id(&mut self, id: BridgeId, now: u64) {
        self.configure(conf(id), now);
    }
    fn receive(&mut self, number: u16, frame: &[u8], now: u64) {
        // A BPDU that is too old is an error, which is logged.
        let _ = Stp::receive(self, number, read(frame), now);
    }
    fn run(&mut self, now: u64) {
        Stp::run(self, now);
    }
    fn sends(&mut self) -> (Vec<(u16, Bpdu)>, bool) {
        let Output { bpdus, flush, .. } = self.take_output();
        (bpdus, flush)
    }
    fn root(&self) -> BridgeId {
        Stp::root(self)
    }
    fn state(&self, number: u16) -> PortState {
        self.port(number).map_or(PortState::Disabled, |p| p.state())
    }
}

fn rapid_conf(id: BridgeId) -> RstpConf {
    RstpConf { id, max_age_ms: 20_000, forward_delay_ms: 15_000, hold_count: 6, stp_only: false }
}

impl Bridge for Rstp {
    const LOOP_MS_MAX: u64 = 3000;
    fn new(id: BridgeId) -> Self {
        Rstp::new(rapid_conf(id), 0)
    }
    fn add_port(&mut self, number: u16, path_cost: u16, pair: bool) {
        let conf = RstpPortConf {
            priority: 128,
            path_cost: path_cost.into(),
            admin_edge: false,
            auto_edge: true,
            point_to_point: pair,
        };
        self.set_port(number, conf);
    }
    fn set_link(&mut self, number: u16, up: bool, now: u64) {
        Rstp::set_link(self, number, up, now);
        Rstp::run(self, now);
    }
    fn set_id(&mut self, id: BridgeId, now: u64) {
        self.configure(rapid_conf(id), now);
        Rstp::run(self, now);
    }
    fn receive(&mut self, number: u16, frame: &[u8], now: u64) {
        let _ = Rstp::receive(self, number, read(frame), now);
        Rstp::run(self, now);
    }
    fn run(&mut self, now: u64) {
        Rstp::run(self, now);
    }
    fn sends(&mut self) -> (Vec<(u16, Bpdu)>, bool) {
        let Output { bpdus, flush, .. } = self.take_output();
        (bpdus, flush)
    }
    fn root(&self) -> BridgeId {
        Rstp::root(self)
    }
    fn state(&self, number: u16) -> PortState {
        self.port(number).map_or(PortState::Disabled, |p| p.state())
    }
}

/// A network of bridges to which ports are attached: each a place `(bridge, port)`.
pub struct Net<B> {
    pub bridges: Vec<B>,
    ids: Vec<BridgeId>,
    pub lans: Vec<Vec<(usize, u16)>>,
    up: Vec<bool>,
    pub now: u64,
    /// How often a bridge was to flush its addresses.
    pub flushes: Vec<usize>,
}

impl<B: Bridge> Net<B> {
    /// Bridges with these identifiers; each LAN names the bridges that it connects, with the cost
    /// of their ports.
    pub fn new(ids: &[u64], lans: &[Vec<(usize, u16)>]) -> Self {
        let ids: Vec<BridgeId> = ids.iter().map(|id| BridgeId(*id)).collect();
        let mut bridges: Vec<B> = ids.iter().map(|id| B::new(*id)).collect();
        let mut next = vec![0u16; ids.len()];
        let mut attach = |(bridge, cost): &(usize, u16), pair: bool| {
            next[*bridge] += 1;
            bridges[*bridge].add_port(next[*bridge], *cost, pair);
            (*bridge, next[*bridge])
        };
        let mut ports = |lan: &Vec<(usize, u16)>| {
            lan.iter().map(|port| attach(port, lan.len() <= 2)).collect::<Vec<_>>()
        };
        let lans: Vec<Vec<_>> = lans.iter().map(&mut ports).collect();
        let (up, flushes) = (vec![false; lans.len()], vec![0; ids.len()]);
        let mut net = Net { bridges, ids, lans, up, now: 0, flushes };
        (0..net.lans.len()).for_each(|lan| net.set_lan(lan, true));
        net
    }

    /// Cuts a LAN, or makes it whole.
    pub fn set_lan(&mut self, lan: usize, up: bool) {
        self.up[lan] = up;
        for (bridge, port) in self.lans[lan].clone() {
            self.bridges[bridge].set_link(port, up, self.now);
        }
        self.deliver();
    }

    /// Gives a bridge another identifier.
    pub fn set_id(&mut self, bridge: usize, id: u64) {
        self.ids[bridge] = BridgeId(id);
        self.bridges[bridge].set_id(BridgeId(id), self.now);
        self.deliver();
    }

    /// Hands over BPDUs until no bridge sends any.
    fn deliver(&mut self) {
        let ports: usize = self.lans.iter().map(Vec::len).sum();
        let mut left = BPDUS_MAX * (ports + 1);
        loop {
            let mut all = Vec::new();
            for (from, bridge) in self.bridges.iter_mut().enumerate() {
                let (bpdus, flush) = bridge.sends();
                self.flushes[from] += usize::from(flush);
                all.extend(bpdus.into_iter().map(|(port, bpdu)| ((from, port), bpdu)));
            }
            if all.is_empty() {
                return;
            }
            for (from, bpdu) in all {
                left = left.checked_sub(1).expect("BPDUs that follow from each other end");
                let on = |lan: &&Vec<(usize, u16)>| lan.contains(&from);
                let Some(lan) = self.lans.iter().position(|lan| on(&lan)) else { continue };
                if !self.up[lan] {
                    continue;
                }
                let bytes = frame([2; 6], &bpdu);
                for (to, port) in self.lans[lan].clone() {
                    if (to, port) != from {
                        self.bridges[to].receive(port, &bytes, self.now);
                    }
                }
            }
        }
    }

    /// Lets time pass; no loop lasts.
    pub fn run(&mut self, seconds: u64) {
        let mut looped = 0;
        for _ in 0..seconds * 1000 / STEP_MS {
            self.now += STEP_MS;
            for bridge in &mut self.bridges {
                bridge.run(self.now);
            }
            self.deliver();
            looped = if self.has_loop() { looped + STEP_MS } else { 0 };
            let text = || format!("a loop for {looped} ms at {} ms:\n{}", self.now, self.text());
            assert!(looped <= B::LOOP_MS_MAX, "{}", text());
        }
    }

    /// Ports that forward, by LAN.
    fn edges(&self) -> Vec<(usize, usize)> {
        let lans = self.lans.iter().enumerate().filter(|(lan, _)| self.up[*lan]);
        let all = lans.flat_map(|(lan, ports)| ports.iter().map(move |p| (lan, *p)));
        let open = all.filter(|(_, (b, p))| self.bridges[*b].state(*p) == PortState::Forwarding);
        open.map(|(lan, (bridge, _))| (self.bridges.len() + lan, bridge)).collect()
    }

    fn has_loop(&self) -> bool {
        let mut sets = Sets::new(self.bridges.len() + self.lans.len());
        !self.edges().iter().all(|(a, b)| sets.join(*a, *b))
    }

    /// What is connected by links is connected by ports that forward, without a loop, under one
    /// root.
    pub fn check(&self) {
        assert!(!self.has_loop(), "a loop:\n{}", self.text());
        let n = self.bridges.len() + self.lans.len();
        let (mut linked, mut open) = (Sets::new(n), Sets::new(n));
        for (lan, ports) in self.lans.iter().enumerate().filter(|(lan, _)| self.up[*lan]) {
            ports.iter().for_each(|(b, _)| _ = linked.join(self.bridges.len() + lan, *b));
        }
        self.edges().iter().for_each(|(a, b)| _ = open.join(*a, *b));
        let mut roots = BTreeMap::new();
        for (bridge, id) in self.ids.iter().enumerate() {
            let best = roots.entry(linked.of(bridge)).or_insert(*id);
            *best = (*best).min(*id);
        }
        for bridge in 0..self.bridges.len() {
            let root = roots[&linked.of(bridge)];
            assert_eq!(self.bridges[bridge].root(), root, "bridge {bridge}:\n{}", self.text());
            for other in 0..bridge {
                let (links, ports) = (linked.same(bridge, other), open.same(bridge, other));
                assert_eq!(links, ports, "bridges {other} and {bridge}:\n{}", self.text());
            }
        }
    }

    pub fn state(&self, lan: usize, place: usize) -> PortState {
        let (bridge, port) = self.lans[lan][place];
        self.bridges[bridge].state(port)
    }

    fn text(&self) -> String {
        let lan = |(lan, ports): (usize, &Vec<(usize, u16)>)| {
            let port = |(b, p): &(usize, u16)| format!("{b}.{p} {:?}", self.bridges[*b].state(*p));
            let ports: Vec<String> = ports.iter().map(port).collect();
            format!("lan {lan} up {}: {}\n", self.up[lan], ports.join(", "))
        };
        let lans: String = self.lans.iter().enumerate().map(lan).collect();
        let roots: Vec<String> = self.bridges.iter().map(|b| b.root().to_string()).collect();
        format!("{lans}roots: {roots:?}\n")
    }
}

/// Sets of things that are connected.
struct Sets(Vec<usize>);

impl Sets {
    fn new(n: usize) -> Sets {
        Sets((0..n).collect())
    }
    fn of(&self, mut a: usize) -> usize {
        while self.0[a] != a {
            a = self.0[a];
        }
        a
    }
    fn same(&self, a: usize, b: usize) -> bool {
        self.of(a) == self.of(b)
    }
    /// False: they are connected already.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a] = b;
        a != b
    }
}
