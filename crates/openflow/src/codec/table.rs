//! Tables: table-mod, statistics, descriptions.

use super::begun::begin;
use super::kinds::Kind;
use crate::buf::{Put, Rd, Result};
use crate::{OfError, Request, TableStats, Version};

/// Every wildcard of 1.0's match.
const ALL_WILDCARDS10: u32 = 0x3f_ffff;
/// Every field of 1.1's match: `OFPFMF_*` without `OFPFMF_TYPE`.
const FIELDS11: u32 = 0xfbff;
/// Every action of 1.1, by number, but copying TTLs.
const ACTIONS11: u32 = 0x01ff_e7ff;

/// TABLE_MOD. 1.4's eviction flags cannot be chosen and are passed over, and so are bits of the
/// configuration that the version has no meaning for.
pub(super) fn decode_mod(version: Version, mut rd: Rd<'_>) -> Result<Request> {
    let table = rd.u8()?;
    rd.skip(3)?;
    let known = match version {
        Version::V10 | Version::V11 | Version::V12 => MISS,
        Version::V13 => 0,
        Version::V14 | Version::V15 => TableStats::EVICTION | TableStats::VACANCY,
    };
    let config = rd.u32()? & known;
    let mut vacancy = None;
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        match kind {
            VACANCY => vacancy = Some(decode_vacancy(body)?),
            _ if kind == EVICTION.0 => drop(body.only_u32()?),
            _ => return Err(OfError::BadType),
        }
    }
    Ok(Request::TableMod { table, config, vacancy })
}

/// Thresholds in percent: down, up. The share that is free now is the switch's to say.
fn decode_vacancy(mut body: Rd<'_>) -> Result<[u8; 2]> {
    let [down, up, now, _] = body.array::<4>().map_err(|_| OfError::PropBadLen)?;
    if !body.is_empty() {
        return Err(OfError::PropBadLen);
    }
    if down > up || up > 100 || now != 0 {
        return Err(OfError::PropBadValue);
    }
    Ok([down, up])
}

/// One table of a table-statistics reply; `last`: the highest one, from which no goto leads on.
pub(super) fn put_stats(version: Version, t: &TableStats, last: u8, m: &mut Vec<u8>) {
    m.u8(t.table);
    match version {
        Version::V10 => {
            m.pad(3);
            m.text(&t.name, 32);
            m.u32(ALL_WILDCARDS10);
            m.u32(t.max_entries);
        }
        Version::V11 => {
            m.pad(7);
            m.text(&t.name, 32);
            // Wildcards, match; instructions, actions, configuration.
            [
                FIELDS11,
                FIELDS11,
                instructions(t, last),
                ACTIONS11,
                ACTIONS11,
                t.config & MISS,
                t.max_entries,
            ]
            .iter()
            .for_each(|n| m.u32(*n));
        }
        Version::V12 => {
            m.pad(7);
            m.text(&t.name, 32);
            put_capabilities12(t, last, m);
        }
        _ => m.pad(3),
    }
    m.u32(t.active);
    m.u64(t.lookups);
    m.u64(t.matched);
}

/// Instructions as bits by number: goto (unless there is nowhere to go) to clear-actions.
fn instructions(t: &TableStats, last: u8) -> u32 {
    if t.table < last { 0x3e } else { 0x3c }
}

/// 1.2's list of what a table can match and do.
fn put_capabilities12(t: &TableStats, last: u8, m: &mut Vec<u8>) {
    const FIELDS: u64 = 0xf_ffff_ffff;
    /// All but the Ethernet type and the IP protocol.
    const WRITABLE: u64 = FIELDS & !(1 << 5 | 1 << 10);
    m.u64(FIELDS); // match
    m.u64(FIELDS); // wildcards
    m.u32(0x03ff_8001); // write actions
    m.u32(0x03ff_8001); // apply actions
    m.u64(WRITABLE); // write set-fields
    m.u64(WRITABLE); // apply set-fields
    m.u64(u64::MAX); // metadata match
    m.u64(u64::MAX); // metadata write
    m.u32(instructions(t, last));
    m.u32(t.config & MISS);
    m.u32(t.max_entries);
}

/// `OFPTMPT_EVICTION` and what it says: by other means, importance, lifetime.
const EVICTION: (u16, u32) = (2, 7);
/// `OFPTMPT_VACANCY`.
const VACANCY: u16 = 3;
/// `OFPTC_*` bits of the versions before 1.4.
pub(super) const MISS: u32 = 3;

/// TABLE_STATUS (1.4+).
pub(super) fn encode_status(version: Version, xid: u32, more: bool, t: &TableStats) -> Vec<u8> {
    const VACANCY_DOWN: u8 = 3;
    const VACANCY_UP: u8 = 4;
    let mut m = begin(version, Kind::TableStatus, xid);
    m.u8(if more { VACANCY_UP } else { VACANCY_DOWN });
    m.pad(7);
    put_desc(t, &mut m);
    m
}

/// One table of a table-description reply (1.4+).
pub(super) fn put_desc(t: &TableStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(2);
    m.u8(t.table);
    m.pad(1);
    m.u32(t.config & !MISS);
    m.property(EVICTION.0, |m| m.u32(EVICTION.1));
    if let Some([down, up]) = t.vacancy {
        m.property(VACANCY, |m| [down, up, t.free_percent(), 0].iter().for_each(|n| m.u8(*n)));
    }
    m.patch_len(start, start);
}
