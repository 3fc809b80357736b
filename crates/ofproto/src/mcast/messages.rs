//! Parses packets of IGMP (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810): which groups they
//! report, and routers.

use std::net::{Ipv4Addr, Ipv6Addr};
use wire::{IP_ICMPV6, IP_IGMP, checksum};

/// Types of IGMP messages: a router's query; reports of versions 1, 2 and 3; leave.
const IGMP_QUERY: u8 = 0x11;
const IGMP_V1_REPORT: u8 = 0x12;
const IGMP_V2_REPORT: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
const IGMP_V3_REPORT: u8 = 0x22;
/// Types of MLD messages in ICMPv6: a router's query; report of version 1, done, report of version
/// 2.
const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_V2_REPORT: u8 = 143;
/// Types of the records of a report: the host wants these sources only (is, becomes); then the
/// first and the last of the other types.
const MODE_IS_INCLUDE: u8 = 1;
const CHANGE_TO_INCLUDE: u8 = 3;
const BLOCK_OLD_SOURCES: u8 = 6;
/// Bytes of each message's fixed part, and of a record in front of the group's address.
const IGMP_LEN: usize = 8;
const MLD_LEN: usize = 8;
const RECORD_LEN: usize = 4;

/// What NORMAL does with a packet of IGMP or MLD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum McastKind {
    /// A host's report, which is sent to routers.
    Report,
    /// A router's query, which is sent to all.
    Query,
}

impl McastKind {
    pub fn of_igmp(kind: u16) -> Option<McastKind> {
        match u8::try_from(kind).ok()? {
            IGMP_QUERY => Some(McastKind::Query),
            IGMP_V1_REPORT | IGMP_V2_REPORT | IGMP_V3_REPORT | IGMP_LEAVE => {
                Some(McastKind::Report)
            }
            _ => None,
        }
    }

    pub fn of_mld(kind: u16) -> Option<McastKind> {
        match u8::try_from(kind).ok()? {
            MLD_QUERY => Some(McastKind::Query),
            MLD_REPORT | MLD_DONE | MLD_V2_REPORT => Some(McastKind::Report),
            _ => None,
        }
    }
}

/// One statement in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The sender is a multicast router.
    Router,
    Join(Ipv6Addr),
    Leave(Ipv6Addr),
}

/// The statements in a frame, in order. None if the frame is truncated or its checksum is wrong.
/// Groups of IPv4 are IPv4-mapped addresses.
pub(crate) fn read(frame: &[u8]) -> Vec<Said> {
    let mut out = Vec::new();
    let Some(l3) = wire::l3(frame) else { return out };
    let Some(bytes) = frame.get(l3.at..) else { return out };
    let _ = match l3.ethertype {
        wire::ETH_IPV4 => igmp(bytes, &mut out),
        wire::ETH_IPV6 => mld(bytes, &mut out),
        _ => None,
    };
    out
}

/// Statements that were read before the packet's end are in `out`.
fn igmp(bytes: &[u8], out: &mut Vec<Said>) -> Option<()> {
    let ip = wire::Ipv4::new(bytes)?;
    let m = ip.payload();
    if ip.proto() != IP_IGMP || ip.is_fragment() || m.len() < IGMP_LEN || checksum::internet(m) != 0
    {
        return None;
    }
    let group = |at: usize| {
        let four: [u8; 4] = m.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(four).to_ipv6_mapped())
    };
    match m[0] {
        IGMP_QUERY if ip.src() != [0; 4] => out.push(Said::Router),
        IGMP_V1_REPORT | IGMP_V2_REPORT => join(group(4)?, out),
        IGMP_LEAVE => out.push(Said::Leave(group(4)?)),
        IGMP_V3_REPORT => records(m, IGMP_LEN, 4, group, out)?,
        _ => {}
    }
    Some(())
}

fn mld(bytes: &[u8], out: &mut Vec<Said>) -> Option<()> {
    let ip = wire::Ipv6::new(bytes)?;
    let whole = bytes.get(wire::IPV6_LEN..wire::IPV6_LEN + usize::from(ip.payload_len()))?;
    let end = wire::walk_extensions(whole, ip.next())?;
    let m = whole.get(end.at..)?;
    let (src, dst) = (ip.src(), ip.dst());
    let sum = checksum::pseudo_v6(&src, &dst, IP_ICMPV6, m.len()).bytes(m).finish();
    if end.proto != IP_ICMPV6 || end.fragment.is_some() || m.len() < MLD_LEN || sum != 0 {
        return None;
    }
    let group = |at: usize| {
        let all: [u8; 16] = m.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(all))
    };
    match m[0] {
        MLD_QUERY if src != [0; 16] => out.push(Said::Router),
        MLD_REPORT => join(group(MLD_LEN)?, out),
        MLD_DONE => out.push(Said::Leave(group(MLD_LEN)?)),
        MLD_V2_REPORT => records(m, MLD_LEN, 16, group, out)?,
        _ => {}
    }
    Some(())
}

/// The records of a report, whose addresses have `size` bytes.
fn records(
    m: &[u8],
    mut at: usize,
    size: usize,
    group: impl Fn(usize) -> Option<Ipv6Addr>,
    out: &mut Vec<Said>,
) -> Option<()> {
    for _ in 0..u16::from_be_bytes([m[6], m[7]]) {
        let &[kind, words, high, low] = m.get(at..at + RECORD_LEN)? else { return None };
        let sources = usize::from(u16::from_be_bytes([high, low]));
        let group = group(at + RECORD_LEN)?;
        match kind {
            MODE_IS_INCLUDE | CHANGE_TO_INCLUDE if sources == 0 => out.push(Said::Leave(group)),
            MODE_IS_INCLUDE..=BLOCK_OLD_SOURCES => join(group, out),
            _ => {}
        }
        at += RECORD_LEN + size * (1 + sources) + usize::from(words) * 4;
    }
    Some(())
}

fn join(group: Ipv6Addr, out: &mut Vec<Said>) {
    let multicast = group.to_ipv4_mapped().map_or(group.is_multicast(), |v4| v4.is_multicast());
    if multicast {
        out.push(Said::Join(group));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const GROUP: Ipv4Addr = Ipv4Addr::new(239, 94, 1, 1);

    fn v6(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, last)
    }

    /// A frame with this message of IGMP, whose checksum is filled in.
    pub(crate) fn igmp_frame(src: [u8; 4], message: &[u8]) -> Vec<u8> {
        let mut m = message.to_vec();
        let sum = checksum::internet(&m).to_be_bytes();
        m[2..4].copy_from_slice(&sum);
        let mut frame = [[2u8; 12].as_slice(), &[8, 0]].concat();
        let len = (24 + m.len() as u16).to_be_bytes();
        frame.extend([0x46, 0, len[0], len[1], 0, 0, 0, 0, 1, IP_IGMP, 0, 0]);
        frame.extend(src);
        frame.extend([224, 0, 0, 1, 0x94, 4, 0, 0]);
        frame.extend(m);
        // Padding to Ethernet's minimum length.
        frame.resize(frame.len().max(60), 0xaa);
        frame
    }

    /// A frame with this message of MLD behind a hop-by-hop header.
    fn mld_frame(message: &[u8]) -> Vec<u8> {
        let mut m = message.to_vec();
        let (src, dst) = (v6(1).octets(), v6(2).octets());
        let sum = checksum::pseudo_v6(&src, &dst, IP_ICMPV6, m.len()).bytes(&m).finish();
        m[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [[2u8; 12].as_slice(), &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        frame.extend((8 + m.len() as u16).to_be_bytes());
        frame.extend([0, 1]);
        frame.extend([src, dst].concat());
        frame.extend([IP_ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
        frame.extend(m);
        frame
    }

    fn record(kind: u8, words: u8, sources: u8, address: &[u8]) -> Vec<u8> {
        let mut r = [&[kind, words, 0, sources], address].concat();
        r.resize(r.len() + address.len() * usize::from(sources) + 4 * usize::from(words), 7);
        r
    }

    #[test]
    fn igmp_says_joins_leaves_and_routers() {
        use Said::*;
        let short = |kind| [kind, 0, 0, 0, 239, 94, 1, 1];
        let group = GROUP.to_ipv6_mapped();
        for (src, m, says) in [
            ([10, 0, 0, 1], short(0x11), vec![Router]),
            ([0; 4], short(0x11), vec![]),
            ([0; 4], short(0x12), vec![Join(group)]),
            ([10, 0, 0, 1], short(0x16), vec![Join(group)]),
            ([10, 0, 0, 1], short(0x17), vec![Leave(group)]),
            ([10, 0, 0, 1], [0x16, 0, 0, 0, 10, 0, 0, 9], vec![]),
            ([10, 0, 0, 1], short(0x13), vec![]),
        ] {
            assert_eq!(read(&igmp_frame(src, &m)), says, "{m:?}");
        }
        let mut wrong = igmp_frame([10, 0, 0, 1], &short(0x16));
        wrong[40] ^= 1;
        assert_eq!(read(&wrong), vec![]);
    }

    #[test]
    fn reports_of_many_records_say_all_of_them() {
        use Said::*;
        let v4 = |last| Ipv4Addr::new(239, 0, 0, last);
        let records: Vec<u8> = [(4, 1, 0), (3, 0, 0), (1, 2, 3), (9, 0, 0), (6, 0, 1)]
            .iter()
            .zip(1..)
            .flat_map(|((kind, words, n), last)| record(*kind, *words, *n, &v4(last).octets()))
            .collect();
        let map = |last| v4(last).to_ipv6_mapped();
        let all = vec![Join(map(1)), Leave(map(2)), Join(map(3)), Join(map(5))];
        let m = [&[0x22, 0, 0, 0, 0, 0, 0, 5], records.as_slice()].concat();
        assert_eq!(read(&igmp_frame([10, 0, 0, 1], &m)), all);
        // The message claims more records than the packet has.
        let m = [&[0x22, 0, 0, 0, 0, 0, 0xff, 0xff], records.as_slice()].concat();
        assert_eq!(read(&igmp_frame([10, 0, 0, 1], &m)), all);
        let records = [record(4, 0, 1, &v6(7).octets()), record(3, 0, 0, &v6(8).octets())].concat();
        let m = [&[143, 0, 0, 0, 0, 0, 0, 2], records.as_slice()].concat();
        assert_eq!(read(&mld_frame(&m)), vec![Join(v6(7)), Leave(v6(8))]);
    }

    #[test]
    fn mld_says_the_same() {
        use Said::*;
        for (kind, says) in
            [(130, vec![Router]), (131, vec![Join(v6(7))]), (132, vec![Leave(v6(7))])]
        {
            let m = [&[kind, 0, 0, 0, 0, 0, 0, 0], v6(7).octets().as_slice()].concat();
            assert_eq!(read(&mld_frame(&m)), says);
            let mut wrong = mld_frame(&m);
            wrong[70] ^= 1;
            assert_eq!(read(&wrong), vec![]);
        }
    }

    #[test]
    fn no_packet_is_too_short() {
        let v3 =
            [&[0x22, 0, 0, 0, 0, 0, 0, 2], record(4, 1, 1, &GROUP.octets()).as_slice()].concat();
        let v2 =
            [&[143, 0, 0, 0, 0, 0, 0, 2], record(4, 1, 1, &v6(1).octets()).as_slice()].concat();
        for frame in [igmp_frame([1; 4], &v3), mld_frame(&v2)] {
            (0..frame.len()).for_each(|n| _ = read(&frame[..n]));
        }
    }
}
