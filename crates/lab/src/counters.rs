//! The file in which a generator port counts (lab/generator/README.md).

use anyhow::{Result, bail};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const QUEUES: usize = 16;
const HEADER: usize = 64;
const QUEUE: usize = 64;
const RATE: u64 = 32;
const LATENCY: usize = HEADER + 2 * QUEUES * QUEUE;
const BUCKETS: usize = 256;
/// Which 8-byte counters of an adapter are the rules made and ended, the packets that came and
/// passed without the host, and those that were delivered so.
const ADAPTER: usize = LATENCY + QUEUES * BUCKETS * 8;
const CREATED: usize = 1;
const DESTROYED: usize = 3;
const PASSED: usize = 7;
const DELIVERED: usize = 9;

/// One port's counters over all queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// TSC cycles per second.
    pub tsc_hz: u64,
    /// Packets made, and those that an adapter's rules took.
    pub made: u64,
    /// Packets that came due while the ring was full.
    pub missed: u64,
    /// Packets taken back, and those that an adapter's rules delivered here.
    pub taken: u64,
    /// Rules that the adapter made and ended.
    pub rule_operations: u64,
    /// Packets of sampled flows that never came.
    pub lost: u64,
    /// Packets of sampled flows that came late.
    pub reordered: u64,
    /// Latency histogram: bucket b counts samples below (9 + b mod 8) 2^(b/8) / 8 cycles.
    pub latency: Vec<u64>,
}

impl Counters {
    /// Reads a port's file.
    ///
    /// # Errors
    /// The file is not there (yet) or not what it should be.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path)?;
        if !bytes.starts_with(b"weftgen1") || bytes.len() < LATENCY + QUEUES * BUCKETS * 8 {
            bail!("{}: not the counters of a generator", path.display());
        }
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let sum = |side: usize, field: usize| {
            (0..QUEUES).map(|q| word(HEADER + (side * QUEUES + q) * QUEUE + field * 8)).sum()
        };
        let adapter = |field: usize| match bytes.len() > ADAPTER + field * 8 + 7 {
            true => word(ADAPTER + field * 8),
            false => 0,
        };
        let samples = |b| (0..QUEUES).map(|q| word(LATENCY + (q * BUCKETS + b) * 8)).sum();
        Ok(Counters {
            tsc_hz: word(8),
            made: sum(0, 0) + adapter(PASSED),
            missed: sum(0, 3),
            taken: sum(1, 0) + adapter(DELIVERED),
            rule_operations: adapter(CREATED) + adapter(DESTROYED),
            lost: sum(1, 3),
            reordered: sum(1, 4),
            latency: (0..BUCKETS).map(samples).collect(),
        })
    }

    /// Sets the rate of a port that was given one: packets per second, 0 for none.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_rate(path: &Path, rate: u64) -> Result<()> {
        let mut file = fs::OpenOptions::new().write(true).open(path)?;
        file.seek(SeekFrom::Start(RATE))?;
        Ok(file.write_all(&rate.to_ne_bytes())?)
    }

    /// Microseconds below which a share of the samples since `before` were; nothing without
    /// samples.
    pub fn latency_us(&self, before: &Counters, share: f64) -> Option<f64> {
        let new: Vec<_> = self.latency.iter().zip(&before.latency).map(|(b, a)| b - a).collect();
        let all: u64 = new.iter().sum();
        let mut seen = 0;
        let bucket = new.iter().position(|n| {
            seen += n;
            all > 0 && seen as f64 >= all as f64 * share
        })?;
        let cycles = (9 + bucket as u64 % 8) as f64 * 2f64.powi(bucket as i32 / 8) / 8.0;
        Some(cycles * 1e6 / self.tsc_hz as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_histogram() {
        let mut a =
            Counters { tsc_hz: 1_000_000, latency: vec![5; BUCKETS], ..Counters::default() };
        let before = a.clone();
        assert_eq!(a.latency_us(&before, 0.5), None);
        a.latency[80] += 98;
        a.latency[160] += 2;
        assert_eq!(a.latency_us(&before, 0.5), Some(9.0 * 1024.0 / 8.0));
        assert_eq!(a.latency_us(&before, 0.999), Some(9.0 * 1048576.0 / 8.0));
    }
}
