//! Forms of settings' values. A value of another form has no effect, as with ovs-vswitchd, and the
//! log says so (`super::notices`).

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `true` or `false`.
    Flag,
    /// A whole number, zero or more.
    Whole,
    /// An Ethernet address that one station has.
    Address,
    /// An OpenFlow datapath id.
    DatapathId,
    /// `fast` or `slow`.
    Pace,
    /// How long single PMD threads, or all, may sleep.
    Sleeps,
    /// 0 to 255, also hexadecimal with `0x`.
    Byte,
    /// A whole number from the first to the second.
    Between(i64, i64),
}

impl Form {
    /// True if the value can be read.
    pub fn fits(self, value: &str) -> bool {
        match self {
            Form::Flag => ["true", "false"].contains(&value),
            Form::Whole => value.trim().parse::<u64>().is_ok(),
            Form::Address => parse_mac(value).is_some(),
            Form::DatapathId => parse_datapath_id(value).is_some(),
            Form::Pace => ["fast", "slow"].iter().any(|pace| value.eq_ignore_ascii_case(pace)),
            Form::Sleeps => parse_sleeps(value).is_some(),
            Form::Byte => parse_number(value).is_some_and(|n| n <= u8::MAX.into()),
            Form::Between(least, most) => {
                value.parse().is_ok_and(|n: i64| (least..=most).contains(&n))
            }
        }
    }

    /// What a value should have been.
    pub fn name(self) -> &'static str {
        match self {
            Form::Flag => "true or false",
            Form::Whole => "a number",
            Form::Address => "an Ethernet address of one station",
            Form::DatapathId => "a datapath id",
            Form::Pace => "fast or slow",
            Form::Sleeps => "a list of microseconds and CORE:MICROSECONDS",
            Form::Byte => "a number from 0 to 255",
            Form::Between(..) => "a number in its range",
        }
    }
}

/// An Ethernet address, unless it is a group's or zero.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> =
        text.split(':').map(|x| u8::from_str_radix(x, 16).ok()).collect::<Option<_>>()?;
    let mac: [u8; 6] = bytes.try_into().ok()?;
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

/// 16 hexadecimal digits, or up to 16 after `0x`; zero and anything else count as none.
pub fn parse_datapath_id(text: &str) -> Option<u64> {
    let digits = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(short) if short.len() <= 16 => short,
        None if text.len() == 16 => text,
        _ => return None,
    };
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|&id| plain && id != 0)
}

/// A number with or without `0x`.
pub fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// How long PMD threads may sleep, us: a list like `50,8:0`, of values for all cores (None) and for
/// single ones.
pub fn parse_sleeps(list: &str) -> Option<Vec<(Option<usize>, u64)>> {
    let one = |item: &str| {
        let (core, us) = match item.split_once(':') {
            None => (None, item),
            Some((core, us)) => (Some(core.trim().parse().ok()?), us),
        };
        Some((core, us.trim().parse().ok()?))
    };
    list.split(',').map(one).collect()
}
