//! Reads fragments of IP datagrams, and reassembles datagrams from them. IPv4: RFC 791, section
//! 3.2; IPv6: RFC 8200, section 4.5.

use std::ops::Range;
use wire::{IPV4_LEN, IPV6_FRAG_LEN, IPV6_LEN, Ipv4, Ipv6, checksum, walk_extensions};

/// Bytes of an IP datagram with its header, at most.
pub const DATAGRAM_BYTES_MAX: usize = 0xffff;

/// Names the datagram of a fragment. Only fragments that meet the same `ct` belong together: those
/// of one zone and one recirculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datagram {
    /// Source address as a number; of IPv4 the low 32 bits.
    pub src: u128,
    /// Destination address; of IPv4 in the lower 32 bits.
    pub dst: u128,
    /// Identification.
    pub id: u32,
    /// Recirculation id of the packet.
    pub recirc: u32,
    /// Zone of the `ct`.
    pub zone: u16,
    /// IPv4's protocol. RFC 8200 leaves IPv6's out.
    pub proto: u8,
    /// True: IPv6; false: IPv4.
    pub v6: bool,
}

/// A fragment, and where its headers and payload are in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The datagram that the fragment belongs to.
    pub datagram: Datagram,
    /// Where the fragment's first byte is in the datagram's payload.
    pub start: u32,
    /// Where the fragment ends in the datagram's payload: behind its last byte.
    #[allow(missing_docs)]
    pub end: u32,
    /// True if more fragments follow.
    pub more: bool,
    /// Where the IP header is in the packet.
    pub l3: usize,
    /// Where the payload starts in the packet.
    pub payload: usize,
}

impl Fragment {
    /// Bytes of the fragment's IP packet.
    pub fn size(&self) -> usize {
        self.payload - self.l3 + self.len()
    }

    /// Bytes of the fragment's payload.
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Where the payload is in the packet.
    fn bytes(&self) -> Range<usize> {
        self.payload..self.payload + self.len()
    }
}

/// Reads a packet whose IP header is at `l3`; None: it is no fragment, or malformed.
pub fn read(data: &[u8], l3: usize, zone: u16, recirc: u32) -> Option<Fragment> {
    let b = data.get(l3..)?;
    let f = match b.first()? >> 4 {
        4 => read_v4(b)?,
        6 => read_v6(b)?,
        _ => return None,
    };
    let datagram = Datagram { zone, recirc, ..f.datagram };
    let f = Fragment { datagram, l3, payload: l3 + f.payload, ..f };
    // All fragments but the last end at a multiple of eight bytes, and no datagram is longer than
    // its length field can say.
    let fits = f.end > f.start && (!f.more || f.end.is_multiple_of(8));
    (fits && f.end as usize + IPV4_LEN <= DATAGRAM_BYTES_MAX).then_some(f)
}

fn read_v4(b: &[u8]) -> Option<Fragment> {
    let ip = Ipv4::new(b)?;
    let (header, total) = (ip.header_len(), usize::from(ip.total_len()));
    if !ip.is_fragment() || total < header || total > b.len() || !ip.checksum_ok() {
        return None;
    }
    let start = ip.frag_offset() as u32;
    let datagram = Datagram {
        src: u32::from_be_bytes(ip.src()).into(),
        dst: u32::from_be_bytes(ip.dst()).into(),
        id: ip.id().into(),
        recirc: 0,
        zone: 0,
        proto: ip.proto(),
        v6: false,
    };
    let end = start + (total - header) as u32;
    Some(Fragment { datagram, start, end, more: ip.more_fragments(), l3: 0, payload: header })
}

fn read_v6(b: &[u8]) -> Option<Fragment> {
    let ip = Ipv6::new(b)?;
    let total = IPV6_LEN + usize::from(ip.payload_len());
    let walk = walk_extensions(b.get(IPV6_LEN..total)?, ip.next())?;
    let f = walk.fragment.filter(|f| f.offset != 0 || f.more)?;
    let payload = IPV6_LEN + f.at + IPV6_FRAG_LEN;
    let datagram = Datagram {
        src: u128::from_be_bytes(ip.src()),
        dst: u128::from_be_bytes(ip.dst()),
        id: f.id,
        recirc: 0,
        zone: 0,
        proto: 0,
        v6: true,
    };
    let (start, end) = (f.offset as u32, (f.offset + total - payload) as u32);
    Some(Fragment { datagram, start, end, more: f.more, l3: 0, payload })
}

/// Reassembles a datagram in `out` from all its fragments, in order; returns its length. None: it
/// is longer than an IP datagram can be. An IPv6 datagram keeps its fragment header, which then
/// says that nothing follows.
pub fn assemble<'a>(
    pieces: impl Iterator<Item = (&'a Fragment, &'a [u8])>,
    out: &mut [u8; DATAGRAM_BYTES_MAX],
) -> Option<usize> {
    let mut at = 0;
    for (f, data) in pieces {
        let bytes = if at == 0 { f.l3..f.bytes().end } else { f.bytes() };
        out.get_mut(at..at + bytes.len())?.copy_from_slice(data.get(bytes.clone())?);
        at += bytes.len();
    }
    if let Some(mut ip) = Ipv4::new(&mut out[..at]) {
        const DONT_FRAGMENT: u16 = 0x4000;
        ip.set_total_len(at as u16);
        ip.set_frag(ip.frag() & DONT_FRAGMENT);
        ip.fill_checksum();
        return Some(at);
    }
    let (next, header) = Ipv6::new(&out[..at]).map(|ip| (ip.next(), IPV6_LEN))?;
    let fragment = walk_extensions(&out[header..at], next)?.fragment?;
    out[header + fragment.at + 2..header + fragment.at + 4].fill(0);
    Ipv6::new(&mut out[..at])?.set_payload_len((at - header) as u16);
    Some(at)
}

/// Writes into a fragment what connection tracking changed in its datagram, whose bytes are
/// `whole`.
pub fn spread(f: &Fragment, first: &Fragment, whole: &[u8], data: &mut [u8]) {
    let from = first.payload - first.l3 + f.start as usize;
    data[f.bytes()].copy_from_slice(&whole[from..from + f.len()]);
    let addresses = if f.datagram.v6 { 8..40 } else { 12..20 };
    let at = f.l3 + addresses.start..f.l3 + addresses.end;
    if !f.datagram.v6 {
        let sum = u16::from_be_bytes([data[f.l3 + 10], data[f.l3 + 11]]);
        let sum = checksum::update(sum, 0, &data[at.clone()], &whole[addresses.clone()]);
        data[f.l3 + 10..f.l3 + 12].copy_from_slice(&sum.to_be_bytes());
    }
    data[at].copy_from_slice(&whole[addresses]);
}
