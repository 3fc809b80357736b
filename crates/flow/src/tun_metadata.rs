//! Options of a tunnel's header as OpenFlow names them: `tun_metadata0` to `tun_metadata63`.
//!
//! A [`crate::Key`] does not contain them: few packets have any, and together they may have 256
//! bytes.

use crate::text::{TextError, err};
use std::fmt::Write;

/// Number of the fields.
pub const TUN_METADATAS: u8 = 64;
/// Bytes of the longest option.
pub const TUN_METADATA_MAX: usize = 124;

/// A field of a match, or (with all bits in the mask) of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TunMetadata {
    /// Number of the field, below [`TUN_METADATAS`].
    pub index: u8,
    /// False, in megaflows only: the packet does not have the option.
    pub present: bool,
    /// The value, zero where the mask is zero.
    pub value: Box<[u8]>,
    /// The mask, of the same length. All zero: the option must be present.
    pub mask: Box<[u8]>,
}

impl TunMetadata {
    /// A field with a full mask.
    pub fn exact(index: u8, value: &[u8]) -> Self {
        let mask = vec![0xff; value.len()].into();
        TunMetadata { index, present: true, value: value.into(), mask }
    }

    /// A field with a mask of the same length as its value.
    pub fn masked(index: u8, value: &[u8], mask: &[u8]) -> Self {
        let value = value.iter().zip(mask).map(|(v, m)| v & m).collect();
        TunMetadata { index, present: true, value, mask: mask.into() }
    }

    /// A field of whose last bytes these bits are matched, and no others of a longer option, even
    /// if the mask is full.
    pub fn masked_bytes(index: u8, value: &[u8], mask: &[u8]) -> Self {
        let t = TunMetadata::masked(index, value, mask);
        if !t.is_exact() || mask.is_empty() || mask.len() >= TUN_METADATA_MAX {
            return t;
        }
        let longer = |bytes: &[u8]| resized(bytes, bytes.len() + 1, 0);
        TunMetadata { value: longer(&t.value), mask: longer(&t.mask), ..t }
    }

    /// A field of which `bits` (at most 64) bits from `ofs` on are matched.
    pub fn subfield(index: u8, ofs: u16, bits: u16, value: u64) -> Self {
        let ones = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        let len = usize::from((ofs + bits).div_ceil(8)).max(1);
        let place = |v: u64| -> Vec<u8> {
            let wide = u128::from(v) << (ofs % 8);
            let up = usize::from(ofs / 8);
            let byte = |i: usize| wide.checked_shr(8 * i as u32).unwrap_or(0) as u8;
            (0..len).rev().map(|i| if i < up { 0 } else { byte(i - up) }).collect()
        };
        TunMetadata::masked_bytes(index, &place(value & ones), &place(ones))
    }

    /// Whether every bit is in the mask.
    pub fn is_exact(&self) -> bool {
        self.mask.iter().all(|m| *m == 0xff)
    }

    /// This tunnel option's value with a length of `len` bytes: a longer one gets leading zeros, a
    /// shorter one loses leading bytes that are not in the mask, then its last ones.
    pub fn resized(&self, len: usize) -> TunMetadata {
        let fill = if self.is_exact() { 0xff } else { 0 };
        let free = self.mask.iter().take_while(|m| **m == 0).count();
        let free = free.min(self.mask.len().saturating_sub(len));
        TunMetadata {
            value: resized(&self.value[free..], len, 0),
            mask: resized(&self.mask[free..], len, fill),
            ..*self
        }
    }

    /// Whether a packet with this value matches.
    pub fn takes(&self, value: &[u8]) -> bool {
        let bits = self.value.iter().zip(&self.mask).zip(value);
        value.len() == self.value.len() && bits.fold(0, |d, ((v, m), p)| d | (v ^ p) & m) == 0
    }

    /// Whether every packet that matches `self` matches `other`, which has the same index.
    pub fn within(&self, other: &TunMetadata) -> bool {
        let bits = self.mask.iter().zip(&other.mask);
        bits.fold(0, |d, (m, o)| d | o & !m) == 0 && other.takes(&self.value)
    }

    /// Whether a packet can match both, which have the same index.
    pub fn overlaps(&self, other: &TunMetadata) -> bool {
        let both: Box<[u8]> = self.mask.iter().zip(&other.mask).map(|(m, o)| m & o).collect();
        TunMetadata { mask: both, ..self.clone() }.takes(&other.value)
    }

    /// `tun_metadata3=0x12/0xff`, as OVS prints it.
    pub fn text(&self) -> String {
        let mut out = format!("tun_metadata{}", self.index);
        if !self.present {
            out.push_str("=NP");
        } else if self.mask.iter().any(|m| *m != 0) {
            let _ = write!(out, "={}", self.value_text());
        }
        out
    }

    /// `0x12/0xff`.
    pub fn value_text(&self) -> String {
        match self.is_exact() {
            true => long_hex(&self.value),
            false => format!("{}/{}", long_hex(&self.value), long_hex(&self.mask)),
        }
    }

    /// Parses the field `name` with the value and mask of a match; None if it is another field.
    pub fn parse(name: &str, value: Option<&str>) -> Option<Result<TunMetadata, TextError>> {
        let index = name.strip_prefix("tun_metadata")?.parse::<u8>().ok()?;
        (index < TUN_METADATAS).then(|| {
            let Some(text) = value else { return Ok(TunMetadata::masked(index, &[0], &[0])) };
            let Some((value, mask)) = text.split_once('/') else {
                return Ok(TunMetadata::exact(index, &long_number(text)?));
            };
            let (value, mask) = (long_number(value)?, long_number(mask)?);
            let len = value.len().max(mask.len());
            Ok(TunMetadata::masked(index, &resized(&value, len, 0), &resized(&mask, len, 0)))
        })
    }
}

/// Adds the mask of `new` to the fields of a megaflow, which have one entry for each index.
pub fn look_at(all: &mut Vec<TunMetadata>, new: &TunMetadata) {
    match all.iter_mut().find(|t| t.index == new.index) {
        Some(t) if t.mask.len() == new.mask.len() => {
            t.mask.iter_mut().zip(&new.mask).for_each(|(m, n)| *m |= n);
        }
        Some(_) => {}
        None => {
            all.push(new.clone());
            all.sort_by_key(|t| t.index);
        }
    }
}

fn resized(bytes: &[u8], len: usize, fill: u8) -> Box<[u8]> {
    let more = len.saturating_sub(bytes.len());
    let kept = &bytes[..bytes.len().min(len)];
    std::iter::repeat_n(fill, more).chain(kept.iter().copied()).collect()
}

/// A number of any length in hexadecimal, without leading zeros; `0` has no prefix.
pub fn long_hex(bytes: &[u8]) -> String {
    let Some(first) = bytes.iter().position(|b| *b != 0) else { return "0".into() };
    let mut out = format!("{:#x}", bytes[first]);
    bytes[first + 1..].iter().for_each(|b| {
        let _ = write!(out, "{b:02x}");
    });
    out
}

/// A decimal number, or a hexadecimal one of at most [`TUN_METADATA_MAX`] bytes: at least one byte,
/// without leading zeros.
pub(crate) fn long_number(text: &str) -> Result<Vec<u8>, TextError> {
    let Some(digits) = text.strip_prefix("0x") else {
        let Ok(n) = text.parse::<u64>() else { return err(format!("{text}: not a number")) };
        let bytes = n.to_be_bytes();
        return Ok(bytes[(n.leading_zeros() as usize / 8).min(7)..].to_vec());
    };
    let digits = digits.trim_start_matches('0');
    let known = digits.chars().all(|c| c.is_ascii_hexdigit()) && text.len() > 2;
    if !known || digits.len() > 2 * TUN_METADATA_MAX {
        return err(format!("{text}: not a number, or too long"));
    }
    let even = format!("{}{digits}", if digits.len() % 2 == 1 { "0" } else { "" });
    let byte = |i| u8::from_str_radix(&even[2 * i..2 * i + 2], 16).unwrap_or(0);
    let bytes: Vec<u8> = (0..even.len() / 2).map(byte).collect();
    Ok(if bytes.is_empty() { vec![0] } else { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str, value: Option<&str>) -> TunMetadata {
        TunMetadata::parse(name, value).unwrap().unwrap()
    }

    #[test]
    fn a_part_of_whole_bytes_is_not_the_whole_option() {
        for part in
            [TunMetadata::masked_bytes(1, &[0xef], &[0xff]), TunMetadata::subfield(1, 0, 8, 0xef)]
        {
            let whole = part.resized(8);
            assert_eq!(whole.text(), "tun_metadata1=0xef/0xff");
            assert!(whole.takes(&[1, 2, 3, 4, 5, 6, 7, 0xef]));
            assert_eq!(part.resized(1).text(), "tun_metadata1=0xef");
        }
        assert_eq!(TunMetadata::exact(1, &[0xef]).resized(2).text(), "tun_metadata1=0xef");
    }

    #[test]
    fn texts_and_lengths() {
        let m = parsed("tun_metadata0", Some("0xb/0xf")).resized(4);
        assert_eq!((&*m.value, &*m.mask), (&[0, 0, 0, 0xb][..], &[0, 0, 0, 0xf][..]));
        assert_eq!(m.text(), "tun_metadata0=0xb/0xf");
        assert!(m.takes(&[9, 9, 9, 0x1b]) && !m.takes(&[0, 0, 0, 0xa]) && !m.takes(&[0xb]));
        let m = parsed("tun_metadata3", Some("0x1234567890abcdef")).resized(8);
        assert_eq!(m.text(), "tun_metadata3=0x1234567890abcdef");
        let whole = parsed("tun_metadata1", Some("10")).resized(4);
        assert_eq!((whole.text(), &*whole.mask), ("tun_metadata1=0xa".into(), &[0xff; 4][..]));
        assert_eq!(parsed("tun_metadata1", Some("0")).resized(4).text(), "tun_metadata1=0");
        for len in [0, 4] {
            assert_eq!(parsed("tun_metadata63", None).resized(len).text(), "tun_metadata63");
        }
        assert_eq!(parsed("tun_metadata5", Some("0")).resized(0).text(), "tun_metadata5");
        assert!(TunMetadata::parse("tun_metadata64", None).is_none());
        assert!(TunMetadata::parse("tun_metadata1", Some("0xg")).unwrap().is_err());
    }

    #[test]
    fn sets_of_packets() {
        let t = |text: &str| parsed("tun_metadata0", Some(text)).resized(4);
        assert!(t("0x12").within(&t("0x10/0xf0")) && !t("0x10/0xf0").within(&t("0x12")));
        assert!(t("0x12").within(&t("0/0")) && !t("0x12").within(&t("0x20/0xf0")));
        assert!(t("0x10/0xf0").overlaps(&t("0x2/0xf")) && !t("0x12").overlaps(&t("0x13")));
    }
}
