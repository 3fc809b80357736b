//! [`Datapath`]: ports are removed.

use crate::manage::Datapath;
use crate::messages::Command;
use crate::settings::Error;
use flow::PortNo;
use port::Port;
use std::collections::BTreeSet;

impl Datapath {
    /// Removes a port while packets pass; as [`Datapath::del_ports`].
    pub fn del_port(&mut self, no: PortNo) -> Result<Box<dyn Port>, Error> {
        self.del_ports([no]).pop().ok_or(Error::NoPort(no))
    }

    /// Removes ports while packets pass, and returns those that existed: their queues are taken
    /// from workers and closed, and packets to them become `NoPort` drops. On return all changes so
    /// far are complete, so a port that gets one of the numbers next gets no packets for these.
    /// Workers are waited for once, however many ports are removed.
    pub fn del_ports(&mut self, nos: impl IntoIterator<Item = PortNo>) -> Vec<Box<dyn Port>> {
        let nos: BTreeSet<PortNo> =
            nos.into_iter().filter(|no| self.ports.contains_key(no)).collect();
        if nos.is_empty() {
            return Vec::new();
        }
        for no in &nos {
            let p = self.ports.get_mut(no).expect("checked above");
            p.rxqs.iter_mut().for_each(|q| q.next_owner = None);
            self.advance(*no);
        }
        self.wait_for_workers();
        for w in self.workers.iter_mut().flatten() {
            nos.iter().for_each(|no| w.send(Command::DelPort(*no)));
        }
        self.wait_for_workers();
        // No worker hands packets for these ports over any more. What was handed over before is
        // dropped now: a worker takes only some of it in an iteration.
        self.workers.iter_mut().flatten().for_each(|w| w.send(Command::TakeInbound));
        self.wait_for_workers();
        self.complete_changes();
        let gone = nos.into_iter().map(|no| self.forget_port(no)).collect();
        self.place(&[]);
        // Starting threads is the only thing that can fail here, and fewer ports need no new
        // threads.
        let _ = self.update_pmd_threads();
        gone
    }

    /// Closes the queues of a port that no worker has any more, and keeps its counters.
    fn forget_port(&mut self, no: PortNo) -> Box<dyn Port> {
        self.disable_marks(no);
        let mut p = self.ports.remove(&no).expect("a port that goes");
        p.rxqs.clear();
        p.txqs.clear();
        self.past.stats.add(&p.past);
        self.past.stats.add(&p.hardware);
        p.cells.values().for_each(|c| self.past.stats.add(&c.read()));
        p.port
    }
}
