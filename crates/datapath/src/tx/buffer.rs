//! The packets that one worker has buffered for one port, and the port's limits.

use crate::messages::Route;
use crate::police::Policer;
use crate::stats::clock;
use crate::stats::port::PortCell;
use crate::stats::worker_stats::PerfCell;
use crate::tx::flush::FlushTimer;
use crate::tx::slow::{SendCost, SlowSends};
use packet::{Packet, VECTOR};
use std::sync::Arc;
use telemetry::Drop;

/// Burst size of a port whose queue prefetches in phases; smaller bursts wait for the end of the
/// vector. Half a vector, as the ring of such a port may not be much longer.
pub(super) const PHASED_BURST_PACKETS: usize = VECTOR / 2;

/// What became of a port's buffered packets.
pub(super) enum FlushOutcome {
    /// The packets that are left wait: another thread uses the queue, or the port is slow. Or no
    /// packet was left to be sent.
    Stays,
    /// The queue took the packets for which it has room.
    Taken {
        /// Why the other packets are dropped.
        left: Drop,
        /// The peer is to be notified ([`port::TxQueue::notifies`]).
        notifies: bool,
    },
}

/// A port to which a worker sends: its buffered packets, its queue, and its limits.
pub(super) struct TxPort {
    pub(super) stats: Arc<PortCell>,
    /// How many ports had got a number when this one did, itself among them.
    pub(super) nth: u64,
    pub(super) route: Route,
    pub(super) buf: Vec<Packet>,
    /// Bytes of the buffered packets.
    pub(super) bytes: u64,
    /// Length of the longest buffered packet, or more, bytes.
    pub(super) longest: usize,
    /// Longest frame that may be sent to the port, bytes.
    pub(super) limit: usize,
    /// The limit of what all workers together may send to the port (QoS).
    pub(super) policer: Option<Arc<Policer>>,
    /// Number of buffered packets, the first ones, that the policer has passed already.
    pub(super) passed: usize,
    /// Burst size: this many buffered packets are sent at once. A power of two.
    pub(super) full: usize,
    /// The queue may refuse packets that it took ([`port::TxQueue::refuses`]).
    pub(super) refuses: bool,
    /// The port is in [`super::buffered_ports::BufferedPorts::ports`].
    pub(super) listed: bool,
    /// The queue took less than it was given, and has not had room for a whole vector since.
    pub(super) was_full: bool,
    /// Packets of this vector to which [`TxPort::room`] has promised room.
    pub(super) promised: usize,
    pub(super) flush_timer: FlushTimer,
    pub(super) cost: SendCost,
}

impl TxPort {
    /// True if the queue prefetches what sending will touch ([`port::TxQueue::has_phases`]).
    #[inline]
    pub(super) fn is_phased(&self) -> bool {
        self.full == PHASED_BURST_PACKETS
    }

    /// True if the packet that was buffered last completed a burst.
    #[inline]
    pub(super) fn burst_is_complete(&self) -> bool {
        self.missing() == self.full
    }

    /// Number of packets until a burst is full.
    #[inline]
    pub(super) fn missing(&self) -> usize {
        self.full - (self.buf.len() & (self.full - 1))
    }

    /// How many of `n` packets the port has room for, see `TxState::room`.
    pub(super) fn room(&mut self, n: usize) -> usize {
        let before = self.buf.len() + self.promised;
        let room = match &mut self.route {
            Route::Queue(q) => q.room(before + VECTOR).saturating_sub(before),
            _ => n,
        };
        self.was_full = room < VECTOR;
        self.promised += room.min(n);
        room.min(n)
    }

    /// Drops the buffered packets for this reason.
    pub(super) fn drop_buffered(&mut self, why: Drop, to_free: &mut Vec<Packet>) {
        if !self.buf.is_empty() {
            self.stats.lost(why, self.buf.len() as u64);
            to_free.append(&mut self.buf);
        }
        (self.bytes, self.longest, self.passed) = (0, 0, 0);
    }

    /// Sends the buffered packets on the port's queue.
    pub(super) fn send_on_queue(
        &mut self,
        slow: &mut SlowSends,
        perf: &PerfCell,
        to_free: &mut Vec<Packet>,
    ) -> FlushOutcome {
        if self.longest > self.limit {
            self.drop_long(to_free);
        }
        if self.policer.is_some() {
            self.police(to_free);
        }
        let Route::Queue(q) = &mut self.route else { return FlushOutcome::Stays };
        if self.buf.is_empty() {
            return FlushOutcome::Stays;
        }
        let buf = &self.buf;
        let send = |from, enough| q.tx_some(&buf[from..], enough).min(buf.len() - from);
        let (n, stopped) = slow.send(&mut self.cost, buf.len(), send);
        let stays = n == 0 && q.is_busy() || stopped;
        if n == 0 && stays {
            return self.stay(to_free);
        }
        self.was_full |= n < buf.len() && !q.is_busy() && !stopped;
        if n == self.buf.len() {
            self.buf.clear();
        } else {
            self.buf.drain(..n);
            self.bytes -= bytes_of(&self.buf);
        }
        let n = n - if self.refuses { self.take_refused(to_free) } else { 0 };
        let Route::Queue(q) = &mut self.route else { return FlushOutcome::Stays };
        self.stats.tx_packets.add(n as u64);
        self.stats.tx_bytes.add(self.bytes);
        self.stats.tx_bursts.add(1);
        perf.tx_packets.add(n as u64);
        perf.tx_batches.add(1);
        if stopped {
            self.bytes = bytes_of(&self.buf);
            return self.stay(to_free);
        }
        let left = if q.is_busy() { Drop::TxBusy } else { Drop::TxFull };
        FlushOutcome::Taken { left, notifies: q.notifies() }
    }

    /// Lets the buffered packets wait, as many as a vector has; drops the last ones beyond.
    #[cold]
    fn stay(&mut self, to_free: &mut Vec<Packet>) -> FlushOutcome {
        if self.buf.len() > VECTOR {
            let is_busy = matches!(&self.route, Route::Queue(q) if q.is_busy());
            let before = to_free.len();
            to_free.extend(self.buf.drain(VECTOR..));
            let why = if is_busy { Drop::TxBusy } else { Drop::TxFull };
            self.count_dropped(why, &to_free[before..]);
        }
        self.passed = self.buf.len();
        FlushOutcome::Stays
    }

    /// Drops what the queue took and could not send; returns how many packets that are.
    #[cold]
    fn take_refused(&mut self, to_free: &mut Vec<Packet>) -> usize {
        let Route::Queue(q) = &mut self.route else { return 0 };
        let before = to_free.len();
        q.take_refused(to_free);
        let refused = &to_free[before..];
        self.count_dropped(Drop::TxFull, refused);
        refused.len()
    }

    /// Drops frames longer than the port takes.
    #[cold]
    fn drop_long(&mut self, to_free: &mut Vec<Packet>) {
        let before = to_free.len();
        to_free.extend(self.buf.extract_if(.., |p| p.len() > self.limit));
        self.count_dropped(Drop::TooLong, &to_free[before..]);
        self.longest = self.limit;
    }

    /// Drops packets beyond the port's limit.
    #[cold]
    fn police(&mut self, to_free: &mut Vec<Packet>) {
        let Some(policer) = &self.policer else { return };
        let (before, start) = (to_free.len(), self.passed.min(self.buf.len()));
        policer.run(clock::nanoseconds(clock::cycles()), &mut self.buf, start, to_free);
        self.count_dropped(Drop::TxPoliced, &to_free[before..]);
        self.passed = self.buf.len();
    }

    /// Counts buffered packets that were dropped for this reason.
    fn count_dropped(&mut self, why: Drop, dropped: &[Packet]) {
        self.stats.lost(why, dropped.len() as u64);
        self.bytes -= bytes_of(dropped);
    }
}

/// Sum of the packets' lengths, bytes.
fn bytes_of(packets: &[Packet]) -> u64 {
    packets.iter().map(|p| p.len() as u64).sum()
}
