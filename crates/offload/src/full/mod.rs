//! Forwarding rules (full offload): the adapter executes a megaflow's operations, and the host does
//! not see its packets.
//!
//! [`plan()`] turns a megaflow into such a rule, or says why it cannot. [`join()`] does so for two
//! megaflows, of which one removes the outer header of the other's packets. [`ForwardTable`]
//! manages one port's rules. [`apply()`] is the twin of an adapter: it executes a rule on a packet,
//! byte by byte.
//!
//! The host does not see the packets of these rules, so it cannot compare them with megaflows. A
//! change of tables is therefore complete only when the rules made before it are removed
//! ([`ForwardTable::leaving`]).

mod apply;
mod join;
mod plan;
mod table;

pub use apply::{Sent, apply};
pub use join::{Outer, join};
pub use plan::{Flow, Plan, plan};
pub use table::{ForwardRequest, ForwardStats, ForwardTable, Id, Outcome, Step};
