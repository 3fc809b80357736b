//! OpenFlow 1.0 to 1.5 and the Nicira extensions as version-independent messages, and their codecs.
//!
//! *Place*: switch row, bottom. *Knows*: wire formats, OXM/NXM numbers, error codes. *Does not know*:
//! sockets, clocks, tables, what a message does.

pub mod action;
pub mod error;
pub mod message;

pub use action::*;
pub use error::*;
pub use message::*;
