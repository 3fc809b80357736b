//! The packet half: PMD threads, the six steps of a packet (listed in `pmd`), per-port output
//! queues, statistics, placement of receive queues.
//!
//! *Place*: packet half. *Knows*: packets, ports, keys, operations, the [`action::Pipeline`] that
//! decides. *Does not know*: OpenFlow, OVSDB, sockets; what a decision was made from.
//!
//! The loop is `Worker::run` in `pmd`; a packet's path is `Worker::vector`. Each worker owns its
//! queues, its megaflow table and its counters; it meets the control side ([`Datapath`]) only at
//! published tables, at bounded rings (`messages`) and at the payload word of a megaflow. See
//! `docs/decisions/0001-per-core-megaflow-table.md`.
//!
//! Invariants
//! - A PMD thread never waits for, locks for, or logs to the control side.
//! - Over all ports, and with nothing in flight: rx + injected + copies = tx + named drops +
//!   punted.
//! - Every packet that met a decision is credited exactly once through [`Datapath::collect`].
//! - After [`Datapath::ticket_done`] no packet received later meets an old decision.

mod actions;
mod batch;
mod capture;
mod cpu;
mod debts;
mod events;
#[cfg(test)]
#[path = "../tests/common/gen.rs"]
mod generate;
mod info;
mod lookup;
mod manage;
mod marks;
mod mem;
mod messages;
mod miss;
mod parse;
mod pmd;
mod police;
mod report;
mod rx;
mod settings;
mod stats;
pub mod testing;
mod tunnel;
mod tx;
mod verify;
mod wake;

pub use capture::{CaptureFilter, Captured, Fate};
pub use cpu::Level;
pub use events::*;
pub use info::*;
pub use lookup::port_classifier::PortLookup;
pub use manage::Datapath;
pub use manage::marks::SampleCursor;
pub use manage::topology::{assume_cores, assumed_cores};
pub use manage::watches::WatchId;
pub use miss::policy::{
    CACHE_SAVES_VISITS_MIN, CACHE_STAYS_VISITS_MIN, CacheUse, NewFlows, PortPolicy, PredictorUse,
};
pub use miss::rates::{LookupCounts, PortRates, Share};
pub use parse::scalar::extract;
pub use settings::*;
pub use stats::clock::{cycles, cycles_per_second, now_ms, stop_clock, warp_clock};
pub use stats::perf::{BINS, HISTORY, Histogram, Iteration, MetricsView, PerfLog, Suspicious};
pub use stats::port::PortStats;
pub use stats::worker_stats::Perf;
pub use tx::bond::{BOND_BUCKETS, Bond, BondHash};
pub use verify::VALIDATE_VARIABLE;
pub use verify::compose::compose;
pub use verify::levels::{LEVEL_VARIABLE, is_available, preferred_level};
pub use wake::Bell;
