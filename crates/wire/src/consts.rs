//! Numbers of the protocols: Ethertypes (IEEE 802), IP protocols (IANA), header lengths in bytes.

/// Ethertype: IPv4.
pub const ETH_IPV4: u16 = 0x0800;
/// Ethertype: ARP.
pub const ETH_ARP: u16 = 0x0806;
/// Ethertype: reverse ARP.
pub const ETH_RARP: u16 = 0x8035;
/// Ethertype: transparent Ethernet bridging (NVGRE, Geneve).
pub const ETH_TEB: u16 = 0x6558;
/// Ethertype: 802.1Q customer tag.
pub const ETH_VLAN: u16 = 0x8100;
/// Ethertype: 802.1ad service tag.
pub const ETH_QINQ: u16 = 0x88a8;
/// Ethertype: IPv6.
pub const ETH_IPV6: u16 = 0x86dd;
/// Ethertype: slow protocols (LACP, marker).
pub const ETH_SLOW: u16 = 0x8809;
/// Ethertype: MPLS unicast.
pub const ETH_MPLS: u16 = 0x8847;
/// Ethertype: MPLS multicast.
pub const ETH_MPLS_MCAST: u16 = 0x8848;
/// Ethertype: provider backbone bridging (802.1ah).
pub const ETH_PBB: u16 = 0x88e7;
/// The address of LLDP's frames to the nearest bridge (IEEE 802.1AB-2009, table 7-1).
pub const LLDP_MAC: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
/// Ethertype: LLDP.
pub const ETH_LLDP: u16 = 0x88cc;
/// Ethertype: connectivity fault management (IEEE 802.1ag).
pub const ETH_CFM: u16 = 0x8902;
/// Where continuity check messages of maintenance level 0 go (IEEE 802.1ag, table 8-9).
pub const CCM_MAC: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x30];
/// Where continuity check messages of OVS's extended mode go.
pub const CCM_EXTENDED_MAC: [u8; 6] = [0x01, 0x23, 0x20, 0, 0, 0x30];
/// Ethertype: network service header.
pub const ETH_NSH: u16 = 0x894f;
/// Smallest value of the length/type field that is a type (IEEE 802.3).
pub const ETH_TYPE_MIN: u16 = 0x0600;

/// IP protocol: IPv6 hop-by-hop options.
pub const IP_HOPOPTS: u8 = 0;
/// IP protocol: ICMP.
pub const IP_ICMP: u8 = 1;
/// IP protocol: IGMP.
pub const IP_IGMP: u8 = 2;
/// IP protocol: IPv4 in IP.
pub const IP_IPIP: u8 = 4;
/// IP protocol: TCP.
pub const IP_TCP: u8 = 6;
/// IP protocol: UDP.
pub const IP_UDP: u8 = 17;
/// IP protocol: IPv6 in IP.
pub const IP_IPV6: u8 = 41;
/// IP protocol: IPv6 routing header.
pub const IP_ROUTING: u8 = 43;
/// IP protocol: IPv6 fragment header.
pub const IP_FRAGMENT: u8 = 44;
/// IP protocol: GRE.
pub const IP_GRE: u8 = 47;
/// IP protocol: encapsulating security payload.
pub const IP_ESP: u8 = 50;
/// IP protocol: authentication header.
pub const IP_AH: u8 = 51;
/// IP protocol: ICMPv6.
pub const IP_ICMPV6: u8 = 58;
/// IP protocol: no next header.
pub const IP_NONE: u8 = 59;
/// IP protocol: IPv6 destination options.
pub const IP_DSTOPTS: u8 = 60;
/// IP protocol: SCTP.
pub const IP_SCTP: u8 = 132;
/// IP protocol: UDP-Lite.
pub const IP_UDPLITE: u8 = 136;

/// Bytes of an Ethernet header without tags.
pub const ETH_LEN: usize = 14;
/// Bytes of one VLAN tag.
pub const VLAN_LEN: usize = 4;
/// Bytes of an ARP packet for Ethernet and IPv4.
pub const ARP_LEN: usize = 28;
/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of the fixed IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Bytes of an IPv6 fragment header.
pub const IPV6_FRAG_LEN: usize = 8;
/// Bytes of a TCP header without options.
pub const TCP_LEN: usize = 20;
/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;
/// Bytes of an SCTP common header.
pub const SCTP_LEN: usize = 12;
/// Bytes of the ICMP header (type, code, checksum, rest).
pub const ICMP_LEN: usize = 8;
/// Bytes of a neighbour solicitation or advertisement without options.
pub const ND_LEN: usize = 24;
/// Bytes of one MPLS label stack entry.
pub const MPLS_LEN: usize = 4;
/// Bytes of a VXLAN header.
pub const VXLAN_LEN: usize = 8;

/// UDP port of VXLAN (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;
/// UDP port of Geneve (RFC 8926).
pub const GENEVE_PORT: u16 = 6081;

/// ARP operation: request.
pub const ARP_REQUEST: u16 = 1;
/// ARP operation: reply.
pub const ARP_REPLY: u16 = 2;

/// ICMPv6 type: router solicitation.
pub const ND_RS: u8 = 133;
/// ICMPv6 type: router advertisement.
pub const ND_RA: u8 = 134;
/// ICMPv6 type: neighbour solicitation.
pub const ND_NS: u8 = 135;
/// ICMPv6 type: neighbour advertisement.
pub const ND_NA: u8 = 136;
/// ND option: source link-layer address.
pub const ND_OPT_SLL: u8 = 1;
/// ND option: target link-layer address.
pub const ND_OPT_TLL: u8 = 2;
