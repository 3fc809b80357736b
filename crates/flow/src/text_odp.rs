//! Datapath flow keys as `ovs-appctl dpctl/dump-flows` prints them.

use std::fmt::Write;
use wire::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_MPLS, ETH_MPLS_MCAST, ETH_NSH, ETH_RARP, NSH_MD1};

use crate::parse_odp::NO_ETH_TYPE;
use crate::text::{
    CT_STATE, Masked, TCP_FLAGS, TUN_FLAGS, ethernet, flags_each, flags_masked, hex,
};
use crate::text::{ipv4, ipv6};
use crate::text_match::{NSH, exact_mask};
use crate::{Field, Format, Key, LABELS, Mask, PortNo, at, flag, frag};

/// Looks up the name of a datapath port; `None`: print the number.
pub type DatapathPortName<'a> = &'a dyn Fn(PortNo) -> Option<String>;

/// A datapath flow's key as text. `verbose` (as `dump-flows -m`): includes wildcarded attributes,
/// with masks of zero; the key should then be the unmasked one of the flow's first packet.
///
/// The key determines the attributes: by its Ethernet type, protocol and tags.
pub fn odp_text(key: &Key, mask: &Mask, verbose: bool, names: DatapathPortName) -> String {
    Odp { key, mask, verbose, masks: true, out: String::new() }.whole(names)
}

/// A packet's key as text, as ovs-vswitchd logs it: all fields of such a packet.
pub fn odp_key_text(key: &Key, names: DatapathPortName) -> String {
    let mut mask = exact_mask(key);
    mask.set_u32(at::DP_HASH, !0);
    Odp { key, mask: &mask, verbose: true, masks: false, out: String::new() }.whole(names)
}

/// The bottom-of-stack bit of a label stack entry.
const MPLS_BOTTOM: u32 = 0x100;

/// How a number is written.
#[derive(Clone, Copy)]
enum Style {
    /// Decimal; the mask hexadecimal.
    Decimal,
    /// C's `%#x`.
    Hex,
    Ipv4,
    Ipv6,
    Ethernet,
}

impl Style {
    fn value(self, v: u128) -> String {
        match self {
            Style::Decimal => v.to_string(),
            Style::Hex => hex(v),
            Style::Ipv4 => ipv4(v),
            Style::Ipv6 => ipv6(v),
            Style::Ethernet => ethernet(v),
        }
    }

    fn mask(self, v: u128) -> String {
        match self {
            Style::Decimal => hex(v),
            _ => self.value(v),
        }
    }
}

struct Odp<'a> {
    key: &'a Key,
    mask: &'a Mask,
    verbose: bool,
    /// Whether masks are printed; if not, the mask only selects the fields.
    masks: bool,
    out: String,
}

/// A part of an attribute: name, value, style.
type Part = (&'static str, Masked, Style);

impl Odp<'_> {
    fn whole(mut self, names: DatapathPortName) -> String {
        self.context();
        self.number("recirc_id", at::RECIRC, 4);
        self.number("dp_hash", at::DP_HASH, 4);
        self.port(names);
        self.frame();
        self.out
    }

    fn get(&self, field: Field) -> Masked {
        Masked::of(field, self.key, self.mask)
    }

    fn at(&self, at: usize, bytes: usize) -> Masked {
        Masked::at(at, bytes, self.key, self.mask)
    }

    /// Appends `name(body)`.
    fn attribute(&mut self, name: &str, body: &str) {
        let comma = if self.out.is_empty() || self.out.ends_with('(') { "" } else { "," };
        let _ = write!(self.out, "{comma}{name}({body})");
    }

    fn shown(&self, m: Masked) -> bool {
        self.verbose || !m.any()
    }

    fn number(&mut self, name: &str, at: usize, bytes: usize) {
        self.plain(name, self.at(at, bytes));
    }

    /// `name(value[/mask])` in hexadecimal.
    fn plain(&mut self, name: &str, m: Masked) {
        if self.shown(m) {
            self.attribute(name, &one(m, Style::Hex));
        }
    }

    /// `name=value[/mask]` of the parts that are shown, separated by commas.
    fn body(&self, parts: &[Part]) -> String {
        let shown = parts.iter().filter(|(_, m, _)| self.shown(*m));
        shown.map(|(n, m, s)| format!("{n}={}", one(*m, *s))).collect::<Vec<_>>().join(",")
    }

    fn group(&mut self, name: &str, parts: &[Part]) {
        let body = self.body(parts);
        if !body.is_empty() {
            self.attribute(name, &body);
        }
    }

    fn context(&mut self) {
        self.number("skb_priority", at::PRIORITY, 4);
        self.tunnel();
        self.plain("skb_mark", self.get(Field::PktMark));
        let state = self.get(Field::CtState);
        if self.verbose {
            let mask = if self.masks { format!("/{}", hex(state.mask)) } else { String::new() };
            self.attribute("ct_state", &format!("{}{mask}", hex(state.value)));
        } else if self.shown(state) {
            self.attribute("ct_state", &flags_each(CT_STATE, state));
        }
        self.plain("ct_zone", self.get(Field::CtZone));
        self.plain("ct_mark", self.get(Field::CtMark));
        self.plain("ct_label", self.get(Field::CtLabel));
        self.original_tuple();
    }

    fn tunnel(&mut self) {
        if self.key.u8(at::FLAGS) & flag::TUNNEL == 0 {
            return;
        }
        let v6 = self.get(Field::TunIpv6Dst).value != 0;
        let mut parts = vec![("tun_id", self.at(at::TUN_ID, 4), Style::Hex)];
        if v6 {
            parts.push(("ipv6_src", self.get(Field::TunIpv6Src), Style::Ipv6));
            parts.push(("ipv6_dst", self.get(Field::TunIpv6Dst), Style::Ipv6));
        } else {
            parts.push(("src", self.get(Field::TunSrc), Style::Ipv4));
            parts.push(("dst", self.get(Field::TunDst), Style::Ipv4));
        }
        parts.push(("tos", self.at(at::TUN_TOS, 1), Style::Hex));
        parts.push(("ttl", self.at(at::TUN_TTL, 1), Style::Decimal));
        for (name, port) in [("tp_src", at::TUN_TP_SRC), ("tp_dst", at::TUN_TP_DST)] {
            if self.key.u16(port) != 0 {
                parts.push((name, self.at(port, 2), Style::Decimal));
            }
        }
        let mut body = self.body(&parts);
        let gbp = self.body(&[
            ("id", self.get(Field::TunGbpId), Style::Decimal),
            ("flags", self.get(Field::TunGbpFlags), Style::Hex),
        ]);
        let gbp_used = self.get(Field::TunGbpId).value != 0;
        if !gbp.is_empty() && (gbp_used || !self.verbose) {
            let _ = write!(body, ",vxlan(gbp({gbp}))");
        }
        let options = self.at(at::TUN_OPTIONS, 8);
        if self.key.u8(at::FLAGS) & flag::TUNNEL_OPTIONS == 0 {
            body += &self.erspan();
            body += &self.gtpu();
        } else if options.value & options.mask != 0 {
            let _ = write!(body, ",geneve(options={:#x})", options.value);
        }
        let flags = self.get(Field::TunFlags);
        if self.shown(flags) {
            let _ = write!(body, ",flags({})", flags_masked(TUN_FLAGS, flags));
        }
        self.attribute("tunnel", body.trim_start_matches(','));
    }

    /// ERSPAN's fields: those that its version has. Without one, those that are not zero.
    fn erspan(&self) -> String {
        let version = self.get(Field::TunErspanVer);
        let mut parts = vec![("ver", version, Style::Decimal)];
        if version.value != 2 {
            parts.push(("idx", self.get(Field::TunErspanIdx), Style::Hex));
        }
        if version.value != 1 {
            parts.push(("dir", self.get(Field::TunErspanDir), Style::Decimal));
            parts.push(("hwid", self.get(Field::TunErspanHwid), Style::Hex));
        }
        if version.value == 0 {
            parts.retain(|(_, m, _)| m.value != 0);
        }
        let body = self.body(&parts);
        if body.is_empty() { body } else { format!(",erspan({body})") }
    }

    fn gtpu(&self) -> String {
        let flags = ("flags", self.get(Field::TunGtpuFlags), Style::Hex);
        let mut parts = vec![flags, ("msgtype", self.get(Field::TunGtpuMsgtype), Style::Decimal)];
        if flags.1.value == 0 {
            parts.retain(|(_, m, _)| m.value != 0);
        }
        let body = self.body(&parts);
        if body.is_empty() { body } else { format!(",gtpu({body})") }
    }

    /// The conntrack original direction tuple of a tracked packet.
    fn original_tuple(&mut self) {
        let rest = |s: &Self| {
            [
                ("proto", s.get(Field::CtNwProto), Style::Decimal),
                ("tp_src", s.get(Field::CtTpSrc), Style::Decimal),
                ("tp_dst", s.get(Field::CtTpDst), Style::Decimal),
            ]
        };
        let (v4, v6) = (self.at(at::CT_NW_SRC, 8), self.get(Field::CtIpv6Src));
        if v4.value != 0 {
            let mut parts = vec![
                ("src", self.get(Field::CtNwSrc), Style::Ipv4),
                ("dst", self.get(Field::CtNwDst), Style::Ipv4),
            ];
            parts.extend(rest(self));
            self.group("ct_tuple4", &parts);
        } else if v6.value != 0 || self.get(Field::CtIpv6Dst).value != 0 {
            let mut parts =
                vec![("src", v6, Style::Ipv6), ("dst", self.get(Field::CtIpv6Dst), Style::Ipv6)];
            parts.extend(rest(self));
            self.group("ct_tuple6", &parts);
        }
    }

    fn port(&mut self, names: DatapathPortName) {
        let m = self.at(at::IN_PORT, 2);
        if !self.shown(m) {
            return;
        }
        let name = names(m.value as PortNo);
        let text = name.map_or_else(|| one(m, Style::Decimal), |n| quote(&n));
        self.attribute("in_port", &text);
    }

    fn frame(&mut self) {
        let kind = self.packet_type();
        let body = format!("ns={},id={}", kind >> 16, hex(kind & 0xffff));
        self.attribute("packet_type", &body);
        if kind >> 16 == 0 {
            self.group(
                "eth",
                &[
                    ("src", self.get(Field::EthSrc), Style::Ethernet),
                    ("dst", self.get(Field::EthDst), Style::Ethernet),
                ],
            );
        }
        let outer = self.vlan(at::VLAN, flag::VLAN_88A8);
        let inner = outer && self.vlan(at::VLAN1, flag::VLAN1_88A8);
        self.payload();
        self.out.push_str(match (outer, inner) {
            (true, true) => "))",
            (true, false) => ")",
            _ => "",
        });
    }

    /// What the packet begins with. Keys of packets have no such field: one that came out of a
    /// tunnel without an Ethernet header has a flag until it is looked up again, and one that was
    /// behind a network service header has another flag.
    fn packet_type(&self) -> u128 {
        let flags = self.key.u8(at::FLAGS);
        let fresh = self.key.u32(at::RECIRC) == 0;
        match flags & flag::BARE {
            _ if flags & flag::UNWRAPPED != 0 || flags & flag::BARE != 0 && fresh => {
                1 << 16 | u128::from(self.key.u16(at::ETH_TYPE))
            }
            0 => Field::PacketType.get(self.key),
            _ => 0,
        }
    }

    /// A tag and the start of the encapsulated part; false if there is no tag.
    fn vlan(&mut self, at: usize, tpid: u8) -> bool {
        let (tci, mask) = (self.key.u16(at), self.mask.u16(at));
        if tci & 0x1000 == 0 {
            return false;
        }
        let service = self.key.u8(at::FLAGS) & tpid != 0;
        self.attribute("eth_type", if service { "0x88a8" } else { "0x8100" });
        if self.verbose || mask != 0 {
            let part = |name: &str, shift: u16, full: u16| {
                let (v, m) = (tci >> shift & full, mask >> shift & full);
                let partial = if m == full { String::new() } else { format!("/{m:#x}") };
                (self.verbose || v != 0 || m != 0).then(|| format!("{name}={v}{partial}"))
            };
            let parts = [part("vid", 0, 0xfff), part("pcp", 13, 7)];
            self.attribute("vlan", &parts.into_iter().flatten().collect::<Vec<_>>().join(","));
        }
        self.out.push_str(",encap(");
        true
    }

    fn payload(&mut self) {
        let kind = self.at(at::ETH_TYPE, 2);
        if self.shown(kind) && kind.value != NO_ETH_TYPE.into() {
            let mask = if kind.exact() { String::new() } else { format!("/{:#06x}", kind.mask) };
            self.attribute("eth_type", &format!("{:#06x}{mask}", kind.value));
        }
        match kind.value as u16 {
            ETH_IPV4 => self.ipv4(),
            ETH_IPV6 => self.ipv6(),
            ETH_ARP | ETH_RARP => self.group(
                "arp",
                &[
                    ("sip", self.get(Field::ArpSpa), Style::Ipv4),
                    ("tip", self.get(Field::ArpTpa), Style::Ipv4),
                    ("op", self.get(Field::ArpOp), Style::Decimal),
                    ("sha", self.get(Field::ArpSha), Style::Ethernet),
                    ("tha", self.get(Field::ArpTha), Style::Ethernet),
                ],
            ),
            ETH_MPLS | ETH_MPLS_MCAST => self.mpls(),
            ETH_NSH => self.nsh(),
            _ => {}
        }
    }

    /// Context headers are those of metadata of type 1.
    fn nsh(&mut self) {
        let fields = if self.key.u8(at::NSH_MDTYPE) == NSH_MD1 { 10 } else { 6 };
        let masked = NSH[..fields].iter().map(|f| (*f, self.get(*f))).filter(|(_, m)| !m.any());
        let text = |(f, m): (Field, Masked)| {
            let (name, decimal) = (f.name(), f.format() == Format::Decimal);
            let name = name.trim_start_matches("nsh_");
            match (decimal, m.exact() || !self.masks) {
                (true, true) => format!("{name}={}", m.value),
                (true, false) => format!("{name}={:#04x}/{:#04x}", m.bits(), m.mask),
                (false, true) => format!("{name}={:#x}", m.value),
                (false, false) => format!("{name}={:#x}/{:#010x}", m.bits(), m.mask),
            }
        };
        let body: Vec<String> = masked.map(text).collect();
        if self.verbose || !body.is_empty() {
            self.attribute("nsh", &body.join(","));
        }
    }

    /// The label stack entries, down to the bottom or to the last one in the key.
    fn mpls(&mut self) {
        let is_above = |a: &usize| self.key.u32(*a) & MPLS_BOTTOM == 0;
        let below = LABELS.iter().zip(&LABELS[1..]);
        let below = below.take_while(|(above, a)| is_above(above) && self.key.u32(**a) != 0);
        let entries = &LABELS[..=below.count()];
        let masks = |a: &usize| self.mask.u32(*a);
        if !self.verbose && entries.iter().all(|a| masks(a) == 0) {
            return;
        }
        let whole = entries.iter().all(|a| masks(a) == !0);
        let entry = |a: &usize| {
            let part = |low: u32, bits: u32, prefix: &str| {
                let full = (1u32 << bits) - 1;
                let (value, mask) = (self.key.u32(*a) >> low & full, masks(a) >> low & full);
                if whole { value.to_string() } else { format!("{value}/{prefix}{mask:x}") }
            };
            format!(
                "label={},tc={},ttl={},bos={}",
                part(12, 20, "0x"),
                part(9, 3, ""),
                part(0, 8, "0x"),
                part(8, 1, "")
            )
        };
        let body: Vec<String> = entries.iter().map(entry).collect();
        self.attribute("mpls", &body.join(","));
    }

    fn ipv4(&mut self) {
        let mut body = self.body(&[
            ("src", self.get(Field::Ipv4Src), Style::Ipv4),
            ("dst", self.get(Field::Ipv4Dst), Style::Ipv4),
            ("proto", self.get(Field::IpProto), Style::Decimal),
            ("tos", self.get(Field::IpTos), Style::Hex),
            ("ttl", self.get(Field::IpTtl), Style::Decimal),
        ]);
        self.frag(&mut body);
        if !body.is_empty() {
            self.attribute("ipv4", &body);
        }
        self.transport("icmp");
    }

    fn ipv6(&mut self) {
        let mut body = self.body(&[
            ("src", self.get(Field::Ipv6Src), Style::Ipv6),
            ("dst", self.get(Field::Ipv6Dst), Style::Ipv6),
            ("label", self.get(Field::Ipv6Label), Style::Hex),
            ("proto", self.get(Field::IpProto), Style::Decimal),
            ("tclass", self.get(Field::IpTos), Style::Hex),
            ("hlimit", self.get(Field::IpTtl), Style::Decimal),
        ]);
        self.frag(&mut body);
        if !body.is_empty() {
            self.attribute("ipv6", &body);
        }
        self.transport("icmpv6");
    }

    fn frag(&self, body: &mut String) {
        let m = self.get(Field::IpFrag);
        if !self.shown(m) {
            return;
        }
        let name = match m.value as u8 {
            0 => "no",
            frag::ANY => "first",
            _ => "later",
        };
        let mask = if m.exact() { String::new() } else { format!("/{}", hex(m.mask)) };
        let comma = if body.is_empty() { "" } else { "," };
        let _ = write!(body, "{comma}frag={name}{mask}");
    }

    /// The L4 attributes; a later fragment has none.
    fn transport(&mut self, icmp: &str) {
        if self.key.u8(at::FRAG) & frag::LATER != 0 {
            return;
        }
        let ports = [
            ("src", self.get(Field::TcpSrc), Style::Decimal),
            ("dst", self.get(Field::TcpDst), Style::Decimal),
        ];
        match (self.key.u8(at::PROTO), icmp) {
            (6, _) => {
                self.group("tcp", &ports);
                let flags = self.get(Field::TcpFlags);
                if self.shown(flags) {
                    self.attribute("tcp_flags", &flags_masked(TCP_FLAGS, flags));
                }
            }
            (17, _) => self.group("udp", &ports),
            (132, _) => self.group("sctp", &ports),
            (1, "icmp") | (58, "icmpv6") => self.icmp(icmp),
            _ => {}
        }
    }

    fn icmp(&mut self, name: &str) {
        let kind = self.get(Field::Icmpv4Type);
        let code = self.get(Field::Icmpv4Code);
        self.group(name, &[("type", kind, Style::Decimal), ("code", code, Style::Decimal)]);
        if name == "icmpv6" && matches!(kind.value, 135 | 136) {
            self.group(
                "nd",
                &[
                    ("target", self.get(Field::NdTarget), Style::Ipv6),
                    ("sll", self.get(Field::NdSll), Style::Ethernet),
                    ("tll", self.get(Field::NdTll), Style::Ethernet),
                ],
            );
            let ext = [
                ("nd_reserved", self.get(Field::NdReserved), Style::Hex),
                ("nd_options_type", self.get(Field::NdOptionsType), Style::Decimal),
            ];
            // As in OVS there is nothing about it in the text of a flow where it is zero.
            if ext.iter().any(|(_, m, _)| m.mask | m.value != 0) {
                self.group("nd_ext", &ext);
            }
        }
    }
}

fn one(m: Masked, style: Style) -> String {
    match m.exact() {
        true => style.value(m.value),
        false => format!("{}/{}", style.value(m.value), style.mask(m.mask)),
    }
}

/// A port name, in quotes if it could otherwise be parsed as something else.
fn quote(name: &str) -> String {
    let plain = !name.is_empty() && !name.contains([',', '(', ')', '/', '"', ' ']);
    if plain { name.into() } else { format!("{name:?}") }
}
