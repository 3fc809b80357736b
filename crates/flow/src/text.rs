//! Parts that the text forms share: masked values, flag names, errors.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{Field, Key, Mask};

/// The reason why a text is not a match or a flow, as a message to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError(pub(crate) String);

impl std::fmt::Display for TextError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TextError {}

/// Bytes of the longest text of a match or a flow: all fields there are have some 2,000.
pub const TEXT_MAX: usize = 0xffff;

/// Refuses a text that is too long.
pub(crate) fn check_length(text: &str) -> Result<(), TextError> {
    match text.len() {
        0..=TEXT_MAX => Ok(()),
        _ => err(format!("a flow has more than {TEXT_MAX} bytes")),
    }
}

pub(crate) fn err<T>(text: impl Into<String>) -> Result<T, TextError> {
    Err(TextError(text.into()))
}

/// Names of the bits of `ct_state`.
pub(crate) const CT_STATE: &[(u32, &str)] = &[
    (0x01, "new"),
    (0x02, "est"),
    (0x04, "rel"),
    (0x08, "rpl"),
    (0x10, "inv"),
    (0x20, "trk"),
    (0x40, "snat"),
    (0x80, "dnat"),
];

/// Names of the TCP flags.
pub(crate) const TCP_FLAGS: &[(u32, &str)] = &[
    (0x001, "fin"),
    (0x002, "syn"),
    (0x004, "rst"),
    (0x008, "psh"),
    (0x010, "ack"),
    (0x020, "urg"),
    (0x040, "ece"),
    (0x080, "cwr"),
    (0x100, "ns"),
    (0x200, "[200]"),
    (0x400, "[400]"),
    (0x800, "[800]"),
];

/// Names of the tunnel flags.
pub(crate) const TUN_FLAGS: &[(u32, &str)] =
    &[(0x2, "df"), (0x4, "csum"), (0x8, "key"), (0x1, "oam")];

/// A value with its mask.
#[derive(Clone, Copy)]
pub(crate) struct Masked {
    pub value: u128,
    pub mask: u128,
    pub full: u128,
}

impl Masked {
    pub fn of(field: Field, key: &Key, mask: &Mask) -> Masked {
        Masked { value: field.get(key), mask: field.get(mask), full: field.full() }
    }

    /// `n` bytes at an offset that has no [`Field`].
    pub fn at(at: usize, n: usize, key: &Key, mask: &Mask) -> Masked {
        let number = |k: &Key| k.bytes()[at..at + n].iter().fold(0, |v, b| v << 8 | u128::from(*b));
        Masked { value: number(key), mask: number(mask), full: (1 << (8 * n)) - 1 }
    }

    pub fn any(self) -> bool {
        self.mask == 0
    }

    pub fn exact(self) -> bool {
        self.mask == self.full
    }

    /// The masked value.
    pub fn bits(self) -> u128 {
        self.value & self.mask
    }
}

/// `0x..`, but a plain `0` for zero (C's `%#x`).
pub(crate) fn hex(v: u128) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

/// `aa:bb:cc:dd:ee:ff`.
pub(crate) fn ethernet(v: u128) -> String {
    let b = v.to_be_bytes();
    let mut out = String::with_capacity(17);
    for (i, b) in b[10..].iter().enumerate() {
        let _ = write!(out, "{}{b:02x}", if i > 0 { ":" } else { "" });
    }
    out
}

pub(crate) fn ipv4(v: u128) -> String {
    Ipv4Addr::from(v as u32).to_string()
}

pub(crate) fn ipv6(v: u128) -> String {
    Ipv6Addr::from(v).to_string()
}

/// The length of a prefix mask of `bits` bits, if it is one.
pub(crate) fn prefix_len(mask: u128, bits: usize) -> Option<u32> {
    let aligned = mask << (128 - bits);
    (aligned.leading_ones() == aligned.count_ones()).then_some(aligned.count_ones())
}

/// `a|b|c`, or `0`; bits without a name as one hexadecimal number.
pub(crate) fn flags(names: &[(u32, &str)], v: u32) -> String {
    let mut parts: Vec<String> =
        names.iter().filter(|(bit, _)| v & bit != 0).map(|(_, n)| (*n).into()).collect();
    let rest = names.iter().fold(v, |v, (bit, _)| v & !bit);
    if rest != 0 {
        parts.push(format!("{rest:#x}"));
    }
    if parts.is_empty() { "0".into() } else { parts.join("|") }
}

/// `+a-b`, or `a|b` when the mask is `full`, or `0/0` when the mask is zero.
pub(crate) fn flags_masked(names: &[(u32, &str)], m: Masked) -> String {
    if m.exact() {
        return flags(names, m.value as u32);
    }
    if m.any() { "0/0".into() } else { flags_each(names, m) }
}

/// Every bit of the mask, with its sign.
pub(crate) fn flags_each(names: &[(u32, &str)], m: Masked) -> String {
    let known = names.iter().filter(|(bit, _)| m.mask & u128::from(*bit) != 0);
    known
        .map(|(bit, n)| format!("{}{n}", if m.value as u32 & bit != 0 { '+' } else { '-' }))
        .collect()
}

/// A number as C writes it: decimal, hexadecimal after `0x`, octal after `0`.
pub fn number(text: &str) -> Result<u128, TextError> {
    let text = text.trim();
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    let parsed = match digits.starts_with('+') {
        true => "".parse(),
        false => u128::from_str_radix(digits, radix),
    };
    parsed.or_else(|_| err(format!("{text}: not a number")))
}

/// A number of at most `full`.
pub(crate) fn number_up_to(text: &str, full: u128) -> Result<u128, TextError> {
    match number(text)? {
        v if v <= full => Ok(v),
        _ => err(format!("{text}: value too large (maximum {full:#x})")),
    }
}

pub(crate) fn parse_ethernet(text: &str) -> Result<u128, TextError> {
    let bad = || TextError(format!("{text}: invalid Ethernet address"));
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() != 6 || parts.iter().any(|p| p.is_empty() || p.len() > 2) {
        return Err(bad());
    }
    parts.iter().try_fold(0u128, |v, p| {
        Ok(v << 8 | u128::from(u8::from_str_radix(p, 16).map_err(|_| bad())?))
    })
}

/// An IPv4 or IPv6 address as a number of `bits` bits.
pub(crate) fn parse_ip(text: &str, bits: usize) -> Result<u128, TextError> {
    let v4 = || text.parse::<Ipv4Addr>().ok().map(|a| u128::from(u32::from(a)));
    let v6 = || text.parse::<Ipv6Addr>().ok().map(u128::from);
    let parsed = if bits == 32 { v4() } else { v6() };
    parsed.ok_or_else(|| TextError(format!("{text}: invalid IP address")))
}

/// A prefix length or an address used as a mask.
pub(crate) fn parse_ip_mask(text: &str, bits: usize) -> Result<u128, TextError> {
    let Ok(len) = text.parse::<usize>() else { return parse_ip(text, bits) };
    let full = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
    match len {
        0 => Ok(0),
        n if n <= bits => Ok(full & (full << (bits - n))),
        _ => err(format!("/{text}: prefix length is not between 0 and {bits}")),
    }
}

fn flag_bit(names: &[(u32, &str)], name: &str) -> Result<u32, TextError> {
    let found = names.iter().find(|(_, n)| *n == name);
    found.map(|(bit, _)| *bit).ok_or_else(|| TextError(format!("{name}: unknown flag")))
}

/// `+a-b`, `a|b`, `0`, `0x12` or `0x2/0x12`, as (value, mask).
pub(crate) fn parse_flags(
    text: &str,
    names: &[(u32, &str)],
    full: u128,
) -> Result<(u128, u128), TextError> {
    if text.starts_with(['+', '-']) {
        let (mut value, mut mask) = (0, 0);
        let starts: Vec<usize> =
            text.char_indices().filter(|(_, c)| matches!(c, '+' | '-')).map(|(i, _)| i).collect();
        for (n, &at) in starts.iter().enumerate() {
            let end = starts.get(n + 1).copied().unwrap_or(text.len());
            let bit = flag_bit(names, &text[at + 1..end])?;
            mask |= bit;
            value |= if text[at..].starts_with('+') { bit } else { 0 };
        }
        return Ok((value.into(), mask.into()));
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains('|') {
        return match text.split_once('/') {
            Some((v, m)) => Ok((number_up_to(v, full)?, number_up_to(m, full)?)),
            None => Ok((number_up_to(text, full)?, full)),
        };
    }
    let bits = text.split('|').try_fold(0, |v, name| match number(name) {
        Ok(n) if n <= full => Ok(v | n as u32),
        _ => Ok(v | flag_bit(names, name)?),
    })?;
    Ok((bits.into(), full))
}

/// Parses a state of connection tracking as given to `ofproto/trace --ct-next`: `trk,new`. Errors
/// have the wording of ovs-vswitchd.
pub fn parse_ct_state(text: &str) -> Result<u8, String> {
    let mut names = text.split([',', ' ']).filter(|name| !name.is_empty());
    let state = names.try_fold(0, |state: u32, name| {
        let found = CT_STATE.iter().find(|(_, n)| *n == name);
        let (bit, _) =
            found.ok_or_else(|| format!("{name}: unknown connection tracking state flag"))?;
        Ok::<u32, String>(state | bit)
    })?;
    let has = |bit: u32| state & bit != 0;
    let [new, est, rpl, inv, trk] = [0x01, 0x02, 0x08, 0x10, 0x20];
    let wrong = [
        (state != 0 && !has(trk), "If \"trk\" is unset, no other flags are set"),
        (has(inv) && has(!(trk | inv)), "when \"inv\" is set, only \"trk\" may also be set"),
        (has(new) && has(est), "\"new\" and \"est\" are mutually exclusive"),
        (has(new) && has(rpl), "\"new\" and \"rpy\" are mutually exclusive"),
    ];
    let text = flags(CT_STATE, state);
    let line = |why| format!("{text}: invalid connection state: {why}\n");
    let errors: String = wrong.iter().filter(|(is, _)| *is).map(|(_, why)| line(why)).collect();
    if errors.is_empty() { Ok(state as u8) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_masks() {
        assert_eq!(number("0x10"), Ok(16));
        assert_eq!((number("010"), number("0")), (Ok(8), Ok(0)));
        assert!(number("08").is_err());
        assert!(number("0x").is_err() && number("+1").is_err() && number("").is_err());
        assert_eq!(prefix_len(0xff00_0000, 32), Some(8));
        assert_eq!(prefix_len(0xff00_ff00, 32), None);
        assert_eq!(parse_ip_mask("24", 32), Ok(0xffff_ff00));
        assert_eq!(parse_ip_mask("0", 128), Ok(0));
        assert_eq!(parse_ip_mask("255.0.255.0", 32), Ok(0xff00_ff00));
        assert!(parse_ip_mask("33", 32).is_err());
    }

    #[test]
    fn flag_texts() {
        assert_eq!(parse_flags("+trk-new", CT_STATE, 0xff), Ok((0x20, 0x21)));
        assert_eq!(parse_flags("trk|new", CT_STATE, 0xff), Ok((0x21, 0xff)));
        assert_eq!(parse_flags("0x2/0x12", TCP_FLAGS, 0xfff), Ok((2, 0x12)));
        assert!(parse_flags("+what", CT_STATE, 0xff).is_err());
        assert!(parse_flags("", CT_STATE, 0xff).is_err());
    }
}
