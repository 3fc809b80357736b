//! Instructions from and to the wire.
//!
//! Internally instructions are kept in the order of execution: meter, apply-actions, clear-actions,
//! write-actions, write-metadata, goto-table (OpenFlow 1.3.5, section 5.9). 1.0's action list is an
//! apply-actions with, maybe, Nicira's write-metadata behind it.

use crate::action_types::nxast;
use crate::actions::{Item, ListOf, decode_actions, decode_items, only_actions, only_actions_in};
use crate::actions_out::encode_flow_actions;
use crate::fields::Bytes;
use crate::fields_out::Put;
use crate::oxm::port_to_10;
use crate::{Action, Instruction, Match, OfError, Version, port};

/// `OFPIT_*`.
mod kind {
    pub const GOTO_TABLE: u16 = 1;
    pub const WRITE_METADATA: u16 = 2;
    pub const WRITE_ACTIONS: u16 = 3;
    pub const APPLY_ACTIONS: u16 = 4;
    pub const CLEAR_ACTIONS: u16 = 5;
    pub const METER: u16 = 6;
    pub const EXPERIMENTER: u16 = 0xffff;
}

/// Reads the instructions (1.1 and later) or the actions (1.0) that fill `buf`.
///
/// Errors: `InstBadLen`, `InstUnknown`, `InstBadExperimenter`, `InstDup`, those of
/// [`decode_actions`]; `ActBadType` for an action that an action set cannot hold,
/// `ActUnsupportedOrder` for 1.0 actions behind write-metadata.
pub fn decode_instructions(version: Version, buf: &[u8]) -> Result<Vec<Instruction>, OfError> {
    let list = match version {
        Version::V10 => decode10(buf)?,
        _ => decode11(version, buf)?,
    };
    let conjunction = |i: &Instruction| match i {
        Instruction::Apply(list) => list.iter().any(|a| matches!(a, Action::Conjunction { .. })),
        _ => false,
    };
    if list.len() > 1 && list.iter().any(conjunction) {
        return Err(OfError::ActBadConjunction);
    }
    Ok(list)
}

fn decode10(buf: &[u8]) -> Result<Vec<Instruction>, OfError> {
    let mut actions = decode_items(Version::V10, buf, 0)?;
    let mut list = vec![];
    if let Some(at) = actions.iter().position(|i| matches!(i, Item::WriteMetadata { .. })) {
        if at + 1 != actions.len() {
            return Err(OfError::ActUnsupportedOrder);
        }
        if let Some(Item::WriteMetadata { value, mask }) = actions.pop() {
            list.push(Instruction::WriteMetadata { value, mask });
        }
    }
    if !actions.is_empty() {
        list.insert(0, Instruction::Apply(only_actions(actions)?));
    }
    Ok(list)
}

fn decode11(version: Version, buf: &[u8]) -> Result<Vec<Instruction>, OfError> {
    if !buf.len().is_multiple_of(8) {
        return Err(OfError::InstBadLen);
    }
    // By place in the order of execution.
    let mut found: [Option<&[u8]>; 6] = [None; 6];
    let mut rest = buf;
    while !rest.is_empty() {
        let (kind, len) = (Bytes(rest).u16(0), usize::from(Bytes(rest).u16(2)));
        if len < 8 || len % 8 != 0 || len > rest.len() {
            return Err(OfError::InstBadLen);
        }
        let (instruction, tail) = rest.split_at(len);
        let place = &mut found[place(version, kind, len)?];
        if place.replace(instruction).is_some() {
            return Err(OfError::InstDup);
        }
        rest = tail;
    }
    let mut list = vec![];
    for b in found.into_iter().flatten() {
        list.push(decode_one(version, Bytes(b))?);
    }
    // An empty list of actions to apply does nothing and is not kept.
    list.retain(|i| !matches!(i, Instruction::Apply(a) if a.is_empty()));
    Ok(list)
}

/// Where an instruction of this type stands in the order of execution; checks its length.
fn place(version: Version, kind: u16, len: usize) -> Result<usize, OfError> {
    let (place, fits) = match kind {
        kind::EXPERIMENTER => return Err(OfError::InstBadExperimenter),
        // From 1.5 on a meter is an action.
        kind::METER if version < Version::V15 => (0, len == 8),
        kind::APPLY_ACTIONS => (1, true),
        kind::CLEAR_ACTIONS => (2, len == 8),
        kind::WRITE_ACTIONS => (3, true),
        kind::WRITE_METADATA => (4, len == 24),
        kind::GOTO_TABLE => (5, len == 8),
        _ => return Err(OfError::InstUnknown),
    };
    if fits { Ok(place) } else { Err(OfError::InstBadLen) }
}

fn decode_one(version: Version, b: Bytes) -> Result<Instruction, OfError> {
    Ok(match b.u16(0) {
        kind::METER => Instruction::Meter(b.u32(4)),
        kind::APPLY_ACTIONS => Instruction::Apply(decode_actions(version, b.from(8))?),
        kind::CLEAR_ACTIONS => Instruction::Clear,
        kind::WRITE_ACTIONS => {
            let items = decode_items(version, b.from(8), 0)?;
            let list = only_actions_in(items, ListOf::Set)?;
            if !list.iter().all(fits_action_set) {
                return Err(OfError::ActBadType);
            }
            Instruction::Write(list)
        }
        kind::WRITE_METADATA => Instruction::WriteMetadata { value: b.u64(8), mask: b.u64(16) },
        _ => Instruction::Goto(b.u8(4)),
    })
}

/// True if an action set may hold the action.
fn fits_action_set(action: &Action) -> bool {
    use Action::*;
    match action {
        Output { trunc, .. } => *trunc == 0,
        // An output to CONTROLLER; Nicira's controller action is none.
        Controller { reason, id, userdata, pause, meter, .. } => {
            let plain = userdata.is_empty() && !pause && meter.is_none();
            plain && *id == 0 && *reason == crate::Reason::Action
        }
        OutputReg { .. } | Enqueue { .. } | PopQueue | Push(_) | Pop(_) | Note(_) | Exit => false,
        Learn(_) | Bundle(_) | Test(_) => false,
        Clone(_) | FinTimeout { .. } | Conjunction { .. } | Multipath { .. } => false,
        Sample { .. } | Meter(_) | DeleteField(_) | Nat(_) | CheckPktLarger { .. } => false,
        _ => true,
    }
}

/// Writes instructions (1.1 and later) or actions (1.0) of a flow that matches anything.
pub fn encode_instructions(version: Version, list: &[Instruction], out: &mut Vec<u8>) {
    encode_flow_instructions(version, &Match::default(), list, out);
}

/// Writes a flow's instructions (1.1 and later) or actions (1.0). The match decides how 1.0's VLAN
/// and L4 port actions look in later versions.
///
/// 1.0 has goto-table as a resubmission and write-metadata as an action of Nicira's; clear-actions,
/// write-actions and meters are left out there. A meter is an instruction in 1.3 and 1.4 and the
/// first action in 1.5.
pub fn encode_flow_instructions(
    version: Version,
    m: &Match,
    list: &[Instruction],
    out: &mut Vec<u8>,
) {
    match version {
        Version::V10 => list.iter().for_each(|i| put10(m, i, out)),
        Version::V15 => put_metered(version, m, list, out),
        Version::V13 | Version::V14 => {
            if let Some(id) = leading_meter(list) {
                put(kind::METER, out, |out| out.extend(id.to_be_bytes()));
            }
            list.iter().for_each(|i| put11(version, m, i, out));
        }
        _ => list.iter().for_each(|i| put11(version, m, i, out)),
    }
}

/// The meter of the instructions, or of the first action (1.5).
fn leading_meter(list: &[Instruction]) -> Option<u32> {
    list.iter().find_map(|i| match i {
        Instruction::Meter(id) => Some(*id),
        Instruction::Apply(actions) => match actions.first() {
            Some(Action::Meter(id)) => Some(*id),
            _ => None,
        },
        _ => None,
    })
}

/// Appends an instruction and sets its length, padded to 8.
fn put(kind: u16, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_be_bytes());
    out.extend([0; 2]);
    fill(out);
    let len = (out.len() - start).next_multiple_of(8);
    out.resize(start + len, 0);
    out[start + 2..start + 4].copy_from_slice(&(len as u16).to_be_bytes());
}

/// 1.5: a meter instruction becomes the first of the actions to apply.
fn put_metered(version: Version, m: &Match, list: &[Instruction], out: &mut Vec<u8>) {
    let meter = list.iter().find_map(|i| match i {
        Instruction::Meter(id) => Some(Action::Meter(*id)),
        _ => None,
    });
    let applied = list.iter().any(|i| matches!(i, Instruction::Apply(_)));
    if let Some(meter) = meter.as_ref().filter(|_| !applied) {
        put11(version, m, &Instruction::Apply(vec![meter.clone()]), out);
    }
    for instruction in list {
        match (instruction, &meter) {
            (Instruction::Apply(actions), Some(meter)) => {
                let all = std::iter::once(meter).chain(actions).cloned().collect();
                put11(version, m, &Instruction::Apply(all), out);
            }
            _ => put11(version, m, instruction, out),
        }
    }
}

fn put11(version: Version, m: &Match, instruction: &Instruction, out: &mut Vec<u8>) {
    let put_list = |kind, list: &[Action], out: &mut Vec<u8>| {
        put(kind, out, |out| {
            out.extend([0; 4]);
            encode_flow_actions(version, m, list, out);
        });
    };
    match instruction {
        Instruction::Meter(_) => {}
        Instruction::Apply(list) => put_list(kind::APPLY_ACTIONS, list, out),
        Instruction::Write(list) => put_list(kind::WRITE_ACTIONS, list, out),
        Instruction::Clear => put(kind::CLEAR_ACTIONS, out, |out| out.extend([0; 4])),
        Instruction::WriteMetadata { value, mask } => put(kind::WRITE_METADATA, out, |out| {
            out.extend([0; 4]);
            out.extend(value.to_be_bytes());
            out.extend(mask.to_be_bytes());
        }),
        Instruction::Goto(table) => put(kind::GOTO_TABLE, out, |out| out.extend([*table, 0, 0, 0])),
    }
}

fn put10(m: &Match, instruction: &Instruction, out: &mut Vec<u8>) {
    match instruction {
        Instruction::Apply(list) => encode_flow_actions(Version::V10, m, list, out),
        Instruction::WriteMetadata { value, mask } => Put { version: Version::V10, out }
            .nx(nxast::WRITE_METADATA, |nx| nx.zeros(6).u64(*value).u64(*mask)),
        Instruction::Goto(table) => Put { version: Version::V10, out }
            .nx(nxast::RESUBMIT_TABLE, |nx| nx.u16(port_to_10(port::IN_PORT)).u8(*table).zeros(3)),
        Instruction::Meter(_) | Instruction::Clear | Instruction::Write(_) => {}
    }
}
