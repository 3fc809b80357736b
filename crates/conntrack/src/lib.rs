//! Connection tracking: what `ct` does in OVS's userspace datapath.
//!
//! *Place*: packet half, below `datapath`. *Knows*: IP packets, connections, what an [`action::Ct`]
//! asks for. *Does not know*: ports, flows, OpenFlow, threads, clocks (time is an argument, in
//! milliseconds).
//!
//! [`track`] handles one packet, over a [`Store`]. There are two stores: the [`Table`] that all
//! packet threads share ([`Worker`]), and [`Model`], its slow twin, which defines what is right.
//!
//! Invariants
//! - Looking a connection up takes no lock and writes nothing.
//! - A worker's steps per packet are bounded, whatever other threads do; what it gives up is
//!   counted.
//! - No two live connections have a tuple in common.
//! - Memory of a connection that ended is used again after every worker has passed a quiescent
//!   point.

pub mod alg;
mod conn;
mod count;
mod extract;
mod filter;
pub mod ipf;
pub mod machine;
mod model;
mod nat;
mod policy;
mod rewrite;
mod searches;
mod table;
pub mod text;
mod track;
mod tuple;

pub use conn::{Conn, Meta, PacketConn, Translation, state};
pub use count::{COUNT_NAMES, COUNTS, Count, Refused};
pub use extract::{Bad, Place, Seen, extract};
pub use filter::{Absent, Filter, TupleFilter};
pub use model::Model;
pub use policy::{
    CLASS_NAMES, CLASSES, Class, DEFAULT_SECONDS, POLICIES_COUNT_MAX, Policies, TIMEOUT_SECONDS_MAX,
};
pub use table::{
    CONNECTIONS_COUNT_DEFAULT, FastHeaders, FastPacket, FastTracked, Keeper, Limits, Prefetched,
    Ref, Secret, Shown, Table, Worker, is_fast,
};
pub use track::{Arrival, IpHeader, Store, track, track_seen};
pub use tuple::{Tuple, address, number, reply_type};
