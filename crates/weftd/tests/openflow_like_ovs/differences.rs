//! Answers that are meant to differ, each with its reason
//! (docs/decisions/0004-differences-from-ovs.md).

use crate::corpus::Case;
use crate::wire::Answer;

const EXPERIMENTER: u8 = 4;
const PACKET_OUT: u8 = 13;
const FLOW_MOD: u8 = 14;
const GROUP_MOD: u8 = 15;
const TABLE_MOD: u8 = 17;
const METER_MOD: u8 = 29;
const BUNDLE_CONTROL: u8 = 33;
/// The table that ovs-vswitchd keeps for itself.
const OWN_TABLE: u8 = 254;
const GOTO_OWN_TABLE: [u8; 5] = [0, 1, 0, 8, OWN_TABLE];
/// OFPBAC_MATCH_INCONSISTENT.
const INCONSISTENT: Answer = Answer::Error(2, 10, 0);
/// OFPBIC_BAD_TABLE_ID.
const BAD_TABLE_ID: Answer = Answer::Error(3, 2, 0);
/// OFPMMFC_BAD_BAND.
const BAD_BAND: Answer = Answer::Error(12, 8, 0);
/// OFPFMFC_OVERLAP.
const OVERLAP: Answer = Answer::Error(3, 1, 0);
/// OFPGMFC_LOOP.
const LOOP: Answer = Answer::Error(6, 7, 0);
/// OFPTFFC_EPERM.
const FEATURES_EPERM: Answer = Answer::Error(13, 5, 0);
/// OFPBMC_BAD_FIELD.
const BAD_FIELD: Answer = Answer::Error(4, 6, 0);

/// OFPBMC_BAD_LEN.
const BAD_MATCH_LEN: Answer = Answer::Error(4, 1, 0);
/// OFPBMC_BAD_TYPE.
const BAD_MATCH_TYPE: Answer = Answer::Error(4, 0, 0);
/// OFPBAC_BAD_ARGUMENT.
const BAD_ARGUMENT: Answer = Answer::Error(2, 5, 0);
/// NXFMFC_INVALID_TLV_FIELD.
const INVALID_TLV_FIELD: Answer = Answer::Error(0xffff, 37, 0x2320);
/// Nicira's number, and its action's.
const NX_BUNDLE_LOAD: [u8; 6] = [0, 0, 0x23, 0x20, 0, 13];

/// Why a difference is right; None: it is a defect.
pub fn deliberate(case: &Case, mine: &[Answer], theirs: &[Answer]) -> Option<&'static str> {
    let (v, m) = (case.version, &case.message);
    let u16_at = |at: usize| m.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    let is_error = |answer: &[Answer]| matches!(answer, [Answer::Error(..)]);
    let refused = is_error(mine);
    let [request, reply] = if v == 1 { [16, 17] } else { [18, 19] };
    if case.defects > 1 && refused && is_error(theirs) {
        return Some("which of two defects is named depends on what is read first");
    }
    match m[1] {
        METER_MOD if v >= 4 && theirs == [BAD_BAND] => Some("DSCP remark is there"),
        BUNDLE_CONTROL if v >= 5 && refused && u16_at(12) > 7 => Some(
            "a bundle-control message of an unknown type gets a reply whose type ovs-vswitchd has not set",
        ),
        GROUP_MOD if (2..6).contains(&v) && refused && matches!(u16_at(8), 3 | 5) => {
            Some("commands for single buckets came with 1.5")
        }
        GROUP_MOD if v >= 2 && mine == [LOOP] => Some("groups that lead to themselves are refused"),
        TABLE_MOD if matches!(v, 2 | 3) && refused => {
            Some("misses go to the controller or nowhere")
        }
        FLOW_MOD if v == 1 && mine.is_empty() && theirs == [OVERLAP] => {
            Some("parts of a 1.0 match that cannot count make no other match")
        }
        FLOW_MOD if v >= 2 && refused && m.get(24) == Some(&OWN_TABLE) => {
            Some("table 254 is the switch's own")
        }
        FLOW_MOD if mine == [BAD_TABLE_ID] && m.windows(5).any(|w| w == GOTO_OWN_TABLE) => {
            Some("goto table 254")
        }
        PACKET_OUT if mine.is_empty() && theirs == [INCONSISTENT] && case.defects > 0 => {
            Some("a packet shorter than an Ethernet header is filled up")
        }
        PACKET_OUT if v == 6 && mine == [BAD_FIELD] => {
            Some("fields that are not known are not passed over")
        }
        PACKET_OUT if v == 6 && mine == [BAD_MATCH_LEN] && theirs == [BAD_MATCH_TYPE] => {
            Some("a match of the fixed form is refused for its length or for its form")
        }
        PACKET_OUT if mine == [INVALID_TLV_FIELD] && theirs.is_empty() => {
            Some("a tunnel option that the bridge does not map")
        }
        PACKET_OUT if mine == [BAD_ARGUMENT] && m.windows(6).any(|w| w == NX_BUNDLE_LOAD) => {
            Some("the type of a bundle's members is read whole; ovs-vswitchd reads half of it")
        }
        EXPERIMENTER if v >= 4 && u16_at(14) == 21 => {
            Some("Nicira's way to end a flow monitor is there in all versions")
        }
        kind if kind == request && u16_at(8) != 12 && u16_at(10) & 1 != 0 => {
            Some("a request in parts is not collected: its first part is answered")
        }
        kind if kind == request && monitors(v, m) && refused => Some(
            "malformed flow monitors: ovs-vswitchd uses numbers of another version, or of no error",
        ),
        kind if kind == request
            && mine == [FEATURES_EPERM]
            && m[24..56].iter().any(|b| *b > 0x7f) =>
        {
            Some("a table's name is text")
        }
        kind if kind == request && u16_at(8) == 12 && mine == [bad_exp_type(v)] => Some(
            "an experimenter's property of tables: ovs-vswitchd reads its type as one of OpenFlow's",
        ),
        kind if kind == request && v == 6 && u16_at(8) == 17 => Some("1.5's short flow statistics"),
        kind if kind == reply && refused && is_error(theirs) => Some("a reply is refused unread"),
        _ => None,
    }
}

/// OFPBPC_BAD_EXP_TYPE, which has an experimenter's number in 1.3.
fn bad_exp_type(version: u8) -> Answer {
    if version == 4 { Answer::Error(0xffff, 4446, 0x4f4e_4600) } else { Answer::Error(14, 6, 0) }
}

/// True if it is about flow monitors: Nicira's, ONF's or OpenFlow's own.
fn monitors(version: u8, m: &[u8]) -> bool {
    let at = if version == 1 { 16 } else { 20 };
    let subtype = m.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    match m.get(8..10) {
        Some([0, 16]) => version >= 5,
        Some([0xff, 0xff]) => matches!(subtype, 2 | 1870),
        _ => false,
    }
}
