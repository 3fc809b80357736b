//! What the figures depend on besides the programs.

use serde::Serialize;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The machine and the versions.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// UTC.
    pub date: String,
    /// Of this tree.
    pub commit: String,
    /// As /proc/cpuinfo names it.
    pub cpu: String,
    /// How many.
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
    pub load: String,
    /// Ticks that the hypervisor gave to others, from start to end.
    pub steal_ticks: u64,
}

impl Environment {
    /// Looks around.
    pub fn now(root: &Path) -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let root = root.to_string_lossy();
        Environment {
            date: said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            commit: said("git", &["-C", &root, "describe", "--always", "--dirty"]),
            cpu: cpu.map_or_else(String::new, |(_, name)| name.to_string()),
            cpus: info.lines().filter(|l| l.starts_with("processor")).count(),
            kernel: said("uname", &["-r"]),
            dpdk: said("dpkg-query", &["-W", "-f", "${Version}", "dpdk"]),
            ovs: said("dpkg-query", &["-W", "-f", "${Version}", "openvswitch-switch-dpdk"]),
            hugepages: fs::read_to_string("/proc/sys/vm/nr_hugepages")
                .unwrap_or_default()
                .trim()
                .into(),
            load: load.split(' ').next().unwrap_or_default().into(),
            steal_ticks: steal(),
        }
    }
}

/// Steal time since boot, in ticks.
pub fn steal() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.split_whitespace().nth(8).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn said(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output();
    out.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_string())
}
