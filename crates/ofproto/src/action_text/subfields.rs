//! Subfields as text, with the names that NXM and OXM give fields.

use flow::Field;
use openflow::Subfield;
use openflow::check::wire_bits;

/// `NXM_NX_REG0[]`, `NXM_OF_ETH_SRC[0..15]`, `NXM_OF_TCP_SRC[3]`.
pub(super) fn sub(s: Subfield) -> String {
    // An input port has two forms, of 16 and of 32 bits.
    let (name, whole) = match s.field {
        Field::InPort if s.ofs + s.bits <= 16 => ("NXM_OF_IN_PORT".into(), 16),
        Field::InPort => ("OXM_OF_IN_PORT".into(), 32),
        f => (nxm_name(f), wire_bits(f)),
    };
    match (s.ofs, s.bits) {
        (0, n) if usize::from(n) == whole => format!("{name}[]"),
        // It has that many bits under this name.
        (0, 16) if s.field == Field::InPort => format!("{name}[]"),
        (o, 1) => format!("{name}[{o}]"),
        (o, n) => format!("{name}[{o}..{}]", o + n - 1),
    }
}

/// Reads what [`sub`] writes: a subfield by its name.
pub fn parse_subfield(text: &str) -> Option<Subfield> {
    let (name, range) = text.strip_suffix(']')?.split_once('[')?;
    let mut all = flow::FIELDS.iter().copied().chain((0..16).map(Field::Reg));
    let field = all.find(|f| nxm_name(*f) == name)?;
    let wide = wire_bits(field);
    let (first, last) = match range.split_once("..") {
        _ if range.is_empty() => (0, wide - 1),
        Some((a, b)) => (a.parse().ok()?, b.parse().ok()?),
        None => (range.parse().ok()?, range.parse().ok()?),
    };
    let fits = first <= last && last < wide;
    fits.then(|| Subfield { field, ofs: first as u16, bits: (last - first + 1) as u16 })
}

/// The names that OVS gives subfields (ovs-fields(7)); newer fields have OXM ones.
fn nxm_name(f: Field) -> String {
    use Field::*;
    let name = match f {
        EthDst => "NXM_OF_ETH_DST",
        EthSrc => "NXM_OF_ETH_SRC",
        EthType => "NXM_OF_ETH_TYPE",
        VlanTci => "NXM_OF_VLAN_TCI",
        VlanVid => "OXM_OF_VLAN_VID",
        VlanPcp => "OXM_OF_VLAN_PCP",
        MplsLabel => "OXM_OF_MPLS_LABEL",
        MplsTc => "OXM_OF_MPLS_TC",
        MplsBos => "OXM_OF_MPLS_BOS",
        MplsTtl => "NXM_NX_MPLS_TTL",
        Ipv4Src => "NXM_OF_IP_SRC",
        Ipv4Dst => "NXM_OF_IP_DST",
        Ipv6Src => "NXM_NX_IPV6_SRC",
        Ipv6Dst => "NXM_NX_IPV6_DST",
        Ipv6Label => "NXM_NX_IPV6_LABEL",
        IpProto => "NXM_OF_IP_PROTO",
        IpTos => "NXM_OF_IP_TOS",
        IpDscp => "OXM_OF_IP_DSCP",
        IpEcn => "NXM_NX_IP_ECN",
        IpTtl => "NXM_NX_IP_TTL",
        IpFrag => "NXM_NX_IP_FRAG",
        TcpSrc => "NXM_OF_TCP_SRC",
        TcpDst => "NXM_OF_TCP_DST",
        TcpFlags => "NXM_NX_TCP_FLAGS",
        UdpSrc => "NXM_OF_UDP_SRC",
        UdpDst => "NXM_OF_UDP_DST",
        SctpSrc => "OXM_OF_SCTP_SRC",
        SctpDst => "OXM_OF_SCTP_DST",
        Icmpv4Type => "NXM_OF_ICMP_TYPE",
        Icmpv4Code => "NXM_OF_ICMP_CODE",
        Icmpv6Type => "NXM_NX_ICMPV6_TYPE",
        Icmpv6Code => "NXM_NX_ICMPV6_CODE",
        NdTarget => "NXM_NX_ND_TARGET",
        NdSll => "NXM_NX_ND_SLL",
        NdTll => "NXM_NX_ND_TLL",
        ArpOp => "NXM_OF_ARP_OP",
        ArpSpa => "NXM_OF_ARP_SPA",
        ArpTpa => "NXM_OF_ARP_TPA",
        ArpSha => "NXM_NX_ARP_SHA",
        ArpTha => "NXM_NX_ARP_THA",
        TunId => "NXM_NX_TUN_ID",
        TunSrc => "NXM_NX_TUN_IPV4_SRC",
        TunDst => "NXM_NX_TUN_IPV4_DST",
        TunIpv6Src => "NXM_NX_TUN_IPV6_SRC",
        TunIpv6Dst => "NXM_NX_TUN_IPV6_DST",
        TunFlags => "NXM_NX_TUN_FLAGS",
        TunGbpId => "NXM_NX_TUN_GBP_ID",
        TunGbpFlags => "NXM_NX_TUN_GBP_FLAGS",
        PktMark => "NXM_NX_PKT_MARK",
        CtState => "NXM_NX_CT_STATE",
        CtZone => "NXM_NX_CT_ZONE",
        CtMark => "NXM_NX_CT_MARK",
        CtLabel => "NXM_NX_CT_LABEL",
        CtNwProto => "NXM_NX_CT_NW_PROTO",
        CtNwSrc => "NXM_NX_CT_NW_SRC",
        CtNwDst => "NXM_NX_CT_NW_DST",
        CtIpv6Src => "NXM_NX_CT_IPV6_SRC",
        CtIpv6Dst => "NXM_NX_CT_IPV6_DST",
        CtTpSrc => "NXM_NX_CT_TP_SRC",
        CtTpDst => "NXM_NX_CT_TP_DST",
        Metadata => "OXM_OF_METADATA",
        InPort => "NXM_OF_IN_PORT",
        Reg(i) => return format!("NXM_NX_REG{i}"),
        TunMetadata(i) => return format!("NXM_NX_TUN_METADATA{i}"),
        Xreg(i) => return format!("OXM_OF_PKT_REG{i}"),
        Xxreg(i) => return format!("NXM_NX_XXREG{i}"),
        f => return f.name(),
    };
    name.into()
}
