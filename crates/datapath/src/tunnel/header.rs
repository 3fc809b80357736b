//! Outer headers (VXLAN, Geneve, GRE, ERSPAN, GTP-U): removed and put on by interpreted operations.
//! These are the twins of decapsulation in one pass and of templates.
//!
//! A packet that has no Ethernet header between two tunnels has one in memory: its bytes are those
//! of the outer header in front of it, which is always longer.

use crate::batch::keys::{EXT2, Layout, Line, bytes, bytes_mut};
use crate::mem::fold;
use crate::parse::frame::Frame;
use crate::parse::scalar::{UDP, parse};
use action::{Payload, TunnelKind, TunnelPush, erspan, gre, gtpu, vxlan};
use flow::{PortNo, at, flag, frag};
use packet::Packet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};
use telemetry::Drop;
use wire::checksum::{Sum, internet, pseudo_v4, pseudo_v6};
use wire::{ETH_IPV4, ETH_IPV6, ETH_NSH, ETH_QINQ, ETH_TEB, ETH_VLAN, IP_GRE};

/// Bits of `tun_flags`, with OVS's values: that of OpenFlow, then those that only the datapath has.
const OAM: u16 = 1;
const DF: u16 = 2;
const CSUM: u16 = 4;
const KEY: u16 = 8;

const ETHERNET: usize = 14;
const UDP_HEADER: usize = 8;
/// Bytes of a VXLAN header, and of a Geneve header without options.
const VXLAN_HEADER: usize = 8;
const GRE_HEADER: usize = 4;
/// The least Ethertype (IEEE 802.3): numbers below are lengths.
const ETHERTYPE_LEAST: u16 = 0x600;
/// Bytes of a GRE header with a sequence number.
const NUMBERED_GRE_HEADER: usize = 8;
/// Where the timestamp is behind the GRE header of ERSPAN type III, in units of 100 microseconds.
const ERSPAN_TIMESTAMP: std::ops::Range<usize> = 12..16;
/// The next GRE sequence number, shared by all tunnels: numbers rise within each tunnel, and that
/// is what receivers check.
static SEQUENCE: AtomicU32 = AtomicU32::new(0);
/// VXLAN-GPE, first word of the header: version 0, no control message, VNI and payload are valid.
const GPE_PLAIN: u32 = vxlan::VALID | vxlan::GPE;
/// VXLAN-GPE, first word: which payload.
const GPE_PAYLOAD: u32 = 0xff;
/// VXLAN with the group policy extension (draft-smith-vxlan-group-policy), first word: there is a
/// group policy id.
const GBP: u32 = 0x8000_0000;
/// VXLAN with the group policy extension, first word: the other flags that may be set.
const GBP_FLAGS: u32 = 0x0048_0000;
/// VXLAN with the group policy extension, first word: the group policy id.
const GBP_ID: u32 = 0xffff;
/// Geneve (RFC 8926, section 3.4), first word of the header: the length of the options, in units of
/// four bytes.
const GENEVE_LENGTH: u32 = 0x3f00_0000;
/// Geneve, first word: the packet is a control message.
const GENEVE_OAM: u32 = 0x80_0000;
/// Geneve, first word: there is a critical option.
const GENEVE_CRITICAL: u32 = 0x40_0000;
/// Geneve, first word: the Ethertype of the payload.
const GENEVE_PROTOCOL: u32 = 0xffff;
/// Geneve, first word: an Ethernet frame as payload, no options, no flags.
const GENEVE_PLAIN: u32 = ETH_TEB as u32;
const OPTION_BYTES_MAX: usize = 63 * 4;

fn be16(d: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([d[at], d[at + 1]])
}

fn be32(d: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([d[at], d[at + 1], d[at + 2], d[at + 3]])
}

/// A hash of a flow's key for the outer UDP source port, which lets the underlay distribute flows
/// (RFC 7348, section 5). Fragments of a datagram all have the hash of a flow without ports.
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

/// The UDP source port of packets with this entropy.
#[inline]
pub(crate) fn source_port((min, max): (u16, u16), entropy: u32) -> u16 {
    min + ((u64::from(entropy) * u64::from(max - min)) >> 32) as u16
}

/// Puts the outer header in front of the packet and fills it in. Err: the packet is unchanged.
pub(crate) fn push(p: &mut Packet, t: &TunnelPush, entropy: u32) -> Result<(), Drop> {
    let (len, l4) = (t.header.len(), t.l4());
    if p.len() + len > usize::from(u16::MAX) {
        return Err(Drop::TooLong);
    }
    let replaced = match t.payload {
        Payload::Frame => 0,
        Payload::Popped | Payload::Bare => behind_ethernet(p.data(), t.kind)?,
    };
    let fits = match len.checked_sub(replaced) {
        Some(more) => p.push_front(more),
        None => p.pull_front(replaced - len),
    };
    if !fits {
        return Err(Drop::NoHeadroom);
    }
    let d = p.data_mut();
    d[..len].copy_from_slice(&t.header);
    let behind_ip = (d.len() - l4) as u16;
    if t.is_ipv6() {
        d[18..20].copy_from_slice(&behind_ip.to_be_bytes());
    } else {
        d[16..18].copy_from_slice(&(behind_ip + 20).to_be_bytes());
        let sum = internet(&d[14..34]);
        d[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    match t.kind {
        TunnelKind::Gre => fill_gre(&mut d[l4..], t),
        TunnelKind::Erspan => fill_erspan(&mut d[l4..len]),
        kind => {
            if kind == TunnelKind::Gtpu {
                let inside = (d.len() - len) as u16;
                d[len - 6..len - 4].copy_from_slice(&inside.to_be_bytes());
            }
            fill_udp(d, t, source_port(t.source_ports, entropy));
        }
    }
    Ok(())
}

/// Where the packet in a frame starts, behind Ethernet header and tags. Err: the tunnel does not
/// carry such packets.
fn behind_ethernet(d: &[u8], kind: TunnelKind) -> Result<usize, Drop> {
    let l3 = wire::l3(d).ok_or(Drop::PacketType)?;
    let carried = match kind {
        TunnelKind::Gre => l3.ethertype >= ETHERTYPE_LEAST,
        TunnelKind::Gtpu => matches!(l3.ethertype, ETH_IPV4 | ETH_IPV6),
        _ => matches!(l3.ethertype, ETH_IPV4 | ETH_IPV6 | ETH_NSH),
    };
    if carried { Ok(l3.at) } else { Err(Drop::PacketType) }
}

fn fill_udp(d: &mut [u8], t: &TunnelPush, source_port: u16) {
    let udp = t.l4();
    let len = (d.len() - udp) as u16;
    d[udp..udp + 2].copy_from_slice(&source_port.to_be_bytes());
    d[udp + 4..udp + 6].copy_from_slice(&len.to_be_bytes());
    if t.checksum() {
        d[udp + 6..udp + 8].fill(0);
        let sum = udp_sum(d, t.is_ipv6(), 14, udp).finish_udp();
        d[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Fills in a GRE header. The sequence number is its last field; the checksum covers the header and
/// the payload.
fn fill_gre(g: &mut [u8], t: &TunnelPush) {
    if t.sequence() {
        let end = t.header.len() - t.l4();
        let next = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        g[end - 4..end].copy_from_slice(&next.to_be_bytes());
    }
    if t.checksum() {
        let sum = internet(g);
        g[4..6].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Fills in a GRE header, whose second word is a sequence number, and the ERSPAN header behind it.
fn fill_erspan(g: &mut [u8]) {
    let next = SEQUENCE.fetch_add(1, Ordering::Relaxed);
    g[4..8].copy_from_slice(&next.to_be_bytes());
    if g[2..4] == erspan::ETHERTYPES[1].to_be_bytes() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_micros() / 100);
        g[ERSPAN_TIMESTAMP].copy_from_slice(&(now as u32).to_be_bytes());
    }
}

/// The sum of the pseudo header, and of all bytes from the UDP header to the end of `d`.
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

/// An outer header that was read and checked.
struct Outer {
    /// Where the inner frame starts and ends.
    inner: std::ops::Range<usize>,
    /// Bytes of Geneve options in front of the inner frame.
    options: usize,
    /// Key line 2.
    ext2: Line,
    id: u32,
    /// The IPv4 source address.
    src: [u8; 4],
    /// Ethertype of the inner packet, if that has no Ethernet header.
    ethertype: Option<u16>,
    /// The inner packet comes in as one without an Ethernet header.
    bare: bool,
}

/// Removes the outer header. `f` becomes the frame of the inner packet, received on tunnel port
/// `port`. `matched`: the Geneve options whose values are matched. Err: the header is not valid for
/// this tunnel; the packet is unchanged.
pub(crate) fn pop(
    p: &mut Packet,
    port: PortNo,
    kind: TunnelKind,
    matched: &[u32],
    f: &mut Frame,
) -> Result<(), Drop> {
    f.reparse(p.data(), f.tags);
    let mut outer = read(p.data(), &f.line, &f.layout, kind)?;
    if outer.options > 0 {
        let from = outer.inner.start - outer.options;
        let options = digest(&p.data()[from..outer.inner.start], matched)?;
        outer.put(at::TUN_OPTIONS, &options.to_be_bytes());
        outer.put(at::TUN_OPTION_WORDS, &[(outer.options / 4) as u8]);
    }
    match outer.ethertype {
        None => enter(p, port, &outer, f),
        Some(ethertype) => enter_bare(p, port, outer, ethertype, f),
    }
}

/// As [`enter`], for a packet without an Ethernet header, which gets one in memory.
#[inline(never)]
fn enter_bare(
    p: &mut Packet,
    port: PortNo,
    mut outer: Outer,
    ethertype: u16,
    f: &mut Frame,
) -> Result<(), Drop> {
    let from = outer.inner.start - ETHERNET;
    p.data_mut()[from..from + 12].fill(0);
    p.data_mut()[from + 12..outer.inner.start].copy_from_slice(&ethertype.to_be_bytes());
    outer.inner.start = from;
    enter(p, port, &outer, f)?;
    if outer.bare {
        bytes_mut(&mut f.line)[at::FLAGS] |= flag::BARE;
        f.mark_bare();
    }
    Ok(())
}

/// Makes the packet the inner frame, received on tunnel port `port`, and `f` that frame.
#[inline(always)]
fn enter(p: &mut Packet, port: PortNo, outer: &Outer, f: &mut Frame) -> Result<(), Drop> {
    let (start, end) = (outer.inner.start, outer.inner.end);
    let (mut line, mut ext) = ([0; 8], [[0; 8]; 3]);
    let limit = f.vlan_limit;
    let layout = parse(&p.data()[start..end], port, limit, &mut line, &mut ext);
    let layout = layout.ok_or(Drop::Truncated)?;
    // What is known of checksums may be about the outer header.
    p.forget_checksums();
    let fits = p.set_len(end) && p.pull_front(start);
    debug_assert!(fits, "inside the packet");
    let l0 = bytes_mut(&mut line);
    l0[at::FLAGS] |= flags_of(&outer.ext2);
    l0[at::TUN_ID..at::TUN_SRC].copy_from_slice(&outer.id.to_be_bytes());
    l0[at::TUN_SRC..at::PAYLOAD].copy_from_slice(&outer.src);
    ext[1] = outer.ext2;
    let have = layout.ext | EXT2;
    *f = Frame { line, ext, have, layout, tags: limit, ..*f };
    Ok(())
}

/// A keyed hash that stands for Geneve options in keys: equal for packets whose options are the
/// same except for the values of those that are not `matched`. Other options with an equal hash
/// cannot be found without the secret. 0: no options. Err: the options are malformed.
fn digest(mut options: &[u8], matched: &[u32]) -> Result<u64, Drop> {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    if options.is_empty() {
        return Ok(0);
    }
    let mut h = SECRET.build_hasher();
    while !options.is_empty() {
        let [c0, c1, kind, words, ..] = *options else { return Err(Drop::TunnelOptions) };
        let (words, kind_of) = (words & 0x1f, u32::from_be_bytes([0, c0, c1, kind]));
        let end = 4 + usize::from(words) * 4;
        let value = options.get(4..end).ok_or(Drop::TunnelOptions)?;
        h.write_u32(kind_of);
        h.write_u8(words);
        if matched.binary_search(&kind_of).is_ok() {
            h.write(value);
        }
        options = &options[end..];
    }
    Ok(h.finish().max(1))
}

/// Key words that decapsulation in one pass fills from an outer header.
pub(crate) struct Stripped {
    /// Tunnel id and IPv4 source: word 6 of line 0.
    pub word6: u64,
    /// Key line 2: its words 0, 5 and 7; the others are 0.
    pub ext2: Line,
}

/// The bits of [`at::FLAGS`] that follow from this key line 2.
#[inline]
pub(crate) fn flags_of(ext2: &Line) -> u8 {
    let tos = bytes(ext2)[at::TUN_TOS - at::TUN_DST];
    let congestion = if tos & 3 == 3 { flag::TUNNEL_CE } else { 0 };
    let words = bytes(ext2)[at::TUN_OPTION_WORDS - at::TUN_DST];
    let options = if words != 0 { flag::TUNNEL_OPTIONS } else { 0 };
    flag::TUNNEL | congestion | options
}

/// Which headers [`strip`] removes.
pub(crate) struct PlainHeader {
    /// The first word of VXLAN without extensions, or of Geneve without options and flags.
    word: u32,
    /// The Geneve options whose values are matched.
    matched: Arc<[u32]>,
    /// The options of the last packet, and their digest: within one flow they rarely change.
    options: Vec<u8>,
    digest: u64,
}

impl PlainHeader {
    /// The headers of this kind of tunnel that [`strip`] removes; None: it removes none of them.
    pub fn new(kind: TunnelKind, matched: Arc<[u32]>) -> Option<PlainHeader> {
        let word = match kind {
            TunnelKind::Vxlan | TunnelKind::VxlanGbp => vxlan::VALID,
            TunnelKind::Geneve => GENEVE_PLAIN,
            TunnelKind::Gre | TunnelKind::Erspan | TunnelKind::Gtpu => return None,
        };
        Some(PlainHeader {
            word,
            matched,
            options: Vec::with_capacity(OPTION_BYTES_MAX),
            digest: 0,
        })
    }

    /// Bytes of options behind a header whose first word is `word`; None: [`strip`] does not remove
    /// it.
    #[inline]
    fn options(&self, word: u32) -> Option<usize> {
        // For VXLAN the second case cannot be: its word under that mask is 0.
        match word == self.word {
            true => Some(0),
            false if word & !(GENEVE_LENGTH | GENEVE_CRITICAL) == self.word => {
                Some((word >> 24) as usize * 4)
            }
            false => None,
        }
    }

    fn digest(&mut self, options: &[u8]) -> Option<u64> {
        if options != self.options {
            self.options.clear();
            self.digest = digest(options, &self.matched).ok()?;
            self.options.extend_from_slice(options);
        }
        Some(self.digest)
    }
}

/// As [`pop`], for a packet with the header that a decapsulation rule matches
/// (`decap_rules::HeaderMatch`): IPv4 without options, UDP without checksum, VXLAN or Geneve as
/// `plain` says, and behind it a whole Ethernet header. None: the packet has another header or a
/// bad one; it is unchanged.
#[inline]
pub(crate) fn strip(p: &mut Packet, plain: &mut PlainHeader) -> Option<Stripped> {
    const IPV4_UDP: usize = 34;
    let h: &[u8; 64] = p.data().first_chunk()?;
    let end = IPV4_UDP + usize::from(be16(h, 38));
    let whole = 14 + usize::from(be16(h, 16));
    let options = plain.options(be32(h, 42))?;
    let start = 50 + options;
    let sized = end >= start + 14 && end <= whole && whole <= p.len();
    if !sized || h[49] != 0 || !is_right(h[14..34].try_into().unwrap()) {
        return None;
    }
    let digest = match options {
        0 => 0,
        _ => plain.digest(&p.data()[50..start])?,
    };
    let flags = KEY | if h[20] & 0x40 != 0 { DF } else { 0 };
    let [f0, f1] = flags.to_be_bytes();
    let mut ext2 = [0; 8];
    ext2[0] = u64::from_ne_bytes([h[30], h[31], h[32], h[33], f0, f1, h[15], h[22]]);
    ext2[5] = u64::from_ne_bytes([0, 0, 0, (options / 4) as u8, h[34], h[35], h[36], h[37]]);
    ext2[7] = digest.to_be();
    let word6 = u64::from_ne_bytes([0, h[46], h[47], h[48], h[26], h[27], h[28], h[29]]);
    p.keep(start..end);
    Some(Stripped { word6, ext2 })
}

/// True if the checksum of an IPv4 header is right. Whether the sum is all ones does not depend on
/// the byte order (RFC 1071, section 2).
#[inline]
fn is_right(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// A tunnel's own header, behind IP.
#[derive(Default)]
struct Inside {
    /// Where the inner frame starts and ends.
    frame: std::ops::Range<usize>,
    /// Bytes of Geneve options in front of the inner frame.
    options: usize,
    flags: u16,
    id: u32,
    /// The UDP ports of the outer header.
    ports: [u8; 4],
    /// Group policy id and flags, as the key has them.
    policy: [u8; 3],
    /// Fields of ERSPAN and GTP-U, as the key has them.
    fields: [u8; 8],
    /// Ethertype of the inner packet, if that has no Ethernet header.
    ethertype: Option<u16>,
}

/// Reads and checks the headers of a tunnel, whose IP header the parser has found.
fn read(d: &[u8], line: &Line, layout: &Layout, kind: TunnelKind) -> Result<Outer, Drop> {
    let (l0, l3) = (bytes(line), usize::from(layout.l3));
    let ipv6 = be16(l0, at::ETH_TYPE) == crate::parse::scalar::IPV6;
    if l0[at::FRAG] != 0 || layout.l4 == 0 {
        return Err(Drop::TunnelHeader);
    }
    let inside = match kind {
        TunnelKind::Gre => read_gre(d, l0, layout)?,
        TunnelKind::Erspan => read_erspan(d, l0, layout)?,
        _ => read_udp(d, l0, layout, kind)?,
    };
    // An IPv4 header's checksum, options included.
    if !ipv6 && internet(&d[l3..l3 + usize::from(d[l3] & 15) * 4]) != 0 {
        return Err(Drop::TunnelChecksum);
    }
    let (inner, options, id) = (inside.frame, inside.options, inside.id);
    let ethertype = inside.ethertype;
    let bare = ethertype.is_some() && kind != TunnelKind::Gtpu;
    let mut outer = Outer { inner, options, ext2: [0; 8], id, src: [0; 4], ethertype, bare };
    outer.addresses(d, l3, ipv6);
    let df = !ipv6 && d[l3 + 6] & 0x40 != 0;
    let flags = inside.flags | if df { DF } else { 0 };
    outer.put(at::TUN_FLAGS, &flags.to_be_bytes());
    outer.put(at::TUN_TOS, &[l0[at::TOS], l0[at::TTL]]);
    outer.put(at::TUN_TP_SRC, &inside.ports);
    outer.put(at::TUN_GBP_ID, &inside.policy);
    outer.put(at::TUN_OPTIONS, &inside.fields);
    Ok(outer)
}

/// Reads a UDP header with VXLAN or Geneve behind it.
fn read_udp(d: &[u8], l0: &[u8; 64], layout: &Layout, kind: TunnelKind) -> Result<Inside, Drop> {
    let udp = usize::from(layout.l4);
    if l0[at::PROTO] != UDP || l0[at::FLAGS] & flag::L4 == 0 {
        return Err(Drop::TunnelHeader);
    }
    let end = udp + usize::from(be16(d, udp + 4));
    if end > usize::from(layout.end) || end < udp + UDP_HEADER + VXLAN_HEADER {
        return Err(Drop::TunnelHeader);
    }
    let summed = be16(d, udp + 6) != 0;
    let ipv6 = be16(l0, at::ETH_TYPE) == crate::parse::scalar::IPV6;
    if summed && udp_sum(&d[..end], ipv6, usize::from(layout.l3), udp).finish() != 0 {
        return Err(Drop::TunnelChecksum);
    }
    let at = udp + UDP_HEADER;
    let (word, id) = (be32(d, at), be32(d, at + 4));
    let mut inside = Inside {
        frame: at + VXLAN_HEADER..end,
        flags: KEY | if summed { CSUM } else { 0 },
        id: id >> 8,
        ports: [d[udp], d[udp + 1], d[udp + 2], d[udp + 3]],
        ..Inside::default()
    };
    match kind {
        TunnelKind::Gtpu => return read_gtpu(d, at..end, inside),
        TunnelKind::Geneve => {
            inside.options = geneve_options(word)?;
            inside.frame.start += inside.options;
            inside.flags |= if word & GENEVE_OAM != 0 { OAM } else { 0 };
        }
        _ if id & 0xff != 0 => return Err(Drop::TunnelHeader),
        _ if word & vxlan::GPE != 0 => inside.ethertype = gpe(word)?,
        _ => inside.policy = policy(word, kind == TunnelKind::VxlanGbp)?,
    }
    if inside.frame.start > end {
        return Err(Drop::TunnelHeader);
    }
    Ok(inside)
}

/// Bytes of options that the first word of a Geneve header announces.
fn geneve_options(word: u32) -> Result<usize, Drop> {
    let version = word >> 30;
    if version != 0 || word & GENEVE_PROTOCOL != GENEVE_PLAIN {
        return Err(Drop::TunnelHeader);
    }
    Ok(((word & GENEVE_LENGTH) >> 24) as usize * 4)
}

/// Reads a GRE header with Ethernet or what an Ethertype names behind it.
fn read_gre(d: &[u8], l0: &[u8; 64], layout: &Layout) -> Result<Inside, Drop> {
    let (start, end) = (usize::from(layout.l4), usize::from(layout.end));
    if l0[at::PROTO] != IP_GRE || end < start + GRE_HEADER {
        return Err(Drop::TunnelHeader);
    }
    let flags = be16(d, start);
    let has = |flag: u16| flags & flag != 0;
    let size = |flag: u16| if has(flag) { 4 } else { 0 };
    let key = start + GRE_HEADER + size(gre::CHECKSUM);
    let frame = key + size(gre::KEY) + size(gre::SEQUENCE)..end;
    let known = gre::CHECKSUM | gre::KEY | gre::SEQUENCE;
    let ethertype = gre_payload(be16(d, start + 2))?;
    if flags & !known != 0 || frame.start > end {
        return Err(Drop::TunnelHeader);
    }
    if has(gre::CHECKSUM) && internet(&d[start..end]) != 0 {
        return Err(Drop::TunnelChecksum);
    }
    let id = if has(gre::KEY) { be32(d, key) } else { 0 };
    let flags = if has(gre::CHECKSUM) { CSUM } else { 0 } | if has(gre::KEY) { KEY } else { 0 };
    Ok(Inside { frame, flags, id, ethertype, ..Inside::default() })
}

/// The Ethertype of what is behind a GRE header with this protocol; None: an Ethernet frame. Err:
/// the protocol is no Ethertype, that of a header which is no packet of its own, or of ERSPAN.
fn gre_payload(protocol: u16) -> Result<Option<u16>, Drop> {
    match protocol {
        ETH_TEB => Ok(None),
        ..ETHERTYPE_LEAST | ETH_VLAN | ETH_QINQ => Err(Drop::TunnelHeader),
        p if erspan::ETHERTYPES.contains(&p) => Err(Drop::TunnelHeader),
        p => Ok(Some(p)),
    }
}

/// Reads a GRE header with a sequence number and an ERSPAN header with Ethernet behind it. What
/// says how the frame was mirrored (VLAN, priority, truncation, time) is not kept. As in OVS the
/// frame is all that follows, even if the outer packet says that it is shorter.
fn read_erspan(d: &[u8], l0: &[u8; 64], layout: &Layout) -> Result<Inside, Drop> {
    let (start, end) = (usize::from(layout.l4), usize::from(layout.end));
    let at = start + NUMBERED_GRE_HEADER;
    if l0[at::PROTO] != IP_GRE || end < at + erspan::BYTES[0] {
        return Err(Drop::TunnelHeader);
    }
    let version = usize::from(d[at] >> 4);
    let header = version.checked_sub(1).and_then(|v| Some(at + erspan::BYTES.get(v)?));
    let inner = header.filter(|inner| *inner <= end).ok_or(Drop::TunnelHeader)?;
    let known = erspan::ETHERTYPES.contains(&be16(d, start + 2));
    if be16(d, start) != gre::SEQUENCE || !known {
        return Err(Drop::TunnelHeader);
    }
    let last = be32(d, inner - 4);
    let (index, direction, hwid) = match version {
        1 => (last & erspan::INDEX, 0, 0),
        _ => (0, last & erspan::DIRECTION, last >> erspan::HWID_SHIFT & erspan::HWID),
    };
    let [_, i1, i2, i3] = index.to_be_bytes();
    let fields = [0, i1, i2, i3, version as u8, u8::from(direction != 0), hwid as u8, 0];
    let id = be32(d, at) & erspan::SESSION;
    Ok(Inside { frame: inner..d.len(), flags: KEY, id, fields, ..Inside::default() })
}

/// Reads a GTP-U header and what is behind: an IP packet, whose Ethertype it says. What has another
/// message type stays whole, outer header and all, as in OVS.
fn read_gtpu(d: &[u8], udp: std::ops::Range<usize>, inside: Inside) -> Result<Inside, Drop> {
    let (flags, message, id) = (d[udp.start], d[udp.start + 1], be32(d, udp.start + 4));
    if flags & gtpu::VERSION_MASK != gtpu::VERSION {
        return Err(Drop::TunnelHeader);
    }
    let fields = [flags, 0, 0, 0, 0, 0, 0, message];
    if message != gtpu::PACKET {
        return Ok(Inside { frame: 0..d.len(), id, fields, ..inside });
    }
    let more = if flags & gtpu::MORE != 0 { 4 } else { 0 };
    let frame = inside.frame.start + more..udp.end;
    let extended = flags & gtpu::EXTENSION != 0 && d.get(frame.start - 1) != Some(&0);
    let ethertype = match d[..udp.end].get(frame.start).map(|b| b >> 4) {
        Some(4) if !extended => ETH_IPV4,
        Some(6) if !extended => ETH_IPV6,
        _ => return Err(Drop::TunnelHeader),
    };
    Ok(Inside { frame, id, fields, ethertype: Some(ethertype), ..inside })
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

/// Group policy id and flags, as the key has them, from the first word of a VXLAN header
/// (draft-smith-vxlan-group-policy). Err: another extension.
fn policy(word: u32, gbp: bool) -> Result<[u8; 3], Drop> {
    let known = vxlan::VALID | if gbp && word & GBP != 0 { GBP | GBP_FLAGS | GBP_ID } else { 0 };
    if word & vxlan::VALID == 0 || word & !known != 0 {
        return Err(Drop::TunnelHeader);
    }
    let id = word.to_be_bytes();
    Ok([id[2], id[3], id[1] & 0x48])
}

/// The Ethertype of what is behind a VXLAN-GPE header with this first word; None: an Ethernet
/// frame. Err: the header has another version, or is of a control message, or of a payload that is
/// not known.
fn gpe(word: u32) -> Result<Option<u16>, Drop> {
    match (word & !GPE_PAYLOAD, word & GPE_PAYLOAD) {
        (GPE_PLAIN, vxlan::IPV4) => Ok(Some(ETH_IPV4)),
        (GPE_PLAIN, vxlan::IPV6) => Ok(Some(ETH_IPV6)),
        (GPE_PLAIN, vxlan::NSH) => Ok(Some(ETH_NSH)),
        (GPE_PLAIN, vxlan::ETHERNET) => Ok(None),
        _ => Err(Drop::TunnelHeader),
    }
}
