//! vhost-user: sockets to guests over DPDK's vhost library.
//!
//! [`socket`] registers a path and answers the library's callbacks, [`state`] says which guest is
//! being served and lets the library take it away safely, [`queue`] moves packets. The library's
//! callbacks run on a thread of its own.
//!
//! Packets go in and out of the guest's memory by the `vhost` crate ([`takeover`] makes its rings
//! out of what the library knows, [`rings`] keeps them), or by the library itself: where the guest
//! negotiated what is rare (logging of dirty pages, an IOMMU), post-copy migration is on, or the
//! port asks for it. That is the slow twin.

mod leaving;
mod queue;
mod rings;
mod socket;
mod state;
mod takeover;

pub use queue::{VhostRx, VhostTx};
pub use socket::{Mode, VhostConfig, VhostInfo, VhostSocket};
pub use state::VhostCounters;
