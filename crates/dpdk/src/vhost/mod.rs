//! vhost-user: sockets to guests over DPDK's vhost library.
//!
//! Three parts: [`socket`] registers a path and answers the library's callbacks, [`state`] says
//! which guest is being served and lets the library take it away safely, [`queue`] moves packets.
//! The library's callbacks run on a thread of its own.

mod queue;
mod socket;
mod state;

pub use queue::{VhostRx, VhostTx};
pub use socket::{Mode, VhostConfig, VhostInfo, VhostSocket};
pub use state::VhostCounters;
