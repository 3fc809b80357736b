//! Packets that adapters forward without the host. No worker receives them, so the control side
//! credits them to their megaflows.

use crate::manage::Datapath;
use crate::manage::watches::{Forwarded, Watch, WatchId};
use crate::stats::port::PortStats;
use flow::PortNo;
use offload::FlowId;

impl Datapath {
    /// Begins to watch a megaflow: an adapter may forward its packets, each counted with
    /// `outer_bytes` more. From now on its end is reported by [`Datapath::take_ended_watches`]
    /// before a change that ends it is complete. None: it has ended, or is leaving.
    pub fn watch(&mut self, flow: FlowId, outer_bytes: u16) -> Option<WatchId> {
        let flows = &mut self.workers.get_mut(flow.worker as usize)?.as_mut()?.flows;
        let account = flows.hold_account(flow.megaflow)?;
        let watches = &mut self.marks.watches;
        watches.next += 1;
        let fresh = Forwarded { serial: watches.next, ..Forwarded::default() };
        let serial = flows.watches.flows.entry(flow.megaflow).or_insert(fresh).serial;
        let id = WatchId(watches.next);
        let outer_bytes = outer_bytes.into();
        watches.all.insert(id, Watch { flow, serial, account, outer_bytes });
        Some(id)
    }

    /// Credits packets that the adapter forwarded, the last one not after `used_ms`. With 0 packets
    /// the megaflow still counts as used at that time.
    pub fn credit_watch(&mut self, id: WatchId, packets: u64, bytes: u64, used_ms: u64) {
        let Some(w) = self.marks.watches.all.get(&id) else { return };
        let worker = self.workers.get_mut(w.flow.worker as usize).and_then(|w| w.as_mut());
        if let Some(worker) = worker {
            let (watches, stats) = worker.flows.watches_and_stats();
            watches.credit(w, stats, packets, bytes, used_ms);
        }
    }

    /// Ends a watch: the adapter does not forward packets of the megaflow any more.
    pub fn unwatch(&mut self, id: WatchId) {
        let Some(w) = self.marks.watches.all.remove(&id) else { return };
        let worker = self.workers.get_mut(w.flow.worker as usize).and_then(|w| w.as_mut());
        if let Some(worker) = worker {
            worker.flows.watches_and_stats().1.close(w.account);
        }
    }

    /// Watched megaflows that were marked dead or ended since the last call.
    pub fn take_ended_watches(&mut self) -> Vec<FlowId> {
        let mut all = std::mem::take(&mut self.marks.watches.ended);
        for (worker_no, w) in self.workers.iter_mut().enumerate() {
            let Some(w) = w else { continue };
            let worker = worker_no as u32;
            all.extend(w.flows.watches.ended.drain(..).map(|megaflow| FlowId { worker, megaflow }));
        }
        all
    }

    /// Megaflows that were stored since the last call, at most 1,024 per worker. They are collected
    /// for the next call only if `go_on`.
    pub fn take_new_megaflows(&mut self, go_on: bool) -> Vec<FlowId> {
        let mut all = Vec::new();
        for (worker_no, w) in self.workers.iter_mut().enumerate() {
            let Some(w) = w else { continue };
            let worker = worker_no as u32;
            let came = std::mem::replace(&mut w.flows.watches.came, go_on.then(Vec::new));
            all.extend(came.into_iter().flatten().map(|megaflow| FlowId { worker, megaflow }));
        }
        all
    }

    /// Sets the time up to which all packets that adapters forwarded are credited; None: no adapter
    /// forwards packets.
    pub fn set_hardware_credited(&mut self, ms: Option<u64>) {
        self.marks.watches.credited_ms = ms;
    }

    /// Adds packets that an adapter received or sent at this port without the host.
    pub fn credit_port(&mut self, no: PortNo, more: &PortStats) {
        if let Some(p) = self.ports.get_mut(&no) {
            p.hardware.add(more);
        }
    }

    /// Counters of packets of this port that only its adapter saw.
    pub fn hardware_stats(&self, no: PortNo) -> PortStats {
        self.ports.get(&no).map(|p| p.hardware.clone()).unwrap_or_default()
    }
}
