//! The tx step: per-port output buffers, and the other ways in which packets leave a worker.

pub(crate) mod bond;
mod bond_table;
mod buffer;
mod buffered_ports;
pub(crate) mod flush;
mod notify;
mod peers;
mod punts;
mod setup;
mod sink;
mod slow;
pub(crate) mod steered;

use crate::actions::copies::CopiesAccount;
use crate::actions::fragments::Gatherer;
use crate::actions::fragments::Paused;
use crate::actions::injected::Injected;
use crate::actions::interpret::Sink;
use crate::batch::Pending;
use crate::events::PuntEvent;
use crate::messages::{Route, Shared};
use crate::stats::clock;
use crate::stats::port::PortCell;
use crate::tx::bond_table::Bonds;
use crate::tx::buffer::{FlushOutcome, TxPort};
use crate::tx::buffered_ports::BufferedPorts;
use crate::tx::notify::Notifier;
use crate::tx::peers::Peers;
use crate::tx::punts::Punts;
use crate::tx::slow::SlowSends;
use flow::PortNo;
use packet::{Packet, Pool, VECTOR};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::Producer;
use telemetry::Drop;

/// How many ports ahead of the one that sends descriptors are prefetched.
const DESCRIPTOR_PREFETCH_PORTS: usize = 4;
/// How many ports ahead of the one that sends packet data is prefetched.
const PACKET_PREFETCH_PORTS: usize = 2;

/// All ways in which packets leave a worker.
pub(crate) struct TxState {
    /// Ports by their number.
    ports: Vec<Option<TxPort>>,
    /// How many ports had got a number when the newest one did ([`TxPort::nth`]).
    newest_port: u64,
    /// Bonds by their number.
    bonds: Bonds,
    /// The workers to which packets are handed over.
    peers: Peers,
    /// The ports with buffered packets.
    buffered_ports: BufferedPorts,
    /// The receivers that are to be notified.
    notifier: Notifier,
    /// The account of ports to which sending takes long.
    slow: SlowSends,
    buffers: Buffers,
    shared: Arc<Shared>,
    /// The queue of punts to the control side.
    punts: Punts,
    pub ct: CtState,
    /// Debts of ports whose packets go to many ports.
    pub copies: CopiesAccount,
    /// Packets of the control side, of whose operations some are executed in each iteration.
    pub injected: Injected,
    /// Recirculated packets that wait for the next vector, or for the next pass of this one.
    pub recirculated: Vec<Pending>,
    /// State of the random numbers for [`Sink::random`].
    rng: u64,
    pub now_ms: u64,
}

/// The pool of packet buffers, and the buffers to free at the end of the vector.
struct Buffers {
    pool: Arc<dyn Pool>,
    to_free: Vec<Packet>,
}

impl Buffers {
    /// Frees the buffers that are not used any more.
    fn free(&mut self) {
        if !self.to_free.is_empty() {
            self.pool.free(&self.to_free);
            self.to_free.clear();
        }
    }
}

/// This worker's part of connection tracking.
pub(crate) struct CtState {
    pub worker: conntrack::Worker,
    /// Fragments that wait for the rest of their datagram.
    pub fragments: Gatherer,
}

impl TxState {
    pub fn new(
        pool: Arc<dyn Pool>,
        shared: Arc<Shared>,
        punts: Producer<Box<PuntEvent>>,
        ct: CtState,
    ) -> Self {
        TxState {
            ports: Vec::new(),
            newest_port: 0,
            bonds: Bonds::default(),
            peers: Peers::default(),
            buffered_ports: BufferedPorts::default(),
            notifier: Notifier::default(),
            slow: SlowSends::default(),
            buffers: Buffers { pool, to_free: Vec::with_capacity(VECTOR * 2) },
            shared,
            punts: Punts::new(punts),
            ct,
            copies: CopiesAccount::default(),
            injected: Injected::default(),
            recirculated: Vec::new(),
            rng: clock::cycles() | 1,
            now_ms: 0,
        }
    }

    /// Sends packets to a number that no port has: to a bond, or nowhere (`NoPort`).
    ///
    /// # Safety
    /// The caller does not use `packets` any more, except to overwrite or forget them.
    #[cold]
    unsafe fn send_bonded(&mut self, no: PortNo, packets: &[Packet]) {
        let Some(bond) = self.bonds.get(no) else {
            self.shared.orphan.lost(Drop::NoPort, packets.len() as u64);
            // SAFETY: the caller's promise.
            return unsafe { packet::append(&mut self.buffers.to_free, packets) };
        };
        for packet in packets {
            // SAFETY: as above.
            let packet = unsafe { packet.duplicate() };
            match bond.choose(packet.data()) {
                flow::NO_PORT => {
                    self.shared.orphan.lost(Drop::TxDown, 1);
                    self.buffers.to_free.push(packet);
                }
                member => self.send_to_member(member, packet),
            }
        }
    }

    /// Sends a packet to port `no`. Unlike [`TxState::send`], if the number is another bond's the
    /// packet is not sent to that.
    fn send_to_member(&mut self, no: PortNo, packet: Packet) {
        match self.ports.get(usize::from(no)) {
            Some(Some(_)) => self.send(no, packet),
            _ => {
                self.shared.orphan.lost(Drop::NoPort, 1);
                self.buffers.to_free.push(packet);
            }
        }
    }

    /// This worker's counters of a port.
    #[inline]
    pub fn stats(&self, no: PortNo) -> &PortCell {
        match self.ports.get(no as usize) {
            Some(Some(s)) => &s.stats,
            _ => &self.shared.orphan,
        }
    }

    /// True if a packet that waited came from a port, or is to go to one, whose number is another
    /// port's by now.
    #[inline]
    pub fn is_misdirected(&self, paused: &Paused) -> bool {
        let came = paused.newest_port;
        let is_newer = |no: PortNo| {
            let port = self.ports.get(usize::from(no)).and_then(Option::as_ref);
            port.is_some_and(|port| port.nth > came)
        };
        came != self.newest_port
            && (is_newer(paused.frame.in_port()) || action::sends_to(&paused.ops, &is_newer))
    }

    /// Appends a packet to a port's buffer; sends the buffer if a burst is full.
    #[inline]
    pub fn send(&mut self, no: PortNo, packet: Packet) {
        let length = packet.len();
        self.send_one(no, packet, length);
    }

    /// Appends a packet of `length` bytes to a port's buffer, as [`TxState::send`] does; the length
    /// is not read from the packet.
    #[inline]
    pub fn send_one(&mut self, no: PortNo, packet: Packet, length: usize) {
        let Some(Some(port)) = self.ports.get_mut(no as usize) else {
            // SAFETY: the packet is forgotten.
            return unsafe { self.send_bonded(no, &[packet]) };
        };
        if !std::mem::replace(&mut port.listed, true) {
            self.buffered_ports.ports.push(no);
        }
        port.flush_timer.new_packets += 1;
        port.bytes += length as u64;
        port.longest = port.longest.max(length);
        port.promised = port.promised.saturating_sub(1);
        port.buf.push(packet);
        if port.burst_is_complete() {
            self.flush_burst(no);
        }
    }

    /// Appends packets of these lengths to a port's buffer, as [`TxState::send`] does.
    ///
    /// # Safety
    /// The caller does not use `packets` any more, except to overwrite or forget them.
    pub unsafe fn send_all(&mut self, no: PortNo, packets: &[Packet], lengths: &[u16]) {
        let (mut rest, mut lengths) = (packets, lengths);
        while !rest.is_empty() {
            let Some(Some(port)) = self.ports.get_mut(no as usize) else {
                // SAFETY: the caller's promise.
                return unsafe { self.send_bonded(no, rest) };
            };
            if !std::mem::replace(&mut port.listed, true) {
                self.buffered_ports.ports.push(no);
            }
            let n = rest.len().min(port.missing());
            port.flush_timer.new_packets += n as u64;
            port.bytes += total(&lengths[..n]);
            port.longest = port.longest.max(lengths[..n].iter().fold(0, |m, l| m.max(*l)).into());
            // SAFETY: the caller's promise.
            unsafe { packet::append(&mut port.buf, &rest[..n]) };
            port.promised = port.promised.saturating_sub(n);
            (rest, lengths) = (&rest[n..], &lengths[n..]);
            if port.burst_is_complete() {
                self.flush_burst(no);
            }
        }
    }

    /// How many of `n` packets a port has room for, besides those that are buffered. The port's
    /// queue is asked only after it was full, until it has room for a whole vector.
    #[inline]
    pub fn room(&mut self, no: PortNo, n: usize) -> usize {
        match self.ports.get_mut(no as usize) {
            Some(Some(port)) if port.was_full => port.room(n),
            _ => n,
        }
    }

    /// Drops packets for which a port has no room.
    pub fn refuse(&mut self, no: PortNo, packets: impl ExactSizeIterator<Item = Packet>) {
        self.stats(no).lost(Drop::TxFull, packets.len() as u64);
        self.buffers.to_free.extend(packets);
    }

    /// Sends a port's buffered packets when a burst is complete. To a slow port they are sent at
    /// the end of the vector, in turn with other slow ports.
    fn flush_burst(&mut self, no: PortNo) {
        if let Some(Some(port)) = self.ports.get(no as usize)
            && self.slow.is_slow(&port.cost)
            && port.buf.len() < VECTOR
        {
            return;
        }
        self.flush(no);
    }

    /// Sends a port's buffered packets. If another thread uses the port's queue, or the port
    /// is slow, they stay buffered as far as there is room.
    fn flush(&mut self, no: PortNo) {
        let Some(Some(port)) = self.ports.get_mut(no as usize) else { return };
        if port.buf.is_empty() {
            return;
        }
        let left = match port.route {
            Route::Queue(_) => {
                match port.send_on_queue(
                    &mut self.slow,
                    &self.shared.perf,
                    &mut self.buffers.to_free,
                ) {
                    FlushOutcome::Stays => return,
                    FlushOutcome::Taken { left, notifies } => {
                        if notifies {
                            self.notifier.pending.push(no);
                        }
                        left
                    }
                }
            }
            Route::Via(worker) => {
                self.slow.serve_others();
                self.peers.hand_over(worker, no, &mut port.buf)
            }
            Route::None => Drop::TxDown,
        };
        port.drop_buffered(left, &mut self.buffers.to_free);
    }

    /// Ends an iteration that took this many cycles.
    #[inline]
    pub fn end_iteration(&mut self, took: u64) {
        self.slow.end_iteration(took);
        if let Some(done) = self.injected.end_iteration() {
            self.shared.injected.store(done, Ordering::Release);
        }
    }

    /// Cycles that sending to a port took since the last call, beyond what its packets may take.
    pub fn take_excess(&mut self, no: PortNo) -> u64 {
        match self.ports.get_mut(no as usize) {
            Some(Some(port)) => port.cost.take_excess(),
            _ => 0,
        }
    }

    /// True if packets wait that another iteration has to send or look up.
    pub fn has_pending(&self) -> bool {
        !self.recirculated.is_empty()
            || !self.buffered_ports.ports.is_empty()
            || !self.injected.is_empty()
    }

    /// Ends a vector of `n` packets at cycle `now`: sends the bursts that are due, notifies
    /// receivers, wakes peers, frees buffers.
    pub fn flush_due(&mut self, n: usize, now: u64) {
        self.buffered_ports.policy.end_vector(n);
        let flushing = self.buffered_ports.take_due(&mut self.ports, now);
        self.flush_all(&flushing);
        self.buffered_ports.reuse(flushing);
        let all = self.notifier.end_vector(n);
        self.notifier.notify(&mut self.ports, all);
        self.peers.wake();
        self.buffers.free();
    }

    /// Sends the buffered packets of these ports. While one port sends, the next ones prefetch what
    /// they will touch.
    fn flush_all(&mut self, ports: &[PortNo]) {
        let prepare = |all: &mut [Option<TxPort>], k: usize, phase| {
            if let Some(no) = ports.get(k)
                && let Some(Some(port)) = all.get_mut(*no as usize)
                && port.is_phased()
                && let Route::Queue(q) = &mut port.route
            {
                q.prepare(phase, port.buf.len());
            }
        };
        (0..DESCRIPTOR_PREFETCH_PORTS).for_each(|k| prepare(&mut self.ports, k, 0));
        (0..PACKET_PREFETCH_PORTS).for_each(|k| prepare(&mut self.ports, k, 1));
        for (k, no) in ports.iter().enumerate() {
            prepare(&mut self.ports, k + DESCRIPTOR_PREFETCH_PORTS, 0);
            prepare(&mut self.ports, k + PACKET_PREFETCH_PORTS, 1);
            self.flush(*no);
            if let Some(Some(port)) = self.ports.get_mut(*no as usize)
                && !port.buf.is_empty()
            {
                port.listed = true;
                self.buffered_ports.ports.push(*no);
            }
        }
        if self.slow.is_used_up() && !self.buffered_ports.ports.is_empty() {
            self.buffered_ports.ports.rotate_left(1);
        }
    }

    /// True if all receivers were notified last time, and not only those that seem to be asleep.
    #[inline]
    pub fn notified_all(&self) -> bool {
        self.notifier.notified_all
    }

    /// True if packets were queued for the control side since the last call.
    pub fn has_punted(&mut self) -> bool {
        std::mem::take(&mut self.punts.has_sent)
    }

    /// Makes a packet with these bytes; None: no buffer is free.
    pub fn make(&self, bytes: &[u8]) -> Option<Packet> {
        self.buffers.pool.packet(bytes)
    }

    /// Drops fragments that have waited for too long, some at each call.
    pub fn expire_fragments(&mut self) {
        self.ct.fragments.expire(&self.ct.worker, self.now_ms);
        while let Some(paused) = self.ct.fragments.next_expired() {
            self.dropped(paused.frame.in_port(), Drop::FragmentTimeout);
            self.free(paused.packet);
        }
    }

    /// Sends what can be sent before the worker stops, and drops the rest as `Shutdown`.
    pub fn shut_down(&mut self) {
        for no in std::mem::take(&mut self.buffered_ports.ports) {
            self.flush(no);
            if let Some(Some(port)) = self.ports.get_mut(no as usize) {
                port.drop_buffered(Drop::Shutdown, &mut self.buffers.to_free);
            }
        }
        for p in std::mem::take(&mut self.recirculated) {
            self.stats(p.frame.in_port()).lost(Drop::Shutdown, 1);
            self.buffers.to_free.push(p.packet);
        }
        self.flush_due(0, 0);
    }
}

/// Sum of these lengths, bytes.
#[inline]
pub(crate) fn total(lengths: &[u16]) -> u64 {
    lengths.iter().map(|l| u32::from(*l)).sum::<u32>().into()
}
