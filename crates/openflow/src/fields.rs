//! Fields and subfields as arguments of actions, and how their bytes are read.

use crate::matching::entry_value;
use crate::oxm::{Class, Oxm, OxmEntry, OxmHeader, port_from_10};
use crate::prereq::VLAN_PRESENT;
use crate::{Action, OfError, Subfield, Version};
use flow::{Field, TUN_METADATA_MAX};

/// The bytes of a message part whose length was checked.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn array<const N: usize>(self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("length was checked")
    }
    pub fn u8(self, at: usize) -> u8 {
        self.0[at]
    }
    pub fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }
    pub fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }
    pub fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }
    pub fn from(self, at: usize) -> &'a [u8] {
        &self.0[at..]
    }
}

/// `error` unless every byte is zero.
pub(crate) fn zeros(bytes: &[u8], error: OfError) -> Result<(), OfError> {
    if bytes.iter().all(|b| *b == 0) { Ok(()) } else { Err(error) }
}

/// Bits that a subfield of this wire form may span: the field's, except where the wire's field is
/// wider than the key's, or where NXM's is narrower.
pub(crate) fn wire_bits(oxm: Oxm) -> u16 {
    match (oxm.class, oxm.field) {
        (_, Field::ArpOp) | (Class::NxmOf, Field::InPort) => 16,
        (_, Field::CtState) => 32,
        (_, Field::VlanVid) => 12,
        (_, Field::TunFlags) => 1,
        (_, Field::TunMetadata(_)) => 8 * TUN_METADATA_MAX as u16,
        (_, f) => f.bits() as u16,
    }
}

/// Reads a bare header (no value follows) at the start of `buf`. Returns the form and its size.
///
/// Errors: `MatchBadLen`, `MatchBadMask` for a masked one, `MatchBadField` for an unknown one.
pub(crate) fn pull_header(buf: &[u8]) -> Result<(Oxm, usize), OfError> {
    let header = OxmHeader::parse(buf)?;
    let oxm = header.oxm().ok_or(OfError::MatchBadField)?;
    if header.masked {
        return Err(OfError::MatchBadMask);
    }
    Ok((oxm, header.size))
}

/// A header of four bytes in an action of fixed form; one with a mask's bit and length names the
/// field all the same, as for ovs-vswitchd. Errors: `ActBadSetType`.
pub(crate) fn header32(bytes: [u8; 4]) -> Result<Oxm, OfError> {
    let header = OxmHeader::parse(&bytes).map_err(|_| OfError::ActBadSetType)?;
    header.oxm().ok_or(OfError::ActBadSetType)
}

/// A subfield to read. Errors: `ActBadSetLen` for one that is empty or reaches past the field.
pub(crate) fn source(oxm: Oxm, ofs: u16, bits: u16) -> Result<Subfield, OfError> {
    let end = u32::from(ofs) + u32::from(bits);
    if bits == 0 || end > u32::from(wire_bits(oxm)) {
        return Err(OfError::ActBadSetLen);
    }
    Ok(Subfield { field: oxm.field, ofs, bits })
}

/// A subfield to write. Errors: as [`source`], and `ActBadSetArgument` for a read-only field.
pub(crate) fn target(oxm: Oxm, ofs: u16, bits: u16) -> Result<Subfield, OfError> {
    let subfield = source(oxm, ofs, bits)?;
    if !oxm.field.writable() {
        return Err(OfError::ActBadSetArgument);
    }
    Ok(subfield)
}

/// Nicira's packed form of a subfield: offset in the upper ten bits, width less one in the others.
pub(crate) fn unpack(ofs_bits: u16) -> (u16, u16) {
    (ofs_bits >> 6, (ofs_bits & 0x3f) + 1)
}

/// A copy from one subfield to another; `ids`: the two headers, then zeros.
pub(crate) fn subfield_move(
    bits: u16,
    src_ofs: u16,
    dst_ofs: u16,
    ids: &[u8],
) -> Result<Action, OfError> {
    let (src, src_size) = pull_header(ids)?;
    let (dst, dst_size) = pull_header(&ids[src_size..])?;
    zeros(&ids[src_size + dst_size..], OfError::RequestMustBeZero)?;
    Ok(Action::Move { src: source(src, src_ofs, bits)?, dst: target(dst, dst_ofs, bits)? })
}

/// Nicira's load of a value into a subfield.
pub(crate) fn load(oxm: Oxm, ofs_bits: u16, value: u64) -> Result<Action, OfError> {
    let (ofs, bits) = unpack(ofs_bits);
    let dst = target(oxm, ofs, bits)?;
    if bits < 64 && value >> bits != 0 {
        return Err(OfError::ActBadArgument);
    }
    // NXM's 16-bit port becomes the 32-bit one, which the upper half of a reserved one needs.
    if oxm.class == Class::NxmOf && dst.field == Field::InPort && bits == 16 {
        let dst = Subfield { bits: 32, ..dst };
        return Ok(Action::Load { dst, value: port_from_10(value as u16).into() });
    }
    Ok(Action::Load { dst, value })
}

/// Looks at the field and the length of an entry that an action sets, before its value and mask are
/// looked at. Errors: `ActBadSetType`, `ActBadSetLen` for a known field of another length.
fn check_header(buf: &[u8]) -> Result<(), OfError> {
    let header = OxmHeader::parse(buf)?;
    match header.oxm() {
        Some(_) => Ok(()),
        None if header.is_private() => Err(OfError::ActBadSetArgument),
        None if header.is_sized() && header.named().is_some() => Err(OfError::ActBadSetLen),
        None => Err(OfError::ActBadSetType),
    }
}

/// The entry at the start of `buf`, then zeros, as (form, value, mask) for setting a field.
fn entry(buf: &[u8], may_mask: bool) -> Result<(Oxm, u128, u128), OfError> {
    let entry = OxmEntry::parse(buf)?;
    if entry.header.masked && !may_mask {
        return Err(OfError::ActBadSetMask);
    }
    let rest = &buf[entry.size..];
    let (oxm, value, mask) = match entry_value(&entry) {
        Err(OfError::MatchBadMask) => {
            let oxm = entry.header.oxm().expect("its mask was looked at");
            let value = oxm.value(entry.value).map_err(|_| OfError::ActBadSetArgument)?;
            (oxm, value, entry.mask & oxm.field.full())
        }
        other => other.map_err(|_| OfError::ActBadSetArgument)?,
    };
    zeros(rest, OfError::ActBadSetArgument)?;
    if !oxm.field.writable() {
        return Err(OfError::ActBadSetArgument);
    }
    let mask = match oxm.field {
        Field::IpTos => mask & 0xfc,
        _ => mask,
    };
    Ok((oxm, value, mask))
}

/// OpenFlow's set-field: `buf` is the entry and its padding. A mask is allowed from 1.5 on.
pub(crate) fn set_field(version: Version, buf: &[u8]) -> Result<Action, OfError> {
    check_header(buf)?;
    if let Some(set) = tun_metadata(buf, version >= Version::V15)? {
        return Ok(set);
    }
    let (oxm, value, mask) = entry(buf, version >= Version::V15)?;
    let present = u128::from(VLAN_PRESENT);
    let no_tag = oxm.field == Field::VlanVid && (value & mask & present == 0);
    if no_tag || (oxm.field == Field::InPort && oxm.class == Class::Oxm) {
        return Err(OfError::ActBadSetArgument);
    }
    Ok(written(buf, oxm, value, mask))
}

/// The action that sets a field. A whole field under a mask that does not fill its bytes is what
/// 1.5 and experimenters' fields have for a load.
fn written(buf: &[u8], oxm: Oxm, value: u128, mask: u128) -> Action {
    let field = oxm.field;
    let (bits, bytes) = (field.full().count_ones(), u32::from(oxm.bytes));
    let masked = OxmEntry::parse(buf).is_ok_and(|e| e.header.masked);
    let other = matches!(field, Field::VlanVid | Field::InPort | Field::ArpOp);
    if masked && field == Field::IpTos && mask == 0xfc {
        let dst = Subfield { field, ofs: 2, bits: 6 };
        return Action::Load { dst, value: (value >> 2) as u64 };
    }
    if !masked || mask != field.full() || bits >= 8 * bytes || bits > 64 || other {
        return Action::SetField { field, value, mask };
    }
    Action::Load { dst: Subfield { field, ofs: 0, bits: bits as u16 }, value: value as u64 }
}

/// A tunnel option to set, if it is one.
fn tun_metadata(buf: &[u8], may_mask: bool) -> Result<Option<Action>, OfError> {
    let entry = OxmEntry::parse(buf)?;
    let Some(t) = entry.tun_metadata() else { return Ok(None) };
    if entry.header.masked && !may_mask {
        return Err(OfError::ActBadSetMask);
    }
    zeros(&buf[entry.size..], OfError::ActBadSetArgument)?;
    Ok(Some(Action::SetTunMetadata(Box::new(t))))
}

/// Nicira's load of a whole entry.
pub(crate) fn load2(buf: &[u8]) -> Result<Action, OfError> {
    check_header(buf)?;
    if let Some(set) = tun_metadata(buf, true)? {
        return Ok(set);
    }
    let (oxm, value, mask) = entry(buf, true)?;
    Ok(written(buf, oxm, value, mask))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OfError::*;

    /// The error of a set-field with this entry, as ovs-vswitchd 3.1 has it.
    #[test]
    fn bad_entries_have_ovs_errors() {
        for (version, entry, error) in [
            // A field that does not exist, and one of another length; a value outside of the mask
            // and a mask that is not allowed are looked at afterwards.
            (Version::V13, "8000f60400000001", ActBadSetType),
            (Version::V15, "8000f704ffff0000", ActBadSetType),
            (Version::V13, "80001500", ActBadSetType),
            (Version::V13, "800016050a00000100", ActBadSetLen),
            (Version::V13, "80001605ffffff0000", ActBadSetLen),
            (Version::V13, "ffff55084f4e4600000f0000", MatchBadWildcards),
            (Version::V13, "ffff54064f4e4600000f", ActBadSetArgument),
            (Version::V15, "80001708ffffffff00000000", MatchBadWildcards),
            (Version::V13, "80001708000000000000ffff", ActBadSetMask),
            // What only ovs-vswitchd's own flows match is not written, by either of its names.
            (Version::V13, "0001460400000001", ActBadSetArgument),
            (Version::V13, "ffff00080000232000000001", ActBadSetArgument),
            // Values that such a field cannot have.
            (Version::V13, "ffff1405005ad65040", ActBadSetArgument),
            (Version::V13, "80000c0105", ActBadSetLen),
            (Version::V13, "80000e0108", ActBadSetArgument),
        ] {
            let byte = |i| u8::from_str_radix(&entry[i..i + 2], 16).unwrap();
            let bytes: Vec<u8> = (0..entry.len()).step_by(2).map(byte).collect();
            assert_eq!(set_field(version, &bytes).err(), Some(error), "{entry}");
        }
    }
}
