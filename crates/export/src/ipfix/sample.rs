//! A sampled packet as IPFIX reports it: which template it takes, and its part of the flow's key.

use super::template::{L3, L4, Shape};
use crate::bytes::Put;
use wire::{ETH_IPV4, ETH_IPV6, IP_ICMP, IP_ICMPV6, IP_SCTP, IP_TCP, IP_UDP};

/// Bytes of an Ethernet header, and of a tag.
const ETHERNET_BYTES: usize = 14;
const TAG_BYTES: usize = 4;
/// Bit of a VLAN tag in [`Packet::vlan`]: there is a tag.
const VLAN_PRESENT: u16 = 0x1000;
/// Longest text of an element whose length takes one byte (RFC 7011, section 7).
pub(super) const TEXT_BYTES_MAX: usize = 254;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// ifIndex, or what stands for it.
    pub index: u32,
    /// ifType (RFC 1213).
    pub kind: u32,
    /// Its name.
    pub name: String,
    /// The interface's description of itself.
    pub description: String,
}

/// An outer header of IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnel {
    /// `tunnelType`: 1 VXLAN, 2 GRE, 7 Geneve.
    pub kind: u8,
    /// Protocol of IP.
    pub proto: u8,
    /// Source.
    pub src: [u8; 4],
    /// Destination.
    pub dst: [u8; 4],
    /// Source and destination port.
    pub ports: (u16, u16),
    /// VNI or key.
    pub id: u32,
    /// Bytes of that.
    pub id_bytes: usize,
}

/// What is looked at of a sampled packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet {
    /// Ethernet source.
    pub eth_src: [u8; 6],
    /// Ethernet destination.
    pub eth_dst: [u8; 6],
    /// Ethertype, behind tags.
    pub eth_type: u16,
    /// The outer tag; 0x1000 is set if there is one.
    pub vlan: u16,
    /// Addresses of IP; those of IPv4 are the first bytes.
    pub ip_src: [u8; 16],
    /// See `ip_src`.
    pub ip_dst: [u8; 16],
    /// Flow label of IPv6.
    pub label: u32,
    /// Protocol of IP.
    pub proto: u8,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Source and destination port; ICMP's type and code.
    pub ports: (u16, u16),
    /// TCP flags.
    pub tcp_flags: u8,
    /// Bytes of the frame.
    pub len: usize,
}

/// A sample.
#[derive(Clone, Debug)]
pub struct IpfixSample<'a> {
    /// `obs_domain_id`.
    pub domain: u32,
    /// `obs_point_id`.
    pub point: u32,
    /// Packets that it stands for.
    pub packets: u64,
    /// The packet was taken as it went out.
    pub egress: bool,
    /// Where it came in.
    pub input: &'a Interface,
    /// Where it went out.
    pub output: &'a Interface,
    /// The packet.
    pub packet: Packet,
    /// The outer header that came with it, or that it leaves with.
    pub tunnel: Option<Tunnel>,
    /// The packet was sent nowhere.
    pub dropped: bool,
}

/// What became of a sample, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleClass {
    Ipv4,
    Ipv6,
    /// IPv4 of a protocol that has no template of its own.
    Ipv4Other,
    Ipv6Other,
    NoIp,
}

impl Packet {
    fn layers(&self) -> (L3, L4) {
        let l4 = |icmp: u8| match self.proto {
            IP_TCP => L4::Tcp,
            IP_UDP => L4::Udp,
            IP_SCTP => L4::Sctp,
            p if p == icmp => L4::Icmp,
            _ => L4::Other,
        };
        match self.eth_type {
            ETH_IPV4 => (L3::Ipv4, l4(IP_ICMP)),
            ETH_IPV6 => (L3::Ipv6, l4(IP_ICMPV6)),
            _ => (L3::Other, L4::Other),
        }
    }

    /// Whether the destination has the group bit, and whether it is the broadcast address.
    pub(super) fn is_group(&self) -> (bool, bool) {
        (self.eth_dst[0] & 1 != 0, self.eth_dst == [0xff; 6])
    }

    fn header_bytes(&self) -> usize {
        ETHERNET_BYTES + if self.vlan & VLAN_PRESENT != 0 { TAG_BYTES } else { 0 }
    }

    /// Bytes of the IP packet.
    pub(super) fn ip_bytes(&self) -> u64 {
        self.len.saturating_sub(self.header_bytes()) as u64
    }
}

impl IpfixSample<'_> {
    pub(super) fn shape(&self) -> Shape {
        let (l3, l4) = self.packet.layers();
        let vlan = self.packet.vlan & VLAN_PRESENT != 0;
        Shape { vlan, l3, l4, tunnel: self.tunnel.is_some(), egress: self.egress }
    }

    pub(super) fn class(&self) -> SampleClass {
        match self.packet.layers() {
            (L3::Other, _) => SampleClass::NoIp,
            (L3::Ipv4, L4::Other) => SampleClass::Ipv4Other,
            (L3::Ipv6, L4::Other) => SampleClass::Ipv6Other,
            (L3::Ipv4, _) => SampleClass::Ipv4,
            (L3::Ipv6, _) => SampleClass::Ipv6,
        }
    }

    /// The part of the record by which flows differ.
    pub(super) fn key(&self) -> Vec<u8> {
        let (p, shape) = (&self.packet, self.shape());
        let mut out = Vec::with_capacity(160);
        out.u32(self.point);
        out.u8(self.egress.into());
        out.extend(p.eth_src);
        out.extend(p.eth_dst);
        out.u16(p.eth_type);
        out.u8(p.header_bytes() as u8);
        interface(&mut out, self.input);
        if self.egress {
            interface(&mut out, self.output);
        }
        if shape.vlan {
            let vid = p.vlan & 0xfff;
            out.u16(vid);
            out.u16(vid);
            out.u8((p.vlan >> 13) as u8);
        }
        if shape.l3 != L3::Other {
            ip(&mut out, p, shape);
        }
        if let Some(t) = self.tunnel {
            tunnel(&mut out, &t);
        }
        out
    }
}

fn interface(out: &mut Vec<u8>, i: &Interface) {
    out.u32(i.index);
    out.u32(i.kind);
    text(out, i.name.as_bytes());
    text(out, i.description.as_bytes());
}

/// A value that says its length itself.
pub(super) fn text(out: &mut Vec<u8>, value: &[u8]) {
    let value = &value[..value.len().min(TEXT_BYTES_MAX)];
    out.u8(value.len() as u8);
    out.extend(value);
}

fn ip(out: &mut Vec<u8>, p: &Packet, shape: Shape) {
    out.u8(if shape.l3 == L3::Ipv4 { 4 } else { 6 });
    out.u8(p.ttl);
    out.u8(p.proto);
    out.u8(p.tos >> 2);
    out.u8(p.tos >> 5);
    out.u8(p.tos);
    match shape.l3 {
        L3::Ipv6 => {
            out.extend(p.ip_src);
            out.extend(p.ip_dst);
            out.u32(p.label);
        }
        _ => {
            out.extend(&p.ip_src[..4]);
            out.extend(&p.ip_dst[..4]);
        }
    }
    match shape.l4 {
        L4::Other => {}
        L4::Icmp => {
            out.u8(p.ports.0 as u8);
            out.u8(p.ports.1 as u8);
        }
        _ => {
            out.u16(p.ports.0);
            out.u16(p.ports.1);
        }
    }
}

fn tunnel(out: &mut Vec<u8>, t: &Tunnel) {
    out.extend(t.src);
    out.extend(t.dst);
    out.u8(t.proto);
    out.u16(t.ports.0);
    out.u16(t.ports.1);
    out.u8(t.kind);
    let id = t.id.to_be_bytes();
    text(out, &id[id.len() - t.id_bytes.min(id.len())..]);
}
