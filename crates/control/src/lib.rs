//! The control side: sockets, reconciliation of desired to actual state, housekeeping, unixctl.
//!
//! Place: the only crate that sees both the switch half (`ofproto`) and the packet half
//! (`datapath`). It never touches a packet on its way.
//!
//! Invariants: one control thread runs a tokio `current_thread` runtime and owns all state here;
//! forking into the background happens in [`daemon`] before any thread exists.

pub mod config;
pub mod daemon;
pub mod unixctl;
pub mod vlog;
