//! The dialogue with the server over one connection after another (RFC 7047 section 4, and the
//! extensions `monitor_cond`, `monitor_cond_since` and `set_db_change_aware` of ovsdb-server(7)).
//!
//! The caller connects when [`Session::connect_due`] says so, reports [`Session::connected`], feeds
//! [`Session::receive`], sends [`Session::take_output`], calls [`Session::tick`] by
//! [`Session::deadline`], and reports [`Session::disconnected`] after which the backoff runs.

use crate::framing::{Framer, FramingError};
use crate::replica::{Replica, UpdateError};
use crate::schema::Schema;
use crate::transaction::{Outcome, Transaction, TransactionError, parse_results};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thiserror::Error;

/// A moment on the caller's monotonic clock, as time since some start.
pub type Moment = Duration;

const NO_TRANSACTION: &str = "00000000-0000-0000-0000-000000000000";

/// What to connect for.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Name of the database.
    pub database: String,
    /// Lock to hold while writing.
    pub lock: Option<String>,
    /// Tables and columns wanted; those that do not exist are not asked for.
    pub columns: BTreeMap<String, Vec<String>>,
    /// Watched columns whose new values alone are no [`Event::Changed`].
    pub quiet: BTreeMap<String, Vec<String>>,
    /// Silence after which the peer is asked for a sign of life; zero for never.
    pub probe_interval: Duration,
    /// First and largest pause between attempts to connect.
    pub backoff: (Duration, Duration),
}

impl SessionConfig {
    /// The intervals of `ovs-vswitchd`: probe after 5 s, backoff from 1 s to 8 s.
    pub fn new(database: &str) -> Self {
        Self {
            database: database.to_owned(),
            lock: None,
            columns: BTreeMap::new(),
            quiet: BTreeMap::new(),
            probe_interval: Duration::from_secs(5),
            backoff: (Duration::from_secs(1), Duration::from_secs(8)),
        }
    }

    /// Adds columns of a table to those wanted.
    pub fn table(mut self, table: &str, columns: &[&str]) -> Self {
        let wanted = self.columns.entry(table.to_owned()).or_default();
        wanted.extend(columns.iter().map(|&c| c.to_owned()));
        self
    }
}

/// True if an update (`update2`) says more than new values of quiet columns.
fn says_more(updates: &Value, quiet: &BTreeMap<String, Vec<String>>) -> bool {
    let rows = |of: &Value| of.as_object().into_iter().flatten().count();
    let tables = updates.as_object().into_iter().flatten();
    tables.filter(|(_, changes)| rows(changes) > 0).any(|(table, changes)| {
        let Some(quiet) = quiet.get(table) else { return true };
        changes.as_object().into_iter().flatten().any(|(_, change)| {
            let Some(columns) = change.get("modify").and_then(Value::as_object) else {
                return true;
            };
            columns.keys().any(|column| !quiet.contains(column))
        })
    })
}

/// The server does not keep to the protocol; the connection must be dropped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The byte stream is not JSON-RPC.
    #[error(transparent)]
    Framing(#[from] FramingError),
    /// An update does not fit.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// A message that is neither request, notification nor reply, or an unusable reply.
    #[error("{0}")]
    Message(String),
    /// Nothing was heard for two probe intervals, the second after an `echo`.
    #[error("no response to inactivity probe after {0:?}")]
    Silent(Duration),
}

/// Names a transaction until its [`Event::Transaction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxnId(u64);

/// What happened, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The replica holds the whole database after a (re)connection.
    Synced,
    /// The replica changed.
    Changed,
    /// The lock is held; writing is allowed.
    Locked,
    /// Another client holds the lock, or it is lost.
    LockLost,
    /// A transaction ended.
    Transaction(TxnId, Result<Outcome, TransactionError>),
    /// The database cannot be monitored; the text says why. Tried again at the next connection.
    Unusable(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    CondSince,
    Cond,
    Plain,
}

impl Dialect {
    fn method(self) -> &'static str {
        match self {
            Self::CondSince => "monitor_cond_since",
            Self::Cond => "monitor_cond",
            Self::Plain => "monitor",
        }
    }

    fn fallback(self) -> Option<Self> {
        match self {
            Self::CondSince => Some(Self::Cond),
            Self::Cond => Some(Self::Plain),
            Self::Plain => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Pending {
    Schema,
    Lock,
    Monitor(Dialect),
    Transact(TxnId),
    Ignored,
}

#[derive(Debug)]
struct Link {
    framer: Framer,
    pending: BTreeMap<u64, Pending>,
    last_heard: Moment,
    probing: bool,
    synced: bool,
    locked: bool,
}

/// The client's side of the dialogue and the replica it keeps.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    replica: Replica,
    last_txn: String,
    link: Option<Link>,
    output: Vec<u8>,
    events: VecDeque<Event>,
    next_id: u64,
    retry_at: Moment,
    backoff: Duration,
}

impl Session {
    /// A session that wants to connect at once.
    pub fn new(config: SessionConfig) -> Self {
        let backoff = config.backoff.0;
        Self {
            config,
            replica: Replica::default(),
            last_txn: NO_TRANSACTION.to_owned(),
            link: None,
            output: Vec::new(),
            events: VecDeque::new(),
            next_id: 1,
            retry_at: Moment::ZERO,
            backoff,
        }
    }

    /// The tables as last heard of; they stay while the connection is down.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Whether the lock is held on this connection (true where none is configured).
    pub fn has_lock(&self) -> bool {
        self.link.as_ref().is_some_and(|l| l.locked || self.config.lock.is_none())
    }

    /// Whether the replica is complete and current on this connection.
    pub fn is_synced(&self) -> bool {
        self.link.as_ref().is_some_and(|l| l.synced)
    }

    /// Whether [`Self::connected`] was the last thing reported.
    pub fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Changes the probe interval, zero for none.
    pub fn set_probe_interval(&mut self, interval: Duration) {
        self.config.probe_interval = interval;
    }

    /// When to try to connect; `None` while connected.
    pub fn connect_due(&self) -> Option<Moment> {
        self.link.is_none().then_some(self.retry_at)
    }

    /// A connection stands: starts the dialogue on it.
    pub fn connected(&mut self, now: Moment) {
        self.output.clear();
        self.link = Some(Link {
            framer: Framer::default(),
            pending: BTreeMap::new(),
            last_heard: now,
            probing: false,
            synced: false,
            locked: false,
        });
        self.request("get_schema", json!([self.config.database]), Pending::Schema);
        if let Some(lock) = self.config.lock.clone() {
            self.request("lock", json!([lock]), Pending::Lock);
        }
        self.request("set_db_change_aware", json!([true]), Pending::Ignored);
    }

    /// The connection ended, or an attempt failed: the next one is due after the backoff.
    pub fn disconnected(&mut self, now: Moment) {
        self.output.clear();
        self.retry_at = now + self.backoff;
        self.backoff = (self.backoff * 2).min(self.config.backoff.1);
        let Some(link) = self.link.take() else { return };
        for pending in link.pending.into_values() {
            if let Pending::Transact(id) = pending {
                self.events
                    .push_back(Event::Transaction(id, Err(TransactionError::ConnectionLost)));
            }
        }
        if link.locked {
            self.events.push_back(Event::LockLost);
        }
    }

    /// Bytes to send, in order; empty when there are none.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The next event in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::tick`] has something to do if nothing is heard before.
    pub fn deadline(&self) -> Option<Moment> {
        let link = self.link.as_ref()?;
        let interval = self.config.probe_interval;
        let waits = if link.probing { 2 } else { 1 };
        (!interval.is_zero()).then(|| link.last_heard + interval * waits)
    }

    /// Probes a silent peer, and gives up on one that stays silent.
    pub fn tick(&mut self, now: Moment) -> Result<(), ProtocolError> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        let Some(link) = self.link.as_mut() else { return Ok(()) };
        if link.probing {
            return Err(ProtocolError::Silent(self.config.probe_interval));
        }
        link.probing = true;
        self.request("echo", json!([]), Pending::Ignored);
        Ok(())
    }

    /// Takes bytes from the connection. After an error the caller closes it and reports
    /// [`Self::disconnected`]; the next connection starts from the whole database.
    pub fn receive(&mut self, bytes: &[u8], now: Moment) -> Result<(), ProtocolError> {
        let result = self.receive_messages(bytes, now);
        if result.is_err() {
            self.last_txn = NO_TRANSACTION.to_owned();
        }
        result
    }

    fn receive_messages(&mut self, bytes: &[u8], now: Moment) -> Result<(), ProtocolError> {
        let Some(link) = self.link.as_mut() else { return Ok(()) };
        link.last_heard = now;
        link.probing = false;
        link.framer.push(bytes);
        while let Some(link) = self.link.as_mut() {
            let Some(message) = link.framer.next_message()? else { break };
            let Value::Object(message) = message else {
                return Err(ProtocolError::Message("message is not an object".into()));
            };
            self.message(message)?;
        }
        Ok(())
    }

    /// Sends a transaction; `None` while the database is not synced or the lock is not held.
    pub fn transact(&mut self, mut transaction: Transaction) -> Option<TxnId> {
        if !self.is_synced() || !self.has_lock() {
            return None;
        }
        if let Some(lock) = &self.config.lock {
            transaction.assert_lock(lock);
        }
        let id = TxnId(self.next_id);
        let params = transaction.into_params(&self.config.database);
        self.request("transact", params, Pending::Transact(id));
        Some(id)
    }

    fn request(&mut self, method: &str, params: Value, pending: Pending) {
        let id = self.next_id;
        self.next_id += 1;
        if let Some(link) = self.link.as_mut() {
            link.pending.insert(id, pending);
            self.send(&json!({"id": id, "method": method, "params": params}));
        }
    }

    fn send(&mut self, message: &Value) {
        self.output.extend_from_slice(message.to_string().as_bytes());
    }

    fn message(&mut self, mut message: Map<String, Value>) -> Result<(), ProtocolError> {
        let id = message.remove("id").unwrap_or(Value::Null);
        let Some(method) = message.remove("method") else {
            return self.reply(&id, &message);
        };
        let Some(method) = method.as_str() else {
            return Err(ProtocolError::Message("method is not a string".into()));
        };
        let params = message.remove("params").unwrap_or(Value::Null);
        self.incoming(method, id, params)
    }

    /// A request or notification of the server.
    fn incoming(&mut self, method: &str, id: Value, params: Value) -> Result<(), ProtocolError> {
        match method {
            "echo" => self.send(&json!({"id": id, "result": params, "error": null})),
            "update" | "update2" | "update3" => self.update(method, &params)?,
            "locked" if self.is_my_lock(&params) => self.set_lock(true),
            "stolen" if self.is_my_lock(&params) => self.set_lock(false),
            "monitor_canceled" => {
                return Err(ProtocolError::Message("the server canceled the monitor".into()));
            }
            _ if !id.is_null() => {
                self.send(&json!({"id": id, "result": null, "error": {"error": "unknown method"}}));
            }
            _ => {}
        }
        Ok(())
    }

    fn is_my_lock(&self, params: &Value) -> bool {
        let name = params.get(0).and_then(Value::as_str);
        name.is_some() && name == self.config.lock.as_deref()
    }

    fn set_lock(&mut self, held: bool) {
        let Some(link) = self.link.as_mut() else { return };
        link.locked = held;
        self.events.push_back(if held { Event::Locked } else { Event::LockLost });
    }

    fn update(&mut self, method: &str, params: &Value) -> Result<(), ProtocolError> {
        let part = |i| params.get(i).unwrap_or(&Value::Null);
        let mut more = true;
        match method {
            "update" => self.replica.apply_update(part(1))?,
            "update2" => {
                self.replica.apply_update2(part(1))?;
                more = says_more(part(1), &self.config.quiet);
            }
            _ => {
                self.replica.apply_update2(part(2))?;
                more = says_more(part(2), &self.config.quiet);
                part(1).as_str().unwrap_or(NO_TRANSACTION).clone_into(&mut self.last_txn);
            }
        }
        if more {
            self.events.push_back(Event::Changed);
        }
        Ok(())
    }

    fn reply(&mut self, id: &Value, message: &Map<String, Value>) -> Result<(), ProtocolError> {
        let pending = id.as_u64().and_then(|id| self.link.as_mut()?.pending.remove(&id));
        let Some(pending) = pending else { return Ok(()) };
        let error = message.get("error").filter(|e| !e.is_null());
        let result = message.get("result").unwrap_or(&Value::Null);
        match (pending, error) {
            (Pending::Ignored, _) => {}
            (Pending::Schema, None) => self.schema(result)?,
            (Pending::Lock, None) => {
                self.set_lock(result.get("locked").and_then(Value::as_bool).unwrap_or(false));
            }
            (Pending::Monitor(dialect), None) => self.monitored(dialect, result)?,
            (Pending::Monitor(dialect), Some(error)) => match dialect.fallback() {
                Some(older) => self.monitor(older),
                None => self.unusable(format!("monitor refused: {error}")),
            },
            (Pending::Transact(txn), None) => {
                self.events.push_back(Event::Transaction(txn, parse_results(result)));
            }
            (Pending::Transact(txn), Some(error)) => {
                let error = TransactionError::from_json(error);
                self.events.push_back(Event::Transaction(txn, Err(error)));
            }
            (Pending::Schema, Some(error)) => self.unusable(format!("no schema: {error}")),
            (Pending::Lock, Some(error)) => self.unusable(format!("no lock: {error}")),
        }
        Ok(())
    }

    fn unusable(&mut self, why: String) {
        self.events.push_back(Event::Unusable(why));
    }

    fn schema(&mut self, result: &Value) -> Result<(), ProtocolError> {
        let schema = Schema::from_json(result)
            .ok_or_else(|| ProtocolError::Message("reply to get_schema has no tables".into()))?;
        let monitored = restrict(schema, &self.config.columns);
        if *self.replica.monitored() != monitored {
            self.replica = Replica::new(monitored);
            NO_TRANSACTION.clone_into(&mut self.last_txn);
        }
        self.monitor(Dialect::CondSince);
        Ok(())
    }

    fn monitor(&mut self, dialect: Dialect) {
        let wrap =
            |columns: Value| if dialect == Dialect::Plain { columns } else { json!([columns]) };
        let tables = &self.replica.monitored().tables;
        let requests: Map<_, _> = tables
            .iter()
            .map(|(table, columns)| {
                let names: Vec<_> = columns.keys().collect();
                (table.clone(), wrap(json!({"columns": names})))
            })
            .collect();
        let database = &self.config.database;
        let params = match dialect {
            Dialect::CondSince => json!([database, ["monid", database], requests, self.last_txn]),
            _ => json!([database, ["monid", database], requests]),
        };
        self.request(dialect.method(), params, Pending::Monitor(dialect));
    }

    /// The reply to a monitor request: the whole database, or what changed since the last
    /// transaction we know.
    fn monitored(&mut self, dialect: Dialect, result: &Value) -> Result<(), ProtocolError> {
        let mut updates = result;
        let mut incremental = false;
        if dialect == Dialect::CondSince {
            let Some([Value::Bool(found), Value::String(last), tables]) =
                result.as_array().map(Vec::as_slice)
            else {
                return Err(ProtocolError::Message("bad reply to monitor_cond_since".into()));
            };
            (updates, incremental) = (tables, *found);
            self.last_txn.clone_from(last);
        }
        if !incremental {
            self.replica.clear();
        }
        match dialect {
            Dialect::Plain => self.replica.apply_update(updates)?,
            _ => self.replica.apply_update2(updates)?,
        }
        if let Some(link) = self.link.as_mut() {
            link.synced = true;
        }
        self.backoff = self.config.backoff.0;
        self.events.push_back(Event::Synced);
        Ok(())
    }
}

/// Leaves of a schema the tables and columns that are wanted.
fn restrict(mut schema: Schema, wanted: &BTreeMap<String, Vec<String>>) -> Schema {
    schema.tables.retain(|table, columns| {
        let Some(names) = wanted.get(table) else { return false };
        columns.retain(|column, _| names.contains(column));
        !columns.is_empty()
    });
    schema
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
