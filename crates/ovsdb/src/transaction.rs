//! The operations of a `transact` request (RFC 7047 section 5.2) and its results.

use crate::value::{Datum, Uuid};
use serde_json::{Map, Value, json};
use thiserror::Error;

/// Operations that the server carries out together or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transaction {
    operations: Vec<Value>,
}

impl Transaction {
    /// A transaction without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Number of operations so far; the next one's result has this index.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Inserts a row that other operations may name as `["named-uuid", name]`.
    pub fn insert(
        &mut self,
        table: &str,
        columns: impl IntoIterator<Item = (String, Datum)>,
        name: &str,
    ) -> &mut Self {
        self.push(json!({"op": "insert", "table": table, "row": row(columns), "uuid-name": name}))
    }

    /// Sets columns of one row.
    pub fn update(
        &mut self,
        table: &str,
        uuid: Uuid,
        columns: impl IntoIterator<Item = (String, Datum)>,
    ) -> &mut Self {
        self.push(
            json!({"op": "update", "table": table, "where": by_uuid(uuid), "row": row(columns)}),
        )
    }

    /// Changes one column of one row by a mutator such as `insert`, `delete` or `+=`.
    pub fn mutate(
        &mut self,
        table: &str,
        uuid: Uuid,
        column: &str,
        mutator: &str,
        value: Value,
    ) -> &mut Self {
        self.push(json!({"op": "mutate", "table": table, "where": by_uuid(uuid),
            "mutations": [[column, mutator, value]]}))
    }

    /// Deletes one row.
    pub fn delete(&mut self, table: &str, uuid: Uuid) -> &mut Self {
        self.push(json!({"op": "delete", "table": table, "where": by_uuid(uuid)}))
    }

    /// Fails the transaction at once unless the row's columns have these values.
    pub fn wait(
        &mut self,
        table: &str,
        uuid: Uuid,
        columns: impl IntoIterator<Item = (String, Datum)>,
    ) -> &mut Self {
        let row = row(columns);
        let names: Vec<_> = row.keys().cloned().collect();
        self.push(json!({"op": "wait", "timeout": 0, "table": table, "where": by_uuid(uuid),
            "columns": names, "until": "==", "rows": [row]}))
    }

    /// Fails the transaction unless this client holds the lock.
    pub fn assert_lock(&mut self, lock: &str) -> &mut Self {
        self.push(json!({"op": "assert", "lock": lock}))
    }

    /// Adds a remark to the server's log of the transaction.
    pub fn comment(&mut self, text: &str) -> &mut Self {
        self.push(json!({"op": "comment", "comment": text}))
    }

    /// The `params` of the request.
    pub(crate) fn into_params(self, database: &str) -> Value {
        let mut params = vec![json!(database)];
        params.extend(self.operations);
        Value::Array(params)
    }

    fn push(&mut self, operation: Value) -> &mut Self {
        self.operations.push(operation);
        self
    }
}

fn by_uuid(uuid: Uuid) -> Value {
    json!([["_uuid", "==", ["uuid", uuid.to_string()]]])
}

fn row(columns: impl IntoIterator<Item = (String, Datum)>) -> Map<String, Value> {
    columns.into_iter().map(|(name, value)| (name, value.to_json())).collect()
}

/// Why a transaction did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TransactionError {
    /// The server refused it, with the error string of RFC 7047 and its details.
    #[error("{error}: {details}")]
    Refused {
        /// Such as `constraint violation` or `not owner`.
        error: String,
        /// Free text.
        details: String,
    },
    /// The connection ended before the reply: it may or may not have happened.
    #[error("connection lost before the reply")]
    ConnectionLost,
    /// The reply is not one to `transact`.
    #[error("malformed reply")]
    Malformed,
}

impl TransactionError {
    /// Reads the `error` member of a reply or of one operation's result.
    pub(crate) fn from_json(value: &Value) -> Self {
        let text = |v: Option<&Value>| v.and_then(Value::as_str).unwrap_or_default().to_owned();
        match value {
            Value::String(error) => Self::Refused { error: error.clone(), details: String::new() },
            Value::Object(o) => {
                Self::Refused { error: text(o.get("error")), details: text(o.get("details")) }
            }
            other => Self::Refused { error: other.to_string(), details: String::new() },
        }
    }
}

/// What a transaction did, one entry for each operation.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Rows touched by `update`, `mutate` or `delete`; 0 for others.
    pub counts: Vec<u64>,
    /// The new row's identifier for `insert`.
    pub inserted: Vec<Option<Uuid>>,
}

/// Reads the result of `transact`: an array with one object for each operation that was tried.
pub(crate) fn parse_results(result: &Value) -> Result<Outcome, TransactionError> {
    let mut outcome = Outcome::default();
    for entry in result.as_array().ok_or(TransactionError::Malformed)? {
        if entry.get("error").is_some_and(|e| !e.is_null()) {
            return Err(TransactionError::from_json(entry));
        }
        outcome.counts.push(entry.get("count").and_then(Value::as_u64).unwrap_or(0));
        let uuid = entry.get("uuid").and_then(|u| u.get(1)).and_then(Value::as_str);
        outcome.inserted.push(uuid.and_then(|u| u.parse().ok()));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_notation_of_the_rfc() {
        let mut txn = Transaction::new();
        txn.update("T", Uuid(1), [("n".into(), Datum::scalar(5))]).assert_lock("l");
        assert_eq!(
            txn.into_params("db"),
            json!(["db",
                {"op": "update", "table": "T", "row": {"n": 5},
                 "where": [["_uuid", "==", ["uuid", "00000000-0000-0000-0000-000000000001"]]]},
                {"op": "assert", "lock": "l"}])
        );
    }

    #[test]
    fn results_tell_success_from_refusal() {
        let uuid = "00000000-0000-0000-0000-000000000001";
        let good =
            parse_results(&json!([{"count": 1}, {"uuid": ["uuid", uuid]}, {}, null])).unwrap();
        assert_eq!(good.counts, [1, 0, 0, 0]);
        assert_eq!(good.inserted[1], Some(Uuid(1)));
        let bad =
            parse_results(&json!([{"count": 1}, null, {"error": "not owner", "details": "d"}]));
        assert_eq!(bad.unwrap_err().to_string(), "not owner: d");
        assert_eq!(parse_results(&json!(5)), Err(TransactionError::Malformed));
    }
}
