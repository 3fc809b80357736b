//! What a guest can do wrong, and how often it did.

macro_rules! ring_errors {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What a guest did wrong. None of it concerns anybody else.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum RingError { $($(#[$doc])* $name,)* }
        impl RingError {
            /// All of them.
            pub const ALL: &[RingError] = &[$(RingError::$name,)*];
            /// How many there are.
            pub const COUNT: usize = RingError::ALL.len();
            /// A word for a counter.
            pub fn name(self) -> &'static str {
                match self { $(RingError::$name => $text,)* }
            }
        }
    };
}

ring_errors! {
    /// The index of available buffers jumped by more than the ring holds. The ring is given up.
    Index = "bad_index",
    /// A descriptor number beyond the table. As head of a buffer it is the ring's end.
    Descriptor = "bad_descriptor",
    /// A chain longer than its table.
    Loop = "descriptor_loop",
    /// A buffer in more pieces than any packet needs, those of no bytes included.
    Pieces = "too_many_pieces",
    /// An address where the guest has no memory.
    Address = "bad_address",
    /// A buffer to read where one to write is due, or the reverse.
    Direction = "bad_direction",
    /// An indirect table of a bad size (0, a part of an entry, more entries than the ring has),
    /// inside another one, or with a successor.
    Indirect = "bad_indirect",
    /// A buffer to send that does not even hold the header and one byte.
    Short = "short_buffer",
    /// A frame to send that is longer than our buffers.
    Long = "long_frame",
    /// A receive buffer too small for the packet, of a guest that cannot merge buffers.
    SmallBuffer = "small_buffer",
    /// Too many malformed buffers and too few others. The ring is given up.
    GivenUp = "ring_given_up",
}

impl RingError {
    /// Is the buffer malformed? Frames and buffers that do not fit each other are mistakes of
    /// configuration: they end in a counter however many they are.
    pub(crate) fn is_malformed(self) -> bool {
        use RingError::*;
        matches!(self, Descriptor | Loop | Pieces | Address | Direction | Indirect)
    }
}

/// How often each [`RingError`] was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingErrors([u64; RingError::COUNT]);

impl RingErrors {
    /// One more.
    #[cold]
    pub(crate) fn count(&mut self, what: RingError) {
        self.0[what as usize] += 1;
    }

    /// How often.
    pub fn get(&self, what: RingError) -> u64 {
        self.0[what as usize]
    }

    /// What was added since `older`.
    pub fn since(&self, older: &RingErrors) -> impl Iterator<Item = (RingError, u64)> {
        let (new, old) = (self.0, older.0);
        let added = move |what: &RingError| (*what, new[*what as usize] - old[*what as usize]);
        RingError::ALL.iter().map(added).filter(|(_, n)| *n > 0)
    }

    /// Over all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
