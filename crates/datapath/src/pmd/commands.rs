//! Executes commands of the control side, between vectors.

use super::Worker;
use crate::actions::inject;
use crate::actions::interpret::Sink;
use crate::messages::{Command, HANDOFFS_MAX, Report};
use crate::miss;
use crate::settings::Settings;
use crate::stats::clock::cycles;
use flow::PortNo;
use port::TxQueue;
use std::sync::atomic::Ordering;
use telemetry::Drop;

/// Vectors of a worker that is stopped, at most, for packets beyond the budget of misses.
const STOP_VECTORS_MAX: usize = 16;

impl Worker {
    /// Executes the control side's commands.
    pub(super) fn run_commands(&mut self) {
        let mut done = 0;
        while let Some(c) = self.commands.pop() {
            self.command(c);
            done += 1;
        }
        if done > 0 {
            self.shared.processed.fetch_add(done, Ordering::Release);
        }
    }

    /// Executes one command.
    fn command(&mut self, c: Command) {
        match c {
            Command::AddPort(no, stats, nth) => self.tx.add_port(no, stats, nth),
            Command::DelPort(no) => {
                self.inject_all();
                self.drop_received_from(no);
                let queue = self.tx.del_port(no);
                self.return_txq(no, queue);
            }
            Command::SetRoute(no, route) => {
                let queue = self.tx.set_route(no, route);
                self.return_txq(no, queue);
            }
            Command::Limit(no, bytes) => self.tx.set_limit(no, bytes),
            Command::Bond(no, bond) => {
                self.inject_all();
                self.tx.set_bond(no, bond);
            }
            Command::Police(port, policer) => self.rx.set_policer(port, &policer),
            Command::PoliceTx(port, policer) => self.tx.set_policer(port, policer),
            Command::Mark(port, change) => {
                let with = (&*self.lookup.table.store, &self.actions.programs);
                self.marks.change(port, change, with);
            }
            Command::AddRx(rxq) => self.rx.add(rxq),
            Command::DelRx(port, queue) => {
                if let Some(rxq) = self.rx.remove(port, queue) {
                    self.reports.send(Report::RxBack(rxq));
                }
            }
            Command::Settings(s) => self.configure(*s),
            Command::Capture(capture) => {
                self.actions.capture = capture;
                self.configure(self.settings.clone());
            }
            Command::Unlink(megaflows) => miss::unlink(
                &mut self.lookup.table,
                &mut self.actions.programs,
                &mut self.reports,
                megaflows,
            ),
            Command::Release(megaflows) => {
                megaflows.iter().for_each(|i| self.lookup.table.release(*i));
                self.lookup.table.order_free();
            }
            Command::Execute(e) => self.tx.injected.push(e),
            Command::AddPeer(worker, ring, wake) => self.tx.add_peer(worker, ring, wake),
            Command::DelPeer(worker) => self.tx.del_peer(worker),
            Command::AddInbound(ring) => self.inbound.push(ring),
            Command::TakeInbound => drop(self.take_inbound(HANDOFFS_MAX)),
            Command::Stop => self.stop(),
        }
    }

    /// Executes all that is left to do with packets of the control side, before a port or bond
    /// number gets another meaning.
    fn inject_all(&mut self) {
        inject::all(&mut self.tx, self.batch.vlan_limit);
    }

    /// Drops packets of a port that wait for a vector, before its number gets another meaning.
    fn drop_received_from(&mut self, no: PortNo) {
        let waiting = [&mut self.batch.postponed, &mut self.tx.recirculated];
        let gone =
            waiting.map(|w| w.extract_if(.., |p| p.frame.in_port() == no).collect::<Vec<_>>());
        for p in gone.into_iter().flatten() {
            self.tx.dropped(no, Drop::NoPort);
            self.tx.free(p.packet);
        }
    }

    /// Gives each step its part of the new settings.
    fn configure(&mut self, s: Settings) {
        self.tx.configure(&s);
        if self.rx.wait.is_some() {
            self.tx.serve_kernel_ports();
        }
        self.batch.vlan_limit = s.vlan_limit.clamp(1, 2);
        let captures = self.actions.capture.is_some();
        self.parser.configure(&s, captures);
        self.decap.configure(&s, captures);
        self.lookup.configure(&s);
        self.misses.configure(&s);
        self.misses.take_limit(&self.lookup.table);
        self.actions.configure(&s);
        self.lookup.table.tune(s.signature_cache);
        let recorder = &mut self.cycles.recorder;
        (recorder.on, recorder.log) = (s.perf_metrics, s.perf_log);
        self.settings = s;
    }

    /// Gives a transmit queue back to the control side.
    fn return_txq(&mut self, no: PortNo, queue: Option<Box<dyn TxQueue>>) {
        if let Some(q) = queue {
            self.reports.send(Report::TxBack(no, q));
        }
    }

    /// Ends the worker: sends every packet that it has, or drops it where that takes too long.
    /// Reports that do not fit into the ring to the control side are left to [`Worker::drained`].
    fn stop(&mut self) {
        while self.take_inbound(HANDOFFS_MAX) > 0 {}
        for _ in 0..STOP_VECTORS_MAX {
            if !self.batch.postponed.is_empty() || !self.tx.recirculated.is_empty() {
                self.vector(cycles());
            }
        }
        for p in std::mem::take(&mut self.batch.postponed) {
            self.tx.dropped(p.frame.in_port(), Drop::Shutdown);
            self.tx.free(p.packet);
        }
        inject::shut_down(&mut self.tx);
        self.tx.shut_down();
        port::stop_iterations();
        self.reports.flush(&mut self.misses.uncached);
        self.stopping = true;
    }

    /// Sends the reports for which [`Worker::stop`] had no room; true: none are left. The control
    /// side calls this until it is true, after the worker's thread has ended.
    pub fn drained(&mut self) -> bool {
        self.reports.flush(&mut self.misses.uncached);
        self.reports.is_flushed() && self.misses.uncached.is_empty()
    }
}
