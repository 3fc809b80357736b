//! Where a PMD thread's cycles go: the stages that Weft's `dpif-netdev/pmd-perf-show` tells.

use crate::cached::{appctl, control_socket};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// As `pmd-perf-show` names them; misses are a part of lookup.
const MARKS: [&str; 5] = [
    "- cycles of rx:",
    "- cycles of parse:",
    "- cycles of lookup:",
    "--cycles of misses:",
    "- cycles of act, tx:",
];

/// What threads counted since they began, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Their time, in TSC cycles.
    used: u64,
    /// Cycles at each of [`MARKS`].
    of: [u64; 5],
}

/// A run's cycles per packet by stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Asking ports for packets (the generator makes them there), guests' rings, and what an
    /// iteration has to do besides.
    pub receive: f64,
    /// Headers to keys.
    pub parse: f64,
    /// Ending tunnels, and finding what to do.
    pub lookup: f64,
    /// Cycles of `lookup` that asking the pipeline took.
    pub misses: f64,
    /// Rewriting, beginning tunnels, copying into guests' buffers, sending (the generator counts
    /// there).
    pub act: f64,
    /// In no stage: iterations that found no packet.
    pub idle: f64,
}

impl Stages {
    /// Column heads of [`Stages::list`].
    pub const NAMES: [&str; 6] =
        ["receive", "parse", "lookup", "of it misses", "act and send", "idle"];

    /// As [`Stages::NAMES`]: all but the misses sum up to the row's cycles.
    pub fn list(&self) -> [f64; 6] {
        [self.receive, self.parse, self.lookup, self.misses, self.act, self.idle]
    }
}

impl Clocks {
    /// Asks the Weft whose sockets are in `dir`.
    ///
    /// # Errors
    /// It does not answer, or not this.
    pub fn ask(dir: &Path) -> Result<Self> {
        let show = appctl(&control_socket(dir)?, &["dpif-netdev/pmd-perf-show", "-nh"])?;
        Clocks::read(&show).context("dpif-netdev/pmd-perf-show: no cycles of stages")
    }

    fn read(show: &str) -> Option<Self> {
        let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
        let sum = |mark: &str| {
            let found = show.lines().filter_map(|l| l.trim_start().strip_prefix(mark));
            found.map(number).reduce(|a, b| Some(a? + b?))?
        };
        let mut of = [0; 5];
        for (n, mark) in of.iter_mut().zip(MARKS) {
            *n = sum(mark)?;
        }
        Some(Clocks { used: sum("- Used TSC cycles:")?, of })
    }

    /// Shares of the threads' time since `before`, times `cycles`: what the run says that a packet
    /// takes. The threads' own clock also runs while something else has the core; by shares that is
    /// spread over the stages.
    ///
    /// Nothing if no time passed, or the counters were cleared meanwhile.
    pub fn since(&self, before: &Clocks, cycles: f64) -> Option<Stages> {
        let used = self.used.checked_sub(before.used).filter(|n| *n > 0)?;
        let mut of = [0.0; 5];
        for (share, (a, b)) in of.iter_mut().zip(before.of.iter().zip(self.of)) {
            *share = cycles * b.checked_sub(*a)? as f64 / used as f64;
        }
        let [receive, parse, lookup, misses, act] = of;
        let idle = (cycles - receive - parse - lookup - act).max(0.0);
        Some(Stages { receive, parse, lookup, misses, act, idle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As two threads tell it, each with these cycles.
    fn show(used: u64, [rx, parse, lookup, misses, act]: [u64; 5]) -> String {
        format!(
            "pmd thread numa_id 0 core_id 1:\n  - Used TSC cycles:  {used}  (100.0 % of total cycles)\n  - busy iterations: 7\n\
             \x20 - cycles of rx:     {rx}  (1.0 cycles/pkt)\n  - cycles of parse:  {parse}  (1.0 cycles/pkt)\n\
             \x20 - cycles of lookup: {lookup}  (1.0 cycles/pkt)\n  --cycles of misses: {misses}  (1.0 cycles/pkt)\n\
             \x20 - cycles of act, tx:{act}  (1.0 cycles/pkt)\n"
        )
        .repeat(2)
    }

    #[test]
    fn shares_of_the_time_between_two_readings() {
        let before = Clocks::read(&show(1000, [100, 100, 100, 50, 100])).unwrap();
        assert_eq!((before.used, before.of), (2000, [200, 200, 200, 100, 200]));
        let after = Clocks::read(&show(2000, [300, 200, 500, 150, 200])).unwrap();
        let stages = after.since(&before, 120.0).unwrap();
        assert_eq!(stages.list(), [24.0, 12.0, 48.0, 12.0, 12.0, 24.0]);
        assert_eq!(before.since(&after, 120.0), None);
        assert_eq!(after.since(&after, 120.0), None);
        assert_eq!(Clocks::read("  - Used TSC cycles:  5\n"), None);
    }
}
