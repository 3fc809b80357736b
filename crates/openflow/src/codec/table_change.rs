//! Table features requests with a body: what a controller wants tables to be, and whether tables
//! here can be that. ovs-vswitchd's rules, in its order.

use crate::buf::{Rd, Result};
use crate::oxm::OxmHeader;
use crate::{OfError, TableCommand, TableFeatures, Version};
use flow::Field;

/// Bytes of a table before its properties.
const TABLE_LEN: usize = 64;
const EXPERIMENTER: u16 = 0xffff;
/// Properties that must be there, as bits by number: all for hits; those for misses are the same
/// unless they are given.
const REQUIRED: u32 = 0x5555;

/// The tables of one message, up to the first that cannot be read.
pub(super) fn decode(version: Version, mut rd: Rd<'_>) -> Vec<Result<TableFeatures>> {
    let mut tables = Vec::new();
    while !rd.is_empty() && tables.last().is_none_or(Result::is_ok) {
        tables.push(decode_table(version, &mut rd));
    }
    tables
}

fn decode_table(version: Version, rd: &mut Rd<'_>) -> Result<TableFeatures> {
    let cut = |_| OfError::PropBadLen;
    let len = usize::from(Rd(rd.0).u16().map_err(cut)?);
    if len < TABLE_LEN || !len.is_multiple_of(8) {
        return Err(OfError::PropBadLen);
    }
    let mut rd = Rd(rd.bytes(len).map_err(cut)?);
    rd.skip(2)?;
    let (table, command) = (rd.u8()?, rd.u8()?);
    let command = if version >= Version::V15 { command } else { 0 };
    let command = command_from(command).ok_or(OfError::TableFeaturesBadCommand)?;
    if table == crate::TABLE_ALL {
        return Err(OfError::TableFeaturesBadTable);
    }
    rd.skip(4)?;
    let name = rd.array::<32>()?;
    rd.skip(16)?; // metadata: all of it can be matched and written
    let capabilities = rd.u32()?;
    let capabilities = if version >= Version::V14 { capabilities } else { 0 };
    let max_entries = rd.u32()?;
    let reach = decode_properties(version, table, rd)?;
    Ok(TableFeatures { table, command, name: text(&name)?, capabilities, max_entries, reach })
}

fn command_from(number: u8) -> Option<TableCommand> {
    use TableCommand::*;
    [Replace, Modify, Enable, Disable].get(usize::from(number)).copied()
}

/// A name ends at its first zero. One that is no text cannot be shown, and is refused.
fn text(name: &[u8; 32]) -> Result<String> {
    let name = name[..TableFeatures::NAME_BYTES_MAX].split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8(name.to_vec()).map_err(|_| OfError::TableFeaturesEperm)
}

/// Reads the properties of a table: [`TableFeatures::reach`].
fn decode_properties(version: Version, table: u8, mut rd: Rd<'_>) -> Result<Option<u8>> {
    let required = version < Version::V15 || !rd.is_empty();
    let (mut seen, mut able, mut reach) = (0u32, true, table);
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        if kind < 32 {
            if seen & 1 << kind != 0 {
                return Err(OfError::TableFeaturesBadFeatures);
            }
            seen |= 1 << kind;
        }
        match kind {
            0 | 1 => reach = reach.max(instructions(table, body)?),
            2 | 3 => {
                let tables = body.rest();
                if tables.contains(&crate::TABLE_ALL) {
                    return Err(OfError::PropBadValue);
                }
                able &= tables.iter().all(|t| *t > table);
                reach = tables.iter().copied().fold(reach, u8::max);
            }
            // Any action: tables can do more than all that there are numbers for.
            4..=7 => ids(body, |_| Ok(()))?,
            8 => able &= fields(body, true, |f, masked| !masked || f.is_none_or(Field::maskable))?,
            10 => able &= fields(body, false, |_, _| true)?,
            12..=15 => able &= fields(body, false, |f, _| f.is_some_and(Field::writable))?,
            _ => return Err(body.unknown_property(kind, EXPERIMENTER)),
        }
    }
    match required && seen & REQUIRED != REQUIRED {
        true => Err(OfError::TableFeaturesBadFeatures),
        false => Ok(able.then_some(reach)),
    }
}

/// The table that instructions ask for: goto leads to the next one at least.
fn instructions(table: u8, list: Rd<'_>) -> Result<u8> {
    let mut reach = table;
    ids(list, |kind| match kind {
        1 => {
            reach = table + 1;
            Ok(())
        }
        2..=6 => Ok(()),
        _ => Err(OfError::InstUnknown),
    })?;
    Ok(reach)
}

/// Calls `each` for the type of every instruction or action, each with its length and no padding.
fn ids(mut list: Rd<'_>, mut each: impl FnMut(u16) -> Result<()>) -> Result<()> {
    let cut = |_| OfError::PropBadLen;
    while !list.is_empty() {
        let (kind, len) = (list.u16().map_err(cut)?, list.u16().map_err(cut)?);
        let body = usize::from(len).checked_sub(4).ok_or(OfError::PropBadLen)?;
        list.skip(body).map_err(cut)?;
        each(kind)?;
    }
    Ok(())
}

/// Checks that every field of a list, which may have `masks`, is an `able` one. `able` gets None
/// for a field that the switch's own replies name and that no flow has.
fn fields(list: Rd<'_>, masks: bool, able: impl Fn(Option<Field>, bool) -> bool) -> Result<bool> {
    let (mut rest, mut all, mut masked) = (list.0, true, false);
    while !rest.is_empty() {
        let header = OxmHeader::parse(rest)?;
        let field = header.oxm().map(|oxm| oxm.field);
        if field.is_none() && !header.is_private() {
            return Err(OfError::MatchBadField);
        }
        all &= able(field, header.masked);
        masked |= header.masked;
        rest = &rest[header.size..];
    }
    if masked && !masks { Err(OfError::MatchBadMask) } else { Ok(all) }
}
