//! The fields that OpenFlow can name, each as a run of bits in a [`Key`].

use crate::{Key, at};

/// How a field's value is written as text (OVS's conventions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Format {
    Decimal,
    Hex,
    Ethernet,
    Ipv4,
    Ipv6,
    /// A port number or reserved name (LOCAL, ...).
    Port,
    Frag,
    TcpFlags,
    CtState,
    TunFlags,
    PacketType,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident $text:literal $at:expr, $bytes:literal, $shift:literal, $bits:literal, $format:ident, $maskable:literal, $writable:literal;)*) => {
        /// A field. Regs, xregs and xxregs are [`Field::Reg`], [`Field::Xreg`], [`Field::Xxreg`];
        /// [`Field::TunMetadata`] has no bits in a key ([`crate::TunMetadata`]).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Field { $($(#[$doc])* $name,)* Reg(u8), Xreg(u8), Xxreg(u8), TunMetadata(u8) }

        /// Every field except registers and tunnel options.
        pub const FIELDS: &[Field] = &[$(Field::$name),*];

        impl Field {
            /// (byte offset, bytes, shift, bits, format, maskable, writable)
            const fn row(self) -> (usize, usize, usize, usize, Format, bool, bool) {
                match self {
                    $(Field::$name => ($at, $bytes, $shift, $bits, Format::$format, $maskable, $writable),)*
                    Field::Reg(i) => (at::REG + 4 * i as usize, 4, 0, 32, Format::Hex, true, true),
                    Field::Xreg(i) => (at::REG + 8 * i as usize, 8, 0, 64, Format::Hex, true, true),
                    Field::Xxreg(i) => (at::REG + 16 * i as usize, 16, 0, 128, Format::Hex, true, true),
                    Field::TunMetadata(_) => (0, 0, 0, 0, Format::Hex, true, true),
                }
            }
            /// OVS's canonical (OXM-style) name, e.g. `eth_dst`, `reg3`.
            pub fn name(self) -> String {
                match self {
                    $(Field::$name => $text.into(),)*
                    Field::Reg(i) => format!("reg{i}"),
                    Field::Xreg(i) => format!("xreg{i}"),
                    Field::Xxreg(i) => format!("xxreg{i}"),
                    Field::TunMetadata(i) => format!("tun_metadata{i}"),
                }
            }
        }
    };
}

// name text offset bytes shift bits format maskable writable
fields! {
    EthDst "eth_dst" at::ETH_DST, 6, 0, 48, Ethernet, true, true;
    EthSrc "eth_src" at::ETH_SRC, 6, 0, 48, Ethernet, true, true;
    EthType "eth_type" at::ETH_TYPE, 2, 0, 16, Hex, false, false;
    VlanTci "vlan_tci" at::VLAN, 2, 0, 16, Hex, true, true;
    /// 12 bits plus the present bit (OFPVID_PRESENT is bit 12).
    VlanVid "vlan_vid" at::VLAN, 2, 0, 13, Decimal, true, true;
    VlanPcp "vlan_pcp" at::VLAN, 2, 13, 3, Decimal, false, true;
    MplsLabel "mpls_label" at::MPLS, 4, 12, 20, Decimal, false, true;
    MplsTc "mpls_tc" at::MPLS, 4, 9, 3, Decimal, false, true;
    MplsBos "mpls_bos" at::MPLS, 4, 8, 1, Decimal, false, false;
    MplsTtl "mpls_ttl" at::MPLS, 4, 0, 8, Decimal, false, true;
    Ipv4Src "ip_src" at::IP_SRC, 4, 0, 32, Ipv4, true, true;
    Ipv4Dst "ip_dst" at::IP_DST, 4, 0, 32, Ipv4, true, true;
    Ipv6Src "ipv6_src" at::IPV6_SRC, 16, 0, 128, Ipv6, true, true;
    Ipv6Dst "ipv6_dst" at::IPV6_DST, 16, 0, 128, Ipv6, true, true;
    Ipv6Label "ipv6_label" at::IPV6_LABEL, 4, 0, 20, Hex, true, true;
    IpProto "nw_proto" at::PROTO, 1, 0, 8, Decimal, false, false;
    /// The whole TOS/traffic-class byte (OpenFlow 1.0's nw_tos writes its upper six bits).
    IpTos "nw_tos" at::TOS, 1, 0, 8, Decimal, false, true;
    IpDscp "ip_dscp" at::TOS, 1, 2, 6, Decimal, false, true;
    IpEcn "nw_ecn" at::TOS, 1, 0, 2, Decimal, false, true;
    IpTtl "nw_ttl" at::TTL, 1, 0, 8, Decimal, false, true;
    IpFrag "ip_frag" at::FRAG, 1, 0, 2, Frag, true, false;
    TcpSrc "tcp_src" at::TP_SRC, 2, 0, 16, Decimal, true, true;
    TcpDst "tcp_dst" at::TP_DST, 2, 0, 16, Decimal, true, true;
    TcpFlags "tcp_flags" at::TCP_FLAGS, 2, 0, 12, TcpFlags, true, false;
    UdpSrc "udp_src" at::TP_SRC, 2, 0, 16, Decimal, true, true;
    UdpDst "udp_dst" at::TP_DST, 2, 0, 16, Decimal, true, true;
    SctpSrc "sctp_src" at::TP_SRC, 2, 0, 16, Decimal, true, true;
    SctpDst "sctp_dst" at::TP_DST, 2, 0, 16, Decimal, true, true;
    Icmpv4Type "icmp_type" at::TP_SRC, 2, 0, 8, Decimal, false, true;
    Icmpv4Code "icmp_code" at::TP_DST, 2, 0, 8, Decimal, false, true;
    Icmpv6Type "icmpv6_type" at::TP_SRC, 2, 0, 8, Decimal, false, true;
    Icmpv6Code "icmpv6_code" at::TP_DST, 2, 0, 8, Decimal, false, true;
    NdTarget "nd_target" at::ND_TARGET, 16, 0, 128, Ipv6, true, true;
    NdSll "nd_sll" at::ARP_SHA, 6, 0, 48, Ethernet, true, true;
    NdTll "nd_tll" at::ARP_THA, 6, 0, 48, Ethernet, true, true;
    NdReserved "nd_reserved" at::ND_RESERVED, 4, 0, 32, Decimal, false, true;
    NdOptionsType "nd_options_type" at::ND_OPTIONS_TYPE, 1, 0, 8, Decimal, false, true;
    ArpOp "arp_op" at::PROTO, 1, 0, 8, Decimal, false, true;
    ArpSpa "arp_spa" at::IP_SRC, 4, 0, 32, Ipv4, true, true;
    ArpTpa "arp_tpa" at::IP_DST, 4, 0, 32, Ipv4, true, true;
    ArpSha "arp_sha" at::ARP_SHA, 6, 0, 48, Ethernet, true, true;
    ArpTha "arp_tha" at::ARP_THA, 6, 0, 48, Ethernet, true, true;
    /// The place is that of the low half; the upper one is at [`at::TUN_ID_HIGH`].
    TunId "tun_id" at::TUN_ID, 4, 0, 64, Hex, true, true;
    TunSrc "tun_src" at::TUN_SRC, 4, 0, 32, Ipv4, true, true;
    TunDst "tun_dst" at::TUN_DST, 4, 0, 32, Ipv4, true, true;
    TunIpv6Src "tun_ipv6_src" at::TUN_IPV6_SRC, 16, 0, 128, Ipv6, true, true;
    TunIpv6Dst "tun_ipv6_dst" at::TUN_IPV6_DST, 16, 0, 128, Ipv6, true, true;
    TunFlags "tun_flags" at::TUN_FLAGS, 2, 0, 16, TunFlags, true, true;
    TunGbpId "tun_gbp_id" at::TUN_GBP_ID, 2, 0, 16, Decimal, true, true;
    TunGbpFlags "tun_gbp_flags" at::TUN_GBP_FLAGS, 1, 0, 8, Hex, true, true;
    TunErspanIdx "tun_erspan_idx" at::TUN_ERSPAN_IDX, 3, 0, 20, Hex, true, true;
    TunErspanVer "tun_erspan_ver" at::TUN_ERSPAN_VER, 1, 0, 4, Decimal, true, true;
    TunErspanDir "tun_erspan_dir" at::TUN_ERSPAN_DIR, 1, 0, 1, Decimal, true, true;
    TunErspanHwid "tun_erspan_hwid" at::TUN_ERSPAN_HWID, 1, 0, 6, Hex, true, true;
    TunGtpuFlags "tun_gtpu_flags" at::TUN_GTPU_FLAGS, 1, 0, 8, Hex, true, false;
    TunGtpuMsgtype "tun_gtpu_msgtype" at::TUN_GTPU_MSGTYPE, 1, 0, 8, Decimal, true, false;
    PktMark "pkt_mark" at::PKT_MARK, 4, 0, 32, Hex, true, true;
    CtState "ct_state" at::CT_STATE, 1, 0, 8, CtState, true, false;
    CtZone "ct_zone" at::CT_ZONE, 2, 0, 16, Hex, false, false;
    CtMark "ct_mark" at::CT_MARK, 4, 0, 32, Hex, true, true;
    CtLabel "ct_label" at::CT_LABEL, 16, 0, 128, Hex, true, true;
    CtNwProto "ct_nw_proto" at::CT_NW_PROTO, 1, 0, 8, Decimal, false, false;
    CtNwSrc "ct_nw_src" at::CT_NW_SRC, 4, 0, 32, Ipv4, true, false;
    CtNwDst "ct_nw_dst" at::CT_NW_DST, 4, 0, 32, Ipv4, true, false;
    CtIpv6Src "ct_ipv6_src" at::CT_IPV6_SRC, 16, 0, 128, Ipv6, true, false;
    CtIpv6Dst "ct_ipv6_dst" at::CT_IPV6_DST, 16, 0, 128, Ipv6, true, false;
    CtTpSrc "ct_tp_src" at::CT_TP_SRC, 2, 0, 16, Decimal, true, false;
    CtTpDst "ct_tp_dst" at::CT_TP_DST, 2, 0, 16, Decimal, true, false;
    Metadata "metadata" at::METADATA, 8, 0, 64, Hex, true, true;
    /// 32-bit OpenFlow 1.1+ port.
    InPort "in_port" at::OF_IN_PORT, 4, 0, 32, Port, false, true;
    ActsetOutput "actset_output" at::ACTSET_OUTPUT, 4, 0, 32, Port, false, false;
    ConjId "conj_id" at::CONJ_ID, 4, 0, 32, Decimal, false, false;
    PacketType "packet_type" at::PACKET_TYPE, 4, 0, 32, PacketType, false, false;
    NshFlags "nsh_flags" at::NSH_FLAGS, 1, 0, 8, Decimal, true, true;
    NshMdtype "nsh_mdtype" at::NSH_MDTYPE, 1, 0, 8, Decimal, false, false;
    NshNp "nsh_np" at::NSH_NP, 1, 0, 8, Decimal, false, false;
    NshSpi "nsh_spi" at::NSH_SPI, 3, 0, 24, Hex, false, true;
    NshSi "nsh_si" at::NSH_SI, 1, 0, 8, Decimal, false, true;
    NshC1 "nsh_c1" at::NSH_C, 4, 0, 32, Hex, true, true;
    NshC2 "nsh_c2" at::NSH_C + 4, 4, 0, 32, Hex, true, true;
    NshC3 "nsh_c3" at::NSH_C + 8, 4, 0, 32, Hex, true, true;
    NshC4 "nsh_c4" at::NSH_C + 12, 4, 0, 32, Hex, true, true;
    NshTtl "nsh_ttl" at::NSH_TTL, 1, 0, 8, Decimal, false, true;
}

impl Field {
    /// Width in bits.
    pub const fn bits(self) -> usize {
        self.row().3
    }
    /// Byte offset in a [`Key`].
    pub const fn offset(self) -> usize {
        self.row().0
    }
    /// Bytes the field's container takes in a [`Key`].
    pub const fn bytes(self) -> usize {
        self.row().1
    }
    /// Text form.
    pub const fn format(self) -> Format {
        self.row().4
    }
    /// Whether a match may have any mask for the field.
    pub const fn maskable(self) -> bool {
        self.row().5
    }
    /// Whether an action may write the field.
    pub const fn writable(self) -> bool {
        self.row().6
    }

    /// The value, right-aligned in 128 bits.
    pub fn get(self, key: &Key) -> u128 {
        let (at, n, shift, bits, ..) = self.row();
        let mut v = 0u128;
        for b in &key.bytes()[at..at + n] {
            v = v << 8 | u128::from(*b);
        }
        if self == Field::TunId {
            v |= u128::from(key.u32(at::TUN_ID_HIGH)) << 32;
        }
        (v >> shift) & ones(bits)
    }

    /// Writes the value (right-aligned; upper bits ignored).
    pub fn set(self, key: &mut Key, value: u128) {
        self.set_masked(key, value, ones(self.bits()));
    }

    /// Writes the bits of `value` that `mask` selects, leaves the others.
    pub fn set_masked(self, key: &mut Key, value: u128, mask: u128) {
        let (at, n, shift, bits, ..) = self.row();
        let (value, mask) = ((value & ones(bits)) << shift, (mask & ones(bits)) << shift);
        for (i, b) in key.bytes_mut()[at..at + n].iter_mut().enumerate() {
            let down = 8 * (n - 1 - i);
            *b = (*b & !((mask >> down) as u8)) | ((value & mask) >> down) as u8;
        }
        if self == Field::TunId {
            let (value, mask) = ((value >> 32) as u32, (mask >> 32) as u32);
            let old = key.u32(at::TUN_ID_HIGH);
            key.set_u32(at::TUN_ID_HIGH, old & !mask | value & mask);
        }
    }

    /// All ones in the field's width.
    pub fn full(self) -> u128 {
        ones(self.bits())
    }

    /// Sets every bit of the field in a mask.
    pub fn unwildcard(self, mask: &mut Key) {
        self.set(mask, u128::MAX);
    }
}

const fn ones(bits: usize) -> u128 {
    if bits == 128 { u128::MAX } else { (1u128 << bits) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_and_stay_inside() {
        for f in FIELDS.iter().copied().chain([Field::Reg(15), Field::Xreg(7), Field::Xxreg(3)]) {
            let mut k = Key::ZERO;
            f.set(&mut k, u128::MAX);
            assert_eq!(f.get(&k), f.full(), "{f:?}");
            let ones: u32 = k.words.iter().map(|w| w.count_ones()).sum();
            assert_eq!(ones as usize, f.bits(), "{f:?}");
            f.set_masked(&mut k, 0, 1);
            assert_eq!(f.get(&k), f.full() & !1, "{f:?}");
        }
    }
}
