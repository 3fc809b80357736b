//! The part of a database schema (RFC 7047 section 3.2) that a client needs: which columns exist,
//! whether they hold several elements, and their default values.

use crate::value::{Atom, Datum, Uuid};
use serde_json::Value;
use std::collections::BTreeMap;

/// The type of a column, as far as a replica cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnType {
    /// Whether the column may hold more than one element: `update2` sends differences for it.
    pub composite: bool,
    /// The value of a row that does not give one.
    pub default: Datum,
}

impl ColumnType {
    fn from_json(column: &Value) -> Option<Self> {
        let kind = column.get("type")?;
        let key = base_type(kind.get("key").unwrap_or(kind))?;
        let optional = kind.get("min").and_then(Value::as_u64) == Some(0);
        let composite = match kind.get("max") {
            Some(Value::String(unlimited)) => unlimited == "unlimited",
            Some(max) => max.as_u64()? > 1,
            None => false,
        };
        let default = match kind.get("value") {
            Some(_) => Datum::Map(BTreeMap::new()),
            None if optional => Datum::empty(),
            None => Datum::scalar(default_atom(key)?),
        };
        Some(Self { composite, default })
    }
}

fn base_type(kind: &Value) -> Option<&str> {
    kind.as_str().or_else(|| kind.get("type")?.as_str())
}

fn default_atom(kind: &str) -> Option<Atom> {
    Some(match kind {
        "integer" => Atom::Integer(0),
        "real" => Atom::Real(0.0),
        "boolean" => Atom::Boolean(false),
        "string" => Atom::String(String::new()),
        "uuid" => Atom::Uuid(Uuid(0)),
        _ => return None,
    })
}

/// The columns of a table by name.
pub type Columns = BTreeMap<String, ColumnType>;

/// The tables of a database by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// Version of the schema, such as `8.3.1`.
    pub version: String,
    /// Columns by table.
    pub tables: BTreeMap<String, Columns>,
}

impl Schema {
    /// Reads the reply to `get_schema`. Columns of a type unknown to us are left out; `None` when
    /// there are no tables at all.
    pub fn from_json(value: &Value) -> Option<Self> {
        let version = value.get("version").and_then(Value::as_str).unwrap_or_default().to_owned();
        let tables = value.get("tables")?.as_object()?;
        let tables = tables.iter().map(|(name, table)| (name.clone(), columns_of(table))).collect();
        Some(Self { version, tables })
    }

    /// The type of a column, if it exists.
    pub fn column(&self, table: &str, column: &str) -> Option<&ColumnType> {
        self.tables.get(table)?.get(column)
    }
}

fn columns_of(table: &Value) -> Columns {
    let Some(columns) = table.get("columns").and_then(Value::as_object) else {
        return Columns::new();
    };
    let known = columns.iter().filter_map(|(name, column)| {
        ColumnType::from_json(column).map(|kind| (name.clone(), kind))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_give_defaults_and_composites() {
        let schema = Schema::from_json(&json!({"version": "1.2.3", "tables": {"T": {"columns": {
            "name": {"type": "string"},
            "n": {"type": {"key": {"type": "integer", "minInteger": 0}, "min": 0, "max": 1}},
            "refs": {"type": {"key": {"type": "uuid"}, "min": 0, "max": "unlimited"}},
            "m": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
            "pair": {"type": {"key": "integer", "min": 0, "max": 2}},
            "later": {"type": "quaternion"}}}, "Odd": 5}}))
        .unwrap();
        let kind = |column| schema.column("T", column).cloned();
        let expect = |composite, default| Some(ColumnType { composite, default });
        assert_eq!(kind("name"), expect(false, Datum::scalar("")));
        assert_eq!(kind("n"), expect(false, Datum::empty()));
        assert_eq!(kind("refs"), expect(true, Datum::empty()));
        assert_eq!(kind("m"), expect(true, Datum::Map(BTreeMap::new())));
        assert_eq!(kind("pair"), expect(true, Datum::empty()));
        assert_eq!(kind("later"), None);
        assert_eq!(schema.version, "1.2.3");
        assert_eq!(Schema::from_json(&json!([])), None);
    }
}
