//! [`Datapath`]: how each worker sends to each port.

use crate::manage::{Datapath, PortRoute};
use crate::messages::{Command, HANDOFFS_MAX, Route};
use flow::PortNo;
use port::Service;
use sync::ring;

impl Datapath {
    pub(crate) fn route_all(&mut self) {
        let nos: Vec<PortNo> = self.ports.keys().copied().collect();
        nos.into_iter().for_each(|no| self.route(no, None));
    }

    /// Gives every worker except `except` a way to send to a port.
    pub(super) fn route(&mut self, no: PortNo, except: Option<usize>) {
        let service = self.ports[&no].port.service();
        // PMD threads get queues first. Only the kernel worker gets queues of kernel ports: sending
        // on one is a system call.
        let all = (1..self.workers.len()).chain([0]);
        let slots: Vec<usize> =
            all.filter(|s| self.workers[*s].is_some() && Some(*s) != except).collect();
        for s in &slots {
            let p = self.ports.get_mut(&no).unwrap();
            let may = service == Service::Poll || *s == 0;
            if may
                && p.routes.get(s) != Some(&PortRoute::Own)
                && let Some(q) = p.txqs.pop()
            {
                p.routes.insert(*s, PortRoute::Own);
                self.worker(*s).send(Command::SetRoute(no, Route::Queue(q)));
            }
        }
        let routes = &self.ports[&no].routes;
        let Some(owner) = slots.iter().copied().find(|s| routes.get(s) == Some(&PortRoute::Own))
        else {
            return;
        };
        for s in slots {
            if !self.ports[&no].routes.contains_key(&s) {
                self.connect(s, owner);
                self.ports.get_mut(&no).unwrap().routes.insert(s, PortRoute::Via(owner));
                self.worker(s).send(Command::SetRoute(no, Route::Via(owner)));
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

    /// Routes other workers' packets without this worker, which is to be stopped.
    pub(super) fn workers_except(&mut self, slot: usize) {
        for p in self.ports.values_mut() {
            p.routes.retain(|_, w| *w != PortRoute::Via(slot));
        }
        let nos: Vec<PortNo> = self.ports.keys().copied().collect();
        nos.into_iter().for_each(|no| self.route(no, Some(slot)));
        for (i, w) in self.workers.iter_mut().enumerate() {
            if let (true, Some(w)) = (i != slot, w)
                && w.peers.remove(&slot)
            {
                w.send(Command::DelPeer(slot));
            }
        }
    }

    /// Takes transmit queues of polled ports back from the kernel worker, if a PMD thread has none
    /// of its own to such a port.
    pub(super) fn reclaim_from_kernel(&mut self) {
        let pmds = self.workers.iter().flatten().count() - 1;
        let mut back = Vec::new();
        for (no, p) in &mut self.ports {
            let short =
                p.routes.values().filter(|w| **w == PortRoute::Own).count() + p.txqs.len() <= pmds;
            if p.port.service() == Service::Poll
                && short
                && p.routes.get(&0) == Some(&PortRoute::Own)
            {
                p.routes.remove(&0);
                back.push(*no);
            }
        }
        for no in back {
            self.worker(0).send(Command::SetRoute(no, Route::None));
        }
        self.wait_for_workers();
    }
}
