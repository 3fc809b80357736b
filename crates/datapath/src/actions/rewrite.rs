//! Header rewrites (`Op::Set`) and tags pushed and popped on a packet's bytes, with checksum
//! updates.

use crate::batch::keys::{Layout, Line, bytes};
use crate::parse::scalar::{
    ARP, ICMP, ICMPV6, IGMP, IPV4, IPV6, MPLS, MPLS_MC, NSH, RARP, SCTP, TCP, UDP,
};
use action::Rewrite;
use flow::{Key, at, flag};
use packet::Packet;
use telemetry::Drop;
use wire::checksum::Sum;
use wire::{ETH_QINQ, ETH_VLAN};

fn be16(d: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([d[at], d[at + 1]])
}

/// Sets `dst = dst & !mask | key & mask` over an even number of bytes at an even offset from the
/// checksum's start. Returns the change, to be added to checksums that cover these bytes.
#[inline]
fn blend(dst: &mut [u8], key: &[u8], mask: &[u8]) -> Sum {
    let mut delta = Sum::default();
    for ((d, k), m) in dst.chunks_exact_mut(2).zip(key.chunks_exact(2)).zip(mask.chunks_exact(2)) {
        delta = delta.word(!be16(d, 0));
        d[0] = d[0] & !m[0] | k[0] & m[0];
        d[1] = d[1] & !m[1] | k[1] & m[1];
        delta = delta.word(be16(d, 0));
    }
    delta
}

/// RFC 1624: HC' = ~(~HC + ~m + m').
#[inline]
fn fix(d: &mut [u8], at: usize, delta: Sum) {
    let sum = delta.word(!be16(d, at)).finish();
    d[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// What a rewrite needs to know about a packet's headers.
pub(crate) struct Place<'a> {
    /// The packet's key line 0: Ethertype, protocol, flags.
    pub line: &'a Line,
    /// The packet's layout.
    pub layout: Layout,
}

impl Place<'_> {
    pub fn eth_type(&self) -> u16 {
        be16(bytes(self.line), at::ETH_TYPE)
    }
    fn proto(&self) -> u8 {
        bytes(self.line)[at::PROTO]
    }
    /// Offset of a whole L4 header; None: there is none.
    fn l4(&self) -> Option<usize> {
        let whole = bytes(self.line)[at::FLAGS] & flag::L4 != 0;
        (whole && self.layout.l4 != 0).then_some(self.layout.l4 as usize)
    }
}

/// True if a bit is set in these bytes of the key.
fn any(k: &Key, range: std::ops::Range<usize>) -> bool {
    k.bytes()[range].iter().any(|b| *b != 0)
}

/// True if the rewrite changes Ethernet addresses only.
pub(crate) fn ethernet_only(rw: &Rewrite) -> bool {
    !any(&rw.mask, 12..flow::WORDS * 8)
}

/// Writes the Ethernet addresses.
#[inline]
pub(crate) fn ethernet(d: &mut [u8], rw: &Rewrite) {
    let (k, m) = (&rw.key.bytes()[..12], &rw.mask.bytes()[..12]);
    for ((d, k), m) in d[..12].iter_mut().zip(k).zip(m) {
        *d = *d & !m | k & m;
    }
}

/// Applies a rewrite of header fields. Err: the packet does not have a header that it changes;
/// headers in front of that one may be changed.
pub(crate) fn apply(p: &mut Packet, place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    let d = p.data_mut();
    ethernet(d, rw);
    if any(&rw.mask, at::VLAN..at::VLAN + 2) {
        vlan(d, place, rw)?;
    }
    let l3 = any(&rw.mask, 16..24)
        || any(&rw.mask, 28..31)
        || any(&rw.mask, 64..96)
        || any(&rw.mask, 124..128);
    let hw = any(&rw.mask, 96..124);
    match place.eth_type() {
        IPV4 if l3 => ipv4(d, place, rw)?,
        IPV6 if l3 => ipv6(d, place, rw)?,
        ARP | RARP if l3 || hw => return arp(d, place, rw),
        MPLS | MPLS_MC if l3 => mpls(d, place, rw)?,
        NSH if l3 => nsh(d, place, rw)?,
        _ if l3 => return Err(Drop::BadAction),
        _ => {}
    }
    if any(&rw.mask, 24..28) {
        ports(d, place, rw)?;
    }
    if is_extended(rw) {
        neighbour_extension(d, place, rw)?;
    }
    if hw {
        neighbour(d, place, rw)?;
    }
    Ok(())
}

/// Sets the outer VLAN tag.
fn vlan(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    if be16(bytes(place.line), at::VLAN) == 0 {
        return Err(Drop::BadAction);
    }
    let mut mask = rw.mask.get::<2>(at::VLAN);
    mask[0] &= !0x10; // the present bit is not on the wire
    blend(&mut d[14..16], &rw.key.get::<2>(at::VLAN), &mask);
    Ok(())
}

/// Sets addresses, TOS and TTL of an IPv4 header.
fn ipv4(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    if !place.layout.sane {
        return Err(Drop::BadAction);
    }
    let (k, m, h) = (rw.key.bytes(), rw.mask.bytes(), place.layout.l3 as usize);
    let addresses = blend(&mut d[h + 12..h + 20], &k[16..24], &m[16..24]);
    let mut header = addresses;
    header += blend(&mut d[h..h + 2], &[0, k[at::TOS]], &[0, m[at::TOS]]);
    header += blend(&mut d[h + 8..h + 10], &[k[at::TTL], 0], &[m[at::TTL], 0]);
    fix(d, h + 10, header);
    if any(&rw.mask, 16..24) {
        pseudo(d, place, addresses);
    }
    Ok(())
}

/// Sets addresses, traffic class, flow label and hop limit of an IPv6 header.
fn ipv6(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    if !place.layout.sane {
        return Err(Drop::BadAction);
    }
    let (k, m, h) = (rw.key.bytes(), rw.mask.bytes(), place.layout.l3 as usize);
    let mut covered = blend(&mut d[h + 8..h + 24], &k[64..80], &m[64..80]);
    let dst = blend(&mut d[h + 24..h + 40], &k[80..96], &m[80..96]);
    // Behind a routing header the checksum covers the final destination and not this address.
    if !has_routing(&d[h..]) {
        covered += dst;
    }
    let word = |b: &[u8; flow::WORDS * 8]| {
        let label = u32::from_be_bytes(b[at::IPV6_LABEL..at::IPV6_LABEL + 4].try_into().unwrap());
        label & 0xf_ffff | u32::from(b[at::TOS]) << 20
    };
    blend(&mut d[h..h + 4], &word(k).to_be_bytes(), &word(m).to_be_bytes());
    d[h + 7] = d[h + 7] & !m[at::TTL] | k[at::TTL] & m[at::TTL];
    if any(&rw.mask, 64..96) {
        pseudo(d, place, covered);
    }
    Ok(())
}

/// True if an IPv6 packet has a routing header.
fn has_routing(h: &[u8]) -> bool {
    let (mut proto, mut off) = (h[6], 40);
    while let Some(x) = h.get(off..off + 8) {
        off += match proto {
            43 => return true,
            0 | 60 => (x[1] as usize + 1) * 8,
            51 => (x[1] as usize + 2) * 4,
            44 => 8,
            _ => return false,
        };
        proto = x[0];
    }
    false
}

/// Updates the L4 checksum, whose pseudo header has the changed addresses.
fn pseudo(d: &mut [u8], place: &Place<'_>, delta: Sum) {
    let Some(l4) = place.l4() else { return };
    match place.proto() {
        TCP => fix(d, l4 + 16, delta),
        UDP => fix_udp(d, l4, delta),
        ICMPV6 if place.eth_type() == IPV6 => fix(d, l4 + 2, delta),
        _ => {}
    }
}

/// Updates a UDP checksum. Zero means "no checksum" and stays; a checksum never becomes zero.
fn fix_udp(d: &mut [u8], l4: usize, delta: Sum) {
    if be16(d, l4 + 6) != 0 {
        fix(d, l4 + 6, delta);
        if be16(d, l4 + 6) == 0 {
            d[l4 + 6..l4 + 8].fill(0xff);
        }
    }
}

/// Sets ports, or type and code of ICMP, ICMPv6 and IGMP.
fn ports(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    let l4 = place.l4().ok_or(Drop::BadAction)?;
    let (k, m) = (rw.key.get::<4>(at::TP_SRC), rw.mask.get::<4>(at::TP_SRC));
    match place.proto() {
        TCP => {
            let delta = blend(&mut d[l4..l4 + 4], &k, &m);
            fix(d, l4 + 16, delta);
        }
        UDP => {
            let delta = blend(&mut d[l4..l4 + 4], &k, &m);
            fix_udp(d, l4, delta);
        }
        SCTP => {
            // A wrong checksum stays wrong by the same difference.
            let end = place.layout.end as usize;
            let right = |d: &[u8]| wire::sctp_checksum(&d[l4..end]).unwrap_or_default();
            let before = right(d);
            blend(&mut d[l4..l4 + 4], &k, &m);
            let after = right(d);
            let sum = d[l4 + 8..l4 + 12].iter_mut().zip(before.iter().zip(after));
            sum.for_each(|(d, (b, a))| *d ^= b ^ a);
        }
        // Type and code are the low bytes of the key's port fields.
        ICMP | ICMPV6 | IGMP => {
            let delta = blend(&mut d[l4..l4 + 2], &[k[1], k[3]], &[m[1], m[3]]);
            fix(d, l4 + 2, delta);
        }
        _ => return Err(Drop::BadAction),
    }
    Ok(())
}

/// Sets the operation and addresses of ARP or RARP.
fn arp(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    if !place.layout.sane {
        return Err(Drop::BadAction);
    }
    let (k, m, h) = (rw.key.bytes(), rw.mask.bytes(), place.layout.l3 as usize);
    blend(&mut d[h + 6..h + 8], &[0, k[at::PROTO]], &[0, m[at::PROTO]]);
    for (to, from, n) in
        [(8, at::ARP_SHA, 6), (14, at::IP_SRC, 4), (18, at::ARP_THA, 6), (24, at::IP_DST, 4)]
    {
        blend(&mut d[h + to..h + to + n], &k[from..from + n], &m[from..from + n]);
    }
    Ok(())
}

/// Sets the top MPLS label stack entry.
fn mpls(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    if !place.layout.sane {
        return Err(Drop::BadAction);
    }
    let h = place.layout.l3 as usize;
    blend(&mut d[h..h + 4], &rw.key.get::<4>(at::MPLS), &rw.mask.get::<4>(at::MPLS));
    Ok(())
}

/// Sets flags, TTL, path and contexts of a network service header. Bits that have no room in the
/// header are cut off, and only metadata of type 1 has contexts.
#[cold]
#[inline(never)]
fn nsh(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    if !place.layout.sane {
        return Err(Drop::BadAction);
    }
    let (k, m, h) = (rw.key.bytes(), rw.mask.bytes(), place.layout.l3 as usize);
    let base = |b: &[u8; flow::WORDS * 8]| {
        wire::nsh_flags_and_ttl(b[at::NSH_FLAGS], b[at::NSH_TTL]).to_be_bytes()
    };
    blend(&mut d[h..h + 2], &base(k), &base(m));
    let path = at::NSH_SPI..at::NSH_SI + 1;
    blend(&mut d[h + 4..h + wire::NSH_LEN], &k[path.clone()], &m[path]);
    if d[h + 2] == wire::NSH_MD1 {
        let contexts = at::NSH_C..at::NSH_C + 16;
        let to = h + wire::NSH_LEN..h + wire::NSH_MD1_LEN;
        blend(&mut d[to], &k[contexts.clone()], &m[contexts]);
    }
    Ok(())
}

/// True if the operation sets fields of neighbour discovery that share places with fields of other
/// packets.
fn is_extended(rw: &Rewrite) -> bool {
    let named = rw.key.u16(at::ETH_TYPE) == IPV6 && rw.key.u8(at::PROTO) == ICMPV6;
    named && (rw.mask.u32(at::ND_RESERVED) != 0 || rw.mask.u8(at::ND_OPTIONS_TYPE) != 0)
}

/// Sets the word in front of the ND target, and the type of the first option if there is one.
fn neighbour_extension(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    let (l4, end) = nd_message(d, place)?;
    let (k, m) = (rw.key.bytes(), rw.mask.bytes());
    let reserved = at::ND_RESERVED..at::ND_RESERVED + 4;
    let mut delta = blend(&mut d[l4 + 4..l4 + 8], &k[reserved.clone()], &m[reserved]);
    if end >= l4 + 32 {
        // A sum is of pairs of bytes.
        let kind = [k[at::ND_OPTIONS_TYPE], 0];
        delta += blend(&mut d[l4 + 24..l4 + 26], &kind, &[m[at::ND_OPTIONS_TYPE], 0]);
    }
    fix(d, l4 + 2, delta);
    Ok(())
}

/// Where a message of neighbour discovery begins and ends.
fn nd_message(d: &[u8], place: &Place<'_>) -> Result<(usize, usize), Drop> {
    let l4 = place.l4().ok_or(Drop::BadAction)?;
    let end = place.layout.end as usize;
    let nd = place.proto() == ICMPV6 && place.eth_type() == IPV6 && end >= l4 + 24;
    if !nd || !matches!(d[l4], 135 | 136) {
        return Err(Drop::BadAction);
    }
    Ok((l4, end))
}

/// Sets the ND target and the link-layer address options; an absent option stays absent.
fn neighbour(d: &mut [u8], place: &Place<'_>, rw: &Rewrite) -> Result<(), Drop> {
    let (l4, end) = nd_message(d, place)?;
    let (k, m) = (rw.key.bytes(), rw.mask.bytes());
    let mut delta = blend(&mut d[l4 + 8..l4 + 24], &k[96..112], &m[96..112]);
    let mut o = l4 + 24;
    while o + 8 <= end {
        let len = d[o + 1] as usize * 8;
        if len == 0 || o + len > end {
            break;
        }
        let from = match (d[o], len) {
            (1, 8) => Some(at::ARP_SHA),
            (2, 8) => Some(at::ARP_THA),
            _ => None,
        };
        if let Some(f) = from {
            delta += blend(&mut d[o + 2..o + 8], &k[f..f + 6], &m[f..f + 6]);
        }
        o += len;
    }
    fix(d, l4 + 2, delta);
    Ok(())
}

/// Inserts an outer VLAN tag.
#[inline]
pub(crate) fn push_vlan(p: &mut Packet, tpid: u16, tci: u16) -> Result<(), Drop> {
    if !p.push_front(4) {
        return Err(Drop::NoHeadroom);
    }
    let d = p.data_mut();
    d.copy_within(4..16, 0);
    write_tag(d, tpid, tci);
    Ok(())
}

/// Writes the outer VLAN tag into the room that was made for it.
#[inline]
pub(crate) fn write_tag(d: &mut [u8], tpid: u16, tci: u16) {
    d[12..14].copy_from_slice(&tpid.to_be_bytes());
    d[14..16].copy_from_slice(&(tci & !0x1000).to_be_bytes());
}

/// Removes the outer VLAN tag; a frame without one stays as it is.
#[inline]
pub(crate) fn pop_vlan(p: &mut Packet) {
    let d = p.data_mut();
    if d.len() >= 18 && matches!(be16(d, 12), ETH_VLAN | ETH_QINQ) {
        d.copy_within(0..12, 4);
        let _ = p.pull_front(4);
    }
}

/// Inserts an MPLS label stack entry where L3 starts.
pub(crate) fn push_mpls(
    p: &mut Packet,
    layout: &Layout,
    ethertype: u16,
    lse: u32,
) -> Result<(), Drop> {
    if !p.push_front(4) {
        return Err(Drop::NoHeadroom);
    }
    let (d, l3) = (p.data_mut(), layout.l3 as usize);
    d.copy_within(4..l3 + 4, 0);
    d[l3..l3 + 4].copy_from_slice(&lse.to_be_bytes());
    d[l3 - 2..l3].copy_from_slice(&ethertype.to_be_bytes());
    Ok(())
}

/// Removes the top MPLS label stack entry.
pub(crate) fn pop_mpls(p: &mut Packet, place: &Place<'_>, ethertype: u16) -> Result<(), Drop> {
    if !matches!(place.eth_type(), MPLS | MPLS_MC) || !place.layout.sane {
        return Err(Drop::BadAction);
    }
    let (d, l3) = (p.data_mut(), place.layout.l3 as usize);
    d[l3 - 2..l3].copy_from_slice(&ethertype.to_be_bytes());
    d.copy_within(0..l3, 4);
    let _ = p.pull_front(4);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::keys::Ext;
    use crate::parse::scalar::parse;
    use packet::{HeapPool, Pool};

    /// The option that was of the target's address is of the sender's afterwards; the checksum is
    /// right as of a packet that is made so.
    #[test]
    fn the_extension_of_neighbour_discovery_is_written() {
        let key = |ext: &str, macs: &str| {
            let text = format!(
                "eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type(0x86dd),\
                 ipv6(src=fe80::1,dst=fe80::2,label=0,proto=58,tclass=0,hlimit=255,frag=no),\
                 icmpv6(type=136,code=0),nd(target=fe80::3,{macs}),nd_ext({ext})"
            );
            flow::parse_odp(&text, &|_| None).unwrap().0
        };
        let old = key("nd_reserved=0xe0000000,nd_options_type=2", "tll=50:54:00:00:00:06");
        let new = key("nd_reserved=0x60000001,nd_options_type=1", "sll=50:54:00:00:00:06");
        let mut rw = Rewrite { key: new, mask: Key::ZERO };
        rw.mask.set(at::ND_RESERVED, [0xff; 4]);
        rw.mask.set_u8(at::ND_OPTIONS_TYPE, 0xff);
        let (mut line, mut ext): (Line, Ext) = ([0; 8], [[0; 8]; 3]);
        let frame = crate::compose(&old, 0);
        let layout = parse(&frame, 0, 1, &mut line, &mut ext).unwrap();
        let pool = HeapPool::new();
        let mut p = pool.packet(&frame).unwrap();
        apply(&mut p, &Place { line: &line, layout }, &rw).unwrap();
        assert_eq!(p.data(), crate::compose(&new, 0));
        pool.free(&[p]);
    }
}
