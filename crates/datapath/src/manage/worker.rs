//! The control side's end of one worker: its thread, its rings, its megaflows.

use crate::actions::fragments::Gatherer;
use crate::events::*;
use crate::lookup::flow_store::Store;
use crate::lookup::port_classifier::PortLookup;
use crate::manage::flows::Flows;
use crate::manage::load::Load;
use crate::manage::topology::assumed_cores;
use crate::messages::*;
use crate::pmd::Worker;
use crate::rx::kernel_wait::KernelWait;
use crate::settings::*;
use crate::stats::perf::Metrics;
use crate::stats::worker_stats::{Perf, PerfCell};
use crate::tx::{CtState, TxState};
use crate::wake::Wake;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use sync::{Consumer, Producer, ring};

/// Stack of a worker's thread: twice the main thread's, as table lookups nest. Pages take memory
/// when they are used.
const STACK_BYTES: usize = 16 << 20;

enum Run {
    Thread(JoinHandle<Worker>),
    Manual(Box<Worker>),
    Gone,
}

/// Operations on packets of the control side that a worker may have ahead when another one comes.
const INJECTED_OPS_MAX: usize = 2048;

/// Packets of the control side so far.
#[derive(Default)]
struct Injected {
    /// Operations on these packets since the worker was last known to have done everything.
    ops: usize,
    /// Number of packets.
    packets: u64,
}

/// One worker as the control side sees it.
pub(crate) struct Handle {
    pub id: WorkerId,
    pub shared: Arc<Shared>,
    pub flows: Flows,
    commands: Producer<Command>,
    backlog: VecDeque<Command>,
    injected: Injected,
    sent: u64,
    reports: Consumer<Report>,
    punts: Consumer<Box<PuntEvent>>,
    pub wake: Option<Arc<Wake>>,
    run: Run,
    /// Slots of the workers to which it has a ring.
    pub peers: BTreeSet<usize>,
    /// The counters when they were last cleared.
    pub base: Perf,
    /// Cycles of the last minute.
    pub load: Load,
    /// Lookup statistics by port, as last reported.
    pub lookups: Box<[PortLookup]>,
    /// True: the control side has given up waiting for this worker, and does not wait again until
    /// it has executed its commands.
    pub stuck: bool,
}

fn pin(core: usize) {
    if assumed_cores().is_some() {
        return;
    }
    // SAFETY: a zeroed set is empty; CPU_SET checks nothing beyond its size, which is checked here.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if core < 8 * size_of::<libc::cpu_set_t>() {
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}

impl Handle {
    /// Starts a worker.
    pub fn start(config: &Config, id: WorkerId, bell: &Arc<Wake>) -> Result<Handle, Error> {
        let (commands, command_in) = ring(COMMANDS_MAX);
        let (report_out, reports) = ring(REPORTS_MAX);
        let (punt_out, punts) = ring(PUNTS_MAX);
        let shared = Arc::new(Shared {
            perf: PerfCell::default(),
            metrics: Metrics::default(),
            orphan: Default::default(),
            processed: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            flows: AtomicU32::new(0),
            masks: AtomicU32::new(0),
            cache_on: AtomicBool::new(false),
            limit: AtomicU32::new(u32::MAX),
            taken: AtomicU64::new(0),
            bell: (id == WorkerId::Kernel).then(|| bell.clone()),
        });
        let failed = |e: std::io::Error| Error::Thread(e.to_string());
        let wait = match id {
            WorkerId::Kernel => Some(KernelWait::new().map_err(failed)?),
            WorkerId::Pmd(_) => None,
        };
        let ct = CtState {
            worker: conntrack::Worker::new(&config.conntrack),
            fragments: Gatherer::new(&config.fragments),
        };
        let tx = TxState::new(config.pool.clone(), shared.clone(), punt_out, ct);
        let worker = Worker::new(config, tx, command_in, report_out, shared.clone(), wait);
        let store: Arc<Store> = worker.lookup.table.store.clone();
        let wake = worker.wake();
        let run = match config.manual {
            true => Run::Manual(Box::new(worker)),
            false => Run::Thread(spawn(worker, id, config.register_thread).map_err(failed)?),
        };
        Ok(Handle {
            id,
            shared,
            flows: Flows::new(store),
            commands,
            backlog: VecDeque::new(),
            sent: 0,
            injected: Injected::default(),
            reports,
            punts,
            wake,
            run,
            peers: BTreeSet::new(),
            base: Perf::default(),
            load: Load::default(),
            lookups: Box::default(),
            stuck: false,
        })
    }

    /// Has the worker execute operations on a packet of the control side.
    pub fn inject(&mut self, e: Execute) {
        self.injected.ops += 1 + action::count(&e.ops);
        self.injected.packets += 1;
        self.send(Command::Execute(Box::new(e)));
    }

    /// Number of such packets so far.
    pub fn injected(&self) -> u64 {
        self.injected.packets
    }

    /// True if the worker has done everything with so many of them.
    pub fn has_injected(&self, packets: u64) -> bool {
        self.shared.injected.load(Ordering::Acquire) >= packets
    }

    /// True if the worker has few operations on such packets ahead.
    pub fn takes_packets(&mut self) -> bool {
        if self.injected.ops >= INJECTED_OPS_MAX && self.has_injected(self.injected.packets) {
            self.injected.ops = 0;
        }
        self.injected.ops < INJECTED_OPS_MAX
    }

    /// Queues a command for the worker.
    pub fn send(&mut self, c: Command) {
        self.backlog.push_back(c);
        self.push();
    }

    /// Moves queued commands into the ring, as far as it has room.
    pub fn push(&mut self) {
        let before = self.backlog.len();
        while let Some(c) = self.backlog.pop_front() {
            if let Err(c) = self.commands.push(c) {
                self.backlog.push_front(c);
                break;
            }
            self.sent += 1;
        }
        if let (Some(w), true) = (&self.wake, before > self.backlog.len()) {
            w.wake();
        }
    }

    /// True if the worker has executed all commands, or its thread has ended.
    pub fn is_settled(&mut self) -> bool {
        let processed = self.shared.processed.load(Ordering::Acquire);
        let gone = match &self.run {
            Run::Thread(t) => t.is_finished(),
            Run::Manual(_) => false,
            Run::Gone => true,
        };
        let settled = gone || (self.backlog.is_empty() && processed == self.sent);
        self.stuck &= !settled;
        settled
    }

    /// True if all commands are in the ring.
    pub fn has_sent_all(&self) -> bool {
        self.backlog.is_empty()
    }

    /// The next report.
    pub fn report(&mut self) -> Option<Report> {
        self.reports.pop()
    }

    /// The next punted packet.
    pub fn punt(&mut self) -> Option<Box<PuntEvent>> {
        self.punts.pop()
    }

    /// Runs one iteration of a worker without a thread; returns the number of packets moved.
    pub fn step(&mut self) -> usize {
        match &mut self.run {
            Run::Manual(w) => w.step(),
            _ => 0,
        }
    }

    /// Waits for the thread's end, after `Stop` was sent, and returns the worker.
    pub fn join(&mut self) -> Option<Box<Worker>> {
        match std::mem::replace(&mut self.run, Run::Gone) {
            Run::Thread(t) => t.join().ok().map(Box::new),
            Run::Manual(w) => Some(w),
            Run::Gone => None,
        }
    }
}

fn spawn(
    worker: Worker,
    id: WorkerId,
    register: fn(WorkerId),
) -> std::io::Result<JoinHandle<Worker>> {
    std::thread::Builder::new().name(id.to_string()).stack_size(STACK_BYTES).spawn(move || {
        let mut worker = worker;
        if let WorkerId::Pmd(core) = id {
            pin(core);
        }
        register(id);
        worker.run();
        worker
    })
}
