//! An OVSDB client (RFC 7047), sans-IO: bytes and the caller's clock in, bytes and events out.
//!
//! Place: the switch half's door to the configuration database. [`session::Session`] speaks the
//! protocol, keeps a [`replica::Replica`] of the monitored tables up to date and carries
//! [`transaction::Transaction`]s to the server.
//!
//! Invariants: nothing here opens a socket, reads a clock or knows what a table means. A column or
//! table that the server's schema lacks is never asked for; one that it has beyond what we know is
//! never seen. Whatever the server sends, the outcome is an update, an ignored message or a
//! [`session::ProtocolError`] after which the caller drops the connection.

#![forbid(unsafe_code)]

pub mod framing;
pub mod replica;
pub mod schema;
pub mod session;
pub mod transaction;
pub mod value;

pub use replica::{Replica, Row};
pub use schema::Schema;
pub use session::{Event, ProtocolError, Session, SessionConfig, TxnId};
pub use transaction::{Outcome, Transaction, TransactionError};
pub use value::{Atom, Datum, Uuid};
