//! The poll step: takes packets from receive queues.
//!
//! `schedule.rs` says which queues are polled for a vector and how many packets each may return.
//! While one queue is read, the next ones prefetch descriptors and packet data.

pub(crate) mod kernel_wait;
pub(crate) mod known_way;
pub(crate) mod schedule;

use crate::actions::interpret::Sink;
use crate::batch::{Batch, Burst};
use crate::mem::prefetch;
use crate::messages::RxqEntry;
use crate::police::Policer;
use crate::rx::kernel_wait::KernelWait;
use crate::rx::schedule::{RxSchedule, RxqState};
use crate::stats::clock::{cycles, nanoseconds};
use crate::tx::TxState;
use flow::PortNo;
use packet::{BURST, Packet, VECTOR};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use telemetry::Drop;

/// How many queues ahead of the one that is read descriptors are prefetched.
const DESCRIPTOR_PREFETCH_RXQS: usize = 4;
/// How many queues ahead of the one that is read packet data is prefetched.
const PACKET_PREFETCH_RXQS: usize = 2;

/// What one poll of a queue added to the current vector.
#[derive(Clone, Copy)]
pub(crate) struct Polled {
    queue: usize,
    pub packets: usize,
    /// Cycles that receiving and parsing these packets took. 0 in PMD threads, which read the clock
    /// once per vector.
    cycles: u64,
}

/// The receive queues of a worker.
pub(crate) struct Rx {
    #[allow(clippy::vec_box)] // Control and workers hand a queue to each other as a box.
    pub rxqs: Vec<Box<RxqEntry>>,
    /// What each queue did when it was last polled. Kept apart from the queues, so that reading all
    /// of it for every vector takes few cache lines.
    states: Vec<RxqState>,
    /// Queues that returned packets for the current vector, or cost cycles, in the order of
    /// polling.
    pub polled: Vec<Polled>,
    /// Queues that returned packets since their senders were last notified.
    pending_notify: Vec<usize>,
    /// The queue that is polled first in the next vector.
    next: usize,
    /// Queues that are polled for this vector, in order.
    order: Vec<usize>,
    /// Packets beyond the limit of their port (`ingress_policing_*`), to be freed.
    refused: Vec<Packet>,
    /// Some: this is the kernel worker, which sleeps in the kernel.
    pub wait: Option<KernelWait>,
}

impl Rx {
    pub fn new(wait: Option<KernelWait>) -> Self {
        Rx {
            rxqs: Vec::new(),
            states: Vec::new(),
            polled: Vec::new(),
            pending_notify: Vec::new(),
            next: 0,
            order: Vec::new(),
            refused: Vec::new(),
            wait,
        }
    }

    /// Adds a receive queue.
    pub fn add(&mut self, rxq: Box<RxqEntry>) {
        if let (Some(w), Some(fd)) = (&mut self.wait, rxq.rx.fd()) {
            w.add(fd);
        }
        self.rxqs.push(rxq);
        self.states.push(RxqState::default());
    }

    /// Takes a receive queue away.
    pub fn remove(&mut self, port: PortNo, queue: usize) -> Option<Box<RxqEntry>> {
        let i = self.rxqs.iter().position(|s| s.port == port && s.queue == queue)?;
        // The removal changes the numbers of the queues, so all pending notifications are sent
        // first.
        fence(Ordering::SeqCst);
        self.pending_notify.drain(..).for_each(|q| self.rxqs[q].rx.notify(true));
        self.polled.clear();
        let rxq = self.rxqs.remove(i);
        self.states.remove(i);
        if let (Some(w), Some(fd)) = (&mut self.wait, rxq.rx.fd()) {
            w.forget(fd);
        }
        Some(rxq)
    }

    /// Sets the policer of a port's queues; None: no limit.
    pub fn set_policer(&mut self, port: PortNo, policer: &Option<Arc<Policer>>) {
        let rxqs = self.rxqs.iter_mut().filter(|rxq| rxq.port == port);
        rxqs.for_each(|rxq| rxq.police = policer.clone());
    }

    /// Fills the vector from the queues. Each burst is given to `parse` at once, while its headers
    /// are in the cache; `parse` returns the burst's bytes. Returns how many packets were received,
    /// policed ones included.
    #[inline]
    pub fn poll(
        &mut self,
        batch: &mut Batch,
        tx: &mut TxState,
        mut parse: impl FnMut(&mut Batch, &mut TxState, Burst) -> u64,
    ) -> usize {
        let schedule = RxSchedule::new(&self.states);
        self.choose(&schedule);
        self.polled.clear();
        let mut received = 0;
        (0..DESCRIPTOR_PREFETCH_RXQS).for_each(|k| self.prepare(k, 0));
        (0..PACKET_PREFETCH_RXQS).for_each(|k| self.prepare(k, 1));
        for k in 0..self.order.len() {
            let limit = schedule.limit.min(VECTOR - batch.len());
            if limit == 0 {
                self.next = self.order[k];
                self.order[k..].iter().for_each(|q| self.states[*q].defer());
                break;
            }
            self.prepare(k + DESCRIPTOR_PREFETCH_RXQS, 0);
            self.prepare(k + PACKET_PREFETCH_RXQS, 1);
            received += self.poll_rxq(self.order[k], limit, batch, tx, &mut parse);
        }
        received
    }

    /// Chooses which queues are polled for this vector, and in which order.
    fn choose(&mut self, schedule: &RxSchedule) {
        let queues = self.rxqs.len();
        if queues == 0 {
            return self.order.clear();
        }
        let first = if self.next < queues { self.next } else { 0 };
        self.next = first + 1;
        match &mut self.wait {
            Some(w) => {
                w.poll_ready();
                self.order.clear();
                let all = (0..queues).map(|k| (first + k) % queues);
                self.order.extend(all.filter(|q| w.is_ready(&*self.rxqs[*q].rx)));
            }
            None => schedule::choose(&mut self.states, schedule, first, &mut self.order),
        }
    }

    /// Lets the `k`-th queue of this vector prefetch what it will read, unless it was empty the
    /// last time: then its index is still in this core's cache.
    #[inline]
    fn prepare(&mut self, k: usize, phase: usize) {
        if let Some(q) = self.order.get(k)
            && !self.states[*q].is_idle()
        {
            self.rxqs[*q].rx.prepare(phase);
        }
        if let Some(q) = self.order.get(k + DESCRIPTOR_PREFETCH_RXQS) {
            prefetch(&*self.rxqs[*q]);
        }
    }

    /// Receives up to `limit` packets from queue `q` and counts them. Returns how many were
    /// received, policed ones included.
    #[inline]
    fn poll_rxq(
        &mut self,
        q: usize,
        limit: usize,
        batch: &mut Batch,
        tx: &mut TxState,
        parse: &mut impl FnMut(&mut Batch, &mut TxState, Burst) -> u64,
    ) -> usize {
        let rxq = &mut self.rxqs[q];
        // Receiving from a kernel port is a system call, beside which reading the clock is cheap.
        let began = self.wait.is_some().then(cycles);
        let (n, bytes) = receive(rxq, limit, batch, tx, &mut self.refused, parse);
        let took = began.map_or(0, |began| cycles() - began);
        self.states[q].polled(limit, n);
        if let (Some(w), true) = (&mut self.wait, n < limit) {
            w.drained(&*rxq.rx);
        }
        if n > 0 || took > 0 {
            self.polled.push(Polled { queue: q, packets: n, cycles: took });
        }
        if n > 0 {
            rxq.stats.rx_packets.add(n as u64);
            rxq.stats.rx_bytes.add(bytes);
            rxq.cell.packets.add(n as u64);
            if rxq.police.is_some() {
                rxq.stats.lost(Drop::Policed, self.refused.len() as u64);
                self.refused.drain(..).for_each(|p| tx.free(p));
            }
            if rxq.rx.notifies() {
                self.pending_notify.push(q);
            }
        }
        n
    }

    /// True if `like` is true of every port from which packets of the current vector were received.
    pub fn came_from(&self, like: impl Fn(PortNo) -> bool) -> bool {
        self.polled.iter().filter(|p| p.packets > 0).all(|p| like(self.rxqs[p.queue].port))
    }

    /// Notifies senders that their queues have room again: all pending senders if `all`, otherwise
    /// those that seem to be asleep.
    pub fn notify(&mut self, all: bool) {
        if self.pending_notify.is_empty() {
            return;
        }
        fence(Ordering::SeqCst);
        self.pending_notify.iter().for_each(|q| self.rxqs[*q].rx.notify(all));
        if all {
            self.pending_notify.clear();
        }
    }

    /// Charges the cycles of a vector to the queues that filled it: to each queue the cycles that
    /// were measured for it, and a share of the other cycles by its packets.
    pub fn charge(&self, cycles: u64) {
        let packets: u64 = self.polled.iter().map(|p| p.packets as u64).sum();
        let known: u64 = self.polled.iter().map(|p| p.cycles).sum();
        let share = cycles.saturating_sub(known).checked_div(packets).unwrap_or(0);
        for p in &self.polled {
            self.rxqs[p.queue].cell.cycles.add(p.cycles + share * p.packets as u64);
        }
    }

    /// Charges queues whose polls took cycles and returned no packet (the kernel's frames were
    /// refused). Returns these cycles.
    pub fn charge_refused(&self) -> u64 {
        self.charge(0);
        self.polled.iter().map(|p| p.cycles).sum()
    }
}

/// Receives up to `limit` packets, as long as the queue returns full bursts. The vector has room
/// for them. Moves packets beyond the port's limit to `refused`, and parses the rest of each burst.
/// Returns how many packets were received, and their bytes.
#[inline]
fn receive(
    rxq: &mut RxqEntry,
    limit: usize,
    batch: &mut Batch,
    tx: &mut TxState,
    refused: &mut Vec<Packet>,
    parse: &mut impl FnMut(&mut Batch, &mut TxState, Burst) -> u64,
) -> (usize, u64) {
    let (since, mut received, mut bytes) = (batch.len(), 0, 0);
    while received < limit {
        let start = batch.len();
        let want = (limit - received).min(BURST);
        let n = rxq.rx.rx(&mut batch.packets, want);
        if n == 0 {
            break;
        }
        received += n;
        if let Some(policer) = rxq.police.as_deref() {
            bytes += police(policer, &mut batch.packets, start, refused);
        }
        let end = batch.len();
        if end > start {
            batch.in_port.resize(end, rxq.port);
            bytes += parse(batch, tx, Burst { range: start..end, since, port: rxq.port });
        }
        if n < want || want < BURST {
            break;
        }
    }
    (received, bytes)
}

/// Moves those of `packets[start..]` that exceed the port's limit to `refused`; returns their
/// bytes.
#[cold]
fn police(
    policer: &Policer,
    packets: &mut Vec<Packet>,
    start: usize,
    refused: &mut Vec<Packet>,
) -> u64 {
    let before = refused.len();
    policer.run(nanoseconds(cycles()), packets, start, refused);
    refused[before..].iter().map(|p| p.len() as u64).sum()
}
