//! Ports whose missed packets take the pipeline long.
//!
//! What a miss costs is up to the tables of its bridge: 65,536 steps at most, some milliseconds.
//! Where the flows of a port are new all the time, that is the cost of each of its packets, and
//! ports of other bridges on the thread would wait for a vector of them. So each miss may take
//! [`MISS_NS_MAX`]. A port with one that took longer is watched: its misses are decided about one
//! by one, and what they take of the thread's time on the processor beyond that is the port's debt.
//! While a port has a debt its missed packets wait, and those that are too many to wait are
//! dropped. Debts are paid with the time that no other port wants, and with a sixteenth of the
//! rest.
//!
//! The cycle counter shows which misses took long. It also counts while the thread does not run,
//! and memory may have been cold or new. So a watched port's packet that took long is decided about
//! again, and the thread's time on the processor then says what the port owes: misses that take no
//! longer than they may cost no system call.

use crate::stats::clock::cycles_per_second;
use flow::PortNo;

/// What a miss may take, nanoseconds. Those of OVN's pipelines take less than half of it; builds
/// for tests are slower.
pub(super) const MISS_NS_MAX: u64 = if cfg!(debug_assertions) { 1_000_000 } else { 20_000 };
/// Part of the time of others with which debts are paid.
const SHARE_SHIFT: u32 = 4;
/// A port whose last expensive miss is longer ago is like others again, milliseconds.
const WATCHED_MS: u64 = 10_000;
/// Misses after which a port that was watched for nothing is like others again: its thread did not
/// run for a moment.
const CHEAP_COUNT_MAX: u32 = 64;
/// Ports that are watched at once. Beyond, the one that owes least is forgotten.
const PORTS_COUNT_MAX: usize = 64;
/// Packets of a worker that wait because their ports have debts. They take part in each vector.
pub(super) const WAITING_COUNT_MAX: usize = 16;

/// A port that had an expensive miss lately.
struct CostlyPort {
    port: PortNo,
    /// Nanoseconds that its misses took beyond what they may take, and that are not paid.
    debt: u64,
    seen_ms: u64,
    /// Misses that cost no more than they may, as long as it had no others; None: it had.
    cheap: Option<u32>,
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

    /// True if the port's misses are looked at one by one.
    pub fn has(&self, port: PortNo) -> bool {
        self.ports.iter().any(|p| p.port == port)
    }

    /// True if the port's misses have to wait.
    pub fn owes(&self, port: PortNo) -> bool {
        self.ports.iter().any(|p| p.port == port && p.debt > 0)
    }

    /// Watches the ports of missed packets, one for each, if the pipeline took so many cycles for
    /// all of them that one was expensive.
    #[inline]
    pub fn suspect(&mut self, ports: impl ExactSizeIterator<Item = PortNo>, took: u64, now: u64) {
        if took > self.miss_cycles * ports.len() as u64 {
            ports.for_each(|port| self.watch(port, now));
        }
    }

    #[cold]
    fn watch(&mut self, port: PortNo, now_ms: u64) {
        if self.has(port) {
            return;
        }
        if self.ports.len() >= PORTS_COUNT_MAX {
            self.ports.sort_unstable_by_key(|p| std::cmp::Reverse(p.debt));
            self.ports.pop();
        }
        self.ports.push(CostlyPort { port, debt: 0, seen_ms: now_ms, cheap: Some(0) });
    }

    /// True if a miss that took so many cycles may have been an expensive one.
    pub fn is_long(&self, cycles: u64) -> bool {
        cycles > self.miss_cycles
    }

    /// Charges a watched port with a miss that took so many nanoseconds.
    pub fn charge(&mut self, port: PortNo, took_ns: u64, now_ms: u64) {
        let excess = took_ns.saturating_sub(MISS_NS_MAX);
        let Some(i) = self.ports.iter().position(|p| p.port == port) else { return };
        let p = &mut self.ports[i];
        if excess > 0 {
            (p.debt, p.seen_ms) = (p.debt + excess, now_ms);
        }
        p.cheap = p.cheap.filter(|_| excess == 0).map(|n| n + 1);
        self.made += excess;
        if p.cheap.is_some_and(|n| n >= CHEAP_COUNT_MAX) {
            self.ports.swap_remove(i);
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

    fn watching(ports: &[PortNo]) -> CostlyPorts {
        let mut c = CostlyPorts { miss_cycles: 100, ..CostlyPorts::default() };
        c.suspect(ports.iter().copied(), 100 * ports.len() as u64, 5);
        assert!(c.is_empty(), "as long as they may");
        c.suspect(ports.iter().copied(), 100 * ports.len() as u64 + 1, 5);
        c
    }

    #[test]
    fn who_takes_long_waits_until_others_had_sixteen_times_as_much() {
        let mut c = watching(&[1, 1, 2]);
        assert!(c.has(1) && c.has(2) && !c.owes(1) && !c.owes(2), "it may have been either");
        c.charge(2, MISS_NS_MAX, 5);
        c.charge(1, MISS_NS_MAX + 1000, 5);
        assert!(c.owes(1) && !c.owes(2));
        for _ in 0..16 {
            assert!(c.owes(1));
            c.end_iteration(if c.made > 0 { 2000 } else { 1000 }, false, 5);
        }
        // Sixteenths of 1,000 are rounded down.
        c.end_iteration(1000, false, 5);
        assert!(!c.owes(1) && c.has(1));
        c.end_iteration(1, false, 5 + WATCHED_MS);
        assert!(c.is_empty(), "nothing happened for long");
    }

    #[test]
    fn time_that_nobody_else_wants_pays_at_once() {
        let mut c = watching(&[1]);
        c.charge(1, MISS_NS_MAX + 1000, 5);
        c.end_iteration(1000, true, 5);
        assert!(c.owes(1), "not with the time that it has had");
        c.end_iteration(500, true, 5);
        assert!(c.owes(1));
        c.slept(500);
        assert!(!c.owes(1));
    }

    #[test]
    fn who_was_suspected_for_nothing_is_soon_like_others() {
        let mut c = watching(&[1, 2]);
        c.charge(1, MISS_NS_MAX + 1, 5);
        for _ in 0..CHEAP_COUNT_MAX {
            assert!(c.has(2));
            c.charge(1, MISS_NS_MAX, 5);
            c.charge(2, MISS_NS_MAX, 5);
        }
        assert!(c.has(1) && !c.has(2));
    }

    #[test]
    fn very_many_ports_are_not_remembered() {
        let mut c = watching(&[0]);
        for port in 1..200 {
            c.suspect([port].into_iter(), 101, 5);
            c.charge(port, MISS_NS_MAX + u64::from(port), 5);
        }
        assert!(c.ports.len() <= PORTS_COUNT_MAX && c.owes(199));
    }
}
