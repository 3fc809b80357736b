//! What drivers do once in each iteration of a thread, for all queues together: let engines copy.
//!
//! A driver whose rings leave copies to an engine registers functions once ([`set_turns`]). From
//! then on each thread that moves packets calls them at the beginning and at the end of its
//! iterations. Without them an iteration costs a load and a compare.

use std::sync::OnceLock;

/// The functions that threads that move packets call.
pub struct Turns {
    /// Called before packets are received.
    pub begin: fn(),
    /// Called when all packets were sent. True: copies are in flight, so the thread should not
    /// sleep.
    pub end: fn() -> bool,
    /// Called when the thread moves no more packets.
    pub stop: fn(),
}

static TURNS: OnceLock<Turns> = OnceLock::new();

/// Registers the functions. Only the first call has an effect.
pub fn set_turns(turns: Turns) {
    let _ = TURNS.set(turns);
}

/// Begins an iteration of the calling thread.
#[inline]
pub fn begin_turn() {
    if let Some(turns) = TURNS.get() {
        (turns.begin)();
    }
}

/// Ends an iteration of the calling thread; see [`Turns::end`].
#[inline]
pub fn end_turn() -> bool {
    TURNS.get().is_some_and(|turns| (turns.end)())
}

/// Ends the calling thread's use of queues.
pub fn stop_turns() {
    if let Some(turns) = TURNS.get() {
        (turns.stop)();
    }
}
