//! What a switch's host does while an adapter forwards: its busy cycles, misses, rule operations,
//! and the time of the threads that do not forward.

use crate::cached::{appctl, control_socket};
use crate::counters::Counters;
use crate::offloaded::sum;
use crate::system::Running;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What the host did in the seconds that count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Packets that reached their functions, by the adapter or by the host, per second of wall
    /// time.
    pub delivered_pps: f64,
    /// Cycles that forwarding threads were busy, per such packet.
    pub busy_cycles: f64,
    /// Part of the forwarding threads' time that they were busy, per cent.
    pub busy_percent: f64,
    /// Packets that the host received, per second.
    pub received_pps: f64,
    /// Misses among them for which there was no megaflow, per second.
    pub misses_per_second: f64,
    /// Rules that the adapter made and ended, per second.
    pub operations_per_second: f64,
    /// CPU time of all other threads of the daemon, per cent of one core.
    pub others_percent: f64,
}

/// What stands where at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meters {
    at: Instant,
    delivered: u64,
    operations: u64,
    /// Busy and idle cycles, packets, misses.
    pmd: [u64; 4],
    others_ns: u64,
}

impl Meters {
    /// Reads the meters of a daemon that runs.
    pub fn read(running: &Running) -> Result<Meters> {
        let show = appctl(&control_socket(&running.dir)?, &["dpif-netdev/pmd-stats-show"])?;
        Ok(Meters {
            at: Instant::now(),
            delivered: running.taken()?.taken,
            operations: Counters::read(&running.made)?.rule_operations,
            pmd: pmd(&show),
            others_ns: running.others_ns()?,
        })
    }

    /// What happened since.
    pub fn until(self, later: Meters) -> Host {
        let seconds = (later.at - self.at).as_secs_f64().max(1e-9);
        let per_second = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let delivered = later.delivered.saturating_sub(self.delivered).max(1) as f64;
        let [busy, idle, received, misses] =
            std::array::from_fn(|i| later.pmd[i].saturating_sub(self.pmd[i]));
        Host {
            delivered_pps: delivered / seconds,
            busy_cycles: busy as f64 / delivered,
            busy_percent: 100.0 * busy as f64 / (busy + idle).max(1) as f64,
            received_pps: received as f64 / seconds,
            misses_per_second: misses as f64 / seconds,
            operations_per_second: per_second(self.operations, later.operations),
            others_percent: per_second(self.others_ns, later.others_ns) / 1e7,
        }
    }
}

/// Sums over all threads that `pmd-stats-show` is about.
fn pmd(show: &str) -> [u64; 4] {
    let of_pmd: Vec<_> = show.split("pmd thread ").skip(1).collect();
    let of_pmd: Vec<_> =
        of_pmd.iter().map(|t| t.split("main thread").next().unwrap_or("")).collect();
    let of = |name: &str| of_pmd.iter().map(|t| sum(t, name)).sum();
    [
        of("\n  processing cycles:"),
        of("\n  idle cycles:"),
        of("packets received:"),
        of("miss with success upcall:"),
    ]
}

impl Host {
    /// Heads of the columns of [`Host::list`].
    pub const NAMES: [&str; 7] = [
        "delivered Mpps",
        "busy cycles per packet",
        "busy %",
        "host packets/s",
        "misses/s",
        "rule operations/s",
        "other threads, % of a core",
    ];

    /// As [`Host::NAMES`].
    pub fn list(&self) -> [f64; 7] {
        [
            self.delivered_pps / 1e6,
            self.busy_cycles,
            self.busy_percent,
            self.received_pps,
            self.misses_per_second,
            self.operations_per_second,
            self.others_percent,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rates_are_of_forwarding_threads_and_wall_time() {
        let show = "pmd thread numa_id 0 core_id 1:\n  packets received: 1000\n  miss with success upcall: 5\n  \
                    idle cycles: 900 (90.00%)\n  processing cycles: 100 (10.00%)\n  avg processing cycles per packet: \
                    0.10 (100/1000)\nmain thread:\n  packets received: 9\n  processing cycles: 7 (1.00%)\n";
        assert_eq!(pmd(show), [100, 900, 1000, 5]);
        let at = Instant::now();
        let before = Meters { at, delivered: 0, operations: 0, pmd: [0; 4], others_ns: 0 };
        let later = Meters {
            at: at + Duration::from_secs(2),
            delivered: 4_000_000,
            operations: 300,
            pmd: [100, 900, 1000, 5],
            others_ns: 100_000_000,
        };
        let host = before.until(later);
        assert_eq!(host.list(), [2.0, 0.000025, 10.0, 500.0, 2.5, 150.0, 5.0]);
    }
}
