//! Message type numbers of each version.

use crate::Version::{self, V10, V11, V12, V13, V14, V15};

/// A message type, whatever its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Error,
    EchoRequest,
    EchoReply,
    Experimenter,
    FeaturesRequest,
    FeaturesReply,
    GetConfigRequest,
    GetConfigReply,
    SetConfig,
    PacketIn,
    FlowRemoved,
    PortStatus,
    PacketOut,
    FlowMod,
    GroupMod,
    PortMod,
    TableMod,
    MultipartRequest,
    MultipartReply,
    BarrierRequest,
    BarrierReply,
    QueueGetConfigRequest,
    QueueGetConfigReply,
    RoleRequest,
    RoleReply,
    GetAsyncRequest,
    GetAsyncReply,
    SetAsync,
    MeterMod,
    RoleStatus,
    TableStatus,
    RequestForward,
    BundleControl,
    BundleAdd,
}

/// (kind, number in 1.0, number in 1.1+, first and last version)
const KINDS: &[(Kind, u8, u8, Version, Version)] = &[
    (Kind::Hello, 0, 0, V10, V15),
    (Kind::Error, 1, 1, V10, V15),
    (Kind::EchoRequest, 2, 2, V10, V15),
    (Kind::EchoReply, 3, 3, V10, V15),
    (Kind::Experimenter, 4, 4, V10, V15),
    (Kind::FeaturesRequest, 5, 5, V10, V15),
    (Kind::FeaturesReply, 6, 6, V10, V15),
    (Kind::GetConfigRequest, 7, 7, V10, V15),
    (Kind::GetConfigReply, 8, 8, V10, V15),
    (Kind::SetConfig, 9, 9, V10, V15),
    (Kind::PacketIn, 10, 10, V10, V15),
    (Kind::FlowRemoved, 11, 11, V10, V15),
    (Kind::PortStatus, 12, 12, V10, V15),
    (Kind::PacketOut, 13, 13, V10, V15),
    (Kind::FlowMod, 14, 14, V10, V15),
    (Kind::GroupMod, 0xff, 15, V11, V15),
    (Kind::PortMod, 15, 16, V10, V15),
    (Kind::TableMod, 0xff, 17, V11, V15),
    (Kind::MultipartRequest, 16, 18, V10, V15),
    (Kind::MultipartReply, 17, 19, V10, V15),
    (Kind::BarrierRequest, 18, 20, V10, V15),
    (Kind::BarrierReply, 19, 21, V10, V15),
    (Kind::QueueGetConfigRequest, 20, 22, V10, V13),
    (Kind::QueueGetConfigReply, 21, 23, V10, V13),
    (Kind::RoleRequest, 0xff, 24, V12, V15),
    (Kind::RoleReply, 0xff, 25, V12, V15),
    (Kind::GetAsyncRequest, 0xff, 26, V13, V15),
    (Kind::GetAsyncReply, 0xff, 27, V13, V15),
    (Kind::SetAsync, 0xff, 28, V13, V15),
    (Kind::MeterMod, 0xff, 29, V13, V15),
    (Kind::RoleStatus, 0xff, 30, V14, V15),
    (Kind::TableStatus, 0xff, 31, V14, V15),
    (Kind::RequestForward, 0xff, 32, V14, V15),
    (Kind::BundleControl, 0xff, 33, V14, V15),
    (Kind::BundleAdd, 0xff, 34, V14, V15),
];

impl Kind {
    /// The type with this number in `version`.
    pub fn from_wire(version: Version, number: u8) -> Option<Kind> {
        KINDS
            .iter()
            .find(|(_, n10, n11, first, last)| {
                let n = if version == V10 { *n10 } else { *n11 };
                n == number && *first <= version && version <= *last
            })
            .map(|row| row.0)
    }

    /// The number in `version` (of the nearest version that has the type).
    pub fn wire(self, version: Version) -> u8 {
        let row = KINDS.iter().find(|row| row.0 == self).expect("every kind has a row");
        if version == V10 { row.1 } else { row.2 }
    }
}

/// The version with this wire number.
pub fn version(number: u8) -> Option<Version> {
    [V10, V11, V12, V13, V14, V15].into_iter().find(|v| *v as u8 == number)
}

/// What ovs-vswitchd's log calls the type of a message, as far as its header says: `OFPT_FLOW_MOD`.
pub fn type_name(message: &[u8]) -> String {
    let kind = match message {
        [number, kind, ..] => version(*number).and_then(|v| Kind::from_wire(v, *kind)),
        _ => None,
    };
    kind.map_or("invalid".into(), |kind| match kind {
        Kind::MultipartRequest => "OFPST request".into(),
        Kind::MultipartReply => "OFPST reply".into(),
        Kind::BundleAdd => "OFPT_BUNDLE_ADD_MESSAGE".into(),
        kind => format!("OFPT_{}", crate::error::upper_snake(&format!("{kind:?}"))),
    })
}
