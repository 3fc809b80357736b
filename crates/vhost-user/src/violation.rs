//! What a front-end can do wrong, and how often the front-ends of a socket did.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A violation of the vhost-user protocol, or of one of our bounds. It ends the connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Violation { $($(#[$doc])* $name,)* }
        impl Violation {
            /// All of them.
            pub const ALL: &[Violation] = &[$(Violation::$name,)*];
            /// How many there are.
            pub const COUNT: usize = Violation::ALL.len();
            /// A word for a counter.
            pub fn name(self) -> &'static str {
                match self { $(Violation::$name => $text,)* }
            }
        }
    };
}

violations! {
    /// The flags of a message name no version, or another one than 1, or a reply.
    Version = "bad_version",
    /// A request that is not known or was not offered.
    Request = "unknown_request",
    /// A payload that is not as long as its request says.
    Size = "bad_size",
    /// More or fewer descriptors than the request has.
    Descriptors = "bad_descriptors",
    /// A value that the request does not allow.
    Value = "bad_value",
    /// A request that is not allowed yet, or not any more.
    Order = "bad_order",
    /// A ring's number beyond the rings that are served.
    Ring = "bad_ring",
    /// A ring's number of entries that its layout does not allow.
    RingSize = "bad_ring_size",
    /// A ring that is not in the guest's memory.
    RingAddress = "bad_ring_address",
    /// Features that were not offered.
    Features = "bad_features",
    /// A memory region that is empty, overlaps another one or passes the end of an address space.
    Region = "bad_region",
    /// A file that is shorter than what is to be mapped of it.
    ShortFile = "short_file",
    /// A file on a file system whose pages may take long to come, or no file.
    FileKind = "bad_file",
    /// The kernel refuses to map the file.
    Map = "cannot_map",
    /// A descriptor to notify the guest by that is no eventfd.
    Call = "bad_call_descriptor",
    /// In-flight regions of a bad size.
    Inflight = "bad_inflight",
    /// A log of dirty pages of a bad size.
    Log = "bad_log",
    /// A message of which only a part came.
    Slow = "unfinished_message",
    /// A reply that is not read.
    Unread = "unread_reply",
    /// The guest's memory went away under us: its file was made shorter, or the machine lost it.
    LostMemory = "lost_memory",
    /// More connections than are served or waited for.
    Connections = "too_many_connections",
}

/// How often each [`Violation`] was seen on a socket.
#[derive(Default)]
pub struct Violations([AtomicU64; Violation::COUNT]);

impl Violations {
    /// Counts one more.
    pub fn count(&self, what: Violation) {
        self.0[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each with its number.
    pub fn all(&self) -> Vec<(Violation, u64)> {
        let count = |what: &Violation| (*what, self.0[*what as usize].load(Ordering::Relaxed));
        Violation::ALL.iter().map(count).collect()
    }
}
