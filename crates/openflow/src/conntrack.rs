//! Nicira's actions of connection tracking: `ct` and the `nat` in it.
//!
//! Source: ovs-actions(7), and OVS's `nicira-ext.h` for the numbers.

use crate::action::Subfield;
use crate::action_types::{NICIRA, nxast};
use crate::actions::{ListOf, decode_items, only_actions_in};
use crate::fields::{self, Bytes, zeros};
use crate::fields_out::{Nx, Put};
use crate::{Action, OfError, Version};
use std::net::IpAddr;

/// `NX_CT_F_*`: keep the connection if it is new.
pub const CT_COMMIT: u16 = 1;
/// The connection is made even where the packet answers one that is known.
pub const CT_FORCE: u16 = 2;
/// `NX_NAT_F_*`: which address is translated.
pub const NAT_SRC: u16 = 1;
/// The other one.
pub const NAT_DST: u16 = 2;
/// Later connections of a source get the same address (`NX_NAT_F_PERSISTENT`).
pub const NAT_PERSISTENT: u16 = 4;
/// Ports by a hash.
pub const NAT_HASH: u16 = 8;
/// Ports at random.
pub const NAT_RANDOM: u16 = 16;

/// The port of a protocol whose control connections announce others, as `alg` has it.
pub const ALG_FTP: u16 = 21;
/// The `alg` of TFTP: its port.
pub const ALG_TFTP: u16 = 69;

/// No table: the packet is tracked and not looked up again.
const NO_TABLE: u8 = 0xff;
/// A zone has so many bits.
const ZONE_BITS: u16 = 16;
/// Bytes of `ct` before its actions, and of `nat` before its range.
const CT_HEAD_BYTES: usize = 24;
const NAT_HEAD_BYTES: usize = 16;

/// The `ct` action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conntrack {
    /// [`CT_COMMIT`], [`CT_FORCE`], and what else came.
    pub flags: u16,
    /// The zone: connections that the packet may belong to.
    pub zone: Zone,
    /// The table in which a tracked copy of the packet is looked up.
    pub table: Option<u8>,
    /// [`ALG_FTP`], [`ALG_TFTP`], 0: none.
    pub alg: u16,
    /// A [`Action::Nat`] and what is done to the connection's mark and label.
    pub actions: Vec<Action>,
}

impl Conntrack {
    /// True if a new connection is kept.
    pub fn commits(&self) -> bool {
        self.flags & CT_COMMIT != 0
    }
}

/// Where a zone comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Zone {
    /// The flow names the zone.
    Number(u16),
    /// The packet names the zone: 16 bits of it.
    Field(Subfield),
}

/// The `nat` action. Empty: as the packet's connection has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nat {
    /// [`NAT_SRC`] and so on.
    pub flags: u16,
    /// First address.
    pub first: Option<IpAddr>,
    /// Last address, where it was given.
    pub last: Option<IpAddr>,
    /// First port; 0: none.
    pub first_port: u16,
    /// Last port; 0: none was given.
    pub last_port: u16,
}

/// Reads a `ct` of at least [`CT_HEAD_BYTES`]. Errors: `ActBadArgument` for force, a mark, a label
/// or a translation without commit, `ActBadSetLen` for a zone that has not 16 bits, and those of
/// the actions in it.
pub(crate) fn decode_ct(version: Version, b: Bytes, depth: u8) -> Result<Action, OfError> {
    let flags = b.u16(10);
    if flags & CT_FORCE != 0 && flags & CT_COMMIT == 0 {
        return Err(OfError::ActBadArgument);
    }
    let zone = match b.u32(12) {
        0 => Zone::Number(b.u16(16)),
        _ => Zone::Field(zone_field(b)?),
    };
    let items = decode_items(version, b.from(CT_HEAD_BYTES), depth + 1)?;
    let actions = only_actions_in(items, ListOf::Ct)?;
    let plain = |a: &Action| matches!(a, Action::Nat(n) if n.flags == 0 && n.first.is_none());
    if flags & CT_COMMIT == 0 && !actions.iter().all(plain) {
        return Err(OfError::ActBadArgument);
    }
    let table = Some(b.u8(18)).filter(|t| *t != NO_TABLE);
    Ok(Action::Ct(Box::new(Conntrack { flags, zone, table, alg: b.u16(22), actions })))
}

fn zone_field(b: Bytes) -> Result<Subfield, OfError> {
    let (ofs, bits) = fields::unpack(b.u16(16));
    let s = fields::source(fields::header32(b.array(12))?, ofs, bits)?;
    if s.bits == ZONE_BITS { Ok(s) } else { Err(OfError::ActBadSetLen) }
}

/// Flags of a NAT action: the parts of its range that follow.
mod present {
    pub const IPV4_FIRST: u16 = 1;
    pub const IPV4_LAST: u16 = 2;
    pub const IPV6_FIRST: u16 = 4;
    pub const IPV6_LAST: u16 = 8;
    pub const PORT_FIRST: u16 = 16;
    pub const PORT_LAST: u16 = 32;
}

/// What is left of a range.
struct Range<'a> {
    present: u16,
    rest: &'a [u8],
}

impl Range<'_> {
    /// The next part, if the range has it.
    fn part<const N: usize>(&mut self, flag: u16) -> Result<Option<[u8; N]>, OfError> {
        if self.present & flag == 0 {
            return Ok(None);
        }
        let (part, rest) = self.rest.split_first_chunk().ok_or(OfError::ActBadArgument)?;
        self.rest = rest;
        Ok(Some(*part))
    }
}

/// Reads a `nat`. Errors: `ActBadArgument` for unknown flags, two that exclude each other, and a
/// range that lacks its beginning, begins with 0 or ends before it begins.
pub(crate) fn decode_nat(b: Bytes) -> Result<Action, OfError> {
    let (flags, present) = (b.u16(12), b.u16(14));
    let known = NAT_SRC | NAT_DST | NAT_PERSISTENT | NAT_HASH | NAT_RANDOM;
    let both = |one: u16, other: u16| flags & one != 0 && flags & other != 0;
    let bad = Err(OfError::ActBadArgument);
    if flags & !known != 0 || both(NAT_SRC, NAT_DST) || both(NAT_HASH, NAT_RANDOM) {
        return bad;
    }
    let v4 = present & (present::IPV4_FIRST | present::IPV4_LAST) != 0;
    let v6 = present & (present::IPV6_FIRST | present::IPV6_LAST) != 0;
    let ports = present & (present::PORT_FIRST | present::PORT_LAST) != 0;
    if v4 && v6 || ports && !(v4 || v6) {
        return bad;
    }
    let mut range = Range { present, rest: b.from(NAT_HEAD_BYTES) };
    let (first, last) = match v4 {
        true => (
            range.part::<4>(present::IPV4_FIRST)?.map(IpAddr::from),
            range.part::<4>(present::IPV4_LAST)?.map(IpAddr::from),
        ),
        false => (
            range.part::<16>(present::IPV6_FIRST)?.map(IpAddr::from),
            range.part::<16>(present::IPV6_LAST)?.map(IpAddr::from),
        ),
    };
    if (v4 || v6) && first.is_none_or(|a| a.is_unspecified()) {
        return bad;
    }
    let first_port = range.part::<2>(present::PORT_FIRST)?.map(u16::from_be_bytes);
    let last_port = range.part::<2>(present::PORT_LAST)?.map(u16::from_be_bytes);
    let backwards = last.is_some() && last < first || last_port.is_some() && last_port < first_port;
    if backwards || ports && first_port.is_none_or(|p| p == 0) {
        return bad;
    }
    let (first_port, last_port) = (first_port.unwrap_or(0), last_port.unwrap_or(0));
    Ok(Action::Nat(Box::new(Nat { flags, first, last, first_port, last_port })))
}

/// Reads a `check_pkt_larger`.
pub(crate) fn decode_check_len(b: Bytes) -> Result<Action, OfError> {
    let (oxm, size) = fields::pull_header(b.from(14))?;
    zeros(b.from(14 + size), OfError::RequestMustBeZero)?;
    Ok(Action::CheckPktLarger { len: b.u16(10), dst: fields::target(oxm, b.u16(12), 1)? })
}

/// Writes a `ct`; `actions` writes those in it.
pub(crate) fn encode_ct(put: &mut Put, ct: &Conntrack, actions: impl FnOnce(&mut Vec<u8>)) {
    put.vendor(NICIRA, nxast::CT, |out| {
        let nx = Nx::new(out).u16(ct.flags);
        let nx = match ct.zone {
            Zone::Number(zone) => nx.u32(0).u16(zone),
            Zone::Field(s) => nx.id(Version::V10, s).ofs_bits(s),
        };
        nx.u8(ct.table.unwrap_or(NO_TABLE)).zeros(3).u16(ct.alg);
        actions(out);
    });
}

/// Writes a `nat`.
pub(crate) fn encode_nat(put: &mut Put, nat: &Nat) {
    let mut present = 0;
    let mut range = Vec::new();
    let ends = [
        (nat.first, present::IPV4_FIRST, present::IPV6_FIRST),
        (nat.last, present::IPV4_LAST, present::IPV6_LAST),
    ];
    for (address, v4, v6) in ends {
        match address.filter(|a| !a.is_unspecified()) {
            Some(IpAddr::V4(a)) => {
                present |= v4;
                range.extend(a.octets());
            }
            Some(IpAddr::V6(a)) => {
                present |= v6;
                range.extend(a.octets());
            }
            None => {}
        }
    }
    let ports = [(nat.first_port, present::PORT_FIRST), (nat.last_port, present::PORT_LAST)];
    for (port, flag) in ports.into_iter().filter(|(port, _)| *port != 0) {
        present |= flag;
        range.extend(port.to_be_bytes());
    }
    put.nx(nxast::NAT, |nx| nx.zeros(2).u16(nat.flags).u16(present).bytes(&range));
}
