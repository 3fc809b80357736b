//! What ovs-vswitchd's log calls a message: its type in full, its version, its transaction id.

use super::kinds::{Kind, type_name, version};
use crate::Version;

/// Nicira's and the ONF's experimenter ids.
const NICIRA: u32 = 0x2320;
const ONF: u32 = 0x4f4e_4600;
/// The multipart type that stands for an experimenter's.
const EXPERIMENTER: u16 = 0xffff;

/// Multipart types from 0 on.
const MULTIPART: [&str; 17] = [
    "DESC",
    "FLOW",
    "AGGREGATE",
    "TABLE",
    "PORT",
    "QUEUE",
    "GROUP",
    "GROUP_DESC",
    "GROUP_FEATURES",
    "METER",
    "METER_CONFIG",
    "METER_FEATURES",
    "TABLE_FEATURES",
    "PORT_DESC",
    "TABLE_DESC",
    "QUEUE_DESC",
    "FLOW_MONITOR",
];
/// Nicira's multipart types from 0 on.
const NICIRA_MULTIPART: [&str; 5] =
    ["FLOW", "AGGREGATE", "FLOW_MONITOR", "IPFIX_BRIDGE", "IPFIX_FLOW"];
/// Nicira's messages, by number.
const NICIRA_MESSAGES: [(u32, &str); 22] = [
    (10, "ROLE_REQUEST"),
    (11, "ROLE_REPLY"),
    (12, "SET_FLOW_FORMAT"),
    (13, "FLOW_MOD"),
    (14, "FLOW_REMOVED"),
    (15, "FLOW_MOD_TABLE_ID"),
    (16, "SET_PACKET_IN_FORMAT"),
    (17, "PACKET_IN"),
    (18, "FLOW_AGE"),
    (19, "SET_ASYNC_CONFIG"),
    (20, "SET_CONTROLLER_ID"),
    (21, "FLOW_MONITOR_CANCEL"),
    (22, "FLOW_MONITOR_PAUSED"),
    (23, "FLOW_MONITOR_RESUMED"),
    (24, "TLV_TABLE_MOD"),
    (25, "TLV_TABLE_REQUEST"),
    (26, "TLV_TABLE_REPLY"),
    (27, "SET_ASYNC_CONFIG2"),
    (28, "RESUME"),
    (29, "CT_FLUSH_ZONE"),
    (30, "PACKET_IN2"),
    (32, "CT_FLUSH"),
];

/// The name that a message's header gives it: `NXST_FLOW request (OF1.3) (xid=0x2):`.
pub fn headline(message: &[u8]) -> String {
    let version = message.first().and_then(|number| version(*number));
    let shown = match version {
        Some(Version::V10) | None => String::new(),
        Some(v) => format!(" (OF1.{})", v as u8 - 1),
    };
    let name = name(message, version).unwrap_or_else(|| type_name(message));
    format!("{name}{shown} (xid={:#x}):", word(message, 4).unwrap_or(0))
}

/// True if a message is a multipart reply that others follow (`OFPMPF_REPLY_MORE`).
pub fn has_more(message: &[u8]) -> bool {
    let version = message.first().and_then(|number| version(*number));
    let kind = version.zip(message.get(1)).and_then(|(v, number)| Kind::from_wire(v, *number));
    kind == Some(Kind::MultipartReply) && message.get(11).is_some_and(|flags| flags & 1 != 0)
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*message.get(at..)?.first_chunk()?))
}

/// Where [`type_name`] says too little.
fn name(message: &[u8], version: Option<Version>) -> Option<String> {
    let version = version?;
    match Kind::from_wire(version, *message.get(1)?)? {
        Kind::MultipartRequest => multipart(message, version, "request"),
        Kind::MultipartReply => multipart(message, version, "reply"),
        Kind::Experimenter => match (word(message, 8)?, word(message, 12)?) {
            (NICIRA, kind) => {
                let (_, name) = NICIRA_MESSAGES.iter().find(|(number, _)| *number == kind)?;
                Some(format!("NXT_{name}"))
            }
            (ONF, 2300) => Some("ONFT_BUNDLE_CONTROL".into()),
            (ONF, 2301) => Some("ONFT_BUNDLE_ADD_MESSAGE".into()),
            _ => None,
        },
        _ => None,
    }
}

fn multipart(message: &[u8], version: Version, way: &str) -> Option<String> {
    let kind = u16::from_be_bytes(*message.get(8..)?.first_chunk()?);
    if kind != EXPERIMENTER {
        return Some(format!("OFPST_{} {way}", MULTIPART.get(usize::from(kind))?));
    }
    // The header of 1.0 has no padding.
    let at = if version == Version::V10 { 12 } else { 16 };
    let kind = word(message, at + 4)?;
    let name = NICIRA_MULTIPART.get(kind as usize).filter(|_| word(message, at) == Some(NICIRA))?;
    Some(format!("NXST_{name} {way}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_ovs() {
        let be = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
        let head = |first: u32| be(&[first, 0x1f]);
        let with = |first, rest: &[u32]| [head(first), be(rest)].concat();
        for (message, expected) in [
            (head(0x0100_0008), "OFPT_HELLO (xid=0x1f):"),
            (head(0x0614_0008), "OFPT_BARRIER_REQUEST (OF1.5) (xid=0x1f):"),
            (head(0x0522_0008), "OFPT_BUNDLE_ADD_MESSAGE (OF1.4) (xid=0x1f):"),
            (with(0x0412_0010, &[0x0001_0000, 0]), "OFPST_FLOW request (OF1.3) (xid=0x1f):"),
            (with(0x0413_0010, &[0x000d_0000, 0]), "OFPST_PORT_DESC reply (OF1.3) (xid=0x1f):"),
            (with(0x0111_0018, &[0xffff_0000, 0x2320, 0]), "NXST_FLOW reply (xid=0x1f):"),
            (with(0x0412_0018, &[0xffff_0000, 0, 0x2320, 2]), NXST_MONITOR),
            (with(0x0104_0010, &[0x2320, 30]), "NXT_PACKET_IN2 (xid=0x1f):"),
            (with(0x0404_0010, &[ONF, 2300]), "ONFT_BUNDLE_CONTROL (OF1.3) (xid=0x1f):"),
            // What has no name, or is cut.
            (with(0x0104_0010, &[0x2320, 99]), "OFPT_EXPERIMENTER (xid=0x1f):"),
            (with(0x0412_0010, &[0x0063_0000]), "OFPST request (OF1.3) (xid=0x1f):"),
            (vec![4, 18], "OFPST request (OF1.3) (xid=0x0):"),
            (vec![], "invalid (xid=0x0):"),
        ] {
            assert_eq!(headline(&message), expected);
            assert!(!has_more(&message));
        }
        assert!(has_more(&with(0x0413_0010, &[0x000d_0001, 0])));
    }

    const NXST_MONITOR: &str = "NXST_FLOW_MONITOR request (OF1.3) (xid=0x1f):";
}
