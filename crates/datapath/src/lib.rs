//! The packet side: PMD threads, the five steps (rx, parse, lookup, act, tx), per-port output
//! queues, statistics, placement.
//!
//! *Place*: packet half. *Knows*: packets, ports, keys, operations, the [`action::Pipeline`] that
//! decides. *Does not know*: OpenFlow, OVSDB, sockets; what a decision was made from.

mod clock;
mod stats;
mod types;

pub use clock::{cycles, cycles_per_second, now_ms};
pub use types::*;
