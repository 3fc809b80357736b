//! What a switch's adapter does for it: rules it has, and packets that came marked, as the control
//! socket says.

use crate::cached::{appctl, control_socket};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What the adapter did in the seconds that count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offloaded {
    /// Rules in the adapter at the end.
    pub rules: u64,
    /// Packets that were known by their mark, per cent.
    pub marked_percent: f64,
}

/// Counters of all PMD threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    packets: u64,
    marked: u64,
}

impl Marks {
    /// Asks the daemon whose sockets are in `dir`.
    pub fn ask(dir: &Path) -> Result<Marks> {
        Ok(Marks::of(&appctl(&control_socket(dir)?, &["dpif-netdev/pmd-stats-show"])?))
    }

    fn of(show: &str) -> Marks {
        Marks { packets: sum(show, "packets received:"), marked: sum(show, "phwol hits:") }
    }

    /// What became of the packets since.
    pub fn until(self, later: Marks, rules: u64) -> Offloaded {
        let packets = later.packets.saturating_sub(self.packets).max(1);
        let marked = later.marked.saturating_sub(self.marked);
        Offloaded { rules, marked_percent: 100.0 * marked as f64 / packets as f64 }
    }
}

/// Rules in adapters, of all offload threads.
pub(crate) fn rules(dir: &Path) -> Result<u64> {
    let show = appctl(&control_socket(dir)?, &["dpctl/offload-stats-show"])?;
    let total: Vec<_> = show.lines().filter(|l| l.trim().starts_with("Total")).collect();
    Ok(sum(&total.join("\n"), "Inserted offloads:"))
}

/// The numbers behind a text.
pub(crate) fn sum(text: &str, name: &str) -> u64 {
    let number = |rest: &str| {
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().unwrap_or(0)
    };
    text.split(name).skip(1).map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_threads_count() {
        let one = "pmd thread numa_id 0 core_id 1:\n  packets received: 1000\n  phwol hits: 200\n";
        let before = Marks::of(one);
        let later = Marks::of(&format!("{one}{one}  packets received: 1000\n  phwol hits: 700\n"));
        assert_eq!((later.packets, later.marked), (3000, 1100));
        assert_eq!(before.until(later, 7), Offloaded { rules: 7, marked_percent: 45.0 });
        let show = "   Total                Inserted offloads:   1000\n   [  0]    Inserted offloads:   9\n";
        assert_eq!(sum(show.lines().next().unwrap(), "Inserted offloads:"), 1000);
    }
}
