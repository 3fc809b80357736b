//! An in-memory copy of the monitored tables, and the updates that keep it one.

use crate::schema::{Columns, Schema};
use crate::value::{Atom, Datum, Uuid};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The columns of one row. Getters answer for missing columns and for values of another type as
/// for an empty value: configuration is read with defaults, never with errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    columns: BTreeMap<String, Datum>,
}

impl Row {
    /// The value of a column as it is.
    pub fn get(&self, column: &str) -> Option<&Datum> {
        self.columns.get(column)
    }

    /// Whether the column is monitored, that is, exists in the server's schema.
    pub fn has(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    /// The columns with their values, sorted by name.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Datum)> {
        self.columns.iter().map(|(name, datum)| (name.as_str(), datum))
    }

    fn atoms(&self, column: &str) -> impl Iterator<Item = &Atom> {
        match self.columns.get(column) {
            Some(Datum::Set(atoms)) => Some(atoms.iter()),
            _ => None,
        }
        .into_iter()
        .flatten()
    }

    /// Text of a scalar or optional column; `None` when absent.
    pub fn opt_str(&self, column: &str) -> Option<&str> {
        self.atoms(column)
            .find_map(|a| if let Atom::String(s) = a { Some(s.as_str()) } else { None })
    }

    /// Text of a scalar column; empty when absent.
    pub fn str(&self, column: &str) -> &str {
        self.opt_str(column).unwrap_or_default()
    }

    /// Number of an optional column.
    pub fn opt_int(&self, column: &str) -> Option<i64> {
        self.atoms(column).find_map(|a| if let Atom::Integer(i) = a { Some(*i) } else { None })
    }

    /// Number of a scalar column; 0 when absent.
    pub fn int(&self, column: &str) -> i64 {
        self.opt_int(column).unwrap_or_default()
    }

    /// Truth of an optional column.
    pub fn opt_bool(&self, column: &str) -> Option<bool> {
        self.atoms(column).find_map(|a| if let Atom::Boolean(b) = a { Some(*b) } else { None })
    }

    /// Truth of a scalar column; false when absent.
    pub fn bool(&self, column: &str) -> bool {
        self.opt_bool(column).unwrap_or_default()
    }

    /// All texts of a set, sorted.
    pub fn strs(&self, column: &str) -> Vec<String> {
        let text = |a: &Atom| if let Atom::String(s) = a { Some(s.clone()) } else { None };
        self.atoms(column).filter_map(text).collect()
    }

    /// All numbers of a set, sorted.
    pub fn ints(&self, column: &str) -> Vec<i64> {
        self.atoms(column)
            .filter_map(|a| if let Atom::Integer(i) = a { Some(*i) } else { None })
            .collect()
    }

    /// All references of a set, sorted.
    pub fn uuids(&self, column: &str) -> Vec<Uuid> {
        self.atoms(column)
            .filter_map(|a| if let Atom::Uuid(u) = a { Some(*u) } else { None })
            .collect()
    }

    /// A map from text to text.
    pub fn str_map(&self, column: &str) -> BTreeMap<String, String> {
        let Some(Datum::Map(pairs)) = self.columns.get(column) else { return BTreeMap::new() };
        let texts = pairs.iter().filter_map(|pair| match pair {
            (Atom::String(k), Atom::String(v)) => Some((k.clone(), v.clone())),
            _ => None,
        });
        texts.collect()
    }

    /// A map from number to number, such as `AutoAttach.mappings`.
    pub fn int_map(&self, column: &str) -> BTreeMap<i64, i64> {
        let Some(Datum::Map(pairs)) = self.columns.get(column) else { return BTreeMap::new() };
        let numbers = pairs.iter().filter_map(|pair| match pair {
            (Atom::Integer(k), Atom::Integer(v)) => Some((*k, *v)),
            _ => None,
        });
        numbers.collect()
    }

    /// A map from number to reference, such as `Bridge.flow_tables`.
    pub fn int_uuid_map(&self, column: &str) -> BTreeMap<i64, Uuid> {
        let Some(Datum::Map(pairs)) = self.columns.get(column) else { return BTreeMap::new() };
        let refs = pairs.iter().filter_map(|pair| match pair {
            (Atom::Integer(k), Atom::Uuid(v)) => Some((*k, *v)),
            _ => None,
        });
        refs.collect()
    }
}

impl<K: Into<String>> FromIterator<(K, Datum)> for Row {
    fn from_iter<I: IntoIterator<Item = (K, Datum)>>(columns: I) -> Self {
        Self { columns: columns.into_iter().map(|(k, v)| (k.into(), v)).collect() }
    }
}

/// Rows of one table by identifier.
pub type Table = BTreeMap<Uuid, Row>;

/// An update that does not fit the protocol; the text says where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed update: {0}")]
pub struct UpdateError(pub String);

/// The tables of the database as last heard of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    monitored: Schema,
    tables: BTreeMap<String, Table>,
}

impl Replica {
    /// An empty replica of the columns in `monitored`.
    pub fn new(monitored: Schema) -> Self {
        Self { monitored, tables: BTreeMap::new() }
    }

    /// The tables and columns that are monitored: those asked for that exist.
    pub fn monitored(&self) -> &Schema {
        &self.monitored
    }

    /// A replica with the given rows, for tests of what reads one.
    pub fn with_rows(
        monitored: Schema,
        rows: impl IntoIterator<Item = (String, Uuid, Row)>,
    ) -> Self {
        let mut replica = Self::new(monitored);
        for (table, uuid, row) in rows {
            replica.tables.entry(table).or_default().insert(uuid, row);
        }
        replica
    }

    /// Rows of a table in the order of their identifiers; none for an unknown table.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = (Uuid, &Row)> {
        self.tables.get(table).into_iter().flatten().map(|(uuid, row)| (*uuid, row))
    }

    /// One row.
    pub fn row(&self, table: &str, uuid: Uuid) -> Option<&Row> {
        self.tables.get(table)?.get(&uuid)
    }

    /// The row of a table that has one row, such as `Open_vSwitch`.
    pub fn singleton(&self, table: &str) -> Option<(Uuid, &Row)> {
        self.rows(table).next()
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.tables.clear();
    }

    /// Applies the `<table-updates>` of `monitor` and `update` (RFC 7047 section 4.1.6).
    pub fn apply_update(&mut self, updates: &Value) -> Result<(), UpdateError> {
        self.apply(updates, |columns, table, uuid, change| {
            match change.get("new").and_then(Value::as_object) {
                Some(new) => {
                    table.insert(uuid, full_row(columns, new)?);
                }
                None => {
                    table.remove(&uuid);
                }
            }
            Ok(())
        })
    }

    /// Applies the `<table-updates2>` of `monitor_cond` and `update2` (ovsdb-server(7)).
    pub fn apply_update2(&mut self, updates: &Value) -> Result<(), UpdateError> {
        self.apply(updates, |columns, table, uuid, change| {
            if let Some(row) = change.get("initial").or(change.get("insert")) {
                table.insert(uuid, full_row(columns, object(row, "row")?)?);
            } else if let Some(row) = change.get("modify") {
                let target = table
                    .get_mut(&uuid)
                    .ok_or_else(|| UpdateError(format!("row {uuid} modified but not known")))?;
                modify_row(columns, target, object(row, "row")?)?;
            } else if change.contains_key("delete") {
                table.remove(&uuid);
            }
            Ok(())
        })
    }

    fn apply(
        &mut self,
        updates: &Value,
        each: impl Fn(&Columns, &mut Table, Uuid, &Map<String, Value>) -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        for (name, rows) in object(updates, "table updates")? {
            let Some(columns) = self.monitored.tables.get(name) else { continue };
            let table = self.tables.entry(name.clone()).or_default();
            for (uuid, change) in object(rows, "table update")? {
                let uuid = uuid.parse().map_err(|_| UpdateError(format!("bad UUID in {name}")))?;
                each(columns, table, uuid, object(change, "row update")?)?;
            }
        }
        Ok(())
    }
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>, UpdateError> {
    value.as_object().ok_or_else(|| UpdateError(format!("{what} is not an object")))
}

fn datum(column: &str, value: &Value) -> Result<Datum, UpdateError> {
    Datum::from_json(value).ok_or_else(|| UpdateError(format!("bad value of column {column}")))
}

fn full_row(columns: &Columns, given: &Map<String, Value>) -> Result<Row, UpdateError> {
    let mut row = Row::default();
    for (name, kind) in columns {
        let value = match given.get(name) {
            Some(value) => datum(name, value)?,
            None => kind.default.clone(),
        };
        row.columns.insert(name.clone(), value);
    }
    Ok(row)
}

fn modify_row(
    columns: &Columns,
    row: &mut Row,
    changes: &Map<String, Value>,
) -> Result<(), UpdateError> {
    for (name, value) in changes {
        let Some(kind) = columns.get(name) else { continue };
        let value = datum(name, value)?;
        match row.columns.get_mut(name) {
            Some(old) if kind.composite => old.apply_difference(value),
            _ => {
                row.columns.insert(name.clone(), value);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const U: &str = "db74bd6b-057e-458b-bbab-85f91b9686dc";

    fn replica() -> Replica {
        Replica::new(
            Schema::from_json(&json!({"tables": {"T": {"columns": {
                "name": {"type": "string"},
                "tag": {"type": {"key": "integer", "min": 0, "max": 1}},
                "trunks": {"type": {"key": "integer", "min": 0, "max": 4096}},
                "m": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}
            }}}}))
            .unwrap(),
        )
    }

    fn row(replica: &Replica) -> &Row {
        replica.row("T", U.parse().unwrap()).unwrap()
    }

    #[test]
    fn update2_inserts_with_defaults_modifies_and_deletes() {
        let mut r = replica();
        r.apply_update2(
            &json!({"T": {U: {"insert": {"name": "a", "trunks": ["set", [1, 2]], "extra": 1}}},
            "Unknown": {U: {"insert": {}}}}),
        )
        .unwrap();
        assert_eq!((row(&r).str("name"), row(&r).opt_int("tag")), ("a", None));
        assert!(!row(&r).has("extra"));
        r.apply_update2(&json!({"T": {U: {"modify": {"tag": 5, "trunks": ["set", [2, 3]],
            "m": ["map", [["k", "v"]]]}}}}))
            .unwrap();
        assert_eq!((row(&r).opt_int("tag"), row(&r).ints("trunks")), (Some(5), vec![1, 3]));
        assert_eq!(row(&r).str_map("m"), BTreeMap::from([("k".into(), "v".into())]));
        r.apply_update2(&json!({"T": {U: {"modify": {"tag": ["set", []]}}}})).unwrap();
        assert_eq!(row(&r).opt_int("tag"), None);
        r.apply_update2(&json!({"T": {U: {"delete": null}}})).unwrap();
        assert_eq!(r.rows("T").count(), 0);
    }

    #[test]
    fn update_replaces_rows() {
        let mut r = replica();
        r.apply_update(&json!({"T": {U: {"new": {"name": "a", "tag": 7}}}})).unwrap();
        r.apply_update(&json!({"T": {U: {"old": {"tag": 7}, "new": {"name": "a"}}}})).unwrap();
        assert_eq!((row(&r).str("name"), row(&r).opt_int("tag")), ("a", None));
        r.apply_update(&json!({"T": {U: {"old": {"name": "a"}}}})).unwrap();
        assert_eq!(r.rows("T").count(), 0);
    }

    #[test]
    fn malformed_updates_are_errors() {
        for bad in [
            json!([]),
            json!({"T": 1}),
            json!({"T": {"x": {}}}),
            json!({"T": {U: 1}}),
            json!({"T": {U: {"insert": {"name": null}}}}),
            json!({"T": {U: {"modify": {}}}}),
        ] {
            assert!(replica().apply_update2(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn getters_never_fail_on_another_type() {
        let row: Row =
            [("m", Datum::scalar(5)), ("s", Datum::map([("a", "b")]))].into_iter().collect();
        assert!(row.str_map("m").is_empty());
        assert_eq!((row.str("s"), row.int("absent"), row.opt_bool("m")), ("", 0, None));
    }
}
