//! The table of tunnel options (Nicira's, all versions).

use super::begun::begin_exp;
use super::{NX, ReplyTo};
use crate::buf::{Put, Rd, Result};
use crate::{OfError, Request, TlvMap, TlvTableMod, Version};
use flow::{TUN_METADATA_MAX, TUN_METADATAS};

const REPLY: u32 = 26;

/// NXT_TLV_TABLE_MOD.
pub(super) fn decode_mod(mut rd: Rd<'_>) -> Result<Request> {
    let command = rd.u16()?;
    rd.skip(6)?;
    if command > 2 {
        return Err(OfError::TlvBadCommand);
    }
    let mut maps = Vec::new();
    while !rd.is_empty() {
        let map = TlvMap { class: rd.u16()?, kind: rd.u8()?, len: rd.u8()?, index: rd.u16()? };
        rd.skip(2)?;
        if !map.len.is_multiple_of(4) || usize::from(map.len) > TUN_METADATA_MAX {
            return Err(OfError::TlvBadOptionLen);
        }
        if map.index >= u16::from(TUN_METADATAS) {
            return Err(OfError::TlvBadFieldIndex);
        }
        maps.push(map);
    }
    Ok(Request::TlvTableMod(match command {
        0 => TlvTableMod::Add(maps),
        1 => TlvTableMod::Delete(maps),
        _ => TlvTableMod::Clear,
    }))
}

/// NXT_TLV_TABLE_REPLY.
pub(super) fn encode_table(
    version: Version,
    to: ReplyTo,
    space: u32,
    fields: u16,
    maps: &[TlvMap],
) -> Vec<u8> {
    let mut m = begin_exp(version, to.xid, NX, REPLY);
    m.u32(space);
    m.u16(fields);
    m.pad(10);
    for map in maps {
        m.u16(map.class);
        m.u8(map.kind);
        m.u8(map.len);
        m.u16(map.index);
        m.pad(2);
    }
    m
}
