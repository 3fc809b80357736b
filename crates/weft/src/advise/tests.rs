//! Made-up machines and made-up outputs: each rule speaks where it should, and nowhere else.

use super::machine::Machine;
use super::rules::{self, Advice};
use super::switch::{Look, Settings, Switch};
use super::{as_json, as_text};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory that goes with the test.
struct Sysfs(PathBuf);

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Sysfs {
    /// Two nodes of two cores with two threads: CPU n and n + 4 are siblings, 0 and 1 are node 0's
    /// cores.
    fn new(name: &str) -> Sysfs {
        let sys =
            Sysfs(std::env::temp_dir().join(format!("weft-advise-{}-{name}", std::process::id())));
        sys.put("devices/system/cpu/online", "0-7");
        sys.put("devices/system/node/online", "0-1");
        for n in 0..8 {
            let list = format!("{},{}", n % 4, n % 4 + 4);
            sys.put(&format!("devices/system/cpu/cpu{n}/topology/thread_siblings_list"), &list);
        }
        for (node, list) in [(0, "0-1,4-5"), (1, "2-3,6-7")] {
            sys.put(&format!("devices/system/node/node{node}/cpulist"), list);
            sys.pages(node, 1024);
        }
        sys
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn pages(&self, node: u32, n: u64) {
        let dir = format!("devices/system/node/node{node}/hugepages/hugepages-2048kB");
        self.put(&format!("{dir}/nr_hugepages"), &n.to_string());
    }

    fn isolate(&self, list: &str) {
        self.put("devices/system/cpu/isolated", list);
    }

    fn machine(&self) -> Machine {
        Machine::read(&self.0)
    }
}

/// A switch in the tools' words. Ten seconds between the looks; a thread has 1e9 cycles in them.
#[derive(Default)]
struct Made {
    /// Core, busy percent, packets, misses.
    pmds: Vec<(usize, u64, u64, u64)>,
    /// Core, port, queue, percent.
    queues: Vec<(usize, &'static str, u32, u64)>,
    /// Port, packets, bursts, full.
    tx: Vec<(&'static str, u64, u64, u64)>,
    drops: Vec<(&'static str, u64)>,
    /// Name, type, options, status, statistics.
    interfaces: Vec<(&'static str, &'static str, &'static str, &'static str, &'static str)>,
    other_config: &'static str,
    slept_us: u64,
    /// Core, percent of the time without it.
    waiting: Vec<(usize, u64)>,
}

impl Made {
    /// What the tools print when counters stand at `times` what happens in ten seconds.
    fn look(&self, times: u64) -> Look {
        let mut look = Look::default();
        for (core, busy, packets, misses) in &self.pmds {
            let head = format!("pmd thread numa_id 0 core_id {core}:\n");
            let (busy, idle) = (times * busy * 10_000_000, times * (100 - busy) * 10_000_000);
            let _ = write!(
                look.stats,
                "{head}  packets received: {}\n  smc hits: 0\n  megaflow hits: {}\n  miss with success upcall: {}\n  \
                 idle cycles: {idle} (1.00%)\n  processing cycles: {busy} (99.00%)\n",
                times * packets,
                times * (packets - misses),
                times * misses
            );
            let slept = times * self.slept_us;
            let _ = write!(
                look.perf,
                "\n{head}\n  Sleep time (us):    {slept:12}  (  0 us/iteration avg.)\n"
            );
        }
        look.stats += "main thread:\n  packets received: 7\n";
        let ten_seconds = |percent| times * percent * 100_000_000;
        look.waited_ns = self.waiting.iter().map(|(core, n)| (*core, ten_seconds(n))).collect();
        for (port, packets, bursts, full) in &self.tx {
            let _ = writeln!(
                look.tx,
                "  port: {port:<16}  packets: {}  bursts: {} (1.00 packets each)  held: 0  full: {}",
                times * packets,
                times * bursts,
                times * full
            );
        }
        for (reason, n) in &self.drops {
            let total = times * n;
            let _ = writeln!(
                look.coverage,
                "datapath_drop_{reason:<10}   0.0/sec     0.000/sec   total: {total}"
            );
        }
        look
    }

    fn switch(&self) -> Switch {
        let mut rxqs = String::new();
        for (core, ..) in &self.pmds {
            let _ = writeln!(rxqs, "pmd thread numa_id 0 core_id {core}:\n  isolated : false");
            for (_, port, id, percent) in self.queues.iter().filter(|q| q.0 == *core) {
                let _ = writeln!(
                    rxqs,
                    "  port: {port:<16}  queue-id: {id:2} (enabled)   pmd usage: {percent:2} %"
                );
            }
            rxqs += "  overhead:  1 %\n";
        }
        let map = |text: &str| {
            let pairs = text.split_whitespace().map(|p| {
                let (k, v) = p.split_once('=').unwrap();
                serde_json::json!([k, v])
            });
            serde_json::json!(["map", pairs.collect::<Vec<_>>()])
        };
        let rows: Vec<_> = self
            .interfaces
            .iter()
            .map(|(name, kind, options, status, statistics)| {
                serde_json::json!([name, kind, map(options), map(status), map(statistics)])
            })
            .collect();
        let headings = ["name", "type", "options", "status", "statistics"];
        let settings = Settings {
            rxqs,
            interfaces: serde_json::json!({"headings": headings, "data": rows}).to_string(),
            other_config: serde_json::json!({"headings": ["other_config"], "data": [[map(self.other_config)]]})
                .to_string(),
        };
        Switch::read(&self.look(3), &self.look(4), &settings, 10.0)
    }
}

/// What is said, with a sysfs in which PMD cores are isolated.
fn said(sys: &Sysfs, made: &Made) -> Vec<Advice> {
    rules::all(&sys.machine(), &made.switch())
}

fn only(all: Vec<Advice>) -> Advice {
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

fn figure(a: &Advice, name: &str) -> f64 {
    a.figures.iter().find(|(k, _)| k == name).unwrap_or_else(|| panic!("{name} in {a:?}")).1
}

#[test]
fn a_core_that_others_use_is_told_from_a_full_one() {
    let sys = Sysfs::new("taken");
    sys.isolate("1,5");
    let with = |busy, waiting| Made {
        pmds: vec![(1, busy, 1000, 0)],
        queues: vec![(1, "p", 0, busy)],
        waiting: vec![(1, waiting)],
        ..Made::default()
    };
    let rules = |all: &[Advice]| all.iter().map(|a| a.rule).collect::<Vec<_>>();
    assert_eq!(rules(&said(&sys, &with(100, 9))), ["full-core"]);
    assert_eq!(rules(&said(&sys, &with(100, 60))), ["core-taken", "full-core"]);
    // Others had it in the midst of its work: most of what counts as busy is theirs.
    let taken = only(said(&sys, &with(94, 60)));
    assert_eq!((taken.rule, figure(&taken, "waiting_percent")), ("core-taken", 60.0));
    assert!(taken.says.starts_with("Other threads ran on core 1 for 60 % of the time"));
}

#[test]
fn a_switch_that_is_well_is_left_alone() {
    let sys = Sysfs::new("well");
    sys.isolate("1,5");
    let made = Made {
        pmds: vec![(1, 55, 100_000, 10), (5, 60, 100_000, 10)],
        queues: vec![(1, "nic", 0, 54), (5, "vhu", 0, 59)],
        tx: vec![("nic", 100_000, 5_000, 0)],
        interfaces: vec![("nic", "dpdk", "", "numa_id=0", "rx_missed_errors=0")],
        ..Made::default()
    };
    assert_eq!(said(&sys, &made), []);
    let text = as_text(&made.switch(), &[]);
    assert!(text.contains("core   1:  55 % busy, 10 kpps, 5500 cycles per packet"), "{text}");
    assert!(text.contains("54 % queue 0 of nic") && text.contains("Nothing to change"), "{text}");
}

#[test]
fn a_full_core_beside_one_with_room_hands_over_the_queue_that_fits() {
    let sys = Sysfs::new("move");
    sys.isolate("1,5");
    let made = Made {
        pmds: vec![(1, 99, 1_000_000, 0), (5, 20, 1000, 0)],
        queues: vec![(1, "a", 0, 70), (1, "b", 0, 25), (1, "c", 1, 3), (5, "d", 0, 20)],
        ..Made::default()
    };
    let a = only(said(&sys, &made));
    assert_eq!(a.rule, "full-core");
    assert!(a.says.contains("99 % busy with 100 kpps at 990 cycles per packet"), "{}", a.says);
    assert!(a.says.contains("queue 0 of b (25 %) moved there it would be 45 %"), "{}", a.says);
    assert_eq!(a.command.as_deref(), Some("ovs-appctl dpif-netdev/pmd-rxq-rebalance"));
    assert_eq!(figure(&a, "other_core_busy_percent"), 20.0);
}

#[test]
fn a_full_queue_is_to_be_split_when_another_core_has_room() {
    let sys = Sysfs::new("split");
    sys.isolate("1,5");
    let mut made = Made {
        pmds: vec![(1, 99, 1_000_000, 0), (5, 20, 1000, 0)],
        queues: vec![(1, "nic", 0, 99), (5, "vhu", 0, 20)],
        interfaces: vec![("nic", "dpdk", "", "", ""), ("vhu", "dpdkvhostuserclient", "", "", "")],
        ..Made::default()
    };
    let a = only(said(&sys, &made));
    assert_eq!(a.command.as_deref(), Some("ovs-vsctl set interface nic options:n_rxq=2"));
    made.interfaces.swap(0, 1);
    made.interfaces[0].0 = "nic";
    made.interfaces[1].0 = "vhu";
    let a = only(said(&sys, &made));
    assert!(a.says.contains("2 queue pairs") && a.command.is_none(), "{a:?}");
}

#[test]
fn a_full_switch_gets_the_sibling_then_an_isolated_core_then_any() {
    let sys = Sysfs::new("more");
    let mut made = Made {
        pmds: vec![(1, 97, 1_000_000, 0)],
        queues: vec![(1, "a", 0, 50), (1, "b", 0, 46)],
        ..Made::default()
    };
    let first = |sys: &Sysfs, made: &Made| said(sys, made).into_iter().next().unwrap();
    let a = first(&sys, &made);
    assert!(a.says.contains("core 5, the other hyper-thread"), "{}", a.says);
    assert!(a.command.unwrap().ends_with("pmd-cpu-mask=0x22"));
    made.pmds.push((5, 95, 1_000_000, 0));
    sys.isolate("4");
    let a = first(&sys, &made);
    assert!(a.says.contains("core 4, which the kernel already leaves alone"), "{}", a.says);
    made.pmds.push((4, 95, 1_000_000, 0));
    let a = first(&sys, &made);
    assert!(
        a.says.contains("no core is left on its node"),
        "the first core is the system's: {}",
        a.says
    );
    // Asleep it is not full.
    made.slept_us = 5_000_000;
    assert!(said(&sys, &made).iter().all(|a| a.rule != "full-core"));
}

#[test]
fn drops_are_told_by_reason_with_the_ring_that_was_too_small() {
    let sys = Sysfs::new("drops");
    let made = Made {
        pmds: vec![(1, 30, 100_000, 0)],
        tx: vec![("vhu", 900, 90, 100), ("nic", 1000, 100, 0)],
        drops: vec![("tx_full", 100), ("punt_rate", 5), ("policy", 50)],
        interfaces: vec![("vhu", "dpdkvhostuserclient", "", "vring_0_size=256", "")],
        ..Made::default()
    };
    let all = said(&sys, &made);
    let rules: Vec<&str> = all.iter().map(|a| a.rule).collect();
    assert_eq!(rules, ["ring-full", "drops"], "what the rules say is nothing to change: {all:?}");
    assert!(all[0].says.contains("100 of 1000 packets (10.0 %)"), "{}", all[0].says);
    assert!(all[0].says.contains("rx_queue_size=1024"), "{}", all[0].says);
    assert_eq!(figure(&all[0], "ring_size"), 256.0);
    assert_eq!(figure(&all[1], "dropped"), 5.0);
}

#[test]
fn a_nic_that_misses_beside_an_idle_core_gets_descriptors() {
    let sys = Sysfs::new("missed");
    let mut made = Made {
        pmds: vec![(1, 30, 100_000, 0)],
        queues: vec![(1, "nic", 0, 30)],
        interfaces: vec![("nic", "dpdk", "n_rxq_desc=1024", "", "rx_missed_errors=77")],
        ..Made::default()
    };
    let a = only(said(&sys, &made));
    assert_eq!(a.command.as_deref(), Some("ovs-vsctl set interface nic options:n_rxq_desc=2048"));
    assert_eq!(figure(&a, "missed"), 77.0);
    made.interfaces[0].2 = "n_rxq_desc=4096";
    assert_eq!(said(&sys, &made), []);
}

#[test]
fn queues_are_to_be_polled_on_their_own_node() {
    let sys = Sysfs::new("numa");
    let made = Made {
        pmds: vec![(1, 30, 100_000, 0)],
        queues: vec![(1, "nic", 0, 20), (1, "vhu", 0, 10)],
        interfaces: vec![
            ("nic", "dpdk", "", "numa_id=1", ""),
            ("vhu", "dpdkvhostuser", "", "numa=0", ""),
        ],
        ..Made::default()
    };
    let a = only(said(&sys, &made));
    assert_eq!((a.rule, figure(&a, "port_node")), ("numa", 1.0));
    assert!(a.says.contains("Queue 0 of nic (20 %)"), "{}", a.says);
}

#[test]
fn busy_threads_belong_on_priority_cores() {
    let sys = Sysfs::new("priority");
    sys.isolate("1,4");
    for n in 0..8 {
        let khz = if n % 4 == 0 { "2700000" } else { "2100000" };
        sys.put(&format!("devices/system/cpu/cpu{n}/cpufreq/base_frequency"), khz);
        sys.put(&format!("devices/system/cpu/cpu{n}/cpufreq/scaling_governor"), "powersave");
    }
    let made = Made { pmds: vec![(1, 80, 100_000, 0)], ..Made::default() };
    let all = said(&sys, &made);
    let rules: Vec<&str> = all.iter().map(|a| a.rule).collect();
    assert_eq!(rules, ["priority-core", "shared-core", "governor"]);
    assert!(
        all[0].says.contains("2.7 GHz") && all[0].says.contains("29 % more"),
        "{}",
        all[0].says
    );
    assert!(all[2].command.as_ref().unwrap().contains("cpu1/cpufreq/scaling_governor"));
}

#[test]
fn siblings_take_a_side_each() {
    let sys = Sysfs::new("sides");
    sys.isolate("1,5");
    let made = Made {
        pmds: vec![(1, 80, 100_000, 0), (5, 70, 100_000, 0)],
        queues: vec![(1, "nic", 0, 40), (1, "vhu0", 0, 38), (5, "vhu1", 0, 69)],
        interfaces: vec![
            ("nic", "dpdk", "", "", ""),
            ("vhu0", "dpdkvhostuserclient", "", "", ""),
            ("vhu1", "dpdkvhostuserclient", "", "", ""),
        ],
        ..Made::default()
    };
    let a = only(said(&sys, &made));
    assert_eq!(a.rule, "nic-guest-siblings");
    assert_eq!(
        a.command.as_deref(),
        Some("ovs-vsctl set interface vhu0 other_config:pmd-rxq-affinity=\"0:5\"")
    );
}

#[test]
fn a_fixed_flush_interval_is_judged_by_fill_and_load() {
    let sys = Sysfs::new("flush");
    sys.isolate("1,5");
    let mut made = Made {
        pmds: vec![(1, 80, 1_000_000, 0)],
        tx: vec![("nic", 1_000_000, 500_000, 0)],
        other_config: "tx-flush-interval=0 pmd-cpu-mask=0x2",
        ..Made::default()
    };
    let a = only(said(&sys, &made));
    assert_eq!((a.rule, figure(&a, "packets_per_burst")), ("flush-interval", 2.0));
    made.tx[0].2 = 50_000;
    assert_eq!(said(&sys, &made), []);
    made.other_config = "tx-flush-interval=50";
    made.pmds[0].1 = 30;
    assert!(only(said(&sys, &made)).says.contains("delays packets"));
}

#[test]
fn a_copy_engine_is_for_long_frames_to_guests() {
    let sys = Sysfs::new("engine");
    sys.isolate("1,5");
    let mut made = Made {
        pmds: vec![(1, 80, 1_000_000, 0)],
        tx: vec![("vhu", 1_000_000, 50_000, 0)],
        interfaces: vec![("vhu", "dpdkvhostuserclient", "", "", "tx_packets=10 tx_bytes=9000")],
        ..Made::default()
    };
    assert_eq!(said(&sys, &made), []);
    sys.put("bus/dsa/devices/dsa0/type", "dsa");
    sys.put("bus/dsa/devices/wq0.0/type", "wq");
    let a = only(said(&sys, &made));
    assert_eq!((a.rule, figure(&a, "frame_bytes")), ("copy-engine", 900.0));
    assert!(a.command.unwrap().ends_with("other_config:vhost-async-support=true"));
    made.other_config = "vhost-async-support=true";
    assert_eq!(said(&sys, &made), []);
    made.other_config = "";
    made.interfaces[0].4 = "tx_packets=100 tx_bytes=9000";
    assert_eq!(said(&sys, &made), []);
}

#[test]
fn misses_name_the_limit_when_there_is_one() {
    let sys = Sysfs::new("misses");
    let mut made = Made { pmds: vec![(1, 30, 100_000, 20_000)], ..Made::default() };
    let a = only(said(&sys, &made));
    assert_eq!((a.rule, figure(&a, "miss_percent"), a.command), ("misses", 20.0, None));
    made.other_config = "flow-limit=1000";
    assert!(only(said(&sys, &made)).command.unwrap().ends_with("flow-limit"));
}

#[test]
fn the_machine_is_to_be_set_up() {
    let sys = Sysfs::new("setup");
    sys.pages(0, 0);
    sys.isolate("5");
    let made = Made { pmds: vec![(1, 80, 100_000, 0)], ..Made::default() };
    let all = said(&sys, &made);
    assert_eq!(all.iter().map(|a| a.rule).collect::<Vec<_>>(), ["hugepages", "isolation"]);
    let json = as_json(&made.switch(), &all);
    assert_eq!(json["advice"][1]["figures"]["cores"], 1.0);
    assert_eq!(json["pmds"][0]["busy_percent"], 80.0);
}

#[test]
fn cores_that_do_nothing_may_sleep() {
    let sys = Sysfs::new("idle");
    let mut made = Made { pmds: vec![(1, 30, 1000, 0), (5, 1, 10, 0)], ..Made::default() };
    let a = only(said(&sys, &made));
    assert!(a.says.contains("core 5 (1 %)") && a.rule == "idle-core", "{}", a.says);
    made.other_config = "pmd-sleep-max=50";
    assert_eq!(said(&sys, &made), []);
}

#[test]
fn nonsense_is_no_advice() {
    let look = Look { stats: "garbage\n x: y\n".into(), ..Look::default() };
    let switch = Switch::read(&look, &look, &Settings::default(), 1.0);
    assert_eq!(rules::all(&Machine::read(Path::new("/nonesuch")), &switch), []);
}

#[test]
fn docs_have_every_rule() {
    let page = include_str!("../../../../docs/advise.md");
    let source = include_str!("rules.rs");
    let mut names: Vec<&str> =
        source.split("Advice::new(").skip(1).map(|s| s.split('"').nth(1).unwrap()).collect();
    names.dedup();
    assert!(names.len() > 10);
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}
