//! Rows of table `Controller`.

use super::rows::{millis, number};
use ovsdb::{Row, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

/// DSCP of connections of which the database says none: CS6, "internetwork control" (RFC 4594).
const DSCP_DEFAULT: u8 = 48;
/// Packet-ins that may wait for a connection where the database does not say.
const QUEUE_SIZE_DEFAULT: u32 = 100;
const QUEUE_SIZE_MAX: u32 = 512;

/// The IPv4 address that the bridge's own port is to have, as texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddress {
    /// `local_ip`.
    pub ip: String,
    /// `local_netmask`; empty: that of the address's class.
    pub netmask: String,
    /// `local_gateway`; empty: no default route.
    pub gateway: String,
}

/// One controller of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerConf {
    /// The row of table `Controller`.
    pub uuid: Uuid,
    /// `Controller.target`: how the controller is reached, such as `tcp:192.0.2.1:6653`, or where
    /// the switch listens for it, such as `ptcp:6653`.
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
    /// Packet-ins that may wait; by default as many as for the bridge's `.mgmt` socket.
    pub queue_size: u32,
    /// DSCP of the connection's packets; 48 by default.
    pub dscp: u8,
    /// The address of the bridge's own port, if it is to have one.
    pub local: Option<LocalAddress>,
    /// Whether asynchronous messages start enabled; true by default.
    pub async_messages: bool,
}

/// Packet-ins that may wait for a connection of the `.mgmt` socket of a bridge with this
/// `other_config`: `controller-queue-size`, 100 by default.
pub fn queue_size(bridge: &BTreeMap<String, String>) -> u32 {
    let given = bridge.get("controller-queue-size").and_then(|n| n.parse().ok());
    given.filter(|n| (1..=QUEUE_SIZE_MAX).contains(n)).unwrap_or(QUEUE_SIZE_DEFAULT)
}

/// A row; `bridge`: the bridge's `other_config`.
pub(super) fn read(uuid: Uuid, row: &Row, bridge: &BTreeMap<String, String>) -> ControllerConf {
    let dscp = row.str_map("other_config").get("dscp").and_then(|n| n.parse().ok());
    let text = |column| row.str(column).to_owned();
    ControllerConf {
        uuid,
        target: text("target"),
        out_of_band: row.str("connection_mode") == "out-of-band",
        primary: match row.str("type") {
            "" => ["tcp:", "unix:", "ssl:"].iter().any(|kind| row.str("target").starts_with(kind)),
            kind => kind == "primary",
        },
        max_backoff: millis(row, "max_backoff", 8000),
        inactivity_probe: millis(row, "inactivity_probe", 5000),
        rate_limit: number(row, "controller_rate_limit").unwrap_or(0),
        burst_limit: number(row, "controller_burst_limit").unwrap_or(0),
        queue_size: number(row, "controller_queue_size").unwrap_or(queue_size(bridge)),
        dscp: dscp.filter(|dscp| *dscp < 64).unwrap_or(DSCP_DEFAULT),
        local: row.opt_str("local_ip").map(|ip| LocalAddress {
            ip: ip.to_owned(),
            netmask: text("local_netmask"),
            gateway: text("local_gateway"),
        }),
        async_messages: row.opt_bool("enable_async_messages").unwrap_or(true),
    }
}
