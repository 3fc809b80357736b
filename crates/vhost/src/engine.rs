//! The interface of copy engines: devices besides the CPU that copy memory.

use crate::Job;
use std::io;

/// A copy engine, used by one thread at a time. It makes copies in any order and reports them in
/// the order in which it was given them. A copy that it reports is visible to all threads.
pub trait Engine: Send {
    /// Number of copies that the engine takes now.
    fn room(&mut self) -> usize;
    /// Gives the engine copies, from the first on; returns how many it took. It begins with them at
    /// [`Engine::submit`] or before.
    ///
    /// # Safety
    ///
    /// Both ends of each copy are valid until the copy is reported, or [`Engine::stop`] has
    /// returned.
    unsafe fn copy(&mut self, jobs: &[Job]) -> usize;
    /// Makes the engine begin with the copies that it was given.
    fn submit(&mut self);
    /// Number of copies, at most `max`, that were made and not reported before. True: the copy
    /// behind them failed, see [`Engine::statuses`].
    fn completed(&mut self, max: usize) -> (usize, bool);
    /// Appends the results of the next copies to `out`, at most `max`, as far as they are known: 0
    /// for a copy that was made, otherwise the engine's code. The engine continues with the copies
    /// behind them.
    fn statuses(&mut self, max: usize, out: &mut Vec<u32>);
    /// Stops the engine for good: when this returns it reads and writes no memory any more, whether
    /// its copies were made or not. This may take long.
    fn stop(&mut self);
}

/// Makes memory of this process available to engines that do not use the CPU's page tables. It
/// stands for all of these engines together.
pub trait DmaMapper: Send + Sync {
    /// Maps `bytes` bytes of whole pages from address `addr` on, and pins them: this may take long.
    ///
    /// # Errors
    /// Why they cannot be mapped.
    fn map(&self, addr: usize, bytes: usize) -> io::Result<()>;
    /// Undoes a [`DmaMapper::map`] with the same values. On return no engine reaches the memory.
    ///
    /// # Errors
    /// Why they stay mapped.
    fn unmap(&self, addr: usize, bytes: usize) -> io::Result<()>;
}
