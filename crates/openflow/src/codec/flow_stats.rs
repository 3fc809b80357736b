//! Flow and aggregate statistics: 1.0, Nicira's, 1.1+, and 1.5's with OXS.

use super::flow_mod::{known_flags, put_nx_match};
use super::oxs;
use super::port::{check_port, get_port};
use crate::buf::{Put, Rd, Result};
use crate::instructions::encode_flow_instructions;
use crate::matching::{decode_match, decode_match10, decode_nx_match};
use crate::matching::{encode_match, encode_match10};
use crate::oxm::port_from_10;
use crate::{FlowSelect, FlowStats, GROUP_ANY, OfError, Version};

/// The body of a flow or aggregate request.
pub(super) fn decode_select(version: Version, mut rd: Rd<'_>) -> Result<FlowSelect> {
    if version == Version::V10 {
        let matching = decode_match10(&rd.array()?);
        let table = rd.u8()?;
        rd.skip(1)?;
        let out_port = get_port(version, &mut rd)?;
        let select = FlowSelect {
            table,
            out_port,
            out_group: GROUP_ANY,
            cookie: 0,
            cookie_mask: 0,
            matching,
        };
        return Ok(select);
    }
    let table = rd.u8()?;
    rd.skip(3)?;
    let out_port = check_port(rd.u32()?, OfError::ActBadOutPort)?;
    let out_group = rd.u32()?;
    rd.skip(4)?;
    let (cookie, cookie_mask) = (rd.u64()?, rd.u64()?);
    let (matching, _) = decode_match(version, rd.0)?;
    // What follows the match is passed over, as OVS does.
    Ok(FlowSelect { table, out_port, out_group, cookie, cookie_mask, matching })
}

/// The body of NXST_FLOW and NXST_AGGREGATE requests.
pub(super) fn decode_select_nx(mut rd: Rd<'_>) -> Result<FlowSelect> {
    let out_port = port_from_10(rd.u16()?);
    let len = usize::from(rd.u16()?);
    let table = rd.u8()?;
    rd.skip(3)?;
    let nx = decode_nx_match(rd.padded(len).map_err(|_| OfError::MatchBadLen)?)?;
    let select = FlowSelect {
        table,
        out_port,
        out_group: GROUP_ANY,
        cookie: nx.cookie,
        cookie_mask: nx.cookie_mask,
        matching: nx.matching,
    };
    if rd.is_empty() { Ok(select) } else { Err(OfError::BadLen) }
}

/// One flow of a standard flow-statistics reply.
pub(super) fn put_flow(version: Version, s: &FlowStats, m: &mut Vec<u8>) {
    match version {
        Version::V10 => put10(s, m),
        Version::V15 => put15(s, m),
        _ => put11(version, s, m),
    }
}

fn put10(s: &FlowStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(2);
    m.u8(s.table);
    m.pad(1);
    m.raw(&encode_match10(&s.matching));
    m.duration(s.duration_ns);
    m.u16(s.priority);
    m.u16(s.idle_timeout);
    m.u16(s.hard_timeout);
    m.pad(6);
    m.u64(s.cookie);
    m.u64(s.packets);
    m.u64(s.bytes);
    encode_flow_instructions(Version::V10, &s.matching, &s.instructions, m);
    m.patch_len(start, start);
}

/// `nx_flow_stats`; ages are sent plus one, zero for unknown.
pub(super) fn put_flow_nx(s: &FlowStats, m: &mut Vec<u8>) {
    let age = |a: Option<u32>| a.map_or(0, |a| a.min(0xfffe) as u16 + 1);
    let start = m.len();
    m.pad(2);
    m.u8(s.table);
    m.pad(1);
    m.duration(s.duration_ns);
    m.u16(s.priority);
    m.u16(s.idle_timeout);
    m.u16(s.hard_timeout);
    let at = m.len();
    m.u16(0);
    m.u16(age(s.idle_age));
    m.u16(age(s.hard_age));
    m.u64(s.cookie);
    m.u64(s.packets);
    m.u64(s.bytes);
    put_nx_match(&s.matching, at, m);
    encode_flow_instructions(Version::V10, &s.matching, &s.instructions, m);
    m.patch_len(start, start);
}

fn put11(version: Version, s: &FlowStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(2);
    m.u8(s.table);
    m.pad(1);
    m.duration(s.duration_ns);
    m.u16(s.priority);
    m.u16(s.idle_timeout);
    m.u16(s.hard_timeout);
    m.u16(if version >= Version::V13 { s.flags & known_flags(version) } else { 0 });
    m.u16(if version >= Version::V14 { s.importance } else { 0 });
    m.pad(2);
    m.u64(s.cookie);
    m.u64(s.packets);
    m.u64(s.bytes);
    // 1.1's own match has few of the fields that flows name: as in OVS, it is 1.2's here.
    encode_match(version.max(Version::V12), &s.matching, m);
    encode_flow_instructions(version, &s.matching, &s.instructions, m);
    m.patch_len(start, start);
}

/// `ofp_flow_desc`.
fn put15(s: &FlowStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(4);
    m.u8(s.table);
    m.pad(1);
    m.u16(s.priority);
    m.u16(s.idle_timeout);
    m.u16(s.hard_timeout);
    m.u16(s.flags & known_flags(Version::V15));
    m.u16(s.importance);
    m.u64(s.cookie);
    encode_match(Version::V15, &s.matching, m);
    oxs::put(&oxs::Stats::of_flow(s), m);
    encode_flow_instructions(Version::V15, &s.matching, &s.instructions, m);
    m.patch_len(start, start);
}

/// 1.5's `ofp_flow_stats` (multipart type 17): no instructions. The reason is "statistics request".
pub(super) fn put_flow_short(s: &FlowStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(4);
    m.u8(s.table);
    m.u8(0);
    m.u16(s.priority);
    encode_match(Version::V15, &s.matching, m);
    oxs::put(&oxs::Stats::of_flow(s), m);
    m.patch_len(start, start);
}

/// The body of an aggregate reply.
pub(super) fn put_aggregate(
    version: Version,
    packets: u64,
    bytes: u64,
    flows: u32,
    m: &mut Vec<u8>,
) {
    if version == Version::V15 {
        let (packets, bytes, flows) = (Some(packets), Some(bytes), Some(flows));
        oxs::put(&oxs::Stats { packets, bytes, flows, ..oxs::Stats::default() }, m);
        return;
    }
    m.u64(packets);
    m.u64(bytes);
    m.u32(flows);
    m.pad(4);
}
