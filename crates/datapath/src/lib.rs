//! The packet side: PMD threads, the five steps (rx, parse, lookup, act, tx), per-port output
//! queues, statistics, placement.
//!
//! *Place*: packet half. *Knows*: packets, ports, keys, operations, the [`action::Pipeline`] that
//! decides. *Does not know*: OpenFlow, OVSDB, sockets; what a decision was made from.
//!
//! The loop is [`worker`]'s `step`: five calls. Each worker owns its queues, its megaflow table and
//! its counters; it meets the control side ([`Datapath`]) only at published tables, at bounded rings
//! ([`events`]) and at the payload word of a rule. See
//! `docs/decisions/0001-per-core-megaflow-table.md`.
//!
//! Invariants
//! - A PMD thread never waits for, locks for, or logs to the control side.
//! - Over all ports, and with nothing in flight: rx + injected + copies = tx + named drops + punted.
//! - Every packet that met a decision is credited exactly once through [`Datapath::collect`].
//! - After [`Datapath::ticket_done`] no packet received later meets an old decision.

mod accounts;
mod balance;
mod clock;
mod compose;
mod control;
mod decided;
mod encapsulate;
mod events;
mod flows;
#[cfg(test)]
#[path = "../tests/common/gen.rs"]
mod generate;
mod handle;
mod hold;
mod index;
mod interpret;
mod invalidate;
mod kernel;
mod level;
mod lookup;
mod metrics;
mod observe;
mod parse;
mod patch;
mod placement;
mod police;
mod program;
mod rewrite;
mod settle;
mod share;
mod spent;
mod stats;
mod steps;
mod terminate;
pub mod testing;
mod topology;
mod tunnel;
mod tx;
mod types;
mod validate;
mod vector;
mod worker;

pub use clock::{cycles, cycles_per_second, now_ms, stop_clock, warp_clock};
pub use compose::compose;
pub use control::Datapath;
pub use events::Bell;
pub use level::{LEVEL_VARIABLE, Level};
pub use metrics::{BINS, HISTORY, Histogram, Iteration, MetricsView, PerfLog, Suspicious};
pub use parse::extract;
pub use types::*;
pub use validate::VALIDATE_VARIABLE;
