//! The free entries that are ready: a ring that the keeper fills and many workers take from,
//! without waiting.

use super::atomics::{AtomicU32, AtomicU64, Ordering::*};

/// Attempts of a worker while others take, too.
const ATTEMPTS_COUNT_MAX: usize = 8;

/// A ring of free entries.
pub struct FreeEntries {
    ring: Box<[AtomicU32]>,
    /// Number of entries that were ever taken; `put`: that were ever put in.
    taken: AtomicU64,
    put: AtomicU64,
}

impl FreeEntries {
    /// An empty ring with room for `size` (a power of two).
    pub fn new(size: usize) -> Self {
        FreeEntries {
            ring: (0..size).map(|_| AtomicU32::new(0)).collect(),
            taken: AtomicU64::new(0),
            put: AtomicU64::new(0),
        }
    }

    fn slot(&self, at: u64) -> &AtomicU32 {
        &self.ring[at as usize & (self.ring.len() - 1)]
    }

    /// Number of entries that may be put in, if those from number `noted` on are to stay readable
    /// ([`FreeEntries::number`]). Called by the keeper.
    pub fn room(&self, noted: u64) -> usize {
        self.ring.len() - (self.put.load(Relaxed) - noted) as usize
    }

    /// Puts an entry in; the caller knows that there is room. Called by the keeper.
    pub fn put(&self, entry: u32) {
        let at = self.put.load(Relaxed);
        self.slot(at).store(entry, Relaxed);
        self.put.store(at + 1, Release);
    }

    /// Number of entries that were ever taken. Called by the keeper.
    pub fn taken(&self) -> u64 {
        self.taken.load(Acquire)
    }

    /// The entry that was put in as number `at`. Called by the keeper, for entries that it did not
    /// overwrite yet ([`FreeEntries::room`]).
    pub fn number(&self, at: u64) -> u32 {
        self.slot(at).load(Relaxed)
    }

    /// Takes entries, as many as `out` has room for; returns how many.
    pub fn take(&self, out: &mut [u32]) -> usize {
        for _ in 0..ATTEMPTS_COUNT_MAX {
            let at = self.taken.load(Acquire);
            let n = (self.put.load(Acquire).saturating_sub(at) as usize).min(out.len());
            if n == 0 {
                return 0;
            }
            for (i, o) in out[..n].iter_mut().enumerate() {
                *o = self.slot(at + i as u64).load(Relaxed);
            }
            // No worker took them meanwhile, so the keeper has not written over them either.
            if self.taken.compare_exchange(at, at + n as u64, AcqRel, Relaxed).is_ok() {
                return n;
            }
        }
        0
    }
}
