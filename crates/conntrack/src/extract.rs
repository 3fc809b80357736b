//! Reads from a packet's bytes what connection tracking needs. A packet that violates its protocol
//! is invalid (`+inv`), which is no error of the switch.

use crate::machine::{Segment, TcpSegment, WSCALE_KNOWN, WSCALE_MAX};
use crate::tuple::{Tuple, reply_type};
use wire::{
    IP_ICMP, IP_ICMPV6, IP_SCTP, IP_TCP, IP_UDP, Ipv4, Ipv6, Tcp, Udp, checksum, sctp_checksum,
    walk_extensions,
};

/// What connection tracking reads of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The packet's tuple; of an ICMP error the reverse of the tuple of the packet that it cites.
    pub tuple: Tuple,
    /// True for an ICMP error, which belongs to the connection of the packet that it cites.
    pub related: bool,
    /// What the connection's state machine reads.
    pub segment: Segment,
    /// Where headers are.
    pub place: Place,
}

/// Where in the packet headers are, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The IP header.
    pub l3: usize,
    /// The L4 header, behind the IP header and its extension headers.
    pub l4: usize,
    /// The end of the IP packet; padding follows.
    pub end: usize,
    /// The IP header and the L4 header of the packet that an ICMP error cites.
    pub inner: (usize, usize),
}

/// Why a packet is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The IP header's checksum is wrong.
    IpChecksum,
    /// The checksum of TCP, UDP, SCTP or ICMP is wrong.
    Checksum,
    /// The packet is cut short, a fragment, or of a kind that no connection has.
    Shape,
}

/// What an IP header says: addresses and protocol, where the L4 header begins, and where the packet
/// ends.
struct Network {
    tuple: Tuple,
    l4: usize,
    end: usize,
}

/// Reads a packet whose IP header is at `l3`. `sound`: the checksums are known to be right.
///
/// The packet is invalid, for the reason that is returned.
pub fn extract(data: &[u8], l3: usize, zone: u16, sound: bool) -> Result<Seen, Bad> {
    let mut net = network(data, l3, zone, true)?;
    if !sound && !net.tuple.v6 && !Ipv4::new(&data[l3..]).is_some_and(|ip| ip.checksum_ok()) {
        return Err(Bad::IpChecksum);
    }
    let b = &data[net.l4..net.end];
    let mut seen = Seen {
        tuple: net.tuple,
        related: false,
        segment: Segment::Other,
        place: Place { l3, l4: net.l4, end: net.end, inner: (0, 0) },
    };
    match net.tuple.proto {
        IP_TCP => {
            let tcp = Tcp::new(b).ok_or(Bad::Shape)?;
            seen.segment = Segment::Tcp(segment(&tcp, b));
        }
        IP_UDP => {
            let udp = Udp::new(b).ok_or(Bad::Shape)?;
            if usize::from(udp.length()) < wire::UDP_LEN || usize::from(udp.length()) > b.len() {
                return Err(Bad::Shape);
            }
        }
        _ => {}
    }
    if !sound && !checksum_ok(&net.tuple, b) {
        return Err(Bad::Checksum);
    }
    if net.tuple.is_icmp() {
        return icmp(data, seen);
    }
    ports(&mut net.tuple, b, MIN_WHOLE)?;
    seen.tuple = net.tuple;
    Ok(seen)
}

/// Bytes that must be there of TCP, UDP and SCTP headers.
const MIN_WHOLE: [usize; 3] = [wire::TCP_LEN, wire::UDP_LEN, wire::SCTP_LEN];
/// Bytes that must be there of such headers inside an ICMP error about IPv4 (RFC 792).
const MIN_CITED: [usize; 3] = [8; 3];

/// Reads an IP header. `whole`: all bytes that the header counts must be there.
#[inline]
fn network(data: &[u8], l3: usize, zone: u16, whole: bool) -> Result<Network, Bad> {
    let b = data.get(l3..).ok_or(Bad::Shape)?;
    match b.first().map(|v| v >> 4) {
        Some(4) => network_v4(b, l3, zone, whole),
        Some(6) => network_v6(b, l3, zone, whole),
        _ => Err(Bad::Shape),
    }
}

#[inline]
fn network_v4(b: &[u8], l3: usize, zone: u16, whole: bool) -> Result<Network, Bad> {
    let ip = Ipv4::new(b).ok_or(Bad::Shape)?;
    let (len, total) = (ip.header_len(), usize::from(ip.total_len()));
    if ip.is_fragment() || whole && (total < len || total > b.len()) {
        return Err(Bad::Shape);
    }
    let tuple = Tuple {
        src: u32::from_be_bytes(ip.src()).into(),
        dst: u32::from_be_bytes(ip.dst()).into(),
        proto: ip.proto(),
        zone,
        ..Tuple::default()
    };
    let end = if whole { total } else { b.len() };
    Ok(Network { tuple, l4: l3 + len, end: l3 + end })
}

fn network_v6(b: &[u8], l3: usize, zone: u16, whole: bool) -> Result<Network, Bad> {
    let ip = Ipv6::new(b).ok_or(Bad::Shape)?;
    let total = wire::IPV6_LEN + usize::from(ip.payload_len());
    if whole && total > b.len() {
        return Err(Bad::Shape);
    }
    let end = if whole { total } else { b.len() };
    let walk = walk_extensions(&b[wire::IPV6_LEN..end], ip.next()).ok_or(Bad::Shape)?;
    if walk.fragment.is_some_and(|f| f.offset != 0 || f.more) {
        return Err(Bad::Shape);
    }
    let tuple = Tuple {
        src: u128::from_be_bytes(ip.src()),
        dst: u128::from_be_bytes(ip.dst()),
        proto: walk.proto,
        v6: true,
        zone,
        ..Tuple::default()
    };
    Ok(Network { tuple, l4: l3 + wire::IPV6_LEN + walk.at, end: l3 + end })
}

/// Reads the ports, for protocols that have them. Port 0 belongs to no connection.
fn ports(tuple: &mut Tuple, b: &[u8], min: [usize; 3]) -> Result<(), Bad> {
    let min = match tuple.proto {
        IP_TCP => min[0],
        IP_UDP => min[1],
        IP_SCTP => min[2],
        _ => return Ok(()),
    };
    if b.len() < min {
        return Err(Bad::Shape);
    }
    tuple.sport = u16::from_be_bytes([b[0], b[1]]);
    tuple.dport = u16::from_be_bytes([b[2], b[3]]);
    match tuple.sport != 0 && tuple.dport != 0 {
        true => Ok(()),
        false => Err(Bad::Shape),
    }
}

/// True if the checksum of an L4 header and its payload is right, or there is none.
pub(crate) fn checksum_ok(tuple: &Tuple, b: &[u8]) -> bool {
    let pseudo = || match tuple.v6 {
        true => {
            let (src, dst) = (tuple.src.to_be_bytes(), tuple.dst.to_be_bytes());
            checksum::pseudo_v6(&src, &dst, tuple.proto, b.len())
        }
        false => {
            let (src, dst) = (tuple.src as u32, tuple.dst as u32);
            checksum::pseudo_v4(src.to_be_bytes(), dst.to_be_bytes(), tuple.proto, b.len())
        }
    };
    match (tuple.proto, tuple.v6) {
        (IP_UDP, false) if b[6..8] == [0, 0] => true,
        (IP_TCP | IP_UDP, _) | (IP_ICMPV6, true) => pseudo().bytes(b).finish() == 0,
        (IP_ICMP, false) => checksum::internet(b) == 0,
        (IP_SCTP, _) => {
            b.len() >= wire::SCTP_LEN
                && sctp_checksum(b).as_ref() == b.get(8..12).and_then(|c| c.try_into().ok())
        }
        _ => true,
    }
}

/// What the state machine reads of a TCP header and its payload.
#[inline(always)]
pub(crate) fn segment(tcp: &Tcp<&[u8]>, b: &[u8]) -> TcpSegment {
    TcpSegment {
        flags: tcp.flags(),
        seq: tcp.seq(),
        ack: tcp.ack(),
        window: tcp.window(),
        len: (b.len() - tcp.header_len()) as u32,
        wscale: match tcp.flags() & wire::tcp_flags::SYN {
            0 => 0,
            _ => window_scale(&b[wire::TCP_LEN..tcp.header_len()]),
        },
    }
}

/// The window scale option (RFC 7323) among a SYN's options, as in
/// [`crate::machine::Peer::wscale`].
#[inline(never)]
pub(crate) fn window_scale(options: &[u8]) -> u8 {
    let (mut at, mut found) = (0, 0);
    while let Some([kind, len, value]) = options.get(at..at + 3) {
        match *kind {
            0 => break,
            1 => at += 1,
            _ => {
                if *kind == 3 {
                    found = (*value).min(WSCALE_MAX) | WSCALE_KNOWN;
                }
                at += usize::from(*len).max(2);
            }
        }
    }
    found
}

/// Reads a message of ICMP or ICMPv6. An error belongs to the connection of the packet that it
/// cites.
fn icmp(data: &[u8], mut seen: Seen) -> Result<Seen, Bad> {
    let (l4, end) = (seen.place.l4, seen.place.end);
    let b = &data[l4..end];
    let v6 = seen.tuple.v6;
    let [kind, code] = b.get(..wire::ICMP_LEN).map(|b| [b[0], b[1]]).ok_or(Bad::Shape)?;
    if reply_type(kind, v6).is_some() {
        message(&mut seen.tuple, b, kind, code)?;
        let request = matches!((kind, v6), (8 | 13 | 15, false) | (128, true));
        seen.segment = Segment::Icmp { request };
        return Ok(seen);
    }
    if !matches!((kind, v6), (3 | 4 | 5 | 11 | 12, false) | (1..=4, true)) {
        return Err(Bad::Shape);
    }
    let inner = l4 + wire::ICMP_LEN;
    let net = network(&data[..end], inner, seen.tuple.zone, false)?;
    if net.tuple.v6 != v6 || net.tuple.src != seen.tuple.dst || net.l4 > end {
        return Err(Bad::Shape);
    }
    let mut cited = net.tuple;
    let b = &data[net.l4..end];
    if cited.is_icmp() {
        let [kind, code] = b.get(..wire::ICMP_LEN).map(|b| [b[0], b[1]]).ok_or(Bad::Shape)?;
        message(&mut cited, b, kind, code)?;
    } else {
        ports(&mut cited, b, if v6 { MIN_WHOLE } else { MIN_CITED })?;
    }
    seen.place.inner = (inner, net.l4);
    seen.tuple = cited.reversed();
    seen.related = true;
    Ok(seen)
}

/// Reads a query of ICMP or a reply to one: its identifier takes the place of both ports.
fn message(tuple: &mut Tuple, b: &[u8], kind: u8, code: u8) -> Result<(), Bad> {
    if reply_type(kind, tuple.v6).is_none() || code != 0 {
        return Err(Bad::Shape);
    }
    let id = u16::from_be_bytes([b[4], b[5]]);
    (tuple.sport, tuple.dport, tuple.icmp_type) = (id, id, kind);
    Ok(())
}
