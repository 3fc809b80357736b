//! Learned addresses of one bridge, as the control side keeps them: ages, limits, shares of ports,
//! statistics.
//!
//! The entries of each port are in a list from the least to the most recently seen. So learning,
//! refreshing, moving, ageing and evicting one address costs the same however many there are (and
//! log n in the number of ports). In a full table the port with the most entries loses its oldest,
//! as in OVS (`evict_mac_entry_fairly`), and a port may teach new addresses, or claim those of
//! other ports, at a limited rate.
//!
//! Entries that are flushed, or whose port goes, are dead at once: they were learned in a
//! generation that ended. [`MacTable::sweep`] removes them later, some at a time.

use crate::growth::make_room;
use crate::mac_index::{Dead, LearnedPort, MacWriter};
use crate::shares::Shares;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// New or moved addresses per port and second, once the port's burst is used up. Learning one costs
/// the control thread a few microseconds (the table, and the megaflows that it affects), so one
/// port takes about one per cent of it; a table of the default size is learned in four seconds even
/// then. OVS has no such limit.
const LEARN_RATE_MACS_PER_SECOND: u64 = 2048;
/// New or moved addresses that a port may teach at once, at most; less in a smaller table. So a
/// whole table is learned, or moves to another port, without delay after a restart or when a link
/// fails over.
const LEARN_BURST_MACS_MAX: u64 = 65_536;
const LEARN_COST_NS: u64 = 1_000_000_000 / LEARN_RATE_MACS_PER_SECOND;
/// Time between two lines in the log about one port.
pub(crate) const REPORT_INTERVAL_NS: u64 = 60_000_000_000;
/// How long an entry that is seen again keeps its position in the order, as in OVS, ns.
const ORDER_STEP_NS: u64 = 1_000_000_000;
/// Learned addresses of a flush that are named, and of a port that are removed at once.
const SINGLE_MACS_MAX: usize = 256;
/// Dead entries that a new address removes from a full table.
const SWEPT_PER_MAC: usize = 2;
/// The generation of static entries, which does not end.
const FIXED: u64 = u64::MAX;
/// No entry: the end of a list.
const NONE: u32 = u32::MAX;

/// One learned or static address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    /// OpenFlow port.
    pub port: u32,
    /// VLAN id (0: untagged).
    pub vlan: u16,
    /// Address.
    pub mac: [u8; 6],
    /// When it was last seen, ns.
    pub used: u64,
    /// Set by hand (`fdb/add`): it does not age or move.
    pub fixed: bool,
}

/// Counters of `fdb/stats-show`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MacStats {
    pub current: usize,
    pub fixed: usize,
    pub max: usize,
    pub learned: u64,
    pub expired: u64,
    pub evicted: u64,
    pub moved: u64,
    /// Packets from static addresses that came in on other ports, which changed nothing.
    pub fixed_elsewhere: u64,
}

/// The result of learning from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// The address is known, and its age was reset.
    Refreshed,
    /// The address is new.
    New,
    /// The address is behind another port now.
    Moved,
    /// The address is new, and this old one was evicted for it.
    Evicted(u16, [u8; 6]),
    /// The entry is static, or the table is full of static entries.
    Refused,
    /// The port has shown more new addresses than it may teach.
    Limited,
}

/// An entry in its port's list; static entries are in none.
struct Node {
    entry: MacEntry,
    /// The generation of entries in which it was learned, or moved.
    generation: u64,
    /// The entry's position in the order in which addresses were last seen; the highest is that of
    /// the latest. [`MacTable::number`] gives it.
    serial: u64,
    older: u32,
    newer: u32,
}

/// The entries by number. In tests, every access counts as a step.
#[derive(Default)]
struct Nodes {
    list: Vec<Node>,
    free: Vec<u32>,
    #[cfg(test)]
    steps: std::cell::Cell<u64>,
}

impl Nodes {
    fn step(&self) {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
    }

    fn get(&self, i: u32) -> &Node {
        self.step();
        &self.list[i as usize]
    }

    fn get_mut(&mut self, i: u32) -> &mut Node {
        self.step();
        &mut self.list[i as usize]
    }

    fn add(&mut self, entry: MacEntry, generation: u64) -> u32 {
        self.step();
        let node = Node { entry, generation, serial: 0, older: NONE, newer: NONE };
        match self.free.pop() {
            Some(i) => {
                self.list[i as usize] = node;
                i
            }
            None => {
                self.list.push(node);
                self.list.len() as u32 - 1
            }
        }
    }
}

/// What a port has learned, and may learn.
struct PortMacs {
    /// The list: dead entries are the oldest.
    oldest: u32,
    newest: u32,
    /// Number of entries that are not dead.
    n: usize,
    /// When its burst will be full again, ns.
    whole_at: u64,
    /// Sightings of addresses that were not learned because of its rate, how many of them were
    /// reported, and when, ns.
    limited: u64,
    reported: u64,
    reported_at: Option<u64>,
}

impl Default for PortMacs {
    fn default() -> Self {
        PortMacs {
            oldest: NONE,
            newest: NONE,
            n: 0,
            whole_at: 0,
            limited: 0,
            reported: 0,
            reported_at: None,
        }
    }
}

/// Learned addresses, as the control side keeps them: see the module.
pub(crate) struct MacTable {
    by_mac: HashMap<(u16, [u8; 6]), u32>,
    nodes: Nodes,
    ports: BTreeMap<u32, PortMacs>,
    /// Number of learned entries of each port.
    shares: Shares,
    fixed: BTreeSet<(u16, [u8; 6])>,
    /// The present generation, and what is dead.
    generation: u64,
    dead: Dead,
    /// Number of dead entries that are still there, and ports that may have some.
    unswept: usize,
    unswept_ports: BTreeSet<u32>,
    pub max: usize,
    pub aging_ns: u64,
    /// The latest time that was given, ns.
    clock: u64,
    /// The highest [`Node::serial`].
    serial: u64,
    stats: MacStats,
}

impl MacTable {
    pub fn new(max: usize, aging_s: u32) -> MacTable {
        MacTable {
            by_mac: HashMap::new(),
            nodes: Nodes::default(),
            ports: BTreeMap::new(),
            shares: Shares::default(),
            fixed: BTreeSet::new(),
            generation: 0,
            dead: Dead::default(),
            unswept: 0,
            unswept_ports: BTreeSet::new(),
            max: max.max(1),
            aging_ns: u64::from(aging_s) * 1_000_000_000,
            clock: 0,
            serial: 0,
            stats: MacStats::default(),
        }
    }

    /// Records that (`vlan`,`mac`) was seen on `port`.
    pub fn learn(
        &mut self,
        index: MacWriter<'_>,
        vlan: u16,
        mac: [u8; 6],
        port: u32,
        now: u64,
    ) -> Learned {
        self.clock = self.clock.max(now);
        if let Some(i) = self.by_mac.get(&(vlan, mac)).copied() {
            if !self.is_dead(i) {
                return self.again(index, i, port, now);
            }
            self.remove(index, vlan, mac);
        }
        if self.live() >= self.max && self.shares.is_empty() {
            return Learned::Refused;
        }
        if !self.may_teach(port) {
            return Learned::Limited;
        }
        if self.by_mac.len() >= self.max {
            self.sweep(index, SWEPT_PER_MAC);
        }
        let full = self.unswept == 0 && self.by_mac.len() >= self.max;
        let evicted = if full { self.evict(index) } else { None };
        self.stats.learned += 1;
        let entry = MacEntry { port, vlan, mac, used: now, fixed: false };
        let i = self.nodes.add(entry, self.generation);
        self.number(i);
        make_room(&mut self.by_mac, self.max);
        self.by_mac.insert((vlan, mac), i);
        self.link(i);
        self.count(port, 1);
        self.index(index, i);
        evicted.map_or(Learned::New, |(v, m)| Learned::Evicted(v, m))
    }

    /// Handles a packet from a known address.
    fn again(&mut self, index: MacWriter<'_>, i: u32, port: u32, now: u64) -> Learned {
        let e = self.nodes.get(i).entry;
        if e.fixed {
            self.stats.fixed_elsewhere += u64::from(e.port != port);
            return Learned::Refused;
        }
        if e.port == port && now <= e.used {
            return Learned::Refreshed;
        }
        if e.port != port && !self.may_teach(port) {
            return Learned::Limited;
        }
        self.unlink(i);
        if e.port != port {
            self.count(e.port, -1);
        }
        let entry = &mut self.nodes.get_mut(i).entry;
        (entry.port, entry.used) = (port, e.used.max(now));
        self.link(i);
        if e.port != port {
            self.nodes.get_mut(i).generation = self.generation;
            self.count(port, 1);
        }
        if e.port != port || now - e.used.min(now) >= ORDER_STEP_NS {
            self.number(i);
        }
        if e.port == port {
            return Learned::Refreshed;
        }
        self.stats.moved += 1;
        self.index(index, i);
        Learned::Moved
    }

    /// Number of entries that are not dead.
    fn live(&self) -> usize {
        self.by_mac.len() - self.unswept
    }

    fn is_dead(&self, i: u32) -> bool {
        let node = &self.nodes.list[i as usize];
        self.dead.includes(node.entry.port, node.generation)
    }

    /// Makes the entry the latest of all.
    fn number(&mut self, i: u32) {
        self.serial += 1;
        self.nodes.get_mut(i).serial = self.serial;
    }

    /// Takes one address from what the port may teach now; false, and counted: nothing is left.
    fn may_teach(&mut self, port: u32) -> bool {
        let burst = (self.max as u64).min(LEARN_BURST_MACS_MAX) * LEARN_COST_NS;
        let p = self.ports.entry(port).or_default();
        let whole_at = p.whole_at.max(self.clock) + LEARN_COST_NS;
        let may = whole_at <= self.clock + burst;
        if may {
            p.whole_at = whole_at;
        } else {
            p.limited += 1;
        }
        may
    }

    /// Counts `n` addresses behind a port that workers had no room to report.
    pub fn passed_over(&mut self, port: u32, n: u64) {
        self.ports.entry(port).or_default().limited += n;
    }

    /// Number of addresses that were not learned because the port showed too many, by port.
    pub fn limited(&self) -> impl Iterator<Item = (u32, u64)> {
        self.ports.iter().filter(|(_, p)| p.limited > 0).map(|(no, p)| (*no, p.limited))
    }

    /// Ports with addresses that were not learned since the last report, and how many; each port is
    /// reported once a minute at most.
    pub fn take_limited(&mut self, now: u64) -> impl Iterator<Item = (u32, u64)> {
        let new = move |(no, p): (&u32, &mut PortMacs)| {
            if p.limited == p.reported
                || p.reported_at.is_some_and(|at| now < at + REPORT_INTERVAL_NS)
            {
                return None;
            }
            p.reported_at = Some(now);
            Some((*no, p.limited - std::mem::replace(&mut p.reported, p.limited)))
        };
        self.ports.iter_mut().filter_map(new)
    }

    /// Adds a static entry; returns the entry that it replaces.
    pub fn add_static(
        &mut self,
        index: MacWriter<'_>,
        vlan: u16,
        mac: [u8; 6],
        port: u32,
        now: u64,
    ) -> Option<MacEntry> {
        let before = self.by_mac.get(&(vlan, mac)).filter(|i| !self.is_dead(**i));
        let before = before.map(|i| self.nodes.get(*i).entry);
        self.drop_entry(vlan, mac);
        let i = self.nodes.add(MacEntry { port, vlan, mac, used: now, fixed: true }, FIXED);
        self.number(i);
        self.by_mac.insert((vlan, mac), i);
        self.fixed.insert((vlan, mac));
        self.index(index, i);
        before
    }

    /// Removes an entry, static or learned. False: there is none.
    pub fn remove(&mut self, index: MacWriter<'_>, vlan: u16, mac: [u8; 6]) -> bool {
        index.remove(vlan, mac);
        self.drop_entry(vlan, mac)
    }

    fn drop_entry(&mut self, vlan: u16, mac: [u8; 6]) -> bool {
        let Some(i) = self.by_mac.remove(&(vlan, mac)) else { return false };
        let dead = self.is_dead(i);
        if !self.fixed.remove(&(vlan, mac)) {
            let port = self.unlink(i);
            match dead {
                true => self.unswept -= 1,
                false => self.count(port, -1),
            }
        }
        self.nodes.free.push(i);
        !dead
    }

    /// Evicts the oldest address of the port with the most. No entry may be dead.
    fn evict(&mut self, index: MacWriter<'_>) -> Option<(u16, [u8; 6])> {
        let port = self.shares.most()?;
        let e = self.nodes.get(self.ports[&port].oldest).entry;
        self.stats.evicted += 1;
        self.remove(index, e.vlan, e.mac);
        Some((e.vlan, e.mac))
    }

    /// Removes an entry from its port's list, and returns the port.
    fn unlink(&mut self, i: u32) -> u32 {
        let Node { entry: MacEntry { port, .. }, older, newer, .. } = *self.nodes.get(i);
        let p = self.ports.entry(port).or_default();
        match older {
            NONE => p.oldest = newer,
            _ => self.nodes.get_mut(older).newer = newer,
        }
        match newer {
            NONE => p.newest = older,
            _ => self.nodes.get_mut(newer).older = older,
        }
        port
    }

    /// Appends an entry to its port's list.
    fn link(&mut self, i: u32) {
        let port = self.nodes.get(i).entry.port;
        let p = self.ports.entry(port).or_default();
        let before = std::mem::replace(&mut p.newest, i);
        match before {
            NONE => p.oldest = i,
            _ => self.nodes.get_mut(before).newer = i,
        }
        let node = self.nodes.get_mut(i);
        (node.older, node.newer) = (before, NONE);
    }

    /// Counts an entry that a port gained (1) or lost (-1).
    fn count(&mut self, port: u32, one: isize) {
        let p = self.ports.entry(port).or_default();
        p.n = p.n.saturating_add_signed(one);
        self.shares.set(port, p.n);
    }

    fn index(&mut self, index: MacWriter<'_>, i: u32) {
        let place = |node: &Node| {
            let MacEntry { port, vlan, mac, .. } = node.entry;
            (vlan, mac, LearnedPort::new(port, node.generation))
        };
        if !index.put(place(&self.nodes.list[i as usize]), self.by_mac.len()) {
            let all = self.by_mac.values().map(|i| place(self.nodes.get(*i)));
            index.rebuild(all, self.max);
        }
    }

    /// The entries of a port that are not dead, of which the latest is the first.
    fn of_port(&self, port: u32) -> impl Iterator<Item = (u16, [u8; 6])> {
        let mut next = self.ports.get(&port).map_or(NONE, |p| p.newest);
        std::iter::from_fn(move || {
            let node = (next != NONE && !self.is_dead(next)).then(|| self.nodes.get(next))?;
            next = node.older;
            Some((node.entry.vlan, node.entry.mac))
        })
    }

    /// Removes all entries of a port, and what was known of the port. Returns the latest `n` of
    /// those that were learned.
    pub fn remove_port(
        &mut self,
        index: MacWriter<'_>,
        port: u32,
        n: usize,
    ) -> Vec<(u16, [u8; 6])> {
        let on =
            |(v, m): &&(u16, [u8; 6])| self.nodes.get(self.by_mac[&(*v, *m)]).entry.port == port;
        let fixed: Vec<_> = self.fixed.iter().filter(on).copied().collect();
        fixed.into_iter().for_each(|(vlan, mac)| _ = self.remove(index, vlan, mac));
        let learned: Vec<_> = self.of_port(port).take(n.max(SINGLE_MACS_MAX + 1)).collect();
        if learned.len() <= SINGLE_MACS_MAX {
            learned.iter().for_each(|(vlan, mac)| _ = self.remove(index, *vlan, *mac));
        }
        let Some(p) = self.ports.get_mut(&port) else { return learned };
        if p.n > 0 {
            self.generation += 1;
            self.dead.ports.insert(port, self.generation);
            index.kill(&self.dead);
        }
        self.unswept += p.n;
        *p = PortMacs { oldest: p.oldest, newest: p.newest, ..PortMacs::default() };
        self.shares.set(port, 0);
        self.unswept_ports.insert(port);
        self.sweep(index, 0);
        learned
    }

    /// Removes a learned entry; a static one stays. False: there is none.
    pub fn remove_learned(&mut self, index: MacWriter<'_>, vlan: u16, mac: [u8; 6]) -> bool {
        !self.fixed.contains(&(vlan, mac))
            && self.by_mac.contains_key(&(vlan, mac))
            && self.remove(index, vlan, mac)
    }

    /// Removes all learned entries, and returns them; None: they are many.
    pub fn flush(&mut self, index: MacWriter<'_>) -> Option<Vec<(u16, [u8; 6])>> {
        let n = self.live() - self.fixed.len();
        if n == 0 {
            return Some(Vec::new());
        }
        let ports: Vec<u32> = self.shares.ports().collect();
        let few = n <= SINGLE_MACS_MAX;
        let learned = few.then(|| ports.iter().flat_map(|port| self.of_port(*port)).collect());
        self.generation += 1;
        self.dead.all = self.generation;
        self.unswept += n;
        for port in &ports {
            self.ports.entry(*port).or_default().n = 0;
        }
        self.unswept_ports.extend(ports);
        self.shares = Shares::default();
        index.kill(&self.dead);
        learned
    }

    /// Removes dead entries: at most `n`; returns how many.
    pub fn sweep(&mut self, index: MacWriter<'_>, n: usize) -> usize {
        let mut gone = 0;
        while let Some(port) = self.unswept_ports.first().copied() {
            let oldest = self.ports.get(&port).map_or(NONE, |p| p.oldest);
            if oldest == NONE || !self.is_dead(oldest) {
                self.unswept_ports.remove(&port);
                // Nothing was learned behind it since it was removed.
                if self.ports.get(&port).is_some_and(|p| p.n == 0 && p.whole_at == 0) {
                    self.ports.remove(&port);
                }
                continue;
            }
            if gone == n {
                return gone;
            }
            let e = self.nodes.get(oldest).entry;
            self.remove(index, e.vlan, e.mac);
            gone += 1;
        }
        if !self.dead.ports.is_empty() {
            self.dead.ports.clear();
            index.kill(&self.dead);
        }
        gone
    }

    /// Removes entries that are too old, and entries beyond a smaller limit: at most `n`; returns
    /// them. None as long as dead ones are there.
    pub fn expire(&mut self, index: MacWriter<'_>, now: u64, n: usize) -> Vec<(u16, [u8; 6])> {
        self.clock = self.clock.max(now);
        let mut out = Vec::new();
        if self.unswept > 0 {
            return out;
        }
        let ports: Vec<u32> = self.shares.ports().collect();
        for port in ports {
            while out.len() < n
                && let Some(p) = self.ports.get(&port).filter(|p| p.n > 0)
            {
                let e = self.nodes.get(p.oldest).entry;
                if now.saturating_sub(e.used) < self.aging_ns {
                    break;
                }
                self.stats.expired += 1;
                self.remove(index, e.vlan, e.mac);
                out.push((e.vlan, e.mac));
            }
        }
        while out.len() < n && self.by_mac.len() > self.max {
            let Some(gone) = self.evict(index) else { break };
            out.push(gone);
        }
        out
    }

    /// All entries; the one that was not seen for the longest time is first.
    pub fn entries(&self) -> Vec<MacEntry> {
        let at = |i: &u32| &self.nodes.list[*i as usize];
        let mut all: Vec<&Node> =
            self.by_mac.values().filter(|i| !self.is_dead(**i)).map(at).collect();
        all.sort_unstable_by_key(|n| n.serial);
        all.into_iter().map(|n| n.entry).collect()
    }

    /// Calls `each` with entries, in no order, examining `looks` places from place `from` on, until
    /// it returns false. Returns the place to continue from; None: there are no more.
    pub fn entries_from(
        &self,
        from: usize,
        looks: usize,
        each: &mut dyn FnMut(&MacEntry) -> bool,
    ) -> Option<usize> {
        let end = from.saturating_add(looks).min(self.nodes.list.len());
        for i in from..end {
            let entry = &self.nodes.get(i as u32).entry;
            // Free places keep their old entries.
            let is_there = self.by_mac.get(&(entry.vlan, entry.mac)) == Some(&(i as u32));
            if is_there && !self.is_dead(i as u32) && !each(entry) {
                return Some(i + 1);
            }
        }
        (end < self.nodes.list.len()).then_some(end)
    }

    pub fn stats(&self) -> MacStats {
        let (current, fixed) = (self.live(), self.fixed.len());
        MacStats { current, fixed, max: self.max, ..self.stats }
    }

    pub fn clear_stats(&mut self) {
        self.stats = MacStats::default();
        self.ports.values_mut().for_each(|p| (p.limited, p.reported) = (0, 0));
    }
}

#[cfg(test)]
mod tests;
