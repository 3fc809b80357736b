//! Requests: bytes to [`Request`].

use super::kinds::Kind;
use super::{Dialect, ReplyTo, bundle, config, experimenter, flow_mod, group, hello, lengths};
use super::{meter, multipart, packet, port, queue, table};
use crate::buf::{Rd, Result};
use crate::framing::{HEADER_LEN, MessageHeader};
use crate::{BundleStep, OfError, Reply, Request};

/// Bytes of the offending message that go into an error reply: all of it, as far as it fits. The
/// specification asks for 64 at least; tools can print what is whole.
pub const ERROR_DATA: usize = 65_000;

/// Why a message was refused, with what the error reply needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Transaction id of the message.
    pub xid: u32,
    /// What is wrong.
    pub error: OfError,
    /// The beginning of the message.
    pub data: Vec<u8>,
}

impl DecodeError {
    /// An error about `message` (a whole message with its header).
    pub fn new(error: OfError, message: &[u8]) -> DecodeError {
        let xid = MessageHeader::read(message).map_or(0, |h| h.xid);
        DecodeError { xid, error, data: message[..message.len().min(ERROR_DATA)].to_vec() }
    }

    /// The error reply to send.
    pub fn reply(self) -> Reply {
        Reply::Error { error: self.error, data: self.data }
    }
}

/// Decodes one whole message from a controller.
///
/// HELLO, ERROR and echoes are taken in any version but 0; everything else must have the dialect's.
///
/// # Errors [`DecodeError`] with the OpenFlow error that the specification (or OVS, where it says
/// nothing) gives: `BadLen`, `BadVersion`, `BadType`, `BadStat`, `BadExperimenter`, `BadExpType`
/// and those of the parts.
pub fn decode(
    dialect: impl Into<Dialect>,
    message: &[u8],
) -> std::result::Result<(ReplyTo, Request), DecodeError> {
    decode_parts(dialect.into(), message, 0).map_err(|e| DecodeError::new(e, message))
}

/// ERROR and the echoes, which have the same numbers and form in all versions.
const ANY_VERSION: std::ops::RangeInclusive<u8> = 1..=3;

/// `depth`: how many bundle messages are around this one.
pub(super) fn decode_parts(
    dialect: Dialect,
    message: &[u8],
    depth: u8,
) -> Result<(ReplyTo, Request)> {
    let header = MessageHeader::read(message).ok_or(OfError::BadLen)?;
    if usize::from(header.len) != message.len() {
        return Err(OfError::BadLen);
    }
    let body = Rd(&message[HEADER_LEN..]);
    let mut to = ReplyTo::from(header.xid);
    if header.version == 0 {
        return Err(OfError::BadVersion);
    }
    if header.kind == 0 {
        let versions = hello::offered(header.version, body.0);
        return Ok((to, Request::Hello { versions }));
    }
    let foreign = header.version != dialect.version as u8;
    let any_version = ANY_VERSION.contains(&header.kind) && (header.kind != 1 || body.left() >= 4);
    if foreign && !any_version {
        return Err(OfError::BadVersion);
    }
    let kind = Kind::from_wire(dialect.version, header.kind).ok_or(OfError::BadType)?;
    if !lengths::of(dialect.version, kind).fits(body.left()) {
        return Err(OfError::BadLen);
    }
    let request = by_kind(dialect, kind, body, &mut to, depth)?;
    Ok((to, request))
}

fn by_kind(
    dialect: Dialect,
    kind: Kind,
    mut body: Rd<'_>,
    to: &mut ReplyTo,
    depth: u8,
) -> Result<Request> {
    let version = dialect.version;
    match kind {
        Kind::Error => {
            Ok(Request::Error { kind: body.u16()?, code: body.u16()?, data: body.rest().to_vec() })
        }
        Kind::EchoRequest => Ok(Request::EchoRequest(body.rest().to_vec())),
        Kind::EchoReply => Ok(Request::EchoReply(body.rest().to_vec())),
        Kind::Experimenter => experimenter::decode(dialect, body, to, depth),
        Kind::FeaturesRequest => empty(body, Request::Features),
        Kind::GetConfigRequest => empty(body, Request::GetConfig),
        Kind::SetConfig => config::decode_switch_config(version, body),
        Kind::PacketOut => packet::decode_packet_out(version, body),
        Kind::FlowMod => flow_mod::decode(dialect, body),
        Kind::GroupMod => group::decode_mod(version, body),
        Kind::PortMod => port::decode_mod(version, body),
        Kind::TableMod => table::decode_mod(version, body),
        Kind::MeterMod => meter::decode_mod(body),
        Kind::MultipartRequest => multipart::decode(version, body, to),
        Kind::BarrierRequest => empty(body, Request::Barrier),
        Kind::QueueGetConfigRequest => queue::decode_get_config(version, body),
        Kind::RoleRequest => config::decode_role(body),
        Kind::GetAsyncRequest => empty(body, Request::GetAsync),
        Kind::SetAsync => config::decode_async(version, body),
        Kind::BundleControl => bundle::decode_control(body),
        Kind::BundleAdd => bundle::decode_add(dialect, to.xid, body, depth),
        _ => Err(OfError::BadType),
    }
}

/// A message without a body.
pub(super) fn empty(body: Rd<'_>, request: Request) -> Result<Request> {
    if body.is_empty() { Ok(request) } else { Err(OfError::BadLen) }
}

impl BundleStep {
    /// The step with this wire number.
    pub(super) fn from_wire(n: u16) -> Option<BundleStep> {
        use BundleStep::*;
        let all = [
            OpenRequest,
            OpenReply,
            CloseRequest,
            CloseReply,
            CommitRequest,
            CommitReply,
            DiscardRequest,
            DiscardReply,
        ];
        all.get(usize::from(n)).copied()
    }
}
