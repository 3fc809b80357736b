//! What a guest can do wrong, and how often it did.

macro_rules! misdeeds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What a guest did wrong. None of it concerns anybody else.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Misdeed { $($(#[$doc])* $name,)* }
        impl Misdeed {
            /// All of them.
            pub const ALL: &[Misdeed] = &[$(Misdeed::$name,)*];
            /// How many there are.
            pub const COUNT: usize = Misdeed::ALL.len();
            /// A word for a counter.
            pub fn name(self) -> &'static str {
                match self { $(Misdeed::$name => $text,)* }
            }
        }
    };
}

misdeeds! {
    /// The index of available buffers jumped by more than the ring holds. The ring is given up.
    Index = "bad_index",
    /// A descriptor number beyond the table. As head of a buffer it is the ring's end.
    Descriptor = "bad_descriptor",
    /// A chain longer than its table.
    Loop = "descriptor_loop",
    /// A buffer in more pieces than any packet needs.
    Pieces = "too_many_pieces",
    /// An address where the guest has no memory.
    Address = "bad_address",
    /// A buffer to read where one to write is due, or the reverse.
    Direction = "bad_direction",
    /// An indirect table of a bad size, inside another one, or with a successor.
    Indirect = "bad_indirect",
    /// A buffer to send that does not even hold the header and one byte.
    Short = "short_buffer",
    /// A frame to send that is longer than our buffers.
    Long = "long_frame",
    /// A receive buffer too small for the packet, of a guest that cannot merge buffers.
    SmallBuffer = "small_buffer",
}

/// How often each [`Misdeed`] was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misdeeds([u64; Misdeed::COUNT]);

impl Misdeeds {
    /// One more.
    #[cold]
    pub(crate) fn count(&mut self, what: Misdeed) {
        self.0[what as usize] += 1;
    }

    /// How often.
    pub fn get(&self, what: Misdeed) -> u64 {
        self.0[what as usize]
    }

    /// What was added since `older`.
    pub fn since(&self, older: &Misdeeds) -> impl Iterator<Item = (Misdeed, u64)> {
        let (new, old) = (self.0, older.0);
        let added = move |what: &Misdeed| (*what, new[*what as usize] - old[*what as usize]);
        Misdeed::ALL.iter().map(added).filter(|(_, n)| *n > 0)
    }

    /// Over all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
