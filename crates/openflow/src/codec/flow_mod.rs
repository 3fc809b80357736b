//! Flow-mod in all its forms, and flow-removed.

use super::begun::{begin, begin_exp};
use super::kinds::Kind;
use super::port::check_port;
use super::{Dialect, NX, oxs};
use crate::buf::{Put, Rd, Result};
use crate::instructions::decode_instructions;
use crate::matching::{NxMatch, decode_match, decode_match10, decode_nx_match};
use crate::matching::{encode_match, encode_match10, encode_nx_match};
use crate::oxm::port_from_10;
use crate::{FlowMod, FlowModCommand, FlowRemoved, FlowStats, GROUP_ANY, Match, OfError, Removed};
use crate::{Request, TABLE_ALL, Version, flow_flag, port};

const NXT_FLOW_REMOVED: u32 = 14;
/// 1.0's OFPFF_EMERG.
const EMERGENCY: u16 = 4;

/// OFPT_FLOW_MOD.
pub(super) fn decode(dialect: Dialect, rd: Rd<'_>) -> Result<Request> {
    let fm = if dialect.version == Version::V10 {
        decode10(dialect, rd)?
    } else {
        decode11(dialect.version, rd)?
    };
    Ok(Request::FlowMod(fm))
}

fn command(n: u16) -> Result<FlowModCommand> {
    Ok(match n {
        0 => FlowModCommand::Add,
        1 => FlowModCommand::Modify,
        2 => FlowModCommand::ModifyStrict,
        3 => FlowModCommand::Delete,
        4 => FlowModCommand::DeleteStrict,
        _ => return Err(OfError::FlowBadCommand),
    })
}

/// True if the command takes `out_port` and `out_group` into account.
fn deletes(command: FlowModCommand) -> bool {
    matches!(command, FlowModCommand::Delete | FlowModCommand::DeleteStrict)
}

/// 1.0's command and the table in its upper byte, if that was agreed on. Without it an "add" goes
/// to table 0 and the others look at all tables.
fn command10(dialect: Dialect, n: u16) -> Result<(FlowModCommand, u8)> {
    if dialect.table_id {
        return Ok((command(n & 0xff)?, (n >> 8) as u8));
    }
    let command = command(n)?;
    Ok((command, if command == FlowModCommand::Add { 0 } else { TABLE_ALL }))
}

/// 1.0's flags: "add" always resets the counters there.
fn flags10(command: FlowModCommand, flags: u16, timeouts: [u16; 2]) -> Result<u16> {
    if flags & !(flow_flag::SEND_FLOW_REM | flow_flag::CHECK_OVERLAP | EMERGENCY) != 0 {
        return Err(OfError::FlowBadFlags);
    }
    if flags & EMERGENCY != 0 {
        // There is no emergency flow table: the specification's answer is "all tables full", and
        // one of its own for flows of that table with timeouts.
        let timed = timeouts != [0; 2];
        return Err(if timed { OfError::FlowBadEmergTimeout } else { OfError::FlowTableFull });
    }
    let reset = if command == FlowModCommand::Add { flow_flag::RESET_COUNTS } else { 0 };
    Ok(flags | reset)
}

/// What 1.0's flow-mod and Nicira's have in common, in wire order.
struct Fixed10 {
    command: u16,
    idle_timeout: u16,
    hard_timeout: u16,
    priority: u16,
    buffer_id: u32,
    out_port: u32,
    flags: u16,
}

impl Fixed10 {
    fn read(rd: &mut Rd<'_>) -> Result<Fixed10> {
        Ok(Fixed10 {
            command: rd.u16()?,
            idle_timeout: rd.u16()?,
            hard_timeout: rd.u16()?,
            priority: rd.u16()?,
            buffer_id: rd.u32()?,
            out_port: port_from_10(rd.u16()?),
            flags: rd.u16()?,
        })
    }

    fn flow_mod(
        self,
        dialect: Dialect,
        cookie: u64,
        nx: NxMatch,
        actions: &[u8],
    ) -> Result<FlowMod> {
        let (command, table) = command10(dialect, self.command)?;
        if command == FlowModCommand::Add && nx.cookie_mask != 0 {
            return Err(OfError::NxmInvalid);
        }
        let instructions = decode_instructions(Version::V10, actions)?;
        let timeouts = [self.idle_timeout, self.hard_timeout];
        Ok(FlowMod {
            command,
            table,
            priority: self.priority,
            matching: nx.matching,
            cookie,
            cookie_old: nx.cookie,
            cookie_mask: nx.cookie_mask,
            modify_cookie: cookie != u64::MAX,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            importance: 0,
            flags: flags10(command, self.flags, timeouts)?,
            buffer_id: self.buffer_id,
            out_port: if deletes(command) { self.out_port } else { port::ANY },
            out_group: GROUP_ANY,
            instructions,
        })
    }
}

fn decode10(dialect: Dialect, mut rd: Rd<'_>) -> Result<FlowMod> {
    let raw = rd.array()?;
    let cookie = rd.u64()?;
    let mut fixed = Fixed10::read(&mut rd)?;
    // "An exact match always has the highest priority" (1.0 section 3.4).
    let wildcards = u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]);
    if wildcards & 0x3f_ffff == 0 {
        fixed.priority = u16::MAX;
    }
    let nx = NxMatch { matching: decode_match10(&raw), ..NxMatch::default() };
    fixed.flow_mod(dialect, cookie, nx, rd.rest())
}

/// NXT_FLOW_MOD.
pub(super) fn decode_nx(dialect: Dialect, mut rd: Rd<'_>) -> Result<Request> {
    let cookie = rd.u64()?;
    let fixed = Fixed10::read(&mut rd)?;
    let len = usize::from(rd.u16()?);
    rd.skip(6)?;
    let nx = decode_nx_match(rd.padded(len).map_err(|_| OfError::MatchBadLen)?)?;
    Ok(Request::FlowMod(fixed.flow_mod(dialect, cookie, nx, rd.rest())?))
}

/// The flags that a version has.
pub(super) fn known_flags(version: Version) -> u16 {
    use flow_flag::{CHECK_OVERLAP, NO_BYT_COUNTS, NO_PKT_COUNTS, RESET_COUNTS, SEND_FLOW_REM};
    match version {
        Version::V10 | Version::V11 => SEND_FLOW_REM | CHECK_OVERLAP,
        Version::V12 => SEND_FLOW_REM | CHECK_OVERLAP | RESET_COUNTS,
        _ => SEND_FLOW_REM | CHECK_OVERLAP | RESET_COUNTS | NO_PKT_COUNTS | NO_BYT_COUNTS,
    }
}

fn flags11(version: Version, command: FlowModCommand, flags: u16) -> Result<u16> {
    if flags & !known_flags(version) != 0 {
        return Err(OfError::FlowBadFlags);
    }
    let implied = version == Version::V11 && command == FlowModCommand::Add;
    Ok(if implied { flags | flow_flag::RESET_COUNTS } else { flags })
}

fn decode11(version: Version, mut rd: Rd<'_>) -> Result<FlowMod> {
    let (wire_cookie, wire_mask) = (rd.u64()?, rd.u64()?);
    let table = rd.u8()?;
    let wire_command = rd.u8()?;
    let (idle_timeout, hard_timeout, priority) = (rd.u16()?, rd.u16()?, rd.u16()?);
    let buffer_id = rd.u32()?;
    let (out_port, out_group) = (rd.u32()?, rd.u32()?);
    let wire_flags = rd.u16()?;
    let importance = rd.u16()?;
    let (matching, used) = decode_match(version, rd.0)?;
    rd.skip(used)?;
    let known = command(u16::from(wire_command));
    // 1.1 has no "all tables"; later versions have it for deletes.
    if table == TABLE_ALL && (version == Version::V11 || !known.is_ok_and(deletes)) {
        return Err(OfError::FlowBadTableId);
    }
    check_port(out_port, OfError::ActBadOutPort)?;
    let command = known?;
    let instructions = decode_instructions(version, rd.rest())?;
    let flags = flags11(version, command, wire_flags)?;
    let select = deletes(command);
    let add = command == FlowModCommand::Add;
    // 1.1's modify without a cookie mask adds what it does not find.
    let adds = add || version == Version::V11 && !select && wire_mask == 0;
    Ok(FlowMod {
        command,
        table,
        priority,
        matching,
        cookie: if adds { wire_cookie } else { u64::MAX },
        cookie_old: if add { 0 } else { wire_cookie },
        cookie_mask: if add { 0 } else { wire_mask },
        modify_cookie: false,
        idle_timeout,
        hard_timeout,
        importance: if version >= Version::V14 { importance } else { 0 },
        flags,
        buffer_id,
        out_port: if select { out_port } else { port::ANY },
        out_group: if select { out_group } else { GROUP_ANY },
        instructions,
    })
}

/// FLOW_REMOVED, or Nicira's for a 1.0 connection with NXM.
pub(super) fn encode_removed(dialect: Dialect, xid: u32, r: &FlowRemoved) -> Vec<u8> {
    match dialect.version {
        Version::V10 if dialect.nxm => removed_nx(xid, r),
        Version::V10 => removed10(xid, r),
        Version::V15 => removed15(xid, r),
        version => removed11(version, xid, r),
    }
}

/// The reason's number: eviction exists in 1.4+ only, meter-delete since 1.4.
pub(super) fn removed_reason(version: Version, reason: Removed) -> u8 {
    match reason {
        Removed::GroupDelete if version == Version::V10 => Removed::Delete as u8,
        Removed::MeterDelete | Removed::Eviction if version < Version::V14 => Removed::Delete as u8,
        _ => reason as u8,
    }
}

fn removed10(xid: u32, r: &FlowRemoved) -> Vec<u8> {
    let s = &r.stats;
    let mut m = begin(Version::V10, Kind::FlowRemoved, xid);
    m.raw(&encode_match10(&s.matching));
    m.u64(s.cookie);
    m.u16(s.priority);
    m.u8(removed_reason(Version::V10, r.reason));
    m.pad(1);
    m.duration(s.duration_ns);
    m.u16(s.idle_timeout);
    m.pad(2);
    m.u64(s.packets);
    m.u64(s.bytes);
    m
}

fn removed_nx(xid: u32, r: &FlowRemoved) -> Vec<u8> {
    let s = &r.stats;
    let mut m = begin_exp(Version::V10, xid, NX, NXT_FLOW_REMOVED);
    m.u64(s.cookie);
    m.u16(s.priority);
    m.u8(removed_reason(Version::V10, r.reason));
    m.u8(s.table.wrapping_add(1)); // 0: unknown
    m.duration(s.duration_ns);
    m.u16(s.idle_timeout);
    let at = m.len();
    m.u16(0);
    m.u64(s.packets);
    m.u64(s.bytes);
    put_nx_match(&s.matching, at, &mut m);
    m
}

/// Writes a Nicira match (padded) and stores its length at `at`.
pub(super) fn put_nx_match(matching: &Match, at: usize, m: &mut Vec<u8>) {
    let nx = NxMatch { matching: matching.clone(), ..NxMatch::default() };
    let len = encode_nx_match(&nx, m) as u16;
    m[at..at + 2].copy_from_slice(&len.to_be_bytes());
}

fn removed11(version: Version, xid: u32, r: &FlowRemoved) -> Vec<u8> {
    let s = &r.stats;
    let mut m = begin(version, Kind::FlowRemoved, xid);
    m.u64(s.cookie);
    m.u16(s.priority);
    m.u8(removed_reason(version, r.reason));
    m.u8(s.table);
    m.duration(s.duration_ns);
    m.u16(s.idle_timeout);
    m.u16(if version >= Version::V12 { s.hard_timeout } else { 0 });
    m.u64(s.packets);
    m.u64(s.bytes);
    encode_match(version, &s.matching, &mut m);
    m
}

fn removed15(xid: u32, r: &FlowRemoved) -> Vec<u8> {
    let s: &FlowStats = &r.stats;
    let mut m = begin(Version::V15, Kind::FlowRemoved, xid);
    m.u8(s.table);
    m.u8(removed_reason(Version::V15, r.reason));
    m.u16(s.priority);
    m.u16(s.idle_timeout);
    m.u16(s.hard_timeout);
    m.u64(s.cookie);
    encode_match(Version::V15, &s.matching, &mut m);
    oxs::put(&oxs::Stats::of_flow(s), &mut m);
    m
}
