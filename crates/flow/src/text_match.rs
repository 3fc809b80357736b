//! OpenFlow matches and flows as `ovs-ofctl` and `ofproto/trace` print them.

use std::fmt::Write;
use wire::{
    ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_MPLS, ETH_MPLS_MCAST, ETH_NSH, ETH_RARP, IP_ICMP, IP_ICMPV6,
    IP_IGMP, IP_SCTP, IP_TCP, IP_UDP, NSH_MD1,
};

use crate::text::{CT_STATE, Masked, TCP_FLAGS, TUN_FLAGS, ethernet, flags_masked, hex};
use crate::text::{ipv4, ipv6, prefix_len};
use crate::{Field, Format, Key, Mask, TunMetadata, at, flag};

/// Looks up the name of an OpenFlow port (32-bit number); `None`: print the number.
pub type PortName<'a> = &'a dyn Fn(u32) -> Option<String>;

/// The action set has no output.
const UNSET: u128 = 0xffff_fff7;

/// Reserved OpenFlow ports by name (OpenFlow 1.3 section A.2.1, in OVS's spelling).
pub(crate) const PORTS: &[(u32, &str)] = &[
    (0xffff_fff7, "UNSET"),
    (0xffff_fff8, "IN_PORT"),
    (0xffff_fff9, "TABLE"),
    (0xffff_fffa, "NORMAL"),
    (0xffff_fffb, "FLOOD"),
    (0xffff_fffc, "ALL"),
    (0xffff_fffd, "CONTROLLER"),
    (0xffff_fffe, "LOCAL"),
    (0xffff_ffff, "ANY"),
];

/// An OpenFlow port as text: a reserved name, the port's name (quoted unless it is plain letters
/// and digits), or its number (reserved numbers in OpenFlow 1.0's 16-bit form).
pub fn port_text(port: u32, names: PortName) -> String {
    if let Some((_, name)) = PORTS.iter().find(|(p, _)| *p == port) {
        return (*name).into();
    }
    match names(port) {
        Some(name) if is_plain(&name) => name,
        Some(name) => format!("{name:?}"),
        None if port >= 0xffff_ff00 => (port & 0xffff).to_string(),
        None => port.to_string(),
    }
}

fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}

/// A match as in `ovs-ofctl dump-flows`, without priority; empty if everything matches.
pub fn match_text(key: &Key, mask: &Mask, tun: &[TunMetadata], names: PortName) -> String {
    Writer::new(key, mask, tun, names, false).finish()
}

/// The `Megaflow:` line of `ofproto/trace`: as [`match_text`], but always with packet type and
/// recirculation id.
pub fn megaflow_text(key: &Key, mask: &Mask, tun: &[TunMetadata], names: PortName) -> String {
    Writer::new(key, mask, tun, names, true).finish()
}

/// The `Flow:` line of `ofproto/trace`: every field of a packet of this kind, and the metadata
/// fields that are not zero.
pub fn flow_text(key: &Key, tun: &[TunMetadata], names: PortName) -> String {
    Writer::new(key, &packet_mask(key), tun, names, false).finish()
}

/// `ct_state` as the names of its bits: `new|trk`.
pub fn ct_state_text(state: u8) -> String {
    crate::text::flags(CT_STATE, state.into())
}

/// Fields that every IPv4 or IPv6 packet has.
const IP: &[Field] = &[Field::IpProto, Field::IpTos, Field::IpTtl, Field::IpFrag];
/// Fields of a network service header, in the order in which they are written.
pub const NSH: [Field; 10] = [
    Field::NshFlags,
    Field::NshTtl,
    Field::NshMdtype,
    Field::NshNp,
    Field::NshSpi,
    Field::NshSi,
    Field::NshC1,
    Field::NshC2,
    Field::NshC3,
    Field::NshC4,
];
const METADATA: &[Field] = &[
    Field::PktMark,
    Field::ConjId,
    Field::ActsetOutput,
    Field::CtState,
    Field::CtZone,
    Field::CtMark,
    Field::CtLabel,
    Field::CtNwSrc,
    Field::CtNwDst,
    Field::CtIpv6Src,
    Field::CtIpv6Dst,
    Field::CtNwProto,
    Field::CtTpSrc,
    Field::CtTpDst,
    Field::TunId,
    Field::TunSrc,
    Field::TunDst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunFlags,
    Field::TunGbpId,
    Field::TunGbpFlags,
    Field::TunErspanIdx,
    Field::TunErspanVer,
    Field::TunErspanDir,
    Field::TunErspanHwid,
    Field::TunGtpuFlags,
    Field::TunGtpuMsgtype,
    Field::Metadata,
];

/// The mask of the fields that are valid in a packet with `key`.
pub fn packet_mask(key: &Key) -> Mask {
    let mut mask = Key::ZERO;
    let mut set = |fields: &[Field]| fields.iter().for_each(|f| f.unwildcard(&mut mask));
    for f in METADATA.iter().copied().chain((0..16).map(Field::Reg)) {
        let unset = f == Field::ActsetOutput && f.get(key) == UNSET;
        if f.get(key) != 0 && !unset {
            set(&[f]);
        }
    }
    set(&[Field::InPort, Field::PacketType]);
    if Field::PacketType.get(key) == 0 {
        set(&[Field::EthSrc, Field::EthDst, Field::VlanTci, Field::EthType]);
    }
    let proto = key.u8(at::PROTO);
    match key.u16(at::ETH_TYPE) {
        ETH_IPV4 => set(&[Field::Ipv4Src, Field::Ipv4Dst]),
        ETH_IPV6 => set(&[Field::Ipv6Src, Field::Ipv6Dst, Field::Ipv6Label]),
        ETH_ARP | ETH_RARP => {
            set(&[Field::ArpOp, Field::ArpSpa, Field::ArpTpa, Field::ArpSha, Field::ArpTha])
        }
        ETH_MPLS | ETH_MPLS_MCAST => {
            set(&[Field::MplsLabel, Field::MplsTc, Field::MplsTtl, Field::MplsBos]);
        }
        ETH_NSH => NSH.iter().chain(IP).for_each(|f| set(&[*f])),
        _ => {}
    }
    let ip = matches!(key.u16(at::ETH_TYPE), ETH_IPV4 | ETH_IPV6);
    if ip {
        set(IP);
        let ported = matches!(proto, IP_ICMP | IP_TCP | IP_UDP | IP_ICMPV6 | IP_SCTP);
        if key.u8(at::FRAG) & crate::frag::LATER == 0 && ported {
            set(&[Field::TcpSrc, Field::TcpDst]);
            set(if proto == 6 { &[Field::TcpFlags] } else { &[] });
            let nd = proto == 58 && matches!(key.u16(at::TP_SRC), 135 | 136);
            set(if nd { &[Field::NdTarget, Field::NdSll, Field::NdTll] } else { &[] });
        }
    }
    for at in [at::RECIRC, at::PRIORITY] {
        if key.u32(at) != 0 {
            mask.set_u32(at, !0);
        }
    }
    if key.u16(at::VLAN) != 0 {
        mask.set_u16(at::VLAN1, 0xffff);
    }
    mask
}

/// The mask of a decision that is valid only for packets with this key: all fields that are valid
/// in it, and those that a datapath has for every packet.
pub fn exact_mask(key: &Key) -> Mask {
    let mut mask = packet_mask(key);
    for f in [Field::CtState, Field::CtZone, Field::CtMark, Field::CtLabel, Field::PktMark] {
        f.unwildcard(&mut mask);
    }
    mask.set_u32(at::PRIORITY, !0);
    mask.set_u32(at::RECIRC, !0);
    mask.set_u16(at::IN_PORT, 0xffff);
    mask.set_u8(at::FLAGS, !crate::flag::L4);
    if key.u8(at::FLAGS) & crate::flag::TUNNEL != 0 {
        mask.set_u64(at::TUN_OPTIONS, !0);
    }
    mask
}

/// Writes fields in order, each followed by a comma.
struct Writer<'a> {
    key: &'a Key,
    mask: &'a Mask,
    tun: &'a [TunMetadata],
    names: PortName<'a>,
    megaflow: bool,
    out: String,
    eth_type: u16,
    proto: u8,
}

impl<'a> Writer<'a> {
    fn new(
        key: &'a Key,
        mask: &'a Mask,
        tun: &'a [TunMetadata],
        names: PortName<'a>,
        megaflow: bool,
    ) -> Self {
        let exact = |f: Field| Field::get(f, mask) == f.full();
        let ns1 = Field::PacketType.get(key) >> 16 == 1 && exact(Field::PacketType);
        let eth_type = match () {
            _ if exact(Field::EthType) => key.u16(at::ETH_TYPE),
            _ if ns1 => Field::PacketType.get(key) as u16,
            _ => 0,
        };
        let proto = if exact(Field::IpProto) { key.u8(at::PROTO) } else { 0 };
        let kinds = [Field::PacketType, Field::EthDst, Field::EthSrc, Field::EthType];
        let has_kind = kinds.iter().any(|f| f.get(mask) != 0) || mask.u16(at::VLAN) != 0;
        let megaflow = megaflow || mask.u32(at::RECIRC) != 0 && has_kind;
        Writer { key, mask, tun, names, megaflow, out: String::new(), eth_type, proto }
    }

    fn finish(mut self) -> String {
        self.context();
        self.conntrack();
        self.kind();
        for i in 0..16 {
            self.hex(&format!("reg{i}"), Field::Reg(i));
        }
        self.tunnel();
        self.hex("metadata", Field::Metadata);
        if !self.get(Field::InPort).any() {
            let port = port_text(Field::InPort.get(self.key) as u32, self.names);
            self.put("in_port", &port);
        }
        self.vlan("", at::VLAN);
        if self.mask.u16(at::VLAN) != 0 {
            self.vlan("1", at::VLAN1);
        }
        self.ethernet("dl_src", Field::EthSrc);
        self.ethernet("dl_dst", Field::EthDst);
        self.addresses();
        self.ip_header();
        self.mpls();
        self.frag();
        self.transport();
        self.out.pop();
        self.out
    }

    fn get(&self, field: Field) -> Masked {
        Masked::of(field, self.key, self.mask)
    }

    fn put(&mut self, name: &str, value: &str) {
        let _ = write!(self.out, "{name}={value},");
    }

    /// A field in hexadecimal, with any mask.
    fn hex(&mut self, name: &str, field: Field) {
        self.hex_masked(name, self.get(field));
    }

    fn hex_masked(&mut self, name: &str, m: Masked) {
        if m.exact() {
            self.put(name, &hex(m.value));
        } else if !m.any() {
            self.put(name, &format!("{}/{}", hex(m.bits()), hex(m.mask)));
        }
    }

    /// A decimal number; hexadecimal when it has a mask.
    fn number(&mut self, name: &str, field: Field) {
        let m = self.get(field);
        if m.exact() {
            self.put(name, &m.value.to_string());
        } else if !m.any() {
            self.put(name, &format!("{:#x}/{:#x}", m.bits(), m.mask));
        }
    }

    fn ethernet(&mut self, name: &str, field: Field) {
        let m = self.get(field);
        if m.exact() {
            self.put(name, &ethernet(m.value));
        } else if !m.any() {
            self.put(name, &format!("{}/{}", ethernet(m.bits()), ethernet(m.mask)));
        }
    }

    fn ip(&mut self, name: &str, field: Field) {
        let m = self.get(field);
        let bits = field.bits();
        let text = if bits == 32 { ipv4 } else { ipv6 };
        if m.any() {
            return;
        }
        let mask = match prefix_len(m.mask, bits) {
            _ if m.exact() => String::new(),
            Some(len) => format!("/{len}"),
            None => format!("/{}", text(m.mask)),
        };
        self.put(name, &format!("{}{mask}", text(m.bits())));
    }

    fn flags(&mut self, name: &str, field: Field, names: &[(u32, &str)]) {
        let m = self.get(field);
        if !m.any() {
            self.put(name, &flags_masked(names, m));
        }
    }

    fn context(&mut self) {
        self.hex("pkt_mark", Field::PktMark);
        let at = |at, n| Masked::at(at, n, self.key, self.mask);
        let (recirc, hash) = (at(at::RECIRC, 4), at(at::DP_HASH, 4));
        let priority = at(at::PRIORITY, 4);
        self.hex_masked("recirc_id", recirc);
        self.hex_masked("dp_hash", hash);
        self.number("conj_id", Field::ConjId);
        self.hex_masked("skb_priority", priority);
        if !self.get(Field::ActsetOutput).any() {
            let port = port_text(Field::ActsetOutput.get(self.key) as u32, self.names);
            self.put("actset_output", &port);
        }
    }

    fn conntrack(&mut self) {
        self.flags("ct_state", Field::CtState, CT_STATE);
        self.number("ct_zone", Field::CtZone);
        self.hex("ct_mark", Field::CtMark);
        self.hex("ct_label", Field::CtLabel);
        self.ip("ct_nw_src", Field::CtNwSrc);
        self.ip("ct_ipv6_src", Field::CtIpv6Src);
        self.ip("ct_nw_dst", Field::CtNwDst);
        self.ip("ct_ipv6_dst", Field::CtIpv6Dst);
        self.number("ct_nw_proto", Field::CtNwProto);
        self.number("ct_tp_src", Field::CtTpSrc);
        self.number("ct_tp_dst", Field::CtTpDst);
    }

    /// The packet type and the protocol's short name.
    fn kind(&mut self) {
        let kind = self.get(Field::PacketType);
        if kind.bits() != 0 {
            let (ns, id) = (kind.value >> 16, kind.value & 0xffff);
            self.put("packet_type", &format!("({ns},{})", hex(id)));
        } else if self.megaflow {
            self.out.push_str("eth,");
        }
        if let Some(name) = self.short_name() {
            let _ = write!(self.out, "{name},");
        }
    }

    fn short_name(&self) -> Option<&'static str> {
        if self.get(Field::EthType).any() {
            return None;
        }
        Some(match (self.eth_type, self.proto) {
            (ETH_IPV4, IP_ICMP) => "icmp",
            (ETH_IPV4, IP_IGMP) if self.megaflow => "igmp",
            (ETH_IPV4, IP_TCP) => "tcp",
            (ETH_IPV4, IP_UDP) => "udp",
            (ETH_IPV4, IP_SCTP) => "sctp",
            (ETH_IPV4, _) => "ip",
            (ETH_IPV6, IP_TCP) => "tcp6",
            (ETH_IPV6, IP_UDP) => "udp6",
            (ETH_IPV6, IP_ICMPV6) => "icmp6",
            (ETH_IPV6, IP_SCTP) => "sctp6",
            (ETH_IPV6, _) => "ipv6",
            (ETH_ARP, _) => "arp",
            (ETH_RARP, _) => "rarp",
            (ETH_MPLS, _) => "mpls",
            (ETH_MPLS_MCAST, _) => "mplsm",
            _ => return None,
        })
    }

    /// Fields of ERSPAN and GTP-U. A megaflow shows those of its version only, without masks, as in
    /// OVS.
    fn erspan_and_gtpu(&mut self) {
        if self.megaflow && self.has_options() {
            return;
        }
        let version = self.get(Field::TunErspanVer);
        let has = |n: u128| version.any() || version.bits() == n;
        let all = [
            ("tun_erspan_ver", Field::TunErspanVer, true),
            ("tun_erspan_idx", Field::TunErspanIdx, has(1)),
            ("tun_erspan_dir", Field::TunErspanDir, has(2)),
            ("tun_erspan_hwid", Field::TunErspanHwid, has(2)),
            ("tun_gtpu_flags", Field::TunGtpuFlags, true),
            ("tun_gtpu_msgtype", Field::TunGtpuMsgtype, true),
        ];
        for (name, field, of_version) in all {
            let m = self.get(field);
            let bare = name.strip_prefix("tun_").filter(|n| self.megaflow && n.starts_with("gtpu"));
            let name = bare.unwrap_or(name);
            match (self.megaflow, field.format()) {
                (true, _) if m.any() || !of_version => {}
                (true, Format::Decimal) => self.put(name, &m.bits().to_string()),
                (true, _) => self.put(name, &hex(m.bits())),
                (false, Format::Decimal) => self.number(name, field),
                (false, _) => self.hex(name, field),
            }
        }
    }

    /// True if a digest of Geneve options is in place of the fields of ERSPAN and GTP-U.
    fn has_options(&self) -> bool {
        let flagged = self.key.u8(at::FLAGS) & flag::TUNNEL_OPTIONS != 0;
        flagged || !self.tun.is_empty() && self.key.u64(at::TUN_OPTIONS) == 0
    }

    fn tunnel(&mut self) {
        self.hex("tun_id", Field::TunId);
        self.ip("tun_src", Field::TunSrc);
        self.ip("tun_dst", Field::TunDst);
        self.ip("tun_ipv6_src", Field::TunIpv6Src);
        self.ip("tun_ipv6_dst", Field::TunIpv6Dst);
        self.number("tun_gbp_id", Field::TunGbpId);
        self.hex("tun_gbp_flags", Field::TunGbpFlags);
        let tos = Masked::at(at::TUN_TOS, 1, self.key, self.mask);
        let ttl = Masked::at(at::TUN_TTL, 1, self.key, self.mask);
        if !tos.any() {
            self.put("tun_tos", &format!("{:x}", tos.value)); // bare hexadecimal, as OVS
        }
        if !ttl.any() {
            self.put("tun_ttl", &ttl.value.to_string());
        }
        self.erspan_and_gtpu();
        // OpenFlow can name only the OAM flag; a full mask over it reads "+oam".
        let m = self.get(Field::TunFlags);
        if !m.any() {
            self.put("tun_flags", &flags_masked(TUN_FLAGS, Masked { full: u128::MAX, ..m }));
        }
        for t in self.tun {
            let _ = write!(self.out, "{},", t.text());
        }
    }

    fn vlan(&mut self, number: &str, at: usize) {
        let (tci, mask) = (self.key.u16(at), self.mask.u16(at));
        let (vid, pcp, present) = (mask & 0xfff, mask >> 13, mask & tci & 0x1000 != 0);
        if mask == 0 {
        } else if present && matches!((vid, pcp), (0xfff, 0 | 7) | (0, 7)) {
            if vid != 0 {
                self.put(&format!("dl_vlan{number}"), &(tci & 0xfff).to_string());
            }
            if pcp != 0 {
                self.put(&format!("dl_vlan_pcp{number}"), &(tci >> 13).to_string());
            }
        } else {
            let mask = if mask == 0xffff { String::new() } else { format!("/{mask:#06x}") };
            let tci = tci & self.mask.u16(at);
            self.put(&format!("vlan_tci{number}"), &format!("{tci:#06x}{mask}"));
        }
    }

    fn is_arp(&self) -> bool {
        matches!(self.eth_type, ETH_ARP | ETH_RARP)
    }

    fn is_mpls(&self) -> bool {
        matches!(self.eth_type, ETH_MPLS | ETH_MPLS_MCAST)
    }

    fn addresses(&mut self) {
        if self.short_name().is_none() && !self.get(Field::EthType).any() {
            self.put("dl_type", &format!("{:#06x}", self.key.u16(at::ETH_TYPE)));
        }
        match self.eth_type {
            ETH_IPV6 => {
                self.ip("ipv6_src", Field::Ipv6Src);
                self.ip("ipv6_dst", Field::Ipv6Dst);
                let m = self.get(Field::Ipv6Label);
                if m.exact() {
                    self.put("ipv6_label", &format!("{:#07x}", m.value));
                } else if !m.any() {
                    self.put("ipv6_label", &format!("{:#07x}/{:#07x}", m.bits(), m.mask));
                }
            }
            ETH_NSH => self.nsh(),
            _ if self.is_mpls() => {}
            _ => {
                let arp = self.is_arp();
                self.ip(if arp { "arp_spa" } else { "nw_src" }, Field::Ipv4Src);
                self.ip(if arp { "arp_tpa" } else { "nw_dst" }, Field::Ipv4Dst);
            }
        }
    }

    /// A header whose metadata is not known to be of type 1 has no context headers.
    fn nsh(&mut self) {
        let kind = self.get(Field::NshMdtype);
        let fields = if kind.exact() && kind.value == u128::from(NSH_MD1) { 10 } else { 6 };
        for field in &NSH[..fields] {
            let m = self.get(*field);
            let text = match field.format() {
                _ if m.any() => continue,
                Format::Decimal if m.exact() => m.value.to_string(),
                Format::Decimal => format!("{:#04x}/{:#04x}", m.bits(), m.mask),
                _ if m.exact() => format!("{:#x}", m.value),
                _ => format!("{:#x}/{:#x}", m.bits(), m.mask),
            };
            self.put(&field.name(), &text);
        }
    }

    fn ip_header(&mut self) {
        let named = matches!(
            self.short_name(),
            Some(n) if !matches!(n, "ip" | "ipv6" | "arp" | "rarp" | "mpls" | "mplsm")
        );
        if self.is_arp() {
            self.number("arp_op", Field::ArpOp);
            self.ethernet("arp_sha", Field::ArpSha);
            self.ethernet("arp_tha", Field::ArpTha);
        } else if !named {
            self.number("nw_proto", Field::IpProto);
        }
        let tos = self.get(Field::IpTos);
        if tos.mask & 0xfc != 0 {
            self.put("nw_tos", &(tos.value & 0xfc).to_string());
        }
        if tos.mask & 3 != 0 {
            self.put("nw_ecn", &(tos.value & 3).to_string());
        }
        self.number("nw_ttl", Field::IpTtl);
    }

    fn mpls(&mut self) {
        if !self.is_mpls() {
            return;
        }
        self.number("mpls_label", Field::MplsLabel);
        self.number("mpls_tc", Field::MplsTc);
        self.number("mpls_ttl", Field::MplsTtl);
        self.number("mpls_bos", Field::MplsBos);
    }

    fn frag(&mut self) {
        let m = self.get(Field::IpFrag);
        let text = match (m.mask, m.bits()) {
            (0, _) => return,
            (3, 0) | (1, 0) => "no",
            (3, 1) => "first",
            (3, 3) => "later",
            (1, _) => "yes",
            (2, 0) => "not_later",
            (2, _) => "later",
            _ => "<error>",
        };
        self.put("nw_frag", text);
    }

    fn transport(&mut self) {
        let icmp6 = (self.eth_type, self.proto) == (ETH_IPV6, IP_ICMPV6);
        if icmp6 || (self.eth_type, self.proto) == (ETH_IPV4, IP_ICMP) {
            self.number("icmp_type", Field::Icmpv4Type);
            self.number("icmp_code", Field::Icmpv4Code);
        } else {
            self.number("tp_src", Field::TcpSrc);
            self.number("tp_dst", Field::TcpDst);
        }
        if icmp6 {
            self.ip("nd_target", Field::NdTarget);
            self.ethernet("nd_sll", Field::NdSll);
            self.ethernet("nd_tll", Field::NdTll);
            self.number("nd_reserved", Field::NdReserved);
            self.number("nd_options_type", Field::NdOptionsType);
        }
        if self.proto == 6 {
            self.flags("tcp_flags", Field::TcpFlags, TCP_FLAGS);
        }
    }
}
