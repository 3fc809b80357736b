//! What a paused pipeline needs to go on: a property of Nicira's packet-ins that comes back in an
//! NXT_RESUME. Its parts have OVS's numbers, so that ovs-ofctl shows them.

use super::Dialect;
use crate::actions::decode_actions;
use crate::actions_out::encode_actions;
use crate::buf::{Put, Rd, Result};
use crate::instructions::{decode_instructions, encode_instructions};
use crate::matching::decode_oxm_list;
use crate::{Action, Continuation, Instruction, OfError, Request, Resume, Version};

/// Parts of a continuation: OVS's `NXCPT_*`.
mod part {
    pub const BRIDGE: u16 = 0x8000;
    pub const STACK: u16 = 0x8001;
    pub const MIRRORS: u16 = 0x8002;
    pub const CONNTRACKED: u16 = 0x8003;
    pub const TABLE: u16 = 0x8004;
    pub const COOKIE: u16 = 0x8005;
    pub const ACTIONS: u16 = 0x8006;
    pub const ACTION_SET: u16 = 0x8007;
    pub const ODP_PORT: u16 = 0x8008;
    /// Ours: an instruction other than apply-actions, in 1.5's form.
    pub const INSTRUCTION: u16 = 0x8100;
}

/// Types from here on are experimenters'.
const EXPERIMENTER: u16 = 0xffff;
/// The longest value on the stack, bytes.
const VALUE_BYTES_MAX: usize = 16;

/// Writes the continuation as the body of a property (behind its header).
pub(super) fn encode(version: Version, c: &Continuation, m: &mut Vec<u8>) {
    m.pad(4);
    m.property(part::BRIDGE, |m| m.raw(&c.bridge));
    for (value, bits) in c.stack.iter().rev() {
        let bytes = usize::from(bits.div_ceil(8)).clamp(1, VALUE_BYTES_MAX);
        m.property(part::STACK, |m| m.raw(&value.to_be_bytes()[VALUE_BYTES_MAX - bytes..]));
    }
    if c.mirrors != 0 {
        m.property(part::MIRRORS, |m| m.u32(c.mirrors));
    }
    if c.conntracked {
        m.property(part::CONNTRACKED, |_| {});
    }
    if c.table != 0 {
        m.property(part::TABLE, |m| m.u8(c.table));
    }
    if c.cookie != 0 {
        m.property(part::COOKIE, |m| {
            m.pad(4);
            m.u64(c.cookie);
        });
    }
    for instruction in &c.rest {
        match instruction {
            Instruction::Apply(list) if list.is_empty() => {}
            Instruction::Apply(list) => put_actions(part::ACTIONS, version, list, m),
            other => m.property(part::INSTRUCTION, |m| {
                m.pad(4);
                encode_instructions(Version::V15, std::slice::from_ref(other), m);
            }),
        }
    }
    if !c.set.is_empty() {
        put_actions(part::ACTION_SET, version, &c.set, m);
    }
    if c.odp_port != 0 {
        m.property(part::ODP_PORT, |m| m.u32(c.odp_port));
    }
}

fn put_actions(kind: u16, version: Version, list: &[Action], m: &mut Vec<u8>) {
    m.property(kind, |m| {
        m.pad(4);
        encode_actions(version, list, m);
    });
}

/// Reads the parts. Errors: `PropBadLen`, `PropBadType`, those of actions and instructions.
fn decode(version: Version, mut rd: Rd<'_>) -> Result<Continuation> {
    let mut c = Continuation::default();
    nested(&mut rd)?;
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        let bad = |_| OfError::PropBadLen;
        match kind {
            part::BRIDGE => c.bridge = body.array().map_err(bad)?,
            // The top comes first.
            part::STACK => c.stack.push(value(&mut body)?),
            part::MIRRORS => c.mirrors = body.only_u32()?,
            part::CONNTRACKED => c.conntracked = true,
            part::TABLE => c.table = body.u8().map_err(bad)?,
            part::COOKIE => {
                nested(&mut body)?;
                c.cookie = body.u64().map_err(bad)?;
            }
            part::ACTIONS => {
                nested(&mut body)?;
                c.rest.push(Instruction::Apply(decode_actions(version, body.rest())?));
            }
            part::INSTRUCTION => {
                nested(&mut body)?;
                c.rest.extend(decode_instructions(Version::V15, body.rest())?);
            }
            part::ACTION_SET => {
                nested(&mut body)?;
                c.set = decode_actions(version, body.rest())?;
            }
            part::ODP_PORT => c.odp_port = body.only_u32()?,
            kind => return Err(body.unknown_property(kind, EXPERIMENTER)),
        }
    }
    c.stack.reverse();
    Ok(c)
}

/// Passes over what brings a nested list to a multiple of eight bytes.
fn nested(rd: &mut Rd<'_>) -> Result<()> {
    rd.skip(4).map_err(|_| OfError::PropBadLen)
}

/// A value of the stack, and its bits.
fn value(body: &mut Rd<'_>) -> Result<(u128, u16)> {
    let bytes = body.rest();
    if bytes.len() > VALUE_BYTES_MAX {
        return Err(OfError::PropBadLen);
    }
    let value = bytes.iter().fold(0, |v, b| v << 8 | u128::from(*b));
    Ok((value, 8 * bytes.len() as u16))
}

/// NXT_RESUME: a packet-in, maybe with another packet and other fields.
///
/// Errors: as for properties; `BadLen` without a packet.
pub(super) fn decode_resume(dialect: Dialect, mut rd: Rd<'_>) -> Result<Request> {
    let mut resume = Resume::default();
    let (mut whole, mut state) = (None, None);
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        let bad = |_| OfError::PropBadLen;
        match kind {
            0 => resume.data = body.rest().to_vec(),
            1 => whole = Some(body.only_u32()? as usize),
            2 => drop(body.only_u32()?),
            3 | 5 => drop(body.u8().map_err(bad)?),
            4 => {
                nested(&mut body)?;
                body.u64().map_err(bad)?;
            }
            6 => resume.matching = decode_oxm_list(body.rest())?,
            7 => {}
            8 => state = Some(body),
            kind => return Err(body.unknown_property(kind, EXPERIMENTER)),
        }
    }
    if resume.data.is_empty() || whole.is_some_and(|n| n < resume.data.len()) {
        return Err(OfError::BadLen);
    }
    if let Some(state) = state {
        resume.continuation = decode(dialect.version, state)?;
    }
    Ok(Request::Resume(Box::new(resume)))
}
