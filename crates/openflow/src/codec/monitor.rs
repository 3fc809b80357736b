//! Flow monitors: Nicira's (1.0), ONF's (1.3), OpenFlow's own (1.4+).

use super::begun::vendor;
use super::flow_mod::{put_nx_match, removed_reason};
use super::multipart::Parts;
use super::port::check_port;
use super::{Dialect, Form, ReplyTo};
use crate::actions_out::encode_flow_actions;
use crate::buf::{Put, Rd, Result};
use crate::instructions::encode_flow_instructions;
use crate::matching::{decode_match, decode_nx_match, encode_match};
use crate::oxm::port_from_10;
use crate::{
    FlowStats, GROUP_ANY, Instruction, Match, MonitorRequest, MonitorUpdate, OfError, Version,
    monitor_flag,
};

/// Flags that Nicira's and ONF's form have.
const FLAGS_NX: u16 = 0x3f;
/// 1.4's ONLY_OWN.
const ONLY_OWN: u16 = 0x40;

fn check_flags(flags: u16, known: u16) -> Result<u16> {
    let some = flags & (monitor_flag::ADD | monitor_flag::DELETE | monitor_flag::MODIFY) != 0;
    if some && flags & !known == 0 { Ok(flags) } else { Err(OfError::MonitorBadFlags) }
}

/// Nicira's requests that fill the body.
pub(super) fn decode_nx(mut rd: Rd<'_>) -> Result<Vec<MonitorRequest>> {
    let mut list = Vec::new();
    while !rd.is_empty() {
        let id = rd.u32()?;
        let wire_flags = rd.u16()?;
        let out_port = port_from_10(rd.u16()?);
        let len = usize::from(rd.u16()?);
        let table = rd.u8()?;
        let zeros: [u8; 5] = rd.array()?;
        let flags = check_flags(wire_flags, FLAGS_NX)?;
        if zeros != [0; 5] {
            return Err(OfError::RequestMustBeZero);
        }
        let matching = decode_nx_match(rd.padded(len).map_err(|_| OfError::MatchBadLen)?)?.matching;
        let out_group = GROUP_ANY;
        list.push(MonitorRequest { id, flags, out_port, out_group, table, matching });
    }
    Ok(list)
}

/// ONF's requests that fill the body.
pub(super) fn decode_onf(mut rd: Rd<'_>) -> Result<Vec<MonitorRequest>> {
    let mut list = Vec::new();
    while !rd.is_empty() {
        let id = rd.u32()?;
        let wire_flags = rd.u16()?;
        rd.skip(2)?; // the match's length, which the match has too
        let out_port = rd.u32()?;
        let table = rd.u8()?;
        let zeros: [u8; 3] = rd.array()?;
        let flags = check_flags(wire_flags, FLAGS_NX)?;
        if zeros != [0; 3] {
            return Err(OfError::RequestMustBeZero);
        }
        check_port(out_port, OfError::ActBadOutPort)?;
        let matching = get_match(Version::V13, &mut rd)?;
        let out_group = GROUP_ANY;
        list.push(MonitorRequest { id, flags, out_port, out_group, table, matching });
    }
    Ok(list)
}

fn get_match(version: Version, rd: &mut Rd<'_>) -> Result<Match> {
    let (matching, used) = decode_match(version, rd.0)?;
    rd.skip(used)?;
    Ok(matching)
}

/// OpenFlow 1.4's requests that fill the body (only "add" commands: cancelling is Nicira's).
pub(super) fn decode14(version: Version, mut rd: Rd<'_>) -> Result<Vec<MonitorRequest>> {
    let mut list = Vec::new();
    while !rd.is_empty() {
        let id = rd.u32()?;
        let out_port = rd.u32()?;
        let out_group = rd.u32()?;
        let wire_flags = rd.u16()?;
        let own = if wire_flags & ONLY_OWN != 0 { monitor_flag::OWN } else { 0 };
        let flags = wire_flags & FLAGS_NX | own;
        let table = rd.u8()?;
        if rd.u8()? != 0 {
            return Err(OfError::BadType);
        }
        check_flags(wire_flags, FLAGS_NX | ONLY_OWN)?;
        check_port(out_port, OfError::ActBadOutPort)?;
        let matching = get_match(version, &mut rd)?;
        list.push(MonitorRequest { id, flags, out_port, out_group, table, matching });
    }
    Ok(list)
}

/// Updates outside a reply: multipart replies with transaction id 0.
pub(super) fn encode_updates(
    dialect: Dialect,
    to: ReplyTo,
    updates: &[MonitorUpdate],
) -> Vec<Vec<u8>> {
    let form = match dialect.version {
        Version::V13 => Form::Onf,
        Version::V14 | Version::V15 => Form::Standard,
        _ => Form::Nicira,
    };
    let to = ReplyTo { form, ..to };
    let kind = match form {
        Form::Onf => 1870,
        Form::Nicira => 2,
        _ => 16,
    };
    let parts = Parts::new(dialect.version, to, kind);
    parts.each(updates, |u, m| put(dialect.version, to, false, u, m)).finish(false).0
}

/// One update; `initial`: in the reply to the request.
pub(super) fn put(
    version: Version,
    to: ReplyTo,
    initial: bool,
    update: &MonitorUpdate,
    m: &mut Vec<u8>,
) {
    let old = vendor(to.form).is_some();
    // Numbers of the events: (Nicira and ONF, 1.4).
    let (event, flow, reason) = match update {
        MonitorUpdate::Added(s) if initial => ((0, 0), s, 0),
        MonitorUpdate::Added(s) => ((0, 1), s, 0),
        MonitorUpdate::Deleted(s, why) => ((1, 2), s, removed_reason(version, *why)),
        MonitorUpdate::Modified(s) => ((2, 3), s, 0),
        MonitorUpdate::Abbrev { xid } => {
            m.u16(8);
            m.u16(if old { 3 } else { 4 });
            m.u32(*xid);
            return;
        }
    };
    if old {
        put_old(version, to, event.0, reason, flow, m)
    } else {
        put14(version, event.1, reason, flow, m)
    }
}

/// `nx_flow_update_full`; ONF's has an OpenFlow match and instructions in it.
fn put_old(version: Version, to: ReplyTo, event: u16, reason: u8, s: &FlowStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(2);
    m.u16(event);
    m.u16(u16::from(reason));
    m.u16(s.priority);
    m.u16(s.idle_timeout);
    m.u16(s.hard_timeout);
    let at = m.len();
    m.u16(0);
    m.u8(s.table);
    m.pad(1);
    m.u64(s.cookie);
    if to.form == Form::Onf {
        let matching = m.len();
        encode_match(version, &s.matching, m);
        // The length without padding is in the match's own header.
        let len = [m[matching + 2], m[matching + 3]];
        m[at..at + 2].copy_from_slice(&len);
        encode_flow_instructions(version, &s.matching, &s.instructions, m);
    } else {
        put_nx_match(&s.matching, at, m);
        put_actions(version, s, m);
    }
    m.patch_len(start, start);
}

/// A list of actions in all versions: 1.0's form of instructions, later what is applied at once.
fn put_actions(version: Version, s: &FlowStats, m: &mut Vec<u8>) {
    if version == Version::V10 {
        return encode_flow_instructions(version, &s.matching, &s.instructions, m);
    }
    for instruction in &s.instructions {
        if let Instruction::Apply(list) = instruction {
            encode_flow_actions(version, &s.matching, list, m);
        }
    }
}

/// `ofp_flow_update_full`.
fn put14(version: Version, event: u16, reason: u8, s: &FlowStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(2);
    m.u16(event);
    m.u8(s.table);
    m.u8(reason);
    m.u16(s.idle_timeout);
    m.u16(s.hard_timeout);
    m.u16(s.priority);
    m.pad(4);
    m.u64(s.cookie);
    encode_match(version, &s.matching, m);
    encode_flow_instructions(version, &s.matching, &s.instructions, m);
    m.patch_len(start, start);
}
