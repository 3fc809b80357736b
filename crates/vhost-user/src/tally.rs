//! What a thread's engine did.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one thread's engine, since the thread got it. Written by that thread.
        #[derive(Default)]
        pub struct Tally {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// A [`Tally`] at a moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tallied {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Tally {
            /// The counters now.
            pub fn read(&self) -> Tallied {
                Tallied { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// All zero.
            pub(crate) fn clear(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }

        impl Tallied {
            /// Sums of both.
            pub fn plus(&self, other: &Tallied) -> Tallied {
                Tallied { $($name: self.$name + other.$name,)* }
            }

            /// What came since `before`.
            pub fn since(&self, before: &Tallied) -> Tallied {
                Tallied { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

tally! {
    /// Doorbells: times that the engine was asked to begin.
    doorbells,
    /// Copies that it got.
    copies,
    /// Copies that it reported, made or not.
    completed,
    /// Copies that it reported as failed; the CPU made them.
    errors,
    /// Copies that the CPU made after the engine had hung.
    redone,
    /// Bytes that the engine got to copy.
    engine_bytes,
    /// Bytes that the CPU copied to or from guests meanwhile.
    cpu_bytes,
    /// Times it was looked at for completions.
    polls,
    /// Times there was none.
    polls_empty,
    /// Bursts to guests.
    enqueues,
    /// Bursts from guests, or attempts.
    dequeues,
    /// Long frames that the CPU copied: the engine had no room.
    full,
    /// Bursts that the CPU copied, as the guest is being migrated.
    logged,
    /// Bursts that the CPU copied, as their ring is being taken away.
    closing,
    /// Most copies in flight.
    in_flight_max,
}

/// Adds to a counter that this thread alone writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seat::{Seat, forget_seat};

    #[test]
    fn what_is_shown_begins_anew_and_the_tally_does_not() {
        let seat = Seat::new(63);
        seat.tally.copies.store(7, Ordering::Relaxed);
        seat.tally.in_flight_max.store(5, Ordering::Relaxed);
        seat.clear_shown();
        seat.tally.copies.store(9, Ordering::Relaxed);
        assert_eq!(seat.shown(), Tallied { copies: 2, in_flight_max: 5, ..Tallied::default() });
        assert_eq!(seat.tally.read().copies, 9);
        forget_seat(&seat);
    }
}
