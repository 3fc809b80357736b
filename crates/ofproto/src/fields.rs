//! Prerequisites of fields.

use flow::{Field, Key, Mask, at};
use wire::{
    ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_MPLS, ETH_MPLS_MCAST, ETH_NSH, ETH_QINQ, ETH_RARP, ETH_VLAN,
    IP_SCTP, IP_TCP, IP_UDP,
};

/// IP protocols that have ports in the first four bytes of their header.
pub(crate) const WITH_PORTS: [u8; 3] = [IP_TCP, IP_UDP, IP_SCTP];
/// The Ethertype, in keys, of frames that have a length and LLC instead (IEEE 802.2).
pub(crate) const LLC: u16 = 0x05ff;
pub(crate) const VLAN_PRESENT: u16 = 0x1000;

pub(crate) fn is_mpls(eth_type: u16) -> bool {
    matches!(eth_type, ETH_MPLS | ETH_MPLS_MCAST)
}

/// True if this is the Ethertype of a VLAN tag.
pub(crate) fn is_vlan(eth_type: u16) -> bool {
    matches!(eth_type, ETH_VLAN | ETH_QINQ)
}

pub(crate) fn is_ip(eth_type: u16) -> bool {
    matches!(eth_type, ETH_IPV4 | ETH_IPV6)
}

/// Reserved destinations besides 01:80:c2:00:00:0x: Extreme's (EDP, EAPS), Cisco's (ISL; CDP, VTP
/// and others; PVST+; FlexLink; CFM).
const RESERVED: [[u8; 6]; 15] = [
    [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x00],
    [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x04],
    [0x00, 0xe0, 0x2b, 0x00, 0x00, 0x06],
    [0x01, 0x00, 0x0c, 0x00, 0x00, 0x00],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcc],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcd],
    [0x01, 0x00, 0x0c, 0xcd, 0xcd, 0xcd],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc0],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc1],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc2],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc3],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc4],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc5],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc6],
    [0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xc7],
];

/// True if an address, or one that begins with these bytes, is one that bridges do not forward
/// (OVS's list).
pub(crate) fn begins_reserved(mac: &[u8]) -> bool {
    let ieee: &[u8] = &[0x01, 0x80, 0xc2, 0x00, 0x00];
    let standard = match mac {
        [first @ .., last] if first.len() == 5 => first == ieee && *last < 0x10,
        part => ieee.starts_with(part),
    };
    standard || RESERVED.iter().any(|r| r.starts_with(mac))
}

/// A field's prerequisite (OpenFlow 1.5, table 14; OVS's ovs-fields(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prereq {
    None,
    Vlan,
    Arp,
    Ipv4,
    Ipv6,
    Ip,
    Mpls,
    Nsh,
    L4(u8),
    Icmpv4,
    Icmpv6,
    Nd(Option<u16>),
    /// The packet belongs to a connection, or begins one.
    Connection,
}

/// `ct_state`: new, established, reply.
const CT_VALID: u8 = 1 | 2 | 8;

pub(crate) fn prereq(field: Field) -> Prereq {
    use Field::*;
    match field {
        VlanPcp => Prereq::Vlan,
        MplsLabel | MplsTc | MplsBos | MplsTtl => Prereq::Mpls,
        NshFlags | NshTtl | NshMdtype | NshNp | NshSpi | NshSi | NshC1 | NshC2 | NshC3 | NshC4 => {
            Prereq::Nsh
        }
        Ipv4Src | Ipv4Dst => Prereq::Ipv4,
        Ipv6Src | Ipv6Dst | Ipv6Label => Prereq::Ipv6,
        IpProto | IpTos | IpDscp | IpEcn | IpTtl | IpFrag => Prereq::Ip,
        TcpSrc | TcpDst | TcpFlags => Prereq::L4(6),
        UdpSrc | UdpDst => Prereq::L4(17),
        SctpSrc | SctpDst => Prereq::L4(132),
        Icmpv4Type | Icmpv4Code => Prereq::Icmpv4,
        Icmpv6Type | Icmpv6Code => Prereq::Icmpv6,
        NdTarget | NdReserved | NdOptionsType => Prereq::Nd(None),
        NdSll => Prereq::Nd(Some(135)),
        NdTll => Prereq::Nd(Some(136)),
        ArpOp | ArpSpa | ArpTpa | ArpSha | ArpTha => Prereq::Arp,
        CtNwProto | CtNwSrc | CtNwDst | CtIpv6Src | CtIpv6Dst | CtTpSrc | CtTpDst => {
            Prereq::Connection
        }
        _ => Prereq::None,
    }
}

/// Adds the bits that [`met`] reads to `wc`.
pub(crate) fn look(prereq: Prereq, wc: &mut Mask) {
    match prereq {
        Prereq::None => {}
        Prereq::Vlan => {
            let v = wc.u16(at::VLAN) | VLAN_PRESENT;
            wc.set_u16(at::VLAN, v)
        }
        Prereq::Arp | Prereq::Ipv4 | Prereq::Ipv6 | Prereq::Ip | Prereq::Mpls | Prereq::Nsh => {
            wc.set_u16(at::ETH_TYPE, 0xffff)
        }
        Prereq::L4(_) | Prereq::Icmpv4 | Prereq::Icmpv6 => look_l4(wc),
        Prereq::Connection => wc.set_u8(at::CT_STATE, wc.u8(at::CT_STATE) | CT_VALID),
        Prereq::Nd(_) => {
            look_l4(wc);
            wc.set_u16(at::TP_SRC, 0xffff);
            wc.set_u16(at::TP_DST, 0xffff);
        }
    }
}

/// Adds the protocol to `wc`, if a field of this packet's IP or ARP header is to be written: as in
/// OVS, the decision is about one protocol then.
pub(crate) fn look_to_write(field: Field, key: &Key, wc: &mut Mask) {
    use Field::*;
    let ip = matches!(field, Ipv4Src | Ipv4Dst | Ipv6Src | Ipv6Dst | Ipv6Label)
        || matches!(field, IpTos | IpDscp | IpEcn | IpTtl);
    let arp = matches!(field, ArpOp | ArpSpa | ArpTpa | ArpSha | ArpTha);
    if ip && is_ip(key.u16(at::ETH_TYPE)) || arp && key.u16(at::ETH_TYPE) == ETH_ARP {
        wc.set_u8(at::PROTO, 0xff);
    }
}

fn look_l4(wc: &mut Mask) {
    wc.set_u16(at::ETH_TYPE, 0xffff);
    wc.set_u8(at::PROTO, 0xff);
    let frag = wc.u8(at::FRAG) | flow::frag::LATER;
    wc.set_u8(at::FRAG, frag);
}

/// True if a packet, or a match's values, meet the prerequisite.
pub(crate) fn met(prereq: Prereq, key: &Key) -> bool {
    let eth_type = key.u16(at::ETH_TYPE);
    let proto = key.u8(at::PROTO);
    let first = key.u8(at::FRAG) & flow::frag::LATER == 0;
    let icmpv6 = eth_type == ETH_IPV6 && proto == 58 && first;
    match prereq {
        Prereq::None => true,
        Prereq::Connection => key.u8(at::CT_STATE) & CT_VALID != 0,
        Prereq::Vlan => key.u16(at::VLAN) & VLAN_PRESENT != 0,
        Prereq::Arp => matches!(eth_type, ETH_ARP | ETH_RARP),
        Prereq::Ipv4 => eth_type == ETH_IPV4,
        Prereq::Ipv6 => eth_type == ETH_IPV6,
        Prereq::Ip => is_ip(eth_type),
        Prereq::Mpls => is_mpls(eth_type),
        Prereq::Nsh => eth_type == ETH_NSH,
        Prereq::L4(p) => is_ip(eth_type) && proto == p && first,
        Prereq::Icmpv4 => eth_type == ETH_IPV4 && proto == 1 && first,
        Prereq::Icmpv6 => icmpv6,
        Prereq::Nd(None) => icmpv6 && matches!(key.u16(at::TP_SRC), 135 | 136),
        Prereq::Nd(Some(t)) => icmpv6 && key.u16(at::TP_SRC) == t,
    }
}
