//! What a match must say before a field may be matched or written (OpenFlow 1.5.1, 7.2.3.7).

use crate::{Match, packet_type};
use flow::{Field, Key, at, frag};

/// Ethernet types that the checks look at.
pub mod eth {
    pub use wire::{
        ETH_ARP as ARP, ETH_IPV4 as IP, ETH_IPV6 as IPV6, ETH_MPLS as MPLS,
        ETH_MPLS_MCAST as MPLS_MCAST, ETH_NSH as NSH, ETH_QINQ as SVLAN, ETH_RARP as RARP,
        ETH_VLAN as VLAN,
    };
}

/// IP protocols that the checks look at.
pub mod ip {
    pub use wire::{
        IP_ICMP as ICMP, IP_ICMPV6 as ICMPV6, IP_SCTP as SCTP, IP_TCP as TCP, IP_UDP as UDP,
    };
}

/// Set in a TCI that stands for a tag.
pub const VLAN_PRESENT: u16 = 0x1000;
const SOLICIT: u16 = 135;
const ADVERT: u16 = 136;

/// True if it is one of the MPLS types.
pub fn is_mpls(eth_type: u16) -> bool {
    matches!(eth_type, eth::MPLS | eth::MPLS_MCAST)
}

/// The Ethernet type that a match asks for; 0 for none.
pub fn eth_type(m: &Match) -> u16 {
    packet_type::ethertype(m.key.u32(at::PACKET_TYPE)).unwrap_or(m.key.u16(at::ETH_TYPE))
}

pub(crate) fn is_ethernet(key: &Key) -> bool {
    key.u32(at::PACKET_TYPE) == packet_type::ETHERNET
}

fn is_l4(m: &Match, proto: u8) -> bool {
    is_ip(m) && m.key.u8(at::PROTO) == proto
}

fn is_ip(m: &Match) -> bool {
    matches!(eth_type(m), eth::IP | eth::IPV6)
}

fn is_later_fragment(m: &Match) -> bool {
    m.key.u8(at::FRAG) & frag::LATER != 0
}

fn is_nd(m: &Match, kinds: &[u16]) -> bool {
    eth_type(m) == eth::IPV6
        && m.key.u8(at::PROTO) == ip::ICMPV6
        && m.key.u16(at::TP_DST) == 0
        && kinds.contains(&m.key.u16(at::TP_SRC))
}

/// True if conntrack's original tuple has a meaning: the state must say more than "tracked".
fn is_ct_valid(m: &Match) -> bool {
    const INVALID: u8 = 0x10;
    const TRACKED: u8 = 0x20;
    const IMPLY_VALID: u8 = 0xcf;
    let (state, mask) = (m.key.u8(at::CT_STATE), m.mask.u8(at::CT_STATE));
    let not_invalid = mask & INVALID != 0 && state & INVALID == 0;
    state & IMPLY_VALID != 0 || (state & TRACKED != 0 && not_invalid)
}

/// True if `field` may be matched, read or written in a flow with this match.
pub fn holds(field: Field, m: &Match) -> bool {
    use Field::*;
    match field {
        EthDst | EthSrc | EthType | VlanTci | VlanVid => is_ethernet(&m.key),
        VlanPcp => is_ethernet(&m.key) && m.key.u16(at::VLAN) & VLAN_PRESENT != 0,
        MplsLabel | MplsTc | MplsBos | MplsTtl => is_mpls(eth_type(m)),
        Ipv4Src | Ipv4Dst => eth_type(m) == eth::IP,
        Ipv6Src | Ipv6Dst | Ipv6Label => eth_type(m) == eth::IPV6,
        IpProto | IpTos | IpDscp | IpEcn | IpTtl | IpFrag => is_ip(m),
        TcpSrc | TcpDst | TcpFlags => is_l4(m, ip::TCP) && !is_later_fragment(m),
        UdpSrc | UdpDst => is_l4(m, ip::UDP) && !is_later_fragment(m),
        SctpSrc | SctpDst => is_l4(m, ip::SCTP) && !is_later_fragment(m),
        Icmpv4Type | Icmpv4Code => eth_type(m) == eth::IP && is_l4(m, ip::ICMP),
        Icmpv6Type | Icmpv6Code => eth_type(m) == eth::IPV6 && is_l4(m, ip::ICMPV6),
        NshFlags | NshTtl | NshMdtype | NshNp | NshSpi | NshSi | NshC1 | NshC2 | NshC3 | NshC4 => {
            eth_type(m) == eth::NSH
        }
        NdTarget | NdReserved | NdOptionsType => is_nd(m, &[SOLICIT, ADVERT]),
        NdSll => is_nd(m, &[SOLICIT]),
        NdTll => is_nd(m, &[ADVERT]),
        ArpOp | ArpSpa | ArpTpa | ArpSha | ArpTha => {
            matches!(eth_type(m), eth::ARP | eth::RARP)
        }
        CtNwProto | CtNwSrc | CtNwDst | CtIpv6Src | CtIpv6Dst | CtTpSrc | CtTpDst => is_ct_valid(m),
        _ => true,
    }
}
