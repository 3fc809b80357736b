//! What the machine is like, from sysfs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A logical CPU.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    /// NUMA node.
    pub node: u32,
    /// Logical CPUs of the same physical core, itself among them.
    pub siblings: BTreeSet<usize>,
    /// What the processor promises at full load, kHz; cores with a higher value than others are
    /// priority cores (SST-BF).
    pub base_khz: Option<u64>,
    /// The frequency governor, where there is one.
    pub governor: Option<String>,
    /// The kernel's scheduler stays away (`isolcpus`).
    pub isolated: bool,
}

/// What matters of the machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Logical CPUs that are online, by number.
    pub cpus: BTreeMap<usize, Cpu>,
    /// Hugepages of any size that are reserved: MiB by node.
    pub hugepages_mib: BTreeMap<u32, u64>,
    /// DMA engines that copy memory and that the kernel's idxd driver has (Intel DSA).
    pub dma_engines: usize,
}

impl Machine {
    /// Reads it; `sys` is usually `/sys`. What is not there is left out.
    pub fn read(sys: &Path) -> Machine {
        let (cpu, node) = (sys.join("devices/system/cpu"), sys.join("devices/system/node"));
        let isolated = list(&text(&cpu.join("isolated")));
        let mut machine = Machine::default();
        for n in list(&text(&cpu.join("online"))) {
            let dir = cpu.join(format!("cpu{n}"));
            let mut siblings = list(&text(&dir.join("topology/thread_siblings_list")));
            siblings.insert(n);
            let governor = text(&dir.join("cpufreq/scaling_governor"));
            let cpu = Cpu {
                node: 0,
                siblings,
                base_khz: text(&dir.join("cpufreq/base_frequency")).parse().ok(),
                governor: (!governor.is_empty()).then_some(governor),
                isolated: isolated.contains(&n),
            };
            machine.cpus.insert(n, cpu);
        }
        let nodes = list(&text(&node.join("online")));
        for &n in &nodes {
            let dir = node.join(format!("node{n}"));
            for c in list(&text(&dir.join("cpulist"))) {
                machine.cpus.entry(c).and_modify(|cpu| cpu.node = n as u32);
            }
            machine.hugepages_mib.insert(n as u32, hugepages(&dir.join("hugepages")));
        }
        let engines =
            std::fs::read_dir(sys.join("bus/dsa/devices")).into_iter().flatten().flatten();
        let is_engine = |name: &str| {
            name.strip_prefix("dsa").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        };
        machine.dma_engines =
            engines.filter(|e| e.file_name().to_str().is_some_and(is_engine)).count();
        if nodes.is_empty() {
            machine.hugepages_mib.insert(0, hugepages(&sys.join("kernel/mm/hugepages")));
        }
        machine
    }
}

/// MiB of `hugepages-<size>kB/nr_hugepages`.
fn hugepages(dir: &Path) -> u64 {
    let sizes = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |e: std::fs::DirEntry| {
        let name = e.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some(kib * text(&e.path().join("nr_hugepages")).parse::<u64>().ok()? / 1024)
    };
    sizes.filter_map(of).sum()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// The kernel's lists: `0-3,8`. At most the numbers below 4,096.
fn list(text: &str) -> BTreeSet<usize> {
    let mut all = BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
        {
            all.extend(first..=last.min(4095));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(list("0-2,8"), BTreeSet::from([0, 1, 2, 8]));
        assert_eq!(list("0-99999999999").len(), 4096);
        assert!(list("").is_empty() && list("x-y").is_empty());
    }

    #[test]
    fn a_directory_without_anything_is_an_empty_machine() {
        let m = Machine::read(Path::new("/nonesuch"));
        assert!(m.cpus.is_empty());
        assert_eq!(m.hugepages_mib, BTreeMap::from([(0, 0)]));
    }
}
