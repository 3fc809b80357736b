//! Ports whose missed packets take the pipeline long.
//!
//! What a miss costs is up to the tables of its bridge: 65,536 steps at most, some milliseconds.
//! Where the flows of a port are new all the time, that is the cost of each of its packets, and
//! ports of other bridges on the thread would wait for a vector of them. So each miss may take
//! [`MISS_NS_MAX`]. What one takes of the thread's time on the processor beyond that is the debt of
//! its port, and the port is watched: its misses are decided about one by one. While a port has a
//! debt its missed packets wait, and those that are too many to wait are dropped. Debts are paid
//! with the time that no other port wants, and with a sixteenth of the rest.
//!
//! The cycle counter shows which misses took long. It also counts while the thread does not run,
//! and memory may have been cold or new. So a packet that took long is decided about again, and the
//! thread's time on the processor then says what its port owes: misses that take no longer than
//! they may cost no system call. That time has interrupts in it (a timer's takes 15 to 25 us in a
//! virtual machine), so what took long then is tried once more, and the shorter time counts.

use crate::stats::clock::cycles_per_second;
use flow::PortNo;

/// What a miss may take, nanoseconds. Those of OVN's pipelines take less than half of it; builds
/// for tests are slower.
pub(super) const MISS_NS_MAX: u64 = if cfg!(debug_assertions) { 1_000_000 } else { 20_000 };
/// Part of the time of others with which debts are paid.
const SHARE_SHIFT: u32 = 4;
/// A port whose last expensive miss is longer ago is like others again, milliseconds.
const WATCHED_MS: u64 = 10_000;
/// Misses after which a watched port that had one expensive miss is like others again, and four
/// times as many for each further one: three interrupts in the wrong moments look like one. With
/// 10 % of new flows a packet of a watched port takes 405 cycles, and of others 200.
const CHEAP_COUNT_MIN: u32 = 64;
/// Expensive misses of a port that are counted.
const EXPENSIVE_COUNT_MAX: u32 = 12;
/// Expensive misses from which on a port's misses are timed as they are decided about.
const PROVEN_COUNT_MIN: u32 = 3;
/// Ports that are remembered. Beyond, the one that owes least is forgotten.
const PORTS_COUNT_MAX: usize = 64;
/// Packets of a worker that wait because their ports have debts. They take part in each vector.
pub(super) const WAITING_COUNT_MAX: usize = 16;

/// A port that had an expensive miss lately.
struct CostlyPort {
    port: PortNo,
    /// Nanoseconds that its misses took beyond what they may take, and that are not paid.
    debt: u64,
    /// When it had the last one.
    seen_ms: u64,
    /// How many of them it had.
    expensive: u32,
    /// Misses since the last one.
    cheap: u32,
}

impl CostlyPort {
    /// True if its misses are decided about one by one.
    fn is_watched(&self) -> bool {
        self.debt > 0 || self.cheap < CHEAP_COUNT_MIN << (2 * (self.expensive - 1))
    }
}

/// The ports of a worker that had an expensive miss lately.
pub(crate) struct CostlyPorts {
    /// [`MISS_NS_MAX`] in cycles.
    miss_cycles: u64,
    ports: Vec<CostlyPort>,
    /// Nanoseconds of debts that were made in this iteration.
    made: u64,
}

impl Default for CostlyPorts {
    fn default() -> Self {
        let miss_cycles = MISS_NS_MAX * (cycles_per_second() / 1_000_000) / 1_000;
        CostlyPorts { miss_cycles, ports: Vec::new(), made: 0 }
    }
}

impl CostlyPorts {
    /// True if there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// True if the port's misses are decided about one by one.
    pub fn watches(&self, port: PortNo) -> bool {
        self.ports.iter().any(|p| p.port == port && p.is_watched())
    }

    /// True if the port's misses have to wait.
    pub fn owes(&self, port: PortNo) -> bool {
        self.ports.iter().any(|p| p.port == port && p.debt > 0)
    }

    /// True if the port had so many expensive misses that what it had was no interrupts: its misses
    /// are timed at once.
    pub fn is_proven(&self, port: PortNo) -> bool {
        self.ports.iter().any(|p| p.port == port && p.expensive >= PROVEN_COUNT_MIN)
    }

    /// True if one of so many misses, which took so many cycles together, may be an expensive one.
    #[inline]
    pub fn is_long(&self, cycles: u64, misses: usize) -> bool {
        cycles > self.miss_cycles * misses as u64
    }

    /// Charges a port with `misses` of one batch that took so many nanoseconds each; no more than
    /// one of them counts as expensive, as interrupts may have made them look so.
    #[cold]
    pub fn charge(&mut self, port: PortNo, took_ns: u64, misses: u64, now_ms: u64) {
        let excess = misses * took_ns.saturating_sub(MISS_NS_MAX);
        if excess == 0 {
            return;
        }
        self.made += excess;
        let known = self.ports.iter().position(|p| p.port == port);
        let i = known.unwrap_or_else(|| self.remember(port));
        let p = &mut self.ports[i];
        (p.debt, p.seen_ms, p.cheap) = (p.debt + excess, now_ms, 0);
        p.expensive = (p.expensive + 1).min(EXPENSIVE_COUNT_MAX);
    }

    fn remember(&mut self, port: PortNo) -> usize {
        if self.ports.len() >= PORTS_COUNT_MAX {
            self.ports.sort_unstable_by_key(|p| std::cmp::Reverse(p.debt));
            self.ports.pop();
        }
        self.ports.push(CostlyPort { port, debt: 0, seen_ms: 0, expensive: 0, cheap: 0 });
        self.ports.len() - 1
    }

    /// Counts a miss of a watched port.
    pub fn count(&mut self, port: PortNo) {
        if let Some(p) = self.ports.iter_mut().find(|p| p.port == port) {
            p.cheap = p.cheap.saturating_add(1);
        }
    }

    /// Pays with time in which the worker slept.
    pub fn slept(&mut self, ns: u64) {
        self.pay(ns);
    }

    /// Ends an iteration that took so many nanoseconds. `alone`: no other ports had packets.
    #[cold]
    pub fn end_iteration(&mut self, took_ns: u64, alone: bool, now_ms: u64) {
        let rest = took_ns.saturating_sub(std::mem::take(&mut self.made));
        self.pay(if alone { rest } else { rest >> SHARE_SHIFT });
        self.ports.retain(|p| p.debt > 0 || now_ms < p.seen_ms + WATCHED_MS);
    }

    /// Pays the debts of all ports, the same of each.
    fn pay(&mut self, ns: u64) {
        let owing = self.ports.iter().filter(|p| p.debt > 0).count() as u64;
        let each = ns.checked_div(owing).unwrap_or(0);
        self.ports.iter_mut().for_each(|p| p.debt = p.debt.saturating_sub(each));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_long_waits_until_others_had_sixteen_times_as_much() {
        let mut c = CostlyPorts::default();
        c.charge(2, MISS_NS_MAX, 1, 5);
        c.charge(1, MISS_NS_MAX + 1000, 1, 5);
        assert!(c.watches(1) && c.owes(1) && !c.watches(2) && !c.owes(2));
        for _ in 0..16 {
            assert!(c.owes(1));
            c.end_iteration(if c.made > 0 { 2000 } else { 1000 }, false, 5);
        }
        // Sixteenths of 1,000 are rounded down.
        c.end_iteration(1000, false, 5);
        assert!(!c.owes(1) && c.watches(1));
        c.end_iteration(1, false, 5 + WATCHED_MS);
        assert!(c.is_empty(), "nothing happened for long");
    }

    #[test]
    fn time_that_nobody_else_wants_pays_at_once() {
        let mut c = CostlyPorts::default();
        c.charge(1, MISS_NS_MAX + 1000, 1, 5);
        c.end_iteration(1000, true, 5);
        assert!(c.owes(1), "not with the time that it has had");
        c.end_iteration(500, true, 5);
        assert!(c.owes(1));
        c.slept(500);
        assert!(!c.owes(1));
    }

    #[test]
    fn misses_that_took_long_together_are_suspected() {
        let c = CostlyPorts { miss_cycles: 100, ..CostlyPorts::default() };
        assert!(!c.is_long(300, 3) && c.is_long(301, 3));
    }

    /// Misses until the port is like others again.
    fn misses_until_trusted(c: &mut CostlyPorts) -> u32 {
        c.slept(u64::MAX);
        let mut n = 0;
        while c.watches(1) {
            c.count(1);
            n += 1;
        }
        n
    }

    #[test]
    fn who_takes_long_again_and_again_is_watched_for_longer() {
        let mut c = CostlyPorts::default();
        for more in 0..3 {
            c.charge(1, MISS_NS_MAX + 1, 16, 5);
            assert_eq!(c.ports[0].debt, 16);
            assert_eq!(misses_until_trusted(&mut c), CHEAP_COUNT_MIN << (2 * more));
            c.end_iteration(1, true, 6);
            assert!(!c.is_empty(), "its number of expensive misses is remembered");
        }
        (0..100).for_each(|_| c.charge(1, MISS_NS_MAX + 1, 1, 5));
        assert!(misses_until_trusted(&mut c) > 1 << 20);
    }

    #[test]
    fn very_many_ports_are_not_remembered() {
        let mut c = CostlyPorts::default();
        for port in 0..200 {
            c.charge(port, MISS_NS_MAX + 1 + u64::from(port), 1, 5);
        }
        assert!(c.ports.len() <= PORTS_COUNT_MAX && c.owes(199));
    }
}
