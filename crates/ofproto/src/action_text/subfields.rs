//! Subfields as text, with the names that NXM and OXM give fields.

use super::parse::error::ActionTextError;
use flow::{Field, TUN_METADATAS};
use openflow::Subfield;
use openflow::check::wire_bits;

/// An input port has two forms, of 16 and of 32 bits.
const PORT16: (&str, u16) = ("NXM_OF_IN_PORT", 16);
const PORT32: (&str, u16) = ("OXM_OF_IN_PORT", 32);

/// `NXM_NX_REG0[]`, `NXM_OF_ETH_SRC[0..15]`, `NXM_OF_TCP_SRC[3]`.
pub(super) fn sub(s: Subfield) -> String {
    let (name, whole) = match s.field {
        Field::InPort if s.ofs + s.bits <= PORT16.1 => (PORT16.0.into(), PORT16.1),
        Field::InPort => (PORT32.0.into(), PORT32.1),
        f => (nxm_name(f), width(f)),
    };
    match (s.ofs, s.bits) {
        (0, n) if n == whole => format!("{name}[]"),
        (o, 1) => format!("{name}[{o}]"),
        (o, n) => format!("{name}[{o}..{}]", o + n - 1),
    }
}

/// Bits of a field in messages, as far as actions name them.
fn width(field: Field) -> u16 {
    match field {
        Field::VlanVid => 12,
        Field::TunFlags => 1,
        Field::CtState => 32,
        f => wire_bits(f) as u16,
    }
}

/// Reads a field or a part of it: `reg0`, `NXM_NX_REG0[]`, `eth_src[0..15]`, `tcp_src[3]`.
pub fn parse_subfield(text: &str) -> Result<Subfield, ActionTextError> {
    let wrong = |why: &str| ActionTextError(format!("{text}: {why}"));
    let (name, range) = match text.split_once('[') {
        Some((name, range)) => {
            (name, range.strip_suffix(']').ok_or_else(|| wrong("missing ] behind a field's bits"))?)
        }
        None => (text, ""),
    };
    let (field, wide) = field_of(name).ok_or_else(|| wrong(&format!("unknown field `{name}'")))?;
    let bit = |text: &str| text.parse::<u16>().map_err(|_| wrong("not bits of a field"));
    let (first, last) = match range.split_once("..") {
        _ if range.is_empty() => (0, wide - 1),
        Some((first, last)) => (bit(first)?, bit(last)?),
        None => (bit(range)?, bit(range)?),
    };
    if first > last || last >= wide {
        return Err(wrong(&format!("the field has bits 0 to {}", wide - 1)));
    }
    Ok(Subfield { field, ofs: first, bits: last - first + 1 })
}

/// A field by any of its names, and its bits in messages.
fn field_of(name: &str) -> Option<(Field, u16)> {
    match name {
        "in_port" => return Some((Field::InPort, PORT16.1)),
        n if n == PORT16.0 => return Some((Field::InPort, PORT16.1)),
        n if n == PORT32.0 => return Some((Field::InPort, PORT32.1)),
        _ => {}
    }
    let index = |prefix: &str| canonical(name.strip_prefix(prefix)?);
    let registers = [
        (index("NXM_NX_REG").filter(|i| *i < 16), Field::Reg as fn(u8) -> Field),
        (index("OXM_OF_PKT_REG").filter(|i| *i < 8), Field::Xreg),
        (index("NXM_NX_XXREG").filter(|i| *i < 4), Field::Xxreg),
        (index("NXM_NX_TUN_METADATA").filter(|i| *i < TUN_METADATAS), Field::TunMetadata),
        (index("tun_metadata").filter(|i| *i < TUN_METADATAS), Field::TunMetadata),
    ];
    let register = registers.into_iter().find_map(|(i, kind)| Some(kind(i?)));
    let by_name = || flow::FIELDS.iter().copied().find(|f| nxm_name(*f) == name);
    let other = || OXM_NAMES.iter().find(|(n, _)| *n == name).map(|(_, f)| *f);
    let field = register.or_else(|| flow::field_named(name)).or_else(by_name).or_else(other)?;
    Some((field, width(field)))
}

/// A number as it is written in names: without zeros in front.
fn canonical(digits: &str) -> Option<u8> {
    digits.parse::<u8>().ok().filter(|n| n.to_string() == digits)
}

/// Names of fields besides those that OVS prints.
const OXM_NAMES: &[(&str, Field)] = &[
    ("OXM_OF_ETH_DST", Field::EthDst),
    ("OXM_OF_ETH_SRC", Field::EthSrc),
    ("OXM_OF_ETH_TYPE", Field::EthType),
    ("OXM_OF_MPLS_TTL", Field::MplsTtl),
    ("OXM_OF_IPV4_SRC", Field::Ipv4Src),
    ("OXM_OF_IPV4_DST", Field::Ipv4Dst),
    ("OXM_OF_IPV6_SRC", Field::Ipv6Src),
    ("OXM_OF_IPV6_DST", Field::Ipv6Dst),
    ("OXM_OF_IPV6_FLABEL", Field::Ipv6Label),
    ("OXM_OF_IP_PROTO", Field::IpProto),
    ("OXM_OF_IP_ECN", Field::IpEcn),
    ("OXM_OF_TCP_SRC", Field::TcpSrc),
    ("OXM_OF_TCP_DST", Field::TcpDst),
    ("OXM_OF_TCP_FLAGS", Field::TcpFlags),
    ("ONFOXM_ET_TCP_FLAGS", Field::TcpFlags),
    ("OXM_OF_UDP_SRC", Field::UdpSrc),
    ("OXM_OF_UDP_DST", Field::UdpDst),
    ("OXM_OF_ICMPV4_TYPE", Field::Icmpv4Type),
    ("OXM_OF_ICMPV4_CODE", Field::Icmpv4Code),
    ("OXM_OF_ICMPV6_TYPE", Field::Icmpv6Type),
    ("OXM_OF_ICMPV6_CODE", Field::Icmpv6Code),
    ("OXM_OF_IPV6_ND_TARGET", Field::NdTarget),
    ("OXM_OF_IPV6_ND_SLL", Field::NdSll),
    ("OXM_OF_IPV6_ND_TLL", Field::NdTll),
    ("OXM_OF_ARP_OP", Field::ArpOp),
    ("OXM_OF_ARP_SPA", Field::ArpSpa),
    ("OXM_OF_ARP_TPA", Field::ArpTpa),
    ("OXM_OF_ARP_SHA", Field::ArpSha),
    ("OXM_OF_ARP_THA", Field::ArpTha),
    ("OXM_OF_TUNNEL_ID", Field::TunId),
    ("OXM_OF_ACTSET_OUTPUT", Field::ActsetOutput),
];

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
        NdReserved => "ERICOXM_OF_ICMPV6_ND_RESERVED",
        NdOptionsType => "ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE",
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
        TunErspanIdx => "NXOXM_ET_ERSPAN_IDX",
        TunErspanVer => "NXOXM_ET_ERSPAN_VER",
        TunErspanDir => "NXOXM_ET_ERSPAN_DIR",
        TunErspanHwid => "NXOXM_ET_ERSPAN_HWID",
        TunGtpuFlags => "NXOXM_ET_GTPU_FLAGS",
        TunGtpuMsgtype => "NXOXM_ET_GTPU_MSGTYPE",
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
        ConjId => "NXM_NX_CONJ_ID",
        ActsetOutput => "ONFOXM_ET_ACTSET_OUTPUT",
        PacketType => "OXM_OF_PACKET_TYPE",
        NshFlags | NshTtl | NshMdtype | NshNp | NshSpi | NshSi | NshC1 | NshC2 | NshC3 | NshC4 => {
            return format!("NXOXM_{}", f.name().to_uppercase());
        }
        Reg(i) => return format!("NXM_NX_REG{i}"),
        TunMetadata(i) => return format!("NXM_NX_TUN_METADATA{i}"),
        Xreg(i) => return format!("OXM_OF_PKT_REG{i}"),
        Xxreg(i) => return format!("NXM_NX_XXREG{i}"),
    };
    name.into()
}
