//! `Port.qos`: how what a port is sent is limited and queued.

use super::rows::rows;
use ovsdb::{Replica, Row};
use std::collections::BTreeMap;

/// `QoS.type` of a limit that the packet path itself keeps.
pub(super) const EGRESS_POLICER: &str = "egress-policer";

/// Types for which the kernel queues what its devices are sent, in the order in which ovs-vswitchd
/// lists them.
pub const LINUX_TYPES: [&str; 7] = [
    "linux-netem",
    "linux-fq_codel",
    "linux-codel",
    "linux-hfsc",
    "linux-noop",
    "linux-sfq",
    "linux-htb",
];

/// Types that have queues.
pub(super) const WITH_QUEUES: [&str; 2] = ["linux-hfsc", "linux-htb"];

/// Numbers of their queues are below this.
pub const QUEUES_MAX: u32 = 0xf000;

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
    /// One of [`LINUX_TYPES`].
    Linux(LinuxQos),
    /// A type that is not supported.
    Other(String),
}

/// Numbers of a map column; what is no number is left out.
pub type Numbers = BTreeMap<String, u64>;

/// A QoS row of one of [`LINUX_TYPES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxQos {
    /// `type`.
    pub kind: &'static str,
    /// `other_config`.
    pub config: Numbers,
    /// `queues`, each with its `other_config`; empty for types without queues.
    pub queues: BTreeMap<u32, Numbers>,
}

/// The QoS of a row of table `Port`; one with an empty type is none.
pub(super) fn read(db: &Replica, port: &Row) -> Option<QosConf> {
    let (_, row) = rows(db, "QoS", port, "qos").next()?;
    let config = numbers(row);
    let number = |key: &str| config.get(key).copied().unwrap_or(0);
    match row.str("type") {
        "" => None,
        EGRESS_POLICER => Some(QosConf::EgressPolicer { cir: number("cir"), cbs: number("cbs") }),
        kind => match LINUX_TYPES.into_iter().find(|k| *k == kind) {
            Some(kind) => Some(QosConf::Linux(LinuxQos { kind, queues: queues(db, row), config })),
            None => Some(QosConf::Other(kind.to_owned())),
        },
    }
}

/// The DSCP that packets of each queue of a row of table `Port` get, where they get one.
pub(super) fn dscp(db: &Replica, port: &Row) -> BTreeMap<u32, u8> {
    let Some((_, row)) = rows(db, "QoS", port, "qos").next() else { return BTreeMap::new() };
    if row.str("type").is_empty() {
        return BTreeMap::new();
    }
    let all = row.int_uuid_map("queues").into_iter().filter_map(|(id, uuid)| {
        let dscp = db.row("Queue", uuid)?.opt_int("dscp")?;
        Some((u32::try_from(id).ok()?, u8::try_from(dscp).ok().filter(|dscp| *dscp < 64)?))
    });
    all.collect()
}

fn numbers(row: &Row) -> Numbers {
    let all = row.str_map("other_config").into_iter();
    all.filter_map(|(key, value)| Some((key, value.trim().parse().ok()?))).collect()
}

/// The queues of a QoS row. There is always a queue 0, where packets without a queue go.
fn queues(db: &Replica, qos: &Row) -> BTreeMap<u32, Numbers> {
    if !WITH_QUEUES.contains(&qos.str("type")) {
        return BTreeMap::new();
    }
    let listed = qos.int_uuid_map("queues").into_iter().filter_map(|(id, uuid)| {
        let id = u32::try_from(id).ok().filter(|id| *id < QUEUES_MAX)?;
        Some((id, numbers(db.row("Queue", uuid)?)))
    });
    let mut all: BTreeMap<_, _> = listed.collect();
    all.entry(0).or_default();
    all
}
