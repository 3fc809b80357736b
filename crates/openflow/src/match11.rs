//! OpenFlow 1.1's fixed match of 88 bytes (specification 1.1, section A.2.3). Its address masks
//! have a 1 where a bit does not count.

use crate::match10::l4_fields;
use crate::oxm::get_be;
use crate::prereq::{VLAN_PRESENT, eth, is_mpls};
use crate::{Match, OfError};
use flow::{Field, at};

/// Bytes of the match, which its own length says too.
pub(crate) const LEN: usize = 88;

/// `OFPFW_*` bits.
mod wild {
    pub const IN_PORT: u32 = 1 << 0;
    pub const DL_VLAN: u32 = 1 << 1;
    pub const DL_VLAN_PCP: u32 = 1 << 2;
    pub const DL_TYPE: u32 = 1 << 3;
    pub const NW_TOS: u32 = 1 << 4;
    pub const NW_PROTO: u32 = 1 << 5;
    pub const TP_SRC: u32 = 1 << 6;
    pub const TP_DST: u32 = 1 << 7;
    pub const MPLS_LABEL: u32 = 1 << 8;
    pub const MPLS_TC: u32 = 1 << 9;
}

/// Offsets in the match. A mask follows its value.
mod off {
    pub const IN_PORT: usize = 4;
    pub const WILDCARDS: usize = 8;
    pub const DL_SRC: usize = 12;
    pub const DL_DST: usize = 24;
    pub const DL_VLAN: usize = 36;
    pub const DL_VLAN_PCP: usize = 38;
    pub const DL_TYPE: usize = 40;
    pub const NW_TOS: usize = 42;
    pub const NW_PROTO: usize = 43;
    pub const NW_SRC: usize = 44;
    pub const NW_DST: usize = 52;
    pub const TP_SRC: usize = 60;
    pub const TP_DST: usize = 62;
    pub const MPLS_LABEL: usize = 64;
    pub const MPLS_TC: usize = 68;
    pub const METADATA: usize = 72;
}

/// `OFPVID_ANY` and `OFPVID_NONE`.
const VLAN_ANY: u16 = 0xfffe;
const VLAN_NONE: u16 = 0xffff;
const VID: u16 = 0x0fff;
const PCP: u16 = 0xe000;

/// Fields with a mask of their own: where, and bytes of the value.
const MASKED: [(Field, usize, usize); 5] = [
    (Field::EthSrc, off::DL_SRC, 6),
    (Field::EthDst, off::DL_DST, 6),
    (Field::Ipv4Src, off::NW_SRC, 4),
    (Field::Ipv4Dst, off::NW_DST, 4),
    (Field::Metadata, off::METADATA, 8),
];

fn u16_at(buf: &[u8], o: usize) -> u16 {
    get_be(&buf[o..o + 2]) as u16
}

fn u32_at(buf: &[u8], o: usize) -> u32 {
    get_be(&buf[o..o + 4]) as u32
}

/// Reads OpenFlow 1.1's match. Fields that cannot be there for the Ethernet type and protocol are
/// ignored, as the specification asks.
///
/// Errors: `MatchBadValue` for a VID, PCP, DSCP, label or traffic class out of its range,
/// `MatchBadField` for an ICMP type or code over 255, `RequestBadPort`.
pub(crate) fn decode_match11(buf: &[u8; LEN]) -> Result<Match, OfError> {
    let wild = u32_at(buf, off::WILDCARDS);
    let exact = |bit| wild & bit == 0;
    let mut m = Match::default();
    if exact(wild::IN_PORT) {
        let port = u32_at(buf, off::IN_PORT);
        if !crate::oxm::port_is_valid(port) {
            return Err(OfError::RequestBadPort);
        }
        add(&mut m, Field::InPort, port.into())?;
    }
    if exact(wild::DL_VLAN) {
        let pcp = exact(wild::DL_VLAN_PCP).then_some(buf[off::DL_VLAN_PCP]);
        add_vlan(&mut m, u16_at(buf, off::DL_VLAN), pcp)?;
    }
    if exact(wild::DL_TYPE) {
        add(&mut m, Field::EthType, u16_at(buf, off::DL_TYPE).into())?;
    }
    let eth_type = m.key.u16(at::ETH_TYPE);
    let is_ip = matches!(eth_type, eth::IP | eth::IPV6);
    let has_addresses = matches!(eth_type, eth::IP | eth::ARP | eth::RARP);
    for (field, o, n) in MASKED {
        let wants_addresses = matches!(field, Field::Ipv4Src | Field::Ipv4Dst);
        if has_addresses || !wants_addresses {
            let mask = !get_be(&buf[o + n..o + 2 * n]) & field.full();
            add_masked(&mut m, field, get_be(&buf[o..o + n]), mask);
        }
    }
    if (is_ip || has_addresses) && exact(wild::NW_PROTO) {
        m.key.set_u8(at::PROTO, buf[off::NW_PROTO]);
        m.mask.set_u8(at::PROTO, 0xff);
    }
    if is_ip && exact(wild::NW_TOS) {
        let tos = buf[off::NW_TOS];
        if tos & 3 != 0 {
            return Err(OfError::MatchBadValue);
        }
        add(&mut m, Field::IpDscp, (tos >> 2).into())?;
    }
    add_l4(&mut m, wild, buf)?;
    if is_mpls(eth_type) && exact(wild::MPLS_LABEL) {
        add(&mut m, Field::MplsLabel, u32_at(buf, off::MPLS_LABEL).into())?;
    }
    if is_mpls(eth_type) && exact(wild::MPLS_TC) {
        add(&mut m, Field::MplsTc, buf[off::MPLS_TC].into())?;
    }
    Ok(m)
}

fn add(m: &mut Match, field: Field, value: u128) -> Result<(), OfError> {
    if value > field.full() {
        return Err(OfError::MatchBadValue);
    }
    field.set(&mut m.key, value);
    field.unwildcard(&mut m.mask);
    Ok(())
}

fn add_masked(m: &mut Match, field: Field, value: u128, mask: u128) {
    field.set(&mut m.key, value & mask);
    field.set(&mut m.mask, mask);
}

/// The PCP counts only where there is a tag to have one.
fn add_vlan(m: &mut Match, vid: u16, pcp: Option<u8>) -> Result<(), OfError> {
    let (mut tci, mut mask) = match vid {
        VLAN_NONE => {
            m.mask.set_u16(at::VLAN, 0xffff);
            return Ok(());
        }
        VLAN_ANY => (VLAN_PRESENT, VLAN_PRESENT),
        ..=VID => (VLAN_PRESENT | vid, VLAN_PRESENT | VID),
        _ => return Err(OfError::MatchBadValue),
    };
    if let Some(pcp) = pcp {
        if pcp > 7 {
            return Err(OfError::MatchBadValue);
        }
        tci |= u16::from(pcp) << 13;
        mask |= PCP;
    }
    m.key.set_u16(at::VLAN, tci);
    m.mask.set_u16(at::VLAN, mask);
    Ok(())
}

fn add_l4(m: &mut Match, wild: u32, buf: &[u8; LEN]) -> Result<(), OfError> {
    let Some(fields) = l4_fields(&m.key) else { return Ok(()) };
    let places = [(wild::TP_SRC, off::TP_SRC), (wild::TP_DST, off::TP_DST)];
    for (field, (bit, o)) in fields.into_iter().zip(places) {
        if wild & bit == 0 {
            let value = u16_at(buf, o).into();
            add(m, field, value).map_err(|_| OfError::MatchBadField)?;
        }
    }
    Ok(())
}

/// Writes OpenFlow 1.1's match; what it cannot express is left out.
pub(crate) fn encode_match11(m: &Match) -> [u8; LEN] {
    let (key, mask) = (&m.key, &m.mask);
    let mut out = [0; LEN];
    let mut put = |o: usize, bytes: &[u8]| out[o..o + bytes.len()].copy_from_slice(bytes);
    put(2, &(LEN as u16).to_be_bytes());
    let mut wild = 0;
    let mut wild_if = |bit: u32, field: Field| {
        if field.get(mask) == 0 {
            wild |= bit;
        }
    };
    wild_if(wild::IN_PORT, Field::InPort);
    wild_if(wild::DL_TYPE, Field::EthType);
    wild_if(wild::NW_TOS, Field::IpDscp);
    wild_if(wild::NW_PROTO, Field::IpProto);
    let mpls = is_mpls(key.u16(at::ETH_TYPE));
    match l4_fields(key) {
        Some([src, dst]) => {
            wild_if(wild::TP_SRC, src);
            wild_if(wild::TP_DST, dst);
            put(off::TP_SRC, &(src.get(key) as u16).to_be_bytes());
            put(off::TP_DST, &(dst.get(key) as u16).to_be_bytes());
        }
        None => wild |= wild::TP_SRC | wild::TP_DST,
    }
    let is_set = |field: Field| mpls && field.get(mask) != 0;
    if is_set(Field::MplsLabel) {
        put(off::MPLS_LABEL, &(Field::MplsLabel.get(key) as u32).to_be_bytes());
    } else {
        wild |= wild::MPLS_LABEL;
    }
    if is_set(Field::MplsTc) {
        put(off::MPLS_TC, &[Field::MplsTc.get(key) as u8]);
    } else {
        wild |= wild::MPLS_TC;
    }
    for (field, o, n) in MASKED {
        let other = mpls || key.u16(at::ETH_TYPE) == eth::NSH;
        let absent = other && matches!(field, Field::Ipv4Src | Field::Ipv4Dst);
        let counts = if absent { 0 } else { field.get(mask) };
        put(o, &(field.get(key) & counts).to_be_bytes()[16 - n..]);
        put(o + n, &(!counts).to_be_bytes()[16 - n..]);
    }
    let (vlan_wild, vid, pcp) = vlan11(key.u16(at::VLAN), mask.u16(at::VLAN));
    put(off::WILDCARDS, &(wild | vlan_wild).to_be_bytes());
    put(off::DL_VLAN, &vid.to_be_bytes());
    put(off::DL_VLAN_PCP, &[pcp]);
    put(off::IN_PORT, &key.u32(at::OF_IN_PORT).to_be_bytes());
    put(off::DL_TYPE, &key.get::<2>(at::ETH_TYPE));
    put(off::NW_TOS, &[key.u8(at::TOS) & 0xfc]);
    put(off::NW_PROTO, &[key.u8(at::PROTO)]);
    out
}

/// (wildcard bits, dl_vlan, dl_vlan_pcp) of a TCI.
fn vlan11(tci: u16, mask: u16) -> (u32, u16, u8) {
    if mask & VLAN_PRESENT == 0 {
        return (wild::DL_VLAN | wild::DL_VLAN_PCP, 0, 0);
    }
    if tci & VLAN_PRESENT == 0 {
        return (wild::DL_VLAN_PCP, VLAN_NONE, 0);
    }
    let vid = if mask & VID == 0 { VLAN_ANY } else { tci & VID };
    match mask & PCP {
        0 => (wild::DL_VLAN_PCP, vid, 0),
        _ => (0, vid, (tci >> 13) as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(fields: &[(Field, u128, u128)]) -> Match {
        let mut m = Match::default();
        for (field, value, mask) in fields {
            field.set(&mut m.key, value & mask);
            field.set(&mut m.mask, *mask);
        }
        m
    }

    #[test]
    fn what_it_can_say_reads_back() {
        let whole = u128::MAX;
        let cases: [&[(Field, u128, u128)]; 9] = [
            &[],
            &[(Field::InPort, 0xffff_fffe, 0xffff_ffff), (Field::EthSrc, 5, 0xff)],
            &[(Field::EthDst, 0x0100_0000_0000, 0x0100_0000_0000)],
            &[(Field::VlanTci, 0, 0xffff)],
            &[(Field::VlanTci, 0x1000, 0x1000)],
            &[(Field::VlanTci, 0x7005, 0xffff)],
            &[(Field::VlanTci, 0x7000, 0xf000), (Field::Metadata, 0x1200, 0xff00)],
            &[
                (Field::EthType, 0x800, 0xffff),
                (Field::Ipv4Src, 0x0a00_0000, 0xff00_00ff),
                (Field::IpProto, 6, 0xff),
                (Field::IpDscp, 9, 0x3f),
                (Field::TcpDst, 80, 0xffff),
            ],
            &[(Field::EthType, 0x8847, 0xffff), (Field::MplsLabel, 77, 0xf_ffff)],
        ];
        for case in cases {
            let m = matching(case);
            assert_eq!(decode_match11(&encode_match11(&m)), Ok(m), "{case:?}");
        }
        let beyond = matching(&[(Field::Reg(0), 1, whole), (Field::EthSrc, 1, 0xffff_ffff_ffff)]);
        let said = matching(&[(Field::EthSrc, 1, 0xffff_ffff_ffff)]);
        assert_eq!(decode_match11(&encode_match11(&beyond)), Ok(said));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let icmp = matching(&[
            (Field::EthType, 0x800, 0xffff),
            (Field::IpProto, 1, 0xff),
            (Field::Icmpv4Type, 8, 0xff),
        ]);
        let mut wide = encode_match11(&icmp);
        wide[off::TP_SRC] = 1;
        assert_eq!(decode_match11(&wide), Err(OfError::MatchBadField));
        let tagged = matching(&[(Field::VlanTci, 0x1005, 0x1fff)]);
        let mut vid = encode_match11(&tagged);
        vid[off::DL_VLAN] = 0x10;
        assert_eq!(decode_match11(&vid), Err(OfError::MatchBadValue));
        let mut port = encode_match11(&matching(&[(Field::InPort, 1, 0xffff_ffff)]));
        port[off::IN_PORT + 1] = 1;
        assert_eq!(decode_match11(&port), Err(OfError::RequestBadPort));
    }
}
