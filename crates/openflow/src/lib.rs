//! OpenFlow 1.0 to 1.5 and the Nicira extensions as version-independent messages, and their codecs.
//!
//! *Place*: switch row, bottom. *Knows*: wire formats, OXM/NXM numbers, error codes. *Does not
//! know*: sockets, clocks, tables, what a message does.

#![forbid(unsafe_code)]

pub mod action;
mod action_types;
pub mod actions;
mod actions_nx;
pub mod actions_out;
mod buf;
pub mod check;
pub mod codec;
pub mod conntrack;
mod continuation;
mod encap;
pub mod error;
pub mod error_code;
mod fields;
mod fields_out;
pub mod framing;
pub mod instructions;
mod learn;
mod loose;
mod match10;
mod match11;
pub mod matching;
pub mod message;
pub mod oxm;
pub mod packet_type;
pub mod prereq;
mod table_features;

pub use action::*;
pub use conntrack::{Conntrack, Nat, Zone};
pub use continuation::{Continuation, Resume};
pub use encap::{Header, NshProperty};
pub use error::*;
pub use learn::{Learn, LearnSource, LearnSpec, LearnTarget, learn_flag};
pub use loose::{Loose, names_header};
pub use message::*;
pub use table_features::*;
