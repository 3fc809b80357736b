//! Error numbers of each version.
//!
//! Errors that a version has no number for go under Nicira's or the ONF's number where there is
//! one, as Open vSwitch sends them (the table was read off `ovs-ofctl print-error`), else as
//! "unencodable".

use crate::{OfError, Version};

/// An error's numbers: `vendor` 0 for OpenFlow's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorNumbers {
    /// Experimenter id, 0 for none.
    pub vendor: u32,
    /// Type (for vendor errors of 1.2 and later: the experimenter type).
    pub kind: u16,
    /// Code (for vendor errors of 1.2 and later: 0).
    pub code: u16,
}

/// Numbers in a span of versions.
struct Span {
    from: Version,
    to: Version,
    numbers: ErrorNumbers,
}

const OF: u32 = 0;
const NX: u32 = 0x2320;
const ONF: u32 = 0x4f4e_4600;
/// `OFPET_EXPERIMENTER`, 1.2 and later.
const EXPERIMENTER: u16 = 0xffff;
/// Nicira's error type and code for "a vendor error follows", 1.0 and 1.1.
const NX_VENDOR: [u16; 2] = [0xb0c2, 0];

macro_rules! table {
    ($($name:ident: $($vendor:ident $from:ident $to:ident $kind:literal $code:literal),+;)*) => {
        /// Every error that has numbers, and tests' list of all of them.
        #[cfg(test)]
        pub(crate) const ALL: &[OfError] = &[$(OfError::$name),*];

        const fn spans(e: OfError) -> &'static [Span] {
            match e {
                $(OfError::$name => &[$(Span {
                    from: Version::$from,
                    to: Version::$to,
                    numbers: ErrorNumbers { vendor: $vendor, kind: $kind, code: $code },
                }),+],)*
            }
        }

        /// The first error of the list that has these numbers in a version.
        fn find(version: Version, numbers: ErrorNumbers) -> Option<OfError> {
            [$(OfError::$name),*].into_iter().find(|e| lookup(version, *e) == Some(numbers))
        }
    };
}

table! {
    HelloIncompatible: OF V10 V15 0 0;
    HelloEperm: OF V10 V15 0 1;
    BadVersion: OF V10 V15 1 0;
    BadType: OF V10 V15 1 1;
    BadStat: OF V10 V15 1 2;
    BadExperimenter: OF V10 V15 1 3;
    BadExpType: OF V10 V15 1 4;
    RequestEperm: OF V10 V15 1 5;
    BadLen: OF V10 V15 1 6;
    BufferEmpty: OF V10 V15 1 7;
    BufferUnknown: OF V10 V15 1 8;
    BadTableId: NX V10 V10 1 512, OF V11 V15 1 9;
    IsSlave: OF V10 V11 1 5, OF V12 V15 1 10;
    RequestBadPort: NX V10 V11 1 514, OF V12 V15 1 11;
    BadPacket: OF V12 V15 1 12;
    MultipartBufferOverflow: OF V13 V15 1 13;
    MultipartRequestTimeout: ONF V13 V13 2640 0, OF V14 V15 1 14;
    PipelineFieldsOnly: OF V15 V15 1 17;
    NxmInvalid: NX V10 V11 1 256, NX V12 V15 2 0;
    RequestMustBeZero: NX V10 V11 1 515, NX V12 V15 4 0;
    NotConfigured: NX V10 V11 1 535, NX V12 V15 36 0;
    Unencodable: NX V10 V11 1 521, NX V12 V15 10 0;
    ActBadType: OF V10 V15 2 0;
    ActBadLen: OF V10 V15 2 1;
    ActBadExperimenter: OF V10 V15 2 2;
    ActBadExpType: OF V10 V15 2 3;
    ActBadOutPort: OF V10 V15 2 4;
    ActBadArgument: OF V10 V15 2 5;
    ActEperm: OF V10 V15 2 6;
    ActTooMany: OF V10 V15 2 7;
    ActBadQueue: OF V10 V15 2 8;
    ActBadOutGroup: NX V10 V10 2 9, OF V11 V15 2 9;
    ActMatchInconsistent: NX V10 V10 1 522, OF V11 V15 2 10;
    ActUnsupportedOrder: OF V11 V15 2 11;
    ActBadTag: OF V11 V15 2 12;
    ActBadSetType: NX V10 V11 1 523, OF V12 V15 2 13;
    ActBadSetLen: NX V10 V11 1 524, OF V12 V15 2 14;
    ActBadSetArgument: NX V10 V11 1 525, OF V12 V15 2 15;
    ActBadSetMask: ONF V13 V14 4250 0, OF V15 V15 2 16;
    ActBadMeter: OF V15 V15 2 17;
    ActMustBeZero: NX V10 V11 2 256, NX V12 V15 11 0;
    ActBadConjunction: NX V10 V11 2 526, NX V12 V15 15 0;
    ActBadHeaderType: NX V13 V15 39 0;
    ActUnknownEdProp: NX V13 V15 40 0;
    ActBadEdProp: NX V13 V15 41 0;
    InstUnknown: OF V11 V15 3 0;
    InstUnsup: NX V10 V10 2 257, OF V11 V15 3 1;
    InstBadTableId: OF V11 V15 3 2;
    InstUnsupMetadata: OF V11 V15 3 3;
    InstUnsupMetadataMask: OF V11 V15 3 4;
    InstBadExperimenter: OF V11 V15 3 5;
    InstBadExpType: OF V11 V11 3 5, OF V12 V15 3 6;
    InstBadLen: OF V12 V15 3 7;
    InstEperm: OF V12 V15 3 8;
    InstDup: NX V11 V11 3 256, ONF V12 V13 2600 0, OF V14 V15 3 9;
    MatchBadType: OF V11 V15 4 0;
    MatchBadLen: OF V11 V15 4 1;
    MatchBadTag: OF V11 V15 4 2;
    MatchBadDlAddrMask: OF V11 V15 4 3;
    MatchBadNwAddrMask: OF V11 V15 4 4;
    MatchBadWildcards: NX V10 V10 1 262, OF V11 V15 4 5;
    MatchBadField: NX V10 V10 0 263, OF V11 V15 4 6;
    MatchBadValue: NX V10 V10 1 258, OF V11 V15 4 7;
    MatchBadMask: NX V10 V11 1 259, OF V12 V15 4 8;
    MatchBadPrereq: NX V10 V11 1 260, OF V12 V15 4 9;
    MatchDupField: NX V10 V11 1 261, OF V12 V15 4 10;
    MatchEperm: OF V12 V15 4 11;
    FlowUnknown: OF V11 V15 5 0;
    FlowTableFull: OF V10 V10 3 0, OF V11 V15 5 1;
    FlowBadTableId: OF V11 V15 5 2;
    FlowOverlap: OF V10 V10 3 1, OF V11 V15 5 3;
    FlowEperm: OF V10 V10 3 2, OF V11 V15 5 4;
    FlowBadTimeout: OF V11 V15 5 5;
    FlowBadEmergTimeout: OF V10 V10 3 3;
    FlowBadCommand: OF V10 V10 3 4, OF V11 V15 5 6;
    FlowBadFlags: NX V10 V10 3 258, NX V11 V11 5 258, OF V12 V15 5 7;
    FlowUnsupported: OF V10 V10 3 5;
    GroupExists: NX V10 V10 6 0, OF V11 V15 6 0;
    GroupInvalid: NX V10 V10 6 1, OF V11 V15 6 1;
    GroupWeightUnsupported: NX V10 V10 6 2, OF V11 V15 6 2;
    GroupOutOfGroups: NX V10 V10 6 3, OF V11 V15 6 3;
    GroupOutOfBuckets: NX V10 V10 6 4, OF V11 V15 6 4;
    GroupChained: NX V10 V10 6 5, OF V11 V15 6 5;
    GroupWatchUnsupported: NX V10 V10 6 6, OF V11 V15 6 6;
    GroupLoop: NX V10 V10 6 7, OF V11 V15 6 7;
    GroupUnknown: NX V10 V10 6 8, OF V11 V15 6 8;
    GroupChainedGroup: NX V10 V10 6 9, OF V12 V15 6 9;
    GroupBadType: NX V10 V10 6 10, OF V12 V15 6 10;
    GroupBadCommand: NX V10 V10 6 11, OF V12 V15 6 11;
    GroupBadBucket: NX V10 V10 6 12, OF V12 V15 6 12;
    GroupBadWatch: NX V10 V10 6 13, OF V12 V15 6 13;
    GroupEperm: NX V10 V10 6 14, OF V12 V15 6 14;
    GroupUnknownBucket: NX V10 V10 6 15, OF V15 V15 6 15;
    GroupBucketExists: NX V10 V10 6 16, OF V15 V15 6 16;
    PortModBadPort: OF V10 V10 4 0, OF V11 V15 7 0;
    PortModBadHwAddr: OF V10 V10 4 1, OF V11 V15 7 1;
    PortModBadConfig: OF V11 V15 7 2;
    PortModBadAdvertise: OF V11 V15 7 3;
    PortModEperm: OF V12 V15 7 4;
    TableModBadTable: OF V11 V15 8 0;
    TableModBadConfig: OF V11 V15 8 1;
    TableModEperm: OF V12 V15 8 2;
    QueueBadPort: OF V10 V10 5 0, OF V11 V15 9 0;
    QueueBadQueue: OF V10 V10 5 1, OF V11 V15 9 1;
    QueueError: NX V14 V15 23 0;
    SwitchConfigBadFlags: OF V11 V15 10 0;
    SwitchConfigBadLen: OF V11 V15 10 1;
    RoleStale: OF V12 V15 11 0;
    RoleUnsup: OF V12 V15 11 1;
    RoleBadRole: NX V10 V11 1 513, OF V12 V15 11 2;
    MeterUnknown: OF V13 V15 12 0;
    MeterExists: OF V13 V15 12 1;
    MeterInvalid: OF V13 V15 12 2;
    MeterUnknownMeter: OF V13 V15 12 3;
    MeterBadCommand: OF V13 V15 12 4;
    MeterBadFlags: OF V13 V15 12 5;
    MeterBadRate: OF V13 V15 12 6;
    MeterBadBurst: OF V13 V15 12 7;
    MeterBadBand: OF V13 V15 12 8;
    MeterBadBandValue: OF V13 V15 12 9;
    MeterOutOfMeters: OF V13 V15 12 10;
    MeterOutOfBands: OF V13 V15 12 11;
    PropBadType: NX V10 V11 13 2, NX V12 V12 25 0, OF V13 V13 13 2, OF V14 V15 14 0;
    PropBadLen: NX V10 V11 13 3, NX V12 V12 26 0, OF V13 V13 13 3, OF V14 V15 14 1;
    PropBadValue: NX V10 V11 13 4, NX V12 V12 27 0, OF V13 V13 13 4, OF V14 V15 14 2;
    PropDupType: NX V10 V11 14 4, NX V12 V12 29 0, ONF V13 V13 4444 0, OF V14 V15 14 4;
    PropBadExperimenter: NX V10 V11 14 5, NX V12 V12 30 0, ONF V13 V13 4445 0, OF V14 V15 14 5;
    PropBadExpType: NX V10 V11 14 6, NX V12 V12 31 0, ONF V13 V13 4446 0, OF V14 V15 14 6;
    BundleUnknown: ONF V13 V13 2300 0, OF V14 V15 17 0;
    BundleEperm: ONF V13 V13 2301 0, OF V14 V15 17 1;
    BundleBadId: ONF V13 V13 2302 0, OF V14 V15 17 2;
    BundleExists: ONF V13 V13 2303 0, OF V14 V15 17 3;
    BundleClosed: ONF V13 V13 2304 0, OF V14 V15 17 4;
    BundleOutOfBundles: ONF V13 V13 2305 0, OF V14 V15 17 5;
    BundleBadType: ONF V13 V13 2306 0, OF V14 V15 17 6;
    BundleBadFlags: ONF V13 V13 2307 0, OF V14 V15 17 7;
    BundleMsgBadLen: ONF V13 V13 2308 0, OF V14 V15 17 8;
    BundleMsgBadXid: ONF V13 V13 2309 0, OF V14 V15 17 9;
    BundleMsgUnsup: ONF V13 V13 2310 0, OF V14 V15 17 10;
    BundleMsgConflict: ONF V13 V13 2311 0, OF V14 V15 17 11;
    BundleMsgTooMany: ONF V13 V13 2312 0, OF V14 V15 17 12;
    BundleMsgFailed: ONF V13 V13 2313 0, OF V14 V15 17 13;
    BundleBadVersion: NX V14 V15 22 0;
    BundleTimeout: ONF V13 V13 2314 0, OF V14 V15 17 14;
    TableFeaturesBadTable: OF V13 V15 13 0;
    TableFeaturesEperm: OF V13 V15 13 5;
    TableFeaturesBadFeatures: OF V15 V15 13 8;
    TableFeaturesBadCommand: OF V15 V15 13 9;
    TableFeaturesDupTable: NX V13 V15 44 0;
    AsyncInvalid: ONF V13 V13 2370 0, OF V14 V15 15 0;
    AsyncUnsupported: ONF V13 V13 2371 0, OF V14 V15 15 1;
    MonitorExists: NX V10 V11 1 517, NX V12 V13 6 0, OF V14 V15 16 1;
    MonitorUnknown: NX V10 V11 1 519, NX V12 V13 8 0, OF V14 V15 16 3;
    MonitorBadTable: OF V14 V15 16 6;
    MonitorBadFlags: NX V10 V11 1 518, NX V12 V13 7 0, OF V14 V15 16 5;
    MonitorBadCommand: OF V14 V15 16 4;
    MonitorBadOut: OF V14 V15 16 7;
    ResumeUnsupported: NX V10 V11 1 533, NX V12 V15 34 0;
    ResumeStale: NX V10 V11 1 534, NX V12 V15 35 0;
    TlvBadCommand: NX V10 V11 1 527, NX V12 V15 16 0;
    TlvBadOptionLen: NX V10 V11 1 528, NX V12 V15 17 0;
    TlvBadFieldIndex: NX V10 V11 1 529, NX V12 V15 18 0;
    TlvTableFull: NX V10 V11 1 530, NX V12 V15 19 0;
    TlvAlreadyMapped: NX V10 V11 1 531, NX V12 V15 20 0;
    TlvDupEntry: NX V10 V11 1 532, NX V12 V15 21 0;
    TlvInvalidDel: NX V10 V11 1 537, NX V12 V15 38 0;
    FlowInvalidTlvField: NX V10 V11 1 536, NX V12 V15 37 0;
}

fn lookup(version: Version, e: OfError) -> Option<ErrorNumbers> {
    spans(e).iter().find(|s| (s.from..=s.to).contains(&version)).map(|s| s.numbers)
}

/// The numbers of an error in a version.
pub fn wire(version: Version, e: OfError) -> ErrorNumbers {
    lookup(version, e)
        .or_else(|| lookup(version, OfError::Unencodable))
        .expect("unencodable has numbers in all versions")
}

/// The error that has these numbers in a version (the first of [`OfError`] if several have).
pub fn from_wire(version: Version, numbers: ErrorNumbers) -> Option<OfError> {
    find(version, numbers)
}

/// Writes the body of an error message up to where the offending message's data begin: type and
/// code, for vendor errors with their extension.
pub fn put_error(version: Version, e: OfError, out: &mut Vec<u8>) {
    let n = wire(version, e);
    let mut put = |v: u16| out.extend(v.to_be_bytes());
    if n.vendor == OF {
        put(n.kind);
        put(n.code);
    } else if version >= Version::V12 {
        put(EXPERIMENTER);
        put(n.kind);
        out.extend(n.vendor.to_be_bytes());
    } else {
        NX_VENDOR.into_iter().for_each(&mut put);
        out.extend(n.vendor.to_be_bytes());
        out.extend(n.kind.to_be_bytes());
        out.extend(n.code.to_be_bytes());
    }
}

/// Reads what [`put_error`] writes. Returns the numbers and the bytes they take; None where the
/// body is too short.
pub fn get_error(version: Version, body: &[u8]) -> Option<(ErrorNumbers, usize)> {
    let u16_at = |o: usize| Some(u16::from_be_bytes(*body.get(o..)?.first_chunk()?));
    let vendor = || Some(u32::from_be_bytes(*body.get(4..)?.first_chunk()?));
    let (kind, code) = (u16_at(0)?, u16_at(2)?);
    if kind == EXPERIMENTER && version >= Version::V12 {
        Some((ErrorNumbers { vendor: vendor()?, kind: code, code: 0 }, 8))
    } else if [kind, code] == NX_VENDOR && version < Version::V12 {
        Some((ErrorNumbers { vendor: vendor()?, kind: u16_at(8)?, code: u16_at(10)? }, 12))
    } else {
        Some((ErrorNumbers { vendor: OF, kind, code }, 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSIONS: [Version; 6] =
        [Version::V10, Version::V11, Version::V12, Version::V13, Version::V14, Version::V15];

    #[test]
    fn numbers_read_back() {
        for version in VERSIONS {
            for e in ALL.iter().copied() {
                let mut body = vec![];
                put_error(version, e, &mut body);
                let (numbers, used) = get_error(version, &body).unwrap();
                assert_eq!(used, body.len());
                assert_eq!(numbers, wire(version, e));
                let back = from_wire(version, numbers).unwrap();
                assert_eq!(wire(version, back), numbers, "{version:?} {e:?}");
            }
        }
    }

    #[test]
    fn known_numbers() {
        let numbers = |v, e| {
            let n = wire(v, e);
            (n.vendor, n.kind, n.code)
        };
        assert_eq!(numbers(Version::V13, OfError::MatchBadPrereq), (0, 4, 9));
        assert_eq!(numbers(Version::V10, OfError::MatchBadPrereq), (NX, 1, 260));
        assert_eq!(numbers(Version::V13, OfError::BundleBadId), (ONF, 2302, 0));
        assert_eq!(numbers(Version::V10, OfError::BundleBadId), (NX, 1, 521));
        assert_eq!(numbers(Version::V15, OfError::BundleBadId), (0, 17, 2));
    }

    #[test]
    fn short_bodies_are_refused() {
        assert_eq!(get_error(Version::V13, &[0, 1, 0]), None);
        assert_eq!(get_error(Version::V13, &[0xff, 0xff, 0, 1, 0, 0]), None);
        assert_eq!(get_error(Version::V10, &[0xb0, 0xc2, 0, 0, 0, 0, 0x23, 0x20, 0, 1]), None);
    }
}
