//! What drivers do once per turn of a thread, for all queues together: having engines copy.
//!
//! A driver whose rings leave copies to an engine says so once ([`set_turns`]); from then on each
//! thread that moves packets calls it at the beginning and at the end of its turns. Before, a turn
//! costs a load and a compare.

use std::sync::OnceLock;

/// What is called, on the thread that moves packets.
pub struct Turns {
    /// Before packets are received.
    pub begin: fn(),
    /// When all was sent. True: copies are in flight, so the thread should not rest.
    pub end: fn() -> bool,
    /// The thread moves no more packets.
    pub stop: fn(),
}

static TURNS: OnceLock<Turns> = OnceLock::new();

/// Has these called from now on. The first call counts.
pub fn set_turns(turns: Turns) {
    let _ = TURNS.set(turns);
}

/// A turn of the calling thread begins.
#[inline]
pub fn begin_turn() {
    if let Some(turns) = TURNS.get() {
        (turns.begin)();
    }
}

/// A turn of the calling thread ends; see [`Turns::end`].
#[inline]
pub fn end_turn() -> bool {
    TURNS.get().is_some_and(|turns| (turns.end)())
}

/// The calling thread moves no more packets.
pub fn stop_turns() {
    if let Some(turns) = TURNS.get() {
        (turns.stop)();
    }
}
