//! The control socket of ovs-appctl(8): JSON-RPC over a stream socket, one request at a time for
//! each connection.
//!
//! [`Server`] owns the listening socket and hands whole [`Request`]s to the main loop, which gives
//! them to its [`Registry`] together with its state. A handler answers at once or keeps the
//! [`Reply`] for later. What a client does wrong ends its own connection and nothing else.

mod registry;
mod socket;

pub use registry::{Answer, Registry, Reply, Request, UNLISTED};
pub use socket::{Server, default_path};

/// Adds `list-commands` (answered by the registry itself) and `version`.
pub fn register_basics<S>(registry: &mut Registry<S>) {
    registry.add("version", "", 0..=0, |_, _| Ok(format!("{}\n", crate::daemon::version())));
}
