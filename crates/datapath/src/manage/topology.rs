//! Cores as Linux describes them, in a directory like `/sys/devices/system/cpu`.

use std::path::Path;
use std::sync::OnceLock;

/// NUMA nodes of the cores that [`assume_cores`] was called with.
static ASSUMED: OnceLock<Vec<usize>> = OnceLock::new();

/// Pretends that the machine has a core for each of these NUMA nodes, for tests of placement
/// (`--dummy-numa`); PMD threads are then not bound to cores. Called before the first worker is
/// started.
pub fn assume_cores(nodes: Vec<usize>) {
    let _ = ASSUMED.set(nodes);
}

/// The NUMA nodes given to [`assume_cores`]; None: cores are the machine's.
pub fn assumed_cores() -> Option<&'static [usize]> {
    ASSUMED.get().map(Vec::as_slice)
}

/// The directory in which Linux describes cores.
pub(crate) const CPUS: &str = "/sys/devices/system/cpu";

/// A core on which receive queues can be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Core {
    pub id: usize,
    pub numa: usize,
    /// Base frequency, kHz: higher for the priority cores of Intel's SST-BF. 0: not known.
    pub khz: u64,
    /// Number of the first hyper-thread of the same physical core.
    pub siblings: usize,
}

impl Core {
    /// Reads core `id`. A property that the system does not report is that of a machine with equal
    /// cores.
    pub fn read(cpus: &Path, id: usize) -> Core {
        if let Some(nodes) = ASSUMED.get() {
            let numa = nodes.get(id).copied().unwrap_or(0);
            return Core { id, numa, khz: 0, siblings: id };
        }
        let dir = cpus.join(format!("cpu{id}"));
        let text = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        let list = text("topology/thread_siblings_list");
        let first = list.trim().split([',', '-']).next().and_then(|n| n.parse().ok());
        Core {
            id,
            numa: node(&dir),
            khz: text("cpufreq/base_frequency").trim().parse().unwrap_or(0),
            siblings: first.unwrap_or(id),
        }
    }
}

/// The NUMA node that a core's directory links to; 0 if there is none.
fn node(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    names.filter_map(|n| n.strip_prefix("node")?.parse().ok()).next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_made_up_machine() {
        let root = std::env::temp_dir().join(format!("weft-topology-{}", std::process::id()));
        for (cpu, node, siblings, khz) in [
            (0, 0, "0,2\n", "2100000\n"),
            (2, 0, "0,2\n", "2100000\n"),
            (3, 1, "3-4\n", "2700000\n"),
        ] {
            let dir = root.join(format!("cpu{cpu}"));
            fs::create_dir_all(dir.join("topology")).unwrap();
            fs::create_dir_all(dir.join("cpufreq")).unwrap();
            fs::create_dir_all(dir.join(format!("node{node}"))).unwrap();
            fs::write(dir.join("topology/thread_siblings_list"), siblings).unwrap();
            fs::write(dir.join("cpufreq/base_frequency"), khz).unwrap();
        }
        let core = |id| Core::read(&root, id);
        assert_eq!(core(2), Core { id: 2, numa: 0, khz: 2_100_000, siblings: 0 });
        assert_eq!(core(3), Core { id: 3, numa: 1, khz: 2_700_000, siblings: 3 });
        assert_eq!(core(9), Core { id: 9, numa: 0, khz: 0, siblings: 9 });
        fs::remove_dir_all(root).unwrap();
    }
}
