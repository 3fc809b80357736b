//! Limits the part of an iteration that goes to ports to which sending takes long.
//!
//! The kernel worker sends by system calls, and other programs decide how long these take: with a
//! full table of neighbours the kernel takes 100 us for each ARP frame from a new sender, and a
//! container's filter rules run inside the call. Each packet may take [`PACKET_SEND_NS_MAX`]; the
//! time beyond that is its port's excess. In an iteration all ports together may have as excess a
//! sixteenth of the time that the iteration before took without excess. A packet that takes more
//! than is left is sent. The next slow packet waits until later iterations have paid for it; then
//! the ports that waited come first. An iteration that sends to slow ports only, or to none, pays
//! with a quarter of its time: the core may have other work, too.
//!
//! Ports to which sending takes long together get at most a fifth of the time that other ports
//! leave. A packet of another port waits for one slow packet, not for a vector of 256 (25 ms).

use crate::debts::SHARE_SHIFT;
use crate::stats::clock::{cycles, cycles_per_second};
use packet::BURST;

/// Time that sending one packet may take without excess, nanoseconds. A frame to a TAP takes 2 us,
/// one of 64 KiB 15.
const PACKET_SEND_NS_MAX: u64 = 20_000;
/// Excess that is owed, at most, in [`PACKET_SEND_NS_MAX`]: 0.5 ms, paid for in 2 to 8 ms. A single
/// long call owes nothing, as it also seems to take long when another thread has the core.
const OWED_PACKETS_MAX: i64 = 25;
/// Part of an iteration that served no other ports with which excess is paid.
const ALONE_SHARE_SHIFT: u32 = 2;
/// After a slow call, a port's estimate falls by this part with each call that is faster. So a
/// sender cannot hide slow packets by a fast one before each burst.
const ESTIMATE_FALL_SHIFT: u32 = 3;

/// The largest estimate, in [`PACKET_SEND_NS_MAX`]: a port in whose call another thread had the
/// core for long counts as slow for the next 21 calls only.
const ESTIMATE_PACKETS_MAX: u64 = 16;

/// What sending to one port takes.
#[derive(Default)]
pub(super) struct SendCost {
    /// Cycles per packet, an estimate in which the longest of recent calls counts most.
    estimate: u64,
    /// Cycles of excess that are not yet charged to the port ([`SendCost::take_excess`]).
    excess: u64,
}

impl SendCost {
    /// Cycles of excess since the last call.
    pub fn take_excess(&mut self) -> u64 {
        std::mem::take(&mut self.excess)
    }
}

/// A worker's account of excess. The default is a PMD thread's, which sends without system calls:
/// nothing is measured.
#[derive(Default)]
pub(super) struct SlowSends {
    /// [`PACKET_SEND_NS_MAX`] in cycles; 0: nothing is measured.
    packet: u64,
    /// Cycles of excess that are left in this iteration; negative: that have to be paid first.
    left: i64,
    /// Cycles of excess in this iteration.
    used: u64,
    /// True if this iteration had packets for ports that are not slow.
    has_others: bool,
}

impl SlowSends {
    /// The account of the kernel worker, which measures.
    pub fn measured() -> Self {
        let packet = PACKET_SEND_NS_MAX * (cycles_per_second() / 1_000_000) / 1_000;
        SlowSends { packet, ..SlowSends::default() }
    }

    /// True on the kernel worker.
    pub fn is_measured(&self) -> bool {
        self.packet != 0
    }

    /// Records that this iteration has packets for ports that are not slow.
    #[inline]
    pub fn serve_others(&mut self) {
        self.has_others = true;
    }

    /// Ends an iteration that took this many cycles.
    #[inline]
    pub fn end_iteration(&mut self, took: u64) {
        let others = took.saturating_sub(std::mem::take(&mut self.used));
        let alone = !std::mem::take(&mut self.has_others);
        let paid = if alone { others >> ALONE_SHARE_SHIFT } else { 0 };
        self.left = self.left.saturating_add_unsigned(paid).min(0) + (others >> SHARE_SHIFT) as i64;
    }

    /// True if slow packets were sent in this iteration, and no more of them may be.
    #[inline]
    pub fn is_used_up(&self) -> bool {
        self.used > 0 && self.left <= 0
    }

    /// True if packets to this port take longer than they may.
    #[inline]
    pub fn is_slow(&self, cost: &SendCost) -> bool {
        cost.estimate > self.packet
    }

    /// How many packets the port may be given in one call: as many as the excess allows, and one at
    /// least where nothing is owed; 0: none in this iteration.
    fn allowed(&self, cost: &SendCost) -> usize {
        match cost.estimate.checked_sub(self.packet) {
            None | Some(0) => BURST,
            Some(_) if self.left < 0 || self.is_used_up() => 0,
            Some(excess) => (self.left as u64 / excess).clamp(1, BURST as u64) as usize,
        }
    }

    /// Records that a call sent `n` packets in `took` cycles.
    fn record(&mut self, cost: &mut SendCost, n: usize, took: u64) {
        let n = n.max(1) as u64;
        let was_slow = self.is_slow(cost);
        let fallen = cost.estimate - (cost.estimate >> ESTIMATE_FALL_SHIFT);
        cost.estimate = fallen.max((took / n).min(ESTIMATE_PACKETS_MAX * self.packet));
        let excess = took.saturating_sub(n * self.packet);
        if excess > 0 {
            let owed_max = if was_slow { OWED_PACKETS_MAX * self.packet as i64 } else { 0 };
            self.left = self.left.saturating_sub_unsigned(excess).max(-owed_max);
            self.used += excess;
            cost.excess += excess;
            port::charge_penalty(excess);
        }
    }

    /// Sends up to `n` packets by `send`, which is given the first one's index and how many are
    /// enough for one call, and returns how many it sent. Returns how many were sent in all, and
    /// whether the others have to wait for the next iteration.
    #[inline]
    pub fn send(
        &mut self,
        cost: &mut SendCost,
        n: usize,
        mut send: impl FnMut(usize, usize) -> usize,
    ) -> (usize, bool) {
        if !self.is_measured() {
            return (send(0, n), false);
        }
        if !self.is_slow(cost) {
            self.serve_others();
        }
        let mut sent = 0;
        while sent < n {
            let most = self.allowed(cost).min(n - sent);
            if most == 0 {
                return (sent, true);
            }
            let began = cycles();
            let taken = send(sent, most);
            self.record(cost, taken, cycles() - began);
            sent += taken;
            if taken < most {
                break;
            }
        }
        (sent, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: SlowSends = SlowSends { packet: 100, left: 0, used: 0, has_others: false };

    /// How many of `n` packets that take `each` cycles one iteration sends, after one that took
    /// 16,000 cycles without excess and had packets for other ports.
    fn iteration(slow: &mut SlowSends, cost: &mut SendCost, n: usize, each: u64) -> usize {
        slow.serve_others();
        slow.end_iteration(slow.used + 16_000);
        let mut sent = 0;
        while sent < n {
            let most = slow.allowed(cost).min(n - sent);
            if most == 0 {
                break;
            }
            slow.record(cost, most, most as u64 * each);
            sent += most;
        }
        sent
    }

    #[test]
    fn fast_ports_are_never_stopped() {
        let (mut slow, mut cost) = (SLOW, SendCost::default());
        assert_eq!(iteration(&mut slow, &mut cost, 10_000, 100), 10_000);
        assert!(!slow.is_slow(&cost) && cost.take_excess() == 0);
    }

    #[test]
    fn a_slow_port_gets_the_excess_and_its_share_does_not_grow_by_fast_packets() {
        let (mut slow, mut cost) = (SLOW, SendCost::default());
        assert_eq!(iteration(&mut slow, &mut cost, 10_000, 1_100), BURST, "its first burst");
        // An iteration gives 1,000 cycles, a packet's excess; the first long call owes nothing.
        for _ in 0..3 {
            assert_eq!(iteration(&mut slow, &mut cost, 10_000, 1_100), 1);
        }
        assert!((2..=5).contains(&iteration(&mut slow, &mut cost, 10_000, 300)));
        assert_eq!(iteration(&mut slow, &mut cost, 1, 10), 1);
        assert!(slow.is_slow(&cost) && iteration(&mut slow, &mut cost, 10_000, 1_100) <= 2);
        assert!(cost.take_excess() >= 33 * 1_000);
    }

    #[test]
    fn a_slow_port_whose_iterations_serve_no_other_has_a_fifth_of_the_time() {
        let (mut slow, mut cost) = (SLOW, SendCost { estimate: 2_100, excess: 0 });
        for _ in 0..10 {
            slow.end_iteration(slow.used + 4 * 2_000);
            assert_eq!(slow.allowed(&cost), 1);
            slow.record(&mut cost, 1, 2_100);
        }
    }

    /// A packet that takes as much as several iterations earn is sent once in so many.
    #[test]
    fn packets_that_take_many_iterations_are_paid_for_by_them_or_by_those_without_others() {
        for iterations in [1, 2] {
            let (mut slow, mut cost) = (SLOW, SendCost::default());
            let each = 100 + iterations * 1_000;
            cost.estimate = each;
            let sent: usize = (0..600).map(|_| iteration(&mut slow, &mut cost, 1, each)).sum();
            let most = 600 / iterations as usize + 1;
            assert!((most - 1..=most).contains(&sent), "{sent} of {most}");
            slow.end_iteration(slow.used + 4 * each);
            assert_eq!(slow.allowed(&cost), 1, "one packet at least");
        }
    }

    #[test]
    fn a_long_call_makes_a_port_slow_for_some_calls_only() {
        let (mut slow, mut cost) = (SLOW, SendCost::default());
        slow.record(&mut cost, 1, 1_000_000);
        let calls = (0..100).take_while(|_| {
            slow.record(&mut cost, 1, 20);
            slow.is_slow(&cost)
        });
        assert_eq!(calls.count(), 20);
    }

    #[test]
    fn what_is_owed_is_bounded() {
        let (mut slow, mut cost) = (SLOW, SendCost::default());
        slow.record(&mut cost, 1, 1_000_000);
        assert_eq!(slow.left, 0, "another thread may have had the core");
        slow.record(&mut cost, 1, 1_000_000);
        slow.serve_others();
        slow.end_iteration(slow.used + 16 * 2_500);
        assert_eq!(slow.allowed(&cost), 1);
    }
}
