//! Nicira's actions from the wire.

use crate::action_types::{controller2, nxast};
use crate::actions::{self, Item};
use crate::conntrack;
use crate::encap;
use crate::fields::{self, Bytes, zeros};
use crate::learn;
use crate::oxm::{Oxm, port_from_10};
use crate::{Action, Bundle, OfError, OfPort, Reason, Subfield, TestAction, Version, port};
use flow::Field;

const ETH_HEADER: u32 = 14;
const MAX_HASH_FIELDS: u16 = 6;
const MAX_MULTIPATH_ALGORITHM: u16 = 3;
/// Members of one bundle (OVS's number).
const BUNDLE_MEMBERS_MAX: usize = 2048;
/// What members of a bundle are: ports, as this field.
pub(crate) const NXM_OF_IN_PORT: u32 = 2;

/// The least and greatest length of an action; None for an unknown one. Those that later versions
/// have a standard action for exist in 1.0 only, loads not in 1.5, encap and decap from 1.3 on.
pub(crate) fn lengths(version: Version, kind: u16) -> Option<(usize, usize)> {
    use nxast::*;
    const OPEN: usize = 0xffff;
    let v10 = version == Version::V10;
    let before15 = version < Version::V15;
    let since13 = version >= Version::V13;
    Some(match kind {
        RESUBMIT | SET_TUNNEL | POP_QUEUE | EXIT | FIN_TIMEOUT | CONTROLLER => (16, 16),
        RESUBMIT_TABLE | RESUBMIT_TABLE_CT | CONJUNCTION | OUTPUT_TRUNC | CT_CLEAR => (16, 16),
        DEBUG_SLOW | DEBUG_RECIRC => (16, 16),
        SET_QUEUE | DEC_TTL | GROUP if v10 => (16, 16),
        PUSH_MPLS..=DEC_MPLS_TTL | SET_MPLS_LABEL | SET_MPLS_TC if v10 => (16, 16),
        REG_MOVE if before15 => (24, OPEN),
        REG_LOAD if before15 => (24, 24),
        REG_LOAD2 if before15 => (16, OPEN),
        NOTE | DEC_TTL_CNT_IDS | CONTROLLER2 | CLONE | NAT => (16, OPEN),
        CT => (24, OPEN),
        SET_TUNNEL64 | OUTPUT_REG | OUTPUT_REG2 | SAMPLE | DELETE_FIELD => (24, 24),
        STACK_PUSH | STACK_POP | CHECK_PKT_LARGER => (24, 24),
        LEARN | BUNDLE | BUNDLE_LOAD => (32, OPEN),
        LEARN2 => (40, OPEN),
        RAW_ENCAP | RAW_DECAP if since13 => (16, OPEN),
        DEC_NSH_TTL if since13 => (16, 16),
        MULTIPATH | WRITE_METADATA | SAMPLE2 | SAMPLE3 => (32, 32),
        _ => return None,
    })
}

/// Reads an action whose length fits [`lengths`].
pub(crate) fn decode(version: Version, kind: u16, b: Bytes, depth: u8) -> Result<Item, OfError> {
    let action = match kind {
        nxast::WRITE_METADATA => {
            zeros(&b.array::<6>(10), OfError::RequestMustBeZero)?;
            return Ok(Item::WriteMetadata { value: b.u64(16), mask: b.u64(24) });
        }
        nxast::CLONE => {
            let inner = actions::decode_items(version, b.from(16), depth + 1)?;
            Action::Clone(actions::only_actions_in(inner, actions::ListOf::Clone)?)
        }
        nxast::CT => conntrack::decode_ct(version, b, depth)?,
        nxast::CONTROLLER2 => controller2(b)?,
        nxast::REG_MOVE => fields::subfield_move(b.u16(10), b.u16(12), b.u16(14), b.from(16))?,
        nxast::REG_LOAD => fields::load(fields::header32(b.array(12))?, b.u16(10), b.u64(16))?,
        nxast::REG_LOAD2 => fields::load2(b.from(10))?,
        nxast::PUSH_MPLS => actions::push_mpls(b.u16(10))?,
        nxast::SET_MPLS_LABEL => actions::set_mpls_label(b.u32(12))?,
        nxast::SET_MPLS_TC => actions::set_mpls_tc(b.u8(10))?,
        nxast::RESUBMIT..=nxast::SET_TUNNEL64 => small(kind, b)?,
        _ => larger(kind, b)?,
    };
    Ok(Item::Action(action))
}

fn small(kind: u16, b: Bytes) -> Result<Action, OfError> {
    Ok(match kind {
        nxast::RESUBMIT => {
            Action::Resubmit { in_port: resubmit_port(b.u16(10)), table: None, ct: false }
        }
        nxast::SET_TUNNEL => Action::SetTunnel { id: b.u32(12).into(), wide: false },
        nxast::SET_TUNNEL64 => Action::SetTunnel { id: b.u64(16), wide: true },
        nxast::SET_QUEUE => Action::SetQueue(b.u32(12)),
        nxast::POP_QUEUE => Action::PopQueue,
        nxast::NOTE => Action::Note(b.from(10).to_vec()),
        _ => return Err(OfError::ActBadExpType),
    })
}

fn larger(kind: u16, b: Bytes) -> Result<Action, OfError> {
    Ok(match kind {
        nxast::RESUBMIT_TABLE | nxast::RESUBMIT_TABLE_CT => resubmit_table(kind, b)?,
        nxast::EXIT => Action::Exit,
        nxast::DEBUG_SLOW => Action::Test(TestAction::Slow),
        nxast::DEBUG_RECIRC => Action::Test(TestAction::Recirc),
        nxast::DEC_TTL => Action::DecTtl { ids: None },
        nxast::DEC_TTL_CNT_IDS => dec_ttl_ids(b)?,
        nxast::FIN_TIMEOUT => Action::FinTimeout { idle: b.u16(10), hard: b.u16(12) },
        nxast::CONTROLLER => controller(b)?,
        nxast::POP_MPLS => Action::PopMpls { ethertype: b.u16(10) },
        nxast::SET_MPLS_TTL => Action::SetMplsTtl(b.u8(10)),
        nxast::DEC_MPLS_TTL => Action::DecMplsTtl,
        nxast::GROUP => Action::Group(b.u32(12)),
        nxast::CT_CLEAR => Action::CtClear,
        nxast::NAT => conntrack::decode_nat(b)?,
        nxast::CHECK_PKT_LARGER => conntrack::decode_check_len(b)?,
        nxast::STACK_PUSH => Action::Push(stack(b, fields::source)?),
        nxast::STACK_POP => Action::Pop(stack(b, fields::target)?),
        nxast::OUTPUT_REG => output_reg(b)?,
        nxast::OUTPUT_REG2 => output_reg2(b)?,
        nxast::OUTPUT_TRUNC => output_trunc(b)?,
        nxast::MULTIPATH => multipath(b)?,
        nxast::BUNDLE | nxast::BUNDLE_LOAD => bundle(kind, b)?,
        nxast::LEARN => Action::Learn(Box::new(learn::decode(b, false)?)),
        nxast::LEARN2 => Action::Learn(Box::new(learn::decode(b, true)?)),
        nxast::CONJUNCTION => conjunction(b)?,
        nxast::SAMPLE | nxast::SAMPLE2 | nxast::SAMPLE3 => sample(kind, b)?,
        nxast::DELETE_FIELD => delete_field(b)?,
        nxast::RAW_ENCAP => encap::decode_encap(b)?,
        nxast::RAW_DECAP => encap::decode_decap(b)?,
        nxast::DEC_NSH_TTL => Action::DecNshTtl,
        _ => return Err(OfError::ActBadExpType),
    })
}

/// The port to look up with; None keeps the packet's.
fn resubmit_port(port10: u16) -> Option<OfPort> {
    Some(port_from_10(port10)).filter(|p| *p != port::IN_PORT)
}

fn resubmit_table(kind: u16, b: Bytes) -> Result<Action, OfError> {
    zeros(&b.array::<3>(13), OfError::ActBadArgument)?;
    Ok(Action::Resubmit {
        in_port: resubmit_port(b.u16(10)),
        table: Some(b.u8(12)).filter(|t| *t != 0xff),
        ct: kind == nxast::RESUBMIT_TABLE_CT,
    })
}

fn dec_ttl_ids(b: Bytes) -> Result<Action, OfError> {
    zeros(&b.array::<4>(12), OfError::RequestMustBeZero)?;
    let n = usize::from(b.u16(10));
    let ids = b.from(16);
    if ids.len() < 2 * n {
        return Err(OfError::ActBadLen);
    }
    Ok(Action::DecTtl { ids: Some((0..n).map(|i| Bytes(ids).u16(2 * i)).collect()) })
}

fn reason(code: u8) -> Result<Reason, OfError> {
    Ok(match code {
        0 => Reason::TableMiss,
        1 => Reason::Action,
        2 => Reason::InvalidTtl,
        3 => Reason::ActionSet,
        4 => Reason::Group,
        5 => Reason::PacketOut,
        _ => return Err(OfError::ActBadArgument),
    })
}

fn controller(b: Bytes) -> Result<Action, OfError> {
    Ok(Action::Controller {
        max_len: b.u16(10),
        reason: reason(b.u8(14))?,
        id: b.u16(12),
        userdata: vec![],
        pause: false,
        meter: None,
    })
}

fn controller2(b: Bytes) -> Result<Action, OfError> {
    zeros(&b.array::<6>(10), OfError::RequestMustBeZero)?;
    let (mut max_len, mut why, mut id) = (u16::MAX, Reason::Action, 0);
    let (mut userdata, mut pause, mut meter) = (vec![], false, None);
    let mut rest = b.from(16);
    while !rest.is_empty() {
        let (kind, value, size) = property(rest)?;
        match kind {
            controller2::MAX_LEN => max_len = u16::from_be_bytes(scalar(value)?),
            controller2::ID => id = u16::from_be_bytes(scalar(value)?),
            controller2::REASON => why = reason(scalar::<1>(value)?[0])?,
            controller2::USERDATA => userdata = value.to_vec(),
            controller2::PAUSE => pause = true,
            controller2::METER => {
                let number = value.try_into().map_err(|_| OfError::PropBadLen)?;
                meter = Some(u32::from_be_bytes(number));
            }
            _ => return Err(OfError::PropBadType),
        }
        rest = &rest[size..];
    }
    Ok(Action::Controller { max_len, reason: why, id, userdata, pause, meter })
}

/// The property at the start of `buf`: type, value, size with padding.
fn property(buf: &[u8]) -> Result<(u16, &[u8], usize), OfError> {
    let head: &[u8; 4] = buf.first_chunk().ok_or(OfError::PropBadLen)?;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let size = len.next_multiple_of(8);
    if len < 4 || size > buf.len() {
        return Err(OfError::PropBadLen);
    }
    Ok((u16::from_be_bytes([head[0], head[1]]), &buf[4..len], size))
}

/// A number of one or two bytes at the start of a property's body; what follows it counts as
/// padding, as for ovs-vswitchd.
fn scalar<const N: usize>(value: &[u8]) -> Result<[u8; N], OfError> {
    value.first_chunk().copied().ok_or(OfError::PropBadLen)
}

type MakeSubfield = fn(crate::oxm::Oxm, u16, u16) -> Result<Subfield, OfError>;

fn stack(b: Bytes, make: MakeSubfield) -> Result<Subfield, OfError> {
    let (oxm, size) = fields::pull_header(b.from(12))?;
    zeros(b.from(12 + size + 2), OfError::RequestMustBeZero)?;
    make(oxm, b.u16(10), b.u16(12 + size))
}

fn output_reg(b: Bytes) -> Result<Action, OfError> {
    zeros(b.from(18), OfError::ActBadArgument)?;
    let (ofs, bits) = fields::unpack(b.u16(10));
    let src = fields::source(fields::header32(b.array(12))?, ofs, bits)?;
    Ok(Action::OutputReg { src, max_len: b.u16(16) })
}

fn output_reg2(b: Bytes) -> Result<Action, OfError> {
    let (ofs, bits) = fields::unpack(b.u16(10));
    let (oxm, size) = fields::pull_header(b.from(14))?;
    zeros(b.from(14 + size), OfError::RequestMustBeZero)?;
    Ok(Action::OutputReg { src: fields::source(oxm, ofs, bits)?, max_len: b.u16(12) })
}

fn output_trunc(b: Bytes) -> Result<Action, OfError> {
    let (port, trunc) = (port_from_10(b.u16(10)), b.u32(12));
    if trunc < ETH_HEADER {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::Output { port: actions::check_output_port(port)?, max_len: 0, trunc })
}

fn multipath(b: Bytes) -> Result<Action, OfError> {
    let (fields_code, algorithm, max_link) = (b.u16(10), b.u16(16), b.u16(18));
    let (ofs, bits) = fields::unpack(b.u16(26));
    let oxm = fields::header32(b.array(28))?;
    let known = fields_code <= MAX_HASH_FIELDS && algorithm <= MAX_MULTIPATH_ALGORITHM;
    if !known || (bits < 16 && max_link >> bits != 0) {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::Multipath {
        fields: fields_code,
        basis: b.u16(12),
        algorithm,
        max_link,
        arg: b.u32(20),
        dst: fields::target(oxm, ofs, bits)?,
    })
}

/// Errors: `ActBadArgument` for what is not known, `ActBadLen` for members that are cut off.
fn bundle(kind: u16, b: Bytes) -> Result<Action, OfError> {
    let (algorithm, hashed, n) = (b.u16(10), b.u16(12), usize::from(b.u16(20)));
    let known = algorithm <= 1 && hashed <= MAX_HASH_FIELDS && n <= BUNDLE_MEMBERS_MAX;
    let load = kind == nxast::BUNDLE_LOAD;
    let plain = load || (b.u16(22), b.u32(24)) == (0, 0);
    if !known || !plain || b.u32(16) != NXM_OF_IN_PORT || b.u32(28) != 0 {
        return Err(OfError::ActBadArgument);
    }
    let dst = match load {
        true => {
            let (ofs, bits) = fields::unpack(b.u16(22));
            let dst = fields::target(fields::header32(b.array(24))?, ofs, bits)?;
            if bits < 16 {
                return Err(OfError::ActBadArgument);
            }
            Some(dst)
        }
        false => None,
    };
    let members = b.from(32).get(..2 * n).ok_or(OfError::ActBadLen)?;
    let members = members.chunks(2).map(|p| port_from_10(Bytes(p).u16(0))).collect();
    Ok(Action::Bundle(Box::new(Bundle {
        fields: hashed,
        basis: b.u16(14),
        algorithm,
        dst,
        members,
    })))
}

fn conjunction(b: Bytes) -> Result<Action, OfError> {
    let (clause, n_clauses) = (b.u8(10), b.u8(11));
    if !(2..=64).contains(&n_clauses) || clause >= n_clauses {
        return Err(OfError::ActBadConjunction);
    }
    Ok(Action::Conjunction { id: b.u32(12), clause, n_clauses })
}

fn sample(kind: u16, b: Bytes) -> Result<Action, OfError> {
    let (mut port, mut direction) = (port::ANY, 0);
    if kind != nxast::SAMPLE {
        zeros(b.from(27), OfError::RequestMustBeZero)?;
        (port, direction) = (port_from_10(b.u16(24)), b.u8(26));
    }
    if b.u16(10) == 0 || direction > 2 {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::Sample {
        probability: b.u16(10),
        collector_set: b.u32(12),
        domain: b.u32(16),
        point: b.u32(20),
        port,
        direction,
    })
}

/// Only tunnel options can be deleted.
fn delete_field(b: Bytes) -> Result<Action, OfError> {
    match fields::pull_header(b.from(10))? {
        (Oxm { field: field @ Field::TunMetadata(_), .. }, _) => Ok(Action::DeleteField(field)),
        _ => Err(OfError::ActBadArgument),
    }
}
