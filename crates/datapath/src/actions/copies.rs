//! Limits the time that a worker spends on packets of which many copies are sent.
//!
//! A packet that is flooded to a bridge of 300 ports costs as much as 300 other packets, and all
//! packets of a port's share of a vector may be flooded. So each copy of a packet beyond
//! [`FREE_COPIES_MAX`] adds to a debt of its input port. While a port owes more than [`BURST_NS`],
//! its packets with so many copies are dropped (`action_time`); its other packets are executed.
//! Debts are paid with the time in which no other port has packets, and with a sixteenth of the
//! other time.
//!
//! Short lists of operations may recirculate several copies of a packet, and each copy may meet
//! such a list again. So each copy but the first of a recirculated packet adds to the debt, and
//! while its port owes too much, no list of that kind is executed for it. All ports of a worker
//! share the room for packets that wait to be looked up again, so a port may recirculate
//! [`RECIRCULATED_OF_PORT_MAX`] packets in an iteration.

use crate::debts::{Debts, SHARE_SHIFT};
use flow::PortNo;
use packet::VECTOR;
use telemetry::Drop;

/// Copies of a packet for which its port is not charged, in a thread that sends without system
/// calls.
const FREE_COPIES_MAX: usize = 16;
/// [`FREE_COPIES_MAX`] of the kernel worker.
pub(super) const KERNEL_FREE_COPIES_MAX: usize = 4;
/// What a copy is charged with, nanoseconds, in a thread that sends without system calls. Builds
/// for tests are slower.
const COPY_NS: u64 = 200 * SLOWNESS;
/// [`COPY_NS`] of the kernel worker: with 4 us, floods to 100 TAPs had 17 % of a busy thread's time
/// where they were to have 6 %.
const KERNEL_COPY_NS: u64 = 10_000 * SLOWNESS;
/// How many times as long a build for tests takes.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 10 } else { 1 };
/// Debt up to which a port's packets are executed, nanoseconds.
const BURST_NS: u64 = 2_000_000;
/// Packets of one port that may be recirculated in an iteration.
const RECIRCULATED_OF_PORT_MAX: u16 = 4 * VECTOR as u16;

/// The debts of ports whose packets are copied many times.
pub(crate) struct CopiesAccount {
    /// Copies of a packet for which its port is not charged.
    free: usize,
    /// What a copy is charged with, nanoseconds.
    copy_ns: u64,
    debts: Debts,
    /// Packets that were recirculated in this iteration, by port.
    recirculated: Vec<u16>,
    /// Ports with recirculated packets in this iteration.
    recirculating: Vec<PortNo>,
}

impl Default for CopiesAccount {
    fn default() -> Self {
        Self::new(FREE_COPIES_MAX, COPY_NS)
    }
}

impl CopiesAccount {
    /// The account of the kernel worker.
    pub fn of_kernel_worker() -> Self {
        Self::new(KERNEL_FREE_COPIES_MAX, KERNEL_COPY_NS)
    }

    fn new(free: usize, copy_ns: u64) -> Self {
        let (debts, recirculated, recirculating) = Default::default();
        CopiesAccount { free, copy_ns, debts, recirculated, recirculating }
    }

    /// True if no port owes anything or had packets recirculated in this iteration.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.debts.is_empty() && self.recirculating.is_empty()
    }

    /// True if the port owes something.
    pub fn owes(&self, port: PortNo) -> bool {
        self.debts.of(port).is_some()
    }

    /// True if the port owes so much that no packets of many copies are executed.
    pub fn owes_too_much(&self, port: PortNo) -> bool {
        self.debts.of(port).is_some_and(|ns| ns > BURST_NS)
    }

    /// Charges a port for a packet of so many copies. `again`: the packet was recirculated, so only
    /// its first copy is free. False: the packet is not to be executed. All ports that owe
    /// something share [`BURST_NS`] in an iteration.
    pub fn admit(&mut self, port: PortNo, copies: usize, again: bool) -> bool {
        let free = if again { 1 } else { self.free };
        let excess = copies.saturating_sub(free) as u64;
        if excess == 0 {
            return true;
        }
        let owes = self.debts.of(port).unwrap_or(0);
        let may = owes <= BURST_NS && (owes == 0 || self.debts.made() <= BURST_NS);
        if may {
            self.debts.charge(port, excess * self.copy_ns, 0);
        }
        may
    }

    /// Counts a packet of the port that is to be recirculated; the error says why it may not be.
    pub fn recirculate(&mut self, port: PortNo) -> Result<(), Drop> {
        let i = usize::from(port);
        if self.recirculated.len() <= i {
            self.recirculated.resize(i + 1, 0);
        }
        let n = &mut self.recirculated[i];
        match *n {
            0 => self.recirculating.push(port),
            RECIRCULATED_OF_PORT_MAX.. => return Err(Drop::RecircLimit),
            _ => {}
        }
        *n += 1;
        Ok(())
    }

    /// Ends an iteration that took so many nanoseconds, which pay debts. `alone`: only ports that
    /// owe something had packets.
    #[cold]
    pub fn end_iteration(&mut self, took_ns: u64, alone: bool) {
        self.recirculating.drain(..).for_each(|port| self.recirculated[usize::from(port)] = 0);
        let rest = took_ns.saturating_sub(self.debts.made()) >> SHARE_SHIFT;
        self.pay(if alone { u64::MAX } else { rest });
        self.debts.end_iteration(0, 0);
    }

    /// Pays the debts of all ports, the same of each, with so many nanoseconds.
    pub fn pay(&mut self, ns: u64) {
        self.debts.pay(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies of which five are a burst.
    const COPIES: usize = 16 + (BURST_NS / COPY_NS / 5) as usize;

    /// How many packets of so many copies of a port are executed in an iteration.
    fn executed(l: &mut CopiesAccount, port: PortNo) -> usize {
        (0..256).filter(|_| l.admit(port, COPIES, false)).count()
    }

    #[test]
    fn who_floods_has_a_burst_executed_and_then_a_sixteenth_of_what_others_take() {
        let mut l = CopiesAccount::default();
        assert!((0..256).all(|_| l.admit(1, 16, false)) && l.is_empty(), "short ones are free");
        assert_eq!(executed(&mut l, 1), 6);
        // What it took itself pays for nothing, and what others took for a sixteenth.
        l.end_iteration(BURST_NS / 5 * (6 + 32), false);
        assert_eq!(executed(&mut l, 1), 2, "four fifths, and one beyond the burst");
        assert!(
            l.admit(1, 16, false) && l.admit(2, 5_000, false),
            "who owes nothing has one executed"
        );
    }

    #[test]
    fn time_that_no_other_port_wants_pays() {
        let mut l = CopiesAccount::default();
        assert_eq!(executed(&mut l, 1), 6);
        l.end_iteration(1, true);
        assert!(l.is_empty());
        executed(&mut l, 1);
        l.end_iteration(0, false);
        assert!(l.owes(1));
        l.pay(2 * BURST_NS);
        l.end_iteration(0, false);
        assert!(!l.owes(1));
    }

    #[test]
    fn copies_of_what_is_looked_up_again_are_no_gift() {
        let mut l = CopiesAccount::default();
        assert!((0..5000).all(|_| l.admit(1, 1, true)) && l.is_empty());
        let most = (BURST_NS / COPY_NS) as usize + 1;
        assert_eq!((0..20_000).filter(|_| l.admit(1, 2, true)).count(), most);
        assert!(l.admit(2, 2, true) && !l.admit(2, 2, true));
        assert!(l.owes_too_much(1) && !l.owes_too_much(2));
    }

    #[test]
    fn who_has_very_many_packets_looked_up_again_leaves_others_room() {
        let recirculated = |l: &mut CopiesAccount, port| {
            (0..5000).filter(|_| l.recirculate(port) == Ok(())).count()
        };
        let most = usize::from(RECIRCULATED_OF_PORT_MAX);
        let mut l = CopiesAccount::default();
        assert_eq!([1, 2].map(|port| recirculated(&mut l, port)), [most; 2]);
        l.end_iteration(1, false);
        assert!(l.is_empty() && l.recirculate(1).is_ok());
    }

    #[test]
    fn all_ports_of_an_iteration_share_a_burst() {
        let mut l = CopiesAccount::default();
        let all: Vec<_> = (0..10).map(|port| executed(&mut l, port)).collect();
        assert_eq!(all, [6, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    }
}
