//! Encapsulation: a template of the outer header, complete but for what each packet fills in.

use crate::text::{ipv4, ipv6, mac};
use flow::PortNo;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
const IPV6: u16 = 0x86dd;

/// An outer header: Ethernet, IPv4 or IPv6 without options, UDP, VXLAN (RFC 7348).
///
/// Each packet fills in: the lengths of IP and UDP, IPv4's checksum, the UDP source port, and the UDP
/// checksum if the template's is not zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TunnelPush {
    /// Datapath number of the tunnel port.
    pub tunnel_port: PortNo,
    /// Datapath number of the port on whose bridge the outer packet goes on.
    pub out_port: PortNo,
    /// The header's bytes.
    pub header: Box<[u8]>,
    /// UDP source ports: from the first up to but not including the second.
    pub source_ports: (u16, u16),
}

impl TunnelPush {
    /// Is the outer packet IPv6 (else IPv4)?
    #[inline]
    pub fn is_ipv6(&self) -> bool {
        self.be16(12) == IPV6
    }

    /// Where the UDP header starts.
    #[inline]
    pub fn udp(&self) -> usize {
        ETHERNET + if self.is_ipv6() { 40 } else { 20 }
    }

    /// Does the UDP header get a checksum?
    #[inline]
    pub fn checksum(&self) -> bool {
        self.be16(self.udp() + 6) != 0
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
        let (h, udp) = (&self.header, self.udp());
        let ip = match self.is_ipv6() {
            true => self.ipv6_text(),
            false => self.ipv4_text(),
        };
        let (tunnel_port, out_port) = (port(self.tunnel_port), port(self.out_port));
        format!(
            "tnl_push(tnl_port({tunnel_port}),header(size={},type=4,eth(dst={},src={},dl_type={:#06x}),\
             {ip},udp(src={},dst={},csum={:#x}),vxlan(flags={:#x},vni={:#x})),out_port({out_port}))",
            h.len(),
            mac(&h[..6]),
            mac(&h[6..12]),
            self.be16(12),
            self.be16(udp),
            self.be16(udp + 2),
            self.be16(udp + 6),
            self.be32(udp + 8),
            self.be32(udp + 12) >> 8,
        )
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
