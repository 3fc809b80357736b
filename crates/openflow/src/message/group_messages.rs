//! Groups and meters: changes and statistics.

use crate::{Action, OfPort};

/// A bucket of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bucket {
    pub id: u32,
    pub weight: u16,
    pub watch_port: OfPort,
    pub watch_group: u32,
    pub actions: Vec<Action>,
}

/// Group types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum GroupType {
    All = 0,
    Select = 1,
    Indirect = 2,
    FastFailover = 3,
}

/// Group commands (1.5's insert and remove bucket included).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum GroupCommand {
    Add,
    Modify,
    Delete,
    AddOrMod,
    InsertBucket(u32),
    RemoveBucket(u32),
}

/// A group-mod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GroupMod {
    pub command: GroupCommand,
    pub kind: GroupType,
    pub id: u32,
    pub buckets: Vec<Bucket>,
    pub selection_method: String,
    pub selection_param: u64,
    /// The fields that are hashed, and which bits of each.
    pub selection_fields: Vec<(flow::Field, u128)>,
}

/// A meter band.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Band {
    Drop { rate: u32, burst: u32 },
    DscpRemark { rate: u32, burst: u32, prec: u8 },
}

/// A meter-mod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MeterMod {
    pub command: MeterCommand,
    pub id: u32,
    pub flags: u16,
    pub bands: Vec<Band>,
}

/// Meter commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum MeterCommand {
    Add,
    Modify,
    Delete,
}

/// One group's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GroupStats {
    pub id: u32,
    pub ref_count: u32,
    pub packets: u64,
    pub bytes: u64,
    pub duration_ns: u64,
    /// (packets, bytes) per bucket.
    pub buckets: Vec<(u64, u64)>,
}

/// One meter's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MeterStats {
    pub id: u32,
    pub flow_count: u32,
    pub packets: u64,
    pub bytes: u64,
    pub duration_ns: u64,
    pub bands: Vec<(u64, u64)>,
}
