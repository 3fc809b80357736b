//! OpenFlow 1.0's fixed match of 40 bytes (section 5.2.3).

use crate::Match;
use crate::oxm::{port_from_10, port_to_10};
use crate::prereq::{VLAN_PRESENT, eth, ip, is_mpls};
use flow::{Field, Key, at};

/// `OFPFW_*` bits.
mod wild {
    pub const IN_PORT: u32 = 1 << 0;
    pub const DL_VLAN: u32 = 1 << 1;
    pub const DL_SRC: u32 = 1 << 2;
    pub const DL_DST: u32 = 1 << 3;
    pub const DL_TYPE: u32 = 1 << 4;
    pub const NW_PROTO: u32 = 1 << 5;
    pub const TP_SRC: u32 = 1 << 6;
    pub const TP_DST: u32 = 1 << 7;
    pub const NW_SRC_SHIFT: u32 = 8;
    pub const NW_DST_SHIFT: u32 = 14;
    pub const DL_VLAN_PCP: u32 = 1 << 20;
    pub const NW_TOS: u32 = 1 << 21;
}

const VLAN_NONE: u16 = 0xffff;
const VID: u16 = 0x0fff;

/// Offsets in the match.
mod off {
    pub const IN_PORT: usize = 4;
    pub const DL_SRC: usize = 6;
    pub const DL_DST: usize = 12;
    pub const DL_VLAN: usize = 18;
    pub const DL_VLAN_PCP: usize = 20;
    pub const DL_TYPE: usize = 22;
    pub const NW_TOS: usize = 24;
    pub const NW_PROTO: usize = 25;
    pub const NW_SRC: usize = 28;
    pub const NW_DST: usize = 32;
    pub const TP_SRC: usize = 36;
    pub const TP_DST: usize = 38;
}

/// The L4 fields of a match: 8 bits wide for ICMP.
pub(crate) fn l4_fields(key: &Key) -> Option<[Field; 2]> {
    let proto = key.u8(at::PROTO);
    match (key.u16(at::ETH_TYPE), proto) {
        (eth::IP | eth::IPV6, ip::TCP) => Some([Field::TcpSrc, Field::TcpDst]),
        (eth::IP | eth::IPV6, ip::UDP) => Some([Field::UdpSrc, Field::UdpDst]),
        (eth::IP | eth::IPV6, ip::SCTP) => Some([Field::SctpSrc, Field::SctpDst]),
        (eth::IP, ip::ICMP) => Some([Field::Icmpv4Type, Field::Icmpv4Code]),
        (eth::IPV6, ip::ICMPV6) => Some([Field::Icmpv6Type, Field::Icmpv6Code]),
        _ => None,
    }
}

/// Reads OpenFlow 1.0's match. Fields that cannot be there for the Ethernet type and protocol are
/// ignored, as the specification's note on wildcards says.
/// An ICMP type or code over 255 is kept, and matches no packet.
pub fn decode_match10(buf: &[u8; 40]) -> Match {
    let wild = u32::from_be_bytes([buf[0], buf[1], buf[2], buf[3]]);
    let exact = |bit| wild & bit == 0;
    let u16_at = |o: usize| u16::from_be_bytes([buf[o], buf[o + 1]]);
    let mut m = Match::default();
    let mut add = |f: Field, value: u128| {
        f.set(&mut m.key, value);
        f.unwildcard(&mut m.mask);
    };
    if exact(wild::IN_PORT) {
        add(Field::InPort, port_from_10(u16_at(off::IN_PORT)).into());
    }
    for (bit, field, o) in
        [(wild::DL_SRC, Field::EthSrc, off::DL_SRC), (wild::DL_DST, Field::EthDst, off::DL_DST)]
    {
        if exact(bit) {
            add(field, crate::oxm::get_be(&buf[o..o + 6]));
        }
    }
    if exact(wild::DL_TYPE) {
        add(Field::EthType, u16_at(off::DL_TYPE).into());
    }
    add_vlan(&mut m, wild, u16_at(off::DL_VLAN), buf[off::DL_VLAN_PCP]);
    add_network(&mut m, wild, buf);
    add_l4(&mut m, wild, [u16_at(off::TP_SRC), u16_at(off::TP_DST)]);
    m
}

fn add_vlan(m: &mut Match, wild: u32, vid: u16, pcp: u8) {
    let (vid_counts, pcp_counts) = (wild & wild::DL_VLAN == 0, wild & wild::DL_VLAN_PCP == 0);
    if vid_counts && vid == VLAN_NONE {
        m.mask.set_u16(at::VLAN, 0xffff);
        return;
    }
    let mut mask = 0;
    if vid_counts {
        mask |= VLAN_PRESENT | VID;
    }
    if pcp_counts {
        mask |= VLAN_PRESENT | 0xe000;
    }
    let tci = u16::from(pcp & 7) << 13 | VLAN_PRESENT | vid & VID;
    m.key.set_u16(at::VLAN, tci & mask);
    m.mask.set_u16(at::VLAN, mask);
}

/// An address mask: the low `bits` (at most 32) do not count.
fn prefix(wild: u32, shift: u32) -> u32 {
    let bits = (wild >> shift) & 0x3f;
    u32::MAX.checked_shl(bits).unwrap_or(0)
}

fn add_network(m: &mut Match, wild: u32, buf: &[u8; 40]) {
    let eth_type = m.key.u16(at::ETH_TYPE);
    let is_ip = matches!(eth_type, eth::IP | eth::IPV6);
    let has_addresses = matches!(eth_type, eth::IP | eth::ARP | eth::RARP);
    if has_addresses {
        for (shift, o, to) in [
            (wild::NW_SRC_SHIFT, off::NW_SRC, at::IP_SRC),
            (wild::NW_DST_SHIFT, off::NW_DST, at::IP_DST),
        ] {
            let mask = prefix(wild, shift);
            let value = u32::from_be_bytes([buf[o], buf[o + 1], buf[o + 2], buf[o + 3]]);
            m.key.set_u32(to, value & mask);
            m.mask.set_u32(to, mask);
        }
    }
    if (is_ip || has_addresses) && wild & wild::NW_PROTO == 0 {
        m.key.set_u8(at::PROTO, buf[off::NW_PROTO]);
        m.mask.set_u8(at::PROTO, 0xff);
    }
    if is_ip && wild & wild::NW_TOS == 0 {
        Field::IpDscp.set(&mut m.key, (buf[off::NW_TOS] >> 2).into());
        Field::IpDscp.unwildcard(&mut m.mask);
    }
}

fn add_l4(m: &mut Match, wild: u32, values: [u16; 2]) {
    let Some(fields) = l4_fields(&m.key) else { return };
    let places = [(wild::TP_SRC, at::TP_SRC), (wild::TP_DST, at::TP_DST)];
    for ((field, value), (bit, place)) in fields.into_iter().zip(values).zip(places) {
        if wild & bit != 0 {
            continue;
        }
        m.key.set_u16(place, value);
        if u128::from(value) > field.full() {
            m.mask.set_u16(place, 0xffff);
        } else {
            field.unwildcard(&mut m.mask);
        }
    }
}

/// Writes OpenFlow 1.0's match; what it cannot express is left out.
pub fn encode_match10(m: &Match) -> [u8; 40] {
    let (key, mask) = (&m.key, &m.mask);
    let mut out = [0; 40];
    let mut put = |o: usize, bytes: &[u8]| out[o..o + bytes.len()].copy_from_slice(bytes);
    let mut wild = 0;
    let mut wild_if = |bit: u32, at: usize, n: usize| {
        if mask.bytes()[at..at + n].iter().all(|b| *b == 0) {
            wild |= bit;
        }
    };
    wild_if(wild::IN_PORT, at::OF_IN_PORT, 4);
    wild_if(wild::DL_SRC, at::ETH_SRC, 6);
    wild_if(wild::DL_DST, at::ETH_DST, 6);
    wild_if(wild::DL_TYPE, at::ETH_TYPE, 2);
    wild_if(wild::NW_PROTO, at::PROTO, 1);
    wild_if(wild::NW_TOS, at::TOS, 1);
    wild_if(wild::TP_SRC, at::TP_SRC, 2);
    wild_if(wild::TP_DST, at::TP_DST, 2);
    let eth_type = key.u16(at::ETH_TYPE);
    let has_addresses = !is_mpls(eth_type) && eth_type != eth::NSH;
    for (shift, from) in [(wild::NW_SRC_SHIFT, at::IP_SRC), (wild::NW_DST_SHIFT, at::IP_DST)] {
        let bits = if has_addresses { mask.u32(from).trailing_zeros() } else { 32 };
        wild |= bits << shift;
    }
    let (vlan_wild, vid, pcp) = vlan10(key.u16(at::VLAN), mask.u16(at::VLAN));
    put(0, &(wild | vlan_wild).to_be_bytes());
    put(off::IN_PORT, &port_to_10(key.u32(at::OF_IN_PORT)).to_be_bytes());
    put(off::DL_SRC, &key.get::<6>(at::ETH_SRC));
    put(off::DL_DST, &key.get::<6>(at::ETH_DST));
    put(off::DL_VLAN, &vid.to_be_bytes());
    put(off::DL_VLAN_PCP, &[pcp]);
    put(off::DL_TYPE, &key.get::<2>(at::ETH_TYPE));
    put(off::NW_TOS, &[key.u8(at::TOS) & 0xfc]);
    put(off::NW_PROTO, &[key.u8(at::PROTO)]);
    if has_addresses {
        put(off::NW_SRC, &key.get::<4>(at::IP_SRC));
        put(off::NW_DST, &key.get::<4>(at::IP_DST));
    }
    put(off::TP_SRC, &key.get::<2>(at::TP_SRC));
    put(off::TP_DST, &key.get::<2>(at::TP_DST));
    out
}

/// (wildcard bits, dl_vlan, dl_vlan_pcp) of a TCI.
fn vlan10(tci: u16, mask: u16) -> (u32, u16, u8) {
    if mask == 0 {
        return (wild::DL_VLAN | wild::DL_VLAN_PCP, 0, 0);
    }
    if mask & VLAN_PRESENT != 0 && tci & VLAN_PRESENT == 0 {
        return (0, VLAN_NONE, 0);
    }
    let (mut wild, mut vid, mut pcp) = (0, 0, 0);
    if mask & VID == 0 {
        wild |= wild::DL_VLAN;
    } else {
        vid = tci & VID;
    }
    if mask >> 13 == 0 {
        wild |= wild::DL_VLAN_PCP;
    } else {
        pcp = (tci >> 13) as u8;
    }
    (wild, vid, pcp)
}

/// True if OpenFlow 1.0's match can say all of it.
pub fn fits_match10(m: &Match) -> bool {
    decode_match10(&encode_match10(m)) == *m
}
