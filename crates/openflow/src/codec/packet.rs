//! Packet-out and packet-in.

use super::begun::{append, begin, begin_exp};
use super::flow_mod::put_nx_match;
use super::kinds::Kind;
use super::{Dialect, NX, continuation_codec, port::check_port};
use crate::actions::decode_actions;
use crate::buf::{Put, Rd, Result};
use crate::matching::{decode_match, encode_match, encode_oxm_list};
use crate::oxm::{port_from_10, port_to_10};
use crate::{Match, NO_BUFFER, OfError, PacketIn, PacketInFormat, PacketOut, Reason, Request};
use crate::{Version, port};
use flow::{Field, Key};

const NXT_PACKET_IN: u32 = 17;
const NXT_PACKET_IN2: u32 = 30;
/// More packet data than this is cut, so that the message with its match and properties fits.
const MAX_DATA: usize = 60_000;

/// A match of the input port only.
fn in_port_match(port: u32) -> Match {
    let mut m = Match::default();
    Field::InPort.set(&mut m.key, u128::from(port));
    Field::InPort.unwildcard(&mut m.mask);
    m
}

/// An input port that a packet-out may name: a port, LOCAL, CONTROLLER, or ANY for none.
fn check_in_port(p: u32) -> Result<()> {
    let plain = p < port::MAX || matches!(p, port::LOCAL | port::CONTROLLER | port::ANY);
    if plain { Ok(()) } else { Err(OfError::RequestBadPort) }
}

/// Bytes of an Ethernet header: shorter packets are filled up with zeros, as on a wire.
const ETHERNET_HEADER: usize = 14;

/// PACKET_OUT. A packet in a buffer brings no data.
pub(super) fn decode_packet_out(version: Version, mut rd: Rd<'_>) -> Result<Request> {
    let buffer_id = rd.u32()?;
    let (matching, actions) = match version {
        Version::V10 => {
            let in_port = port_from_10(rd.u16()?);
            let len = usize::from(rd.u16()?);
            (in_port_match(in_port), rd.bytes(len)?)
        }
        Version::V15 => {
            let len = usize::from(rd.u16()?);
            rd.skip(2)?;
            let (matching, used) = decode_match(version, rd.0)?;
            rd.skip(used)?;
            (with_in_port(matching)?, rd.bytes(len)?)
        }
        _ => {
            let in_port = check_port(rd.u32()?, OfError::ActBadOutPort)?;
            let len = usize::from(rd.u16()?);
            rd.skip(6)?;
            (in_port_match(in_port), rd.bytes(len)?)
        }
    };
    let actions = decode_actions(version, actions)?;
    check_in_port(Field::InPort.get(&matching.key) as u32)?;
    let mut data = if buffer_id == NO_BUFFER { rd.rest().to_vec() } else { Vec::new() };
    if buffer_id == NO_BUFFER && data.len() < ETHERNET_HEADER {
        data.resize(ETHERNET_HEADER, 0);
    }
    Ok(Request::PacketOut(PacketOut { buffer_id, matching, actions, data }))
}

/// 1.5 requires the input port and takes pipeline fields only.
fn with_in_port(matching: Match) -> Result<Match> {
    if Field::InPort.get(&matching.mask) != Field::InPort.full() {
        return Err(OfError::RequestBadPort);
    }
    Ok(matching)
}

/// The reason's number; before 1.4 everything but a miss and a bad TTL is "action".
pub(super) fn reason(version: Version, r: Reason) -> u8 {
    match r {
        Reason::ActionSet | Reason::Group | Reason::PacketOut if version < Version::V14 => {
            Reason::Action as u8
        }
        _ => r as u8,
    }
}

/// PACKET_IN, or Nicira's in the format asked for.
pub(super) fn encode_packet_in(dialect: Dialect, xid: u32, p: &PacketIn) -> Vec<u8> {
    match dialect.packet_in {
        PacketInFormat::Nxt => packet_in_nx(dialect.version, xid, p),
        PacketInFormat::Nxt2 => packet_in_nx2(dialect.version, xid, p),
        PacketInFormat::Standard => packet_in_standard(dialect.version, xid, p),
    }
}

fn data(p: &PacketIn) -> &[u8] {
    &p.data[..p.data.len().min(MAX_DATA)]
}

fn packet_in_standard(version: Version, xid: u32, p: &PacketIn) -> Vec<u8> {
    let mut m = begin(version, Kind::PacketIn, xid);
    let in_port = Field::InPort.get(&p.matching.key) as u32;
    m.u32(p.buffer_id);
    if version == Version::V11 {
        m.u32(in_port);
        m.u32(in_port);
    }
    m.u16(p.total_len);
    if version == Version::V10 {
        m.u16(port_to_10(in_port));
        m.u8(reason(version, p.reason));
        m.pad(1);
        append(&mut m, data(p));
        return m;
    }
    m.u8(reason(version, p.reason));
    m.u8(p.table);
    if version >= Version::V13 {
        m.u64(p.cookie);
    }
    if version >= Version::V12 {
        encode_match(version, &p.matching, &mut m);
        m.pad(2);
    }
    append(&mut m, data(p));
    m
}

fn packet_in_nx(version: Version, xid: u32, p: &PacketIn) -> Vec<u8> {
    let mut m = begin_exp(version, xid, NX, NXT_PACKET_IN);
    m.u32(p.buffer_id);
    m.u16(p.total_len);
    m.u8(reason(version, p.reason));
    m.u8(p.table);
    m.u64(p.cookie);
    let at = m.len();
    m.pad(8);
    put_nx_match(&p.matching, at, &mut m);
    m.pad(2);
    append(&mut m, data(p));
    m
}

fn packet_in_nx2(version: Version, xid: u32, p: &PacketIn) -> Vec<u8> {
    let mut m = begin_exp(version, xid, NX, NXT_PACKET_IN2);
    let room = MAX_DATA.saturating_sub(p.userdata.len());
    let packet = &p.data[..p.data.len().min(room)];
    m.property(0, |m| m.raw(packet));
    if usize::from(p.total_len) > packet.len() {
        m.property(1, |m| m.u32(u32::from(p.total_len)));
    }
    if p.buffer_id != NO_BUFFER {
        m.property(2, |m| m.u32(p.buffer_id));
    }
    m.property(3, |m| m.u8(p.table));
    if p.cookie != u64::MAX {
        m.property(4, |m| {
            m.pad(4);
            m.u64(p.cookie);
        });
    }
    m.property(5, |m| m.u8(p.reason as u8));
    if p.matching.mask != Key::ZERO {
        m.property(6, |m| encode_oxm_list(version, &p.matching, m));
    }
    if let Some(state) = &p.continuation {
        m.property(8, |m| continuation_codec::encode(version, state, m));
    }
    if !p.userdata.is_empty() {
        m.property(7, |m| m.raw(&p.userdata));
    }
    m
}
