//! Fields and their OXM, NXM and ONF-experimenter headers.
//!
//! A header names a class, a field number in it and the length of what follows; experimenter
//! classes have the experimenter's id behind the first four bytes. Each known pair of class and
//! number is one row of [`ROWS`]; registers are computed. Sources: OpenFlow 1.5.1 section 7.2.3,
//! the ONF extensions, and the Nicira extension fields documented in ovs-fields(7).

use crate::{OfError, Version, port};
use flow::{Field, TUN_METADATA_MAX, TunMetadata};

/// The name space of a field number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// NXM_OF_* (0x0000).
    NxmOf,
    /// NXM_NX_* (0x0001).
    NxmNx,
    /// OXM_OF_* (0x8000).
    Oxm,
    /// OXM_OF_PKT_REG<n> (0x8001).
    PktReg,
    /// ONFOXM_ET_* (experimenter 0x4f4e4600).
    Onf,
    /// NXOXM_ET_* (experimenter 0x00002320).
    NxEt,
    /// NXOXM_NSH_* (experimenter 0x005ad650).
    NxNsh,
    /// ERICOXM_OF_* (0x1000).
    Ericsson,
}

const ONF: u32 = 0x4f4e_4600;
const NICIRA: u32 = 0x0000_2320;
const NSH: u32 = 0x005a_d650;
const EXPERIMENTER: u16 = 0xffff;
const PACKET_REGISTERS: u16 = 0x8001;
const ERICSSON: u16 = 0x1000;
/// Number of `NXM_NX_COOKIE`, which is a field on the wire only.
const COOKIE: u8 = 30;
/// Numbers of `NXM_NX_DP_HASH` and `NXM_NX_RECIRC_ID`, which are named by table features, as by
/// ovs-vswitchd, and may not be matched.
const PRIVATE: [u8; 2] = [DP_HASH, RECIRC_ID];
const DP_HASH: u8 = 35;
const RECIRC_ID: u8 = 36;
const XXREG0: u8 = 111;
/// Numbers of tunnel options, whose length on the wire varies; with bare headers it is the
/// greatest.
const TUN_METADATA0: u8 = 40;
const TUN_METADATA63: u8 = 103;

impl Class {
    const fn number(self) -> u16 {
        match self {
            Class::NxmOf => 0,
            Class::NxmNx => 1,
            Class::Oxm => 0x8000,
            Class::PktReg => PACKET_REGISTERS,
            Class::Ericsson => ERICSSON,
            Class::Onf | Class::NxEt | Class::NxNsh => EXPERIMENTER,
        }
    }

    /// The experimenter's id, if it is in the header.
    pub(crate) const fn experimenter(self) -> Option<u32> {
        match self {
            Class::Onf => Some(ONF),
            Class::NxEt => Some(NICIRA),
            Class::NxNsh => Some(NSH),
            _ => None,
        }
    }

    fn from_numbers(class: u16, experimenter: u32) -> Option<Class> {
        Some(match (class, experimenter) {
            (0, _) => Class::NxmOf,
            (1, _) => Class::NxmNx,
            (0x8000, _) => Class::Oxm,
            (PACKET_REGISTERS, _) => Class::PktReg,
            (ERICSSON, _) => Class::Ericsson,
            (EXPERIMENTER, ONF) => Class::Onf,
            (EXPERIMENTER, NICIRA) => Class::NxEt,
            (EXPERIMENTER, NSH) => Class::NxNsh,
            _ => return None,
        })
    }
}

/// One wire form of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oxm {
    /// The field.
    pub field: Field,
    /// Its class.
    pub class: Class,
    /// Its number in the class.
    pub number: u8,
    /// Bytes of a value on the wire.
    pub bytes: u8,
    /// The first version that uses this form when it sends.
    pub since: Version,
}

macro_rules! rows {
    ($($field:ident $bytes:literal: $($class:ident $number:literal $since:ident),+;)*) => {
        /// All wire forms except the registers'; forms of one field in order of `since`.
        pub const ROWS: &[Oxm] = &[$($(Oxm {
            field: Field::$field,
            class: Class::$class,
            number: $number,
            bytes: row_bytes(Class::$class, Field::$field, $bytes),
            since: Version::$since,
        }),+),*];
    };
}

/// NXM has two fields narrower than OXM: the input port.
const fn row_bytes(class: Class, field: Field, bytes: u8) -> u8 {
    match (class, field) {
        (Class::NxmOf, Field::InPort) => 2,
        _ => bytes,
    }
}

rows! {
    PacketType 4: Oxm 44 V10;
    ConjId 4: NxmNx 37 V10;
    TunId 8: NxmNx 16 V10, Oxm 38 V13;
    TunSrc 4: NxmNx 31 V10;
    TunDst 4: NxmNx 32 V10;
    TunIpv6Src 16: NxmNx 109 V10;
    TunIpv6Dst 16: NxmNx 110 V10;
    TunFlags 2: NxmNx 104 V10;
    TunGbpId 2: NxmNx 38 V10;
    TunGbpFlags 1: NxmNx 39 V10;
    TunErspanIdx 4: NxEt 11 V10;
    TunErspanVer 1: NxEt 12 V10;
    TunErspanDir 1: NxEt 13 V10;
    TunErspanHwid 1: NxEt 14 V10;
    TunGtpuFlags 1: NxEt 15 V10;
    TunGtpuMsgtype 1: NxEt 16 V10;
    Metadata 8: Oxm 2 V10;
    InPort 4: NxmOf 0 V10, Oxm 0 V12;
    ActsetOutput 4: Onf 43 V10, Oxm 43 V15;
    PktMark 4: NxmNx 33 V10;
    CtState 4: NxmNx 105 V10;
    CtZone 2: NxmNx 106 V10;
    CtMark 4: NxmNx 107 V10;
    CtLabel 16: NxmNx 108 V10;
    CtNwProto 1: NxmNx 119 V10;
    CtNwSrc 4: NxmNx 120 V10;
    CtNwDst 4: NxmNx 121 V10;
    CtIpv6Src 16: NxmNx 122 V10;
    CtIpv6Dst 16: NxmNx 123 V10;
    CtTpSrc 2: NxmNx 124 V10;
    CtTpDst 2: NxmNx 125 V10;
    EthSrc 6: NxmOf 2 V10, Oxm 4 V12;
    EthDst 6: NxmOf 1 V10, Oxm 3 V12;
    EthType 2: NxmOf 3 V10, Oxm 5 V12;
    VlanTci 2: NxmOf 4 V10;
    VlanVid 2: Oxm 6 V10;
    VlanPcp 1: Oxm 7 V10;
    MplsLabel 4: Oxm 34 V10;
    MplsTc 1: Oxm 35 V10;
    MplsBos 1: Oxm 36 V10;
    MplsTtl 1: NxmNx 30 V10;
    Ipv4Src 4: NxmOf 7 V10, Oxm 11 V12;
    Ipv4Dst 4: NxmOf 8 V10, Oxm 12 V12;
    Ipv6Src 16: NxmNx 19 V10, Oxm 26 V12;
    Ipv6Dst 16: NxmNx 20 V10, Oxm 27 V12;
    Ipv6Label 4: NxmNx 27 V10, Oxm 28 V12;
    IpProto 1: NxmOf 6 V10, Oxm 10 V12;
    IpTos 1: NxmOf 5 V10;
    IpDscp 1: Oxm 8 V10;
    IpEcn 1: NxmNx 28 V10, Oxm 9 V12;
    IpTtl 1: NxmNx 29 V10;
    IpFrag 1: NxmNx 26 V10;
    ArpOp 2: NxmOf 15 V10, Oxm 21 V12;
    ArpSpa 4: NxmOf 16 V10, Oxm 22 V12;
    ArpTpa 4: NxmOf 17 V10, Oxm 23 V12;
    ArpSha 6: NxmNx 17 V10, Oxm 24 V12;
    ArpTha 6: NxmNx 18 V10, Oxm 25 V12;
    TcpSrc 2: NxmOf 9 V10, Oxm 13 V12;
    TcpDst 2: NxmOf 10 V10, Oxm 14 V12;
    TcpFlags 2: NxmNx 34 V10, Onf 42 V13, Oxm 42 V15;
    UdpSrc 2: NxmOf 11 V10, Oxm 15 V12;
    UdpDst 2: NxmOf 12 V10, Oxm 16 V12;
    SctpSrc 2: Oxm 17 V10;
    SctpDst 2: Oxm 18 V10;
    Icmpv4Type 1: NxmOf 13 V10, Oxm 19 V12;
    Icmpv4Code 1: NxmOf 14 V10, Oxm 20 V12;
    Icmpv6Type 1: NxmNx 21 V10, Oxm 29 V12;
    Icmpv6Code 1: NxmNx 22 V10, Oxm 30 V12;
    NdTarget 16: NxmNx 23 V10, Oxm 31 V12;
    NdSll 6: NxmNx 24 V10, Oxm 32 V12;
    NdTll 6: NxmNx 25 V10, Oxm 33 V12;
    NdReserved 4: Ericsson 1 V10;
    NdOptionsType 1: Ericsson 2 V10;
    NshFlags 1: NxNsh 1 V10;
    NshMdtype 1: NxNsh 2 V10;
    NshNp 1: NxNsh 3 V10;
    NshSpi 4: NxNsh 4 V10;
    NshSi 1: NxNsh 5 V10;
    NshC1 4: NxNsh 6 V10;
    NshC2 4: NxNsh 7 V10;
    NshC3 4: NxNsh 8 V10;
    NshC4 4: NxNsh 9 V10;
    NshTtl 1: NxNsh 10 V10;
}

/// Row index + 1 by class and field number; 0: none. (All numbers are under 128: seven bits.)
const INDEX: [[u8; 128]; 8] = {
    let mut index = [[0; 128]; 8];
    let mut i = 0;
    while i < ROWS.len() {
        index[ROWS[i].class as usize][ROWS[i].number as usize] = i as u8 + 1;
        i += 1;
    }
    index
};

const fn register(field: Field, class: Class, number: u8, bytes: u8) -> Oxm {
    Oxm { field, class, number, bytes, since: Version::V10 }
}

/// The bits of `tun_flags` that OpenFlow has: OAM.
pub(crate) const TUN_FLAGS_MASK: u128 = 1;

impl Oxm {
    /// The wire form with this class and number (`NXM_NX_COOKIE` differs in its length).
    pub fn by_number(class: Class, number: u8) -> Option<Oxm> {
        match (class, number) {
            (Class::NxmNx, n @ 0..16) => Some(register(Field::Reg(n), class, n, 4)),
            (Class::NxmNx, n @ XXREG0..115) => {
                Some(register(Field::Xxreg(n - XXREG0), class, n, 16))
            }
            (Class::NxmNx, n @ TUN_METADATA0..=TUN_METADATA63) => {
                let field = Field::TunMetadata(n - TUN_METADATA0);
                Some(register(field, class, n, TUN_METADATA_MAX as u8))
            }
            (Class::PktReg, n @ 0..8) => Some(register(Field::Xreg(n), class, n, 8)),
            (_, 0..128) => {
                let row = INDEX[class as usize][number as usize];
                row.checked_sub(1).map(|i| ROWS[i as usize])
            }
            _ => None,
        }
    }

    /// The form a version sends: OXM where that version has it, the older one otherwise.
    pub fn of(version: Version, field: Field) -> Oxm {
        match field {
            Field::Reg(n) => return register(field, Class::NxmNx, n, 4),
            Field::Xreg(n) => return register(field, Class::PktReg, n, 8),
            Field::Xxreg(n) => return register(field, Class::NxmNx, XXREG0 + n, 16),
            Field::TunMetadata(n) => {
                let max = TUN_METADATA_MAX as u8;
                return register(field, Class::NxmNx, TUN_METADATA0 + n, max);
            }
            _ => {}
        }
        let forms = ROWS.iter().filter(|r| r.field == field);
        let mut usable = forms.filter(|r| r.since <= version);
        *usable.next_back().expect("every field has a form since 1.0")
    }

    /// Appends the header, for a value alone or (`masked`) value and mask.
    pub fn put_header(self, masked: bool, out: &mut Vec<u8>) {
        let experimenter = self.class.experimenter();
        let len = self.bytes << u8::from(masked);
        out.extend(self.class.number().to_be_bytes());
        out.push(self.number << 1 | u8::from(masked));
        out.push(len + 4 * u8::from(experimenter.is_some()));
        out.extend(experimenter.iter().flat_map(|id| id.to_be_bytes()));
    }

    /// Appends a value of the field in this form's width.
    pub fn put_value(self, value: u128, out: &mut Vec<u8>) {
        let value = match (self.class, self.field) {
            (Class::NxmOf, Field::InPort) => u128::from(port_to_10(value as u32)),
            _ => value,
        };
        put_be(value, self.bytes, out);
    }

    /// Appends a mask: right-aligned, as wide as the wire's value.
    pub fn put_mask(self, mask: u128, out: &mut Vec<u8>) {
        put_be(mask, self.bytes, out);
    }

    /// All ones in the width of the wire.
    pub const fn wire_full(self) -> u128 {
        match self.bytes {
            0..16 => (1 << (8 * self.bytes as u32)) - 1,
            _ => u128::MAX,
        }
    }

    /// Turns a value on the wire into the field's. Errors: [`OfError::MatchBadValue`].
    pub fn value(self, wire: u128) -> Result<u128, OfError> {
        let value = match (self.class, self.field) {
            (Class::NxmOf, Field::InPort) => u128::from(port_from_10(wire as u16)),
            _ => wire,
        };
        let valid = match self.field {
            Field::InPort | Field::ActsetOutput => port_is_valid(value as u32),
            Field::IpTos => value & 3 == 0,
            Field::NshTtl => value <= 63,
            Field::NshMdtype => matches!(value, 1 | 2),
            Field::TunFlags => value & !TUN_FLAGS_MASK == 0,
            f => value <= f.full(),
        };
        if valid { Ok(value) } else { Err(OfError::MatchBadValue) }
    }
}

/// Appends the headers of the fields that only ovs-vswitchd's own flows match; `masked`: the hash
/// may have a mask.
pub(crate) fn put_private_headers(masked: bool, out: &mut Vec<u8>) {
    out.extend([0, 1, DP_HASH << 1 | u8::from(masked), 4 << u8::from(masked)]);
    out.extend([0, 1, RECIRC_ID << 1, 4]);
}

/// Appends the entry of `NXM_NX_RECIRC_ID` for packets that were not looked up before.
pub(crate) fn put_no_recirculation(out: &mut Vec<u8>) {
    out.extend([0, 1, RECIRC_ID << 1, 4, 0, 0, 0, 0]);
}

/// Appends the entry of a tunnel option.
pub fn put_tun_metadata(t: &TunMetadata, out: &mut Vec<u8>) {
    let masked = !t.is_exact() || t.mask.is_empty();
    // Leading bytes without mask are not sent, as from OVS.
    let free = t.mask.iter().take_while(|m| masked && **m == 0).count();
    let free = free.min(t.mask.len().saturating_sub(1));
    let (value, mask) = (&t.value[free..], &t.mask[free..]);
    out.extend(Class::NxmNx.number().to_be_bytes());
    out.push((TUN_METADATA0 + t.index) << 1 | u8::from(masked));
    out.push((value.len() << u8::from(masked)) as u8);
    out.extend(value);
    if masked {
        out.extend(mask);
    }
}

/// Appends the low `bytes` bytes, most significant first.
pub fn put_be(value: u128, bytes: u8, out: &mut Vec<u8>) {
    out.extend(&value.to_be_bytes()[16 - usize::from(bytes)..]);
}

/// A big-endian number of at most 16 bytes.
pub fn get_be(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |v, b| v << 8 | u128::from(*b))
}

/// OpenFlow 1.0's 16-bit port number as 32-bit one.
pub fn port_from_10(port10: u16) -> u32 {
    if port10 >= 0xff00 { u32::from(port10) | 0xffff_0000 } else { u32::from(port10) }
}

/// A 32-bit port number as OpenFlow 1.0's.
pub fn port_to_10(port: u32) -> u16 {
    port as u16
}

/// True if it is a 16-bit port number or a reserved one, by OVS's numbers.
pub fn port_is_valid(port: u32) -> bool {
    !(0xff00..port::MAX).contains(&port)
}

/// The header of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OxmHeader {
    class: u16,
    experimenter: u32,
    number: u8,
    /// Value and mask follow.
    pub masked: bool,
    /// Bytes that follow the header.
    pub payload: usize,
    /// Bytes of the header itself: 4 or 8.
    pub size: usize,
}

impl OxmHeader {
    /// Reads the header at the start of `buf`. Errors: [`OfError::MatchBadLen`].
    pub fn parse(buf: &[u8]) -> Result<OxmHeader, OfError> {
        let head: &[u8; 4] = buf.first_chunk().ok_or(OfError::MatchBadLen)?;
        let mut header = OxmHeader {
            class: u16::from_be_bytes([head[0], head[1]]),
            experimenter: 0,
            number: head[2] >> 1,
            masked: head[2] & 1 == 1,
            payload: usize::from(head[3]),
            size: 4,
        };
        if header.class == EXPERIMENTER {
            let id: &[u8; 4] = buf[4..].first_chunk().ok_or(OfError::MatchBadLen)?;
            header.experimenter = u32::from_be_bytes(*id);
            header.size = 8;
            header.payload = header.payload.checked_sub(4).ok_or(OfError::MatchBadLen)?;
        }
        Ok(header)
    }

    /// Bytes of the value alone.
    pub fn value_bytes(&self) -> usize {
        if self.masked { self.payload / 2 } else { self.payload }
    }

    /// True if its length counts more than the value's presence: a known field of another length
    /// is of the wrong length then.
    pub fn is_sized(&self) -> bool {
        self.value_bytes() > 0 || self.class == EXPERIMENTER
    }

    /// True if the field is `NXM_NX_COOKIE`.
    pub fn is_cookie(&self) -> bool {
        self.class == 1 && self.number == COOKIE && self.payload == 8 << usize::from(self.masked)
    }

    /// True if the field is one of ovs-vswitchd's own flows, which others' flows may not match.
    pub fn is_private(&self) -> bool {
        let is_nxm = self.class == 1 && PRIVATE.contains(&self.number);
        let is_dp_hash = self.class == EXPERIMENTER && self.experimenter == NICIRA;
        (is_nxm || is_dp_hash && self.number == 0) && self.value_bytes() == 4
    }

    /// True if it is `NXM_NX_RECIRC_ID`.
    pub fn is_recirc_id(&self) -> bool {
        self.is_private() && self.class == 1 && self.number == RECIRC_ID
    }

    /// The field of its class and number, whatever the length is.
    pub fn named(&self) -> Option<Oxm> {
        Oxm::by_number(Class::from_numbers(self.class, self.experimenter)?, self.number)
    }

    /// The field it names, if class, number and length are known.
    pub fn oxm(&self) -> Option<Oxm> {
        let oxm = self.named()?;
        let bytes = usize::from(oxm.bytes) << usize::from(self.masked);
        let fits = match oxm.field {
            Field::TunMetadata(_) => self.payload <= bytes,
            _ => self.payload == bytes,
        };
        fits.then_some(oxm)
    }
}

/// An entry: header, value and mask.
#[derive(Clone, Copy, Debug)]
pub struct OxmEntry<'a> {
    /// The header.
    pub header: OxmHeader,
    /// The value as on the wire (0 for unknown fields over 16 bytes).
    pub value: u128,
    /// The mask as on the wire; all ones where the entry has none.
    pub mask: u128,
    /// Both as they came.
    pub payload: &'a [u8],
    /// Bytes of the whole entry.
    pub size: usize,
}

impl<'a> OxmEntry<'a> {
    /// Reads the entry at the start of `buf`. Errors: [`OfError::MatchBadLen`] where it is cut off,
    /// [`OfError::MatchBadWildcards`] where the value has bits outside the mask.
    pub fn parse(buf: &'a [u8]) -> Result<OxmEntry<'a>, OfError> {
        let header = OxmHeader::parse(buf)?;
        let size = header.size + header.payload;
        let payload = buf.get(header.size..size).ok_or(OfError::MatchBadLen)?;
        let n = header.value_bytes();
        let (value, mask) = (&payload[..n], &payload[n..]);
        if header.masked && value.iter().zip(mask).any(|(v, m)| v & !m != 0) {
            return Err(OfError::MatchBadWildcards);
        }
        let (value, mask) = match (header.masked, n) {
            (_, 0 | 17..) => (0, 0),
            (true, _) => (get_be(value), get_be(mask)),
            (false, _) => (get_be(value), u128::MAX >> (128 - 8 * n)),
        };
        Ok(OxmEntry { header, value, mask, payload, size })
    }

    /// The tunnel option that the entry is about, if it is.
    pub fn tun_metadata(&self) -> Option<TunMetadata> {
        let Some(Field::TunMetadata(index)) = self.header.oxm().map(|oxm| oxm.field) else {
            return None;
        };
        let (value, mask) = self.payload.split_at(self.header.value_bytes());
        Some(match (self.header.masked, value.is_empty()) {
            (true, true) => TunMetadata::masked(index, &[0], &[0]),
            (true, false) => TunMetadata::masked_bytes(index, value, mask),
            (false, true) => TunMetadata::exact(index, &[0]),
            (false, false) => TunMetadata::exact(index, value),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::FIELDS;

    const VERSIONS: [Version; 6] =
        [Version::V10, Version::V11, Version::V12, Version::V13, Version::V14, Version::V15];

    #[test]
    fn every_form_is_found_by_its_header() {
        let registers = [Field::Reg(15), Field::Xreg(7), Field::Xxreg(3), Field::TunMetadata(63)];
        for field in FIELDS.iter().copied().chain(registers) {
            for version in VERSIONS {
                for masked in [false, true] {
                    let oxm = Oxm::of(version, field);
                    let mut buf = vec![];
                    oxm.put_header(masked, &mut buf);
                    let header = OxmHeader::parse(&buf).unwrap();
                    assert_eq!(header.oxm(), Some(oxm), "{field:?} {version:?}");
                    assert_eq!(header.size, buf.len());
                    assert_eq!(header.masked, masked);
                    assert_eq!(header.value_bytes(), usize::from(oxm.bytes));
                }
            }
        }
    }

    #[test]
    fn versions_choose_their_forms() {
        let class = |v, f| Oxm::of(v, f).class;
        assert_eq!(class(Version::V10, Field::EthDst), Class::NxmOf);
        assert_eq!(class(Version::V12, Field::EthDst), Class::Oxm);
        assert_eq!(class(Version::V12, Field::TunId), Class::NxmNx);
        assert_eq!(class(Version::V13, Field::TunId), Class::Oxm);
        assert_eq!(class(Version::V13, Field::TcpFlags), Class::Onf);
        assert_eq!(class(Version::V15, Field::TcpFlags), Class::Oxm);
        assert_eq!(class(Version::V15, Field::IpTtl), Class::NxmNx);
    }

    #[test]
    fn what_only_the_switch_matches_is_named_and_refused() {
        let mut named = vec![];
        put_private_headers(true, &mut named);
        assert_eq!(named, [0, 1, 35 << 1 | 1, 8, 0, 1, 36 << 1, 4]);
        for header in named.chunks(4) {
            let header = OxmHeader::parse(header).unwrap();
            assert!(header.is_private() && header.oxm().is_none());
            let entry = [&[0, 1, header.number << 1, 4][..], &[0, 0, 0, 5]].concat();
            let refused = crate::matching::decode_oxm_list(&entry);
            assert_eq!(refused.map(|_| ()), Err(OfError::RequestEperm));
        }
    }

    /// A megaflow's text, typed as a flow's match, begins with `recirc_id=0`.
    #[test]
    fn first_lookups_may_be_asked_for() {
        let entry = [0, 1, 36 << 1, 4, 0, 0, 0, 0];
        let m = crate::matching::decode_oxm_list(&entry).unwrap();
        assert_eq!(m.mask.u32(flow::at::RECIRC), !0);
        let mut out = vec![];
        crate::matching::encode_oxm_list(Version::V13, &m, &mut out);
        assert_eq!(out, entry);
        let twice = crate::matching::decode_oxm_list(&[entry, entry].concat());
        assert_eq!(twice.map(|_| ()), Err(OfError::MatchDupField));
        let masked = |mask: &[u8; 4]| [&[0, 1, 36 << 1 | 1, 8, 0, 0, 0, 0], &mask[..]].concat();
        assert_eq!(crate::matching::decode_oxm_list(&masked(&[0xff; 4])), Ok(m));
        let partly = crate::matching::decode_oxm_list(&masked(&[0, 0, 0, 7]));
        assert_eq!(partly, Err(OfError::MatchBadMask));
        // All values of the hash.
        let any = [0, 1, 35 << 1 | 1, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(crate::matching::decode_oxm_list(&any), Ok(crate::Match::default()));
    }

    /// A packet type is said before fields that only Ethernet packets have.
    #[test]
    fn the_packet_type_comes_first() {
        let (kind, eth_type) = ([0x80, 0, 44 << 1, 4, 0, 0, 0, 0], [0x80, 0, 5 << 1, 2, 8, 0]);
        let decode =
            |entries: [&[u8]; 2]| crate::matching::decode_oxm_list(&entries.concat()).map(|_| ());
        assert_eq!(decode([&kind, &eth_type]), Ok(()));
        assert_eq!(decode([&eth_type, &kind]), Err(OfError::MatchDupField));
    }

    #[test]
    fn the_cookie_is_not_mpls_ttl() {
        let cookie = OxmHeader::parse(&[0, 1, 30 << 1, 8]).unwrap();
        assert!(cookie.is_cookie());
        assert_eq!(cookie.oxm(), None);
        let ttl = OxmHeader::parse(&[0, 1, 30 << 1, 1]).unwrap();
        assert!(!ttl.is_cookie());
        assert_eq!(ttl.oxm().map(|o| o.field), Some(Field::MplsTtl));
    }

    #[test]
    fn cut_entries_and_stray_bits_are_refused() {
        assert_eq!(OxmHeader::parse(&[0x80, 0, 10]), Err(OfError::MatchBadLen));
        assert_eq!(OxmHeader::parse(&[0xff, 0xff, 86, 8, 0x4f]), Err(OfError::MatchBadLen));
        assert!(matches!(OxmEntry::parse(&[0x80, 0, 10, 2, 8]), Err(OfError::MatchBadLen)));
        let stray = [0x80, 0, 0x17, 8, 10, 0, 0, 1, 255, 255, 255, 0];
        assert!(matches!(OxmEntry::parse(&stray), Err(OfError::MatchBadWildcards)));
    }
}
