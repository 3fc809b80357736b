//! Rules that forward: the adapter does with a megaflow's packets what the host would, and the host
//! does not see them.
//!
//! [`plan`] says what a megaflow is as such a rule, or why it is none; [`join`] does that for two
//! megaflows, of which one takes off the header that the other one's packets have in front.
//! [`ForwardTable`] is one port's rules. [`apply`] is the slow twin: what a rule does to a packet,
//! byte by byte.
//!
//! The host does not see what these rules match, so it compares nothing. So a change of tables is
//! complete only when the rules made before it are gone ([`ForwardTable::leaving`]).

mod apply;
mod join;
mod plan;
mod table;

pub use apply::{Sent, apply};
pub use join::{Outer, join};
pub use plan::{Flow, Plan, plan};
pub use table::{ForwardRequest, ForwardStats, ForwardTable, Id, Outcome, Step};
