//! Bundles (1.4+, and ONF's extension for 1.3, which has the same bodies).

use super::begun::{begin, begin_exp};
use super::decode::decode_parts;
use super::kinds::Kind;
use super::{Dialect, Form, NX, ONF, ReplyTo, lengths};
use crate::buf::{Put, Rd, Result};
use crate::framing::{HEADER_LEN, MessageHeader};
use crate::{BundleStep, OfError, Request, Version};

const ONF_CONTROL: u32 = 2300;

/// BUNDLE_CONTROL. Properties are passed over; flags without a meaning too, as in OVS.
pub(super) fn decode_control(mut rd: Rd<'_>) -> Result<Request> {
    let id = rd.u32()?;
    let step = BundleStep::from_wire(rd.u16()?).ok_or(OfError::BundleBadType)?;
    let flags = rd.u16()?;
    Ok(Request::BundleControl { id, step, flags })
}

/// BUNDLE_ADD_MESSAGE. The message inside must have the same transaction id, as in OVS; which
/// messages a bundle takes is checked here too.
pub(super) fn decode_add(dialect: Dialect, xid: u32, mut rd: Rd<'_>, depth: u8) -> Result<Request> {
    if depth > 0 {
        return Err(OfError::BundleMsgUnsup);
    }
    let id = rd.u32()?;
    rd.skip(2)?;
    let flags = rd.u16()?;
    let header = MessageHeader::read(rd.0).ok_or(OfError::BundleMsgBadLen)?;
    if header.version != dialect.version as u8 {
        return Err(OfError::BundleBadVersion);
    }
    let len = usize::from(header.len);
    if len < HEADER_LEN || len > rd.left() {
        return Err(OfError::BundleMsgBadLen);
    }
    if header.xid != xid {
        return Err(OfError::BundleMsgBadXid);
    }
    if !is_bundled(dialect.version, &rd.0[..len]) {
        return Err(OfError::BundleMsgUnsup);
    }
    let (_, inner) = decode_parts(dialect, &rd.0[..len], depth + 1)?;
    Ok(Request::BundleAdd { id, flags, xid, inner: Box::new(inner) })
}

/// True if a bundle takes this message, and the message has a length that it can have.
fn is_bundled(version: Version, message: &[u8]) -> bool {
    let body = message.len() - HEADER_LEN;
    match Kind::from_wire(version, message[1]) {
        Some(kind @ (Kind::FlowMod | Kind::GroupMod | Kind::PortMod | Kind::PacketOut)) => {
            lengths::of(version, kind).fits(body)
        }
        Some(Kind::Experimenter) => {
            // NXT_FLOW_MOD and, in 1.0, NXT_GROUP_MOD.
            let mut rd = Rd(&message[HEADER_LEN..]);
            match (rd.u32(), rd.u32()) {
                (Ok(NX), Ok(subtype @ (13 | 31))) => {
                    lengths::of_nicira(version, subtype).is_some_and(|l| l.fits(rd.left()))
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// BUNDLE_CONTROL as a reply.
pub(super) fn encode_control(
    version: Version,
    to: ReplyTo,
    id: u32,
    step: BundleStep,
    flags: u16,
) -> Vec<u8> {
    let onf = to.form == Form::Onf || version < Version::V14;
    let mut m = if onf {
        begin_exp(version, to.xid, ONF, ONF_CONTROL)
    } else {
        begin(version, Kind::BundleControl, to.xid)
    };
    m.u32(id);
    m.u16(step as u16);
    m.u16(flags);
    m
}
