//! Queues: configuration until 1.3, description from 1.4 on, statistics.

use super::begun::begin;
use super::kinds::Kind;
use super::port::{get_port, put_port};
use crate::buf::{Put, Rd, Result};
use crate::{OfError, OfPort, Queue, QueueStats, Request, Version, port};

const NS_PER_S: u64 = 1_000_000_000;

/// The port and queue of a queue request.
pub(super) fn decode_request(version: Version, mut rd: Rd<'_>) -> Result<(OfPort, u32)> {
    let port = any_port(get_port(version, &mut rd)?, version);
    rd.skip(if version == Version::V10 { 2 } else { 0 })?;
    let queue = rd.u32()?;
    if rd.is_empty() { Ok((port, queue)) } else { Err(OfError::BadLen) }
}

/// All ports are ALL in 1.0 and ANY later.
fn any_port(port: OfPort, version: Version) -> OfPort {
    if version == Version::V10 && port == port::ALL { port::ANY } else { port }
}

/// QUEUE_GET_CONFIG_REQUEST (until 1.3).
pub(super) fn decode_get_config(version: Version, mut rd: Rd<'_>) -> Result<Request> {
    let port = any_port(get_port(version, &mut rd)?, version);
    // LOCAL has no queues, and 1.0 does not ask for all of them.
    if port >= port::MAX && (port != port::ANY || version == Version::V10) {
        return Err(OfError::QueueBadPort);
    }
    Ok(Request::QueueGetConfig { port })
}

/// QUEUE_GET_CONFIG_REPLY; no queue has properties.
pub(super) fn config(version: Version, xid: u32, port: OfPort, queues: &[Queue]) -> Vec<u8> {
    let mut m = begin(version, Kind::QueueGetConfigReply, xid);
    put_port(version, port, &mut m);
    m.align8(0);
    for queue in queues {
        let start = m.len();
        m.u32(queue.id);
        if version >= Version::V12 {
            m.u32(queue.port);
        }
        let at = m.len();
        m.pad(4);
        m.align8(start);
        m.patch_len(at, start);
    }
    m
}

/// One queue of a queue-description reply (1.4+).
pub(super) fn put_desc(queue: &Queue, m: &mut Vec<u8>) {
    let start = m.len();
    m.u32(queue.port);
    m.u32(queue.id);
    let at = m.len();
    m.pad(8);
    m.patch_len(at, start);
}

/// One queue of a queue-statistics reply.
pub(super) fn put_stats(version: Version, s: &QueueStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(if version >= Version::V14 { 8 } else { 0 });
    put_port(version, s.queue.port, m);
    m.pad(if version == Version::V10 { 2 } else { 0 });
    m.u32(s.queue.id);
    [s.tx_bytes, s.tx_packets, s.tx_errors].iter().for_each(|n| m.u64(*n));
    if version >= Version::V13 {
        let (seconds, rest) = (s.duration_ns / NS_PER_S, s.duration_ns % NS_PER_S);
        let known = s.duration_ns != u64::MAX;
        m.u32(if known { seconds as u32 } else { u32::MAX });
        m.u32(if known { rest as u32 } else { u32::MAX });
    }
    if version >= Version::V14 {
        m.patch_len(start, start);
    }
}
