//! Switch configuration, roles, asynchronous configuration.

use super::begun::{begin, begin_exp};
use super::kinds::Kind;
use super::{Form, NX, ONF, ReplyTo};
use crate::buf::{Put, Rd, Result};
use crate::{AsyncConfig, FragHandling, OfError, Request, Role, SwitchConfig, Version};

const INVALID_TTL: u16 = 4;
const NXT_ROLE_REPLY: u32 = 11;
const ONFT_ROLE_STATUS: u32 = 1911;
/// What 1.3's "action" reason covers: action, action set, group, packet-out.
const ACTION_REASONS: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5;

/// SET_CONFIG.
pub(super) fn decode_switch_config(version: Version, mut rd: Rd<'_>) -> Result<Request> {
    let flags = rd.u16()?;
    let miss_send_len = rd.u16()?;
    let ttl = version < Version::V13;
    let known = if ttl { 3 | INVALID_TTL } else { 3 };
    if flags & !known != 0 {
        return Err(OfError::SwitchConfigBadFlags);
    }
    let frag = match flags & 3 {
        0 => FragHandling::Normal,
        1 => FragHandling::Drop,
        2 => FragHandling::Reassemble,
        _ => FragHandling::NxMatch,
    };
    let invalid_ttl_to_controller = flags & INVALID_TTL != 0;
    if !rd.is_empty() {
        return Err(OfError::BadLen);
    }
    Ok(Request::SetConfig(SwitchConfig { frag, miss_send_len, invalid_ttl_to_controller }))
}

/// GET_CONFIG_REPLY.
pub(super) fn encode_switch_config(version: Version, xid: u32, c: &SwitchConfig) -> Vec<u8> {
    let mut m = begin(version, Kind::GetConfigReply, xid);
    let ttl = version < Version::V13 && c.invalid_ttl_to_controller;
    m.u16(c.frag as u16 | if ttl { INVALID_TTL } else { 0 });
    m.u16(c.miss_send_len);
    m
}

/// ROLE_REQUEST.
pub(super) fn decode_role(mut rd: Rd<'_>) -> Result<Request> {
    let role = match rd.u32()? {
        0 => Role::NoChange,
        1 => Role::Equal,
        2 => Role::Primary,
        3 => Role::Secondary,
        _ => return Err(OfError::RoleBadRole),
    };
    rd.skip(4)?;
    let generation = rd.u64()?;
    if !rd.is_empty() {
        return Err(OfError::BadLen);
    }
    let ordered = matches!(role, Role::Primary | Role::Secondary);
    Ok(Request::Role { role, generation: ordered.then_some(generation) })
}

/// NXT_ROLE_REQUEST: other, master, slave.
pub(super) fn decode_role_nx(mut rd: Rd<'_>) -> Result<Request> {
    let role = match rd.u32()? {
        0 => Role::Equal,
        1 => Role::Primary,
        2 => Role::Secondary,
        _ => return Err(OfError::RoleBadRole),
    };
    if rd.is_empty() { Ok(Request::Role { role, generation: None }) } else { Err(OfError::BadLen) }
}

/// ROLE_REPLY, or Nicira's.
pub(super) fn encode_role(version: Version, to: ReplyTo, role: Role, generation: u64) -> Vec<u8> {
    if to.form == Form::Nicira {
        let mut m = begin_exp(version, to.xid, NX, NXT_ROLE_REPLY);
        m.u32((role as u32).saturating_sub(1));
        return m;
    }
    let mut m = begin(version, Kind::RoleReply, to.xid);
    m.u32(role as u32);
    m.pad(4);
    m.u64(generation);
    m
}

/// ROLE_STATUS (1.4+, ONF's extension in 1.3): another controller became primary, ...
pub(super) fn encode_role_status(
    version: Version,
    xid: u32,
    role: Role,
    reason: u8,
    generation: u64,
) -> Vec<u8> {
    let mut m = match version {
        Version::V13 => begin_exp(version, xid, ONF, ONFT_ROLE_STATUS),
        _ => begin(version, Kind::RoleStatus, xid),
    };
    m.u32(role as u32);
    m.u8(reason);
    m.pad(3);
    m.u64(generation);
    m
}

/// SET_ASYNC.
pub(super) fn decode_async(version: Version, rd: Rd<'_>) -> Result<Request> {
    if version >= Version::V14 { decode_async14(version, rd) } else { decode_async13(rd) }
}

/// The fixed layout: packet-in, port-status, flow-removed, each for primary and for secondary.
pub(super) fn decode_async13(mut rd: Rd<'_>) -> Result<Request> {
    let mut pair = || Ok([rd.u32()?, rd.u32()?]);
    let (packet_in, port_status, flow_removed) = (pair()?, pair()?, pair()?);
    if !rd.is_empty() {
        return Err(OfError::BadLen);
    }
    let wants = AsyncConfig {
        packet_in: packet_in.map(widen),
        port_status,
        flow_removed,
        role_status: [0; 2],
        table_status: [0; 2],
        requestforward: [0; 2],
    };
    Ok(Request::SetAsync { wants, given: 0b11_1111 })
}

/// A packet-in mask in 1.4's reasons.
fn widen(mask: u32) -> u32 {
    if mask & 2 != 0 { mask | ACTION_REASONS } else { mask & !ACTION_REASONS }
}

/// Types of properties from this one on are experimenters', of SET_ASYNC alone.
const ASYNC_EXPERIMENTER: u16 = 0xfffe;
/// Reasons for packet-ins before 1.4.
const PACKET_IN_REASONS_10: u32 = 0b111;

/// The property layout (also NXT_SET_ASYNC_CONFIG2). What properties are missing for stays as it
/// was.
///
/// Errors: [`OfError::AsyncInvalid`] for a reason that does not exist,
/// [`OfError::AsyncUnsupported`] for an unknown property.
pub(super) fn decode_async14(version: Version, mut rd: Rd<'_>) -> Result<Request> {
    let (mut wants, mut given) = (NONE, 0);
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        let (list, reasons) = match kind / 2 {
            0 if version < Version::V14 => (&mut wants.packet_in, PACKET_IN_REASONS_10),
            0 => (&mut wants.packet_in, 0b11_1111),
            1 => (&mut wants.port_status, 0b111),
            2 => (&mut wants.flow_removed, 0b11_1111),
            3 => (&mut wants.role_status, 0b111),
            4 => (&mut wants.table_status, 0b1_1000),
            5 => (&mut wants.requestforward, 0b11),
            _ => {
                return Err(match body.unknown_property(kind, ASYNC_EXPERIMENTER) {
                    OfError::PropBadType => OfError::AsyncUnsupported,
                    error => error,
                });
            }
        };
        let mask = body.only_u32()?;
        if mask & !reasons != 0 {
            return Err(OfError::AsyncInvalid);
        }
        // Even types are for the secondary role.
        list[usize::from(kind % 2 == 0)] = mask;
        given |= 1 << kind;
    }
    if version < Version::V14 {
        wants.packet_in = wants.packet_in.map(widen);
    }
    Ok(Request::SetAsync { wants, given })
}

const NONE: AsyncConfig = AsyncConfig {
    packet_in: [0; 2],
    port_status: [0; 2],
    flow_removed: [0; 2],
    role_status: [0; 2],
    table_status: [0; 2],
    requestforward: [0; 2],
};

/// GET_ASYNC_REPLY.
pub(super) fn encode_async(version: Version, xid: u32, c: &AsyncConfig) -> Vec<u8> {
    let mut m = begin(version, Kind::GetAsyncReply, xid);
    if version < Version::V14 {
        c.packet_in.iter().for_each(|mask| m.u32(mask & 7));
        c.port_status.iter().for_each(|mask| m.u32(*mask));
        c.flow_removed.iter().for_each(|mask| m.u32(mask & 0xf));
        return m;
    }
    let lists = [
        c.packet_in,
        c.port_status,
        c.flow_removed,
        c.role_status,
        c.table_status,
        c.requestforward,
    ];
    for (i, [primary, secondary]) in (0u16..).zip(lists) {
        m.property(2 * i, |m| m.u32(secondary));
        m.property(2 * i + 1, |m| m.u32(primary));
    }
    m
}
