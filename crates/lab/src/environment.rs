//! What the figures depend on besides the programs.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The machine and the versions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Environment {
    /// UTC.
    pub date: String,
    /// Commit of this tree.
    pub commit: String,
    /// As /proc/cpuinfo names it.
    pub cpu: String,
    /// Number of CPUs.
    pub cpus: usize,
    /// `uname -r`.
    pub kernel: String,
    /// Debian's version of DPDK.
    pub dpdk: String,
    /// Debian's version of OVS-DPDK.
    pub ovs: String,
    /// Hugepages while measuring.
    pub hugepages: String,
    /// 1-minute load before.
    pub load: f64,
    /// Share of the CPUs' time that the hypervisor gave to others, from start to end.
    pub steal_percent: f64,
    /// Why it ended before all runs were done; empty if it did not.
    #[serde(default)]
    pub cut: String,
}

impl Environment {
    /// Looks around.
    pub fn now(root: &Path) -> Self {
        let info = read("/proc/cpuinfo");
        let cpu = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let root = root.to_string_lossy();
        Environment {
            date: said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            commit: said("git", &["-C", &root, "describe", "--always", "--dirty"]),
            cpu: cpu.map_or_else(String::new, |(_, name)| name.to_string()),
            cpus: info.lines().filter(|l| l.starts_with("processor")).count(),
            kernel: said("uname", &["-r"]),
            dpdk: said("dpkg-query", &["-W", "-f", "${Version}", "dpdk"]),
            ovs: said("dpkg-query", &["-W", "-f", "${Version}", "openvswitch-switch-dpdk"]),
            hugepages: read("/proc/sys/vm/nr_hugepages").trim().into(),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|l| l.parse().ok())
                .unwrap_or(0.0),
            steal_percent: 0.0,
            cut: String::new(),
        }
    }

    /// A folder's name: day, kind of machine, commit.
    pub fn folder(&self) -> String {
        let day = self.date.get(..10).unwrap_or("undated");
        let cpu = self.cpu.replace("(R)", "").replace("(TM)", "").to_lowercase();
        let words: Vec<_> =
            cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
        format!("{day}-{}-{}cpu-{}", words.join("-"), self.cpus, self.commit)
    }
}

/// Time stolen from all CPUs since it was made.
pub struct Steal {
    ticks: u64,
    since: Instant,
}

impl Steal {
    /// Begins from now on.
    pub fn begin() -> Self {
        Steal { ticks: stolen(), since: Instant::now() }
    }

    /// Share, %. A tick is 10 ms (USER_HZ).
    pub fn percent(&self, cpus: usize) -> f64 {
        let ticks = stolen().saturating_sub(self.ticks) as f64;
        ticks / (self.since.elapsed().as_secs_f64() * 100.0 * cpus.max(1) as f64) * 100.0
    }
}

fn stolen() -> u64 {
    read("/proc/stat").split_whitespace().nth(8).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn said(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_for_day_machine_and_commit() {
        let e = Environment {
            date: "2026-11-21T10:00:00Z".into(),
            commit: "abc".into(),
            cpu: "Intel(R) Xeon(R) Gold 6338N @ 2.20GHz".into(),
            cpus: 2,
            ..Environment::default()
        };
        assert_eq!(e.folder(), "2026-11-21-intel-xeon-gold-6338n-2-20ghz-2cpu-abc");
    }
}
