//! The complete scalar parser: writes a frame's key.
//!
//! Malformed packets (wrong lengths, fragments, truncated headers) get the key that OVS's flow
//! extraction gives them: a header that is not whole and valid sets no field, nor does anything
//! behind it.

use crate::batch::keys::{EXT1, Ext, Layout, Line, bytes_mut, key_of};
use flow::{Key, at, flag, frag};
use wire::{ETH_QINQ, ETH_VLAN, NSH_LEN, NSH_MD1, Nsh, TCP_LEN};

/// Ethertypes and IP protocols, by the short names that the packet path uses.
pub(crate) use wire::{
    ETH_ARP as ARP, ETH_IPV4 as IPV4, ETH_IPV6 as IPV6, ETH_MPLS as MPLS,
    ETH_MPLS_MCAST as MPLS_MC, ETH_NSH as NSH, ETH_RARP as RARP, IP_ICMP as ICMP,
    IP_ICMPV6 as ICMPV6, IP_IGMP as IGMP, IP_SCTP as SCTP, IP_TCP as TCP, IP_UDP as UDP,
};

/// `dl_type` of a frame with neither an Ethertype nor a SNAP header.
pub(crate) const DL_TYPE_NONE: u16 = 0x05ff;

fn be16(d: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([d[at], d[at + 1]])
}

struct Out<'a> {
    l0: &'a mut [u8; 64],
    ext: &'a mut Ext,
    layout: Layout,
}

impl Out<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, at: usize, d: &[u8]) {
        self.l0[at..at + N].copy_from_slice(&d[..N]);
    }
    /// Writes bytes of line 1; `at` is an offset of `flow::at`.
    fn put1(&mut self, at: usize, d: &[u8]) {
        if self.layout.ext & EXT1 == 0 {
            self.ext[0] = [0; 8];
            self.layout.ext |= EXT1;
        }
        bytes_mut(&mut self.ext[0])[at - 64..at - 64 + d.len()].copy_from_slice(d);
    }
    fn ports(&mut self, src: [u8; 2], dst: [u8; 2]) {
        self.put::<2>(at::TP_SRC, &src);
        self.put::<2>(at::TP_DST, &dst);
        self.l0[at::FLAGS] |= flag::L4;
    }
}

/// Fills line 0 and, for IPv6 and ARP, line 1 in `ext`; does not write lines 2 and 3. `vlan_limit`:
/// how many tags to look behind. None: shorter than an Ethernet header.
#[inline]
pub(crate) fn parse(
    d: &[u8],
    in_port: u16,
    vlan_limit: u8,
    line: &mut Line,
    ext: &mut Ext,
) -> Option<Layout> {
    if let Some(layout) = plain_ipv4(d, in_port, line) {
        return Some(layout);
    }
    *line = [0; 8];
    if d.len() < 14 {
        return None;
    }
    let mut out = Out { l0: bytes_mut(line), ext, layout: Layout::default() };
    out.layout.end = d.len().min(0xffff) as u16;
    out.put::<12>(at::ETH_DST, d);
    out.put::<2>(at::IN_PORT, &in_port.to_be_bytes());
    let mut off = 12;
    let mut raw = be16(d, 12);
    if is_vlan(raw) {
        off = vlan_tags(d, vlan_limit, &mut out);
        raw = be16(d, off);
    }
    let (dl_type, l3) = if raw >= 0x600 { (raw, off + 2) } else { llc(d, off + 2) };
    out.put::<2>(at::ETH_TYPE, &dl_type.to_be_bytes());
    out.layout.l3 = l3 as u16;
    match dl_type {
        IPV4 => ipv4(d, l3, &mut out),
        IPV6 => ipv6(d, l3, &mut out),
        ARP | RARP => arp(&d[l3..], &mut out),
        MPLS | MPLS_MC => mpls(&d[l3..], &mut out),
        NSH => nsh(&d[l3..], &mut out),
        _ => {}
    }
    Some(out.layout)
}

/// The most common packets at once: no tag, IPv4 without options, not a fragment, TCP or UDP.
#[inline]
fn plain_ipv4(d: &[u8], in_port: u16, line: &mut Line) -> Option<Layout> {
    let h: &[u8; 42] = d.first_chunk()?;
    let word = |at: usize| u64::from_ne_bytes(h[at..at + 8].try_into().unwrap());
    let total = be16(h, 16) as usize;
    let (proto, l4) = (h[23], 34);
    // Ethertype IPv4, version 4, header length 5; no "more fragments", no fragment offset.
    if h[12] != 8 || h[13] != 0 || h[14] != 0x45 || be16(h, 20) & 0x3fff != 0 {
        return None;
    }
    let whole = match proto {
        UDP => 28,
        TCP => 40,
        _ => return None,
    };
    if total < whole || d.len() < 14 + total || d.len() > 0xffff {
        return None;
    }
    let mut flags = [0, 0];
    if proto == TCP {
        if !has_tcp_header(&d[l4..14 + total]) {
            return None;
        }
        flags = [d[l4 + 12] & 0x0f, d[l4 + 13]];
    }
    let port = in_port.to_be_bytes();
    line[0] = word(0);
    line[1] = word(8) & u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
    line[2] = word(26);
    line[3] = u64::from_ne_bytes([h[34], h[35], h[36], h[37], proto, h[15], h[22], 0]);
    line[4] = u64::from_ne_bytes([flags[0], flags[1], 0, 0, port[0], port[1], 0, flag::L4]);
    line[5] = 0;
    line[6] = 0;
    line[7] = 0;
    let end = (14 + total) as u16;
    Some(Layout { l3: 14, l4: l4 as u16, end, ext: 0, sane: true })
}

/// True if a TCP header is there, as long as it says itself.
fn has_tcp_header(h: &[u8]) -> bool {
    h.len() >= TCP_LEN && (TCP_LEN..=h.len()).contains(&(usize::from(h[12] >> 4) * 4))
}

fn is_vlan(t: u16) -> bool {
    t == ETH_VLAN || t == ETH_QINQ
}

/// Looks behind up to `limit` VLAN tags that are followed by an Ethertype; the key has room for
/// two. Returns where the Ethertype is.
fn vlan_tags(d: &[u8], limit: u8, out: &mut Out<'_>) -> usize {
    let mut off = 12;
    let places = [(at::VLAN, flag::VLAN_88A8), (at::VLAN1, flag::VLAN1_88A8)];
    for n in 0..limit as usize {
        let tpid = be16(d, off);
        if !is_vlan(tpid) || d.len() < off + 6 {
            break;
        }
        if let Some((place, bit)) = places.get(n) {
            let tci = be16(d, off + 2) | 0x1000;
            out.put::<2>(*place, &tci.to_be_bytes());
            if tpid == ETH_QINQ {
                out.l0[at::FLAGS] |= bit;
            }
        }
        off += 4;
    }
    off
}

/// An 802.3 header: returns `dl_type`, and where L3 starts.
fn llc(d: &[u8], at: usize) -> (u16, usize) {
    if d.len() < at + 8 || d[at..at + 6] != [0xaa, 0xaa, 3, 0, 0, 0] {
        return (DL_TYPE_NONE, at);
    }
    match be16(d, at + 6) {
        t if t >= 0x600 => (t, at + 8),
        _ => (DL_TYPE_NONE, at + 8),
    }
}

#[inline]
fn ipv4(d: &[u8], l3: usize, out: &mut Out<'_>) {
    let h = &d[l3..];
    if h.len() < 20 {
        return;
    }
    let header = (h[0] & 15) as usize * 4;
    let total = be16(h, 2) as usize;
    if header < 20 || total < header || h.len() < total || h.len() - total > 0xffff {
        return;
    }
    out.layout.sane = true;
    out.put::<8>(at::IP_SRC, &h[12..]);
    let offset = be16(h, 6);
    let bits = match (offset & 0x1fff, offset & 0x2000) {
        (0, 0) => 0,
        (0, _) => frag::ANY,
        _ => frag::ANY | frag::LATER,
    };
    out.put::<4>(at::PROTO, &[h[9], h[1], h[8], bits]);
    out.layout.end = (l3 + total) as u16;
    if bits & frag::LATER == 0 {
        out.layout.l4 = (l3 + header) as u16;
        l4(&h[header..total], h[9], out);
    }
}

fn ipv6(d: &[u8], l3: usize, out: &mut Out<'_>) {
    let h = &d[l3..];
    if h.len() < 40 {
        return;
    }
    let payload = be16(h, 4) as usize;
    if h.len() < 40 + payload || h.len() - 40 - payload > 0xffff {
        return;
    }
    out.layout.sane = true;
    out.put1(at::IPV6_SRC, &h[8..40]);
    out.layout.end = (l3 + 40 + payload) as u16;
    let Some((proto, bits, skip)) = ipv6_ext(&h[40..40 + payload], h[6]) else { return };
    let word = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
    out.put1(at::IPV6_LABEL, &(word & 0xf_ffff).to_be_bytes());
    out.put::<4>(at::PROTO, &[proto, (word >> 20) as u8, h[7], bits]);
    if bits & frag::LATER == 0 {
        out.layout.l4 = (l3 + 40 + skip) as u16;
        l4(&h[40 + skip..40 + payload], proto, out);
    }
}

/// Walks IPv6 extension headers. Returns the protocol behind them, fragment bits, and their length
/// in bytes. None: malformed.
fn ipv6_ext(d: &[u8], first: u8) -> Option<(u8, u8, usize)> {
    let (mut proto, mut bits, mut off) = (first, 0, 0);
    loop {
        let h = &d[off..];
        let len = match proto {
            0 | 43 | 60 | 51 | 44 if h.len() < 8 => return None,
            0 | 43 | 60 => (h[1] as usize + 1) * 8,
            51 => (h[1] as usize + 2) * 4,
            44 => {
                let offset = be16(h, 2);
                if offset != 0 {
                    bits = frag::ANY;
                    if offset & 0xfff8 != 0 {
                        return Some((44, bits | frag::LATER, off + 8));
                    }
                }
                8
            }
            _ => return Some((proto, bits, off)),
        };
        if h.len() < len {
            return None;
        }
        proto = h[0];
        off += len;
    }
}

#[inline]
fn l4(h: &[u8], proto: u8, out: &mut Out<'_>) {
    let eth_type = be16(&out.l0[..], at::ETH_TYPE);
    match proto {
        TCP if has_tcp_header(h) => {
            out.ports([h[0], h[1]], [h[2], h[3]]);
            out.put::<2>(at::TCP_FLAGS, &[h[12] & 0x0f, h[13]]);
        }
        UDP if h.len() >= 8 => out.ports([h[0], h[1]], [h[2], h[3]]),
        SCTP if h.len() >= 12 => out.ports([h[0], h[1]], [h[2], h[3]]),
        ICMP | IGMP if eth_type == IPV4 && h.len() >= 8 => out.ports([0, h[0]], [0, h[1]]),
        ICMPV6 if eth_type == IPV6 && h.len() >= 8 => {
            out.ports([0, h[0]], [0, h[1]]);
            if matches!(h[0], 135 | 136) && h[1] == 0 {
                out.put::<4>(at::ND_RESERVED, &h[4..]);
                if h.len() >= 24 {
                    neighbour(h, out);
                }
            }
        }
        _ => {}
    }
}

/// Fields of neighbour discovery: target, link-layer address options, and which of these is first.
/// A repeated option clears all but the last.
fn neighbour(h: &[u8], out: &mut Out<'_>) {
    let mut macs = [[0u8; 6]; 2];
    let mut o = &h[24..];
    while o.len() >= 8 {
        let len = o[1] as usize * 8;
        if len == 0 || len > o.len() {
            break;
        }
        if len == 8 && matches!(o[0], 1 | 2) {
            if out.l0[at::ND_OPTIONS_TYPE] == 0 {
                out.l0[at::ND_OPTIONS_TYPE] = o[0];
            }
            let mac = &mut macs[o[0] as usize - 1];
            if *mac != [0; 6] {
                return;
            }
            mac.copy_from_slice(&o[2..8]);
        }
        o = &o[len..];
    }
    out.put1(at::ND_TARGET, &h[8..24]);
    out.put1(at::ARP_SHA, &macs[0]);
    out.put1(at::ARP_THA, &macs[1]);
}

fn arp(h: &[u8], out: &mut Out<'_>) {
    // Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
    if h.len() < 28 || h[..6] != [0, 1, 8, 0, 6, 4] {
        return;
    }
    out.layout.sane = true;
    out.put::<4>(at::IP_SRC, &h[14..]);
    out.put::<4>(at::IP_DST, &h[24..]);
    if h[6] == 0 {
        out.l0[at::PROTO] = h[7];
    }
    out.put1(at::ARP_SHA, &h[8..14]);
    out.put1(at::ARP_THA, &h[18..24]);
}

fn mpls(h: &[u8], out: &mut Out<'_>) {
    if h.len() >= 4 {
        out.layout.sane = true;
        out.put::<4>(at::MPLS, h);
        let mut above = h;
        for place in &flow::LABELS[1..] {
            if above[2] & 1 != 0 || above.len() < 8 {
                break;
            }
            above = &above[4..];
            out.put::<4>(*place, above);
        }
    }
}

/// A header of metadata type 1 has four context headers; of other types' metadata, as in OVS,
/// nothing is known.
#[inline(never)]
fn nsh(h: &[u8], out: &mut Out<'_>) {
    let Some(view) = Nsh::new(h).filter(|view| view.whole(h.len()).is_some()) else { return };
    out.layout.sane = true;
    let (kind, protocol) = (view.md_type(), view.protocol());
    out.put::<4>(at::NSH_FLAGS, &[view.flags(), view.ttl(), kind, protocol]);
    out.put::<4>(at::NSH_SPI, &h[4..NSH_LEN]);
    if kind == NSH_MD1 {
        out.put1(at::NSH_C, &h[NSH_LEN..NSH_LEN + 16]);
    }
}

/// The key of a packet received on `in_port`. None: shorter than an Ethernet header.
pub fn extract(packet: &[u8], in_port: u16, vlan_limit: u8) -> Option<Key> {
    let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
    let layout = parse(packet, in_port, vlan_limit, &mut line, &mut ext)?;
    Some(key_of(&line, &ext, layout.ext))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::keys::bytes;

    #[test]
    fn tags_without_a_place_in_the_key_are_looked_behind() {
        let mut frame = vec![0; 12];
        for tci in 1..=4u8 {
            frame.extend([0x81, 0, 0, tci]);
        }
        frame.extend([8, 6]);
        frame.resize(80, 0);
        let kind = |limit| {
            let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
            let layout = parse(&frame, 1, limit, &mut line, &mut ext).unwrap();
            (be16(bytes(&line), at::ETH_TYPE), layout.l3)
        };
        assert_eq!(kind(1), (0x8100, 18));
        assert_eq!(kind(4), (0x0806, 30));
    }
}
