//! A slow, plain parser: reads fields one by one from a cursor, writes them by name.
#![allow(dead_code)]

use flow::{Field, Key, at, frag};

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (a, b) = self.0.split_at_checked(n)?;
        self.0 = b;
        Some(a)
    }
}

fn num(b: &[u8]) -> u128 {
    b.iter().fold(0, |n, b| n << 8 | *b as u128)
}

/// The key of a packet of at least 14 bytes.
pub fn parse(p: &[u8], in_port: u16, vlan_limit: u8) -> Key {
    let mut k = Key::ZERO;
    k.set_u16(at::IN_PORT, in_port);
    let mut c = Cursor(p);
    Field::EthDst.set(&mut k, num(c.take(6).unwrap()));
    Field::EthSrc.set(&mut k, num(c.take(6).unwrap()));
    for level in 0..vlan_limit {
        let tpid = num(&c.0[..2]);
        if (tpid != 0x8100 && tpid != 0x88a8) || c.0.len() < 6 {
            break;
        }
        let tag = c.take(4).unwrap();
        k.set_u16([at::VLAN, at::VLAN1][level as usize], num(&tag[2..]) as u16 | 0x1000);
        if tpid == 0x88a8 {
            let f =
                k.u8(at::FLAGS) | [flow::flag::VLAN_88A8, flow::flag::VLAN1_88A8][level as usize];
            k.set_u8(at::FLAGS, f);
        }
    }
    let mut eth = num(c.take(2).unwrap());
    if eth < 0x600 {
        let snap = c.0.len() >= 8 && c.0[..6] == [0xaa, 0xaa, 3, 0, 0, 0];
        eth = if snap && num(&c.0[6..8]) >= 0x600 { num(&c.0[6..8]) } else { 0x5ff };
        if snap {
            c.take(8);
        }
    }
    Field::EthType.set(&mut k, eth);
    match eth {
        0x800 => drop(ipv4(&mut c, &mut k)),
        0x86dd => drop(ipv6(&mut c, &mut k)),
        0x806 | 0x8035 => drop(arp(&mut c, &mut k)),
        0x8847 | 0x8848 => {
            for place in [at::MPLS, at::IP_DST, at::TP_SRC] {
                let Some(entry) = c.take(4) else { break };
                k.set_u32(place, num(entry) as u32);
                if entry[2] & 1 != 0 {
                    break;
                }
            }
        }
        0x894f => drop(nsh(&mut c, &mut k)),
        _ => {}
    }
    k
}

/// A network service header (RFC 8300, section 2) of version 0. Its length is that of all of it, in
/// words of four bytes.
fn nsh(c: &mut Cursor<'_>, k: &mut Key) -> Option<()> {
    let all = c.0.len();
    let base = num(c.take(2)?);
    let (kind, np) = (num(c.take(1)?), num(c.take(1)?));
    let (spi, si) = (num(c.take(3)?), num(c.take(1)?));
    let (version, length) = (base >> 14, (base & 63) as usize * 4);
    let fits = match kind {
        1 => length == 24,
        2 => length >= 8,
        _ => true,
    };
    if version != 0 || length > all || !fits {
        return None;
    }
    Field::NshFlags.set(k, base >> 12 & 3);
    Field::NshTtl.set(k, base >> 6 & 63);
    Field::NshMdtype.set(k, kind);
    Field::NshNp.set(k, np);
    Field::NshSpi.set(k, spi);
    Field::NshSi.set(k, si);
    if kind == 1 {
        for field in [Field::NshC1, Field::NshC2, Field::NshC3, Field::NshC4] {
            field.set(k, num(c.take(4)?));
        }
    }
    Some(())
}

/// The IPv4 addresses, and what is behind the header, of an untagged frame with a right header of
/// this protocol, which is no fragment; and how many bytes of that the header announces.
fn outer(p: &[u8], proto: u8) -> Option<([u8; 8], Cursor<'_>, usize)> {
    let mut c = Cursor(p);
    if p.len() < 14 || num(&c.take(14)?[12..]) != 0x800 {
        return None;
    }
    let (h, ip) = (*c.0.first_chunk::<20>()?, c.0);
    let (ihl, total) = (usize::from(h[0] & 15) * 4, num(&h[2..4]) as usize);
    let sum = ip.get(..ihl)?.chunks(2).map(num).sum::<u128>();
    let whole = total <= ip.len() && num(&h[6..8]) & 0x3fff == 0 && h[0] >> 4 == 4;
    c.take(ihl)?;
    let right = whole && ihl >= 20 && sum % 0xffff == 0 && h[9] == proto;
    right.then_some((h[12..].try_into().ok()?, c, total.checked_sub(ihl)?))
}

/// The IPv4 addresses, and what is behind the UDP header, which has at least eight bytes, of an
/// untagged frame with right headers.
fn udp(p: &[u8]) -> Option<([u8; 8], Cursor<'_>)> {
    let (addresses, mut c, announced) = outer(p, 17)?;
    let udp = c.0.get(..num(c.0.get(4..6)?) as usize)?;
    if udp.len() < 16 || udp.len() > announced {
        return None;
    }
    let pseudo = [&addresses[..], &[0, 17], &udp[4..6]].concat();
    let pad = [udp, &[0][..udp.len() % 2]].concat();
    let sum = pseudo.chunks(2).chain(pad.chunks(2)).map(num).sum::<u128>();
    if num(&udp[6..8]) != 0 && sum % 0xffff != 0 {
        return None;
    }
    c.0 = &udp[8..];
    Some((addresses, c))
}

/// The tunnel fields of an untagged frame with VXLAN or VXLAN-GPE over IPv4 (RFC 7348, section 5;
/// draft-ietf-nvo3-vxlan-gpe, section 3) as a key, and what comes out. None: it is none.
pub fn vxlan(p: &[u8]) -> Option<(Key, Vec<u8>)> {
    let (addresses, mut c) = udp(p)?;
    let h = c.take(8)?;
    let ethertype = match (h[0], num(&h[1..3]), h[3]) {
        (8, 0, 0) | (0xc, 0, 3) => None,
        (0xc, 0, 1) => Some(0x800),
        (0xc, 0, 2) => Some(0x86dd),
        (0xc, 0, 4) => Some(0x894f),
        _ => return None,
    };
    let k = tunnel_key(num(&h[4..7]), &addresses);
    if h[7] == 0 { inside(k, ethertype, c.0) } else { None }
}

/// The tunnel fields of an untagged frame with GRE over IPv4 (RFC 2784 and 2890) as a key, and what
/// comes out. None: it is none.
pub fn gre(p: &[u8]) -> Option<(Key, Vec<u8>)> {
    let (addresses, c, announced) = outer(p, 47)?;
    let all = c.0.get(..announced)?;
    let mut c = Cursor(all);
    let (flags, protocol) = (num(c.take(2)?), num(c.take(2)?) as u16);
    let ethertype = match protocol {
        0x6558 => None,
        ..0x600 | 0x8100 | 0x88a8 | 0x88be | 0x22eb => return None,
        _ => Some(protocol),
    };
    let mut id = 0;
    for bit in [0x8000, 0x2000, 0x1000] {
        let field = if flags & bit != 0 { num(c.take(4)?) } else { 0 };
        id |= if bit == 0x2000 { field } else { 0 };
    }
    let pad = [all, &[0][..all.len() % 2]].concat();
    let right = flags & 0x8000 == 0 || pad.chunks(2).map(num).sum::<u128>() % 0xffff == 0;
    let known = flags & !0xb000 == 0;
    if right && known { inside(tunnel_key(id, &addresses), ethertype, c.0) } else { None }
}

fn tunnel_key(id: u128, addresses: &[u8; 8]) -> Key {
    let mut k = Key::ZERO;
    Field::TunId.set(&mut k, id);
    Field::TunSrc.set(&mut k, num(&addresses[..4]));
    k
}

/// A frame, or a packet with this Ethertype, to which an Ethernet header without addresses is
/// added.
fn inside(mut k: Key, ethertype: Option<u16>, d: &[u8]) -> Option<(Key, Vec<u8>)> {
    let Some(ethertype) = ethertype else { return (d.len() >= 14).then(|| (k, d.to_vec())) };
    k.set_u8(at::FLAGS, flow::flag::BARE);
    Some((k, [&[0; 12], &ethertype.to_be_bytes()[..], d].concat()))
}

/// The fields of a tunnel, in a key, and the frame that comes out, of an untagged frame with GTP-U
/// over IPv4 (3GPP TS 29.281, section 5.1). None: it is none.
pub fn gtpu(p: &[u8]) -> Option<(Key, Vec<u8>)> {
    let (addresses, mut c) = udp(p)?;
    let h = c.take(8)?;
    let mut k = Key::ZERO;
    Field::TunId.set(&mut k, num(&h[4..]));
    Field::TunSrc.set(&mut k, num(&addresses[..4]));
    Field::TunGtpuFlags.set(&mut k, h[0].into());
    Field::TunGtpuMsgtype.set(&mut k, h[1].into());
    match (h[0] >> 4, h[1]) {
        (3, 255) => {}
        (3, _) => return Some((k, p.to_vec())),
        _ => return None,
    }
    let more = if h[0] & 7 != 0 { c.take(4)? } else { &[0; 4] };
    let next: [u8; 2] = match c.0.first()? >> 4 {
        _ if h[0] & 4 != 0 && more[3] != 0 => return None,
        4 => [8, 0],
        6 => [0x86, 0xdd],
        _ => return None,
    };
    Some((k, [&[0; 12], &next[..], c.0].concat()))
}

/// The tunnel fields of a packet with GRE and ERSPAN (draft-foschiano-erspan-03, sections 4.2 and
/// 4.3) as a key, and the frame inside; None: it is none.
pub fn erspan(p: &[u8]) -> Option<(Key, Vec<u8>)> {
    let (addresses, mut c, announced) = outer(p, 47)?;
    let all = c.0.len();
    let gre = c.take(8)?;
    let (kind, first) = (num(&gre[2..4]), num(c.take(4)?));
    let version = first >> 28;
    if gre[..2] != [0x10, 0] || !matches!(kind, 0x88be | 0x22eb) || !matches!(version, 1 | 2) {
        return None;
    }
    let second = num(c.take(4)?);
    let third = if version == 2 { num(c.take(4)?) } else { 0 };
    let mut k = Key::ZERO;
    Field::TunErspanVer.set(&mut k, version);
    Field::TunId.set(&mut k, first & 0x3ff);
    Field::TunSrc.set(&mut k, num(&addresses[..4]));
    match version {
        1 => Field::TunErspanIdx.set(&mut k, second & 0xf_ffff),
        _ => {
            Field::TunErspanDir.set(&mut k, third >> 3 & 1);
            Field::TunErspanHwid.set(&mut k, third >> 4 & 0x3f);
        }
    }
    let header = all - c.0.len();
    (header <= announced && c.0.len() >= 14).then_some((k, c.0.to_vec()))
}

fn ipv4(c: &mut Cursor<'_>, k: &mut Key) -> Option<()> {
    let all = c.0;
    let h = c.take(20)?;
    let (ihl, total) = ((h[0] & 15) as usize * 4, num(&h[2..4]) as usize);
    if ihl < 20 || all.len() < ihl || total > all.len() || total < ihl {
        return None;
    }
    Field::Ipv4Src.set(k, num(&h[12..16]));
    Field::Ipv4Dst.set(k, num(&h[16..20]));
    Field::IpTos.set(k, h[1] as u128);
    Field::IpTtl.set(k, h[8] as u128);
    Field::IpProto.set(k, h[9] as u128);
    let f = num(&h[6..8]);
    if f & 0x3fff != 0 {
        k.set_u8(at::FRAG, frag::ANY);
    }
    if f & 0x1fff != 0 {
        k.set_u8(at::FRAG, frag::ANY | frag::LATER);
        return None;
    }
    l4(&mut Cursor(&all[ihl..total]), h[9], 4, k)
}

fn ipv6(c: &mut Cursor<'_>, k: &mut Key) -> Option<()> {
    let h = c.take(40)?;
    let mut c = Cursor(c.0.get(..num(&h[4..6]) as usize)?);
    Field::Ipv6Src.set(k, num(&h[8..24]));
    Field::Ipv6Dst.set(k, num(&h[24..40]));
    let (mut proto, mut bits) = (h[6], 0);
    while [0, 43, 44, 51, 60].contains(&proto) {
        if c.0.len() < 8 {
            return None;
        }
        let x = c.0;
        match proto {
            44 => {
                c.take(8);
                let f = num(&x[2..4]);
                if f != 0 {
                    bits = frag::ANY;
                }
                if f & 0xfff8 != 0 {
                    bits |= frag::LATER;
                    break;
                }
            }
            51 => drop(c.take((x[1] as usize + 2) * 4)?),
            _ => drop(c.take((x[1] as usize + 1) * 8)?),
        }
        proto = x[0];
    }
    Field::Ipv6Label.set(k, num(&h[..4]) & 0xfffff);
    Field::IpTos.set(k, num(&h[..4]) >> 20 & 0xff);
    Field::IpTtl.set(k, h[7] as u128);
    Field::IpProto.set(k, proto as u128);
    k.set_u8(at::FRAG, bits);
    if bits & frag::LATER != 0 { None } else { l4(&mut c, proto, 6, k) }
}

fn l4(c: &mut Cursor<'_>, proto: u8, version: u8, k: &mut Key) -> Option<()> {
    let all = c.0;
    let (src, dst) = match (proto, version) {
        (6, _) => {
            let h = c.take(20)?;
            // What is shorter or longer than it can be is no header.
            let header = (h[12] >> 4) as usize * 4;
            (20..=all.len()).contains(&header).then_some(())?;
            Field::TcpFlags.set(k, num(&h[12..14]) & 0xfff);
            (num(&h[..2]), num(&h[2..4]))
        }
        (17, _) => num2(c.take(8)?),
        (132, _) => num2(c.take(12)?),
        (1 | 2, 4) | (58, 6) => {
            let h = c.take(8)?;
            (h[0] as u128, h[1] as u128)
        }
        _ => return None,
    };
    k.set_u16(at::TP_SRC, src as u16);
    k.set_u16(at::TP_DST, dst as u16);
    let flags = k.u8(at::FLAGS) | flow::flag::L4;
    k.set_u8(at::FLAGS, flags);
    if version == 6 && proto == 58 && (src == 135 || src == 136) && dst == 0 {
        Field::NdReserved.set(k, num(&all[4..8]));
        return nd(&mut Cursor(&all[8..]), k);
    }
    Some(())
}

fn num2(h: &[u8]) -> (u128, u128) {
    (num(&h[..2]), num(&h[2..4]))
}

fn nd(c: &mut Cursor<'_>, k: &mut Key) -> Option<()> {
    let target = num(c.take(16)?);
    let mut seen = [0u128; 2];
    while c.0.len() >= 8 {
        let (kind, len) = (c.0[0], c.0[1] as usize * 8);
        if len == 0 {
            break;
        }
        let Some(o) = c.take(len) else { break };
        if len == 8 && (kind == 1 || kind == 2) {
            if Field::NdOptionsType.get(k) == 0 {
                Field::NdOptionsType.set(k, kind.into());
            }
            let s = &mut seen[kind as usize - 1];
            if *s != 0 {
                return None;
            }
            *s = num(&o[2..]);
        }
    }
    Field::NdTarget.set(k, target);
    Field::NdSll.set(k, seen[0]);
    Field::NdTll.set(k, seen[1]);
    Some(())
}

fn arp(c: &mut Cursor<'_>, k: &mut Key) -> Option<()> {
    let h = c.take(28)?;
    if num(&h[..6]) != 0x0001_0800_0604 {
        return None;
    }
    if num(&h[6..8]) < 256 {
        Field::ArpOp.set(k, num(&h[6..8]));
    }
    Field::ArpSha.set(k, num(&h[8..14]));
    Field::ArpSpa.set(k, num(&h[14..18]));
    Field::ArpTha.set(k, num(&h[18..24]));
    Field::ArpTpa.set(k, num(&h[24..28]));
    Some(())
}
