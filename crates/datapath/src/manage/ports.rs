//! [`Datapath`]: ports are added, queried, limited, and pinned to cores. `removal.rs` removes them.

use super::{Datapath, PortEntry, Rxq, limit};
use crate::messages::*;
use crate::police::Policer;
use crate::settings::*;
use crate::stats::clock::{cycles, nanoseconds};
use crate::stats::port::{PortCell, PortStats};
use crate::tx::steered::Steered;
use flow::PortNo;
use port::Port;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Datapath {
    /// Adds a port under the lowest free number.
    pub fn add_port(
        &mut self,
        port: Box<dyn Port>,
        service: impl Into<PortService>,
    ) -> Result<PortNo, Error> {
        let free = (0..flow::BOND_NO_MIN).find(|n| !self.ports.contains_key(n));
        self.add_port_at(free.ok_or(Error::PortsExhausted)?, port, service)
    }

    /// True if there is a port with this number.
    pub fn has_port(&self, no: PortNo) -> bool {
        self.ports.contains_key(&no)
    }

    /// Adds a port with this number, and takes all queues from it.
    pub fn add_port_at(
        &mut self,
        no: PortNo,
        mut port: Box<dyn Port>,
        service: impl Into<PortService>,
    ) -> Result<PortNo, Error> {
        let PortService { affinity, tx_by_hash } = service.into();
        if no >= flow::BOND_NO_MIN || self.ports.contains_key(&no) {
            return Err(Error::PortInUse(no));
        }
        let mut txqs: Vec<_> = (0..port.n_txq()).filter_map(|i| port.take_tx(i)).collect();
        if tx_by_hash && txqs.len() > 1 {
            txqs = vec![Box::new(Steered::new(txqs))];
        }
        let rxs: Vec<_> = (0..port.n_rxq()).map_while(|i| port.take_rx(i)).collect();
        let name = || port.name().to_string();
        if txqs.is_empty() {
            return Err(Error::NoQueue(name(), "transmit"));
        }
        if rxs.is_empty() && port.n_rxq() > 0 {
            return Err(Error::NoQueue(name(), "receive"));
        }
        self.numbered_ports += 1;
        let (nth, limit) = (self.numbered_ports, limit(&*port));
        let cells = self.announce_port(no, nth, limit);
        let any = cells.values().next().expect("the kernel worker").clone();
        let rxqs = rxs.into_iter().enumerate().map(|(i, rx)| Rxq::new(no, i, rx, &any)).collect();
        let (routes, past) = (BTreeMap::new(), PortStats::default());
        let (policing, policer) = (Policing::default(), None);
        self.ports.insert(
            no,
            PortEntry {
                port,
                nth,
                affinity,
                rxqs,
                txqs,
                routes,
                cells,
                past,
                hardware: PortStats::default(),
                limit,
                policing,
                policer,
                egress: None,
                egress_policer: None,
                marks: None,
            },
        );
        let updated = self.update_pmd_threads();
        self.route(no, None);
        self.place(&[]);
        match updated {
            Ok(()) => Ok(no),
            Err(e) => self.del_port(no).and(Err(e)),
        }
    }

    /// Adds a port to all workers; returns their counters of it, by worker number.
    fn announce_port(
        &mut self,
        no: PortNo,
        nth: u64,
        limit: usize,
    ) -> BTreeMap<usize, Arc<PortCell>> {
        let mut cells = BTreeMap::new();
        for (worker_no, w) in self.workers.iter_mut().enumerate() {
            if let Some(w) = w {
                let cell = Arc::new(PortCell::default());
                cells.insert(worker_no, cell.clone());
                w.send(Command::AddPort(no, cell, nth));
                w.send(Command::Limit(no, limit));
            }
        }
        cells
    }

    /// Reads a port's MTU again, and takes receive queues that were added since (a guest may enable
    /// queues at any time). Queues that were removed are still polled, and are empty.
    pub fn refresh(&mut self, no: PortNo) {
        self.update_limit(no);
        let Some(p) = self.ports.get_mut(&no) else { return };
        let before = p.rxqs.len();
        let any = p.cells.values().next().expect("the kernel worker").clone();
        for queue in before..p.port.n_rxq() {
            let Some(rx) = p.port.take_rx(queue) else { break };
            p.rxqs.push(Rxq::new(no, queue, rx, &any));
        }
        if p.rxqs.len() > before {
            self.place(&[]);
        }
    }

    /// Reads a port's MTU again: longer frames are dropped as `TooLong` from now on.
    pub fn update_limit(&mut self, no: PortNo) {
        let Some(p) = self.ports.get_mut(&no) else { return };
        let now = limit(&*p.port);
        if std::mem::replace(&mut p.limit, now) != now {
            let workers = self.workers.iter_mut().flatten();
            workers.for_each(|w| w.send(Command::Limit(no, now)));
        }
    }

    /// Sets the limit of what a port may receive; the buckets are full at first. No packet passes
    /// uncounted between the old and the new limit. Does nothing if the limit is unchanged.
    pub fn set_policing(&mut self, no: PortNo, policing: Policing) -> Result<(), Error> {
        let p = self.ports.get_mut(&no).ok_or(Error::NoPort(no))?;
        if std::mem::replace(&mut p.policing, policing) != policing {
            p.policer = Policer::new(&policing, nanoseconds(cycles())).map(Arc::new);
            let workers = self.workers.iter_mut().flatten();
            workers.for_each(|w| w.send(Command::Police(no, p.policer.clone())));
        }
        Ok(())
    }

    /// Sets the limit of what all workers together may send to a port; the bucket is full at first.
    /// Does nothing if the limit is unchanged.
    pub fn set_egress(&mut self, no: PortNo, egress: Option<EgressPolicer>) -> Result<(), Error> {
        let p = self.ports.get_mut(&no).ok_or(Error::NoPort(no))?;
        if std::mem::replace(&mut p.egress, egress) != egress {
            let now_ns = nanoseconds(cycles());
            p.egress_policer = egress.map(|e| Arc::new(Policer::egress(&e, now_ns)));
            let workers = self.workers.iter_mut().flatten();
            workers.for_each(|w| w.send(Command::PoliceTx(no, p.egress_policer.clone())));
        }
        Ok(())
    }

    /// True if what the port may receive or be sent is limited.
    pub fn is_limited(&self, no: PortNo) -> bool {
        self.ports.get(&no).is_some_and(|p| p.policer.is_some() || p.egress_policer.is_some())
    }

    /// The control side's part of a port.
    pub fn port_mut(&mut self, no: PortNo) -> Option<&mut dyn Port> {
        self.ports.get_mut(&no).map(|p| &mut *p.port as &mut dyn Port)
    }

    /// A port by its number, to be read; None: there is none.
    pub fn port(&self, no: PortNo) -> Option<&dyn Port> {
        self.ports.get(&no).map(|p| &*p.port)
    }

    /// The numbers of all ports.
    pub fn ports(&self) -> impl Iterator<Item = PortNo> + '_ {
        self.ports.keys().copied()
    }

    /// A port's counters, over all workers.
    pub fn port_stats(&self, no: PortNo) -> Option<PortStats> {
        let p = self.ports.get(&no)?;
        let mut sum = p.past.clone();
        sum.add(&p.hardware);
        p.cells.values().for_each(|c| sum.add(&c.read()));
        Some(sum)
    }

    /// Counters of all ports that exist or existed, and of packets without a port.
    pub fn totals(&self) -> PortStats {
        let mut sum = self.past.stats.clone();
        self.ports.keys().for_each(|no| sum.add(&self.port_stats(*no).expect("exists")));
        self.workers.iter().flatten().for_each(|w| sum.add(&w.shared.orphan.read()));
        sum
    }

    /// All named drops, with their counts.
    pub fn drops(&self) -> Vec<(telemetry::Drop, u64)> {
        let totals = self.totals();
        telemetry::Drop::ALL.iter().map(|d| (*d, totals.drops[*d as usize])).collect()
    }

    /// Pins a port's receive queues to cores. On return the queues are on those cores.
    pub fn set_affinity(&mut self, no: PortNo, affinity: RxAffinity) -> Result<(), Error> {
        let p = self.ports.get_mut(&no).ok_or(Error::NoPort(no))?;
        if p.affinity != affinity {
            p.affinity = affinity;
            self.place(&[]);
            self.wait_for_workers();
        }
        Ok(())
    }
}
