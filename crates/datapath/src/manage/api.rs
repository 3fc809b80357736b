//! [`Datapath`]: flows, changes, events, statistics, shutdown.

use crate::events::*;
use crate::info::*;
use crate::lookup::port_classifier::PortLookup;
use crate::manage::Datapath;
use crate::manage::invalidate::{Change, REGION_STEPS_MAX};
use crate::manage::topology::{CPUS, Core};
use crate::manage::worker::Handle;
use crate::messages::Execute;
use crate::settings::*;
use crate::stats::perf::MetricsView;
use crate::stats::worker_stats::Perf;
use crate::wake::Bell;
use action::{Op, Region};
use flow::{Key, PortNo};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest packet that can be injected, bytes.
const INJECTED_BYTES_MAX: usize = 65_535;

/// Attempts to lock the fragments while workers use them; after these none are shown.
const SHOW_ATTEMPTS_COUNT_MAX: usize = 10_000;

impl Datapath {
    /// Housekeeping, about once per millisecond: reads reports, completes changes, removes idle
    /// flows. `now_ms`: [`crate::now_ms`].
    pub fn poll(&mut self, now_ms: u64) {
        self.read_all_reports();
        if std::mem::take(&mut self.reroute) {
            self.route_all();
        }
        self.drive_tickets();
        self.permit_captures(now_ms);
        self.balance(now_ms);
        self.share_limit();
        let since = now_ms.saturating_sub(self.aged_ms);
        if since > 0 {
            self.aged_ms = now_ms;
            let before = now_ms.saturating_sub(self.settings.max_idle_ms);
            for w in self.workers.iter_mut().flatten() {
                w.flows.provide();
                let idle = w.flows.sweep_slice(now_ms, since, before);
                if let Some(c) = w.flows.leaving(idle) {
                    w.send(c);
                }
            }
        }
    }

    /// Sets each worker's share of the flow limit.
    pub(crate) fn share_limit(&self) {
        let limit = self.settings.flow_limit;
        let flows = |w: &Handle| w.shared.flows.load(Ordering::Relaxed);
        let (mut n, mut all) = (0, 0u32);
        self.workers
            .iter()
            .flatten()
            .for_each(|w| (n, all) = (n + 1, all.saturating_add(flows(w))));
        for w in self.workers.iter().flatten() {
            let others = all.saturating_sub(flows(w));
            let part = limit.saturating_sub(others).max(limit / n);
            w.shared.limit.store(part, Ordering::Relaxed);
        }
    }

    /// Invalidates megaflows that overlap these regions. The caller has published the tables that
    /// changed before. [`Datapath::ticket_done`] says when no packet can meet an old decision.
    pub fn invalidate(&mut self, regions: &[Region]) -> Ticket {
        self.change(Change { regions: regions.to_vec(), stale: Vec::new() })
    }

    /// Megaflows that were stored since the last call, at most 1,024. None after a call in which
    /// `next` was false.
    pub fn new_flows(&mut self, next: bool) -> Vec<FlowDump> {
        self.recent.take_flows(next)
    }

    /// Keys of packets that missed since the last call, at most 1,024, if settings say that they
    /// are reported.
    pub fn take_missed(&mut self) -> Vec<Key> {
        self.recent.take_missed()
    }

    /// Invalidates megaflows of which `stale` is true, as [`Datapath::invalidate`] does. It
    /// examines each megaflow once, 4,096 in a slice; later changes wait for its end.
    pub fn invalidate_stale(&mut self, stale: Stale) -> Ticket {
        self.change(Change { regions: Vec::new(), stale: vec![stale] })
    }

    fn change(&mut self, change: Change) -> Ticket {
        let t = self.tickets.open(&self.config.domain, change);
        self.drive_tickets();
        if !self.tickets.is_done(t) {
            self.bell.ask();
            self.drive_tickets();
        }
        t
    }

    /// A descriptor that is readable when there are reports, while the control side waits (see
    /// [`Datapath::rests`]).
    pub fn bell(&self) -> Bell {
        Bell(self.bell.clone())
    }

    /// Called before the control side waits on the bell, and before the last `poll` and
    /// `drain_events`. False: the control side must come back within a millisecond in any case,
    /// because PMD threads run, which never ring, or a change is under way.
    pub fn rests(&mut self) -> bool {
        self.bell.going_to_sleep();
        let kernel_only = self.workers.iter().flatten().count() == 1;
        let sent = self.workers.iter().flatten().all(|w| w.has_sent_all());
        let idle = self.capture.is_none() && self.tickets.none_waiting();
        kernel_only && sent && !self.reroute && idle
    }

    /// Called when the control side has waited.
    pub fn awake(&self) {
        self.bell.awake();
    }

    /// True if the change is complete: no packet received from now on meets an old decision.
    pub fn ticket_done(&mut self, t: Ticket) -> bool {
        self.tickets.is_done(t) || {
            self.drive_tickets();
            self.tickets.is_done(t)
        }
    }

    pub(super) fn drive_tickets(&mut self) {
        if self.tickets.searching().is_some() {
            return self.search_on();
        }
        let Some((last, change)) = self.tickets.ready(&self.config.domain) else { return };
        // A worker reports a megaflow before it ends its grace period, so all that matter are
        // reported.
        self.read_all_reports();
        for w in self.workers.iter_mut().flatten() {
            w.flows.begin_kill();
        }
        let workers = self.workers.iter().enumerate();
        let ends = workers.filter_map(|(worker_no, w)| Some((worker_no, w.as_ref()?.flows.end())));
        self.tickets.search(last, change, ends.collect());
        self.search_on();
    }

    /// True while a search goes on for megaflows that a change may have made wrong, with each
    /// [`Datapath::poll`].
    pub fn searches(&mut self) -> bool {
        self.tickets.searching().is_some()
    }

    /// Goes on with the search for megaflows that a change may have made wrong, for one slice.
    fn search_on(&mut self) {
        let Some(mut search) = self.tickets.searching().take() else { return };
        let mut steps = REGION_STEPS_MAX;
        while let Some(worker_no) = search.compared.front().copied() {
            if let Some(Some(w)) = self.workers.get_mut(worker_no) {
                let (dead, complete) = w.flows.kill(&search.regions, &mut steps);
                if let Some(c) = w.flows.leaving(dead) {
                    w.send(c);
                }
                if !complete {
                    *self.tickets.searching() = Some(search);
                    return;
                }
            }
            search.compared.pop_front();
        }
        let (numbers, last) = search.next_slice();
        for (worker_no, numbers) in numbers {
            let Some(Some(w)) = self.workers.get_mut(worker_no) else { continue };
            let dead = w.flows.kill_stale(&search.stale, numbers);
            if let Some(c) = w.flows.leaving(dead) {
                w.send(c);
            }
        }
        match last {
            Some(last) => self.tickets.close(last),
            None => *self.tickets.searching() = Some(search),
        }
    }

    /// Hands over events since the last call: effects of decisions until they cost `most`, as
    /// `each` says, ports in turn, and `most` packets, workers in turn. True: there are more.
    pub fn drain_events(&mut self, most: usize, each: &mut dyn FnMut(Event) -> usize) -> bool {
        self.read_all_reports();
        let more = self.events.drain(most, each);
        let mut left = most;
        while left > 0 {
            let before = left;
            for w in self.workers.iter_mut().flatten() {
                if left > 0
                    && let Some(p) = w.punt()
                {
                    left -= 1;
                    each(Event::Punt(p));
                }
            }
            if left == before {
                return more;
            }
        }
        true
    }

    /// Executes operations on a packet of the control side, in the kernel worker. `in_port` may be
    /// [`flow::NO_PORT`].
    pub fn execute(&mut self, packet: &[u8], in_port: PortNo, ops: &[Op]) -> Result<(), Error> {
        if packet.len() > INJECTED_BYTES_MAX {
            return Err(Error::Packet(packet.len()));
        }
        let e = Execute { packet: packet.to_vec(), in_port, ops: ops.into() };
        if let Some(w) = &mut self.workers[0] {
            w.inject(e);
        }
        Ok(())
    }

    /// True if the kernel worker has not much to do for packets of the control side: it does that
    /// between two iterations.
    pub fn takes_packets(&mut self) -> bool {
        self.workers[0].as_mut().is_none_or(|w| w.takes_packets())
    }

    /// Number of packets of the control side so far.
    pub fn injected(&self) -> u64 {
        self.workers[0].as_ref().map_or(0, |w| w.injected())
    }

    /// True if the kernel worker has done everything with so many packets of the control side, also
    /// when they were looked up again.
    pub fn has_injected(&self, packets: u64) -> bool {
        self.workers[0].as_ref().is_none_or(|w| w.has_injected(packets))
    }

    /// Hands over traffic since the last call, each packet exactly once. If no worker has more than
    /// 262,144 megaflows this is all traffic; otherwise the traffic that is known (see
    /// [`Datapath::credited_ms`]).
    pub fn collect(&mut self, each: &mut dyn FnMut(Used<'_>)) {
        self.fold();
        self.collect_some(usize::MAX, each);
    }

    /// Reads the counters of megaflows. The time of [`Datapath::credited_ms`] after this holds once
    /// [`Datapath::collect_some`] has returned false.
    pub fn fold(&mut self) {
        self.read_all_reports();
        for w in self.workers.iter_mut().flatten() {
            w.flows.fold(self.aged_ms);
        }
    }

    /// Hands over traffic that was known at the last [`Datapath::fold`], of `most` lists of
    /// counters. True: there are more.
    pub fn collect_some(&mut self, most: usize, each: &mut dyn FnMut(Used<'_>)) -> bool {
        for c in self.past.credits.drain(..) {
            each(Used {
                credits: &c.credits,
                effects: c.effects.as_ref(),
                reported: c.reported,
                packets: c.packets,
                bytes: c.bytes,
                used_ms: c.used_ms,
            });
        }
        let mut left = most;
        for w in self.workers.iter_mut().flatten() {
            match w.flows.collect(left, each) {
                Some(n) => left = left.saturating_sub(n),
                None => return true,
            }
        }
        false
    }

    /// Time up to which [`Datapath::collect`] has handed over all traffic, milliseconds: with
    /// millions of megaflows, one to two seconds ago.
    pub fn credited_ms(&self) -> u64 {
        let workers = self.workers.iter().flatten().map(|w| w.flows.credited_ms());
        workers.chain(self.marks.watches.credited_ms).min().unwrap_or(self.aged_ms)
    }

    /// All megaflows.
    pub fn flows(&mut self) -> Vec<FlowDump> {
        self.read_all_reports();
        let mut out = Vec::new();
        for (worker_no, w) in self.workers.iter().enumerate() {
            let Some(w) = w else { continue };
            w.flows.dump((w.id, worker_no), 0, usize::MAX, &mut out);
        }
        out
    }

    /// Adds megaflows of one worker to `out`: those among the `most` indices from `from` on.
    /// Returns the index to continue from; None: there are no more, or there is no such worker.
    pub fn flows_of(
        &mut self,
        worker: WorkerId,
        from: usize,
        most: usize,
        out: &mut Vec<FlowDump>,
    ) -> Option<usize> {
        if from == 0 {
            self.read_all_reports();
        }
        let is_it = |w: &Option<Box<Handle>>| w.as_ref().is_some_and(|w| w.id == worker);
        let worker_no = self.workers.iter().position(is_it)?;
        self.workers[worker_no].as_ref()?.flows.dump((worker, worker_no), from, most, out)
    }

    /// Removes all megaflows; their traffic is still credited.
    pub fn flush(&mut self) {
        self.read_all_reports();
        for w in self.workers.iter_mut().flatten() {
            let all = w.flows.all();
            if let Some(c) = w.flows.leaving(all) {
                w.send(c);
            }
        }
        self.wait_for_workers();
    }

    /// All workers, the kernel worker first.
    pub fn pmd_info(&self) -> Vec<PmdInfo> {
        let pinned = |worker_no: usize| {
            let mut queues = self.ports.values().flat_map(|p| &p.rxqs);
            queues.any(|q| q.pinned && q.owner == Some(worker_no))
        };
        let workers = self.workers.iter().enumerate();
        let live = workers.filter_map(|(worker_no, w)| Some((worker_no, w.as_ref()?)));
        live.map(|(worker_no, w)| PmdInfo {
            worker: w.id,
            numa: match w.id {
                WorkerId::Pmd(core) => Core::read(Path::new(CPUS), core).numa,
                WorkerId::Kernel => 0,
            },
            isolated: self.settings.rxq_isolate && pinned(worker_no),
            flows: w.shared.flows.load(Ordering::Relaxed),
            masks: w.shared.masks.load(Ordering::Relaxed),
            signature_cache: w.shared.cache_on.load(Ordering::Relaxed),
            perf: w.shared.perf.read().since(&w.base),
        })
        .collect()
    }

    /// How each worker looks up packets of each port, as of the last second.
    pub fn lookups(&mut self) -> Vec<(WorkerId, Box<[PortLookup]>)> {
        self.read_all_reports();
        self.workers.iter().flatten().map(|w| (w.id, w.lookups.clone())).collect()
    }

    /// All receive queues.
    pub fn rxq_info(&self) -> Vec<RxqInfo> {
        let mut out = Vec::new();
        for (no, p) in &self.ports {
            for (queue, q) in p.rxqs.iter().enumerate() {
                let worker = q.owner.and_then(|s| self.workers[s].as_ref()).map(|w| w.id);
                out.push(RxqInfo {
                    port: *no,
                    name: p.port.name().to_string(),
                    queue,
                    worker,
                    pinned: q.pinned,
                    cycles: q.cell.cycles.get() - q.base.0,
                    packets: q.cell.packets.get() - q.base.1,
                });
            }
        }
        out
    }

    /// Counters of each worker since they were cleared.
    pub fn perf(&self) -> Vec<(WorkerId, Perf)> {
        self.pmd_info().into_iter().map(|p| (p.worker, p.perf)).collect()
    }

    /// Clears what `perf`, `metrics` and `rxq_info` return, of one worker or of all. The counters
    /// that must balance stay.
    pub fn stats_clear(&mut self, only: Option<WorkerId>) {
        for (worker_no, w) in self.workers.iter_mut().enumerate() {
            let Some(w) = w.as_mut().filter(|w| only.is_none_or(|id| id == w.id)) else { continue };
            w.base = w.shared.perf.read();
            w.shared.metrics.clear.store(true, Ordering::Relaxed);
            let queues = self.ports.values_mut().flat_map(|p| &mut p.rxqs);
            for q in queues.filter(|q| only.is_none() || q.owner == Some(worker_no)) {
                q.base = (q.cell.cycles.get(), q.cell.packets.get());
            }
        }
    }

    /// Statistics of a worker's iterations, with the last `iterations` iterations and `ms`
    /// milliseconds.
    pub fn metrics(&self, of: WorkerId, iterations: usize, ms: usize) -> Option<MetricsView> {
        let w = self.workers.iter().flatten().find(|w| w.id == of)?;
        Some(w.shared.metrics.view(iterations, ms))
    }

    /// Runs every worker once (`Config::manual`); returns the number of packets moved.
    pub fn step(&mut self) -> usize {
        self.ct_keeper.step();
        self.workers.iter_mut().flatten().map(|w| w.step()).sum()
    }

    /// The table of connections.
    pub fn conntrack(&self) -> &Arc<conntrack::Table> {
        &self.config.conntrack
    }

    /// Calls `to` with each datagram whose fragments wait: how many there are, and whether the
    /// first and the last one are among them.
    pub fn fragments(&self, to: impl FnMut(&conntrack::ipf::Datagram, usize, [bool; 2])) {
        // Like workers, without waiting in the lock: a worker that released it would have to wake
        // this thread by a system call.
        let waiting = || self.config.fragments.try_lock().ok();
        let attempts = std::iter::repeat_with(|| {
            std::thread::yield_now();
            waiting()
        });
        if let Some(waiting) = attempts.take(SHOW_ATTEMPTS_COUNT_MAX).flatten().next() {
            waiting.show(to);
        }
    }

    /// Removes all ports and stops all workers; counters can be read until the datapath is dropped.
    pub fn shutdown(&mut self) {
        let nos: Vec<PortNo> = self.ports().collect();
        self.del_ports(nos);
        for worker_no in (0..self.workers.len()).rev() {
            if self.workers[worker_no].is_some() {
                self.stop_worker(worker_no);
            }
        }
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.shutdown();
    }
}
