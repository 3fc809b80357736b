//! The device side of virtqueues (virtio 1.1, sections 2.6 and 2.7): packets out of a guest's
//! memory and into it, for split and packed rings.
//!
//! *Place*: between `packet` and the drivers. *Knows*: rings, descriptors, the virtio-net header.
//! *Does not know*: sockets, the vhost-user protocol, DPDK, threads (the holder of a [`Ring`]
//! owns it).
//!
//! A guest is treated as hostile at all times:
//!
//! - Guest memory is only touched through raw pointers, by the functions of `raw`. No reference
//!   to it ever exists, as the guest may change it at any time.
//! - Every index, length and address is read once into a private copy, checked there, and used
//!   from there. Later changes by the guest have no effect.
//! - Each ring error has a name ([`RingError`]) and a counter. A bad buffer is given back and its
//!   packet dropped; a ring whose indices make no sense is not served until it is set up again.
//! - The work per call is bounded by the number of packets asked for: so many descriptors are read
//!   ([`steps_max`]), with or without bytes, in good buffers or bad ones. A ring whose guest makes
//!   hardly anything but malformed buffers is given up.

mod ahead;
mod batch;
mod copier;
mod dirty;
mod engine;
mod listed;
mod memory;
mod packed;
mod raw;
mod resume;
mod ring;
mod ring_error;
mod slots;
mod split;

pub use batch::{BATCH, Batch, steps_max};
pub use dirty::DirtyLog;
pub use engine::{DmaMapper, Engine};
pub use memory::{Memory, Region};
pub use resume::resumed_base;
pub use ring::{Moved, Ring, RingSetup, SetupError};
pub use ring_error::{RingError, RingErrors};
pub use slots::{Job, List};

/// Feature bits (virtio 1.1, sections 5.1.3 and 6) that change what a ring looks like.
pub mod feature {
    /// The guest may leave checksums of its packets to the device.
    pub const CSUM: u64 = 1;
    /// The guest takes packets whose checksums are left to it.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The guest takes segments of TCP over IPv4 merged.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The guest takes segments of TCP over IPv6 merged.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The guest may leave the cutting of TCP over IPv4 into segments to the device.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The guest may leave the cutting of TCP over IPv6 into segments to the device.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// Packets may span several buffers of the guest.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// Pages that the device writes are logged (vhost-user's, for live migration).
    pub const LOG_ALL: u64 = 1 << 26;
    /// Buffers may be tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are suppressed by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Little-endian fields, and the virtio-net header of 12 bytes.
    pub const VERSION_1: u64 = 1 << 32;
    /// Addresses go through an IOMMU.
    pub const IOMMU_PLATFORM: u64 = 1 << 33;
    /// Packed rings.
    pub const RING_PACKED: u64 = 1 << 34;
}
