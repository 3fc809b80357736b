//! `Port.qos`: how what a port is sent is limited and queued.

use super::rows::rows;
use ovsdb::{Replica, Row, Uuid};
use std::collections::BTreeMap;
use std::sync::Arc;

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

/// What the QoS row of a port says. Ports with the same row share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PortQos {
    /// None: no row, or one with an empty type.
    pub conf: Option<Arc<QosConf>>,
    /// The DSCP that packets of each queue get, where they get one.
    pub dscp: Arc<BTreeMap<u32, u8>>,
}

/// QoS rows as last read: however many ports have the same row, it is read once, and what has not
/// changed since then is the same in memory, so that it need not be compared queue by queue.
#[derive(Debug, Default)]
pub struct KnownQos(BTreeMap<Uuid, PortQos>);

/// Reads QoS rows for one look at the configuration.
pub(super) struct QosReader<'a> {
    db: &'a Replica,
    known: &'a mut KnownQos,
    seen: BTreeMap<Uuid, PortQos>,
}

impl<'a> QosReader<'a> {
    pub fn new(db: &'a Replica, known: &'a mut KnownQos) -> Self {
        Self { db, known, seen: BTreeMap::new() }
    }

    /// The QoS of a row of table `Port`.
    pub fn read(&mut self, port: &Row) -> PortQos {
        let Some((uuid, row)) = rows(self.db, "QoS", port, "qos").next() else {
            return PortQos::default();
        };
        let read = || {
            let new = read(self.db, row);
            self.known.0.remove(&uuid).filter(|old| *old == new).unwrap_or(new)
        };
        self.seen.entry(uuid).or_insert_with(read).clone()
    }

    /// Ends the look; rows that no port has are forgotten.
    pub fn end(self) {
        self.known.0 = self.seen;
    }
}

fn read(db: &Replica, row: &Row) -> PortQos {
    let config = numbers(row);
    let number = |key: &str| config.get(key).copied().unwrap_or(0);
    let conf = match row.str("type") {
        "" => return PortQos::default(),
        EGRESS_POLICER => QosConf::EgressPolicer { cir: number("cir"), cbs: number("cbs") },
        kind => match LINUX_TYPES.into_iter().find(|k| *k == kind) {
            Some(kind) => QosConf::Linux(LinuxQos { kind, queues: queues(db, row), config }),
            None => QosConf::Other(kind.to_owned()),
        },
    };
    let dscp = row.int_uuid_map("queues").into_iter().filter_map(|(id, uuid)| {
        let dscp = db.row("Queue", uuid)?.opt_int("dscp")?;
        Some((u32::try_from(id).ok()?, u8::try_from(dscp).ok().filter(|dscp| *dscp < 64)?))
    });
    PortQos { conf: Some(Arc::new(conf)), dscp: Arc::new(dscp.collect()) }
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
