//! What waits to be sent to one port, and what the port takes.

use crate::messages::Route;
use crate::police::Policer;
use crate::stats::clock;
use crate::stats::port::PortCell;
use crate::tx::flush::FlushTimer;
use packet::{Packet, VECTOR};
use std::sync::Arc;
use telemetry::Drop;

pub(super) struct TxPort {
    pub(super) stats: Arc<PortCell>,
    pub(super) route: Route,
    pub(super) buf: Vec<Packet>,
    /// Bytes of what is buffered, and the longest frame of it.
    pub(super) bytes: u64,
    pub(super) longest: usize,
    /// Longest frame that the port takes.
    pub(super) limit: usize,
    /// What the port may be sent, by all workers together.
    pub(super) policer: Option<Arc<Policer>>,
    /// Buffered packets that the policer has let pass already; the first ones.
    pub(super) passed: usize,
    /// Burst size: so many buffered packets are sent at once. A power of two.
    pub(super) full: usize,
    /// In `waiting`.
    pub(super) listed: bool,
    /// The queue took less than it was given, and has not had room for a vector since.
    pub(super) was_full: bool,
    /// Packets of this vector that were let pass because there is room for them.
    pub(super) promised: usize,
    pub(super) flush_timer: FlushTimer,
}

impl TxPort {
    /// Packets until so many are buffered that they go at once.
    #[inline]
    pub(super) fn missing(&self) -> usize {
        self.full - (self.buf.len() & (self.full - 1))
    }

    /// See [`TxState::room`].
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

    /// Drops what is buffered.
    pub(super) fn drop_buffered(&mut self, why: Drop, to_free: &mut Vec<Packet>) {
        if !self.buf.is_empty() {
            self.stats.lost(why, self.buf.len() as u64);
            to_free.append(&mut self.buf);
        }
        (self.bytes, self.longest, self.passed) = (0, 0, 0);
    }
}

/// Drops frames that are longer than the port takes; how many bytes.
#[cold]
pub(super) fn cut_long(
    buf: &mut Vec<Packet>,
    limit: usize,
    stats: &PortCell,
    to_free: &mut Vec<Packet>,
) -> u64 {
    let before = to_free.len();
    to_free.extend(buf.extract_if(.., |p| p.len() > limit));
    stats.lost(Drop::TooLong, (to_free.len() - before) as u64);
    to_free[before..].iter().map(|p| p.len() as u64).sum()
}

/// Drops those of `buf[start..]` that are more than the port may be sent; how many bytes.
#[cold]
pub(super) fn police(
    policer: &Policer,
    start: usize,
    buf: &mut Vec<Packet>,
    stats: &PortCell,
    to_free: &mut Vec<Packet>,
) -> u64 {
    let before = to_free.len();
    policer.run(clock::nanoseconds(clock::cycles()), buf, start, to_free);
    stats.lost(Drop::TxPoliced, (to_free.len() - before) as u64);
    to_free[before..].iter().map(|p| p.len() as u64).sum()
}
