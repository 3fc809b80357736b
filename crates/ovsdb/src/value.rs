//! Atoms, sets and maps of OVSDB and their JSON notation (RFC 7047 section 5.1).

use serde_json::{Value, json};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// A row's identifier: 128 bits, written as 8-4-4-4-12 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Uuid(pub u128);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = ((self.0 >> 64) as u64, self.0 as u64);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) as u16,
            high as u16,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID")]
pub struct NotAUuid;

impl FromStr for Uuid {
    type Err = NotAUuid;

    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return Err(NotAUuid);
        }
        let mut value = 0u128;
        for (i, &byte) in bytes.iter().enumerate() {
            if matches!(i, 8 | 13 | 18 | 23) {
                if byte != b'-' {
                    return Err(NotAUuid);
                }
            } else {
                let digit = (byte as char).to_digit(16).ok_or(NotAUuid)?;
                value = value << 4 | u128::from(digit);
            }
        }
        Ok(Self(value))
    }
}

/// One indivisible value.
#[derive(Clone, Debug)]
pub enum Atom {
    /// 64-bit signed integer.
    Integer(i64),
    /// Floating point number.
    Real(f64),
    /// Truth value.
    Boolean(bool),
    /// Unicode text.
    String(String),
    /// Reference to a row.
    Uuid(Uuid),
}

impl Atom {
    fn rank(&self) -> u8 {
        match self {
            Self::Integer(_) => 0,
            Self::Real(_) => 1,
            Self::Boolean(_) => 2,
            Self::String(_) => 3,
            Self::Uuid(_) => 4,
        }
    }

    /// Reads the JSON notation of an atom; `None` when it is none.
    pub fn from_json(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(b) => Some(Self::Boolean(*b)),
            Value::String(s) => Some(Self::String(s.clone())),
            Value::Number(n) => n.as_i64().map(Self::Integer).or(n.as_f64().map(Self::Real)),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(tag), Value::String(text)] if tag == "uuid" => {
                    text.parse().ok().map(Self::Uuid)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The JSON notation of this atom.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Integer(i) => json!(i),
            Self::Real(r) => json!(r),
            Self::Boolean(b) => json!(b),
            Self::String(s) => json!(s),
            Self::Uuid(u) => json!(["uuid", u.to_string()]),
        }
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.cmp(b),
            (Self::Real(a), Self::Real(b)) => a.total_cmp(b),
            (Self::Boolean(a), Self::Boolean(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) => a.cmp(b),
            (Self::Uuid(a), Self::Uuid(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}
impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Atom {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Atom {}

impl From<i64> for Atom {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}
impl From<bool> for Atom {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}
impl From<&str> for Atom {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}
impl From<String> for Atom {
    fn from(value: String) -> Self {
        Self::String(value)
    }
}
impl From<Uuid> for Atom {
    fn from(value: Uuid) -> Self {
        Self::Uuid(value)
    }
}

/// The value of a column. A scalar is a set of one; an absent optional value is an empty set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// No, one or more atoms of one type, without duplicates.
    Set(BTreeSet<Atom>),
    /// Unique keys with their values.
    Map(BTreeMap<Atom, Atom>),
}

impl Default for Datum {
    fn default() -> Self {
        Self::empty()
    }
}

impl Datum {
    /// True if there is no atom or pair.
    pub fn is_empty(&self) -> bool {
        match self {
            Datum::Set(atoms) => atoms.is_empty(),
            Datum::Map(pairs) => pairs.is_empty(),
        }
    }

    /// The empty set.
    pub const fn empty() -> Self {
        Self::Set(BTreeSet::new())
    }

    /// A set of exactly this atom.
    pub fn scalar(atom: impl Into<Atom>) -> Self {
        Self::Set(BTreeSet::from([atom.into()]))
    }

    /// One atom or the empty set.
    pub fn optional(atom: Option<impl Into<Atom>>) -> Self {
        Self::Set(atom.into_iter().map(Into::into).collect())
    }

    /// A set of the given atoms.
    pub fn set<A: Into<Atom>>(atoms: impl IntoIterator<Item = A>) -> Self {
        Self::Set(atoms.into_iter().map(Into::into).collect())
    }

    /// A map of the given pairs; of equal keys the last one counts.
    pub fn map<K: Into<Atom>, V: Into<Atom>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        Self::Map(pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }

    /// Reads the JSON notation of a value; `None` when it is none.
    pub fn from_json(value: &Value) -> Option<Self> {
        if let Some([Value::String(tag), Value::Array(items)]) = value.as_array().map(Vec::as_slice)
        {
            match tag.as_str() {
                "set" => {
                    return items.iter().map(Atom::from_json).collect::<Option<_>>().map(Self::Set);
                }
                "map" => {
                    return items.iter().map(pair_from_json).collect::<Option<_>>().map(Self::Map);
                }
                _ => {}
            }
        }
        Atom::from_json(value).map(Self::scalar)
    }

    /// The JSON notation of this value.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Set(atoms) => match atoms.first() {
                Some(atom) if atoms.len() == 1 => atom.to_json(),
                _ => json!(["set", atoms.iter().map(Atom::to_json).collect::<Vec<_>>()]),
            },
            Self::Map(pairs) => {
                let pairs: Vec<_> =
                    pairs.iter().map(|(k, v)| json!([k.to_json(), v.to_json()])).collect();
                json!(["map", pairs])
            }
        }
    }

    /// Applies the difference that `update2` gives for a column of more than one element: elements
    /// of a set change sides, pairs of a map are added, replaced, or removed when equal.
    pub fn apply_difference(&mut self, difference: Self) {
        match (self, difference) {
            (Self::Set(mine), Self::Set(theirs)) => {
                for atom in theirs {
                    if !mine.remove(&atom) {
                        mine.insert(atom);
                    }
                }
            }
            (Self::Map(mine), Self::Map(theirs)) => {
                for (key, value) in theirs {
                    if mine.get(&key) == Some(&value) {
                        mine.remove(&key);
                    } else {
                        mine.insert(key, value);
                    }
                }
            }
            (mine, theirs) => *mine = theirs,
        }
    }
}

fn pair_from_json(value: &Value) -> Option<(Atom, Atom)> {
    match value.as_array()?.as_slice() {
        [key, value] => Some((Atom::from_json(key)?, Atom::from_json(value)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_text_reads_back() {
        let text = "db74bd6b-057e-458b-bbab-85f91b9686dc";
        assert_eq!(text.parse::<Uuid>().unwrap().to_string(), text);
        for bad in [
            "",
            "db74bd6b",
            "db74bd6b-057e-458b-bbab-85f91b9686dg",
            "é4bd6b-057e-458b-bbab-85f91b9686dcab",
        ] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn json_notation_reads_back() {
        let uuid = json!(["uuid", "db74bd6b-057e-458b-bbab-85f91b9686dc"]);
        for value in [
            json!(5),
            json!(true),
            json!("x"),
            uuid.clone(),
            json!(["set", []]),
            json!(["set", ["a", "b"]]),
            json!(["map", [["k", 1], ["l", 2]]]),
            json!(["map", [[3, uuid]]]),
        ] {
            assert_eq!(Datum::from_json(&value).unwrap().to_json(), value);
        }
        for bad in
            [json!(null), json!({}), json!(["set", [[]]]), json!(["map", [[1]]]), json!(["x", "y"])]
        {
            assert_eq!(Datum::from_json(&bad), None, "{bad}");
        }
    }

    #[test]
    fn difference_toggles_elements_and_pairs() {
        let mut set = Datum::set(["a", "b"]);
        set.apply_difference(Datum::set(["b", "c"]));
        assert_eq!(set, Datum::set(["a", "c"]));
        let mut map = Datum::map([("a", "1"), ("b", "2"), ("c", "3")]);
        map.apply_difference(Datum::map([("a", "1"), ("b", "9"), ("d", "4")]));
        assert_eq!(map, Datum::map([("b", "9"), ("c", "3"), ("d", "4")]));
    }
}
