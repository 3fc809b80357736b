//! The file in which a generator port counts (lab/generator/README.md).

use anyhow::{Result, bail};
use std::path::Path;

const QUEUES: usize = 16;
const HEADER: usize = 64;
const QUEUE: usize = 64;

/// One port's counters over all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// TSC cycles per second.
    pub tsc_hz: u64,
    /// Packets made.
    pub made: u64,
    /// Times that the switch's pool had no buffer.
    pub no_buffer: u64,
    /// Packets taken back.
    pub taken: u64,
    /// Packets of sampled flows that never came.
    pub lost: u64,
    /// Packets of sampled flows that came late.
    pub reordered: u64,
}

impl Counters {
    /// Reads a port's file.
    ///
    /// # Errors
    /// The file is not there (yet) or not what it should be.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)?;
        if !bytes.starts_with(b"weftgen1") || bytes.len() < HEADER + 2 * QUEUES * QUEUE {
            bail!("{}: not the counters of a generator", path.display());
        }
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let sum = |side: usize, field: usize| {
            (0..QUEUES).map(|q| word(HEADER + (side * QUEUES + q) * QUEUE + field * 8)).sum()
        };
        Ok(Counters {
            tsc_hz: word(8),
            made: sum(0, 0),
            no_buffer: sum(0, 2),
            taken: sum(1, 0),
            lost: sum(1, 3),
            reordered: sum(1, 4),
        })
    }
}
