//! How much of a worker's time packets get of which many copies are sent.
//!
//! A packet that is flooded to a bridge of 300 ports costs as much as 300 others, and its port's
//! share of a vector would be as many such packets. So the copies of a packet beyond
//! [`LongPrograms::free`] are a debt of its port, in cycles: what a copy took lately. A port whose
//! debt is more than [`BURST_NS`] has no packet with so many copies executed; these are
//! dropped (`action_time`), and its other packets are not concerned. Debts are paid with the time
//! in which no other port has packets, and with half of the rest. While there were no such others
//! for ten seconds, a port may owe more.
//!
//! Short lists may recirculate several copies of a packet, each of which meets such a list again.
//! So what a port's packets recirculate in an iteration beyond [`RECIRCULATED_FREE`] counts as
//! copies as well, and is bounded by [`RECIRCULATED_MAX`], as all ports of a worker share the
//! room for packets that wait to be looked up again.

use crate::stats::clock::cycles_per_second;
use flow::PortNo;
use packet::VECTOR;
use telemetry::Drop;

/// Copies of a packet that cost nothing extra: of a thread that sends without system calls, and of
/// the kernel worker.
const FREE: usize = 16;
const FREE_IN_KERNEL: usize = 4;
/// What a copy is supposed to take before it was measured, nanoseconds: likewise.
const COPY_NS: u64 = 200;
const COPY_IN_KERNEL_NS: u64 = 4_000;
/// Debt up to which a port's packets are executed, nanoseconds.
const BURST_NS: u64 = 2_000_000;
/// How many times as much it may be while no other port had packets for [`CONTENDED_MS`].
const ALONE_FACTOR: u64 = 4;
/// So long other ports are taken into account after they had packets, milliseconds.
const CONTENDED_MS: u64 = 10_000;
/// Part of the time of others with which debts are paid.
const SHARE_SHIFT: u32 = 1;
/// How much of the difference to what was measured the estimate takes over.
const ESTIMATE_SHIFT: u32 = 3;
/// A vector counts as this many times the estimate at most: its thread may have lost its core.
const ESTIMATE_RISE_MAX: u64 = 4;
/// Packets of one port that may be recirculated in an iteration and cost nothing extra.
const RECIRCULATED_FREE: u16 = VECTOR as u16;
/// Packets of one port that may be recirculated in an iteration.
const RECIRCULATED_MAX: u16 = 4 * VECTOR as u16;
/// Ports that are remembered. Beyond, the one that owes least is forgotten.
const PORTS_COUNT_MAX: usize = 64;

/// The debts of ports whose packets go to many ports.
pub(crate) struct LongPrograms {
    free: usize,
    /// Cycles that a copy is expected to take, and a packet without such copies.
    copy: u64,
    packet: u64,
    /// [`BURST_NS`] in cycles.
    burst: u64,
    /// When an other port last had packets while one owed something.
    contended_ms: Option<u64>,
    /// What a port may owe now, cycles.
    limit: u64,
    /// Ports, and the cycles that they owe.
    debts: Vec<(PortNo, u64)>,
    /// Copies of this iteration that made debts, and these debts.
    copies: u64,
    made: u64,
    /// By port: how many packets were recirculated in this iteration, and the ports that had some.
    recirculated: Vec<u16>,
    recirculating: Vec<PortNo>,
}

impl Default for LongPrograms {
    fn default() -> Self {
        Self::new(FREE, COPY_NS)
    }
}

impl LongPrograms {
    /// The kernel worker's.
    pub fn of_kernel_worker() -> Self {
        Self::new(FREE_IN_KERNEL, COPY_IN_KERNEL_NS)
    }

    fn new(free: usize, copy_ns: u64) -> Self {
        let in_cycles = |ns: u64| (ns * (cycles_per_second() / 1_000_000) / 1_000).max(1);
        let (copy, burst) = (in_cycles(copy_ns), in_cycles(BURST_NS));
        LongPrograms {
            free,
            copy,
            packet: copy,
            burst,
            contended_ms: None,
            limit: burst * ALONE_FACTOR,
            debts: Vec::new(),
            copies: 0,
            made: 0,
            recirculated: Vec::new(),
            recirculating: Vec::new(),
        }
    }

    /// True if no port owes anything or had packets recirculated in this iteration.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.debts.is_empty() && self.recirculating.is_empty()
    }

    /// True if the port owes something.
    pub fn owes(&self, port: PortNo) -> bool {
        self.debts.iter().any(|d| d.0 == port)
    }

    /// Charges the port with a packet of so many copies. False: it is not to be executed.
    pub fn admit(&mut self, port: PortNo, copies: usize) -> bool {
        let excess = copies.saturating_sub(self.free) as u64;
        if excess == 0 {
            return true;
        }
        let known = self.debts.iter().position(|d| d.0 == port);
        let i = known.unwrap_or_else(|| self.remember(port));
        let debt = &mut self.debts[i].1;
        if *debt > self.limit || *debt > 0 && self.made > self.limit {
            return false;
        }
        let cost = excess * self.copy;
        *debt += cost;
        self.made += cost;
        self.copies += excess;
        true
    }

    /// Counts a packet of the port that is to be looked up again. The error is why it may not be.
    pub fn recirculate(&mut self, port: PortNo) -> Result<(), Drop> {
        let i = usize::from(port);
        if self.recirculated.len() <= i {
            self.recirculated.resize(i + 1, 0);
        }
        let n = &mut self.recirculated[i];
        match *n {
            0 => self.recirculating.push(port),
            RECIRCULATED_MAX.. => return Err(Drop::RecircLimit),
            _ => {}
        }
        *n += 1;
        if *n > RECIRCULATED_FREE && !self.admit(port, self.free + 1) {
            return Err(Drop::ActionTime);
        }
        Ok(())
    }

    #[cold]
    fn remember(&mut self, port: PortNo) -> usize {
        if self.debts.len() >= PORTS_COUNT_MAX {
            self.debts.sort_unstable_by_key(|d| std::cmp::Reverse(d.1));
            self.debts.pop();
        }
        self.debts.push((port, 0));
        self.debts.len() - 1
    }

    /// Ends an iteration of `packets` that took so many cycles. `alone`: no port had packets that
    /// owes nothing.
    #[cold]
    pub fn end_iteration(&mut self, took: u64, packets: usize, alone: bool, now_ms: u64) {
        if !alone {
            self.contended_ms = Some(now_ms);
        }
        let contended = self.contended_ms.is_some_and(|at| now_ms < at + CONTENDED_MS);
        self.limit = if contended { self.burst } else { self.burst * ALONE_FACTOR };
        self.recirculating.drain(..).for_each(|port| self.recirculated[usize::from(port)] = 0);
        let copies = std::mem::take(&mut self.copies);
        let made = std::mem::take(&mut self.made);
        let packets = packets as u64;
        let rest = took.saturating_sub(packets * self.packet);
        match (rest.checked_div(copies), took.checked_div(packets)) {
            (Some(measured), _) => approach(&mut self.copy, measured),
            (None, Some(measured)) => approach(&mut self.packet, measured),
            (None, None) => {}
        }
        self.pay(if alone { u64::MAX } else { took.saturating_sub(made) >> SHARE_SHIFT });
    }

    /// Pays the debts of all ports, the same of each, with so many cycles.
    pub fn pay(&mut self, cycles: u64) {
        let each = cycles.checked_div(self.debts.len() as u64).unwrap_or(0);
        self.debts.retain_mut(|d| {
            d.1 = d.1.saturating_sub(each);
            d.1 > 0
        });
    }
}

/// Has an estimate follow what was measured.
fn approach(estimate: &mut u64, measured: u64) {
    let change = measured.min(*estimate * ESTIMATE_RISE_MAX) as i64 - *estimate as i64;
    let step = (change >> ESTIMATE_SHIFT).max(change.signum());
    *estimate = (*estimate as i64 + step).max(1) as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port may owe 5,000 cycles, a copy takes 10.
    fn long() -> LongPrograms {
        LongPrograms { copy: 10, packet: 1, burst: 5_000, limit: 5_000, ..LongPrograms::default() }
    }

    /// How many packets of 116 copies of a port are executed in an iteration.
    fn executed(l: &mut LongPrograms, port: PortNo) -> usize {
        (0..256).filter(|_| l.admit(port, 116)).count()
    }

    #[test]
    fn who_floods_has_a_burst_executed_and_then_half_of_what_others_take() {
        let mut l = long();
        assert!((0..256).all(|_| l.admit(1, 16)) && l.is_empty(), "short ones are free");
        assert_eq!(executed(&mut l, 1), 6);
        // What it took itself pays for nothing, and what others took for half.
        l.end_iteration(6_000 + 4_000, 4_000, false, 1);
        assert_eq!(executed(&mut l, 1), 2, "4,000, and one beyond 5,000");
        assert!(l.admit(1, 16) && l.admit(2, 5_000), "who owes nothing has one executed");
    }

    #[test]
    fn time_that_no_other_port_wants_pays() {
        let mut l = long();
        assert_eq!(executed(&mut l, 1), 6);
        l.end_iteration(1, 6, true, 1);
        assert!(l.is_empty());
        executed(&mut l, 1);
        l.end_iteration(0, 6, false, 1);
        assert!(l.owes(1));
        l.pay(100_000);
        assert!(!l.owes(1));
    }

    #[test]
    fn who_has_been_alone_for_long_may_owe_more() {
        let mut l = LongPrograms { limit: 20_000, ..long() };
        assert_eq!(executed(&mut l, 1), 21);
        l.end_iteration(1, 1, false, 5);
        assert_eq!(executed(&mut l, 1), 0);
        for (ms, more) in [(6, 6), (4 + CONTENDED_MS, 6), (5 + CONTENDED_MS, 21)] {
            l.end_iteration(1, 1, true, ms);
            l.copy = 10;
            assert_eq!(executed(&mut l, 1), more, "{ms}");
        }
    }

    #[test]
    fn who_has_very_many_packets_recirculated_pays_and_leaves_others_room() {
        let recirculated = |l: &mut LongPrograms, port| {
            let all: Vec<_> = (0..5000).map(|_| l.recirculate(port)).collect();
            let count = |r| all.iter().filter(|x| **x == r).count();
            [Ok(()), Err(Drop::ActionTime), Err(Drop::RecircLimit)].map(count)
        };
        let most = usize::from(RECIRCULATED_MAX);
        let mut l = long();
        assert_eq!(recirculated(&mut l, 1), [VECTOR + 501, most - VECTOR - 501, 5000 - most]);
        assert_eq!(recirculated(&mut l, 2), [VECTOR + 1, most - VECTOR - 1, 5000 - most]);
        l.end_iteration(1, 1, true, 1);
        assert!(l.is_empty() && l.recirculate(1).is_ok());
        let mut l = LongPrograms { limit: u64::MAX, ..long() };
        assert_eq!(recirculated(&mut l, 1), [most, 0, 5000 - most]);
    }

    #[test]
    fn all_ports_of_an_iteration_share_a_burst() {
        let mut l = long();
        let all: Vec<_> = (0..10).map(|port| executed(&mut l, port)).collect();
        assert_eq!(all, [6, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn the_estimate_follows_what_is_measured_and_no_lost_core() {
        let mut l = long();
        executed(&mut l, 1);
        l.end_iteration(u64::MAX >> 1, 6, true, 1);
        assert_eq!(l.copy, 10 + (40 - 10) / 8);
        for _ in 0..100 {
            l.admit(1, 1016);
            l.end_iteration(100_000, 0, true, 1);
        }
        assert!((90..=100).contains(&l.copy), "{}", l.copy);
        // Packets that cost 50 each are no reason for copies to seem cheaper.
        (0..100).for_each(|_| l.end_iteration(50 * 200, 200, true, 1));
        assert!((40..=50).contains(&l.packet) && l.copy >= 90, "{}", l.packet);
        for _ in 0..100 {
            l.admit(1, 116);
            l.end_iteration(10_000 + 50 * 200, 200, true, 1);
        }
        assert!((90..=120).contains(&l.copy), "{}", l.copy);
    }

    #[test]
    fn very_many_ports_are_not_remembered() {
        let mut l = long();
        (0..200).for_each(|port| _ = l.admit(port, 100));
        assert!(l.debts.len() <= PORTS_COUNT_MAX && l.owes(199));
    }
}
