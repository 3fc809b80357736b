//! What drivers do once in each iteration of a thread, for all queues together: let engines copy.
//!
//! A driver whose rings leave copies to an engine registers functions once
//! ([`set_iteration_hooks`]). From then on each thread that moves packets calls them at the
//! beginning and at the end of its iterations. Without them an iteration costs a load and a
//! compare.

use std::sync::OnceLock;

/// The functions that threads that move packets call.
pub struct IterationHooks {
    /// Called before packets are received.
    pub begin: fn(),
    /// Called when all packets were sent. True: copies are in flight, so the thread should not
    /// sleep.
    pub end: fn() -> bool,
    /// Called when the thread moves no more packets.
    pub stop: fn(),
}

static HOOKS: OnceLock<IterationHooks> = OnceLock::new();

/// Registers the functions. Only the first call has an effect.
pub fn set_iteration_hooks(hooks: IterationHooks) {
    let _ = HOOKS.set(hooks);
}

/// Begins an iteration of the calling thread.
#[inline]
pub fn begin_iteration() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.begin)();
    }
}

/// Ends an iteration of the calling thread; see [`IterationHooks::end`].
#[inline]
pub fn end_iteration() -> bool {
    HOOKS.get().is_some_and(|hooks| (hooks.end)())
}

/// Ends the calling thread's use of queues.
pub fn stop_iterations() {
    if let Some(hooks) = HOOKS.get() {
        (hooks.stop)();
    }
}
