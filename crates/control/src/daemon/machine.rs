//! What the machine is, for the log.

use crate::vlog;
use std::fs;
use std::path::Path;

/// Logs the processor cores by NUMA node, in the words of `ovs-vswitchd`.
pub fn log_machine() {
    let nodes = nodes(Path::new("/sys/devices/system/node"));
    for (node, cores) in &nodes {
        vlog::info!("ovs_numa", "Discovered {cores} CPU cores on NUMA node {node}");
    }
    let total: usize = nodes.iter().map(|(_, cores)| cores).sum();
    vlog::info!("ovs_numa", "Discovered {} NUMA nodes and {total} CPU cores", nodes.len());
}

/// Nodes and their numbers of cores; one node where the kernel tells of none.
fn nodes(root: &Path) -> Vec<(u32, usize)> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut nodes: Vec<_> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some((number, count(list.trim())))
        })
        .collect();
    nodes.sort_unstable();
    if nodes.is_empty() {
        nodes.push((0, std::thread::available_parallelism().map_or(1, usize::from)));
    }
    nodes
}

/// How many cores a list such as `0-3,8` names.
fn count(list: &str) -> usize {
    let sizes = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some((last + 1).saturating_sub(first))
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted() {
        assert_eq!([count("0-3,8"), count("5"), count(""), count("x-2,7-6")], [5, 1, 0, 0]);
    }

    #[test]
    fn a_machine_without_nodes_has_one() {
        assert_eq!(nodes(Path::new("/nonexistent")).len(), 1);
    }
}
