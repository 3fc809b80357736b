//! Settings of sessions: what is not valid is said, and has its default.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Reads values by their keys.
pub struct Reader<'a> {
    column: &'a BTreeMap<String, String>,
    /// What is wrong, as the log has it.
    pub wrong: Vec<String>,
}

impl<'a> Reader<'a> {
    /// A reader of these settings.
    pub fn new(column: &'a BTreeMap<String, String>) -> Self {
        Reader { column, wrong: Vec::new() }
    }

    /// The value, if there is one; says that it is wrong if `parse` does not know it.
    pub fn value<T>(&mut self, key: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.column.get(key).filter(|t| !t.is_empty())?;
        let value = parse(text);
        if value.is_none() {
            self.wrong.push(format!("{key}={text} is not valid, the default counts"));
        }
        value
    }

    /// True or false; false if it is not there.
    pub fn flag(&mut self, key: &str) -> bool {
        let parse = |t: &str| match t.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        self.value(key, parse).unwrap_or(false)
    }

    /// A number.
    pub fn number(&mut self, key: &str, range: std::ops::RangeInclusive<u64>, default: u64) -> u64 {
        let parse = |t: &str| t.parse().ok().filter(|n| range.contains(n));
        self.value(key, parse).unwrap_or(default)
    }

    /// An Ethernet address; zero is none.
    pub fn mac(&mut self, key: &str) -> Option<[u8; 6]> {
        let parse = |t: &str| {
            let bytes: Option<Vec<u8>> =
                t.split(':').map(|x| u8::from_str_radix(x, 16).ok()).collect();
            <[u8; 6]>::try_from(bytes?).ok()
        };
        self.value(key, parse).filter(|mac| *mac != [0; 6])
    }

    /// An IPv4 address.
    pub fn ip(&mut self, key: &str, default: Ipv4Addr) -> Ipv4Addr {
        self.value(key, |t| t.parse().ok()).unwrap_or(default)
    }
}
