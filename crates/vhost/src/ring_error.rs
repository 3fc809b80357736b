//! Errors that a guest can make on a ring, and their counters.

macro_rules! ring_errors {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// An error of a guest on a ring. It affects only this guest's ring.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RingError { $($(#[$doc])* $name,)* }
        impl RingError {
            /// All ring errors.
            pub const ALL: &[RingError] = &[$(RingError::$name,)*];
            /// Number of kinds of ring errors.
            pub const COUNT: usize = RingError::ALL.len();
            /// The name of the counter.
            pub fn name(self) -> &'static str {
                match self { $(RingError::$name => $text,)* }
            }
        }
    };
}

ring_errors! {
    /// The index of available buffers jumped by more than the ring holds. The ring is given up.
    Index = "bad_index",
    /// A descriptor number beyond the table. If it is the head of a buffer, the ring is given up.
    Descriptor = "bad_descriptor",
    /// A chain longer than its table, so it has a loop.
    Loop = "descriptor_loop",
    /// A buffer in more pieces than any packet needs; pieces without bytes count.
    Pieces = "too_many_pieces",
    /// An address where the guest has no memory.
    Address = "bad_address",
    /// A buffer for the device to read where one to write is due, or the reverse.
    Direction = "bad_direction",
    /// An indirect table of a bad size (0, a part of an entry, more entries than the ring has),
    /// inside another one, or with a successor.
    Indirect = "bad_indirect",
    /// A buffer to send that is too short for the header and one byte.
    Short = "short_buffer",
    /// A frame to send that is longer than our buffers.
    Long = "long_frame",
    /// A header that leaves to the device what cannot be done with its frame.
    Offload = "bad_offload",
    /// A receive buffer too small for the packet, of a guest that cannot merge buffers.
    SmallBuffer = "small_buffer",
    /// Too many malformed buffers and too few others. The ring is given up.
    GivenUp = "ring_given_up",
}

impl RingError {
    /// True if the buffer itself is malformed. Frames and buffers that do not fit each other are
    /// errors of configuration: they are only counted, however many they are.
    pub(crate) fn is_malformed(self) -> bool {
        use RingError::*;
        matches!(self, Descriptor | Loop | Pieces | Address | Direction | Indirect)
    }
}

/// Counts of each [`RingError`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingErrors([u64; RingError::COUNT]);

impl RingErrors {
    /// Adds one to the count of this error.
    #[cold]
    pub(crate) fn count(&mut self, what: RingError) {
        self.0[what as usize] += 1;
    }

    /// The count of this error.
    pub fn get(&self, what: RingError) -> u64 {
        self.0[what as usize]
    }

    /// The errors that were counted since `older`, with how often.
    pub fn since(&self, older: &RingErrors) -> impl Iterator<Item = (RingError, u64)> {
        let (new, old) = (self.0, older.0);
        let added = move |what: &RingError| (*what, new[*what as usize] - old[*what as usize]);
        RingError::ALL.iter().map(added).filter(|(_, n)| *n > 0)
    }

    /// Sum of all counts.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
