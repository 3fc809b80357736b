//! The parser of datapath flow keys in text, as typed for `ofproto/trace` or printed by
//! `dpctl/dump-flows`.

use crate::text::{CT_STATE, TCP_FLAGS, TUN_FLAGS, TextError, check_length, err};
use crate::text::{number_up_to, parse_ethernet, parse_flags, parse_ip, parse_ip_mask};
use crate::text_match::NSH;
use crate::tun_metadata::long_number;
use crate::{Field, Key, Mask, PortNo, TunMetadata, at, flag, frag};
use wire::{ETH_IPV4, ETH_IPV6};

/// Looks up a datapath port by its name.
pub type DatapathPortNumber<'a> = &'a dyn Fn(&str) -> Option<PortNo>;

/// Parses `attribute(...)` items separated by commas or blanks, as (key, mask). The key is not
/// masked: values are returned as written (in `-m` form, those of the flow's first packet). What is
/// not mentioned is zero and wildcarded, except that an Ethernet frame without `eth_type(...)` has
/// the type 0x05ff (802.2). Without `packet_type`, a text with `eth(...)`, or with neither
/// `eth(...)` nor `eth_type(...)`, is Ethernet; one with only `eth_type(...)` is a bare L3 packet,
/// as in OVS.
pub fn parse_odp(text: &str, ports: DatapathPortNumber) -> Result<(Key, Mask), TextError> {
    parse_odp_options(text, ports).map(|(key, mask, _)| (key, mask))
}

/// Does what [`parse_odp`] does, and also returns the bytes of Geneve options
/// (`tunnel(...,geneve({class=...,type=...,len=...,0x...}))`) without their masks.
pub fn parse_odp_options(
    text: &str,
    ports: DatapathPortNumber,
) -> Result<(Key, Mask, Vec<u8>), TextError> {
    check_length(text)?;
    let mut p = Parser {
        key: Key::ZERO,
        mask: Key::ZERO,
        options: Vec::new(),
        ports,
        tags: 0,
        depth: 0,
        eth: None,
    };
    p.list(text)?;
    p.finish();
    Ok((p.key, p.mask, p.options))
}

/// The Ethernet type of a frame that has none (802.2 without SNAP), as in OVS.
pub(crate) const NO_ETH_TYPE: u16 = 0x05ff;

/// The destination of a value, and its text form.
#[derive(Clone, Copy)]
enum Form {
    Number,
    Ethernet,
    Ip,
}

struct Parser<'a> {
    key: Key,
    mask: Mask,
    /// Options of a Geneve header.
    options: Vec<u8>,
    ports: DatapathPortNumber<'a>,
    /// VLAN tags seen so far.
    tags: usize,
    /// `encap(` around the current item.
    depth: usize,
    /// Whether the frame is Ethernet, if the text has determined it.
    eth: Option<bool>,
}

/// Splits `a(b),c(d(e))` into (name, body) pairs; a body may contain parentheses.
fn attributes(text: &str) -> Result<Vec<(&str, &str)>, TextError> {
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches([',', ' ', '\t', '\n']);
    while !rest.is_empty() {
        let Some(open) = rest.find('(') else { return err(format!("{rest}: expected name(...)")) };
        let Some(length) = closing(&rest[open..]) else {
            return err(format!("{rest}: parenthesis without end"));
        };
        out.push((rest[..open].trim(), &rest[open + 1..open + length]));
        rest = rest[open + length + 1..].trim_start_matches([',', ' ', '\t', '\n']);
    }
    Ok(out)
}

/// The offset of the parenthesis that closes the one `text` starts with.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 && !quoted {
            return Some(i);
        }
    }
    None
}

impl Parser<'_> {
    fn list(&mut self, text: &str) -> Result<(), TextError> {
        for (name, body) in attributes(text)? {
            if name == "encap" {
                self.depth += 1;
                if self.depth > 2 {
                    return err("encap: more than two tags");
                }
                self.list(body)?;
                self.depth -= 1;
            } else {
                self.attribute(name, body).map_err(|e| TextError(format!("{name}: {e}")))?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) {
        if self.mask.u32(at::PACKET_TYPE) == 0 {
            let bare = self.eth == Some(false);
            let kind = if bare { 1 << 16 | u32::from(self.key.u16(at::ETH_TYPE)) } else { 0 };
            self.key.set_u32(at::PACKET_TYPE, kind);
            self.mask.set_u32(at::PACKET_TYPE, !0);
        }
        let bare = self.key.u32(at::PACKET_TYPE) >> 16 == 1;
        if bare && self.key.u8(at::FLAGS) & flag::TUNNEL != 0 {
            self.key.set_u8(at::FLAGS, self.key.u8(at::FLAGS) | flag::BARE);
            self.mask.set_u8(at::FLAGS, self.mask.u8(at::FLAGS) | flag::BARE);
        }
        if self.key.u32(at::PACKET_TYPE) == 0 && self.mask.u16(at::ETH_TYPE) == 0 {
            self.put(at::ETH_TYPE, 2, NO_ETH_TYPE.into(), 0xffff);
        }
    }

    fn attribute(&mut self, name: &str, body: &str) -> Result<(), TextError> {
        let field = |f: Field| (f.offset(), f.bytes());
        let (at, bytes) = match name {
            "skb_priority" => (at::PRIORITY, 4),
            "skb_mark" => field(Field::PktMark),
            "ct_zone" => field(Field::CtZone),
            "ct_mark" => field(Field::CtMark),
            "ct_label" => field(Field::CtLabel),
            "recirc_id" => (at::RECIRC, 4),
            "dp_hash" => (at::DP_HASH, 4),
            "eth_type" => return self.eth_type(body),
            "vlan" => return self.vlan(body),
            "in_port" => return self.in_port(body),
            "ct_state" => return self.flags(Field::CtState, body, CT_STATE),
            "tcp_flags" => return self.flags(Field::TcpFlags, body, TCP_FLAGS),
            _ => return self.parts(name, body),
        };
        self.value(at, bytes, Form::Number, body)
    }

    fn put(&mut self, at: usize, bytes: usize, value: u128, mask: u128) {
        for i in 0..bytes {
            let down = 8 * (bytes - 1 - i);
            self.key.set_u8(at + i, (value >> down) as u8);
            self.mask.set_u8(at + i, (mask >> down) as u8);
        }
    }

    fn value(&mut self, at: usize, n: usize, form: Form, text: &str) -> Result<(), TextError> {
        let full = if n == 16 { !0 } else { (1 << (8 * n)) - 1 };
        let (value, mask) = match text.split_once('/') {
            Some((v, m)) => (v, Some(m)),
            None => (text, None),
        };
        let one = |t: &str| match form {
            Form::Number => number_up_to(t, full),
            Form::Ethernet => parse_ethernet(t),
            Form::Ip => parse_ip(t, 8 * n),
        };
        let mask = match (mask, form) {
            (None, _) => full,
            (Some(m), Form::Ip) => parse_ip_mask(m, 8 * n)?,
            (Some(m), _) => one(m)?,
        };
        self.put(at, n, one(value)?, mask);
        Ok(())
    }

    fn flags(&mut self, f: Field, text: &str, names: &[(u32, &str)]) -> Result<(), TextError> {
        let (value, mask) = parse_flags(text, names, f.full())?;
        f.set(&mut self.key, value);
        f.set(&mut self.mask, mask);
        Ok(())
    }

    fn eth_type(&mut self, text: &str) -> Result<(), TextError> {
        let tag = text.starts_with("0x8100") || text.starts_with("0x88a8");
        if tag && self.tags < 2 {
            let bit = [flag::VLAN_88A8, flag::VLAN1_88A8][self.tags];
            let flags = self.key.u8(at::FLAGS);
            let set = if text.starts_with("0x88a8") { bit } else { 0 };
            self.key.set_u8(at::FLAGS, flags & !bit | set);
            return Ok(());
        }
        self.eth.get_or_insert(self.tags > 0);
        self.value(at::ETH_TYPE, 2, Form::Number, text)
    }

    fn vlan(&mut self, body: &str) -> Result<(), TextError> {
        let Some(at) = [at::VLAN, at::VLAN1].get(self.tags).copied() else {
            return err("more than two tags");
        };
        self.tags += 1;
        self.eth = Some(true);
        let (mut tci, mut mask) = (0x1000u16, 0x1000u16);
        for (name, text) in pairs(body)? {
            let (shift, full) = match name {
                "vid" => (0, 0xfff),
                "pcp" => (13, 7),
                "cfi" => (12, 1),
                "tci" => (0, 0xffff),
                _ => return err(format!("{name}: unknown")),
            };
            let (v, m) = text.split_once('/').map_or((text, None), |(v, m)| (v, Some(m)));
            let v = number_up_to(v, full)? as u16;
            let m = m.map_or(Ok(full), |m| number_up_to(m, full))? as u16;
            let field = (full as u16) << shift;
            tci = tci & !field | v << shift;
            mask = mask & !field | m << shift;
        }
        self.put(at, 2, tci.into(), mask.into());
        Ok(())
    }

    fn in_port(&mut self, text: &str) -> Result<(), TextError> {
        let bare = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
        if bare.is_none() && text.starts_with(|c: char| c.is_ascii_digit()) {
            return self.value(at::IN_PORT, 2, Form::Number, text);
        }
        let name = bare.unwrap_or(text);
        let found = (self.ports)(name);
        let port = found.ok_or_else(|| TextError(format!("{name}: no such datapath port")))?;
        self.put(at::IN_PORT, 2, port.into(), 0xffff);
        Ok(())
    }

    /// An attribute made of `name=value` pairs.
    fn parts(&mut self, attribute: &str, body: &str) -> Result<(), TextError> {
        match attribute {
            "packet_type" => return self.packet_type(body),
            "tunnel" => return self.tunnel(body),
            "eth" => self.eth = Some(true),
            "ipv4" => self.default_eth_type(ETH_IPV4),
            "ipv6" => self.default_eth_type(ETH_IPV6),
            "tcp" => self.default_proto(6),
            "udp" => self.default_proto(17),
            "sctp" => self.default_proto(132),
            _ => {}
        }
        for (name, text) in pairs(body)? {
            match (attribute, name) {
                (_, "frag") => self.frag(text)?,
                ("mpls", _) => self.mpls(name, text)?,
                ("nsh", _) => self.nsh(name, text)?,
                ("ipv6", "label") => self.narrow(Field::Ipv6Label, text, false)?,
                ("icmp" | "icmpv6", "type") => self.narrow(Field::Icmpv4Type, text, false)?,
                ("icmp" | "icmpv6", "code") => self.narrow(Field::Icmpv4Code, text, false)?,
                ("arp", "op") => self.narrow(Field::ArpOp, text, false)?,
                _ => {
                    let Some((field, form)) = place(attribute, name) else {
                        return err(format!("{name}: unknown"));
                    };
                    self.value(field.offset(), field.bytes(), form, text)?;
                }
            }
        }
        Ok(())
    }

    /// Sets the Ethertype that an attribute implies, unless it is set.
    fn default_eth_type(&mut self, eth_type: u16) {
        if self.mask.u16(at::ETH_TYPE) == 0 {
            self.put(at::ETH_TYPE, 2, eth_type.into(), 0xffff);
        }
    }

    /// Sets the protocol that an attribute with ports implies, unless it is set.
    fn default_proto(&mut self, proto: u8) {
        if self.mask.u8(at::PROTO) == 0 && self.key.u8(at::PROTO) == 0 {
            self.put(at::PROTO, 1, proto.into(), 0xff);
        }
    }

    fn packet_type(&mut self, body: &str) -> Result<(), TextError> {
        let mut value = 0;
        for (name, text) in pairs(body)? {
            let shift = match name {
                "ns" => 16,
                "id" => 0,
                _ => return err(format!("{name}: unknown")),
            };
            value |= number_up_to(text, 0xffff)? << shift;
        }
        self.put(at::PACKET_TYPE, 4, value, 0xffff_ffff);
        Ok(())
    }

    /// A field narrower than its container, with a decimal or (`bare_hex`) hexadecimal mask.
    fn narrow(&mut self, field: Field, text: &str, bare_hex: bool) -> Result<(), TextError> {
        let (v, m) = text.split_once('/').map_or((text, None), |(v, m)| (v, Some(m)));
        let value = number_up_to(v, field.full())?;
        let mask = match m {
            None => field.full(),
            Some(m) if bare_hex => number_up_to(&hex_prefix(m), field.full())?,
            Some(m) => number_up_to(m, field.full())?,
        };
        field.set(&mut self.key, value);
        field.set(&mut self.mask, mask);
        Ok(())
    }

    fn mpls(&mut self, name: &str, text: &str) -> Result<(), TextError> {
        let field = match name {
            "label" => Field::MplsLabel,
            "tc" => Field::MplsTc,
            "ttl" => Field::MplsTtl,
            "bos" => Field::MplsBos,
            _ => return err(format!("{name}: unknown")),
        };
        self.narrow(field, text, true)
    }

    fn nsh(&mut self, name: &str, text: &str) -> Result<(), TextError> {
        let field = NSH.iter().find(|f| f.name().strip_prefix("nsh_") == Some(name));
        let Some(field) = field else { return err(format!("{name}: unknown")) };
        self.narrow(*field, text, false)
    }

    fn frag(&mut self, text: &str) -> Result<(), TextError> {
        let (name, mask) = text.split_once('/').map_or((text, None), |(n, m)| (n, Some(m)));
        let value = match name {
            "no" => 0,
            "first" => frag::ANY,
            "later" => frag::ANY | frag::LATER,
            _ => return err(format!("{text}: not one of no, first, later")),
        };
        let mask = mask.map_or(Ok(3), |m| number_up_to(m, 0xff))? & 3;
        Field::IpFrag.set(&mut self.key, value.into());
        Field::IpFrag.set(&mut self.mask, mask);
        Ok(())
    }

    fn tunnel(&mut self, body: &str) -> Result<(), TextError> {
        self.put(at::FLAGS, 1, u128::from(self.key.u8(at::FLAGS) | flag::TUNNEL), 0);
        self.mask.set_u8(at::FLAGS, flag::TUNNEL);
        for item in split(body) {
            if let Some(flags) = inner(item, "flags(") {
                // A list without names means no flags.
                let flags = if flags.is_empty() { "0" } else { flags };
                self.flags(Field::TunFlags, flags, TUN_FLAGS)?;
            } else if let Some(digest) = inner(item, "geneve(options=") {
                self.value(at::TUN_OPTIONS, 8, Form::Number, digest)?;
            } else if let Some(options) = inner(item, "geneve(") {
                self.geneve_options(options)?;
            } else if let Some(gbp) = inner(item, "vxlan(gbp(") {
                let fields = [("id", Field::TunGbpId), ("flags", Field::TunGbpFlags)];
                self.tunnel_fields(gbp.trim_end_matches(')'), &fields)?;
            } else if let Some(erspan) = inner(item, "erspan(") {
                let fields = [
                    ("ver", Field::TunErspanVer),
                    ("idx", Field::TunErspanIdx),
                    ("dir", Field::TunErspanDir),
                    ("hwid", Field::TunErspanHwid),
                ];
                self.tunnel_fields(erspan, &fields)?;
            } else if let Some(gtpu) = inner(item, "gtpu(") {
                let fields = [("flags", Field::TunGtpuFlags), ("msgtype", Field::TunGtpuMsgtype)];
                self.tunnel_fields(gtpu, &fields)?;
            } else {
                self.tunnel_value(item)?;
            }
        }
        Ok(())
    }

    /// `name=value/mask` of fields, by the names that they have here.
    fn tunnel_fields(&mut self, body: &str, fields: &[(&str, Field)]) -> Result<(), TextError> {
        for (name, text) in pairs(body)? {
            let Some((_, field)) = fields.iter().find(|(n, _)| *n == name) else {
                return err(format!("{name}: unknown"));
            };
            self.narrow(*field, text, false)?;
        }
        Ok(())
    }

    /// `{class=0xffff,type=0x80,len=4,0xa/0xff}{...}`.
    fn geneve_options(&mut self, text: &str) -> Result<(), TextError> {
        for option in text.split('{').filter_map(|o| o.split('}').next()).filter(|o| !o.is_empty())
        {
            let (mut header, mut value) = ([0; 4], vec![]);
            for part in split(option) {
                let first = |t: &str| t.split('/').next().unwrap_or_default().to_string();
                match part.split_once('=') {
                    Some(("class", v)) => {
                        let class = number_up_to(&first(v), 0xffff)? as u16;
                        header[..2].copy_from_slice(&class.to_be_bytes());
                    }
                    Some(("type", v)) => header[2] = number_up_to(&first(v), 0xff)? as u8,
                    Some(("len", v)) => header[3] = number_up_to(&first(v), 124)? as u8 / 4,
                    Some(_) => return err(format!("{part}: unknown")),
                    None => value = long_number(&first(part))?,
                }
            }
            let value = TunMetadata::exact(0, &value).resized(usize::from(header[3]) * 4).value;
            self.options.extend(header);
            self.options.extend(value);
        }
        if self.options.len() > 252 {
            return err("geneve: too many options");
        }
        if !self.options.is_empty() {
            self.key.set_u8(at::FLAGS, self.key.u8(at::FLAGS) | flag::TUNNEL_OPTIONS);
        }
        Ok(())
    }

    fn tunnel_value(&mut self, item: &str) -> Result<(), TextError> {
        let Some((name, text)) = item.split_once('=') else {
            return err(format!("{item}: expected name=value"));
        };
        let (at, bytes, form) = match name {
            "tun_id" => (at::TUN_ID, 4, Form::Number),
            "src" => (at::TUN_SRC, 4, Form::Ip),
            "dst" => (at::TUN_DST, 4, Form::Ip),
            "ipv6_src" => (at::TUN_IPV6_SRC, 16, Form::Ip),
            "ipv6_dst" => (at::TUN_IPV6_DST, 16, Form::Ip),
            "tos" => (at::TUN_TOS, 1, Form::Number),
            "ttl" => (at::TUN_TTL, 1, Form::Number),
            "tp_src" => (at::TUN_TP_SRC, 2, Form::Number),
            "tp_dst" => (at::TUN_TP_DST, 2, Form::Number),
            _ => return err(format!("{name}: unknown")),
        };
        self.value(at, bytes, form, text)
    }
}

fn hex_prefix(text: &str) -> String {
    if text.starts_with("0x") { text.into() } else { format!("0x{text}") }
}

/// The body of `name(...)` if the item has that name (given with its parenthesis).
fn inner<'a>(item: &'a str, name: &str) -> Option<&'a str> {
    item.strip_prefix(name)?.strip_suffix(')')
}

/// Splits at commas outside parentheses.
fn split(body: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = body.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|p| !p.is_empty())
}

fn pairs(body: &str) -> Result<Vec<(&str, &str)>, TextError> {
    split(body)
        .map(|p| p.split_once('=').ok_or_else(|| TextError(format!("{p}: expected name=value"))))
        .collect()
}

/// The field of `name` in `attribute`, if it fills its container.
fn place(attribute: &str, name: &str) -> Option<(Field, Form)> {
    use Field::*;
    Some(match (attribute, name) {
        ("eth", "src") => (EthSrc, Form::Ethernet),
        ("eth", "dst") => (EthDst, Form::Ethernet),
        ("ipv4", "src") => (Ipv4Src, Form::Ip),
        ("ipv4", "dst") => (Ipv4Dst, Form::Ip),
        ("ipv6", "src") => (Ipv6Src, Form::Ip),
        ("ipv6", "dst") => (Ipv6Dst, Form::Ip),
        ("ipv4" | "ipv6", "proto") => (IpProto, Form::Number),
        ("ipv4", "tos") | ("ipv6", "tclass") => (IpTos, Form::Number),
        ("ipv4", "ttl") | ("ipv6", "hlimit") => (IpTtl, Form::Number),
        ("arp", "sip") => (ArpSpa, Form::Ip),
        ("arp", "tip") => (ArpTpa, Form::Ip),
        ("arp", "sha") => (ArpSha, Form::Ethernet),
        ("arp", "tha") => (ArpTha, Form::Ethernet),
        ("tcp" | "udp" | "sctp", "src") => (TcpSrc, Form::Number),
        ("tcp" | "udp" | "sctp", "dst") => (TcpDst, Form::Number),
        ("nd", "target") => (NdTarget, Form::Ip),
        ("nd", "sll") => (NdSll, Form::Ethernet),
        ("nd", "tll") => (NdTll, Form::Ethernet),
        ("nd_ext", "nd_reserved") => (NdReserved, Form::Number),
        ("nd_ext", "nd_options_type") => (NdOptionsType, Form::Number),
        ("ct_tuple4", "src") => (CtNwSrc, Form::Ip),
        ("ct_tuple4", "dst") => (CtNwDst, Form::Ip),
        ("ct_tuple6", "src") => (CtIpv6Src, Form::Ip),
        ("ct_tuple6", "dst") => (CtIpv6Dst, Form::Ip),
        ("ct_tuple4" | "ct_tuple6", "proto") => (CtNwProto, Form::Number),
        ("ct_tuple4" | "ct_tuple6", "tp_src") => (CtTpSrc, Form::Number),
        ("ct_tuple4" | "ct_tuple6", "tp_dst") => (CtTpDst, Form::Number),
        _ => return None,
    })
}
