//! Joined rules: one rule removes an outer VXLAN header and does what the inner packet's megaflow
//! says. The host looks up such packets twice.
//!
//! The host drops packets with a bad outer checksum, or with reserved bits of the VXLAN header set.
//! An adapter checks checksums itself, and ignores these bits, as RFC 7348 (section 5) tells
//! receivers to.

use super::plan::{Flow, Plan, actions, items};
use crate::Reason;
use crate::types::FlowId;
use action::{Op, TunnelKind};
use flow::{Key, Mask, PortNo, at, flag};
use port::{Edit, Fate, ForwardRule, HEADER_BYTES_MAX, Header, Item};

/// The UDP port on which adapters recognize VXLAN.
const UDP_PORT: u16 = 4789;
/// VXLAN flags: only "the VNI is valid".
const VALID: u8 = 8;
/// The ECN bits (RFC 3168) of a TOS byte.
const ECN: u8 = 3;
/// Bit of `tun_flags`: there is a key. All packets of VXLAN have one.
const KEY: u16 = 4;

/// A megaflow that removes its packets' outer header.
#[derive(Clone, Debug)]
pub struct Outer {
    /// Identity of the megaflow.
    pub id: FlowId,
    /// Values.
    pub key: Key,
    /// The bits that are matched.
    pub mask: Mask,
}

impl Outer {
    /// A megaflow that removes a VXLAN header, and the datapath port on which its inner packets
    /// come in. None: it does something else, or rules do not know the kind of its tunnel.
    pub fn new(id: FlowId, key: &Key, mask: &Mask, ops: &[Op]) -> Option<(PortNo, Outer)> {
        match ops {
            [Op::TunnelPop { port, kind: TunnelKind::Vxlan, .. }] => {
                Some((*port, Outer { id, key: *key, mask: *mask }))
            }
            _ => None,
        }
    }
}

/// The rule for packets that are of `outer` first and of `inner` then, or why there is none. `to`:
/// as for [`super::plan()`].
pub fn join(
    outer: &Outer,
    inner: &Flow<'_>,
    to: &dyn Fn(PortNo) -> Result<u16, Reason>,
) -> Result<Plan, Reason> {
    if inner.key.u8(at::FLAGS) & flag::BARE != 0 {
        return Err(no("packet_type"));
    }
    let mut all = items(&outer.key, &outer.mask)?;
    let port = UDP_PORT.to_be_bytes();
    let [.., l3, udp] = &mut all[..] else { return Err(no("tun_tp_dst")) };
    if udp.header != Header::Udp || udp.mask[2..4] != [0xff; 2] || udp.value[2..4] != port {
        return Err(no("tun_tp_dst"));
    }
    let vxlan = outer_fields(l3, udp, inner)?;
    all.push(vxlan);
    let outer_bytes = all.iter().map(|i| i.header.len() as u16).sum();
    let (key, mask) = (without_tunnel(inner.key), without_tunnel(inner.mask));
    all.extend(items(&key, &mask)?);
    let (mut edits, fate) = actions(inner, to)?;
    if fate != Fate::Drop {
        edits.insert(0, Edit::VxlanDecap);
    }
    let rule = ForwardRule { items: all, edits, fate };
    Ok(Plan { rule, outer: Some(outer.id), outer_bytes })
}

fn no(field: &str) -> Reason {
    Reason::Match(field.into())
}

/// The key without the fields of its outer header.
fn without_tunnel(key: &Key) -> Key {
    let mut key = *key;
    key.set_u8(at::FLAGS, key.u8(at::FLAGS) & !flag::TUNNEL_ALL);
    key.bytes_mut()[at::TUN_ID..at::PAYLOAD].fill(0);
    key.bytes_mut()[at::TUN_DST..at::PKT_MARK].fill(0);
    key.set_u64(at::TUN_OPTIONS, 0);
    key
}

/// Adds what the inner megaflow matches on in the outer header; returns the VXLAN header.
fn outer_fields(l3: &mut Item, udp: &mut Item, inner: &Flow<'_>) -> Result<Item, Reason> {
    let said = |at: usize, n: usize| {
        let bytes = at..at + n;
        (&inner.key.bytes()[bytes.clone()], &inner.mask.bytes()[bytes])
    };
    let narrow = |item: &mut Item, to: usize, at: usize, n: usize, name: &str| {
        let (value, mask) = said(at, n);
        more(item, to, value, mask).then_some(()).ok_or_else(|| no(name))
    };
    // Fields that packets do not have are 0 in their keys.
    let zero = |at: usize, n: usize, name: &str| {
        let (value, mask) = said(at, n);
        let differs = value.iter().zip(mask).any(|(v, m)| v & m != 0);
        if differs { Err(no(name)) } else { Ok(()) }
    };
    if l3.header == Header::Ipv4 {
        narrow(l3, 12, at::TUN_SRC, 4, "tun_src")?;
        narrow(l3, 16, at::TUN_DST, 4, "tun_dst")?;
        zero(at::TUN_IPV6_SRC, 32, "tun_ipv6_src")?;
        narrow(l3, 1, at::TUN_TOS, 1, "tun_tos")?;
        narrow(l3, 8, at::TUN_TTL, 1, "tun_ttl")?;
    } else {
        zero(at::TUN_SRC, 4, "tun_src")?;
        zero(at::TUN_DST, 4, "tun_dst")?;
        narrow(l3, 8, at::TUN_IPV6_SRC, 32, "tun_ipv6_src")?;
        let (value, mask) = (inner.key.u8(at::TUN_TOS), inner.mask.u8(at::TUN_TOS));
        traffic_class(l3, value, mask)?;
        narrow(l3, 7, at::TUN_TTL, 1, "tun_ttl")?;
    }
    narrow(udp, 0, at::TUN_TP_SRC, 4, "tun_tp_src")?;
    zero(at::TUN_GBP_ID, 3, "tun_gbp_id")?;
    zero(at::TUN_OPTIONS, 8, "tun_metadata")?;
    let flags = inner.mask.u16(at::TUN_FLAGS);
    if flags & !KEY != 0 || flags & !inner.key.u16(at::TUN_FLAGS) != 0 {
        return Err(no("tun_flags"));
    }
    congestion(l3, inner)?;
    let mut vxlan =
        Item { header: Header::Vxlan, value: [0; HEADER_BYTES_MAX], mask: [0; HEADER_BYTES_MAX] };
    (vxlan.value[0], vxlan.mask[0]) = (VALID, 0xff);
    zero(at::TUN_ID, 1, "tun_id")?;
    narrow(&mut vxlan, 4, at::TUN_ID + 1, 3, "tun_id")?;
    Ok(vxlan)
}

/// Adds bits to what a header must have. False: they contradict bits that it has already.
fn more(item: &mut Item, at: usize, value: &[u8], mask: &[u8]) -> bool {
    let mut fits = true;
    for (i, (v, m)) in value.iter().zip(mask).enumerate() {
        fits &= (item.value[at + i] ^ v) & item.mask[at + i] & m == 0;
        item.mask[at + i] |= m;
        item.value[at + i] |= v & m;
    }
    fits
}

/// Adds bits of IPv6's traffic class, or of IPv4's TOS.
fn traffic_class(l3: &mut Item, value: u8, mask: u8) -> Result<(), Reason> {
    let fits = match l3.header {
        Header::Ipv4 => more(l3, 1, &[value], &[mask]),
        _ => {
            let spread = |b: u8| (u16::from(b) << 4).to_be_bytes();
            more(l3, 0, &spread(value), &spread(mask))
        }
    };
    fits.then_some(()).ok_or_else(|| no("tun_tos"))
}

/// Adds the match on congestion in the outer header: packets with and without it have different
/// megaflows, if they are IP inside.
fn congestion(l3: &mut Item, inner: &Flow<'_>) -> Result<(), Reason> {
    if inner.mask.u8(at::FLAGS) & flag::TUNNEL_CE == 0 {
        return Ok(());
    }
    let (known, class) = match l3.header {
        Header::Ipv4 => (l3.mask[1], l3.value[1]),
        _ => (l3.mask[1] >> 4, l3.value[1] >> 4),
    };
    let reported = inner.key.u8(at::FLAGS) & flag::TUNNEL_CE != 0;
    if known & ECN == ECN {
        let fits = (class & ECN == ECN) == reported;
        return if fits { Ok(()) } else { Err(no("tun_tos")) };
    }
    // One mask covers two of the three codepoints without congestion: "not capable" and ECT(0).
    // Packets with ECT(1) are left to the host.
    if reported { traffic_class(l3, ECN, ECN) } else { traffic_class(l3, 0, 1) }
}
