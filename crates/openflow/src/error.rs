//! OpenFlow errors by name; the codec turns them into each version's numbers.

/// An error to be sent back. The names are OVS's (`OFPERR_*` without the prefix), camel-cased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{self:?}")]
#[allow(missing_docs)]
pub enum OfError {
    // hello
    HelloIncompatible,
    HelloEperm,
    // bad request
    BadVersion,
    BadType,
    BadStat,
    BadExperimenter,
    BadExpType,
    RequestEperm,
    BadLen,
    BufferEmpty,
    BufferUnknown,
    BadTableId,
    IsSlave,
    RequestBadPort,
    BadPacket,
    MultipartBufferOverflow,
    // bad action
    ActBadType,
    ActBadLen,
    ActBadExperimenter,
    ActBadExpType,
    ActBadOutPort,
    ActBadArgument,
    ActEperm,
    ActTooMany,
    ActBadQueue,
    ActBadOutGroup,
    ActMatchInconsistent,
    ActUnsupportedOrder,
    ActBadTag,
    ActBadSetType,
    ActBadSetLen,
    ActBadSetArgument,
    ActMustBeZero,
    ActBadConjunction,
    ActBadHeaderType,
    ActUnknownEdProp,
    ActBadEdProp,
    // bad instruction
    InstUnknown,
    InstUnsup,
    InstBadTableId,
    InstUnsupMetadata,
    InstUnsupMetadataMask,
    InstBadExperimenter,
    InstBadExpType,
    InstBadLen,
    InstEperm,
    InstDup,
    // bad match
    MatchBadType,
    MatchBadLen,
    MatchBadTag,
    MatchBadDlAddrMask,
    MatchBadNwAddrMask,
    MatchBadWildcards,
    MatchBadField,
    MatchBadValue,
    MatchBadMask,
    MatchBadPrereq,
    MatchDupField,
    MatchEperm,
    // flow mod failed
    FlowUnknown,
    FlowTableFull,
    FlowBadTableId,
    FlowOverlap,
    FlowEperm,
    FlowBadTimeout,
    FlowBadCommand,
    FlowBadFlags,
    FlowUnsupported,
    // group mod failed
    GroupExists,
    GroupInvalid,
    GroupOutOfGroups,
    GroupOutOfBuckets,
    GroupChained,
    GroupWatchUnsupported,
    GroupLoop,
    GroupUnknown,
    GroupChainedGroup,
    GroupBadType,
    GroupBadCommand,
    GroupBadBucket,
    GroupBadWatch,
    GroupEperm,
    GroupUnknownBucket,
    GroupBucketExists,
    // port mod failed
    PortModBadPort,
    PortModBadHwAddr,
    PortModBadConfig,
    PortModBadAdvertise,
    PortModEperm,
    // table mod / queue / switch config / role
    TableModBadTable,
    TableModBadConfig,
    TableModEperm,
    QueueBadPort,
    QueueBadQueue,
    QueueError,
    SwitchConfigBadFlags,
    SwitchConfigBadLen,
    RoleStale,
    RoleUnsup,
    RoleBadRole,
    // meter mod
    MeterUnknown,
    MeterExists,
    MeterInvalid,
    MeterUnknownMeter,
    MeterBadCommand,
    MeterBadFlags,
    MeterBadRate,
    MeterBadBurst,
    MeterBadBand,
    MeterOutOfMeters,
    MeterOutOfBands,
    // bundles
    BundleUnknown,
    BundleEperm,
    BundleBadId,
    BundleExists,
    BundleClosed,
    BundleOutOfBundles,
    BundleBadType,
    BundleBadFlags,
    BundleMsgBadLen,
    BundleMsgBadXid,
    BundleMsgUnsup,
    BundleMsgConflict,
    BundleMsgTooMany,
    BundleMsgFailed,
    BundleTimeout,
    BundleBadVersion,
    // table features, async config, flow monitor
    TableFeaturesEperm,
    AsyncInvalid,
    AsyncUnsupported,
    MonitorUnknown,
    MonitorBadTable,
    MonitorBadFlags,
    // named by OVS's own messages, or rarely
    PipelineFieldsOnly,
    NxmInvalid,
    RequestMustBeZero,
    NotConfigured,
    Unencodable,
    ActBadSetMask,
    ActBadMeter,
    FlowBadEmergTimeout,
    GroupWeightUnsupported,
    MeterBadBandValue,
    PropBadType,
    PropBadLen,
    PropBadValue,
    PropDupType,
    PropBadExperimenter,
    PropBadExpType,
    TableFeaturesBadTable,
    TableFeaturesBadFeatures,
    TableFeaturesBadCommand,
    TableFeaturesDupTable,
    MultipartRequestTimeout,
    MonitorExists,
    MonitorBadCommand,
    MonitorBadOut,
    ResumeUnsupported,
    ResumeStale,
    TlvBadCommand,
    TlvBadOptionLen,
    TlvBadFieldIndex,
    TlvTableFull,
    TlvAlreadyMapped,
    TlvDupEntry,
    TlvInvalidDel,
    FlowInvalidTlvField,
}

/// Our names' beginnings and OVS's; the longer ones first, and requests' errors, which have none,
/// last.
const FAMILIES: &[(&str, &str)] = &[
    ("SwitchConfig", "OFPSCFC"),
    ("TableFeatures", "OFPTFFC"),
    ("TableMod", "OFPTMFC"),
    ("PortMod", "OFPPMFC"),
    ("Hello", "OFPHFC"),
    ("Act", "OFPBAC"),
    ("Inst", "OFPBIC"),
    ("Match", "OFPBMC"),
    ("Flow", "OFPFMFC"),
    ("Group", "OFPGMFC"),
    ("Queue", "OFPQOFC"),
    ("Role", "OFPRRFC"),
    ("Meter", "OFPMMFC"),
    ("Bundle", "OFPBFC"),
    ("Async", "OFPACFC"),
    ("Monitor", "OFPMOFC"),
    ("Prop", "OFPBPC"),
    ("Tlv", "NXTTMFC"),
    ("Resume", "NXR"),
    ("Request", "OFPBRC"),
    ("", "OFPBRC"),
];

/// Names that are not made of ours.
const SPECIAL: &[(OfError, &str)] = &[
    (OfError::BadExperimenter, "OFPBRC_BAD_VENDOR"),
    (OfError::BadExpType, "OFPBRC_BAD_SUBTYPE"),
    (OfError::IsSlave, "OFPBRC_IS_SECONDARY"),
    (OfError::TableFeaturesDupTable, "NXTFFC_DUP_TABLE"),
    (OfError::NotConfigured, "NXST_NOT_CONFIGURED"),
    (OfError::NxmInvalid, "NXBRC_NXM_INVALID"),
    (OfError::RequestMustBeZero, "NXBRC_MUST_BE_ZERO"),
    (OfError::Unencodable, "NXBRC_UNENCODABLE_ERROR"),
    (OfError::ActBadExperimenter, "OFPBAC_BAD_VENDOR"),
    (OfError::ActBadExpType, "OFPBAC_BAD_VENDOR_TYPE"),
    (OfError::ActMustBeZero, "NXBAC_MUST_BE_ZERO"),
    (OfError::ActBadConjunction, "NXBAC_BAD_CONJUNCTION"),
    (OfError::ActBadHeaderType, "NXBAC_BAD_HEADER_TYPE"),
    (OfError::ActUnknownEdProp, "NXBAC_UNKNOWN_ED_PROP"),
    (OfError::ActBadEdProp, "NXBAC_BAD_ED_PROP"),
    (OfError::InstUnknown, "OFPBIC_UNKNOWN_INST"),
    (OfError::InstUnsup, "OFPBIC_UNSUP_INST"),
    (OfError::InstDup, "OFPBIC_DUP_INST"),
    (OfError::FlowInvalidTlvField, "NXTTMFC_INVALID_TLV_FIELD"),
    (OfError::GroupInvalid, "OFPGMFC_INVALID_GROUP"),
    (OfError::GroupUnknown, "OFPGMFC_UNKNOWN_GROUP"),
    (OfError::GroupExists, "OFPGMFC_GROUP_EXISTS"),
    (OfError::GroupChained, "OFPGMFC_CHAINING_UNSUPPORTED"),
    (OfError::MeterExists, "OFPMMFC_METER_EXISTS"),
    (OfError::MeterInvalid, "OFPMMFC_INVALID_METER"),
    (OfError::BundleExists, "OFPBFC_BUNDLE_EXIST"),
    (OfError::BundleClosed, "OFPBFC_BUNDLE_CLOSED"),
    (OfError::MonitorBadTable, "OFPMOFC_BAD_TABLE_ID"),
    (OfError::MonitorExists, "OFPMOFC_MONITOR_EXISTS"),
    (OfError::MonitorUnknown, "OFPMOFC_UNKNOWN_MONITOR"),
    (OfError::ResumeUnsupported, "NXR_NOT_SUPPORTED"),
    (OfError::TlvBadOptionLen, "NXTTMFC_BAD_OPT_LEN"),
    (OfError::TlvBadFieldIndex, "NXTTMFC_BAD_FIELD_IDX"),
    (OfError::TlvInvalidDel, "NXTTMFC_INVALID_TLV_DEL"),
];

impl OfError {
    /// What ovs-vswitchd's log calls the error: `OFPBRC_BAD_TYPE`.
    pub fn ovs_name(self) -> String {
        let name = format!("{self:?}");
        if let Some((_, special)) = SPECIAL.iter().find(|(e, _)| *e == self) {
            return (*special).into();
        }
        let family = FAMILIES.iter().find_map(|(ours, ovs)| Some((name.strip_prefix(ours)?, ovs)));
        family.map_or(String::new(), |(rest, ovs)| format!("{ovs}_{}", upper_snake(rest)))
    }
}

/// `BadType` as `BAD_TYPE`.
pub(crate) fn upper_snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_log() {
        assert_eq!(OfError::BadType.ovs_name(), "OFPBRC_BAD_TYPE");
        assert_eq!(OfError::GroupInvalid.ovs_name(), "OFPGMFC_INVALID_GROUP");
        assert_eq!(OfError::TableModBadTable.ovs_name(), "OFPTMFC_BAD_TABLE");
        assert_eq!(OfError::RequestEperm.ovs_name(), "OFPBRC_EPERM");
        assert_eq!(OfError::BadExpType.ovs_name(), "OFPBRC_BAD_SUBTYPE");
    }
}
