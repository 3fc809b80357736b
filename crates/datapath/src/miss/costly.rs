//! Ports whose missed packets cause the pipeline much work.
//!
//! The tables of a bridge decide what a miss costs: up to 65,536 steps, some milliseconds. If all
//! flows of a port are new, each of its packets costs that, and ports of other bridges on the same
//! thread would wait for a vector of them. So each miss may take [`MISS_STEPS_MAX`] steps. Steps
//! beyond that are a debt of the packet's port, and the port is costly: the pipeline is asked about
//! its misses one by one. While a port has a debt, its missed packets wait, and those that are too
//! many to wait are dropped. Debts are paid with the time that no other port wants, and with a
//! sixteenth of the other time.

use crate::debts::{Debts, SHARE_SHIFT};
use crate::miss::policy::RETRY_INTERVALS;
use crate::miss::rates::INTERVAL_MS;
use flow::PortNo;

/// Steps that a miss may take without a debt ([`action::Decision::steps`]).
const MISS_STEPS_MAX: u32 = 256;
/// What a step costs, nanoseconds: 38 among groups, 100 among very many masks. Builds for tests are
/// slower.
const STEP_NS: u64 = if cfg!(debug_assertions) { 1_000 } else { 64 };
/// How long a port is costly after its last expensive miss, milliseconds.
const COSTLY_MS: u64 = RETRY_INTERVALS as u64 * INTERVAL_MS;

/// The ports of a worker that had an expensive miss lately, and what they owe.
#[derive(Default)]
pub(crate) struct CostlyPorts(Debts);

impl CostlyPorts {
    /// True if no port is costly.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the port's misses are decided about one by one.
    pub fn has(&self, port: PortNo) -> bool {
        self.0.of(port).is_some()
    }

    /// True if the port's misses have to wait.
    pub fn owes(&self, port: PortNo) -> bool {
        self.0.of(port).is_some_and(|ns| ns > 0)
    }

    /// Charges a port for a miss that took so many steps.
    #[inline]
    pub fn charge(&mut self, port: PortNo, steps: u32, now_ms: u64) {
        if steps > MISS_STEPS_MAX {
            self.0.charge(port, u64::from(steps - MISS_STEPS_MAX) * STEP_NS, now_ms);
        }
    }

    /// Pays debts with the time for which the worker slept.
    pub fn slept(&mut self, ns: u64) {
        self.0.pay(ns);
    }

    /// Ends an iteration that took so many nanoseconds, which pay debts. `alone`: only costly
    /// ports had packets.
    #[cold]
    pub fn end_iteration(&mut self, took_ns: u64, alone: bool, now_ms: u64) {
        let rest = took_ns.saturating_sub(self.0.made());
        self.0.pay(if alone { rest } else { rest >> SHARE_SHIFT });
        self.0.end_iteration(now_ms, COSTLY_MS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A debt of so many steps.
    fn charge(c: &mut CostlyPorts, port: PortNo, steps: u32) {
        c.charge(port, MISS_STEPS_MAX + steps, 5);
    }

    #[test]
    fn who_causes_much_work_waits_until_others_had_sixteen_times_as_much() {
        let mut c = CostlyPorts::default();
        charge(&mut c, 2, 0);
        charge(&mut c, 1, 1000);
        assert!(c.has(1) && c.owes(1) && !c.has(2) && !c.owes(2));
        for _ in 0..16 {
            assert!(c.owes(1));
            let others = 1000 * STEP_NS;
            c.end_iteration(if c.0.made() > 0 { 2 * others } else { others }, false, 5);
        }
        assert!(!c.owes(1) && c.has(1));
        c.end_iteration(1, false, 5 + COSTLY_MS);
        assert!(c.is_empty(), "nothing happened for long");
    }

    #[test]
    fn time_that_nobody_else_wants_pays_at_once() {
        let mut c = CostlyPorts::default();
        charge(&mut c, 1, 1000);
        c.end_iteration(1000 * STEP_NS, true, 5);
        assert!(c.owes(1), "not with the time that it has had");
        c.end_iteration(500 * STEP_NS, true, 5);
        assert!(c.owes(1));
        c.slept(500 * STEP_NS);
        assert!(!c.owes(1));
    }
}
