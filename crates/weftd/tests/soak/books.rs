//! What came in and what became of it; what the daemon holds.

use crate::lab::*;
use crate::{Changes, Guests};
use std::collections::BTreeMap;
use testkit::Switch;

/// What a process has.
#[derive(Debug)]
pub struct Process {
    buffers: u64,
    fds: BTreeMap<String, usize>,
    threads: usize,
    /// Its own memory; that in huge pages, which the tables of rules ask for and get 2 MB at the
    /// first touch; and what DPDK has given out.
    memory_kib: u64,
    tables_kib: u64,
    heap_kib: u64,
}

impl Process {
    /// The daemon's.
    pub fn of(sw: &Switch) -> Process {
        let dir = format!("/proc/{}", sw.daemon_pid().expect("the daemon runs"));
        let number = |file: &str, key: &str| {
            let text = std::fs::read_to_string(format!("{dir}/{file}")).unwrap();
            let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let tables_kib = number("smaps_rollup", "AnonHugePages:");
        // Before appctl is asked: the daemon closes its end of that connection when it has time.
        let fds = descriptors(&dir);
        Process {
            buffers: buffers(sw),
            fds,
            threads: number("status", "Threads:") as usize,
            memory_kib: number("status", "RssAnon:").saturating_sub(tables_kib),
            tables_kib,
            heap_kib: heap(sw) / 1024,
        }
    }
}

/// Bytes that DPDK's heaps have given out.
fn heap(sw: &Switch) -> u64 {
    let text = appctl(sw, "dpdk/get-malloc-stats");
    let given = text.lines().filter_map(|l| l.trim().strip_prefix("Alloc_size:"));
    given.filter_map(|n| n.trim_end_matches(',').parse::<u64>().ok()).sum()
}

/// Open files by what they are, numbers aside.
fn descriptors(dir: &str) -> BTreeMap<String, usize> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(format!("{dir}/fd")).unwrap().flatten() {
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        let name = target.display().to_string();
        let kind = name.split(":[").next().unwrap_or("").to_string();
        // EAL has a descriptor for each hugepage and takes and gives back pages as it likes.
        if !kind.starts_with("/memfd:seg_") {
            *out.entry(kind).or_default() += 1;
        }
    }
    out
}

/// Without churned ports, guests and load: waits until every packet that came in is accounted for
/// and says what the daemon holds.
pub fn at_rest(sw: &Switch, changes: &mut Changes, guests: &mut Guests) -> Process {
    changes.remove_all();
    (0..2).for_each(|i| guests.kill(i));
    for name in ["gs", "gp"] {
        wait_for("the guests are gone", || iface(sw, name, "link_state") == "down");
    }
    let mut last = (0, 1);
    let level = || {
        last = balance(sw);
        last.0 == last.1
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for("the books are level", level)
    }));
    if let Err(e) = result {
        eprintln!("in and out: {last:?}\n{}", text(sw));
        std::panic::resume_unwind(e);
    }
    let mut now = Process::of(sw);
    for _ in 0..20 {
        std::thread::sleep(QUIET);
        let then = std::mem::replace(&mut now, Process::of(sw));
        if (then.buffers, &then.fds, then.threads) == (now.buffers, &now.fds, now.threads) {
            break;
        }
    }
    now
}

/// In and out of the whole datapath; equal when nothing is in flight.
pub fn balance(sw: &Switch) -> (u64, u64) {
    let text = text(sw);
    let total = |line: &str| line.rsplit("total: ").next()?.trim().parse::<u64>().ok();
    let (mut came, mut went) = (0, 0);
    for line in text.lines() {
        let (Some(name), Some(n)) = (line.split_whitespace().next(), total(line)) else { continue };
        match name {
            "netdev_received" | "datapath_injected" | "datapath_copies" => came += n,
            "netdev_sent" | "datapath_punted" => went += n,
            // OVS's names for some reasons are counted under ours.
            _ if is_drop(name) => went += n,
            _ => {}
        }
    }
    (came, went)
}

/// True if a counter is one of our reasons for drops.
fn is_drop(counter: &str) -> bool {
    let reason = counter.strip_prefix("datapath_drop_");
    reason.is_some_and(|reason| telemetry::Drop::ALL.iter().any(|drop| drop.name() == reason))
}

/// The counters.
pub fn text(sw: &Switch) -> String {
    appctl(sw, "coverage/show")
}

/// What tables may grow, KiB: each worker has about ten that are touched here and there.
const TABLES: u64 = 96 << 10;

/// Files that are open and threads that run are those of before, and memory has not grown. A client
/// that has just left, and a question to the kernel, have a file for a moment.
pub fn check_growth(sw: &Switch, first: &Process, last: &Process, kib: u64) {
    assert!(last.buffers <= first.buffers, "packet buffers: {first:?}\n{last:?}");
    let dir = format!("/proc/{}", sw.daemon_pid().expect("the daemon runs"));
    wait_for(&format!("open files: {:?}", first.fds), || descriptors(&dir) == first.fds);
    assert_eq!(first.threads, last.threads, "threads");
    assert!(last.memory_kib <= first.memory_kib + kib, "memory: {first:?}\n{last:?}");
    assert!(last.tables_kib <= first.tables_kib + TABLES, "tables: {first:?}\n{last:?}");
    assert!(last.heap_kib <= first.heap_kib + kib, "DPDK's memory: {first:?}\n{last:?}");
}

/// Warnings that the changes bring about (a database server is killed, a memif server leaves before
/// its client), or a machine with more to do than it has cores; and what DPDK says where nothing is
/// wrong: its TAP devices look for the kernel's scheduler `multiq`, and a loop-back device that
/// comes again finds its rings.
const PROVOKED: [&str; 10] = [
    "tap_nl_dump_ext_ack()",
    "qdisc_create_multiq()",
    "eth_dev_tap_create()",
    "tap_mp_req_on_rxtx()",
    "RING: Cannot reserve memory",
    "no hugepages are free",
    "db.sock: connection attempt failed",
    "db.sock: connection dropped (Broken pipe)",
    "a client was sent away",
    " ms waiting for ",
];

/// The log has no error, and no warning that nothing provoked.
pub fn check_log(sw: &Switch) {
    let log = sw.log();
    let severe = |l: &&str| ["|WARN|", "|ERR|", "|EMER|"].iter().any(|s| l.contains(s));
    let known = |l: &&str| PROVOKED.iter().any(|p| l.contains(p));
    let mut lines: Vec<&str> = log.lines().filter(severe).filter(|l| !known(l)).collect();
    lines.truncate(60);
    assert!(lines.is_empty(), "not provoked:\n{}", lines.join("\n"));
}
