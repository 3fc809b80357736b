//! [`Datapath`], the control side's handle: workers, ports, megaflows, changes. One thread owns it.

mod api;
mod auto_lb;
mod bonds;
pub(crate) mod capture_control;
pub(crate) mod ct_keeper;
pub(crate) mod effects;
pub(crate) mod flow_index;
pub(crate) mod flow_stats;
pub(crate) mod flows;
mod hardware;
pub(crate) mod invalidate;
pub(crate) mod load;
pub(crate) mod mark_bindings;
pub(crate) mod marks;
pub(crate) mod placement;
mod polling;
mod ports;
mod recent;
mod removal;
mod routes;
pub(crate) mod topology;
mod wait;
pub(crate) mod watches;
pub(crate) mod worker;

use crate::manage::capture_control::CaptureControl;
use crate::manage::ct_keeper::CtKeeper;
use crate::manage::effects::EventQueue;
use crate::manage::invalidate::Tickets;
use crate::manage::load::{AutoLb, History};
use crate::manage::mark_bindings::{MarkControl, PortMarks};
use crate::manage::placement::Queue;
use crate::manage::polling::LastPlacement;
use crate::manage::recent::Recent;
use crate::manage::topology::Core;
use crate::manage::worker::Handle;
use crate::messages::*;
use crate::police::Policer;
use crate::settings::*;
use crate::stats::port::{PortCell, PortStats, RxqCell};
use crate::tx::bond::Bond;
use crate::wake::Wake;
use flow::PortNo;
use port::{Port, RxQueue, Service, TxQueue};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A receive queue as the control side sees it.
pub(crate) struct Rxq {
    pub cell: Arc<RxqCell>,
    /// Number of the worker that has the queue.
    pub owner: Option<usize>,
    /// Number of the worker that should have the queue.
    pub next_owner: Option<usize>,
    /// True: the worker that has the queue was asked to give it back.
    pub moving: bool,
    /// The queue, while no worker has it.
    pub spare: Option<Box<RxqEntry>>,
    pub pinned: bool,
    /// (cycles, packets) when cleared.
    pub base: (u64, u64),
    /// Cycles of the queue in the last minute.
    pub load: History,
}

/// The core for each polled queue, and what it was decided from.
pub(crate) struct Placement {
    pub cores: Vec<Core>,
    pub queues: Vec<Queue>,
    names: Vec<(PortNo, usize)>,
    pub cores_of_queues: Vec<Option<usize>>,
    worker_no_of: BTreeMap<usize, usize>,
}

impl Rxq {
    /// Queue number `queue` of a port, without a worker yet. `stats`: any of the port's counters.
    fn new(port: PortNo, queue: usize, rx: Box<dyn RxQueue>, stats: &Arc<PortCell>) -> Self {
        let cell = Arc::new(RxqCell::default());
        let (stats, c) = (stats.clone(), cell.clone());
        let spare = Some(Box::new(RxqEntry { port, queue, rx, cell: c, stats, police: None }));
        Rxq {
            cell,
            owner: None,
            next_owner: None,
            moving: false,
            spare,
            pinned: false,
            base: (0, 0),
            load: History::default(),
        }
    }

    /// Cycles of the last minute; if there is no sample yet, all cycles so far.
    fn cost(&self) -> u64 {
        let so_far = self.cell.cycles.get().saturating_sub(self.base.0);
        self.load.over(60).filter(|c| *c > 0).unwrap_or(so_far)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortRoute {
    Own,
    Via(usize),
}

/// A port as the control side sees it.
pub(crate) struct PortEntry {
    pub port: Box<dyn Port>,
    /// How many ports had got a number when this one did, itself among them.
    pub nth: u64,
    pub affinity: RxAffinity,
    pub rxqs: Vec<Rxq>,
    /// Transmit queues that no worker has.
    pub txqs: Vec<Box<dyn TxQueue>>,
    pub routes: BTreeMap<usize, PortRoute>,
    pub cells: BTreeMap<usize, Arc<PortCell>>,
    /// Counters of workers that ended.
    pub past: PortStats,
    /// Counters of packets that the port's adapter forwarded without the host.
    pub hardware: PortStats,
    /// Longest frame that the port takes, as set in workers, bytes.
    pub limit: usize,
    /// Limit of what the port may receive.
    policing: Policing,
    /// Its token buckets, which workers share.
    policer: Option<Arc<Policer>>,
    /// Limit of what may be sent to the port.
    egress: Option<EgressPolicer>,
    /// Its token bucket, which workers share.
    egress_policer: Option<Arc<Policer>>,
    /// Some: the port's adapter may mark packets.
    pub marks: Option<Box<PortMarks>>,
}

/// Bytes of a frame beyond the MTU: an Ethernet header and one VLAN tag (as for OVS's DPDK ports).
const BEYOND_MTU: usize = 14 + 4;

fn limit(port: &dyn Port) -> usize {
    usize::from(port.mtu()) + BEYOND_MTU
}

/// Counters of ports, workers and megaflows that ended.
#[derive(Default)]
pub(crate) struct Past {
    /// Counters of removed ports, and of packets without a port.
    pub stats: PortStats,
    /// Traffic that is not credited yet.
    pub credits: Vec<Credit>,
}

/// The packet half, as the control side sees it. Dropping it shuts it down.
pub struct Datapath {
    pub(crate) config: Config,
    pub(crate) settings: Settings,
    pub(crate) workers: Vec<Option<Box<Handle>>>,
    pub(crate) ports: BTreeMap<PortNo, PortEntry>,
    /// How many ports have got a number so far.
    numbered_ports: u64,
    pub(crate) past: Past,
    pub(crate) tickets: Tickets,
    pub(crate) events: EventQueue,
    pub(crate) aged_ms: u64,
    pub(crate) auto_lb: AutoLb,
    last_placement: LastPlacement,
    ct_keeper: CtKeeper,
    /// Rung by the kernel worker when there are reports.
    pub(crate) bell: Arc<Wake>,
    pub(crate) marks: MarkControl,
    /// True: transmit queues came back, so routes are to be set again.
    pub(crate) reroute: bool,
    pub(crate) capture: Option<CaptureControl>,
    /// Bonds, by their numbers; no port has one of these.
    pub(crate) bonds: BTreeMap<PortNo, Arc<Bond>>,
    /// Cores on which PMD threads may run.
    cores: Vec<usize>,
    pub(crate) recent: Recent,
}

impl Datapath {
    /// Starts the kernel worker; PMD threads follow with [`Datapath::set_pmd_cores`].
    pub fn new(config: Config) -> Result<Self, Error> {
        let bell = Arc::new(Wake::new().map_err(|e| Error::Thread(e.to_string()))?);
        let kernel = Handle::start(&config, WorkerId::Kernel, &bell)?;
        let ct_keeper = CtKeeper::start(&config).map_err(|e| Error::Thread(e.to_string()))?;
        let mut dp = Datapath {
            config,
            ct_keeper,
            settings: Settings::default(),
            workers: vec![Some(Box::new(kernel))],
            ports: BTreeMap::new(),
            numbered_ports: 0,
            past: Past::default(),
            tickets: Tickets::new(),
            events: EventQueue::default(),
            aged_ms: 0,
            auto_lb: AutoLb::default(),
            last_placement: LastPlacement::default(),
            reroute: false,
            capture: None,
            marks: MarkControl::default(),
            bonds: BTreeMap::new(),
            cores: Vec::new(),
            recent: Recent::default(),
            bell,
        };
        let s = dp.settings.clone();
        dp.set_settings(s);
        Ok(dp)
    }

    /// Changes the settings, while packets pass.
    pub fn set_settings(&mut self, s: Settings) {
        let how = |s: &Settings| (s.rxq_assign, s.rxq_isolate);
        let placement = how(&s) != how(&self.settings);
        self.settings = s;
        self.share_limit();
        for w in self.workers.iter_mut().flatten() {
            w.send(Command::Settings(Box::new(self.settings.of(w.id))));
        }
        if placement {
            self.rebalance();
        }
    }

    /// The current settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the cores of PMD threads: one thread on each, as long as there is a port to poll.
    /// Queues are moved while packets pass.
    pub fn set_pmd_cores(&mut self, cores: &[usize]) -> Result<(), Error> {
        self.cores = cores.to_vec();
        self.update_pmd_threads()
    }

    /// Number of workers that send, when every configured core has its PMD thread.
    pub fn tx_threads(&self) -> usize {
        self.cores.len() + 1
    }

    /// Starts and stops PMD threads as configured; without polled ports there are none.
    fn update_pmd_threads(&mut self) -> Result<(), Error> {
        let polled = self.ports.values().any(|p| p.port.service() == Service::Poll);
        let cores = if polled { self.cores.clone() } else { Vec::new() };
        let running = self.workers.iter().flatten().filter(|w| w.id != WorkerId::Kernel);
        if running.map(|w| w.id).eq(cores.iter().map(|c| WorkerId::Pmd(*c))) {
            return Ok(());
        }
        let mut result = Ok(());
        for core in &cores {
            let id = WorkerId::Pmd(*core);
            if !self.workers.iter().flatten().any(|w| w.id == id) {
                result = result.and(self.start_worker(id));
            }
        }
        let leaving: Vec<usize> = (0..self.workers.len())
            .filter(|s| match self.workers[*s].as_ref().map(|w| w.id) {
                Some(WorkerId::Pmd(core)) => !cores.contains(&core),
                _ => false,
            })
            .collect();
        // A thread has a way to every port before it receives anything.
        self.route_all();
        self.take_from_kernel();
        self.place(&leaving);
        self.wait_for_workers();
        leaving.into_iter().for_each(|worker_no| self.stop_worker(worker_no));
        result
    }

    fn start_worker(&mut self, id: WorkerId) -> Result<(), Error> {
        let mut w = Handle::start(&self.config, id, &self.bell)?;
        w.send(Command::Settings(Box::new(self.settings.of(id))));
        if let Some(capture) = &mut self.capture {
            w.send(capture.for_worker(id));
        }
        let worker_no = self.workers.iter().position(Option::is_none).unwrap_or(self.workers.len());
        if worker_no == self.workers.len() {
            self.workers.push(None);
        }
        for (no, p) in &mut self.ports {
            let cell = Arc::new(PortCell::default());
            p.cells.insert(worker_no, cell.clone());
            w.send(Command::AddPort(*no, cell, p.nth));
            w.send(Command::Limit(*no, p.limit));
            w.send(Command::PoliceTx(*no, p.egress_policer.clone()));
        }
        for (no, bond) in &self.bonds {
            w.send(Command::Bond(*no, Some(bond.clone())));
        }
        self.workers[worker_no] = Some(Box::new(w));
        self.give_mark_tables(worker_no);
        Ok(())
    }

    fn worker(&mut self, worker_no: usize) -> &mut Handle {
        self.workers[worker_no].as_mut().expect("a worker of this number")
    }

    /// Stops a worker, whose receive queues other workers have already.
    pub(crate) fn stop_worker(&mut self, worker_no: usize) {
        self.route_without(worker_no);
        self.worker(worker_no).send(Command::Stop);
        self.wait_for_workers();
        let mut w = self.workers[worker_no].take().expect("a worker of this number");
        let mut left = w.join();
        loop {
            let done = left.as_mut().is_none_or(|l| l.drained());
            let moved = self.read_reports(&mut w);
            moved.into_iter().for_each(|no| self.advance(no));
            if done {
                break;
            }
        }
        w.flows.all().into_iter().for_each(|i| w.flows.unlinked(i));
        self.unbind_ended(&mut w.flows.marks);
        self.marks.watches.forget(worker_no, &mut w.flows.watches);
        self.forget_mark_tables(worker_no);
        let past = &mut self.past.credits;
        w.flows.fold(self.aged_ms);
        w.flows.collect(usize::MAX, &mut |u| {
            past.push(Credit {
                credits: u.credits.into(),
                effects: u.effects.cloned(),
                reported: u.reported,
                packets: u.packets,
                bytes: u.bytes,
                used_ms: u.used_ms,
            })
        });
        for p in self.ports.values_mut() {
            if let Some(c) = p.cells.remove(&worker_no) {
                p.past.add(&c.read());
            }
        }
        self.past.stats.add(&w.shared.orphan.read());
    }

    /// Places receive queues again, by their present cost.
    pub fn rebalance(&mut self) {
        self.place_as(self.placement(&[]), true);
    }

    /// Where polled queues should be, without the workers in `leaving`.
    pub(crate) fn placement(&self, leaving: &[usize]) -> Placement {
        let core_of = |worker_no: usize| match self.workers.get(worker_no)?.as_ref()?.id {
            WorkerId::Pmd(core) => Some(core),
            WorkerId::Kernel => None,
        };
        let staying = (0..self.workers.len()).filter(|s| !leaving.contains(s));
        let worker_no_of: BTreeMap<usize, usize> =
            staying.filter_map(|worker_no| Some((core_of(worker_no)?, worker_no))).collect();
        let read = |id: &usize| Core::read(std::path::Path::new(topology::CPUS), *id);
        let cores: Vec<Core> = worker_no_of.keys().map(read).collect();
        let (mut queues, mut names) = (Vec::new(), Vec::new());
        for (no, p) in self.ports.iter().filter(|(_, p)| p.port.service() == Service::Poll) {
            for (i, q) in p.rxqs.iter().enumerate() {
                let pin = p.affinity.0.get(&i).copied();
                let (cycles, now) = (q.cost(), q.owner.and_then(core_of));
                queues.push(Queue { pin, cycles, now, numa: p.port.numa() });
                names.push((*no, i));
            }
        }
        let s = &self.settings;
        let cores_of_queues = placement::assign(&queues, &cores, s.rxq_assign, s.rxq_isolate);
        Placement { cores, queues, names, cores_of_queues, worker_no_of }
    }

    fn place(&mut self, leaving: &[usize]) {
        self.place_as(self.placement(leaving), false);
    }

    fn place_as(&mut self, placement: Placement, asked: bool) {
        self.note_placement(&placement, asked);
        for ((no, i), (core, q)) in
            placement.names.into_iter().zip(placement.cores_of_queues.iter().zip(&placement.queues))
        {
            let rxq = &mut self.ports.get_mut(&no).unwrap().rxqs[i];
            rxq.next_owner = core.and_then(|c| placement.worker_no_of.get(&c).copied());
            rxq.pinned = q.pin.is_some() && q.pin == *core;
        }
        for p in self.ports.values_mut().filter(|p| p.port.service() == Service::Kernel) {
            p.rxqs.iter_mut().for_each(|q| q.next_owner = Some(0));
        }
        let nos: Vec<PortNo> = self.ports.keys().copied().collect();
        nos.into_iter().for_each(|no| self.advance(no));
    }

    /// Moves each of a port's receive queues one step towards the worker that should have it.
    fn advance(&mut self, no: PortNo) {
        let Some(p) = self.ports.get_mut(&no) else { return };
        for (i, q) in p.rxqs.iter_mut().enumerate() {
            if let Some(owner) = q.owner
                && q.owner != q.next_owner
                && !q.moving
            {
                let w = self.workers[owner].as_mut().expect("a worker of this number");
                w.send(Command::DelRx(no, i));
                q.moving = true;
            }
            if let Some(worker_no) = q.next_owner
                && let Some(mut rx) = q.spare.take()
            {
                (rx.stats, rx.police) = (p.cells[&worker_no].clone(), p.policer.clone());
                let w = self.workers[worker_no].as_mut().expect("a worker of this number");
                w.send(Command::AddRx(rx));
                q.owner = q.next_owner;
            }
        }
    }

    /// Reads the reports that a worker has made so far: at most a ring full, even if more come
    /// meanwhile. Returns ports whose receive queues came back.
    fn read_reports(&mut self, w: &mut Handle) -> Vec<PortNo> {
        let mut moved = Vec::new();
        for _ in 0..REPORTS_MAX {
            let Some(r) = w.report() else { break };
            match r {
                Report::Program(id, ops) => w.flows.program(id, ops),
                Report::Installed { idx, port, bytes, credits, effects } => {
                    effects.iter().for_each(|e| self.events.effects.push(port, e.clone(), None));
                    w.flows.installed(idx, bytes, credits, effects);
                    self.recent.installed(w, idx);
                }
                Report::KeepAlive(idx, what) => w.flows.keep_alive(idx, what),
                Report::Unlinked(idx) => w.flows.unlinked(idx),
                Report::Uncached(uncached) => {
                    w.shared.taken.fetch_add(1, Ordering::Release);
                    w.flows.uncached(&uncached);
                    uncached.lost.iter().for_each(|(port, n)| self.events.effects.lose(*port, *n));
                    uncached
                        .effects
                        .into_iter()
                        .for_each(|(port, e, n)| self.events.effects.push(port, e, Some(n)));
                }
                Report::RxBack(rxq) => {
                    let no = rxq.port;
                    if let Some(p) = self.ports.get_mut(&no) {
                        let q = &mut p.rxqs[rxq.queue];
                        (q.owner, q.moving) = (None, false);
                        q.spare = Some(rxq);
                        moved.push(no);
                    }
                }
                Report::Missed(key) => self.recent.missed(*key),
                Report::Differs(how) => self.events.differences.push(how),
                Report::Suspicious(one) => self.events.suspicious.push((w.id, one)),
                Report::Lookups(now) => w.lookups = now,
                Report::TxBack(no, queue) => {
                    if let Some(p) = self.ports.get_mut(&no) {
                        p.txqs.push(queue);
                        self.reroute = true;
                    }
                }
            }
        }
        self.unbind_ended(&mut w.flows.marks).into_iter().for_each(|c| w.send(c));
        let done = w.flows.take_done();
        if !done.is_empty() {
            w.send(Command::Release(done));
        }
        moved
    }

    pub(crate) fn read_all_reports(&mut self) {
        for worker_no in 0..self.workers.len() {
            if let Some(mut w) = self.workers[worker_no].take() {
                // `advance` may send commands to this worker, which must be in its place then: so
                // reports are read first.
                let reports = self.read_reports(&mut w);
                self.workers[worker_no] = Some(w);
                reports.into_iter().for_each(|no| self.advance(no));
            }
        }
        self.workers.iter_mut().flatten().for_each(|w| w.push());
    }
}

// The control thread need not be the thread that made the datapath.
const _: () = {
    const fn send<T: Send>() {}
    send::<Datapath>();
};
