//! Changes of a worker's tx side by the control side: settings, ports, routes, bonds, peers.

use super::TxState;
use crate::actions::copies::CopiesAccount;
use crate::messages::{Handoff, Route};
use crate::police::Policer;
use crate::settings::Settings;
use crate::stats::port::PortCell;
use crate::tx::bond::Bond;
use crate::tx::buffer::{PHASED_BURST_PACKETS, TxPort};
use crate::tx::flush::FlushTimer;
use crate::tx::slow::{SendCost, SlowSends};
use crate::wake::Wake;
use flow::PortNo;
use packet::{BURST, VECTOR};
use port::TxQueue;
use std::sync::Arc;
use sync::Producer;
use telemetry::Drop;

impl TxState {
    /// Takes over new settings.
    pub fn configure(&mut self, s: &Settings) {
        self.buffered_ports.policy.configure(s.tx_flush_interval_us);
        self.punts.configure(s);
    }

    /// Makes this the tx side of the kernel worker: bursts are never held, as it sleeps when it has
    /// nothing to do, and the time that sending takes is measured.
    pub fn serve_kernel_ports(&mut self) {
        self.buffered_ports.policy.fixed = Some(0);
        self.slow = SlowSends::measured();
        self.copies = CopiesAccount::of_kernel_worker();
    }

    /// Adds a port, which got its number as the `nth` of all. Nothing can be sent to it before
    /// [`TxState::set_route`].
    pub fn add_port(&mut self, no: PortNo, stats: Arc<PortCell>, nth: u64) {
        self.newest_port = self.newest_port.max(nth);
        let i = no as usize;
        if self.ports.len() <= i {
            self.ports.resize_with(i + 1, || None);
        }
        let buf = Vec::with_capacity(VECTOR);
        self.ports[i] = Some(TxPort {
            stats,
            nth,
            route: Route::None,
            buf,
            bytes: 0,
            longest: 0,
            limit: usize::MAX,
            policer: None,
            passed: 0,
            full: BURST,
            refuses: false,
            listed: false,
            was_full: false,
            promised: 0,
            flush_timer: FlushTimer::default(),
            cost: SendCost::default(),
        });
    }

    /// Sets the longest frame that a port takes.
    pub fn set_limit(&mut self, no: PortNo, bytes: usize) {
        if let Some(Some(port)) = self.ports.get_mut(no as usize) {
            port.limit = bytes;
        }
    }

    /// Sets the limit of what a port may be sent; None: no limit.
    pub fn set_policer(&mut self, no: PortNo, policer: Option<Arc<Policer>>) {
        if let Some(Some(port)) = self.ports.get_mut(no as usize) {
            port.policer = policer;
        }
    }

    /// Removes a port; returns its queue if this worker had one.
    pub fn del_port(&mut self, no: PortNo) -> Option<Box<dyn TxQueue>> {
        let queue = self.set_route(no, Route::None);
        if let Some(port) = self.ports.get_mut(no as usize) {
            *port = None;
        }
        self.punts.forget(no);
        queue
    }

    /// Changes how packets are sent to a port. Buffered packets are sent by the old route first; if
    /// that is busy they wait for the new one. Returns the old route's queue.
    pub fn set_route(&mut self, no: PortNo, route: Route) -> Option<Box<dyn TxQueue>> {
        self.flush(no);
        self.notifier.notify(&mut self.ports, true);
        let port = self.ports.get_mut(no as usize)?.as_mut()?;
        if matches!(route, Route::None) {
            port.drop_buffered(Drop::TxBusy, &mut self.buffers.to_free);
        }
        if port.buf.is_empty() {
            self.buffered_ports.ports.retain(|p| *p != no);
            port.listed = false;
        }
        port.was_full = false;
        port.full = match &route {
            Route::Queue(q) if q.has_phases() => PHASED_BURST_PACKETS,
            // The more packets wait, the more of them make one frame of the kernel.
            Route::Queue(_) if self.slow.is_measured() => VECTOR,
            _ => BURST,
        };
        port.refuses = matches!(&route, Route::Queue(q) if q.refuses());
        match std::mem::replace(&mut port.route, route) {
            Route::Queue(q) => Some(q),
            _ => None,
        }
    }

    /// Sets the bond of a number; None: packets sent to that number are dropped.
    pub fn set_bond(&mut self, no: PortNo, bond: Option<Arc<Bond>>) {
        self.bonds.set(no, bond);
    }

    /// Adds the ring to another worker.
    pub fn add_peer(&mut self, worker: usize, ring: Producer<Handoff>, wake: Option<Arc<Wake>>) {
        self.peers.add(worker, ring, wake);
    }

    /// Removes the ring to another worker.
    pub fn del_peer(&mut self, worker: usize) {
        self.peers.remove(worker);
    }
}
