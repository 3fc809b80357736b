//! Hugepages for the time of a measurement: one lab at a time, and the old number afterwards,
//! however we end.

use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const NUMBER: &str = "/proc/sys/vm/nr_hugepages";
const LOCK: &str = "/tmp/hugepages.lock";

/// Waits until no process holds its input any more, which is when we have ended, by whatever means;
/// then sets the number of hugepages back and removes the folder of the run at hand, and the lock.
/// Systems are killed by the kernel when we end.
const JANITOR: &str = "trap '' INT TERM HUP; while read -r _; do :; done; \
                       rm -rf \"$FOLDER\" || { sleep 1; rm -rf \"$FOLDER\"; }; echo \"$BEFORE\" >\"$NUMBER\"; \
                       rm -f \"$LOCK\"";

/// Held hugepages.
pub struct Hugepages {
    pages: u64,
    janitor: Child,
}

impl Hugepages {
    /// Waits for the lock, then sees that so many pages are free (others may use some). `folder` is
    /// that of the runs.
    ///
    /// # Errors
    /// Not root, or there is too little memory.
    pub fn take(pages: u64, folder: &Path) -> Result<Self> {
        let lock = lock()?;
        let before = fs::read_to_string(NUMBER).context(NUMBER)?;
        let mut janitor = Command::new("sh");
        janitor.args(["-c", JANITOR]).env("NUMBER", NUMBER).env("FOLDER", folder);
        janitor.env("LOCK", LOCK).env("BEFORE", before.trim()).process_group(0);
        // It holds the lock, as its output, until all is as it was.
        janitor.stdin(Stdio::piped()).stdout(lock).stderr(Stdio::null());
        let held = Hugepages { pages, janitor: janitor.spawn().context("sh")? };
        held.refill()?;
        Ok(held)
    }

    /// Sees that the pages are free: others on this machine may have used some, or set the number
    /// back.
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
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

/// Waits for the lock file to be ours. Who had it before removes it: then it is not the one that we
/// waited for.
fn lock() -> Result<File> {
    loop {
        let file = File::create(LOCK).with_context(|| LOCK.to_string())?;
        // SAFETY: no memory is involved; the descriptor is ours and outlives the call.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(std::io::Error::last_os_error()).context(LOCK);
        }
        if fs::metadata(LOCK).is_ok_and(|m| file.metadata().is_ok_and(|f| f.ino() == m.ino())) {
            return Ok(file);
        }
    }
}

fn meminfo(key: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)).with_context(|| key.to_string())?;
    Ok(line.trim().parse()?)
}
