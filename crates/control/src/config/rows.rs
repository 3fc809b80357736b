//! Reading references of database rows.

use ovsdb::{Atom, Datum, Replica, Row, Uuid};
use std::collections::BTreeMap;
use std::time::Duration;

/// Rows that a column refers to; dangling references are skipped.
pub(super) fn rows<'a>(
    db: &'a Replica,
    table: &'static str,
    row: &Row,
    column: &str,
) -> impl Iterator<Item = (Uuid, &'a Row)> {
    row.uuids(column).into_iter().filter_map(move |uuid| Some((uuid, db.row(table, uuid)?)))
}

pub(super) fn str_uuid_map(row: &Row, column: &str) -> BTreeMap<String, Uuid> {
    let Some(Datum::Map(pairs)) = row.get(column) else { return BTreeMap::new() };
    let typed = pairs.iter().filter_map(|pair| match pair {
        (Atom::String(key), Atom::Uuid(value)) => Some((key.clone(), *value)),
        _ => None,
    });
    typed.collect()
}

pub(super) fn number(row: &Row, column: &str) -> Option<u32> {
    row.opt_int(column).and_then(|n| u32::try_from(n).ok())
}

pub(super) fn millis(row: &Row, column: &str, default: u64) -> Duration {
    let given = row.opt_int(column).and_then(|ms| u64::try_from(ms).ok());
    Duration::from_millis(given.unwrap_or(default))
}
