//! What is counted of export, and what all exporters share.

use crate::vlog;
use std::time::{SystemTime, UNIX_EPOCH};

const MODULE: &str = "bridge";

/// What was counted of export.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// What an exporter had no place for: packets of flows, samples, records.
    pub lost: u64,
    /// Datagrams.
    pub sent: u64,
    /// Datagrams that a collector's socket did not take.
    pub failed: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.lost += other.lost;
        self.sent += other.sent;
        self.failed += other.failed;
    }
}

/// Seconds and nanoseconds since 1970.
pub fn wall_clock() -> (u32, u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() as u32, now.subsec_nanos())
}

/// Writes to the log what is wrong with an exporter's row.
pub fn warn(bridge: &str, text: &str) {
    vlog::warn!(MODULE, "bridge {bridge}: {text}");
}
