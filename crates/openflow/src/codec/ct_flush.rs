//! NXT_CT_FLUSH_ZONE and NXT_CT_FLUSH: connections that are to end (OVS, nicira-ext.h).

use crate::buf::{Rd, Result};
use crate::{CtFlush, CtTuple, OfError, Request};
use std::net::{IpAddr, Ipv6Addr};

/// What OVS calls enum nx_ct_flush_tlv_type.
const ORIG_TUPLE: u16 = 0;
const REPLY_TUPLE: u16 = 1;
const ZONE_ID: u16 = 2;

/// NXT_CT_FLUSH_ZONE.
pub(super) fn decode_zone(mut rd: Rd<'_>) -> Result<Request> {
    if rd.array::<6>()? != [0; 6] {
        return Err(OfError::RequestMustBeZero);
    }
    let zone = Some(rd.u16()?);
    Ok(Request::CtFlush(CtFlush { zone, ..CtFlush::default() }))
}

/// NXT_CT_FLUSH.
pub(super) fn decode(mut rd: Rd<'_>) -> Result<Request> {
    let proto = rd.u8()?;
    if rd.array::<7>()? != [0; 7] {
        return Err(OfError::RequestMustBeZero);
    }
    let mut flush = CtFlush { proto: (proto != 0).then_some(proto), ..CtFlush::default() };
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        match kind {
            ORIG_TUPLE => flush.orig = tuple(body)?,
            REPLY_TUPLE => flush.reply = tuple(body)?,
            ZONE_ID => flush.zone = Some(body.u16().map_err(|_| OfError::PropBadLen)?),
            // What is not known is passed over, as in OVS.
            _ => {}
        }
    }
    let addresses = [flush.orig.src, flush.orig.dst, flush.reply.src, flush.reply.dst];
    let mut families = addresses.iter().flatten().map(IpAddr::is_ipv6);
    let first = families.next();
    match families.any(|v6| Some(v6) != first) {
        true => Err(OfError::PropBadValue),
        false => Ok(Request::CtFlush(flush)),
    }
}

/// Properties within a property, which begin 8 bytes behind its start. A zero says nothing.
fn tuple(mut rd: Rd<'_>) -> Result<CtTuple> {
    let bad = |_| OfError::PropBadLen;
    rd.skip(4).map_err(bad)?;
    let mut t = CtTuple::default();
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        let nonzero = |n: u16| (n != 0).then_some(n);
        match kind {
            0 => t.src = address(body.array().map_err(bad)?),
            1 => t.dst = address(body.array().map_err(bad)?),
            2 => t.sport = nonzero(body.u16().map_err(bad)?),
            3 => t.dport = nonzero(body.u16().map_err(bad)?),
            4 => t.icmp_id = nonzero(body.u16().map_err(bad)?),
            5 => t.icmp_type = Some(body.u8().map_err(bad)?),
            6 => t.icmp_code = Some(body.u8().map_err(bad)?),
            // What is not known is passed over, as in OVS.
            _ => {}
        }
    }
    Ok(t)
}

/// IPv4 addresses are mapped ones.
fn address(bytes: [u8; 16]) -> Option<IpAddr> {
    let address = Ipv6Addr::from(bytes);
    let v4 = address.to_ipv4_mapped().map(IpAddr::V4);
    (!address.is_unspecified()).then(|| v4.unwrap_or(IpAddr::V6(address)))
}
