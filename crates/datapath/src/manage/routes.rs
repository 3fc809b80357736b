//! [`Datapath`]: how each worker sends to each port.

use crate::manage::{Datapath, PortEntry, PortRoute};
use crate::messages::{Command, HANDOFFS_MAX, Route};
use flow::PortNo;
use port::Service;
use sync::ring;

impl Datapath {
    /// Gives every worker a way to send to every port.
    pub(crate) fn route_all(&mut self) {
        let nos: Vec<PortNo> = self.ports.keys().copied().collect();
        nos.into_iter().for_each(|no| self.route(no, None));
    }

    /// Gives every worker except `except` a way to send to a port.
    pub(super) fn route(&mut self, no: PortNo, except: Option<usize>) {
        for s in self.senders(no, except) {
            let p = self.ports.get_mut(&no).unwrap();
            if p.routes.get(&s) != Some(&PortRoute::Own)
                && let Some(q) = p.txqs.pop()
            {
                p.routes.insert(s, PortRoute::Own);
                self.worker(s).send(Command::SetRoute(no, Route::Queue(q)));
            }
        }
        let Some(owner) = self.owner(no, except) else { return };
        for s in (0..self.workers.len()).filter(|s| Some(*s) != except) {
            if self.workers[s].is_some() && !self.ports[&no].routes.contains_key(&s) {
                self.route_via(no, s, owner);
            }
        }
    }

    /// Workers that may have a queue to a port, without `except`; the first ones get queues first.
    fn senders(&self, no: PortNo, except: Option<usize>) -> Vec<usize> {
        // PMD threads get queues first. Only the kernel worker gets queues of kernel ports: sending
        // on one is a system call.
        let pmds = match self.ports[&no].port.service() {
            Service::Poll => 1..self.workers.len(),
            Service::Kernel => 0..0,
        };
        let all = pmds.chain([0]);
        all.filter(|s| self.workers[*s].is_some() && Some(*s) != except).collect()
    }

    /// The first worker without `except` that has a queue to a port.
    fn owner(&self, no: PortNo, except: Option<usize>) -> Option<usize> {
        let routes = &self.ports[&no].routes;
        let mut senders = self.senders(no, except).into_iter();
        senders.find(|s| routes.get(s) == Some(&PortRoute::Own))
    }

    /// Has a worker hand its packets for a port over to another one.
    fn route_via(&mut self, no: PortNo, from: usize, to: usize) {
        self.connect(from, to);
        self.ports.get_mut(&no).unwrap().routes.insert(from, PortRoute::Via(to));
        self.worker(from).send(Command::SetRoute(no, Route::Via(to)));
    }

    /// Takes a worker's queue to a port back. The worker hands its packets over to the one that has
    /// a queue or is to get this one; until that has it, they come back and go round.
    fn take_queue(&mut self, no: PortNo, from: usize) {
        let next = self.senders(no, Some(from)).first().copied();
        match self.owner(no, Some(from)).or(next) {
            Some(to) => self.route_via(no, from, to),
            None => {
                self.ports.get_mut(&no).unwrap().routes.remove(&from);
                self.worker(from).send(Command::SetRoute(no, Route::None));
            }
        }
    }

    /// Makes a ring from one worker to another.
    fn connect(&mut self, from: usize, to: usize) {
        if self.worker(from).peers.insert(to) {
            let (tx, rx) = ring(HANDOFFS_MAX);
            let wake = self.worker(to).wake.clone();
            self.worker(to).send(Command::AddInbound(rx));
            self.worker(from).send(Command::AddPeer(to, tx, wake));
        }
    }

    /// Routes other workers' packets without this worker, which is to be stopped, and its own
    /// packets through others.
    pub(super) fn route_without(&mut self, worker_no: usize) {
        let nos: Vec<PortNo> = self.ports.keys().copied().collect();
        for no in &nos {
            if self.ports[no].routes.get(&worker_no) == Some(&PortRoute::Own) {
                self.take_queue(*no, worker_no);
            }
        }
        self.wait_for_workers();
        for no in nos {
            let routes = &mut self.ports.get_mut(&no).unwrap().routes;
            routes.retain(|s, way| *s != worker_no && *way != PortRoute::Via(worker_no));
            self.route(no, Some(worker_no));
        }
        for (i, w) in self.workers.iter_mut().enumerate() {
            if let (true, Some(w)) = (i != worker_no, w)
                && w.peers.remove(&worker_no)
            {
                w.send(Command::DelPeer(worker_no));
            }
        }
        self.wait_for_workers();
    }

    /// Gives PMD threads the transmit queues of polled ports that the kernel worker has, as far as
    /// they have none of their own to such a port.
    pub(super) fn take_from_kernel(&mut self) {
        let pmds = self.workers.iter().flatten().count() - 1;
        let own = |p: &PortEntry| p.routes.values().filter(|w| **w == PortRoute::Own).count();
        let polled = self.ports.iter().filter(|(_, p)| p.port.service() == Service::Poll);
        let taken: Vec<PortNo> = polled
            .filter(|(_, p)| p.routes.get(&0) == Some(&PortRoute::Own) && own(p) <= pmds)
            .map(|(no, _)| *no)
            .collect();
        taken.iter().for_each(|no| self.take_queue(*no, 0));
        self.wait_for_workers();
        for no in taken {
            let routes = &mut self.ports.get_mut(&no).unwrap().routes;
            routes.retain(|_, way| *way != PortRoute::Via(0));
            self.route(no, None);
        }
    }
}
