//! Replies and asynchronous messages: [`Reply`] to bytes.

use super::begun::{append, begin, finish};
use super::kinds::Kind;
use super::{Dialect, ReplyTo, bundle, config, flow_mod, group, hello, monitor};
use super::{multipart, packet, port, queue, table, tlv};
use crate::{MultipartReply, Reply, Version, error_code};

/// Encodes a reply or an asynchronous message (`to`: `0.into()`): one message, or several for long
/// multipart replies.
pub fn encode(dialect: impl Into<Dialect>, to: impl Into<ReplyTo>, reply: &Reply) -> Vec<Vec<u8>> {
    let (dialect, to) = (dialect.into(), to.into());
    match reply {
        Reply::Multipart(reply) => multipart::encode(dialect, to, reply, false).0,
        Reply::MonitorUpdate(updates) => monitor::encode_updates(dialect, to, updates),
        _ => vec![finish(single(dialect, to, reply))],
    }
}

/// Encodes part of a multipart reply; `more` says that further parts follow (so that a caller can
/// give a million flows in pieces). Returns also how many entries are left out, as they are longer
/// than a message may be.
pub fn encode_part(
    dialect: impl Into<Dialect>,
    to: impl Into<ReplyTo>,
    reply: &MultipartReply,
    more: bool,
) -> (Vec<Vec<u8>>, usize) {
    multipart::encode(dialect.into(), to.into(), reply, more)
}

fn single(dialect: Dialect, to: ReplyTo, reply: &Reply) -> Vec<u8> {
    let (version, xid) = (dialect.version, to.xid);
    match reply {
        Reply::Hello => hello::encode_hello(xid, 1 << version as u32),
        Reply::EchoRequest(data) => with_data(version, Kind::EchoRequest, xid, data),
        Reply::EchoReply(data) => with_data(version, Kind::EchoReply, xid, data),
        Reply::Error { error, data } => {
            let mut m = begin(version, Kind::Error, xid);
            error_code::put_error(version, *error, &mut m);
            append(&mut m, data);
            m
        }
        Reply::Features { dpid, n_buffers, n_tables, ports } => {
            port::features(version, xid, *dpid, *n_buffers, *n_tables, ports)
        }
        Reply::Config(c) => config::encode_switch_config(version, xid, c),
        Reply::PacketIn(p) => packet::encode_packet_in(dialect, xid, p),
        Reply::FlowRemoved(r) => flow_mod::encode_removed(dialect, xid, r),
        Reply::PortStatus { reason, desc } => port::status(version, xid, *reason, desc),
        Reply::Barrier => begin(version, Kind::BarrierReply, xid),
        Reply::Role { role, generation } => config::encode_role(version, to, *role, *generation),
        Reply::RoleStatus { role, reason, generation } => {
            config::encode_role_status(version, xid, *role, *reason, *generation)
        }
        Reply::TableStatus { more, table: t } => table::encode_status(version, xid, *more, t),
        Reply::RequestForward { xid: theirs, group: g } => {
            group::encode_forward(version, xid, *theirs, g)
        }
        Reply::Async(a) => config::encode_async(version, xid, a),
        Reply::BundleControl { id, step, flags } => {
            bundle::encode_control(version, to, *id, *step, *flags)
        }
        Reply::QueueConfig { port, queues } => queue::config(version, xid, *port, queues),
        Reply::TlvTable { space, fields, maps } => {
            tlv::encode_table(version, to, *space, *fields, maps)
        }
        Reply::Multipart(_) | Reply::MonitorUpdate(_) => unreachable!("encoded by encode()"),
    }
}

/// A message that is only a header and data.
fn with_data(version: Version, kind: Kind, xid: u32, data: &[u8]) -> Vec<u8> {
    let mut m = begin(version, kind, xid);
    append(&mut m, data);
    m
}
