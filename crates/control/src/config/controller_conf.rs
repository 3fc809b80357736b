//! Rows of table `Controller`.

use super::rows::{millis, number};
use ovsdb::{Row, Uuid};
use std::time::Duration;

/// One controller of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerConf {
    /// The row of table `Controller`.
    pub uuid: Uuid,
    /// Such as `tcp:192.0.2.1:6653` or `ptcp:6653`.
    pub target: String,
    /// `connection_mode` is `out-of-band`.
    pub out_of_band: bool,
    /// `type` is `primary`, or is not set and we connect to it: it gets asynchronous messages
    /// unasked, and a bridge in fail-mode standalone waits for it. Others are services.
    pub primary: bool,
    /// Longest pause between attempts to connect; 8 s by default.
    pub max_backoff: Duration,
    /// Silence before a probe, zero for none; 5 s by default.
    pub inactivity_probe: Duration,
    /// Packet-ins per second, 0 for no limit.
    pub rate_limit: u32,
    /// Packet-ins that may pass at once beyond the rate.
    pub burst_limit: u32,
    /// Packet-ins that may wait; 100 by default.
    pub queue_size: u32,
    /// Whether asynchronous messages start enabled; true by default.
    pub async_messages: bool,
}

pub(super) fn read(uuid: Uuid, row: &Row) -> ControllerConf {
    ControllerConf {
        uuid,
        target: row.str("target").to_owned(),
        out_of_band: row.str("connection_mode") == "out-of-band",
        primary: match row.str("type") {
            "" => ["tcp:", "unix:", "ssl:"].iter().any(|kind| row.str("target").starts_with(kind)),
            kind => kind == "primary",
        },
        max_backoff: millis(row, "max_backoff", 8000),
        inactivity_probe: millis(row, "inactivity_probe", 5000),
        rate_limit: number(row, "controller_rate_limit").unwrap_or(0),
        burst_limit: number(row, "controller_burst_limit").unwrap_or(0),
        queue_size: number(row, "controller_queue_size").unwrap_or(100),
        async_messages: row.opt_bool("enable_async_messages").unwrap_or(true),
    }
}
