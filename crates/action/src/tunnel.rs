//! Encapsulation: a template of the outer header, complete but for what each packet fills in.

use crate::text::{ipv4, ipv6, mac};
use flow::PortNo;
use wire::ETH_IPV6;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// What is between the outer IP header and the inner Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TunnelKind {
    /// UDP and VXLAN (RFC 7348), also with the header of VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe).
    Vxlan,
    /// UDP and VXLAN as [`TunnelKind::Vxlan`], of which the group policy extension may be in use
    /// (draft-smith-vxlan-group-policy).
    VxlanGbp,
    /// UDP and Geneve (RFC 8926).
    Geneve,
    /// GRE (RFC 2784 and 2890).
    Gre,
    /// GRE with a sequence number and an ERSPAN header (draft-foschiano-erspan-03), type II
    /// (version 1) or III (version 2).
    Erspan,
    /// UDP and GTP-U (3GPP TS 29.281) around an IP packet. What comes out gets an Ethernet header
    /// without addresses.
    Gtpu,
}

impl TunnelKind {
    /// True if the header behind IP is a GRE header; false: it is a UDP header.
    #[inline]
    pub fn is_gre(self) -> bool {
        matches!(self, TunnelKind::Gre | TunnelKind::Erspan)
    }

    /// True if the tunnel carries frames behind UDP, and nothing in its headers depends on the
    /// packet but lengths and checksums.
    #[inline]
    pub fn has_template(self) -> bool {
        matches!(self, TunnelKind::Vxlan | TunnelKind::VxlanGbp | TunnelKind::Geneve)
    }
}

/// What of a packet is behind a header that is put in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// The whole frame.
    Frame,
    /// What is behind the Ethernet header and tags of a frame.
    Popped,
    /// A packet without an Ethernet header. In memory it has one, which is not sent.
    Bare,
}

/// An outer header: Ethernet, IPv4 or IPv6 without options, and what [`TunnelKind`] says.
///
/// Each packet fills in: the lengths of IP and UDP, IPv4's checksum, the UDP source port, the UDP
/// checksum if the template's is not zero, GRE's checksum and sequence number if the template has
/// them, ERSPAN's timestamp (type III), GTP-U's length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TunnelPush {
    /// What kind of tunnel.
    pub kind: TunnelKind,
    /// What of the packet is sent.
    pub payload: Payload,
    /// Datapath number of the tunnel port.
    pub tunnel_port: PortNo,
    /// Datapath number of the port on whose bridge the outer packet goes on.
    pub out_port: PortNo,
    /// The header's bytes.
    pub header: Box<[u8]>,
    /// UDP source ports: from the first up to but not including the second.
    pub source_ports: (u16, u16),
}

/// First word of a VXLAN header.
pub mod vxlan {
    /// The VNI is valid (RFC 7348, section 5).
    pub const VALID: u32 = 0x0800_0000;
    /// The last byte says what the payload is (VXLAN-GPE, draft-ietf-nvo3-vxlan-gpe).
    pub const GPE: u32 = 0x0400_0000;
    /// Next protocol of VXLAN-GPE: an IPv4 packet.
    pub const IPV4: u32 = 1;
    /// Next protocol: an IPv6 packet.
    pub const IPV6: u32 = 2;
    /// Next protocol: an Ethernet frame.
    pub const ETHERNET: u32 = 3;
    /// Next protocol: a network service header.
    pub const NSH: u32 = 4;
}

/// Flags of a GRE header: what is there besides.
pub mod gre {
    /// A checksum, and two bytes of zero.
    pub const CHECKSUM: u16 = 0x8000;
    /// The key.
    pub const KEY: u16 = 0x2000;
    /// A sequence number.
    pub const SEQUENCE: u16 = 0x1000;
}

/// GTP-U headers (3GPP TS 29.281, section 5.1).
pub mod gtpu {
    /// First byte: version 1, and that it is GTP and not GTP'.
    pub const VERSION: u8 = 0x30;
    /// Bits of the first byte that must be [`VERSION`].
    pub const VERSION_MASK: u8 = 0xf0;
    /// First byte: an extension header follows.
    pub const EXTENSION: u8 = 4;
    /// First byte: four more bytes follow (extension, sequence number, N-PDU number).
    pub const MORE: u8 = 7;
    /// Message type: an IP packet follows (G-PDU).
    pub const PACKET: u8 = 255;
}

/// ERSPAN headers (draft-foschiano-erspan-03), which follow a GRE header with a sequence number.
pub mod erspan {
    /// Ethertypes of the GRE header in front of types II and III.
    pub const ETHERTYPES: [u16; 2] = [0x88be, 0x22eb];
    /// Bytes of the header, by its version, 1 or 2: without the GRE header's.
    pub const BYTES: [usize; 2] = [8, 12];
    /// Bits of the first word: the session id. The version is its upper four.
    pub const SESSION: u32 = 0x3ff;
    /// Bits of the second word of type II: the index.
    pub const INDEX: u32 = 0xf_ffff;
    /// The last byte but one and the last of type III have the hardware id, the last the direction.
    pub const HWID_SHIFT: u32 = 4;
    /// Bits of the hardware id.
    pub const HWID: u32 = 0x3f;
    /// Bit of the last byte of type III: the direction.
    pub const DIRECTION: u32 = 8;
}

impl TunnelPush {
    /// True if the outer packet is IPv6; false: it is IPv4.
    #[inline]
    pub fn is_ipv6(&self) -> bool {
        self.be16(12) == ETH_IPV6
    }

    /// Where the UDP or GRE header starts.
    #[inline]
    pub fn l4(&self) -> usize {
        ETHERNET + if self.is_ipv6() { 40 } else { 20 }
    }

    /// True if the UDP or GRE header gets a checksum.
    #[inline]
    pub fn checksum(&self) -> bool {
        match self.kind {
            kind if kind.is_gre() => self.be16(self.l4()) & gre::CHECKSUM != 0,
            _ => self.be16(self.l4() + 6) != 0,
        }
    }

    /// True if the header is VXLAN's and names the type of its payload (GPE).
    #[inline]
    pub fn is_gpe(&self) -> bool {
        let is_vxlan = matches!(self.kind, TunnelKind::Vxlan | TunnelKind::VxlanGbp);
        is_vxlan && self.be32(self.l4() + 8) & vxlan::GPE != 0
    }

    /// True if the GRE header gets a sequence number.
    #[inline]
    pub fn sequence(&self) -> bool {
        self.kind.is_gre() && self.be16(self.l4()) & gre::SEQUENCE != 0
    }

    #[inline]
    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }

    fn be32(&self, at: usize) -> u32 {
        u32::from(self.be16(at)) << 16 | u32::from(self.be16(at + 2))
    }

    /// `tnl_push(...)` as OVS prints it; `port` names datapath ports.
    pub fn text(&self, port: &dyn Fn(PortNo) -> String) -> String {
        let h = &self.header;
        let ip = match self.is_ipv6() {
            true => self.ipv6_text(),
            false => self.ipv4_text(),
        };
        let (kind, l4) = match self.kind {
            TunnelKind::Gre if self.is_ipv6() => (109, self.gre_text()),
            TunnelKind::Gre => (3, self.gre_text()),
            TunnelKind::Erspan if self.is_ipv6() => (108, self.erspan_text()),
            TunnelKind::Erspan => (107, self.erspan_text()),
            TunnelKind::Gtpu => (110, self.udp_text(&self.gtpu_text())),
            TunnelKind::Geneve => (5, self.udp_text(&self.geneve_text())),
            _ => (4, self.udp_text(&self.vxlan_text())),
        };
        let (tunnel_port, out_port) = (port(self.tunnel_port), port(self.out_port));
        let before = if self.payload == Payload::Popped { "pop_eth," } else { "" };
        format!(
            "{before}tnl_push(tnl_port({tunnel_port}),header(size={},type={kind},eth(dst={},src={},dl_type={:#06x}),\
             {ip},{l4}),out_port({out_port}))",
            h.len(),
            mac(&h[..6]),
            mac(&h[6..12]),
            self.be16(12),
        )
    }

    fn udp_text(&self, rest: &str) -> String {
        let udp = self.l4();
        let (src, dst, sum) = (self.be16(udp), self.be16(udp + 2), self.be16(udp + 6));
        format!("udp(src={src},dst={dst},csum={sum:#x}),{rest}")
    }

    fn vxlan_text(&self) -> String {
        let at = self.l4() + 8;
        format!("vxlan(flags={:#x},vni={:#x})", self.be32(at), self.be32(at + 4) >> 8)
    }

    fn gtpu_text(&self) -> String {
        let at = self.l4() + 8;
        let (flags, kind) = (self.header[at], self.header[at + 1]);
        format!("gtpu(flags={flags:#x},msgtype={kind},teid={:#x})", self.be32(at + 4))
    }

    fn geneve_text(&self) -> String {
        let at = self.l4() + 8;
        let flags = self.header[at + 1];
        let oam = if flags & 0x80 != 0 { "oam," } else { "" };
        let crit = if flags & 0x40 != 0 { "crit," } else { "" };
        let options = self.options_text(at + 8);
        format!("geneve({oam}{crit}vni={:#x}{options})", self.be32(at + 4) >> 8)
    }

    /// Geneve options, which start at `at`.
    fn options_text(&self, mut at: usize) -> String {
        if at >= self.header.len() {
            return String::new();
        }
        let mut list = String::new();
        while at < self.header.len() {
            let (class, kind) = (self.be16(at), self.header[at + 2]);
            let end = at + 4 + usize::from(self.header[at + 3] & 0x1f) * 4;
            let value = flow::long_hex(&self.header[at + 4..end]);
            let len = end - at - 4;
            list += &format!("{{class={class:#x},type={kind:#x},len={len},{value}}}");
            at = end;
        }
        format!(",options({list})")
    }

    fn gre_text(&self) -> String {
        let mut at = self.l4();
        let flags = self.be16(at);
        let mut text = format!("gre((flags={flags:#x},proto={:#x})", self.be16(at + 2));
        for (flag, name) in [(gre::CHECKSUM, "csum"), (gre::KEY, "key"), (gre::SEQUENCE, "seq")] {
            if flags & flag != 0 {
                at += 4;
                let word = self.be32(at);
                text += &format!(",{name}={:#x}", if name == "csum" { word >> 16 } else { word });
            }
        }
        text + ")"
    }

    fn erspan_text(&self) -> String {
        let (first, last) = (self.be32(self.l4() + 8), self.be32(self.header.len() - 4));
        let session = first & erspan::SESSION;
        match first >> 28 {
            1 => format!("erspan(ver=1,sid={session:#x},idx={last:#x})"),
            version => format!(
                "erspan(ver={version},sid={session:#x},dir={},hwid={:#x})",
                u8::from(last & erspan::DIRECTION != 0),
                last >> erspan::HWID_SHIFT & erspan::HWID
            ),
        }
    }

    fn ipv4_text(&self) -> String {
        let h = &self.header[ETHERNET..];
        let tos = match h[1] {
            0 => "0".into(),
            t => format!("{t:#x}"),
        };
        format!(
            "ipv4(src={},dst={},proto={},tos={tos},ttl={},frag={:#x})",
            ipv4(&h[12..16]),
            ipv4(&h[16..20]),
            h[9],
            h[8],
            self.be16(ETHERNET + 6)
        )
    }

    fn ipv6_text(&self) -> String {
        let (h, word) = (&self.header[ETHERNET..], self.be32(ETHERNET));
        format!(
            "ipv6(src={},dst={},label={},proto={},tclass={:#x},hlimit={})",
            ipv6(&h[8..24]),
            ipv6(&h[24..40]),
            word & 0xf_ffff,
            h[6],
            word >> 20 & 0xff,
            h[7]
        )
    }
}
