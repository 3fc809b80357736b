//! Actions from the wire.
//!
//! An action's type is looked up first (unknown: `ActBadType`, `ActBadExperimenter`,
//! `ActBadExpType`), then its length is checked against the type's ([`lengths`]), so that the
//! readers below never look past its end. What Nicira has and [`Action`] has no form for
//! (dec_nsh_ttl, ...) is an unknown type here.

use crate::action_types::{NICIRA, ONF, ONF_COPY_FIELD, VENDOR, act10, act11};
use crate::actions_nx as nx;
use crate::fields::{Bytes, set_field, subfield_move};
use crate::oxm::{port_from_10, port_is_valid};
use crate::prereq::{eth, is_mpls};
use crate::{Action, OfError, OfPort, Version, port};
use flow::Field;

/// Lists in lists deeper than this are refused.
pub const MAX_DEPTH: u8 = 32;

/// What an entry of an action list is.
pub(crate) enum Item {
    Action(Action),
    /// `NXAST_WRITE_METADATA`: 1.0's form of the instruction.
    WriteMetadata {
        value: u64,
        mask: u64,
    },
}

/// Reads a list of actions that fills `buf`.
///
/// Errors: those in the module's head, `ActBadLen`, and one for each argument that is out of range;
/// `ActBadConjunction` for a conjunction among others, `ActBadSetArgument` for writing a conntrack
/// field, `InstUnsup` for Nicira's write-metadata (see [`crate::instructions`]).
pub fn decode_actions(version: Version, buf: &[u8]) -> Result<Vec<Action>, OfError> {
    only_actions(decode_items(version, buf, 0)?)
}

pub(crate) fn only_actions(items: Vec<Item>) -> Result<Vec<Action>, OfError> {
    only_actions_in(items, ListOf::Flow)
}

/// As [`only_actions`], inside another action.
pub(crate) fn only_actions_in(items: Vec<Item>, outer: ListOf) -> Result<Vec<Action>, OfError> {
    let action = |item| match item {
        Item::Action(a) => Ok(a),
        Item::WriteMetadata { .. } => Err(OfError::InstUnsup),
    };
    let actions = items.into_iter().map(action).collect::<Result<Vec<_>, _>>()?;
    verify(&actions, outer)?;
    Ok(actions)
}

/// Reads the entries of a list inside `depth` others.
pub(crate) fn decode_items(version: Version, buf: &[u8], depth: u8) -> Result<Vec<Item>, OfError> {
    if !buf.len().is_multiple_of(8) {
        return Err(OfError::BadLen);
    }
    if depth > MAX_DEPTH {
        return Err(OfError::ActTooMany);
    }
    let mut items = vec![];
    let mut rest = buf;
    while !rest.is_empty() {
        let head = Head::parse(rest)?;
        let (min, max) = lengths(version, head)?;
        if head.len > rest.len() || head.len < min || head.len > max || head.len % 8 != 0 {
            return Err(OfError::ActBadLen);
        }
        let (action, tail) = rest.split_at(head.len);
        items.push(decode_item(version, head, Bytes(action), depth)?);
        rest = tail;
    }
    Ok(items)
}

/// An action's type and length.
#[derive(Clone, Copy)]
struct Head {
    /// 0: a standard action.
    vendor: u32,
    kind: u16,
    len: usize,
}

impl Head {
    /// `buf` has at least 8 bytes: lists are multiples of that.
    fn parse(buf: &[u8]) -> Result<Head, OfError> {
        let b = Bytes(buf);
        let (kind, len) = (b.u16(0), usize::from(b.u16(2)));
        if kind != VENDOR {
            return Ok(Head { vendor: 0, kind, len });
        }
        let vendor = b.u32(4);
        if vendor != NICIRA && vendor != ONF {
            return Err(OfError::ActBadExperimenter);
        }
        if buf.len() < 16 {
            return Err(OfError::ActBadLen);
        }
        Ok(Head { vendor, kind: b.u16(8), len })
    }
}

/// The least and greatest length of an action of this type.
fn lengths(version: Version, head: Head) -> Result<(usize, usize), OfError> {
    const OPEN: usize = 0xffff;
    let found = match head.vendor {
        0 if version == Version::V10 => match head.kind {
            act10::SET_DL_SRC | act10::SET_DL_DST | act10::ENQUEUE => Some((16, 16)),
            act10::OUTPUT..=act10::SET_TP_DST => Some((8, 8)),
            _ => None,
        },
        0 => match head.kind {
            act11::OUTPUT | act11::SET_DL_SRC | act11::SET_DL_DST => Some((16, 16)),
            act11::SET_VLAN_VID..=act11::SET_TP_DST => Some((8, 8)),
            act11::SET_MPLS_LABEL..=act11::DEC_NW_TTL => Some((8, 8)),
            act11::SET_FIELD if version >= Version::V12 => Some((8, OPEN)),
            act11::COPY_FIELD if version >= Version::V15 => Some((16, OPEN)),
            act11::METER if version >= Version::V15 => Some((8, 8)),
            _ => None,
        },
        ONF => match (version, head.kind) {
            (Version::V13 | Version::V14, ONF_COPY_FIELD) => Some((24, OPEN)),
            _ => None,
        },
        _ => nx::lengths(version, head.kind),
    };
    found.ok_or(match head.vendor {
        0 => OfError::ActBadType,
        _ => OfError::ActBadExpType,
    })
}

fn decode_item(version: Version, head: Head, b: Bytes, depth: u8) -> Result<Item, OfError> {
    let action = match head.vendor {
        0 if version == Version::V10 => decode10(head.kind, b)?,
        0 => decode11(version, head.kind, b)?,
        ONF => subfield_move(b.u16(12), b.u16(14), b.u16(16), b.from(20))?,
        _ => return nx::decode(version, head.kind, b, depth),
    };
    Ok(Item::Action(action))
}

fn decode10(kind: u16, b: Bytes) -> Result<Action, OfError> {
    let push_if_absent = true;
    match kind {
        act10::OUTPUT => output(port_from_10(b.u16(4)), b.u16(6)),
        act10::SET_VLAN_VID => set_vlan_vid(b.u16(4), push_if_absent),
        act10::SET_VLAN_PCP => set_vlan_pcp(b.u8(4), push_if_absent),
        act10::STRIP_VLAN => Ok(Action::StripVlan { pop: false }),
        act10::ENQUEUE => enqueue(port_from_10(b.u16(4)), b.u32(12)),
        // The rest has one number more than in 1.1, up to the ECN that only 1.1 has.
        act10::SET_DL_SRC..=act10::SET_NW_TOS => legacy_set(kind - 1, b),
        _ => legacy_set(kind, b),
    }
}

/// The field-setting actions that 1.0 and later versions share, by 1.1's numbers.
fn legacy_set(kind: u16, b: Bytes) -> Result<Action, OfError> {
    let action = match kind {
        act11::SET_DL_SRC => Action::SetEthSrc(b.array(4)),
        act11::SET_DL_DST => Action::SetEthDst(b.array(4)),
        act11::SET_NW_SRC => Action::SetIpSrc(b.array(4)),
        act11::SET_NW_DST => Action::SetIpDst(b.array(4)),
        act11::SET_NW_TOS if b.u8(4) & 3 == 0 => Action::SetIpDscp(b.u8(4)),
        act11::SET_NW_ECN if b.u8(4) <= 3 => Action::SetIpEcn(b.u8(4)),
        act11::SET_NW_TOS | act11::SET_NW_ECN => return Err(OfError::ActBadArgument),
        act11::SET_TP_SRC => Action::SetL4Src(b.u16(4)),
        act11::SET_TP_DST => Action::SetL4Dst(b.u16(4)),
        _ => return Err(OfError::ActBadType),
    };
    Ok(action)
}

fn decode11(version: Version, kind: u16, b: Bytes) -> Result<Action, OfError> {
    let action = match kind {
        act11::OUTPUT => return output(port11(b.u32(4))?, b.u16(8)),
        act11::SET_VLAN_VID => return set_vlan_vid(b.u16(4), false),
        act11::SET_VLAN_PCP => return set_vlan_pcp(b.u8(4), false),
        act11::PUSH_VLAN => return push_vlan(b.u16(4)),
        act11::PUSH_MPLS => return push_mpls(b.u16(4)),
        act11::SET_FIELD => return set_field(version, b.from(4)),
        act11::COPY_FIELD => return subfield_move(b.u16(4), b.u16(6), b.u16(8), b.from(12)),
        act11::SET_MPLS_LABEL => return set_mpls_label(b.u32(4)),
        act11::SET_MPLS_TC => return set_mpls_tc(b.u8(4)),
        act11::SET_MPLS_TTL => Action::SetMplsTtl(b.u8(4)),
        act11::DEC_MPLS_TTL => Action::DecMplsTtl,
        act11::POP_VLAN => Action::StripVlan { pop: true },
        act11::POP_MPLS => Action::PopMpls { ethertype: b.u16(4) },
        act11::SET_QUEUE => Action::SetQueue(b.u32(4)),
        act11::GROUP => Action::Group(b.u32(4)),
        act11::SET_NW_TTL => Action::SetIpTtl(b.u8(4)),
        act11::DEC_NW_TTL => Action::DecTtl { ids: None },
        act11::METER => Action::Meter(b.u32(4)),
        _ => return legacy_set(kind, b),
    };
    Ok(action)
}

fn port11(port: u32) -> Result<OfPort, OfError> {
    if port_is_valid(port) { Ok(port) } else { Err(OfError::ActBadOutPort) }
}

/// Checks that a packet may be sent to this port.
pub(crate) fn check_output_port(port: OfPort) -> Result<OfPort, OfError> {
    match port {
        0..0xff00 | port::IN_PORT..=port::LOCAL => Ok(port),
        _ => Err(OfError::ActBadOutPort),
    }
}

fn output(port: OfPort, max_len: u16) -> Result<Action, OfError> {
    if check_output_port(port)? != port::CONTROLLER {
        return Ok(Action::Output { port, max_len, trunc: 0 });
    }
    Ok(Action::to_controller(max_len))
}

fn enqueue(port: OfPort, queue: u32) -> Result<Action, OfError> {
    match port {
        0..0xff00 | port::IN_PORT | port::LOCAL => Ok(Action::Enqueue { port, queue }),
        _ => Err(OfError::ActBadOutPort),
    }
}

fn set_vlan_vid(vid: u16, push_if_absent: bool) -> Result<Action, OfError> {
    if vid > 0xfff {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::SetVlanVid { vid, push_if_absent })
}

fn set_vlan_pcp(pcp: u8, push_if_absent: bool) -> Result<Action, OfError> {
    if pcp > 7 {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::SetVlanPcp { pcp, push_if_absent })
}

fn push_vlan(ethertype: u16) -> Result<Action, OfError> {
    match ethertype {
        eth::VLAN | eth::SVLAN => Ok(Action::PushVlan { ethertype }),
        _ => Err(OfError::ActBadArgument),
    }
}

pub(crate) fn push_mpls(ethertype: u16) -> Result<Action, OfError> {
    if !is_mpls(ethertype) {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::PushMpls { ethertype })
}

pub(crate) fn set_mpls_label(label: u32) -> Result<Action, OfError> {
    if u128::from(label) > Field::MplsLabel.full() {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::SetMplsLabel(label))
}

pub(crate) fn set_mpls_tc(tc: u8) -> Result<Action, OfError> {
    if tc > 7 {
        return Err(OfError::ActBadArgument);
    }
    Ok(Action::SetMplsTc(tc))
}

/// What a list of actions is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ListOf {
    Flow,
    Clone,
    Ct,
    /// An instruction to write actions.
    Set,
}

/// Checks what an action may not do next to the others of its list.
pub fn verify(actions: &[Action], outer: ListOf) -> Result<(), OfError> {
    let with_conjunction = |a: &Action| matches!(a, Action::Conjunction { .. } | Action::Note(_));
    if actions.iter().any(|a| matches!(a, Action::Conjunction { .. })) {
        let alone = actions.iter().all(with_conjunction);
        return if alone { Ok(()) } else { Err(OfError::ActBadConjunction) };
    }
    actions.iter().try_for_each(|a| verify_one(a, outer))
}

/// As [`verify`], of one action.
pub fn verify_one(action: &Action, outer: ListOf) -> Result<(), OfError> {
    let target = match action {
        Action::SetField { field, .. } => Some(*field),
        Action::Load { dst, .. } | Action::Move { dst, .. } => Some(dst.field),
        _ => None,
    };
    let connection = matches!(target, Some(Field::CtMark | Field::CtLabel));
    match (action, outer) {
        (Action::Nat(_), ListOf::Ct) => Ok(()),
        (Action::Nat(_), _) => Err(OfError::ActBadSetArgument),
        // Conntrack's mark and label are written inside ct() only, and nothing else is. As in OVS
        // an action set may have them, without effect.
        (_, ListOf::Ct | ListOf::Set) if connection => Ok(()),
        _ if connection => Err(OfError::ActBadSetArgument),
        (_, ListOf::Ct) | (Action::Meter(_), ListOf::Clone) => Err(OfError::ActBadArgument),
        _ => Ok(()),
    }
}
