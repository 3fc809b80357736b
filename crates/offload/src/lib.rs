//! Which megaflows an adapter is given, and as what: decisions to rules and back.
//!
//! *Place*: between the flow row and the packet half. *Knows*: keys and masks, what bytes they
//! stand for, what an adapter answered, how often flows are used. *Does not know*: DPDK, threads,
//! clocks (time is an argument).
//!
//! A rule *marks* packets, it decides nothing: the datapath compares the first bytes of every
//! marked packet with the megaflow ([`FirstBytes`]) before it believes the mark. So whatever an
//! adapter does (marks that are late, lost, wrong, or wider than asked) costs cycles and never
//! forwards a packet wrongly.
//!
//! [`first_bytes`] says which packets a megaflow is for, as bytes, or which part of it cannot be
//! said so. [`Port`] is one port's rules: what is in the adapter, what should be, and for each flow
//! why or why not.
//!
//! Rules that forward are [`full`]'s: the host does not see their packets.
#![forbid(unsafe_code)]

mod bytes;
mod class;
pub mod full;
mod judge;
mod mark;
mod pace;
mod pick;
mod port;
mod reason;
mod saved;
mod types;

pub use bytes::{FirstBytes, first_bytes};
pub use class::{Class, class};
pub use judge::{Judge, PortTotals, Worth};
pub use mark::{Mark, SLOTS};
pub use port::Port;
pub use reason::{REASONS, Reason};
pub use saved::{Saved, StageTotals};
pub use types::*;
