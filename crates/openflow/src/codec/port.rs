//! Ports: numbers, features, descriptions, status, port-mod, statistics.

use super::begun::{MAX_LEN, begin};
use super::kinds::Kind;
use crate::buf::{Put, Rd, Result};
use crate::oxm::{port_from_10, port_is_valid, port_to_10};
use crate::{
    OfError, OfPort, PortDesc, PortMod, PortStats, Request, Version, port_config, port_state,
};

/// Capabilities: flow, table, port and queue statistics; 1.0 and 1.1 also ARP_MATCH_IP, 1.1+ group
/// statistics; 1.4+ bundles (ovs-vswitchd claims as much, and no flow monitors).
fn capabilities(version: Version) -> u32 {
    const FLOW_TABLE_PORT_QUEUE: u32 = 1 | 2 | 4 | 64;
    match version {
        Version::V10 => FLOW_TABLE_PORT_QUEUE | 128,
        Version::V11 => FLOW_TABLE_PORT_QUEUE | 8 | 128,
        Version::V12 | Version::V13 => FLOW_TABLE_PORT_QUEUE | 8,
        Version::V14 | Version::V15 => FLOW_TABLE_PORT_QUEUE | 8 | 1 << 9,
    }
}

/// FEATURES_REPLY. Before 1.3 it lists the ports, as many as fit.
pub(super) fn features(
    version: Version,
    xid: u32,
    dpid: u64,
    n_buffers: u32,
    n_tables: u8,
    ports: &[PortDesc],
) -> Vec<u8> {
    let mut m = begin(version, Kind::FeaturesReply, xid);
    m.u64(dpid);
    m.u32(n_buffers);
    m.u8(n_tables);
    m.pad(3);
    m.u32(capabilities(version));
    // 1.0: every OFPAT_* up to ENQUEUE; reserved later.
    m.u32(if version == Version::V10 { 0xfff } else { 0 });
    if version < Version::V13 {
        for desc in ports {
            let start = m.len();
            put_desc(version, desc, &mut m);
            if m.len() > MAX_LEN {
                m.truncate(start);
                break;
            }
        }
    }
    m
}

/// A port number in the version's width.
pub(super) fn put_port(version: Version, port: OfPort, m: &mut Vec<u8>) {
    if version == Version::V10 { m.u16(port_to_10(port)) } else { m.u32(port) }
}

/// A 32-bit port number that may only be a 16-bit or a reserved one.
pub(super) fn check_port(port: OfPort, error: OfError) -> Result<OfPort> {
    if port_is_valid(port) { Ok(port) } else { Err(error) }
}

/// Reads a port number in the version's width; [`OfError::ActBadOutPort`] (as from OVS, whatever
/// the message) for one that cannot be.
pub(super) fn get_port(version: Version, rd: &mut Rd<'_>) -> Result<OfPort> {
    match version {
        Version::V10 => Ok(port_from_10(rd.u16()?)),
        _ => check_port(rd.u32()?, OfError::ActBadOutPort),
    }
}

/// `OFPPF_*` bits of 1.1+ as those of 1.0: 40G, 100G, 1T and OTHER do not exist there.
fn features10(bits: u32) -> u32 {
    bits & 0x7f | (bits >> 4) & 0xf80
}

/// `ofp_phy_port` (1.0) or `ofp_port`.
pub(super) fn put_desc(version: Version, d: &PortDesc, m: &mut Vec<u8>) {
    let start = m.len();
    let wide = version != Version::V10;
    put_port(version, d.port, m);
    if wide {
        m.pad(4); // the length in 1.4+
    }
    m.raw(&d.hw_addr);
    m.pad(if wide { 2 } else { 0 });
    m.text(&d.name, 16);
    m.u32(if wide { d.config & CONFIG11 } else { d.config });
    let known = if wide { !port_state::STP_MASK } else { STATE10 };
    m.u32(d.state & known);
    let link = [d.curr, d.advertised, d.supported, d.peer];
    match version {
        Version::V10 => link.iter().for_each(|f| m.u32(features10(*f))),
        Version::V11 | Version::V12 | Version::V13 => put_link(&link, d, m),
        Version::V14 | Version::V15 => {
            m.property(0, |m| {
                m.pad(4);
                put_link(&link, d, m);
            });
            m.patch_len(start + 4, start);
        }
    }
}

/// Configuration bits that exist in 1.1+.
const CONFIG11: u32 =
    port_config::PORT_DOWN | port_config::NO_RECV | port_config::NO_FWD | port_config::NO_PACKET_IN;
/// Bits of `OFPPC_*` that OpenFlow 1.0 has.
const CONFIG10: u32 = 0x7f;

/// Bits of `OFPPS_*` that OpenFlow 1.0 has.
const STATE10: u32 = port_state::LINK_DOWN | port_state::STP_MASK;

fn put_link(link: &[u32; 4], d: &PortDesc, m: &mut Vec<u8>) {
    link.iter().for_each(|f| m.u32(*f));
    m.u32(d.curr_speed);
    m.u32(d.max_speed);
}

/// PORT_STATUS; reason: 0 added, 1 deleted, 2 modified.
pub(super) fn status(version: Version, xid: u32, reason: u8, d: &PortDesc) -> Vec<u8> {
    let mut m = begin(version, Kind::PortStatus, xid);
    m.u8(reason);
    m.pad(7);
    put_desc(version, d, &mut m);
    m
}

/// PORT_MOD.
pub(super) fn decode_mod(version: Version, mut rd: Rd<'_>) -> Result<Request> {
    let wide = version != Version::V10;
    let port = get_port(version, &mut rd)?;
    rd.skip(if wide { 4 } else { 0 })?;
    let hw_addr = rd.array()?;
    rd.skip(if wide { 2 } else { 0 })?;
    let known = if wide { CONFIG11 } else { CONFIG10 };
    let (config, mask) = (rd.u32()? & known, rd.u32()? & known);
    let mut advertise = 0;
    if version >= Version::V14 {
        while !rd.is_empty() {
            let (kind, mut body) = rd.property()?;
            match kind {
                0 => advertise = body.only_u32()?,
                _ => return Err(body.unknown_property(kind, 0xffff)),
            }
        }
    } else {
        advertise = rd.u32()?;
        rd.skip(4)?;
        if !wide {
            advertise = advertise & 0x7f | (advertise & 0xf80) << 4;
        }
    }
    Ok(Request::PortMod(PortMod { port, hw_addr, config, mask, advertise }))
}

/// One port's statistics.
pub(super) fn put_stats(version: Version, s: &PortStats, m: &mut Vec<u8>) {
    let start = m.len();
    let common = [
        s.rx_packets,
        s.tx_packets,
        s.rx_bytes,
        s.tx_bytes,
        s.rx_dropped,
        s.tx_dropped,
        s.rx_errors,
        s.tx_errors,
    ];
    let ethernet = [s.rx_frame_err, s.rx_over_err, s.rx_crc_err, s.collisions];
    if version >= Version::V14 {
        m.pad(4);
        m.u32(s.port);
        m.duration(s.duration_ns);
        common.iter().for_each(|c| m.u64(*c));
        m.property(0, |m| {
            m.pad(4);
            ethernet.iter().for_each(|c| m.u64(*c));
        });
        if !s.custom.is_empty() {
            m.property(EXPERIMENTER, |m| put_custom(&s.custom, m));
        }
        m.patch_len(start, start);
        return;
    }
    put_port(version, s.port, m);
    m.align8(start);
    common.iter().chain(&ethernet).for_each(|c| m.u64(*c));
    if version == Version::V13 {
        m.duration(s.duration_ns);
    }
}

const EXPERIMENTER: u16 = 0xffff;
/// Intel's experimenter id, under which ovs-vswitchd sends counters with names.
const INTEL: u32 = 0x0000_aa01;
const CUSTOM_STATS: u32 = 2;

/// A count, then name length, name and value of each. As many as one port may sensibly have.
fn put_custom(counters: &[(String, u64)], m: &mut Vec<u8>) {
    const MOST: usize = 200;
    let counters = &counters[..counters.len().min(MOST)];
    m.u32(INTEL);
    m.u32(CUSTOM_STATS);
    m.pad(2);
    m.u16(counters.len() as u16);
    for (name, value) in counters {
        let name = &name.as_bytes()[..name.len().min(64)];
        m.u8(name.len() as u8);
        m.raw(name);
        m.u64(*value);
    }
}

/// The port of a port-statistics or (1.5) port-description request.
pub(super) fn decode_stats_request(version: Version, mut rd: Rd<'_>) -> Result<OfPort> {
    let port = get_port(version, &mut rd)?;
    rd.skip(if version == Version::V10 { 6 } else { 4 })?;
    if rd.is_empty() { Ok(port) } else { Err(OfError::BadLen) }
}
