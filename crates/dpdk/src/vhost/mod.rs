//! vhost-user ports served by DPDK's vhost library: the slow twin of the crate `vhost-user`, for
//! ports that ask for it and where an IOMMU or post-copy migration is to be supported.
//!
//! [`library`] registers a path and answers the library's callbacks, [`client`] connects to
//! front-ends that make their socket, [`state`] says which guest is being served and lets the
//! library take it away safely, [`queue`] moves packets. The library's callbacks run on a thread of
//! its own, one for all sockets.

mod client;
mod front_end;
mod library;
mod queue;
mod socket;
mod state;

pub use library::VhostConfig;
pub use queue::{VhostRx, VhostTx};
pub use socket::VhostSocket;
