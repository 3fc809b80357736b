//! Outer headers on and off (VXLAN, RFC 7348): the two-step way, which defines what is right.

use crate::interpret::Frame;
use crate::lookup::fold;
use crate::parse::{Layout, Line, UDP, bytes, bytes_mut, parse};
use action::TunnelPush;
use flow::{PortNo, at, flag, frag};
use packet::Packet;
use telemetry::Drop;
use wire::checksum::{Sum, internet, pseudo_v4, pseudo_v6};

/// The bit of `have` for key line 2, which holds most of a tunnel's fields.
pub(crate) const EXT2: u8 = 2;

/// `tun_flags` as OVS has them.
const DF: u16 = 1;
const CSUM: u16 = 2;
const KEY: u16 = 4;

const UDP_HEADER: usize = 8;
const VXLAN_HEADER: usize = 8;
/// VXLAN: "the VNI is valid", and with the group policy extension what else may be set.
const VALID: u32 = 0x0800_0000;
const GBP: u32 = 0x8000_0000;
const GBP_FLAGS: u32 = 0x0048_0000;
const GBP_ID: u32 = 0xffff;

fn be16(d: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([d[at], d[at + 1]])
}

fn be32(d: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([d[at], d[at + 1], d[at + 2], d[at + 3]])
}

/// The bits of [`at::FLAGS`] of a packet out of a tunnel, by the outer TOS.
#[inline]
pub(crate) fn tunnel_flags(tos: u8) -> u8 {
    flag::TUNNEL | if tos & 3 == 3 { flag::TUNNEL_CE } else { 0 }
}

/// A number that is the same for all packets of a flow, from their key: what tells flows apart on
/// the outer network (RFC 7348, section 5). All fragments of a datagram have that of no port.
#[inline]
pub(crate) fn entropy(line: &Line, ext1: &Line, have: u8) -> u32 {
    const PORTS: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0]);
    const NO_PORTS: u64 = u64::from_ne_bytes([0, 0, 0, 0, 0xff, 0, 0, 0]);
    let whole = bytes(line)[at::FRAG] & (frag::ANY | frag::LATER) == 0;
    let l4 = line[3] & if whole { PORTS } else { NO_PORTS };
    let mut h = fold(line[0] ^ line[1].rotate_left(32)) ^ fold(line[2] ^ l4.rotate_left(17));
    if have & 1 != 0 {
        h ^= ext1[..4].iter().fold(0, |h, w| fold(h ^ w));
    }
    (fold(h) >> 32) as u32
}

/// The UDP source port for packets of this entropy.
#[inline]
fn source_port(t: &TunnelPush, entropy: u32) -> u16 {
    let (min, max) = t.source_ports;
    min + ((u64::from(entropy) * u64::from(max - min)) >> 32) as u16
}

/// Puts the outer header in front and fills it in. Err: nothing was changed.
#[inline]
pub(crate) fn push(p: &mut Packet, t: &TunnelPush, entropy: u32) -> Result<(), Drop> {
    let (len, udp) = (t.header.len(), t.udp());
    if p.len() + len > usize::from(u16::MAX) {
        return Err(Drop::TooLong);
    }
    if !p.push_front(len) {
        return Err(Drop::NoHeadroom);
    }
    let d = p.data_mut();
    match <&[u8; 50]>::try_from(&*t.header) {
        Ok(h) => d[..50].copy_from_slice(h),
        Err(_) => d[..len].copy_from_slice(&t.header),
    }
    let behind_ip = (d.len() - udp) as u16;
    d[udp..udp + 2].copy_from_slice(&source_port(t, entropy).to_be_bytes());
    d[udp + 4..udp + 6].copy_from_slice(&behind_ip.to_be_bytes());
    if t.is_ipv6() {
        d[18..20].copy_from_slice(&behind_ip.to_be_bytes());
    } else {
        d[16..18].copy_from_slice(&(behind_ip + 20).to_be_bytes());
        let sum = internet(&d[14..34]);
        d[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    if t.checksum() {
        d[udp + 6..udp + 8].fill(0);
        let sum = udp_sum(d, t.is_ipv6(), 14, udp).finish_udp();
        d[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(())
}

/// Pseudo header and all from the UDP header to the end of `d`.
fn udp_sum(d: &[u8], ipv6: bool, l3: usize, udp: usize) -> Sum {
    let len = d.len() - udp;
    let address = |at: usize| -> [u8; 16] { d[at..at + 16].try_into().unwrap() };
    let pseudo = match ipv6 {
        true => pseudo_v6(&address(l3 + 8), &address(l3 + 24), UDP, len),
        false => {
            let v4 = |at: usize| -> [u8; 4] { d[at..at + 4].try_into().unwrap() };
            pseudo_v4(v4(l3 + 12), v4(l3 + 16), UDP, len)
        }
    };
    pseudo.bytes(&d[udp..])
}

/// An outer header as it was read.
struct Outer {
    /// Where the inner frame starts and ends.
    inner: std::ops::Range<usize>,
    /// Key line 2.
    ext2: Line,
    id: u32,
    /// IPv4's source.
    src: [u8; 4],
}

/// Takes the outer header away. `f` becomes the frame of the inner packet, fresh from tunnel port
/// `port`. Err: the header is not one that we take; nothing was changed.
pub(crate) fn pop(p: &mut Packet, port: PortNo, gbp: bool, f: &mut Frame) -> Result<(), Drop> {
    f.reparse(p.data(), f.tags);
    let outer = read(p.data(), &f.line, &f.lay, gbp)?;
    let (start, end) = (outer.inner.start, outer.inner.end);
    let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
    let limit = f.vlan_limit;
    let lay = parse(&p.data()[start..end], port, limit, &mut line, &mut ext);
    let lay = lay.ok_or(Drop::Truncated)?;
    let fits = p.set_len(end) && p.pull_front(start);
    debug_assert!(fits, "inside the packet");
    let l0 = bytes_mut(&mut line);
    l0[at::FLAGS] |= tunnel_flags(bytes(&outer.ext2)[at::TUN_TOS - at::TUN_DST]);
    l0[at::TUN_ID..at::TUN_SRC].copy_from_slice(&outer.id.to_be_bytes());
    l0[at::TUN_SRC..at::PAYLOAD].copy_from_slice(&outer.src);
    ext[1] = outer.ext2;
    let have = lay.ext | EXT2;
    *f = Frame { line, ext, have, lay, tags: limit, ..*f };
    Ok(())
}

/// What one pass keeps of an outer header: the words of the key that it fills.
pub(crate) struct Stripped {
    /// Tunnel id and IPv4 source: word 6 of line 0.
    pub word6: u64,
    /// Key line 2.
    pub ext2: Line,
}

/// As [`pop`], for the plainest outer header: IPv4 without options at `lay`, UDP without checksum, VXLAN
/// without extensions, one whole Ethernet header behind. None, and nothing changed: it is not that, or
/// not right.
#[inline]
pub(crate) fn strip(p: &mut Packet, lay: &Layout) -> Option<Stripped> {
    const IPV4_UDP: usize = 34;
    let h: &[u8; 64] = p.data().first_chunk()?;
    let end = IPV4_UDP + usize::from(be16(h, 38));
    let plain = lay.l3 == 14
        && usize::from(lay.l4) == IPV4_UDP
        && h[14] == 0x45
        && h[23] == UDP
        && be16(h, 40) == 0
        && be32(h, 42) == VALID
        && h[49] == 0;
    let whole = be16(h, 12) == crate::parse::IPV4 && be16(h, 20) & 0x3fff == 0;
    let sized = end >= h.len() && end <= usize::from(lay.end);
    if !(plain && whole && sized) || internet(&h[14..34]) != 0 {
        return None;
    }
    let flags = KEY | if h[20] & 0x40 != 0 { DF } else { 0 };
    let [f0, f1] = flags.to_be_bytes();
    let mut ext2 = [0; 8];
    ext2[0] = u64::from_ne_bytes([h[30], h[31], h[32], h[33], f0, f1, h[15], h[22]]);
    ext2[5] = u64::from_ne_bytes([0, 0, 0, 0, h[34], h[35], h[36], h[37]]);
    let word6 = u64::from_ne_bytes([0, h[46], h[47], h[48], h[26], h[27], h[28], h[29]]);
    let fits = p.set_len(end) && p.pull_front(50);
    debug_assert!(fits, "inside the packet");
    Some(Stripped { word6, ext2 })
}

/// Reads and checks UDP and VXLAN behind whatever IP header the parser found.
fn read(d: &[u8], line: &Line, lay: &Layout, gbp: bool) -> Result<Outer, Drop> {
    let l0 = bytes(line);
    let udp = usize::from(lay.l4);
    let whole = l0[at::FRAG] == 0 && l0[at::PROTO] == UDP && l0[at::FLAGS] & flag::L4 != 0;
    if !whole || udp == 0 {
        return Err(Drop::TunnelHeader);
    }
    let (l3, ip_end) = (usize::from(lay.l3), usize::from(lay.end));
    let ipv6 = be16(l0, at::ETH_TYPE) == crate::parse::IPV6;
    let end = udp + usize::from(be16(d, udp + 4));
    if end > ip_end || end < udp + UDP_HEADER + VXLAN_HEADER {
        return Err(Drop::TunnelHeader);
    }
    // With options the checksum covers them too.
    if !ipv6 && internet(&d[l3..l3 + usize::from(d[l3] & 15) * 4]) != 0 {
        return Err(Drop::TunnelChecksum);
    }
    let summed = be16(d, udp + 6) != 0;
    if summed && udp_sum(&d[..end], ipv6, l3, udp).finish() != 0 {
        return Err(Drop::TunnelChecksum);
    }
    let vxlan = udp + UDP_HEADER;
    let policy = policy(be32(d, vxlan), gbp)?;
    let vni = be32(d, vxlan + 4);
    if vni & 0xff != 0 {
        return Err(Drop::TunnelHeader);
    }
    let mut outer =
        Outer { inner: vxlan + VXLAN_HEADER..end, ext2: [0; 8], id: vni >> 8, src: [0; 4] };
    outer.addresses(d, l3, ipv6);
    let df = !ipv6 && d[l3 + 6] & 0x40 != 0;
    let flags = KEY | if df { DF } else { 0 } | if summed { CSUM } else { 0 };
    let ports = [d[udp], d[udp + 1], d[udp + 2], d[udp + 3]];
    outer.put(at::TUN_FLAGS, &flags.to_be_bytes());
    outer.put(at::TUN_TOS, &[l0[at::TOS], l0[at::TTL]]);
    outer.put(at::TUN_TP_SRC, &ports);
    outer.put(at::TUN_GBP_ID, &policy);
    Ok(outer)
}

impl Outer {
    fn put(&mut self, at: usize, b: &[u8]) {
        let at = at - at::TUN_DST;
        bytes_mut(&mut self.ext2)[at..at + b.len()].copy_from_slice(b);
    }

    fn addresses(&mut self, d: &[u8], l3: usize, ipv6: bool) {
        if ipv6 {
            self.put(at::TUN_IPV6_SRC, &d[l3 + 8..l3 + 40]);
        } else {
            self.src.copy_from_slice(&d[l3 + 12..l3 + 16]);
            self.put(at::TUN_DST, &d[l3 + 16..l3 + 20]);
        }
    }
}

/// The first word of a VXLAN header: group policy id and flags as the key has them
/// (draft-smith-vxlan-group-policy). No other extension is known.
fn policy(word: u32, gbp: bool) -> Result<[u8; 3], Drop> {
    let known = VALID | if gbp && word & GBP != 0 { GBP | GBP_FLAGS | GBP_ID } else { 0 };
    if word & VALID == 0 || word & !known != 0 {
        return Err(Drop::TunnelHeader);
    }
    let id = word.to_be_bytes();
    Ok([id[2], id[3], id[1] & 0x48])
}
