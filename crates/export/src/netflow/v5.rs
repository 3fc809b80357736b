//! NetFlow version 5 on the wire: a header of 24 bytes and up to 30 records of 48 (Cisco, "NetFlow
//! Export Datagram Format", tables B-3 and B-4).

use super::{IpFlow, NetFlowSettings};
use crate::Traffic;
use crate::bytes::Put;
use wire::IP_ICMP;

/// Records of one datagram, at most.
pub(crate) const RECORDS_MAX: u16 = 30;
/// Where the header's count of records is.
const COUNT_AT: usize = 2;
/// Where the header's time since 1970 is: seconds, nanoseconds.
const WALL_AT: usize = 8;
const VERSION: u16 = 5;
/// DSCP in a TOS byte.
const DSCP: u8 = 0xfc;
/// Bits of the interface fields that the engine's id takes where it is to be in them.
const ENGINE_BITS: u16 = 0x7f;
const ENGINE_SHIFT: u16 = 9;

/// What a record says besides the flow.
pub(crate) struct FlowRecord {
    pub output: u16,
    pub tcp_flags: u8,
    pub traffic: Traffic,
    /// First and last packet, ms since the exporter was made.
    pub times: (u32, u32),
}

/// A datagram without records; `uptime_ms`: since the exporter was made; `sequence`: the number of
/// records before this datagram's.
pub(crate) fn begin(s: &NetFlowSettings, uptime_ms: u32, sequence: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 + usize::from(RECORDS_MAX) * 48);
    out.u16(VERSION);
    out.u16(0);
    out.u32(uptime_ms);
    out.extend([0; 8]);
    out.u32(sequence);
    out.u8(s.engine_type);
    out.u8(s.engine_id);
    out.u16(0);
    out
}

/// Says when a datagram leaves.
pub(crate) fn stamp(out: &mut [u8], wall: (u32, u32)) {
    out[WALL_AT..WALL_AT + 4].copy_from_slice(&wall.0.to_be_bytes());
    out[WALL_AT + 4..WALL_AT + 8].copy_from_slice(&wall.1.to_be_bytes());
}

/// Adds a record; how many the datagram has then.
pub(crate) fn add(out: &mut Vec<u8>, s: &NetFlowSettings, f: &IpFlow, r: &FlowRecord) -> u16 {
    let interface = |n: u16| match s.add_id_to_interface {
        true => {
            (u16::from(s.engine_id) & ENGINE_BITS) << ENGINE_SHIFT | n & ((1 << ENGINE_SHIFT) - 1)
        }
        false => n,
    };
    out.extend(f.src);
    out.extend(f.dst);
    out.u32(0);
    out.u16(interface(f.in_port));
    out.u16(interface(r.output));
    out.u32(r.traffic.packets as u32);
    out.u32(r.traffic.bytes as u32);
    out.u32(r.times.0);
    out.u32(r.times.1);
    let (src, dst) = match f.proto {
        // Type and code are the destination port.
        IP_ICMP => (0, f.ports.0 << 8 | f.ports.1 & 0xff),
        _ => f.ports,
    };
    out.u16(src);
    out.u16(dst);
    out.u8(0);
    out.u8(r.tcp_flags);
    out.u8(f.proto);
    out.u8(f.tos & DSCP);
    // Autonomous systems and prefix lengths are not known.
    out.extend([0; 8]);
    let count = u16::from_be_bytes([out[COUNT_AT], out[COUNT_AT + 1]]) + 1;
    out[COUNT_AT..COUNT_AT + 2].copy_from_slice(&count.to_be_bytes());
    count
}
