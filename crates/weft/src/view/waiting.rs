//! How long PMD threads waited while other threads ran on their cores, as Linux accounts for it
//! (`/proc/PID/task/TID/schedstat`, proc(5)). Read from outside, so that it is known of
//! `ovs-vswitchd`, too, and costs the threads nothing.

use std::collections::BTreeMap;
use std::path::Path;

/// Threads of the process that are looked at: a machine has fewer cores, and a switch few others.
const THREADS_MAX: usize = 4096;

/// Nanoseconds that each PMD thread of a process has waited for its core so far, by core; nothing
/// of threads or processes that are not there, or where Linux does not count it.
pub fn waited_ns(proc: &Path, pid: u64) -> BTreeMap<usize, u64> {
    let tasks = std::fs::read_dir(proc.join(pid.to_string()).join("task"));
    let tasks = tasks.into_iter().flatten().flatten().take(THREADS_MAX);
    tasks.filter_map(|t| thread(&t.path())).collect()
}

/// A PMD thread's core and what it has waited.
fn thread(task: &Path) -> Option<(usize, u64)> {
    let read = |file: &str| std::fs::read_to_string(task.join(file)).ok();
    let core = core_of(&read("comm")?)?;
    // Time on a CPU, time waiting for one, and how many times it was given one.
    Some((core, read("schedstat")?.split_whitespace().nth(1)?.parse().ok()?))
}

/// The core in a thread's name: `pmd-c03` of Weft, `pmd-c03/id:8` of Open vSwitch.
fn core_of(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("pmd-c")?.split(['/', '\n']).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn threads_are_known_by_their_names() {
        let proc = tempfile::tempdir().unwrap();
        for (tid, comm, schedstat) in [
            (5, "weftd", "9 9 9"),
            (6, "pmd-c03", "1000 2500 7"),
            (7, "pmd-c12/id:8", "1 2 3"),
            (8, "pmd-c4", "nonsense"),
            (9, "pmd-cx", "1 2 3"),
        ] {
            let task = proc.path().join(format!("5/task/{tid}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(task.join("schedstat"), format!("{schedstat}\n")).unwrap();
        }
        assert_eq!(waited_ns(proc.path(), 5), BTreeMap::from([(3, 2500), (12, 2)]));
        assert_eq!(waited_ns(proc.path(), 6), BTreeMap::new());
    }
}
