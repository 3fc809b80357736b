//! The parser of OpenFlow match text, as used for `ofproto/trace` and `ovs-ofctl`.

use crate::text::{CT_STATE, TCP_FLAGS, TUN_FLAGS, TextError, check_length, err};
use crate::text::{number, number_up_to, parse_ethernet, parse_flags, parse_ip, parse_ip_mask};
use crate::text_match::PORTS;
use crate::{Field, Format, Key, Mask, TunMetadata, at};
use wire::{
    ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_MPLS, ETH_MPLS_MCAST, ETH_RARP, IP_ICMP, IP_ICMPV6, IP_IGMP,
    IP_SCTP, IP_TCP, IP_UDP,
};

/// Looks up an OpenFlow port by its name; `None`: there is none of this name.
pub type PortNumber<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// Names of an Ethernet type with an IP protocol (0: any).
const SHORT_NAMES: &[(&str, u16, u8)] = &[
    ("ip", ETH_IPV4, 0),
    ("ipv4", ETH_IPV4, 0),
    ("ip4", ETH_IPV4, 0),
    ("icmp", ETH_IPV4, IP_ICMP),
    ("igmp", ETH_IPV4, IP_IGMP),
    ("tcp", ETH_IPV4, IP_TCP),
    ("udp", ETH_IPV4, IP_UDP),
    ("sctp", ETH_IPV4, IP_SCTP),
    ("ipv6", ETH_IPV6, 0),
    ("ip6", ETH_IPV6, 0),
    ("tcp6", ETH_IPV6, IP_TCP),
    ("udp6", ETH_IPV6, IP_UDP),
    ("icmp6", ETH_IPV6, IP_ICMPV6),
    ("sctp6", ETH_IPV6, IP_SCTP),
    ("arp", ETH_ARP, 0),
    ("rarp", ETH_RARP, 0),
    ("mpls", ETH_MPLS, 0),
    ("mplsm", ETH_MPLS_MCAST, 0),
];

/// Names besides [`Field::name`]: OpenFlow 1.0's and OVS's older ones.
const ALIASES: &[(&str, Field)] = &[
    ("tunnel_id", Field::TunId),
    ("dl_src", Field::EthSrc),
    ("dl_dst", Field::EthDst),
    ("dl_type", Field::EthType),
    ("nw_src", Field::Ipv4Src),
    ("nw_dst", Field::Ipv4Dst),
    ("ip_proto", Field::IpProto),
    ("ip_ecn", Field::IpEcn),
    ("nw_frag", Field::IpFrag),
    ("tp_src", Field::TcpSrc),
    ("tp_dst", Field::TcpDst),
    ("in_port_oxm", Field::InPort),
    ("icmpv4_type", Field::Icmpv4Type),
    ("icmpv4_code", Field::Icmpv4Code),
    ("nsp", Field::NshSpi),
    ("nsi", Field::NshSi),
    ("nshc1", Field::NshC1),
    ("nshc2", Field::NshC2),
    ("nshc3", Field::NshC3),
    ("nshc4", Field::NshC4),
];

/// Parses a match: fields `name=value[/mask]` and short names (`tcp`, `arp`, ...), separated by
/// commas or blanks, in any order; of two values for one field the later counts. The returned key
/// is masked. Unknown words, values out of range and masks where OpenFlow allows none are errors.
/// The prerequisites of fields are not checked.
pub fn parse_match(text: &str, ports: PortNumber) -> Result<(Key, Mask), TextError> {
    match parse_match_tun(text, ports)? {
        (key, mask, tun) if tun.is_empty() => Ok((key, mask)),
        _ => err("tunnel options have no place here"),
    }
}

/// Does what [`parse_match`] does, also with `tun_metadata` fields.
pub fn parse_match_tun(
    text: &str,
    ports: PortNumber,
) -> Result<(Key, Mask, Vec<TunMetadata>), TextError> {
    check_length(text)?;
    let mut out = Parser { key: Key::ZERO, mask: Key::ZERO, ports };
    let mut tun = Vec::new();
    for (name, value) in words(text) {
        if let Some(field) = TunMetadata::parse(name, value) {
            tun.push(field?);
            continue;
        }
        match value {
            None => out.short_name(name)?,
            Some(value) => out.field(name, value).map_err(|e| TextError(format!("{name}: {e}")))?,
        }
    }
    tun.sort_by_key(|t| t.index);
    Ok((out.key.masked(&out.mask), out.mask, tun))
}

/// Splits at commas and blanks outside parentheses and quotes, and each word at its first `=`.
fn words(text: &str) -> Vec<(&str, Option<&str>)> {
    let (mut depth, mut quoted) = (0, false);
    let separates = |c: char| {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        !quoted && depth <= 0 && (c == ',' || c.is_whitespace())
    };
    let parts = text.split(separates).filter(|w| !w.is_empty());
    parts.map(|w| w.split_once('=').map_or((w, None), |(n, v)| (n, Some(v)))).collect()
}

/// An OpenFlow port: a reserved name, a name, or a number (16-bit reserved numbers allowed).
pub fn parse_port(text: &str, ports: PortNumber) -> Result<u32, TextError> {
    let bare = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    if let (None, Ok(n)) = (bare, number(text)) {
        return match n {
            0..0xff00 => Ok(n as u32),
            0xff00..=0xffff => Ok(0xffff_0000 | n as u32),
            0xffff_ff00..=0xffff_ffff => Ok(n as u32),
            _ => err(format!("{text}: invalid port number")),
        };
    }
    let name = bare.unwrap_or(text);
    let reserved = PORTS.iter().find(|(_, n)| n.eq_ignore_ascii_case(name)).map(|(p, _)| *p);
    let none = name.eq_ignore_ascii_case("NONE").then_some(0xffff_ffff);
    let found = ports(name).or(reserved).or(none);
    found.ok_or_else(|| TextError(format!("{text}: invalid or unknown port")))
}

struct Parser<'a> {
    key: Key,
    mask: Mask,
    ports: PortNumber<'a>,
}

impl Parser<'_> {
    fn short_name(&mut self, name: &str) -> Result<(), TextError> {
        if name == "eth" {
            self.set(Field::PacketType, 0, Field::PacketType.full());
            return Ok(());
        }
        let Some((_, eth_type, proto)) = SHORT_NAMES.iter().find(|(n, ..)| *n == name) else {
            return err(format!("unknown field {name}"));
        };
        self.set(Field::EthType, u128::from(*eth_type), 0xffff);
        if *proto != 0 {
            self.set(Field::IpProto, u128::from(*proto), 0xff);
        }
        Ok(())
    }

    fn set(&mut self, field: Field, value: u128, mask: u128) {
        field.set(&mut self.key, value);
        field.set(&mut self.mask, mask);
    }

    fn field(&mut self, name: &str, value: &str) -> Result<(), TextError> {
        match name {
            "dl_vlan" | "dl_vlan1" => self.vlan_id(value, vlan_at(name)),
            "dl_vlan_pcp" | "vlan_pcp" | "dl_vlan_pcp1" => self.vlan_pcp(value, vlan_at(name)),
            "vlan_tci" | "vlan_tci1" => self.place(vlan_at(name), 2, value),
            "recirc_id" => self.place(at::RECIRC, 4, value),
            "dp_hash" => self.place(at::DP_HASH, 4, value),
            "skb_priority" => self.place(at::PRIORITY, 4, value),
            "tun_tos" => self.place(at::TUN_TOS, 1, value),
            "tun_ttl" => self.place(at::TUN_TTL, 1, value),
            "nw_tos" => {
                let tos = number_up_to(value, 0xff)?;
                self.set(Field::IpDscp, tos >> 2, Field::IpDscp.full());
                Ok(())
            }
            _ => {
                let field = field_named(name).ok_or_else(|| TextError("unknown field".into()))?;
                let (value, mask) = parse_value(field, value, self.ports)?;
                if mask != field.full() && mask != 0 && !field.maskable() {
                    return err("invalid mask: the field is matched whole or not at all");
                }
                self.set(field, value, mask);
                Ok(())
            }
        }
    }

    /// OpenFlow 1.0's VLAN id: 0xffff is "no tag", anything else implies a tag.
    fn vlan_id(&mut self, value: &str, at: usize) -> Result<(), TextError> {
        match number_up_to(value, 0xffff)? {
            0xffff => {
                self.key.set_u16(at, 0);
                self.mask.set_u16(at, 0xffff);
            }
            vid if vid <= 0xfff => self.tag(at, vid as u16, 0xfff),
            _ => return err(format!("{value}: a VLAN id has 12 bits")),
        }
        Ok(())
    }

    fn vlan_pcp(&mut self, value: &str, at: usize) -> Result<(), TextError> {
        self.tag(at, (number_up_to(value, 7)? as u16) << 13, 0xe000);
        Ok(())
    }

    /// Sets the bits of `mask` in a TCI, and its bit for a present tag.
    fn tag(&mut self, at: usize, bits: u16, mask: u16) {
        let (key, old) = (self.key.u16(at), self.mask.u16(at));
        self.key.set_u16(at, key & !mask | bits | 0x1000);
        self.mask.set_u16(at, old | mask | 0x1000);
    }

    /// A number with an optional mask at an offset that has no [`Field`].
    fn place(&mut self, at: usize, bytes: usize, text: &str) -> Result<(), TextError> {
        let (value, mask) = masked_number(text, (1 << (8 * bytes)) - 1)?;
        for i in 0..bytes {
            let down = 8 * (bytes - 1 - i);
            self.key.set_u8(at + i, (value >> down) as u8);
            self.mask.set_u8(at + i, (mask >> down) as u8);
        }
        Ok(())
    }
}

fn vlan_at(name: &str) -> usize {
    if name.ends_with('1') { at::VLAN1 } else { at::VLAN }
}

/// A field's value and mask, as people type them: `VALUE` or `VALUE/MASK`. The value is not masked.
pub fn parse_value(field: Field, text: &str, ports: PortNumber) -> Result<(u128, u128), TextError> {
    let (full, bits) = (field.full(), field.bits());
    let two = |value: &dyn Fn(&str) -> Result<u128, TextError>,
               mask: &dyn Fn(&str) -> Result<u128, TextError>| {
        match text.split_once('/') {
            Some((v, m)) => Ok((value(v)?, mask(m)?)),
            None => Ok((value(text)?, full)),
        }
    };
    match field.format() {
        Format::Decimal | Format::Hex => masked_number(text, full),
        Format::Ethernet => two(&parse_ethernet, &parse_ethernet),
        Format::Ipv4 | Format::Ipv6 => two(&|t| parse_ip(t, bits), &|t| parse_ip_mask(t, bits)),
        Format::Port => Ok((parse_port(text, ports)?.into(), full)),
        Format::Frag => frag(text),
        Format::TcpFlags => parse_flags(text, TCP_FLAGS, full),
        Format::CtState => parse_flags(text, CT_STATE, full),
        Format::TunFlags => parse_flags(text, TUN_FLAGS, full),
        Format::PacketType => packet_type(text),
    }
}

/// The field of this name, OpenFlow 1.0's or a later one; `icmp_type` and `icmp_code` serve both IP
/// versions. Tunnel options are not among them.
pub fn field_named(name: &str) -> Option<Field> {
    if let Some((_, field)) = ALIASES.iter().find(|(n, _)| *n == name) {
        return Some(*field);
    }
    let registers = [("xxreg", 4), ("xreg", 8), ("reg", 16)];
    let kinds: [fn(u8) -> Field; 3] = [Field::Xxreg, Field::Xreg, Field::Reg];
    for ((prefix, count), kind) in registers.into_iter().zip(kinds) {
        if let Some(i) = name.strip_prefix(prefix).and_then(|n| n.parse::<u8>().ok()) {
            return (i < count).then(|| kind(i));
        }
    }
    crate::FIELDS.iter().copied().find(|f| f.name() == name)
}

fn masked_number(text: &str, full: u128) -> Result<(u128, u128), TextError> {
    match text.split_once('/') {
        Some((v, m)) => Ok((number_up_to(v, full)?, number_up_to(m, full)?)),
        None => Ok((number_up_to(text, full)?, full)),
    }
}

/// `nw_frag` as (value, mask) of the bits [`crate::frag`].
fn frag(text: &str) -> Result<(u128, u128), TextError> {
    Ok(match text {
        "no" => (0, 3),
        "yes" => (1, 1),
        "first" => (1, 3),
        "later" => (3, 3),
        "not_later" => (0, 2),
        _ => {
            return err(format!(
                "{text}: not one of \"no\", \"yes\", \"first\", \"later\", \"not_later\""
            ));
        }
    })
}

fn packet_type(text: &str) -> Result<(u128, u128), TextError> {
    let pair = text.strip_prefix('(').and_then(|t| t.strip_suffix(')'));
    let Some((ns, id)) = pair.and_then(|p| p.split_once(',')) else {
        return err(format!("{text}: expected (namespace,type)"));
    };
    Ok((number_up_to(ns, 0xffff)? << 16 | number_up_to(id, 0xffff)?, 0xffff_ffff))
}
