//! Violations of front-ends, and how often each occurred on a socket.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A violation of the vhost-user protocol, or of one of our bounds. It ends the connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Violation { $($(#[$doc])* $name,)* }
        impl Violation {
            /// All violations.
            pub const ALL: &[Violation] = &[$(Violation::$name,)*];
            /// Number of violations.
            pub const COUNT: usize = Violation::ALL.len();
            /// Name of the violation's counter.
            pub fn name(self) -> &'static str {
                match self { $(Violation::$name => $text,)* }
            }
        }
    };
}

violations! {
    /// The flags of a message have a version other than 1, or mark a reply.
    Version = "bad_version",
    /// A request that is unknown or was not offered.
    Request = "unknown_request",
    /// A payload whose length is not that of its request.
    Size = "bad_size",
    /// More or fewer descriptors than the request has.
    Descriptors = "bad_descriptors",
    /// A value that the request does not allow.
    Value = "bad_value",
    /// A request that is not allowed at this time.
    Order = "bad_order",
    /// A ring number beyond the rings that are served.
    Ring = "bad_ring",
    /// A number of entries that the ring's layout does not allow.
    RingSize = "bad_ring_size",
    /// A ring outside the guest's memory.
    RingAddress = "bad_ring_address",
    /// Features that were not offered.
    Features = "bad_features",
    /// A memory region that is empty, overlaps another one or passes the end of an address space.
    Region = "bad_region",
    /// A file that is shorter than the part to be mapped.
    ShortFile = "short_file",
    /// A file on a file system whose pages may take long to be available, or not a file.
    FileKind = "bad_file",
    /// Memory in a file on a disk: a worker would wait for the disk.
    Disk = "memory_on_disk",
    /// The kernel refuses to map the file.
    Map = "cannot_map",
    /// A descriptor for notifications that is not an eventfd.
    Call = "bad_call_descriptor",
    /// An in-flight region of a bad size.
    Inflight = "bad_inflight",
    /// A log of dirty pages of a bad size.
    Log = "bad_log",
    /// A message that was not complete in time.
    Slow = "unfinished_message",
    /// A reply that the front-end did not read in time.
    Unread = "unread_reply",
    /// A page of the guest's memory was lost: its file was truncated, or the machine lost it.
    LostMemory = "lost_memory",
    /// More connections than the socket keeps.
    Connections = "too_many_connections",
}

/// How often each [`Violation`] occurred on a socket.
#[derive(Default)]
pub struct Violations([AtomicU64; Violation::COUNT]);

impl Violations {
    /// Counts a violation.
    pub fn count(&self, what: Violation) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each violation with its number.
    pub fn all(&self) -> Vec<(Violation, u64)> {
        let count = |what: &Violation| (*what, self.0[*what as usize].load(Ordering::Relaxed));
        Violation::ALL.iter().map(count).collect()
    }
}
