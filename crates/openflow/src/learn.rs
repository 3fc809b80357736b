//! The learn action (NXAST_LEARN, NXAST_LEARN2): from and to the wire, and what it may say.
//!
//! Source: ovs-actions(7), "The learn action", and the layouts in OVS's documentation of its Nicira
//! extensions. All numbers are in network order on the wire.

use crate::fields::{self, Bytes, zeros};
use crate::fields_out::Nx;
use crate::{OfError, Subfield, Version};

/// Flags of a learn action.
#[allow(missing_docs)]
pub mod learn_flag {
    /// Learned flows have SEND_FLOW_REM.
    pub const SEND_FLOW_REM: u16 = 1;
    /// What was learned goes when the last flow with this action, table and cookie goes.
    pub const DELETE_LEARNED: u16 = 2;
    /// A bit is set if the flow was learned (NXAST_LEARN2).
    pub const WRITE_RESULT: u16 = 4;
}

/// A flow that packets make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Learn {
    /// Seconds; 0: none.
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    /// Timeouts once a FIN or RST was seen.
    pub fin_idle_timeout: u16,
    pub fin_hard_timeout: u16,
    pub priority: u16,
    pub cookie: u64,
    /// [`learn_flag`] bits but WRITE_RESULT, which `result` says.
    pub flags: u16,
    pub table: u8,
    /// No more flows with this cookie in this table; 0: any number.
    pub limit: u32,
    /// The bit that says whether the flow was learned.
    pub result: Option<Subfield>,
    pub specs: Vec<LearnSpec>,
}

/// One part of a learned flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LearnSpec {
    /// Number of bits.
    pub bits: u16,
    /// Where they come from.
    pub src: LearnSource,
    /// Where the bits go.
    pub dst: LearnTarget,
}

/// Where a part's bits come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LearnSource {
    /// The value is a part of the packet.
    Field(Subfield),
    /// The value stands in the action.
    Value(u128),
}

/// Where a part's bits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LearnTarget {
    /// Into the learned flow's match.
    Match(Subfield),
    /// Into a field of the packets that hit the learned flow.
    Load(Subfield),
    /// The value is the port to output to.
    Output,
}

const N_BITS: u16 = 0x3ff;
const SRC_VALUE: u16 = 1 << 13;
const DST: u16 = 3 << 11;
const DST_LOAD: u16 = 1 << 11;
const DST_OUTPUT: u16 = 2 << 11;
/// Values of more bits do not fit a field of ours.
const VALUE_BITS_MAX: u16 = 128;

/// Where the parts begin.
const SPECS: usize = 32;
/// Offset of the specs of NXAST_LEARN2, or of the header of the result's field.
const SPECS2: usize = 40;

/// Reads an action of at least [`SPECS`] (`second`: [`SPECS2`]) bytes.
///
/// Errors: `ActBadArgument` for flags, tables and reserved bits, `ActBadLen` for parts that are cut
/// off, and those of subfields.
pub(crate) fn decode(b: Bytes, second: bool) -> Result<Learn, OfError> {
    let (flags, table) = (b.u16(24), b.u8(26));
    let known = learn_flag::SEND_FLOW_REM | learn_flag::DELETE_LEARNED;
    let known = if second { known | learn_flag::WRITE_RESULT } else { known };
    if table == 0xff || b.u8(27) != 0 || flags & !known != 0 {
        return Err(OfError::ActBadArgument);
    }
    let (mut limit, mut result, mut at) = (0, None, SPECS);
    if second {
        if b.u16(38) != 0 {
            return Err(OfError::ActBadArgument);
        }
        (limit, at) = (b.u32(32), SPECS2);
        if flags & learn_flag::WRITE_RESULT != 0 {
            let (oxm, size) = fields::pull_header(b.from(at))?;
            result = Some(fields::target(oxm, b.u16(36), 1)?);
            at += size;
        }
    }
    Ok(Learn {
        idle_timeout: b.u16(10),
        hard_timeout: b.u16(12),
        priority: b.u16(14),
        cookie: b.u64(16),
        flags: flags & !learn_flag::WRITE_RESULT,
        table,
        fin_idle_timeout: b.u16(28),
        fin_hard_timeout: b.u16(30),
        limit,
        result,
        specs: decode_specs(b.from(at))?,
    })
}

fn decode_specs(mut rest: &[u8]) -> Result<Vec<LearnSpec>, OfError> {
    let mut specs = Vec::new();
    while rest.len() >= 2 {
        let header = Bytes(rest).u16(0);
        if header == 0 {
            break;
        }
        rest = &rest[2..];
        let (bits, to) = (header & N_BITS, header & DST);
        if header & !(N_BITS | SRC_VALUE | DST) != 0 || to == DST {
            return Err(OfError::ActBadArgument);
        }
        let src = match header & SRC_VALUE {
            0 => LearnSource::Field(subfield(&mut rest, bits, fields::source)?),
            _ => LearnSource::Value(value(&mut rest, bits)?),
        };
        let dst = match to {
            DST_OUTPUT => LearnTarget::Output,
            DST_LOAD => LearnTarget::Load(subfield(&mut rest, bits, fields::target)?),
            _ => LearnTarget::Match(subfield(&mut rest, bits, fields::source)?),
        };
        specs.push(LearnSpec { bits, src, dst });
    }
    zeros(rest, OfError::ActBadArgument)?;
    Ok(specs)
}

/// A value of so many bits, in whole 16-bit units.
fn value(rest: &mut &[u8], bits: u16) -> Result<u128, OfError> {
    let bytes = usize::from(bits.div_ceil(16)) * 2;
    if bits > VALUE_BITS_MAX {
        return Err(OfError::ActBadArgument);
    }
    let (own, tail) = rest.split_at_checked(bytes).ok_or(OfError::ActBadLen)?;
    *rest = tail;
    Ok(own.iter().fold(0, |v, b| v << 8 | u128::from(*b)))
}

type Check = fn(crate::oxm::Oxm, u16, u16) -> Result<Subfield, OfError>;

fn subfield(rest: &mut &[u8], bits: u16, check: Check) -> Result<Subfield, OfError> {
    if rest.len() < 6 {
        return Err(OfError::ActBadLen);
    }
    let (oxm, ofs) = (fields::header32(Bytes(rest).array(0))?, Bytes(rest).u16(4));
    *rest = &rest[6..];
    check(oxm, ofs, bits)
}

/// True if the action is NXAST_LEARN2.
pub(crate) fn is_second(l: &Learn) -> bool {
    l.limit != 0 || l.result.is_some()
}

/// The action's body, behind its number.
pub(crate) fn encode<'a>(l: &Learn, nx: Nx<'a>) -> Nx<'a> {
    let second = is_second(l);
    let result = if l.result.is_some() { learn_flag::WRITE_RESULT } else { 0 };
    let nx = nx.u16(l.idle_timeout).u16(l.hard_timeout).u16(l.priority).u64(l.cookie);
    let nx = nx.u16(l.flags | result).u8(l.table).u8(0);
    let mut nx = nx.u16(l.fin_idle_timeout).u16(l.fin_hard_timeout);
    if second {
        nx = nx.u32(l.limit).u16(l.result.map_or(0, |r| r.ofs)).zeros(2);
        if let Some(r) = l.result {
            nx = nx.id(Version::V10, r);
        }
    }
    for spec in &l.specs {
        let src = if matches!(spec.src, LearnSource::Value(_)) { SRC_VALUE } else { 0 };
        let dst = match spec.dst {
            LearnTarget::Match(_) => 0,
            LearnTarget::Load(_) => DST_LOAD,
            LearnTarget::Output => DST_OUTPUT,
        };
        nx = nx.u16(spec.bits | src | dst);
        nx = match spec.src {
            LearnSource::Field(s) => nx.id(Version::V10, s).u16(s.ofs),
            LearnSource::Value(v) => {
                let bytes = usize::from(spec.bits.div_ceil(16)) * 2;
                nx.bytes(&v.to_be_bytes()[16 - bytes..])
            }
        };
        if let LearnTarget::Match(d) | LearnTarget::Load(d) = spec.dst {
            nx = nx.id(Version::V10, d).u16(d.ofs);
        }
    }
    nx
}
