//! What waits to be sent to one port, and what the port takes.

use crate::messages::Route;
use crate::police::Policer;
use crate::stats::clock;
use crate::stats::port::PortCell;
use crate::stats::worker_stats::PerfCell;
use crate::tx::flush::FlushTimer;
use packet::{Packet, VECTOR};
use std::sync::Arc;
use telemetry::Drop;

/// Packets that go at once to a port whose queue has phases; fewer wait for the end of the vector.
/// Its ring is perhaps not much longer.
pub(super) const PHASED_BURST_PACKETS: usize = VECTOR / 2;

/// What became of a port's burst.
pub(super) enum FlushOutcome {
    /// Another thread has the queue, so it waits; or nothing of it was left to be sent.
    Stays,
    /// The queue took what it has room for.
    Taken {
        /// Why the others end here.
        left: Drop,
        /// The other side is to be notified ([`port::TxQueue::notifies`]).
        notifies: bool,
    },
}

/// A port, as this worker sends to it.
pub(super) struct TxPort {
    pub(super) stats: Arc<PortCell>,
    pub(super) route: Route,
    pub(super) buf: Vec<Packet>,
    /// Bytes of the buffered packets.
    pub(super) bytes: u64,
    /// Bytes of the longest of them, or more.
    pub(super) longest: usize,
    /// Longest frame that the port takes.
    pub(super) limit: usize,
    /// What the port may be sent, by all workers together.
    pub(super) policer: Option<Arc<Policer>>,
    /// Buffered packets that the policer has let pass already; the first ones.
    pub(super) passed: usize,
    /// Burst size: this many buffered packets are sent at once. A power of two.
    pub(super) full: usize,
    /// The port is in the list of those with packets that wait.
    pub(super) listed: bool,
    /// The queue took less than it was given, and has not had room for a vector since.
    pub(super) was_full: bool,
    /// Packets of this vector that were let pass because there is room for them.
    pub(super) promised: usize,
    pub(super) flush_timer: FlushTimer,
}

impl TxPort {
    /// Does the queue fetch ahead what sending will touch ([`port::TxQueue::has_phases`])?
    #[inline]
    pub(super) fn is_phased(&self) -> bool {
        self.full == PHASED_BURST_PACKETS
    }

    /// Has the packet that was just buffered completed a burst?
    #[inline]
    pub(super) fn burst_is_complete(&self) -> bool {
        self.missing() == self.full
    }

    /// Packets that are missing until a burst is full.
    #[inline]
    pub(super) fn missing(&self) -> usize {
        self.full - (self.buf.len() & (self.full - 1))
    }

    /// See `TxState::room`.
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

    /// Drops what is buffered, for this reason.
    pub(super) fn drop_buffered(&mut self, why: Drop, to_free: &mut Vec<Packet>) {
        if !self.buf.is_empty() {
            self.stats.lost(why, self.buf.len() as u64);
            to_free.append(&mut self.buf);
        }
        (self.bytes, self.longest, self.passed) = (0, 0, 0);
    }

    /// Sends what is buffered on the port's queue.
    pub(super) fn send_on_queue(
        &mut self,
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
        let n = q.tx(&self.buf).min(self.buf.len());
        if n == 0 && q.is_busy() && self.buf.len() < VECTOR {
            self.passed = self.buf.len();
            return FlushOutcome::Stays;
        }
        self.was_full |= n < self.buf.len() && !q.is_busy();
        if n == self.buf.len() {
            self.buf.clear();
        } else {
            self.buf.drain(..n);
            self.bytes -= bytes_of(&self.buf);
        }
        self.stats.tx_packets.add(n as u64);
        self.stats.tx_bytes.add(self.bytes);
        self.stats.tx_bursts.add(1);
        perf.tx_packets.add(n as u64);
        perf.tx_batches.add(1);
        let left = if q.is_busy() { Drop::TxBusy } else { Drop::TxFull };
        FlushOutcome::Taken { left, notifies: q.notifies() }
    }

    /// Drops frames that are longer than the port takes.
    #[cold]
    fn drop_long(&mut self, to_free: &mut Vec<Packet>) {
        let before = to_free.len();
        to_free.extend(self.buf.extract_if(.., |p| p.len() > self.limit));
        self.count_dropped(Drop::TooLong, &to_free[before..]);
        self.longest = self.limit;
    }

    /// Drops packets that are more than the port may be sent.
    #[cold]
    fn police(&mut self, to_free: &mut Vec<Packet>) {
        let Some(policer) = &self.policer else { return };
        let (before, start) = (to_free.len(), self.passed.min(self.buf.len()));
        policer.run(clock::nanoseconds(clock::cycles()), &mut self.buf, start, to_free);
        self.count_dropped(Drop::TxPoliced, &to_free[before..]);
        self.passed = self.buf.len();
    }

    fn count_dropped(&mut self, why: Drop, dropped: &[Packet]) {
        self.stats.lost(why, dropped.len() as u64);
        self.bytes -= bytes_of(dropped);
    }
}

fn bytes_of(packets: &[Packet]) -> u64 {
    packets.iter().map(|p| p.len() as u64).sum()
}
