//! Which lengths a message may have, by type and version (ovs-vswitchd's `ofp-msgs.h`): looked at
//! before anything else of it, so that a message of a wrong length is
//! [`OfError::BadLen`](crate::OfError::BadLen) whatever else is wrong with it.

use super::kinds::Kind;
use crate::Version;

/// Bytes behind the header: `fixed`, then any number of pieces of `unit` bytes (0: none).
#[derive(Clone, Copy)]
pub(super) struct Length {
    fixed: usize,
    unit: usize,
}

const fn exactly(fixed: usize) -> Length {
    Length { fixed, unit: 0 }
}

const fn bytes(fixed: usize) -> Length {
    Length { fixed, unit: 1 }
}

/// Followed by what comes in units of eight bytes: actions, instructions, properties.
const fn units(fixed: usize) -> Length {
    Length { fixed, unit: 8 }
}

/// Any number of units of eight bytes.
pub(super) const UNITS: Length = units(0);

impl Length {
    /// True if a body may have so many bytes.
    pub fn fits(self, len: usize) -> bool {
        match (len.checked_sub(self.fixed), self.unit) {
            (Some(more), 0) => more == 0,
            (Some(more), unit) => more.is_multiple_of(unit),
            (None, _) => false,
        }
    }
}

/// A type's length in a version. Experimenter messages and multipart messages have more headers,
/// and their own lengths.
pub(super) fn of(version: Version, kind: Kind) -> Length {
    use Kind::*;
    use Version::*;
    match kind {
        Hello | EchoRequest | EchoReply => bytes(0),
        Error => bytes(4),
        // Vendor and subtype.
        Experimenter => bytes(8),
        MultipartRequest | MultipartReply if version == V10 => bytes(4),
        MultipartRequest | MultipartReply => bytes(8),
        FeaturesRequest | GetConfigRequest | BarrierRequest | BarrierReply | GetAsyncRequest => {
            exactly(0)
        }
        FeaturesReply => match version {
            V10 => Length { fixed: 24, unit: 48 },
            V11 | V12 => Length { fixed: 24, unit: 64 },
            _ => exactly(24),
        },
        GetConfigReply | SetConfig => exactly(4),
        PacketIn => match version {
            V10 => bytes(10),
            V12 => bytes(8),
            _ => bytes(16),
        },
        FlowRemoved => match version {
            V10 => exactly(80),
            V15 => units(16),
            _ => units(40),
        },
        PortStatus => match version {
            V10 => exactly(56),
            V11 | V12 | V13 => exactly(72),
            _ => units(48),
        },
        PacketOut if matches!(version, V10 | V15) => bytes(8),
        PacketOut => bytes(16),
        FlowMod if version == V10 => units(64),
        FlowMod => units(40),
        GroupMod if version == V15 => units(16),
        GroupMod | TableStatus | RequestForward | BundleControl | MeterMod
        | QueueGetConfigReply => units(8),
        PortMod => match version {
            V10 => exactly(24),
            V11 | V12 | V13 => exactly(32),
            _ => units(24),
        },
        TableMod if version < V14 => exactly(8),
        TableMod => units(8),
        QueueGetConfigRequest if version == V10 => exactly(4),
        QueueGetConfigRequest => exactly(8),
        RoleRequest | RoleReply => exactly(16),
        GetAsyncReply | SetAsync if version < V14 => exactly(24),
        GetAsyncReply | SetAsync => units(0),
        RoleStatus => units(16),
        BundleAdd => bytes(8),
    }
}

/// The length of a Nicira message behind vendor and subtype; None: the version has no such message.
pub(super) fn of_nicira(version: Version, subtype: u32) -> Option<Length> {
    use Version::*;
    let until = |last: Version, length: Length| (version <= last).then_some(length);
    match subtype {
        10 | 11 | 16 => Some(exactly(4)),
        12 => until(V10, exactly(4)),
        13 => Some(units(32)),
        14 => Some(units(40)),
        15 | 20 | 29 => Some(exactly(8)),
        17 => Some(bytes(24)),
        18 | 25 => Some(exactly(0)),
        19 => Some(exactly(24)),
        21 => Some(exactly(4)),
        22 | 23 => until(V12, exactly(0)),
        24 | 32 => Some(units(8)),
        26 => Some(units(16)),
        27 => until(V13, units(0)),
        28 | 30 => Some(units(0)),
        31 => until(V10, units(16)),
        132 => until(V12, units(8)),
        _ => None,
    }
}

/// The length of a multipart request's body behind type and flags; None: the version has no such
/// request.
pub(super) fn of_multipart(version: Version, kind: u16) -> Option<Length> {
    use Version::*;
    let since = |first: Version, length: Length| (version >= first).then_some(length);
    match kind {
        1 | 2 if version == V10 => Some(exactly(44)),
        1 | 2 => Some(units(32)),
        0 | 3 => Some(exactly(0)),
        4 | 5 => Some(exactly(8)),
        6 => since(V11, exactly(8)),
        7 if version == V15 => Some(exactly(8)),
        7 => since(V11, exactly(0)),
        8 => since(V12, exactly(0)),
        9 | 10 => since(V13, exactly(8)),
        11 => since(V13, exactly(0)),
        12 => since(V13, units(0)),
        13 if version == V15 => Some(exactly(8)),
        13 => Some(exactly(0)),
        14 => since(V14, exactly(0)),
        15 => since(V14, exactly(8)),
        16 => since(V14, units(0)),
        17 => since(V15, units(32)),
        _ => None,
    }
}

/// Length of the body of Nicira's multipart requests, behind vendor and subtype.
pub(super) fn of_nicira_multipart(version: Version, subtype: u32) -> Option<Length> {
    use Version::*;
    let until = |last: Version, length: Length| (version <= last).then_some(length);
    match subtype {
        0 | 1 => until(V10, units(8)),
        2 => until(V12, units(0)),
        3 | 4 => Some(exactly(0)),
        7 | 8 => until(V10, exactly(8)),
        9 => until(V11, exactly(0)),
        _ => None,
    }
}

/// Length of the body of ONF's experimenter messages, which OpenFlow 1.3 has.
pub(super) fn of_onf(version: Version, subtype: u32) -> Option<Length> {
    let length = match subtype {
        1870 => exactly(4),
        1871 | 1872 => exactly(0),
        1911 => units(16),
        2300 | 2350 => units(8),
        2301 => bytes(8),
        _ => return None,
    };
    (version == Version::V13).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_fixed_parts_and_whole_units() {
        let flow_mod = of(Version::V13, Kind::FlowMod);
        assert_eq!([39, 40, 47, 48].map(|n| flow_mod.fits(n)), [false, true, false, true]);
        let barrier = of(Version::V13, Kind::BarrierRequest);
        assert_eq!([0, 8].map(|n| barrier.fits(n)), [true, false]);
        let packet_out = of(Version::V13, Kind::PacketOut);
        assert_eq!([15, 16, 17].map(|n| packet_out.fits(n)), [false, true, true]);
        assert!(of_nicira(Version::V13, 12).is_none() && of_nicira(Version::V10, 12).is_some());
        assert!(of_onf(Version::V14, 2300).is_none());
    }
}
