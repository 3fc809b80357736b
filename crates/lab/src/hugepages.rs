//! Hugepages for the time of a measurement: one lab at a time, and the old number afterwards.

use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::fd::AsRawFd;

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";
const LOCK: &str = "/tmp/hugepages.lock";

/// Held hugepages.
pub struct Hugepages {
    pages: u64,
    before: String,
    _lock: File,
}

impl Hugepages {
    /// Waits for the lock, then sees that so many pages are free (others may use some).
    ///
    /// # Errors
    /// Not root, or there is too little memory.
    pub fn take(pages: u64) -> Result<Self> {
        let lock = File::create(LOCK).with_context(|| LOCK.to_string())?;
        // SAFETY: no memory is involved; the descriptor is ours and lives in the result.
        unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
        let before = fs::read_to_string(NUMBER).context(NUMBER)?;
        let held = Hugepages { pages, before, _lock: lock };
        held.refill()?;
        Ok(held)
    }

    /// Sees that the pages are free: others on this machine may have used some, or set the number back.
    ///
    /// # Errors
    /// Not root, or there is too little memory.
    pub fn refill(&self) -> Result<()> {
        let missing = self.pages.saturating_sub(meminfo("HugePages_Free:")?);
        if missing > 0 {
            let total = meminfo("HugePages_Total:")? + missing;
            fs::write(NUMBER, total.to_string()).context("hugepages: are you root?")?;
        }
        let free = meminfo("HugePages_Free:")?;
        if free < self.pages {
            bail!("{} free hugepages of 2 MiB are needed, the kernel found {free}", self.pages);
        }
        Ok(())
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        let _ = fs::write(NUMBER, self.before.trim());
    }
}

fn meminfo(key: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)).with_context(|| key.to_string())?;
    Ok(line.trim().parse()?)
}
