//! Matches on the wire: `ofp_match` of 1.1 and later, and Nicira's. (The fixed ones of 1.0 and 1.1
//! are in `match10` and `match11`.)
//!
//! A match that was decoded and encoded for the same kind of wire reads back the same.

use crate::match11::{self, decode_match11, encode_match11};
use crate::oxm::{Oxm, OxmEntry, TUN_FLAGS_MASK, put_no_recirculation, put_tun_metadata};
use crate::prereq::{self, VLAN_PRESENT, eth, ip};
use crate::{Match, OfError, Version};
use flow::{Field, at};

pub use crate::match10::{decode_match10, encode_match10, fits_match10};

/// `OFPMT_STANDARD`: 1.1's fixed match.
const TYPE_STANDARD: u16 = 0;
/// `OFPMT_OXM`.
const TYPE_OXM: u16 = 1;

/// Reads an `ofp_match` (1.1 and later; OXM is read in 1.1 too). Returns the match and the bytes it
/// takes with its padding.
///
/// Errors: `MatchBadLen`, `MatchBadType`, those of [`decode_oxm_list`], and for 1.1's fixed match
/// values out of range.
pub fn decode_match(version: Version, buf: &[u8]) -> Result<(Match, usize), OfError> {
    let head: &[u8; 4] = buf.first_chunk().ok_or(OfError::MatchBadLen)?;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    if len < head.len() {
        return Err(OfError::MatchBadLen);
    }
    match u16::from_be_bytes([head[0], head[1]]) {
        TYPE_STANDARD if version == Version::V11 => {
            let fixed = buf.first_chunk().filter(|_| len == match11::LEN);
            return Ok((decode_match11(fixed.ok_or(OfError::MatchBadLen)?)?, len));
        }
        TYPE_OXM => {}
        TYPE_STANDARD if len != match11::LEN => return Err(OfError::MatchBadLen),
        _ => return Err(OfError::MatchBadType),
    }
    let padded = len.next_multiple_of(8);
    if padded > buf.len() {
        return Err(OfError::MatchBadLen);
    }
    Ok((decode_oxm_list(&buf[4..len])?, padded))
}

/// Writes an `ofp_match` (1.1 and later) with its header and padding.
pub fn encode_match(version: Version, m: &Match, out: &mut Vec<u8>) {
    if version == Version::V11 {
        return out.extend(encode_match11(m));
    }
    let start = out.len();
    out.extend(TYPE_OXM.to_be_bytes());
    out.extend([0; 2]);
    encode_oxm_list(version, m, out);
    let len = out.len() - start;
    out[start + 2..start + 4].copy_from_slice(&(len as u16).to_be_bytes());
    out.resize(start + len.next_multiple_of(8), 0);
}

/// Reads OXM/NXM entries that fill `buf` (no header, no padding; the length is given outside).
///
/// Errors: `MatchBadLen`, `MatchBadField` (unknown), `MatchBadWildcards` (value bits outside the
/// mask), `MatchBadMask` (field without masks), `MatchBadValue`, `MatchBadPrereq`, `MatchDupField`.
pub fn decode_oxm_list(buf: &[u8]) -> Result<Match, OfError> {
    let mut m = Match::default();
    let mut rest = buf;
    while !rest.is_empty() {
        let entry = OxmEntry::parse(rest)?;
        add_entry(&mut m, &entry)?;
        rest = &rest[entry.size..];
    }
    Ok(m)
}

/// A Nicira match, which may hold a cookie to compare with (`NXM_NX_COOKIE`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NxMatch {
    /// The match.
    pub matching: Match,
    /// Cookie bits to compare with; zero where `cookie_mask` is.
    pub cookie: u64,
    /// Cookie bits that count.
    pub cookie_mask: u64,
}

/// Reads a Nicira match (`nx_flow_mod`, `nx_flow_stats_request`) without its padding. Errors as
/// [`decode_oxm_list`].
pub fn decode_nx_match(buf: &[u8]) -> Result<NxMatch, OfError> {
    let mut nx = NxMatch::default();
    let mut rest = buf;
    while !rest.is_empty() {
        let entry = OxmEntry::parse(rest)?;
        if !entry.header.is_cookie() {
            add_entry(&mut nx.matching, &entry)?;
        } else if nx.cookie_mask != 0 {
            return Err(OfError::MatchDupField);
        } else {
            (nx.cookie, nx.cookie_mask) = (entry.value as u64, entry.mask as u64);
        }
        rest = &rest[entry.size..];
    }
    Ok(nx)
}

/// Writes a Nicira match and pads it to a multiple of 8. Returns its length without padding.
pub fn encode_nx_match(m: &NxMatch, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    encode_oxm_list(Version::V10, &m.matching, out);
    if m.cookie_mask != 0 {
        let masked = m.cookie_mask != u64::MAX;
        out.extend([0, 1, 30 << 1 | u8::from(masked), 8 << u8::from(masked)]);
        out.extend((m.cookie & m.cookie_mask).to_be_bytes());
        if masked {
            out.extend(m.cookie_mask.to_be_bytes());
        }
    }
    let len = out.len() - start;
    out.resize(start + len.next_multiple_of(8), 0);
    len
}

/// The entry's field, its value and its mask in the field's own width, checked.
pub(crate) fn entry_value(entry: &OxmEntry) -> Result<(Oxm, u128, u128), OfError> {
    let unknown = match entry.header.is_private() {
        true => OfError::RequestEperm,
        false => OfError::MatchBadField,
    };
    let oxm = entry.header.oxm().ok_or(unknown)?;
    let full = oxm.wire_full();
    if !oxm.field.maskable() && entry.mask != full && entry.mask != 0 {
        return Err(OfError::MatchBadMask);
    }
    let value = oxm.value(entry.value)?;
    // NXM's 16-bit in_port is a whole 32-bit one here.
    let whole = entry.mask == full;
    Ok((oxm, value, if whole { oxm.field.full() } else { entry.mask & oxm.field.full() }))
}

fn add_entry(m: &mut Match, entry: &OxmEntry) -> Result<(), OfError> {
    if let Some(t) = entry.tun_metadata() {
        match m.tun.binary_search_by_key(&t.index, |o| o.index) {
            Ok(_) => return Err(OfError::MatchDupField),
            Err(i) => m.tun.insert(i, t),
        }
        return Ok(());
    }
    if entry.header.is_private() {
        return add_private(m, entry);
    }
    let (oxm, value, mask) = entry_value(entry)?;
    if !prereq::holds(oxm.field, m) {
        return Err(OfError::MatchBadPrereq);
    }
    let is_late = oxm.field == Field::PacketType && is_ethernet(m);
    if is_late || oxm.field.get(&m.mask) != 0 {
        return Err(OfError::MatchDupField);
    }
    let (field, value, mask) = match oxm.field {
        Field::IpTos => (Field::IpDscp, value >> 2, mask >> 2),
        // Other bits of the field are the datapath's.
        Field::TunFlags => (Field::TunFlags, value, mask & TUN_FLAGS_MASK),
        f => (f, value, mask),
    };
    field.set(&mut m.key, value & mask);
    field.set(&mut m.mask, mask);
    Ok(())
}

/// True if fields are matched that only packets with an Ethernet header have: what they are is
/// said then.
fn is_ethernet(m: &Match) -> bool {
    let fields = [Field::EthDst, Field::EthSrc, Field::EthType, Field::VlanTci];
    fields.iter().any(|f| f.get(&m.mask) != 0)
}

/// Adds a field that only ovs-vswitchd's own flows match: others may match any hash, and packets
/// that were not looked up before.
fn add_private(m: &mut Match, entry: &OxmEntry) -> Result<(), OfError> {
    match entry.header.is_recirc_id() {
        _ if entry.mask == 0 => Ok(()),
        true if entry.mask != u128::from(u32::MAX) => Err(OfError::MatchBadMask),
        true if m.mask.u32(at::RECIRC) != 0 => Err(OfError::MatchDupField),
        true if entry.value == 0 => {
            m.mask.set_u32(at::RECIRC, !0);
            Ok(())
        }
        _ => Err(OfError::RequestEperm),
    }
}

/// Writes OXM/NXM entries without header and padding, in the forms of `version` (below 1.2: NXM).
/// Fields whose prerequisites the match lacks are left out.
pub fn encode_oxm_list(version: Version, m: &Match, out: &mut Vec<u8>) {
    let mut list = List { version, m, out };
    list.put(Field::PacketType);
    if m.mask.u32(at::RECIRC) != 0 && m.key.u32(at::RECIRC) == 0 {
        put_no_recirculation(list.out);
    }
    list.put_all(&[Field::ConjId, Field::InPort, Field::ActsetOutput]);
    list.put_all(&[Field::EthSrc, Field::EthDst, Field::EthType]);
    list.put_vlan();
    match prereq::eth_type(m) {
        eth::IP => list.put_ip(&[Field::Ipv4Src, Field::Ipv4Dst]),
        eth::IPV6 => list.put_ip(&[Field::Ipv6Src, Field::Ipv6Dst]),
        eth::ARP | eth::RARP => list.put_all(&[
            Field::ArpOp,
            Field::ArpSpa,
            Field::ArpTpa,
            Field::ArpSha,
            Field::ArpTha,
        ]),
        eth::MPLS | eth::MPLS_MCAST => {
            list.put_all(&[Field::MplsTc, Field::MplsBos, Field::MplsTtl, Field::MplsLabel]);
        }
        _ => {}
    }
    list.put_tunnel();
    list.put_registers();
    list.put_conntrack();
    list.put(Field::Metadata);
}

struct List<'a> {
    version: Version,
    m: &'a Match,
    out: &'a mut Vec<u8>,
}

impl List<'_> {
    fn put_all(&mut self, fields: &[Field]) {
        fields.iter().for_each(|f| self.put(*f));
    }

    fn put(&mut self, field: Field) {
        let (value, mask) = (field.get(&self.m.key), field.get(&self.m.mask));
        if mask != 0 {
            self.put_as(field, value, mask);
        }
    }

    /// A partial mask of a field that takes none is sent as a whole one, as OVS does.
    fn put_as(&mut self, field: Field, value: u128, mask: u128) {
        let oxm = Oxm::of(self.version, field);
        let masked = mask != field.full() && field.maskable();
        oxm.put_header(masked, self.out);
        oxm.put_value(value, self.out);
        if masked {
            oxm.put_mask(mask, self.out);
        }
    }

    /// NXM has the whole TCI. OXM has VID (with the present bit) and PCP; what these two cannot
    /// say (a partial PCP, a PCP without a tag) goes as NXM's TCI too.
    fn put_vlan(&mut self) {
        let mask = self.m.mask.u16(at::VLAN);
        if mask == 0 {
            return;
        }
        let value = self.m.key.u16(at::VLAN);
        let pcp_fits = match mask >> 13 {
            0 => true,
            7 => value & VLAN_PRESENT != 0,
            _ => false,
        };
        let untagged = (value, mask) == (0, 0xffff);
        if self.version < Version::V12 || !(pcp_fits || untagged) {
            self.put(Field::VlanTci);
        } else if untagged {
            self.put(Field::VlanVid);
        } else {
            self.put_all(&[Field::VlanVid, Field::VlanPcp]);
        }
    }

    fn put_ip(&mut self, addresses: &[Field]) {
        self.put_all(addresses);
        self.put(Field::IpFrag);
        let dscp = Field::IpDscp.get(&self.m.mask);
        if dscp != 0 && self.version < Version::V12 {
            self.put_as(Field::IpTos, Field::IpDscp.get(&self.m.key) << 2, Field::IpTos.full());
        } else {
            self.put(Field::IpDscp);
        }
        self.put_all(&[Field::IpEcn, Field::IpTtl]);
        if prereq::eth_type(self.m) == eth::IPV6 {
            self.put(Field::Ipv6Label);
        }
        self.put(Field::IpProto);
        self.put_l4();
    }

    fn put_l4(&mut self) {
        const TCP: &[Field] = &[Field::TcpSrc, Field::TcpDst, Field::TcpFlags];
        const ND: &[Field] = &[
            Field::Icmpv6Type,
            Field::Icmpv6Code,
            Field::NdReserved,
            Field::NdTarget,
            Field::NdOptionsType,
            Field::NdSll,
            Field::NdTll,
        ];
        let fields: &[Field] = match self.m.key.u8(at::PROTO) {
            ip::TCP => TCP,
            ip::UDP => &[Field::UdpSrc, Field::UdpDst],
            ip::SCTP => &[Field::SctpSrc, Field::SctpDst],
            ip::ICMP => &[Field::Icmpv4Type, Field::Icmpv4Code],
            ip::ICMPV6 => ND,
            _ => &[],
        };
        for field in fields.iter().filter(|f| prereq::holds(**f, self.m)) {
            self.put(*field);
        }
    }

    fn put_tunnel(&mut self) {
        self.put_all(&[
            Field::TunId,
            Field::TunFlags,
            Field::TunSrc,
            Field::TunDst,
            Field::TunIpv6Src,
            Field::TunIpv6Dst,
            Field::TunGbpId,
            Field::TunGbpFlags,
            Field::TunErspanIdx,
            Field::TunErspanVer,
            Field::TunErspanDir,
            Field::TunErspanHwid,
            Field::TunGtpuFlags,
            Field::TunGtpuMsgtype,
        ]);
        self.m.tun.iter().for_each(|t| put_tun_metadata(t, self.out));
        if prereq::eth_type(self.m) == eth::NSH {
            self.put_all(&flow::NSH);
        }
    }

    fn put_registers(&mut self) {
        if self.version < Version::V15 {
            (0..16).for_each(|i| self.put(Field::Reg(i)));
        } else {
            (0..8).for_each(|i| self.put(Field::Xreg(i)));
        }
        self.put(Field::PktMark);
    }

    fn put_conntrack(&mut self) {
        self.put_all(&[Field::CtState, Field::CtZone, Field::CtMark, Field::CtLabel]);
        if prereq::holds(Field::CtNwProto, self.m) {
            self.put_all(&[
                Field::CtNwSrc,
                Field::CtIpv6Src,
                Field::CtNwDst,
                Field::CtIpv6Dst,
                Field::CtNwProto,
                Field::CtTpSrc,
                Field::CtTpDst,
            ]);
        }
    }
}
