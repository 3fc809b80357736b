//! `Port.qos`: limits of what a port is sent.

use super::rows::rows;
use ovsdb::{Replica, Row};

/// `QoS.type` of what the switch can do.
pub(super) const EGRESS_POLICER: &str = "egress-policer";

/// What the QoS row of a port asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QosConf {
    /// An `egress-policer`.
    EgressPolicer {
        /// `other_config:cir`, bytes per second; 0 unless it is a number.
        cir: u64,
        /// `other_config:cbs`, bytes; 0 unless it is a number.
        cbs: u64,
    },
    /// A type that is not supported.
    Other(String),
}

/// The QoS of a row of table `Port`; one with an empty type is none.
pub(super) fn read(db: &Replica, port: &Row) -> Option<QosConf> {
    let (_, row) = rows(db, "QoS", port, "qos").next()?;
    let config = row.str_map("other_config");
    let number = |key: &str| config.get(key).and_then(|v| v.trim().parse().ok()).unwrap_or(0);
    match row.str("type") {
        "" => None,
        EGRESS_POLICER => Some(QosConf::EgressPolicer { cir: number("cir"), cbs: number("cbs") }),
        other => Some(QosConf::Other(other.to_owned())),
    }
}
