//! The poll step: packets from receive queues.
//!
//! `schedule.rs` says which queues are polled for a vector and how many packets each may bring;
//! while one queue is read, the next ones prefetch what they will read.

pub(crate) mod kernel_wait;
pub(crate) mod known_way;
pub(crate) mod schedule;

use crate::actions::interpret::Sink;
use crate::batch::{Batch, Burst};
use crate::mem::prefetch;
use crate::messages::RxSlot;
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

/// Prefetch distance in queues: descriptors, then packet data.
const DESCRIPTOR_PREFETCH_RXQS: usize = 4;
const PACKET_PREFETCH_RXQS: usize = 2;

/// What one poll of a queue brought to the current vector.
#[derive(Clone, Copy)]
pub(crate) struct Polled {
    queue: usize,
    pub packets: usize,
    /// Cycles that receiving and parsing them took. 0 in PMD threads, which read the clock once per
    /// vector.
    cycles: u64,
}

/// The receive queues of a worker.
pub(crate) struct Rx {
    #[allow(clippy::vec_box)] // Control and workers hand a queue to each other as a box.
    pub rxqs: Vec<Box<RxSlot>>,
    /// What each queue did when it was polled last. They are apart from the queues, so that reading
    /// all of them for every vector takes few cache lines.
    states: Vec<RxqState>,
    /// Queues that brought packets to the current vector, or cost cycles, in order.
    pub polled: Vec<Polled>,
    /// Queues that have brought packets since their senders were notified last.
    pending_notify: Vec<usize>,
    /// The queue that is polled first in the next vector.
    next: usize,
    /// Queues that are polled for this vector, in order.
    order: Vec<usize>,
    /// Packets beyond what their port may bring (`ingress_policing_*`).
    refused: Vec<Packet>,
    /// Some: serves kernel ports and sleeps in the kernel.
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
    pub fn add(&mut self, slot: Box<RxSlot>) {
        if let (Some(w), Some(fd)) = (&mut self.wait, slot.rx.fd()) {
            w.watch(fd);
        }
        self.rxqs.push(slot);
        self.states.push(RxqState::default());
    }

    /// Takes a receive queue away.
    pub fn remove(&mut self, port: PortNo, queue: usize) -> Option<Box<RxSlot>> {
        let i = self.rxqs.iter().position(|s| s.port == port && s.queue == queue)?;
        // The numbers of queues are about to change.
        fence(Ordering::SeqCst);
        self.pending_notify.drain(..).for_each(|q| self.rxqs[q].rx.notify(true));
        self.polled.clear();
        let slot = self.rxqs.remove(i);
        self.states.remove(i);
        if let (Some(w), Some(fd)) = (&mut self.wait, slot.rx.fd()) {
            w.forget(fd);
        }
        Some(slot)
    }

    /// Sets how much the queues of a port may bring; None: there is no limit.
    pub fn set_policer(&mut self, port: PortNo, policer: &Option<Arc<Policer>>) {
        let slots = self.rxqs.iter_mut().filter(|slot| slot.port == port);
        slots.for_each(|slot| slot.police = policer.clone());
    }

    /// Fills the vector up from the queues. Each burst is given to `parse`, which returns its
    /// bytes, at once: while its headers are in the cache. Returns how many packets came, with
    /// those that were policed.
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

    /// Chooses which queues are polled, and in which order.
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

    /// Lets the `k`-th queue of this vector prefetch what it will read, unless it brought nothing
    /// the last time: the memory that says that it is still empty is in this core's cache then.
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

    /// Takes up to `limit` packets from queue `q` and counts them; returns how many came, with
    /// those that are more than it may bring.
    #[inline]
    fn poll_rxq(
        &mut self,
        q: usize,
        limit: usize,
        batch: &mut Batch,
        tx: &mut TxState,
        parse: &mut impl FnMut(&mut Batch, &mut TxState, Burst) -> u64,
    ) -> usize {
        let slot = &mut self.rxqs[q];
        // Receiving from a kernel port is a system call, beside which reading the clock is cheap.
        let began = self.wait.is_some().then(cycles);
        let (n, bytes) = receive(slot, limit, batch, tx, &mut self.refused, parse);
        let took = began.map_or(0, |began| cycles() - began);
        self.states[q].polled(limit, n);
        if let (Some(w), true) = (&mut self.wait, n < limit) {
            w.drained(&*slot.rx);
        }
        if n > 0 || took > 0 {
            self.polled.push(Polled { queue: q, packets: n, cycles: took });
        }
        if n > 0 {
            slot.stats.rx_packets.add(n as u64);
            slot.stats.rx_bytes.add(bytes);
            slot.cell.packets.add(n as u64);
            if slot.police.is_some() {
                slot.stats.lost(Drop::Policed, self.refused.len() as u64);
                self.refused.drain(..).for_each(|p| tx.free(p));
            }
            if slot.rx.notifies() {
                self.pending_notify.push(q);
            }
        }
        n
    }

    /// Lets the queues notify their senders that there is room again: all senders, or else (not
    /// `all`) those that may be asleep.
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

    /// Charges the cycles of a vector to the queues that filled it: to each the cycles that were
    /// measured for it, and of the others a share by its packets.
    pub fn charge(&self, cycles: u64) {
        let packets: u64 = self.polled.iter().map(|p| p.packets as u64).sum();
        let known: u64 = self.polled.iter().map(|p| p.cycles).sum();
        let share = cycles.saturating_sub(known).checked_div(packets).unwrap_or(0);
        for p in &self.polled {
            self.rxqs[p.queue].cell.cycles.add(p.cycles + share * p.packets as u64);
        }
    }

    /// Charges queues whose polls took cycles and brought no packet (the kernel's frames were
    /// refused); returns the cycles.
    pub fn charge_refused(&self) -> u64 {
        self.charge(0);
        self.polled.iter().map(|p| p.cycles).sum()
    }
}

/// Receives up to `limit` packets, for which there is room, while the queue returns full bursts;
/// takes out what is more than the port may bring; parses the rest of each burst. Returns how many
/// packets were received, and their bytes.
#[inline]
fn receive(
    slot: &mut RxSlot,
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
        let n = slot.rx.rx(&mut batch.packets, want);
        if n == 0 {
            break;
        }
        received += n;
        if let Some(policer) = slot.police.as_deref() {
            bytes += police(policer, &mut batch.packets, start, refused);
        }
        let end = batch.len();
        if end > start {
            batch.in_port.resize(end, slot.port);
            bytes += parse(batch, tx, Burst { range: start..end, since, port: slot.port });
        }
        if n < want || want < BURST {
            break;
        }
    }
    (received, bytes)
}

/// Moves those of `packets[start..]` that exceed what their port may bring to `refused`; returns
/// their bytes.
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
