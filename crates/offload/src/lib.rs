//! Which megaflows an adapter is given as rules, and what its answers and counters mean for them.
//!
//! *Place*: between the flow row and the packet half. *Knows*: keys and masks, what bytes they
//! stand for, what an adapter answered, how often flows are used. *Does not know*: DPDK, threads,
//! clocks (time is an argument).
//!
//! A rule *marks* packets and decides nothing: the datapath compares the first bytes of every
//! marked packet with the megaflow ([`FirstBytes`]) before it uses the mark. So marks that are
//! late, lost, wrong, or wider than asked only cost cycles, and never forward a packet wrongly.
//!
//! [`first_bytes`] gives the bytes of a megaflow's packets, or says which part of the megaflow has
//! none. [`Port`] manages one port's rules: which are in the adapter, which should be, and for each
//! flow why or why not.
//!
//! Rules that forward are in [`full`]: the host does not see their packets.
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
