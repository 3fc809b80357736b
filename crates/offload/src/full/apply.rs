//! The twin of an adapter: executes a rule on a packet, byte by byte. It does not use megaflows.

use port::{Edit, Fate, ForwardRule, Header};
use wire::{ETH_IPV4, ETH_IPV6, ETH_QINQ, ETH_VLAN, IP_ICMPV6, IP_TCP, IP_UDP};

const ETHERNET: usize = 14;
const TAG: usize = 4;
const TAGS: [u16; 2] = [ETH_VLAN, ETH_QINQ];

/// What a rule does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Sent out of this port of the adapter, as these bytes.
    Out(u16, Vec<u8>),
    /// Dropped.
    Dropped,
    /// Left to the host, unchanged.
    Host,
}

/// Executes the rule on the packet; None: the rule does not match it.
pub fn apply(rule: &ForwardRule, packet: &[u8]) -> Option<Sent> {
    if !matches(rule, packet) {
        return None;
    }
    let port = match rule.fate {
        Fate::Port(port) => port,
        Fate::Drop => return Some(Sent::Dropped),
        Fate::Host => return Some(Sent::Host),
    };
    let mut packet = packet.to_vec();
    rule.edits.iter().for_each(|e| edit(&mut packet, e));
    Some(Sent::Out(port, packet))
}

/// True if the rule matches the packet.
fn matches(rule: &ForwardRule, packet: &[u8]) -> bool {
    let mut at = 0;
    let mut follows = Follows::Link;
    for item in &rule.items {
        let Some((end, next)) = step(follows, item.header, packet, at) else { return false };
        let bytes = &packet[at..];
        let same = |i: usize| (bytes[i] ^ item.value[i]) & item.mask[i] == 0;
        if !(0..item.header.len()).all(same) {
            return false;
        }
        (at, follows) = (end, next);
    }
    true
}

/// What a header says of the header behind it.
#[derive(Clone, Copy)]
enum Follows {
    Link,
    Type(u16),
    Proto(u8),
    Port(u16),
}

/// Checks for this header at this offset. Returns where it ends, and what it says of the next one;
/// None: the packet has no such header, or not all of it.
fn step(f: Follows, header: Header, packet: &[u8], at: usize) -> Option<(usize, Follows)> {
    let rest = packet.get(at..).filter(|r| r.len() >= header.len())?;
    let word = |i: usize| u16::from_be_bytes([rest[i], rest[i + 1]]);
    let l4 = |proto: u8| matches!(f, Follows::Proto(p) if p == proto);
    match (header, f) {
        (Header::Ethernet, Follows::Link) => Some((at + ETHERNET, Follows::Type(word(12)))),
        (Header::Vlan, Follows::Type(t)) if TAGS.contains(&t) => {
            Some((at + TAG, Follows::Type(word(2))))
        }
        (Header::Ipv4, Follows::Type(ETH_IPV4)) if rest[0] >> 4 == 4 && rest[0] & 15 >= 5 => {
            let end = at + 4 * usize::from(rest[0] & 15);
            let later = word(6) & 0x1fff != 0;
            // In later fragments there are no headers.
            Some((end, if later { Follows::Port(0) } else { Follows::Proto(rest[9]) }))
        }
        (Header::Ipv6, Follows::Type(ETH_IPV6)) if rest[0] >> 4 == 6 => {
            Some((at + 40, Follows::Proto(rest[6])))
        }
        (Header::Tcp, _) if l4(IP_TCP) => Some((at + 20, Follows::Port(0))),
        (Header::Udp, _) if l4(IP_UDP) => Some((at + 8, Follows::Port(word(2)))),
        (Header::Sctp, _) if l4(132) => Some((at + 12, Follows::Port(0))),
        (Header::Icmp, _) if l4(1) => Some((at + 8, Follows::Port(0))),
        (Header::Icmp6, _) if l4(IP_ICMPV6) => Some((at + 4, Follows::Port(0))),
        (Header::Vxlan, Follows::Port(4789)) => Some((at + 8, Follows::Link)),
        _ => None,
    }
}

/// Offset of L3, and its Ethertype.
fn l3(packet: &[u8]) -> (usize, u16) {
    let mut at = ETHERNET;
    loop {
        let kind = u16::from_be_bytes([packet[at - 2], packet[at - 1]]);
        if !TAGS.contains(&kind) || packet.len() < at + TAG {
            return (at, kind);
        }
        at += TAG;
    }
}

/// Offset of L4, and its protocol.
fn l4(packet: &[u8]) -> (usize, u8) {
    let (at, kind) = l3(packet);
    match kind {
        ETH_IPV4 => (at + 4 * usize::from(packet[at] & 15), packet[at + 9]),
        _ => (at + 40, packet[at + 6]),
    }
}

fn edit(packet: &mut Vec<u8>, edit: &Edit) {
    let (ip, _) = l3(packet);
    match edit {
        Edit::MacDst(mac) => packet[..6].copy_from_slice(mac),
        Edit::MacSrc(mac) => packet[6..12].copy_from_slice(mac),
        Edit::Ipv4Src(v) => write(packet, ip + 12, v, true),
        Edit::Ipv4Dst(v) => write(packet, ip + 16, v, true),
        Edit::Ipv6Src(v) => write(packet, ip + 8, v, true),
        Edit::Ipv6Dst(v) => write(packet, ip + 24, v, true),
        Edit::Ttl(v) => {
            let at = if l3(packet).1 == ETH_IPV4 { 8 } else { 7 };
            write(packet, ip + at, &[*v], false);
        }
        Edit::TpSrc(v) => {
            let at = l4(packet).0;
            write(packet, at, &v.to_be_bytes(), true);
        }
        Edit::TpDst(v) => {
            let at = l4(packet).0 + 2;
            write(packet, at, &v.to_be_bytes(), true);
        }
        Edit::PopVlan => drop(packet.drain(12..12 + TAG)),
        Edit::PushVlan { tpid, tci } => {
            let tag = u32::from(*tpid) << 16 | u32::from(*tci);
            packet.splice(12..12, tag.to_be_bytes());
        }
        Edit::VxlanDecap => {
            let udp = l4(packet).0;
            packet.drain(..udp + 16);
        }
        Edit::VxlanEncap(headers) => encapsulate(packet, headers),
    }
}

/// Writes bytes of IP or L4, and computes checksums again. `covered`: the L4 checksum covers these
/// bytes.
fn write(packet: &mut [u8], at: usize, value: &[u8], covered: bool) {
    packet[at..at + value.len()].copy_from_slice(value);
    let (ip, kind) = l3(packet);
    if kind == ETH_IPV4 {
        let end = ip + 4 * usize::from(packet[ip] & 15);
        packet[ip + 10..ip + 12].fill(0);
        let sum = !fold(sum(&packet[ip..end]));
        packet[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    if covered {
        checksum(packet, ip, kind);
    }
}

/// Computes the L4 checksum, which covers addresses. A UDP datagram without a checksum gets none.
fn checksum(packet: &mut [u8], ip: usize, kind: u16) {
    let (at, proto) = l4(packet);
    let field = match proto {
        IP_TCP => at + 16,
        IP_UDP => at + 6,
        IP_ICMPV6 if kind == ETH_IPV6 => at + 2,
        _ => return,
    };
    let (addresses, end) = match kind {
        ETH_IPV4 => (ip + 12..ip + 20, ip + usize::from(word(packet, ip + 2))),
        _ => (ip + 8..ip + 40, ip + 40 + usize::from(word(packet, ip + 4))),
    };
    if end > packet.len() || field + 2 > end {
        return;
    }
    if proto == IP_UDP && word(packet, field) == 0 {
        return;
    }
    packet[field..field + 2].fill(0);
    let pseudo = sum(&packet[addresses]) + u64::from(proto) + (end - at) as u64;
    let sum = !fold(pseudo + sum(&packet[at..end]));
    let sum = if sum == 0 && proto == IP_UDP { 0xffff } else { sum };
    packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn word(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2);
    pairs.map(|p| u64::from(u16::from_be_bytes([p[0], p.get(1).copied().unwrap_or(0)]))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Puts outer headers in front and fills in their lengths. The UDP source port is the template's,
/// whereas adapters compute one.
fn encapsulate(packet: &mut Vec<u8>, headers: &[u8]) {
    let inner = packet.len();
    packet.splice(0..0, headers.iter().copied());
    let (ip, kind) = l3(packet);
    let at = l4(packet).0;
    let udp = ((headers.len() - at + inner) as u16).to_be_bytes();
    packet[at + 4..at + 6].copy_from_slice(&udp);
    match kind {
        ETH_IPV4 => {
            let total = ((headers.len() - ip + inner) as u16).to_be_bytes();
            write(packet, ip + 2, &total, false);
        }
        _ => packet[ip + 4..ip + 6].copy_from_slice(&udp),
    }
}
