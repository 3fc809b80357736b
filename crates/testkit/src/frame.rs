//! Frames by their fields, laid down with the right lengths and checksums.

use crate::fix_checksums;
use wire::{Mac, MplsLse, VlanTag};

/// A frame. `Frame::default()` is Ethernet with nothing in it; set the fields that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// VLAN tags, the outermost first.
    pub tags: Vec<VlanTag>,
    /// MPLS labels, the outermost first; the bottom-of-stack bits are taken as they are.
    pub mpls: Vec<MplsLse>,
    /// What stands behind.
    pub net: Net,
}

/// Network layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Net {
    /// Any Ethertype and bytes.
    Raw(u16, Vec<u8>),
    /// ARP for Ethernet and IPv4: operation, sender (MAC, address), target (MAC, address).
    Arp(u16, (Mac, [u8; 4]), (Mac, [u8; 4])),
    /// IPv4.
    V4(V4),
    /// IPv6.
    V6(V6),
}

impl Default for Net {
    fn default() -> Self {
        Net::Raw(0x88b5, Vec::new())
    }
}

/// IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V4 {
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset as on the wire.
    pub frag: u16,
    /// Options; padded to a multiple of four, 40 at most.
    pub options: Vec<u8>,
    /// Transport layer.
    pub l4: L4,
}

impl V4 {
    /// A packet with a TTL of 64 and nothing else out of the ordinary.
    pub fn new(src: [u8; 4], dst: [u8; 4], l4: L4) -> Self {
        V4 { src, dst, tos: 0, ttl: 64, id: 0, frag: 0, options: Vec::new(), l4 }
    }
}

/// IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V6 {
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// Traffic class.
    pub tclass: u8,
    /// Flow label.
    pub label: u32,
    /// Hop limit.
    pub hops: u8,
    /// Extension headers in their order.
    pub ext: Vec<Ext>,
    /// Transport layer.
    pub l4: L4,
}

impl V6 {
    /// A packet with a hop limit of 64 (255 for neighbour discovery) and nothing else out of the
    /// ordinary.
    pub fn new(src: [u8; 16], dst: [u8; 16], l4: L4) -> Self {
        let hops = if matches!(l4, L4::Nd { .. }) { 255 } else { 64 };
        V6 { src, dst, tclass: 0, label: 0, hops, ext: Vec::new(), l4 }
    }
}

/// An IPv6 extension header; the number of some is how many 8-byte units it has beyond the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// Hop-by-hop options (padding).
    HopByHop(u8),
    /// Destination options (padding).
    DstOpts(u8),
    /// Routing, type 253, no segments left.
    Routing(u8),
    /// Fragment: offset in 8-byte units, more fragments, identification.
    Fragment(u16, bool, u32),
}

/// Transport layer. Checksums and lengths are made, never given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L4 {
    /// TCP: ports, sequence and acknowledgement number, flags (12 bits), payload.
    Tcp(u16, u16, u32, u32, u16, Vec<u8>),
    /// UDP: ports, payload.
    Udp(u16, u16, Vec<u8>),
    /// SCTP: ports, verification tag, chunks.
    Sctp(u16, u16, u32, Vec<u8>),
    /// ICMP, or ICMPv6 in IPv6: type, code, the second word, payload.
    Icmp(u8, u8, [u8; 4], Vec<u8>),
    /// Neighbour solicitation (135) or advertisement (136), in IPv6 only.
    Nd {
        /// ICMPv6 type.
        kind: u8,
        /// Router, solicited, override in the top three bits.
        flags: u32,
        /// Target address.
        target: [u8; 16],
        /// Source link-layer option.
        sll: Option<Mac>,
        /// Target link-layer option.
        tll: Option<Mac>,
    },
    /// Any other protocol and its bytes (later fragments too).
    Other(u8, Vec<u8>),
}

impl Frame {
    /// Ethernet from `src` to `dst` with `net` in it.
    pub fn new(src: Mac, dst: Mac, net: Net) -> Self {
        Frame { dst, src, net, ..Frame::default() }
    }

    /// The frame with one more tag outside the present ones.
    #[must_use]
    pub fn tagged(mut self, tpid: u16, tci: u16) -> Self {
        self.tags.insert(0, VlanTag { tpid, tci });
        self
    }

    /// UDP over IPv4, the most usual of frames.
    pub fn udp4(macs: (Mac, Mac), ips: ([u8; 4], [u8; 4]), ports: (u16, u16), body: &[u8]) -> Self {
        let l4 = L4::Udp(ports.0, ports.1, body.to_vec());
        Frame::new(macs.0, macs.1, Net::V4(V4::new(ips.0, ips.1, l4)))
    }

    /// A broadcast question for the MAC address of `tpa`.
    pub fn arp_request(sha: Mac, spa: [u8; 4], tpa: [u8; 4]) -> Self {
        let net = Net::Arp(wire::ARP_REQUEST, (sha, spa), ([0; 6], tpa));
        Frame::new(sha, wire::BROADCAST, net)
    }

    /// The bytes on the wire, without padding to 60 bytes and without FCS.
    pub fn bytes(&self) -> Vec<u8> {
        let mut b = [self.dst, self.src].concat();
        self.tags.iter().for_each(|t| b.extend(t.to_bytes()));
        let kind = if self.mpls.is_empty() { self.net.ethertype() } else { wire::ETH_MPLS };
        b.extend(kind.to_be_bytes());
        self.mpls.iter().for_each(|l| b.extend(l.to_bytes()));
        let at = b.len();
        self.net.write(&mut b);
        crate::repair::fix_l3(&mut b[at..], self.net.ethertype());
        fix_checksums(&mut b);
        b
    }

    /// As [`Frame::bytes`], padded with zeros to the 60 bytes that Ethernet asks for.
    pub fn padded(&self) -> Vec<u8> {
        let mut b = self.bytes();
        b.resize(b.len().max(60), 0);
        b
    }
}

impl Net {
    /// The Ethertype of what stands here.
    pub fn ethertype(&self) -> u16 {
        match self {
            Net::Raw(kind, _) => *kind,
            Net::Arp(..) => wire::ETH_ARP,
            Net::V4(_) => wire::ETH_IPV4,
            Net::V6(_) => wire::ETH_IPV6,
        }
    }

    fn write(&self, b: &mut Vec<u8>) {
        match self {
            Net::Raw(_, bytes) => b.extend(bytes),
            Net::Arp(op, sender, target) => {
                b.extend([0, 1, 8, 0, 6, 4]);
                b.extend(op.to_be_bytes());
                for (mac, ip) in [sender, target] {
                    b.extend(mac);
                    b.extend(ip);
                }
            }
            Net::V4(ip) => ip.write(b),
            Net::V6(ip) => ip.write(b),
        }
    }
}

impl V4 {
    fn write(&self, b: &mut Vec<u8>) {
        let mut l4 = Vec::new();
        self.l4.write(&mut l4);
        let mut options = self.options.clone();
        options.resize(options.len().min(40).next_multiple_of(4), 0);
        let head = 20 + options.len();
        b.extend([0x40 | (head / 4) as u8, self.tos]);
        for v in [(head + l4.len()) as u16, self.id, self.frag] {
            b.extend(v.to_be_bytes());
        }
        b.extend([self.ttl, self.l4.proto(false), 0, 0]);
        b.extend(self.src);
        b.extend(self.dst);
        b.extend(options);
        b.extend(l4);
    }
}

impl V6 {
    fn write(&self, b: &mut Vec<u8>) {
        let mut rest = Vec::new();
        for (i, ext) in self.ext.iter().enumerate() {
            let next = self.ext.get(i + 1).map_or(self.l4.proto(true), |e| e.proto());
            ext.write(next, &mut rest);
        }
        self.l4.write(&mut rest);
        let word = 6 << 28 | u32::from(self.tclass) << 20 | self.label & 0xf_ffff;
        b.extend(word.to_be_bytes());
        b.extend((rest.len() as u16).to_be_bytes());
        b.push(self.ext.first().map_or(self.l4.proto(true), |e| e.proto()));
        b.push(self.hops);
        b.extend(self.src);
        b.extend(self.dst);
        b.extend(rest);
    }
}

impl Ext {
    /// The protocol number.
    pub fn proto(self) -> u8 {
        match self {
            Ext::HopByHop(_) => wire::IP_HOPOPTS,
            Ext::DstOpts(_) => wire::IP_DSTOPTS,
            Ext::Routing(_) => wire::IP_ROUTING,
            Ext::Fragment(..) => wire::IP_FRAGMENT,
        }
    }

    fn write(self, next: u8, b: &mut Vec<u8>) {
        match self {
            Ext::HopByHop(n) | Ext::DstOpts(n) => {
                b.extend([next, n]);
                padding(usize::from(n) * 8 + 6, b);
            }
            Ext::Routing(n) => {
                b.extend([next, n, 253, 0]);
                b.resize(b.len() + usize::from(n) * 8 + 4, 0);
            }
            Ext::Fragment(offset, more, id) => {
                b.extend([next, 0]);
                b.extend((offset << 3 | u16::from(more)).to_be_bytes());
                b.extend(id.to_be_bytes());
            }
        }
    }
}

/// PadN options that fill `n` bytes, `n` at least 2 and never one more than a multiple of 257.
fn padding(mut n: usize, b: &mut Vec<u8>) {
    while n > 0 {
        let piece = n.min(200);
        b.extend([1, (piece - 2) as u8]);
        b.resize(b.len() + piece - 2, 0);
        n -= piece;
    }
}

impl L4 {
    /// The protocol number, in IPv6 or IPv4.
    pub fn proto(&self, v6: bool) -> u8 {
        match self {
            L4::Tcp(..) => wire::IP_TCP,
            L4::Udp(..) => wire::IP_UDP,
            L4::Sctp(..) => wire::IP_SCTP,
            L4::Icmp(..) if !v6 => wire::IP_ICMP,
            L4::Icmp(..) | L4::Nd { .. } => wire::IP_ICMPV6,
            L4::Other(proto, _) => *proto,
        }
    }

    fn write(&self, b: &mut Vec<u8>) {
        match self {
            L4::Tcp(src, dst, seq, ack, flags, payload) => {
                ports(*src, *dst, b);
                b.extend(seq.to_be_bytes());
                b.extend(ack.to_be_bytes());
                b.extend((0x5000 | flags & 0xfff).to_be_bytes());
                b.extend([0xff, 0xff, 0, 0, 0, 0]);
                b.extend(payload);
            }
            L4::Udp(src, dst, payload) => {
                ports(*src, *dst, b);
                b.extend(((8 + payload.len()) as u16).to_be_bytes());
                // Anything but zero, which would say that there is no checksum to make.
                b.extend([0xff, 0xff]);
                b.extend(payload);
            }
            L4::Sctp(src, dst, tag, chunks) => {
                ports(*src, *dst, b);
                b.extend(tag.to_be_bytes());
                b.extend([0; 4]);
                b.extend(chunks);
            }
            L4::Icmp(kind, code, word, payload) => {
                b.extend([*kind, *code, 0, 0]);
                b.extend(word);
                b.extend(payload);
            }
            L4::Nd { kind, flags, target, sll, tll } => {
                b.extend([*kind, 0, 0, 0]);
                b.extend(flags.to_be_bytes());
                b.extend(target);
                for (option, mac) in [(wire::ND_OPT_SLL, sll), (wire::ND_OPT_TLL, tll)] {
                    if let Some(mac) = mac {
                        b.extend([option, 1]);
                        b.extend(mac);
                    }
                }
            }
            L4::Other(_, bytes) => b.extend(bytes),
        }
    }
}

fn ports(src: u16, dst: u16, b: &mut Vec<u8>) {
    b.extend(src.to_be_bytes());
    b.extend(dst.to_be_bytes());
}

/// Bytes from hexadecimal digits; white space, colons and dots between them do not matter. None
/// for anything else or an odd number of digits.
pub fn hex(text: &str) -> Option<Vec<u8>> {
    let skip = |c: &char| !c.is_whitespace() && *c != ':' && *c != '.';
    let digits: Option<Vec<u8>> =
        text.chars().filter(skip).map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits?;
    let even = digits.len().is_multiple_of(2);
    even.then(|| digits.chunks(2).map(|p| p[0] << 4 | p[1]).collect())
}

/// Hexadecimal digits without anything between them, as `ovs-ofctl` takes and prints packets.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_frames() {
        let arp = Frame::arp_request([2, 0, 0, 0, 0, 1], [10, 0, 0, 1], [10, 0, 0, 2]).bytes();
        let want = "ffffffffffff 020000000001 0806 0001080006040001 020000000001 0a000001 \
                    000000000000 0a000002";
        assert_eq!(arp, hex(want).unwrap());
        // An echo request whose two checksums were computed by hand.
        let icmp = L4::Icmp(8, 0, [0, 1, 0, 1], vec![]);
        let f = Frame::new([0; 6], [0; 6], Net::V4(V4::new([10, 0, 0, 1], [10, 0, 0, 2], icmp)));
        assert_eq!(
            to_hex(&f.bytes()[14..]),
            "4500001c00000000400166df0a0000010a0000020800f7fd00010001"
        );
    }

    #[test]
    fn hex_is_strict() {
        assert_eq!(hex(" 0a:0B\n0c"), Some(vec![10, 11, 12]));
        assert_eq!((hex("abc"), hex("zz")), (None, None));
        assert_eq!(to_hex(&[0, 0xff]), "00ff");
    }

    #[test]
    fn extension_chain_reads_back() {
        let ext =
            vec![Ext::HopByHop(0), Ext::Routing(1), Ext::DstOpts(40), Ext::Fragment(0, true, 7)];
        let v6 = V6 { ext, ..V6::new([1; 16], [2; 16], L4::Udp(5, 6, vec![1, 2, 3])) };
        let b = Frame::new([0; 6], [0; 6], Net::V6(v6)).bytes();
        let ip = wire::Ipv6::new(&b[14..]).unwrap();
        assert_eq!(ip.payload().len(), b.len() - 54);
        let w = wire::walk_extensions(ip.payload(), ip.next()).unwrap();
        assert_eq!((w.proto, w.headers, w.fragment.map(|f| f.id)), (17, 4, Some(7)));
        assert_eq!(wire::Udp::new(&ip.payload()[w.at..]).unwrap().length(), 11);
    }
}
