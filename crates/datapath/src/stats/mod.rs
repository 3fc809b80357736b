//! Counters, performance figures and the clock.

pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod perf;
pub(crate) mod port;
pub(crate) mod stage_clock;
pub(crate) mod worker_stats;
