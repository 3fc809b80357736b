//! What the control side says: what a datapath is made of, settings, limits of ports.

use crate::actions::fragments::Waiting;
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

/// What a [`crate::Datapath`] is made of.
pub struct Config {
    /// Where copies and injected packets come from, and where dropped packets go.
    pub pool: Arc<dyn Pool>,
    /// The domain in which `pipeline`'s tables are published; every worker is a reader.
    pub domain: Domain,
    /// Decides about packets that no megaflow matches.
    pub pipeline: Arc<dyn Pipeline>,
    /// Called first on every worker thread (DPDK wants to know its threads).
    pub register_thread: fn(WorkerId),
    /// Takes a warning while the control side waits for a worker.
    pub warn: fn(&str),
    /// Connections, which all workers share.
    pub conntrack: Arc<conntrack::Table>,
    /// Fragments that wait, of all workers.
    pub(crate) fragments: Arc<Waiting>,
    /// Most cached flows per worker over the whole life (memory is reserved, not committed).
    pub max_flows: u32,
    /// No threads: the workers are run by [`crate::Datapath::step`] (tests, simulation).
    pub manual: bool,
}

impl Config {
    /// Everything at its default around the three things that have none.
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

/// A switch that may be left to the cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tri {
    /// Measured at run time.
    #[default]
    Auto,
    /// Forced on.
    On,
    /// Forced off.
    Off,
}

/// How receive queues that are not pinned are spread over PMD threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RxqAssign {
    /// By measured cycles, with about as many queues on each.
    #[default]
    Cycles,
    /// By measured cycles only: onto the least loaded.
    Group,
    /// In turn.
    RoundRobin,
}

impl RxqAssign {
    /// Its name in `pmd-rxq-assign`.
    pub fn name(self) -> &'static str {
        match self {
            RxqAssign::Cycles => "cycles",
            RxqAssign::Group => "group",
            RxqAssign::RoundRobin => "roundrobin",
        }
    }
}

/// When queues move by themselves (`pmd-auto-lb`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoLb {
    /// Queues do move (`pmd-auto-lb`).
    pub enabled: bool,
    /// Least time between two attempts (`pmd-auto-lb-rebal-interval`), minutes.
    pub interval_min: u64,
    /// Ports are moved only if a PMD thread is busy for this share of a minute
    /// (`pmd-auto-lb-load-threshold`), percent.
    pub load_threshold: u8,
    /// Ports are moved only if the variance of the threads' load falls by this share
    /// (`pmd-auto-lb-improvement-threshold`), percent.
    pub improvement: u8,
}

impl Default for AutoLb {
    fn default() -> Self {
        AutoLb { enabled: false, interval_min: 1, load_threshold: 95, improvement: 25 }
    }
}

/// Packets that each worker may send from one input port to the control side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PuntRate {
    /// Packets per second.
    pub per_second: u32,
    /// Packets at once after a pause.
    pub burst: u32,
}

/// What shows why packets go where they go, and costs speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowDebug {
    /// Decisions are cached for packets with the very same key only (`upcall/disable-megaflows`).
    pub exact_megaflows: bool,
    /// Decisions are stored under their very masks, not in whole bytes, however few they are.
    pub own_masks: bool,
    /// Missed packets are reported, see [`crate::Datapath::take_missed`].
    pub report_misses: bool,
}

/// Run-time settings; all take effect live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Signature cache (`smc-enable`).
    pub signature_cache: Tri,
    /// Most cached flows over all workers (`flow-limit`); at most `Config::max_flows` in one. A
    /// worker may have what the others leave, and an equal part in any case.
    pub flow_limit: u32,
    /// Megaflows that were unused for this long are removed (`max-idle`), milliseconds.
    pub max_idle_ms: u64,
    /// How long transmit bursts that are not full are held (`tx-flush-interval`), microseconds;
    /// None: as load and rate suggest, at most 25.
    pub tx_flush_interval_us: Option<u64>,
    /// Longest sleep of an idle PMD thread (`pmd-sleep-max`), microseconds; 0: never sleeps.
    pub pmd_sleep_max_us: u64,
    /// Longest sleep of single PMD threads, by core.
    pub pmd_sleep_of: BTreeMap<usize, u64>,
    /// VLAN tags the parser looks behind (`vlan-limit`): 1 or 2.
    pub vlan_limit: u8,
    /// Packets that may go to the control side.
    pub punts: PuntRate,
    /// Misses resolved per vector; packets beyond wait for the next one, in order.
    pub miss_budget: usize,
    /// For people who look for a fault.
    pub debug: FlowDebug,
    /// Placement of receive queues (`pmd-rxq-assign`).
    pub rxq_assign: RxqAssign,
    /// Decapsulate before lookup where a known megaflow says so; false: always in two steps.
    pub one_pass: bool,
    /// A PMD thread with a pinned queue serves no others (`pmd-rxq-isolate`).
    pub rxq_isolate: bool,
    /// Move queues when that pays; None: only on `pmd-rxq-rebalance`.
    pub auto_lb: AutoLb,
    /// Instructions that kernels use; one that is [`crate::is_available`].
    pub level: Level,
    /// How much one wants each level's lookup; the highest that this CPU has is used.
    pub lookup_priority: [u8; Level::ALL.len()],
    /// Compare kernels and programs with their twins, packet by packet.
    pub validate: bool,
    /// Level and `validate` of single PMD threads, by core.
    pub parser_of: BTreeMap<usize, (Level, bool)>,
    /// Note what single iterations are like (`pmd-perf-metrics`).
    pub perf_metrics: bool,
    /// Which of them are logged.
    pub perf_log: PerfLog,
}

impl Settings {
    /// As one worker gets them.
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

    /// The level that lookups use: of those that this CPU has the one wanted most.
    pub fn lookup_level(&self) -> Level {
        let available = Level::ALL.into_iter().filter(|l| is_available(*l));
        let rank = |l: &Level| (self.lookup_priority[*l as usize], Reverse(*l));
        available.max_by_key(rank).unwrap_or_default()
    }

    /// The level of the parse kernels of the PMD thread on a core, and whether it validates.
    pub fn parser(&self, core: usize) -> (Level, bool) {
        self.parser_of.get(&core).copied().unwrap_or((self.level, self.validate))
    }

    /// Longest sleep of the PMD thread on a core, microseconds.
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
            lookup_priority: Level::ALL.map(|l| match l {
                _ if l == preferred_level() => 2,
                Level::Scalar => 1,
                _ => 0,
            }),
            validate: crate::verify::asked(),
            parser_of: BTreeMap::new(),
            perf_metrics: false,
            perf_log: PerfLog::default(),
        }
    }
}

/// Receive queue -> core (`pmd-rxq-affinity`). A core named here serves only pinned queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RxAffinity(pub BTreeMap<usize, usize>);

/// What a port may bring (`ingress_policing_*` of OVSDB's Interface table). A rate of zero limits
/// nothing, a burst of zero is OVS's default (8,000 kbit, 16,000 packets). Bytes are those behind
/// the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policing {
    /// 1,000 bits per second.
    pub kbit_rate: u32,
    /// 1,000 bits.
    pub kbit_burst: u32,
    /// 1,000 packets per second.
    pub kpkt_rate: u32,
    /// 1,000 packets.
    pub kpkt_burst: u32,
}

/// What a port may be sent (OVSDB's QoS of type `egress-policer`). Bytes are those behind the
/// Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressPolicer {
    /// Committed information rate: bytes per second.
    pub cir: u64,
    /// Committed burst size: bytes. A longer packet is never sent.
    pub cbs: u64,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The number is taken.
    #[error("datapath port {0} is in use")]
    PortInUse(PortNo),
    /// There is no such port.
    #[error("no datapath port {0}")]
    NoPort(PortNo),
    /// All numbers are taken.
    #[error("no free datapath port number")]
    PortsExhausted,
    /// The port has no queue to receive from or to send to.
    #[error("port {0} has no {1} queue to give")]
    NoQueue(String, &'static str),
    /// The packet to inject does not fit a buffer, or there is none.
    #[error("packet of {0} bytes cannot be injected")]
    Packet(usize),
    /// A thread could not be started.
    #[error("cannot start a worker thread: {0}")]
    Thread(String),
}

/// The worker that serves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerId {
    /// The thread that serves kernel ports.
    Kernel,
    /// The PMD thread on this core.
    Pmd(usize),
}

/// The thread's name.
impl std::fmt::Display for WorkerId {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            WorkerId::Kernel => f.write_str("kernel-ports"),
            WorkerId::Pmd(core) => write!(f, "pmd-c{core:02}"),
        }
    }
}
