//! Counters of a thread's engine.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one thread's engine, since the thread got it. Written by that thread.
        #[derive(Default)]
        pub struct Tally {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// The values of a [`Tally`] at one time.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tallied {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Tally {
            /// The counters now.
            pub fn read(&self) -> Tallied {
                Tallied { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Sets all counters to zero.
            pub(crate) fn clear(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }

        impl Tallied {
            /// Sums of both.
            pub fn plus(&self, other: &Tallied) -> Tallied {
                Tallied { $($name: self.$name + other.$name,)* }
            }

            /// Differences to the earlier values `before`.
            pub fn since(&self, before: &Tallied) -> Tallied {
                Tallied { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

tally! {
    /// Doorbells rung.
    doorbells,
    /// Copies given to the engine.
    copies,
    /// Copies that the engine reported, complete or failed.
    completed,
    /// Copies that the engine reported as failed; the CPU made them.
    errors,
    /// Copies that the CPU made after the engine hung.
    redone,
    /// Bytes of the copies given to the engine.
    engine_bytes,
    /// Bytes that the CPU copied to or from guests in the same time.
    cpu_bytes,
    /// Polls of the engine for completions.
    polls,
    /// Polls without a completion.
    polls_empty,
    /// Bursts to guests.
    enqueues,
    /// Bursts from guests, also empty ones.
    dequeues,
    /// Long frames that the CPU copied because the engine had no room.
    full,
    /// Bursts that the CPU copied because the guest is being migrated.
    logged,
    /// Bursts that the CPU copied because their ring is being taken away.
    closing,
    /// Bursts that the CPU copied because their guest's memory is not mapped for engines.
    unmapped,
    /// Bursts that the CPU copied because too many of the port's copies failed.
    barred,
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
