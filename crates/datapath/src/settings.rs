//! What the control side configures: the parts of a datapath, settings, limits of ports.

use crate::actions::fragments::FragmentStore;
use crate::cpu::Level;
use crate::stats::perf::PerfLog;
use crate::verify::levels::{is_available, preferred_level};
use action::Pipeline;
use flow::PortNo;
use packet::Pool;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use sync::Domain;

/// The parts of which a [`crate::Datapath`] is made.
pub struct Config {
    /// The pool of packet buffers.
    pub pool: Arc<dyn Pool>,
    /// The domain in which `pipeline`'s tables are published; every worker is a reader.
    pub domain: Domain,
    /// Decides about packets without a megaflow.
    pub pipeline: Arc<dyn Pipeline>,
    /// Called first on every worker thread: DPDK registers its threads.
    pub register_thread: fn(WorkerId),
    /// Called with a warning while the control side waits for a worker.
    pub warn: fn(&str),
    /// The table of connections, which all workers share.
    pub conntrack: Arc<conntrack::Table>,
    /// The fragments of all workers that wait.
    pub(crate) fragments: Arc<FragmentStore>,
    /// Megaflows for which each worker reserves address space: the most that
    /// [`Settings::flow_limit`] can ever allow in one worker.
    pub max_flows: u32,
    /// True: there are no threads; [`crate::Datapath::step`] runs the workers (tests, simulation).
    pub manual: bool,
}

impl Config {
    /// A configuration with defaults, except for these three parts.
    pub fn new(pool: Arc<dyn Pool>, domain: Domain, pipeline: Arc<dyn Pipeline>) -> Self {
        let register_thread = |_| {};
        Config {
            pool,
            domain,
            pipeline,
            register_thread,
            warn: |_| {},
            conntrack: Arc::default(),
            fragments: Arc::default(),
            max_flows: 1 << 24,
            manual: false,
        }
    }
}

/// Whether something is on, off, or decided by measured costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tri {
    /// Decided by measured costs.
    #[default]
    Auto,
    /// Always on.
    On,
    /// Always off.
    Off,
}

/// How receive queues that are not pinned are placed on PMD threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RxqAssign {
    /// Queues are assigned by measured cycles, with about the same number of queues on each thread.
    #[default]
    Cycles,
    /// Queues are assigned by measured cycles only: to the least loaded thread.
    Group,
    /// Queues are assigned to threads in turn.
    RoundRobin,
}

impl RxqAssign {
    /// The name that `pmd-rxq-assign` has for it.
    pub fn name(self) -> &'static str {
        match self {
            RxqAssign::Cycles => "cycles",
            RxqAssign::Group => "group",
            RxqAssign::RoundRobin => "roundrobin",
        }
    }
}

/// When queues are moved automatically (`pmd-auto-lb`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoLb {
    /// True: queues are moved automatically (`pmd-auto-lb`).
    pub enabled: bool,
    /// Least time between two attempts (`pmd-auto-lb-rebal-interval`), minutes.
    pub interval_min: u64,
    /// Queues are moved only if a PMD thread is busy for this share of a minute
    /// (`pmd-auto-lb-load-threshold`), percent.
    pub load_threshold: u8,
    /// Queues are moved only if the variance of the threads' load falls by this share
    /// (`pmd-auto-lb-improvement-threshold`), percent.
    pub improvement: u8,
}

impl Default for AutoLb {
    fn default() -> Self {
        AutoLb { enabled: false, interval_min: 1, load_threshold: 95, improvement: 25 }
    }
}

/// Rate of the packets that each worker may punt from one input port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PuntRate {
    /// Packets per second.
    pub per_second: u32,
    /// Packets that may be punted at once after a pause.
    pub burst: u32,
}

/// Options for debugging decisions; they cost speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowDebug {
    /// Each megaflow matches one key only (`upcall/disable-megaflows`).
    pub exact_megaflows: bool,
    /// Each megaflow is stored under its own mask, however few megaflows there are; its mask is not
    /// widened to whole bytes.
    pub own_masks: bool,
    /// Missed packets are reported, see [`crate::Datapath::take_missed`].
    pub report_misses: bool,
}

/// Place of the validating mode's priority for lookups, behind those of the levels.
pub const VALIDATING: usize = Level::ALL.len();

/// Settings that can be changed while packets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Signature cache (`smc-enable`).
    pub signature_cache: Tri,
    /// Megaflows over all workers (`flow-limit`), and at most `Config::max_flows` in one worker. A
    /// worker may have what the others leave, and an equal share in any case.
    pub flow_limit: u32,
    /// Megaflows that were not used for this long are removed (`max-idle`), milliseconds.
    pub max_idle_ms: u64,
    /// How long transmit bursts that are not full are held (`tx-flush-interval`), microseconds.
    /// None: by load and rate, at most 25.
    pub tx_flush_interval_us: Option<u64>,
    /// Longest sleep of an idle PMD thread (`pmd-sleep-max`), microseconds; 0: never sleeps.
    pub pmd_sleep_max_us: u64,
    /// Longest sleep of single PMD threads, by core, microseconds.
    pub pmd_sleep_of: BTreeMap<usize, u64>,
    /// How many VLAN tags the parser looks behind (`vlan-limit`): 1 or 2.
    pub vlan_limit: u8,
    /// Limit of packets that are punted to the control side.
    pub punts: PuntRate,
    /// Misses resolved per vector; packets beyond wait for the next one, in order.
    pub miss_budget: usize,
    /// Options for debugging decisions.
    pub debug: FlowDebug,
    /// How receive queues are placed (`pmd-rxq-assign`).
    pub rxq_assign: RxqAssign,
    /// True: decapsulate before lookup if there is a decapsulation rule. False: always in two
    /// steps.
    pub one_pass: bool,
    /// True: a PMD thread with a pinned queue serves no other queues (`pmd-rxq-isolate`).
    pub rxq_isolate: bool,
    /// When queues are moved automatically.
    pub auto_lb: AutoLb,
    /// The level of kernels; one that is [`crate::is_available`].
    pub level: Level,
    /// Priority of each level for lookup: the available level with the highest priority is used.
    /// The last one is the validating mode's ([`Settings::lookups_validate`]).
    pub lookup_priority: [u8; VALIDATING + 1],
    /// Compare kernels and programs with their twins, packet by packet.
    pub validate: bool,
    /// Level and `validate` of single PMD threads, by core.
    pub parser_of: BTreeMap<usize, (Level, bool)>,
    /// Measure single iterations (`pmd-perf-metrics`).
    pub perf_metrics: bool,
    /// Which iterations are logged.
    pub perf_log: PerfLog,
}

impl Settings {
    /// The settings of one worker.
    pub(crate) fn of(&self, worker: WorkerId) -> Settings {
        let mut s = self.clone();
        if let WorkerId::Pmd(core) = worker {
            s.pmd_sleep_max_us = self.sleep_max_us(core);
            (s.level, s.validate) = self.parser(core);
        } else {
            s.perf_metrics = false;
        }
        s
    }

    /// The level of lookups: of the available levels the one with the highest priority.
    pub fn lookup_level(&self) -> Level {
        let available = Level::ALL.into_iter().filter(|l| is_available(*l));
        let rank = |l: &Level| (self.lookup_priority[*l as usize], Reverse(*l));
        available.max_by_key(rank).unwrap_or_default()
    }

    /// True if the validating mode's priority is above those of all levels.
    pub fn lookups_validate(&self) -> bool {
        let (levels, validating) = self.lookup_priority.split_at(VALIDATING);
        levels.iter().all(|p| validating[0] > *p)
    }

    /// The level of the parse kernels of the PMD thread on a core, and whether it validates.
    pub fn parser(&self, core: usize) -> (Level, bool) {
        self.parser_of.get(&core).copied().unwrap_or((self.level, self.validate))
    }

    /// Longest sleep of the PMD thread on this core, microseconds.
    pub fn sleep_max_us(&self, core: usize) -> u64 {
        self.pmd_sleep_of.get(&core).copied().unwrap_or(self.pmd_sleep_max_us)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            signature_cache: Tri::Auto,
            flow_limit: 1 << 20,
            max_idle_ms: 10_000,
            tx_flush_interval_us: None,
            pmd_sleep_max_us: 0,
            pmd_sleep_of: BTreeMap::new(),
            vlan_limit: 1,
            punts: PuntRate { per_second: 50_000, burst: 2_048 },
            miss_budget: packet::VECTOR,
            debug: FlowDebug::default(),
            rxq_assign: RxqAssign::Cycles,
            one_pass: true,
            rxq_isolate: true,
            auto_lb: AutoLb::default(),
            level: preferred_level(),
            lookup_priority: std::array::from_fn(|i| match Level::ALL.get(i) {
                Some(l) if *l == preferred_level() => 2,
                Some(Level::Scalar) => 1,
                None if crate::verify::asked() => u8::MAX,
                _ => 0,
            }),
            validate: crate::verify::asked(),
            parser_of: BTreeMap::new(),
            perf_metrics: false,
            perf_log: PerfLog::default(),
        }
    }
}

/// Cores by receive queue number (`pmd-rxq-affinity`). A core that is named here serves only pinned
/// queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RxAffinity(pub BTreeMap<usize, usize>);

/// How a port is served.
#[derive(Clone, Debug, Default)]
pub struct PortService {
    /// Where its receive queues are.
    pub affinity: RxAffinity,
    /// Packets are spread over the transmit queues by what they are about (`tx-steering=hash`), and
    /// not by the thread that sends.
    pub tx_by_hash: bool,
}

impl From<RxAffinity> for PortService {
    fn from(affinity: RxAffinity) -> PortService {
        PortService { affinity, tx_by_hash: false }
    }
}

/// Limits of what a port may receive (`ingress_policing_*` of OVSDB's Interface table). A rate of
/// zero is no limit; a burst of zero is OVS's default (8,000 kbit, 16,000 packets). Bytes are
/// counted behind the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policing {
    /// Rate, in 1,000 bits per second.
    pub kbit_rate: u32,
    /// Burst, in 1,000 bits.
    pub kbit_burst: u32,
    /// Rate, in 1,000 packets per second.
    pub kpkt_rate: u32,
    /// Burst, in 1,000 packets.
    pub kpkt_burst: u32,
}

/// Limit of what may be sent to a port (OVSDB's QoS of type `egress-policer`). Bytes are counted
/// behind the Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressPolicer {
    /// Committed information rate, bytes per second.
    pub cir: u64,
    /// Committed burst size, bytes. A longer packet is never sent.
    pub cbs: u64,
}

/// Why the datapath refused a request.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The port number is in use.
    #[error("datapath port {0} is in use")]
    PortInUse(PortNo),
    /// There is no such port.
    #[error("no datapath port {0}")]
    NoPort(PortNo),
    /// All port numbers are in use.
    #[error("no free datapath port number")]
    PortsExhausted,
    /// The port has no queue to receive from or to send to.
    #[error("port {0} has no {1} queue to give")]
    NoQueue(String, &'static str),
    /// The packet to inject does not fit into a buffer, or no buffer is free.
    #[error("packet of {0} bytes cannot be injected")]
    Packet(usize),
    /// A thread could not be started.
    #[error("cannot start a worker thread: {0}")]
    Thread(String),
}

/// A worker: one thread of the packet half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerId {
    /// The thread that serves kernel ports.
    Kernel,
    /// The PMD thread on this core.
    Pmd(usize),
}

/// The text is the thread's name.
impl std::fmt::Display for WorkerId {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            WorkerId::Kernel => f.write_str("kernel-ports"),
            WorkerId::Pmd(core) => write!(f, "pmd-c{core:02}"),
        }
    }
}
