//! Writes translated addresses and ports into a packet; checksums follow.

use crate::conn::Translation;
use crate::extract::{Place, Seen};
use crate::tuple::Tuple;
use wire::{IP_ICMPV6, IP_SCTP, IP_TCP, IP_UDP, IPV4_LEN, checksum, sctp_checksum};

/// Translates a packet, of which `seen` was read. `other`: the connection's tuple of the other
/// direction, whose reverse the packet has afterwards.
pub fn translate(data: &mut [u8], seen: &Seen, how: Translation, other: &Tuple) {
    let place = seen.place;
    let v6 = other.v6;
    let to = other.reversed();
    if !seen.related {
        addresses(data, place.l3, (place.l4, place.end), &to, how);
        ports(data, (place.l4, place.end), &to, true);
        return;
    }
    let (l3, l4) = place.inner;
    ports(data, (l4, place.end), other, false);
    addresses(data, l3, (l4, place.end), other, how.reversed());
    outer_address(data, &place, &to, how);
    fill_icmp(data, &place, v6);
}

/// [`translate`] for an IPv4 packet of TCP or UDP (`udp`) whose headers are whole: writes the
/// source address or the destination address, and both ports (the source's in the upper half).
#[inline]
pub fn translate_v4(
    data: &mut [u8],
    place: &Place,
    source: bool,
    (addr, ports): (u32, u32),
    udp: bool,
) {
    let Some(ip) = data.get_mut(place.l3..).and_then(|b| b.first_chunk_mut::<IPV4_LEN>()) else {
        return;
    };
    let at = if source { 12 } else { 16 };
    let old_addr = u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    ip[at..at + 4].copy_from_slice(&addr.to_be_bytes());
    let sum = u16::from_be_bytes([ip[10], ip[11]]);
    let sum = checksum::update_words(sum, old_addr.into(), addr.into());
    ip[10..12].copy_from_slice(&sum.to_be_bytes());

    let sum_at = if udp { 6 } else { 16 };
    let Some(l4) = data.get_mut(place.l4..).filter(|b| b.len() >= sum_at + 2) else { return };
    let old_ports = u32::from_be_bytes([l4[0], l4[1], l4[2], l4[3]]);
    l4[..4].copy_from_slice(&ports.to_be_bytes());
    let sum = u16::from_be_bytes([l4[sum_at], l4[sum_at + 1]]);
    if udp && sum == 0 {
        return;
    }
    let ends = |addr: u32, ports: u32| u64::from(addr) << 32 | u64::from(ports);
    let sum = match checksum::update_words(sum, ends(old_addr, old_ports), ends(addr, ports)) {
        0 if udp => 0xffff,
        sum => sum,
    };
    l4[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Writes an address into an IP header, and updates the checksums that cover it.
fn addresses(data: &mut [u8], l3: usize, l4: (usize, usize), to: &Tuple, how: Translation) {
    let (value, source) = match how {
        Translation::None => return,
        Translation::Source => (to.src, true),
        Translation::Destination => (to.dst, false),
    };
    let (at, len) = match (to.v6, source) {
        (true, true) => (l3 + 8, 16),
        (true, false) => (l3 + 24, 16),
        (false, true) => (l3 + 12, 4),
        (false, false) => (l3 + 16, 4),
    };
    let new = value.to_be_bytes();
    let new = &new[16 - len..];
    let mut old = [0; 16];
    old[..len].copy_from_slice(&data[at..at + len]);
    data[at..at + len].copy_from_slice(new);
    if !to.v6 {
        patch_sum(data, l3 + 10, &old[..len], new, false);
    }
    if let Some(sum) = sum_place(to, l4)
        && (to.proto != IP_ICMPV6 || to.v6)
    {
        patch_sum(data, sum, &old[..len], new, to.proto == IP_UDP);
    }
}

/// Offset of the L4 checksum that covers the addresses; None: there is none, or it is cut off.
fn sum_place(tuple: &Tuple, (l4, end): (usize, usize)) -> Option<usize> {
    let at = match (tuple.proto, tuple.v6) {
        (IP_TCP, _) => l4 + 16,
        (IP_UDP, _) => l4 + 6,
        (IP_ICMPV6, true) => l4 + 2,
        _ => return None,
    };
    (at + 2 <= end).then_some(at)
}

/// Updates the checksum at `at`, after the bytes `old` that it covers became `new`.
fn patch_sum(data: &mut [u8], at: usize, old: &[u8], new: &[u8], udp: bool) {
    let sum = u16::from_be_bytes([data[at], data[at + 1]]);
    let sum = match udp {
        true => checksum::update_udp(sum, 0, old, new),
        false => checksum::update(sum, 0, old, new),
    };
    data[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Writes ports. A packet that is not `whole` (cited in an ICMP error) keeps its CRC: that covers
/// bytes that are not there.
fn ports(data: &mut [u8], (l4, end): (usize, usize), to: &Tuple, whole: bool) {
    if !matches!(to.proto, IP_TCP | IP_UDP | IP_SCTP) || l4 + 4 > end {
        return;
    }
    let mut new = [0; 4];
    new[..2].copy_from_slice(&to.sport.to_be_bytes());
    new[2..].copy_from_slice(&to.dport.to_be_bytes());
    let old: [u8; 4] = data[l4..l4 + 4].try_into().unwrap();
    if old == new {
        return;
    }
    data[l4..l4 + 4].copy_from_slice(&new);
    if to.proto == IP_SCTP {
        if whole && let Some(sum) = sctp_checksum(&data[l4..end]) {
            data[l4 + 8..l4 + 12].copy_from_slice(&sum);
        }
    } else if let Some(sum) = sum_place(to, (l4, end)) {
        patch_sum(data, sum, &old, &new, to.proto == IP_UDP);
    }
}

/// Translates the address of the packet that carries an ICMP error, and updates that packet's IP
/// checksum. [`fill_icmp`] computes the checksum of the error afterwards.
fn outer_address(data: &mut [u8], place: &Place, to: &Tuple, how: Translation) {
    addresses(data, place.l3, (place.end, place.end), to, how);
}

/// Computes the checksum of an ICMP error anew.
fn fill_icmp(data: &mut [u8], place: &Place, v6: bool) {
    let at = place.l4 + 2;
    data[at..at + 2].fill(0);
    let b = &data[place.l4..place.end];
    let sum = match v6 {
        true => {
            let address = |at| data[at..at + 16].try_into().unwrap();
            let (src, dst) = (address(place.l3 + 8), address(place.l3 + 24));
            checksum::pseudo_v6(&src, &dst, IP_ICMPV6, b.len()).bytes(b).finish()
        }
        false => checksum::internet(b),
    };
    data[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
