//! What an engine is: something besides the CPU that copies memory.

use crate::Job;

/// A copy engine, used by one thread at a time. It makes copies in any order and reports them in
/// the order in which it got them. What it reports as made is visible to all threads.
pub trait Engine: Send {
    /// Copies that it takes now.
    fn room(&mut self) -> usize;
    /// Takes copies, from the first on; how many. It begins with them at [`Engine::submit`] or
    /// before.
    ///
    /// # Safety
    /// Both ends of each copy are valid until it is reported, or [`Engine::stop`] has returned.
    unsafe fn copy(&mut self, jobs: &[Job]) -> usize;
    /// Has it begin.
    fn submit(&mut self);
    /// Copies that were made and not reported before, at most `max`; true: the next one failed, see
    /// [`Engine::statuses`].
    fn completed(&mut self, max: usize) -> (usize, bool);
    /// What became of the next copies, as far as that is known: 0 for one that was made, else the
    /// engine's code. Appends at most `max` to `out`. The engine goes on with those behind them.
    fn statuses(&mut self, max: usize, out: &mut Vec<u32>);
    /// Stops it for good: when this returns it reads and writes nothing any more, made or not. May
    /// take long.
    fn stop(&mut self);
}
