//! The vhost-user protocol: the sockets of ports, messages of front-ends, and the rings that they
//! set up.
//!
//! *Place*: above `vhost`, below `dpdk`. *Knows*: UNIX sockets, the vhost-user protocol, files of
//! guests' memory. *Does not know*: DPDK, OVSDB, which thread polls.
//!
//! The front-end is treated as hostile at all times:
//!
//! - Each connection has a thread of its own, which never blocks without a bound. No other thread
//!   waits for it: when a port is removed an eventfd becomes readable, which ends every wait.
//! - A message is checked as a whole (request, size, descriptors, values, order) before any of it
//!   takes effect. A [`Violation`] is counted by name, logged at most once in ten seconds, and ends
//!   the connection.
//! - A file is mapped only if it is long enough and its pages are available at once; if it is
//!   truncated later, `sigbus` limits the effect to its own guest.
//! - The work that front-ends cause is limited by a budget of their socket; when it is used up,
//!   their thread sleeps.

mod atomics;
mod budget;
mod call;
mod call_timer;
mod completions;
mod copies;
mod cost;
mod counters;
mod dma_map;
mod dma_thread;
mod failures;
mod inflight;
mod memory;
mod message;
mod pair_choice;
mod queue;
mod rarp;
mod rings;
mod seat;
mod session;
mod shared;
mod sigbus;
mod socket;
mod stream;
mod tally;
pub mod testing;
mod violation;

pub use call::{NoEventfd, signal};
pub use copies::{begin_iteration, end_iteration, leave_seat, take_seat, use_engines};
pub use counters::{Counters, Slot};
pub use dma_thread::{map_memory, mapped_bytes, unmap_memory};
pub use memory::{Mapping, map};
pub use pair_choice::{Turn, ring_of};
pub use queue::{Rx, Tx};
pub use seat::{
    Seat, SeatState, THRESHOLD_BYTES_DEFAULT, THRESHOLD_BYTES_MAX, forget_seat, seats,
    set_threshold, threshold,
};
pub use shared::{Info, Inform, OnChange, PAIRS_MAX, Warn};
pub use socket::{Claim, Config, Mode, Socket};
pub use tally::{Tallied, Tally};
pub use violation::Violation;

use vhost::feature;

/// The virtio features that are offered: those of ovs-vswitchd 3.1 on DPDK 22.11 with
/// `userspace-tso-enable` off, so that a guest can migrate between the two while it runs. These are
/// the features of DPDK's vhost library for network devices without CSUM (bit 0), HOST_TSO4,
/// HOST_TSO6, HOST_UFO (11, 12, 14) and IOMMU_PLATFORM (33); the crate `dpdk` has a test that
/// compares them with the library's.
pub const FEATURES: u64 = 0xd_7c66_a7ca;

/// Features that are offered besides with `userspace-tso-enable` on, as by ovs-vswitchd: a guest
/// may leave checksums and segments of TCP to the switch.
pub const OFFLOADS: u64 = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6;

/// The protocol features that are offered: those of DPDK's vhost library that concern a network
/// device without an IOMMU, and in-flight regions.
pub const PROTOCOL_FEATURES: u64 = protocol::MQ
    | protocol::LOG_SHMFD
    | protocol::RARP
    | protocol::REPLY_ACK
    | protocol::NET_MTU
    | protocol::INFLIGHT_SHMFD
    | protocol::STATUS;

/// Bits of the protocol features, and the virtio feature that says that there are any.
mod protocol {
    pub const FEATURE: u64 = 1 << 30;
    pub const MQ: u64 = 1;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const RARP: u64 = 1 << 2;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const NET_MTU: u64 = 1 << 4;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const STATUS: u64 = 1 << 16;
}
