//! What the running switch is like, from what its tools print: two looks at its counters some
//! seconds apart, so that figures are of now.

use crate::dirs::Dirs;
use crate::run::run;
use crate::view::{Connection, waited_ns};
use anyhow::Result;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Texts as the tools print them, at one time.
#[derive(Clone, Default)]
pub struct Look {
    /// `dpif-netdev/pmd-stats-show`.
    pub stats: String,
    /// `dpif-netdev/pmd-perf-show`.
    pub perf: String,
    /// `dpif-netdev/tx-show`.
    pub tx: String,
    /// `coverage/show`.
    pub coverage: String,
    /// Nanoseconds that threads waited for their cores, by core.
    pub waited_ns: BTreeMap<usize, u64>,
}

/// Texts that do not count.
#[derive(Clone, Default)]
pub struct Settings {
    /// `dpif-netdev/pmd-rxq-show`, of the last seconds.
    pub rxqs: String,
    /// `ovs-vsctl --format=json list interface`.
    pub interfaces: String,
    /// `ovs-vsctl --format=json list Open_vSwitch`.
    pub other_config: String,
}

impl Look {
    /// Asks the switch.
    pub fn take(dirs: &Dirs) -> Result<Look> {
        let ask = |command: &str| Connection::open(dirs)?.ask(command, &[]);
        // First what ovs-vswitchd does not know: then one sentence says that it runs.
        let tx = ask("dpif-netdev/tx-show")?;
        Ok(Look {
            waited_ns: waited_ns(Path::new("/proc"), Connection::open(dirs)?.pid()),
            tx,
            stats: ask("dpif-netdev/pmd-stats-show")?,
            perf: ask("dpif-netdev/pmd-perf-show")?,
            coverage: ask("coverage/show")?,
        })
    }
}

impl Settings {
    /// Asks the switch and the database.
    pub fn take(dirs: &Dirs) -> Result<Settings> {
        let list = |columns: &str, table: &str| {
            let columns = format!("--columns={columns}");
            run(dirs, "ovs-vsctl", &["-t", "10", "--format=json", &columns, "list", table])
        };
        let rxqs = ["-T", "10", "dpif-netdev/pmd-rxq-show", "-secs", "5"];
        Ok(Settings {
            rxqs: run(dirs, "ovs-appctl", &rxqs)?,
            interfaces: list("name,type,options,other_config,status,statistics", "interface")?,
            other_config: list("other_config", "Open_vSwitch")?,
        })
    }
}

/// A receive queue on a PMD thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// The port's name.
    pub port: String,
    /// Its number on the port.
    pub id: u32,
    /// Percent of the thread's time, when measured.
    pub usage: u64,
}

/// A PMD thread, with what it did between the two looks.
#[derive(Clone, Debug, Default)]
pub struct Pmd {
    /// The CPU it runs on.
    pub core: usize,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Percent of the time with work.
    pub busy: f64,
    /// Percent of the time in which other threads had its core; it counts as busy or idle, too.
    pub waiting: f64,
    /// Packets received.
    pub packets: u64,
    /// Cycles with work.
    pub cycles: u64,
    /// Passes through the tables.
    pub passes: u64,
    /// Packets among them that the pipeline answered.
    pub misses: u64,
}

impl Pmd {
    /// Cycles that a packet costs.
    pub fn cycles_per_packet(&self) -> f64 {
        self.cycles as f64 / self.packets.max(1) as f64
    }
}

/// How packets left a port between the two looks.
#[derive(Clone, Debug, Default)]
pub struct Tx {
    /// Packets sent.
    pub packets: u64,
    /// Bursts they left in.
    pub bursts: u64,
    /// Dropped because the queue was full.
    pub full: u64,
}

/// A row of the Interface table.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// `type`; empty for a kernel device.
    pub kind: String,
    /// `options`, `other_config`, `status` and `statistics`.
    pub columns: BTreeMap<&'static str, BTreeMap<String, String>>,
}

impl Interface {
    /// A value in one of the columns.
    pub fn get(&self, column: &str, key: &str) -> Option<&str> {
        self.columns.get(column)?.get(key).map(String::as_str)
    }
}

/// The switch.
#[derive(Clone, Debug, Default)]
pub struct Switch {
    /// Between the two looks.
    pub seconds: f64,
    /// PMD threads.
    pub pmds: Vec<Pmd>,
    /// Ports that sent.
    pub tx: BTreeMap<String, Tx>,
    /// Packets dropped between the two looks, by reason; none that is zero.
    pub drops: BTreeMap<String, u64>,
    /// Interfaces by name.
    pub interfaces: BTreeMap<String, Interface>,
    /// `Open_vSwitch:other_config`.
    pub other_config: BTreeMap<String, String>,
}

impl Switch {
    /// Reads it out of the texts; what is not in them is left out.
    pub fn read(before: &Look, after: &Look, settings: &Settings, seconds: f64) -> Switch {
        let (old, new) = (stats(&before.stats), stats(&after.stats));
        let (old_sleep, new_sleep) = (sleeps(&before.perf), sleeps(&after.perf));
        let queues = queues(&settings.rxqs);
        let pmd = |(core, new): (&usize, &Counters)| {
            let gone = |key: &str| since(new, old.get(core), key);
            let (idle, cycles) = (gone("idle cycles"), gone("processing cycles"));
            let slept = new_sleep.get(core).unwrap_or(&0.0) - old_sleep.get(core).unwrap_or(&0.0);
            let awake = (1.0 - slept / 1e6 / seconds).clamp(0.0, 1.0);
            let (misses, hits) = (gone("miss with success upcall"), gone("megaflow hits"));
            Pmd {
                core: *core,
                queues: queues.get(core).cloned().unwrap_or_default(),
                busy: 100.0 * awake * cycles as f64 / (idle + cycles).max(1) as f64,
                waiting: waiting(before.waited_ns.get(core), after.waited_ns.get(core), seconds),
                packets: gone("packets received"),
                cycles,
                passes: hits + misses + gone("smc hits"),
                misses,
            }
        };
        Switch {
            seconds,
            pmds: new.iter().map(pmd).collect(),
            tx: tx(&before.tx, &after.tx),
            drops: drops(&before.coverage, &after.coverage),
            interfaces: interfaces(&settings.interfaces),
            other_config: rows(&settings.other_config)
                .first()
                .map(|r| map(r.get("other_config")))
                .unwrap_or_default(),
        }
    }
}

/// Percent of the time, of nanoseconds at its beginning and end; none of a thread that is new.
pub fn waiting(before: Option<&u64>, after: Option<&u64>, seconds: f64) -> f64 {
    let (Some(before), Some(after)) = (before, after) else { return 0.0 };
    (after.saturating_sub(*before) as f64 / 1e7 / seconds.max(1e-3)).min(100.0)
}

type Counters = BTreeMap<String, u64>;

/// How much a counter grew; one that was cleared meanwhile counts from then on.
fn since(new: &Counters, old: Option<&Counters>, key: &str) -> u64 {
    let now = new.get(key).copied().unwrap_or(0);
    let then = old.and_then(|o| o.get(key)).copied().unwrap_or(0);
    now.checked_sub(then).unwrap_or(now)
}

/// The core in a line `pmd thread numa_id 0 core_id 1:`.
fn core_of(line: &str) -> Option<usize> {
    line.strip_prefix("pmd thread")?.trim_end_matches(':').rsplit(' ').next()?.parse().ok()
}

/// Counters of `pmd-stats-show` by core.
fn stats(text: &str) -> BTreeMap<usize, Counters> {
    let (mut all, mut core) = (BTreeMap::<usize, Counters>::new(), None);
    for line in text.lines() {
        if !line.starts_with(' ') {
            core = core_of(line);
        } else if let (Some(c), Some((key, value))) = (core, line.trim().split_once(": ")) {
            let number = value.split(' ').next().and_then(|n| n.parse().ok());
            all.entry(c).or_default().insert(key.to_string(), number.unwrap_or(0));
        }
    }
    all
}

/// Microseconds that each PMD thread slept, of `pmd-perf-show`.
fn sleeps(text: &str) -> BTreeMap<usize, f64> {
    let (mut all, mut core) = (BTreeMap::new(), None);
    for line in text.lines() {
        core = core_of(line).or(core);
        if let (Some(c), Some(rest)) = (core, line.trim().strip_prefix("Sleep time (us):")) {
            let us = rest.split_whitespace().next().and_then(|n| n.parse().ok());
            all.insert(c, us.unwrap_or(0.0));
        }
    }
    all
}

/// Queues of `pmd-rxq-show` by core.
fn queues(text: &str) -> BTreeMap<usize, Vec<Queue>> {
    let (mut all, mut core) = (BTreeMap::<usize, Vec<Queue>>::new(), None);
    for line in text.lines() {
        core = core_of(line).or(core);
        let words: Vec<&str> = line.split_whitespace().collect();
        if let (Some(c), ["port:", port, "queue-id:", id, rest @ ..]) = (core, &words[..]) {
            let usage = rest.iter().skip_while(|w| **w != "usage:").nth(1);
            let number = |w: Option<&&str>| w.and_then(|w| w.parse::<u64>().ok());
            all.entry(c).or_default().push(Queue {
                port: port.to_string(),
                id: number(Some(id)).unwrap_or(0) as u32,
                usage: number(usage).unwrap_or(0),
            });
        }
    }
    all
}

/// Ports of `tx-show`, with what they sent in between.
fn tx(before: &str, after: &str) -> BTreeMap<String, Tx> {
    let read = |text: &str| -> BTreeMap<String, Counters> {
        let lines = text.lines().filter_map(|l| l.trim().strip_prefix("port: "));
        lines.map(|l| (l.split(' ').next().unwrap_or("").to_string(), numbers(l))).collect()
    };
    let (old, new) = (read(before), read(after));
    let between = |(port, n): (&String, &Counters)| {
        let gone = |key: &str| since(n, old.get(port), key);
        let tx = Tx { packets: gone("packets:"), bursts: gone("bursts:"), full: gone("full:") };
        (port.clone(), tx)
    };
    new.iter().map(between).collect()
}

/// Every `word: number` of a line.
fn numbers(line: &str) -> Counters {
    let words: Vec<&str> = line.split_whitespace().collect();
    let pairs = words.windows(2).filter(|w| w[0].ends_with(':'));
    pairs.filter_map(|w| Some((w[0].to_string(), w[1].parse().ok()?))).collect()
}

/// Drops of `coverage/show` in between.
fn drops(before: &str, after: &str) -> BTreeMap<String, u64> {
    let read = |text: &str| -> Counters {
        let lines = text.lines().filter_map(|l| l.strip_prefix("datapath_drop_"));
        let total = |l: &str| l.rsplit("total: ").next()?.trim().parse().ok();
        lines.filter_map(|l| Some((l.split(' ').next()?.to_string(), total(l)?))).collect()
    };
    let (old, new) = (read(before), read(after));
    let between = new.keys().map(|k| (k.clone(), since(&new, Some(&old), k)));
    between.filter(|(_, n)| *n > 0).collect()
}

/// Rows of a table that ovs-vsctl prints as JSON.
fn rows(text: &str) -> Vec<BTreeMap<String, Value>> {
    let table: Value = serde_json::from_str(text).unwrap_or_default();
    let array = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let names = array(&table["headings"]);
    let row = |cells: &Value| {
        let cells = array(cells);
        names.iter().map(|n| n.as_str().unwrap_or("").to_string()).zip(cells).collect()
    };
    array(&table["data"]).iter().map(row).collect()
}

/// `["map", [[key, value], ...]]`.
fn map(value: Option<&Value>) -> BTreeMap<String, String> {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), Into::into);
    let pairs = value.and_then(|v| v.get(1)).and_then(Value::as_array);
    pairs.into_iter().flatten().map(|p| (text(&p[0]), text(&p[1]))).collect()
}

fn interfaces(text: &str) -> BTreeMap<String, Interface> {
    let row = |r: BTreeMap<String, Value>| {
        let columns = ["options", "other_config", "status", "statistics"];
        let columns = columns.map(|c| (c, map(r.get(c)))).into();
        let text = |c: &str| r.get(c).and_then(Value::as_str).unwrap_or("").to_string();
        (text("name"), Interface { kind: text("type"), columns })
    };
    rows(text).into_iter().map(row).collect()
}
