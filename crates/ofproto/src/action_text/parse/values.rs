//! Actions whose argument is a number, an address or a kind of header.

use super::error::{Parsed, err};
use super::words::{Word, Words};
use flow::PortNumber;
use openflow::{Action, Header, NshProperty, OfPort, packet_type};

/// A number of at most `max`.
pub(super) fn number<T: TryFrom<u128>>(text: &str, what: &str, max: u128) -> Parsed<T> {
    let value = flow::number(text).ok().filter(|v| *v <= max).and_then(|v| T::try_from(v).ok());
    value.map_or_else(|| err(format!("invalid {what} \"{text}\"")), Ok)
}

/// A port, for whatever it is.
pub(super) fn port_named(text: &str, ports: PortNumber, what: &str) -> Parsed<OfPort> {
    flow::parse_port(text, ports).or_else(|_| err(format!("{text}: {what}")))
}

/// Any number of the type.
fn whole<T: TryFrom<u128>>(text: &str, what: &str) -> Parsed<T> {
    number(text, what, u128::MAX)
}

/// An action of this kind; None: it is another.
pub(super) fn action(name: &str, w: &Word) -> Parsed<Option<Action>> {
    use Action as A;
    let v = w.value;
    let limited = |what: &str, max: u128| -> Parsed<u32> {
        number(v, what, max).or_else(|_| err(format!("{v}: not a valid {what}")))
    };
    Ok(Some(match name {
        "mod_vlan_vid" | "set_vlan_vid" => A::SetVlanVid {
            vid: limited("VLAN VID", 0xfff)? as u16,
            push_if_absent: name.starts_with("mod"),
        },
        "mod_vlan_pcp" | "set_vlan_pcp" => A::SetVlanPcp {
            pcp: limited("VLAN PCP", 7)? as u8,
            push_if_absent: name.starts_with("mod"),
        },
        "strip_vlan" | "pop_vlan" => A::StripVlan { pop: name == "pop_vlan" },
        "push_vlan" => match limited("VLAN ethertype", 0xffff)? {
            ethertype @ (0x8100 | 0x88a8) => A::PushVlan { ethertype: ethertype as u16 },
            _ => return err(format!("{v}: not a valid VLAN ethertype")),
        },
        "push_mpls" => match limited("MPLS ethertype", 0xffff)? {
            ethertype @ (0x8847 | 0x8848) => A::PushMpls { ethertype: ethertype as u16 },
            _ => return err(format!("{v}: not a valid MPLS ethertype")),
        },
        "pop_mpls" => A::PopMpls { ethertype: whole(v, "pop_mpls")? },
        "set_mpls_label" => A::SetMplsLabel(limited("MPLS label", 0xf_ffff)?),
        "set_mpls_tc" => A::SetMplsTc(limited("MPLS TC", 7)? as u8),
        "set_mpls_ttl" => A::SetMplsTtl(limited("MPLS TTL", 0xff)? as u8),
        "dec_mpls_ttl" => A::DecMplsTtl,
        "dec_nsh_ttl" => A::DecNshTtl,
        "mod_dl_src" => A::SetEthSrc(ethernet(v)?),
        "mod_dl_dst" => A::SetEthDst(ethernet(v)?),
        "mod_nw_src" => A::SetIpSrc(ipv4(v)?),
        "mod_nw_dst" => A::SetIpDst(ipv4(v)?),
        "mod_nw_tos" => match limited("TOS", 0xff)? {
            tos if tos & 3 == 0 => A::SetIpDscp(tos as u8),
            _ => return err(format!("{v}: not a valid TOS")),
        },
        "mod_nw_ecn" => A::SetIpEcn(limited("ECN", 3)? as u8),
        "mod_nw_ttl" => A::SetIpTtl(whole(v, "TTL")?),
        "mod_tp_src" => A::SetL4Src(whole(v, "source port")?),
        "mod_tp_dst" => A::SetL4Dst(whole(v, "destination port")?),
        "dec_ttl" => A::DecTtl { ids: ids(v)? },
        "set_tunnel" => {
            let id = number(v, "tunnel id", 0xffff_ffff)?;
            A::SetTunnel { id, wide: false }
        }
        "set_tunnel64" => {
            let id = number(v, "tunnel id", u64::MAX.into())?;
            A::SetTunnel { id, wide: true }
        }
        "set_queue" => A::SetQueue(whole(v, "queue")?),
        "pop_queue" => A::PopQueue,
        "group" => A::Group(whole(v, "group")?),
        "meter" => A::Meter(whole(v, "meter")?),
        _ => return Ok(None),
    }))
}

/// Controllers that get expired packets.
fn ids(text: &str) -> Parsed<Option<Vec<u16>>> {
    let ids: Parsed<Vec<u16>> = Words::of(text).map(|w| whole(w?.name, "controller id")).collect();
    Ok(Some(ids?).filter(|ids| !ids.is_empty()))
}

fn ethernet(text: &str) -> Parsed<[u8; 6]> {
    let value = flow::parse_value(flow::Field::EthSrc, text, &|_| None);
    let Ok((value, u64_mask)) = value else { return err(format!("invalid mac address {text}")) };
    if u64_mask != flow::Field::EthSrc.full() {
        return err(format!("invalid mac address {text}"));
    }
    let b = value.to_be_bytes();
    Ok([b[10], b[11], b[12], b[13], b[14], b[15]])
}

fn ipv4(text: &str) -> Parsed<[u8; 4]> {
    let address: Option<std::net::Ipv4Addr> = text.parse().ok();
    address.map_or_else(
        || err(format!("{text}: could not convert to IP address")),
        |address| Ok(address.octets()),
    )
}

/// Pairs of hexadecimal digits, perhaps with dots between them.
pub(super) fn bytes(text: &str, what: &str) -> Parsed<Vec<u8>> {
    let mut out = Vec::new();
    for part in text.split('.').filter(|part| !part.is_empty()) {
        if part.len() % 2 != 0 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return err(format!("bad hex digit in `{what}' argument {text}"));
        }
        let byte = |i: usize| u8::from_str_radix(&part[2 * i..2 * i + 2], 16).unwrap_or(0);
        out.extend((0..part.len() / 2).map(byte));
    }
    Ok(out)
}

/// `encap(mpls)`, `encap(nsh(md_type=2,tlv(0x1000,10,0x12345678)))`.
pub(super) fn encap(text: &str) -> Parsed<Action> {
    let Some(word) = Words::of(text).next() else { return err("Missing encap hdr: ") };
    let word = word?;
    if word.name == "nsh" {
        let properties: Parsed<Vec<_>> = Words::of(word.value).map(|w| nsh_property(&w?)).collect();
        let header = Header::nsh(properties?);
        return header.map_or_else(
            |_| err(format!("a network service header has no room for {text}")),
            |h| Ok(Action::Encap(h)),
        );
    }
    let all = [Header::Ethernet, Header::Mpls, Header::MplsMulticast];
    let found = all.into_iter().find(|h| h.name() == text);
    found.map_or_else(|| err(format!("Encap hdr not supported: {text}")), |h| Ok(Action::Encap(h)))
}

fn nsh_property(w: &Word) -> Parsed<NshProperty> {
    if !["md_type", "tlv"].contains(&w.name) {
        return err(format!("Invalid property: {}", w.name));
    }
    if w.value.is_empty() {
        return err("Value missing for encap property");
    }
    if w.name == "md_type" {
        return match whole::<u8>(w.value, "md_type")? {
            kind @ 1..=2 => Ok(NshProperty::MdType(kind)),
            _ => err("invalid md_type"),
        };
    }
    tlv(w.value).map_or_else(|| err(format!("Invalid NSH TLV header: {}", w.value)), Ok)
}

/// Class, type and value, of which the first and the last are hexadecimal.
fn tlv(text: &str) -> Option<NshProperty> {
    let mut parts = text.splitn(3, ',');
    let class = u16::from_str_radix(parts.next()?.strip_prefix("0x")?, 16).ok()?;
    let kind = parts.next()?.parse().ok()?;
    let value = bytes(parts.next()?.strip_prefix("0x")?, "tlv").ok()?;
    Some(NshProperty::Tlv { class, kind, value })
}

/// `decap(packet_type(ns=1,type=0x800))`; without argument what the header says.
pub(super) fn decap(text: &str) -> Parsed<Action> {
    let Some(word) = Words::of(text).next() else { return Ok(Action::Decap(None)) };
    let word = word?;
    if word.name != "packet_type" {
        return err(format!("Invalid decap argument: {text}"));
    }
    let (mut namespace, mut kind) = (None, None);
    for part in Words::of(word.value) {
        let part = part?;
        match part.name {
            "ns" => namespace = Some(whole::<u16>(part.value, "namespace")?),
            "type" => kind = Some(whole::<u16>(part.value, "packet type")?),
            name => return err(format!("Invalid decap packet_type argument: {name}")),
        }
    }
    let (Some(namespace), Some(kind)) = (namespace, kind) else {
        return err(format!("decap packet_type needs ns and type: {text}"));
    };
    let inner = u32::from(namespace) << 16 | u32::from(kind);
    Ok(Action::Decap(Some(inner).filter(|kind| *kind != packet_type::NEXT_HEADER)))
}
