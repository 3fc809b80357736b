//! DPDK's own lines in the log, as module `dpdk`, as in ovs-vswitchd.
//!
//! Drivers log on any thread, PMD threads, too: lines wait here until the control thread writes
//! them.

use crate::vlog::{self, Level};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Lines that wait at most; those that come after them are counted.
const LINES_COUNT_MAX: usize = 256;

struct Waiting {
    lines: Vec<(Level, String)>,
    lost: u64,
}

static WANTED: AtomicBool = AtomicBool::new(false);
static WAITING: Mutex<Waiting> = Mutex::new(Waiting { lines: Vec::new(), lost: 0 });
static CAME: Notify = Notify::const_new();

/// Lines are logged from now on. Before, no user has asked for DPDK, and one of other ports would
/// take what it says about hugepages for a failure.
pub fn begin() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Takes a line of DPDK's, on any thread; `level`: `RTE_LOG_*`.
pub fn take(level: u32, text: &str) {
    if !WANTED.load(Ordering::Relaxed) {
        return;
    }
    let mut waiting = WAITING.lock().unwrap_or_else(|e| e.into_inner());
    if waiting.lines.len() == LINES_COUNT_MAX {
        waiting.lost += 1;
        return;
    }
    waiting.lines.push((level_of(level), text.into()));
    CAME.notify_one();
}

/// Writes lines until the daemon ends.
pub async fn run() {
    loop {
        CAME.notified().await;
        write();
    }
}

fn write() {
    let (lines, lost) = {
        let mut waiting = WAITING.lock().unwrap_or_else(|e| e.into_inner());
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.lost))
    };
    for (level, text) in lines {
        vlog::at!(level, "dpdk", "{text}");
    }
    if lost > 0 {
        vlog::warn!("dpdk", "{lost} lines of DPDK came too fast to be logged");
    }
}

/// A level of DPDK in the log's own.
fn level_of(level: u32) -> Level {
    match level {
        0..=3 => Level::Emer,
        4 => Level::Err,
        5 => Level::Warn,
        6 | 7 => Level::Info,
        _ => Level::Dbg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_up_to_a_number_once_they_are_wanted() {
        take(5, "not asked for");
        begin();
        for _ in 0..LINES_COUNT_MAX + 3 {
            take(5, "a line");
        }
        let waiting = WAITING.lock().unwrap();
        assert_eq!((waiting.lines.len(), waiting.lost), (LINES_COUNT_MAX, 3));
        assert_eq!(waiting.lines[0], (Level::Warn, "a line".into()));
    }

    #[test]
    fn levels_are_those_of_ovs_vswitchd() {
        use Level::{Dbg, Emer, Err, Info, Warn};
        assert_eq!([1, 3, 4, 5, 6, 7, 8].map(level_of), [Emer, Emer, Err, Warn, Info, Info, Dbg]);
    }
}
