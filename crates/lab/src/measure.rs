//! Runs an experiment: every case, every system, several times, interleaved.

use crate::cached::Cached;
use crate::churn::Churn;
use crate::counters::Counters;
use crate::environment::{Environment, Steal};
use crate::experiment::{Case, Experiment};
use crate::host::{Host, Meters};
use crate::hugepages::Hugepages;
use crate::offloaded::{self, Marks, Offloaded};
use crate::progress::Progress;
use crate::report;
use crate::results::Results;
use crate::rules::RuleSet;
use crate::search::{AtLoad, Found, at_loads, search};
use crate::stages::{Clocks, Stages};
use crate::system::{Programs, Running, Setup, System};
use crate::warm::{Warm, warm_up};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// 2 MiB pages: OVS takes 1 GiB, 64 guests that send 700 MiB, testpmd less.
pub(crate) const HUGEPAGES: u64 = 900;

/// Seconds between two looks at a run that is measured.
const SLICE: f64 = 0.1;
/// Slices in which the forwarding thread had less of its core do not count: another program had it,
/// and its caches.
const PRESENT: f64 = 0.95;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Times that each system goes through each case; the experiment's own number if none.
    pub repetitions: Option<usize>,
    /// Seconds that count, per run; the experiment's own if none.
    pub seconds: Option<f64>,
    /// Everything that the experiment has, and no limit of time.
    pub full: bool,
    /// No run begins after so many minutes, unless full.
    pub minutes: f64,
    /// Only these systems; all if empty.
    pub systems: Vec<String>,
    /// Only cases whose name contains this.
    pub case: Option<String>,
    /// Add to the samples that this commit's folder has, instead of replacing them.
    pub add: bool,
    /// The daemon.
    pub weftd: PathBuf,
    /// Do not measure: see [`crate::validate`].
    pub validate: bool,
    /// The tree with `lab/`; results go to `bench/results` there.
    pub root: PathBuf,
}

/// One run's figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Packets that left.
    pub packets: u64,
    /// Packets that came.
    pub received: u64,
    /// CPU time of the forwarding threads, ns.
    pub cpu_ns: u64,
    /// Wall time, ns.
    pub wall_ns: u64,
    /// TSC cycles of that CPU time per packet that left.
    pub cycles: f64,
    /// Slices of a tenth of a second that count, and all: see
    /// [`crate::results::Results::left_out`].
    #[serde(default)]
    pub slices: [u32; 2],
    /// What the run took from start to end, seconds.
    #[serde(default)]
    pub took: f64,
    /// Lost or late packets of sampled flows.
    pub lost: u64,
    /// Late packets of sampled flows.
    pub reordered: u64,
    /// What the switch had cached at the end.
    pub cached: Option<Cached>,
    /// The warm-up before it.
    #[serde(default)]
    pub warm: Option<Warm>,
    /// Rule changes per second that the switch confirmed meanwhile.
    #[serde(default)]
    pub changes: Option<f64>,
    /// Weft's cycles per stage.
    #[serde(default)]
    pub stages: Option<Stages>,
    /// What the adapter did, of systems that offload.
    #[serde(default)]
    pub offloaded: Option<Offloaded>,
    /// What the host did, where packets are delivered to virtual functions.
    #[serde(default)]
    pub host: Option<Host>,
    /// Rates without loss, and latency.
    #[serde(default)]
    pub found: Option<Found>,
    /// Latency at the case's loads.
    #[serde(default)]
    pub at_loads: Vec<AtLoad>,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

fn check_interrupt() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

pub(crate) fn pause(seconds: f64) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        check_interrupt()?;
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    Ok(())
}

/// Runs an experiment and writes its results; returns their folder.
///
/// # Errors
/// Unknown names, no root, too little memory, interrupted. A system that fails is only reported.
pub fn run(name: &str, options: &Options) -> Result<PathBuf> {
    let experiment = Experiment::load(name, options.full)?;
    let cases = wanted(name, &experiment, options)?;
    let mut systems = System::choose(&experiment.systems)?;
    if !options.systems.is_empty() {
        let chosen: Vec<_> = System::choose(&options.systems)?.iter().map(|s| s.name).collect();
        systems.retain(|s| chosen.contains(&s.name));
    }
    prepare_signals()?;
    let (systems, programs) = prepare(systems, options, experiment.build)?;
    let sets = cases.iter().map(|c| c.rules.build()).collect::<Result<Vec<_>>>()?;
    let pages = Hugepages::take(HUGEPAGES, folder()?)?;
    let seconds = options.seconds.unwrap_or(experiment.seconds);
    let steal = Steal::begin();
    let sizes: Vec<_> =
        cases.iter().zip(&sets).map(|(c, s)| (c, [s.lines.len(), s.masks()])).collect();
    let environment = Environment::now(&options.root);
    let mut results = Results::new(name, &experiment, environment, &sizes, &systems);
    let runs: Vec<_> = (0..options.repetitions.unwrap_or(experiment.repetitions))
        .flat_map(|_| (0..cases.len()).flat_map(|row| (0..systems.len()).map(move |c| (row, c))))
        .filter(|(row, column)| systems[*column].can(&cases[*row]))
        .collect();
    let expected = runs.iter().map(|(row, _)| cases[*row].expected_seconds(seconds)).sum();
    let mut progress = Progress::new(runs.len(), expected);
    let limit = if options.full { f64::INFINITY } else { options.minutes * 60.0 };
    progress.announce(limit);
    for (row, column) in runs {
        if progress.seconds() > limit {
            results.environment.cut = progress.say_cut(options.minutes);
            break;
        }
        let (case, system) = (&cases[row], &systems[column]);
        let measured = &results.rows[row];
        if !measured.may_become_peer(&measured.systems[column]) {
            progress.skip();
            continue;
        }
        progress.show(&format!("{}, {}", case.name, system.name));
        let sample =
            pages.refill().and_then(|()| sample(case, &sets[row], system, seconds, &programs));
        match sample {
            _ if interrupted() => break,
            Ok(sample) => results.rows[row].systems[column].samples.push(sample),
            Err(error) => progress.say(&format!("{} under {}: {error:#}", case.name, system.name)),
        }
    }
    progress.end();
    if results.is_empty() {
        bail!("{}", if interrupted() { "interrupted" } else { "every run failed" });
    }
    if interrupted() {
        results.environment.cut = "it was interrupted".into();
        eprintln!("interrupted: these are the runs until then");
    }
    results.environment.steal_percent = steal.percent(results.environment.cpus);
    report::write(&options.root, results, options.add)
}

/// The cases that are asked for.
pub(crate) fn wanted(name: &str, experiment: &Experiment, options: &Options) -> Result<Vec<Case>> {
    let wanted =
        |c: &&Case| options.case.as_ref().is_none_or(|part| c.name.contains(part.as_str()));
    let cases: Vec<_> = experiment.cases.iter().filter(wanted).cloned().collect();
    if cases.is_empty() {
        bail!("no case of {name} has '{}' in its name", options.case.as_deref().unwrap_or(""));
    }
    Ok(cases)
}

/// Ctrl-C is answered between two steps, so that everything ends in order.
pub(crate) fn prepare_signals() -> Result<()> {
    // SAFETY: geteuid has no conditions; the handlers only store into an atomic.
    unsafe {
        if libc::geteuid() != 0 {
            bail!("a benchmark needs root: hugepages and namespaces");
        }
        let handler = interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::signal(libc::SIGINT, handler);
        libc::signal(libc::SIGTERM, handler);
    }
    Ok(())
}

/// Builds what is built here (the peer only if `build`); leaves out systems that are not on this
/// machine.
pub(crate) fn prepare(
    systems: Vec<System>,
    options: &Options,
    build: bool,
) -> Result<(Vec<System>, Programs)> {
    let root = &options.root;
    if cores() < 2 {
        bail!("two cores are needed: one forwards, the other does the rest");
    }
    let native = match systems.iter().any(System::is_native) {
        true => built(root, "lab/systems/ovs-native.sh", if build { &[] } else { &["--no-build"] })
            .map_err(|e| eprintln!("{e:#}"))
            .ok(),
        false => None,
    };
    let programs = Programs {
        weftd: options.weftd.clone(),
        generator: built(root, "lab/generator/build.sh", &[])?,
        engine: match systems.iter().any(System::has_engine) {
            true => Some(built(root, "lab/engine/build.sh", &[])?),
            false => None,
        },
        guests: built(root, "lab/guests/build.sh", &[])?,
        native,
    };
    let here = |s: &System| {
        let path = s.path(&programs);
        match () {
            () if path.exists() => return true,
            () if s.is_native() => eprintln!("{} is left out: it was not built", s.name),
            () => eprintln!("{} is left out: there is no program {}", s.name, path.display()),
        }
        false
    };
    let systems: Vec<_> = systems.into_iter().filter(here).collect();
    if systems.is_empty() {
        bail!("none of these systems is on this machine");
    }
    Ok((systems, programs))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// What a script prints: the path of what it built.
fn built(root: &Path, script: &str, words: &[&str]) -> Result<PathBuf> {
    let out = Command::new(root.join(script))
        .args(words)
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| script.to_string())?;
    if !out.status.success() {
        bail!("{script} failed");
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().into())
}

/// What is read at the beginning and the end of a slice.
struct Look {
    made: Counters,
    taken: Counters,
    cpu_ns: u64,
    at: Instant,
}

impl Look {
    fn now(running: &Running) -> Result<Self> {
        Ok(Look {
            made: Counters::read(&running.made)?,
            taken: running.taken()?,
            cpu_ns: running.cpu_ns()?,
            at: Instant::now(),
        })
    }

    fn until(&self, later: &Look) -> Slice {
        Slice {
            packets: later.taken.taken - self.taken.taken,
            received: later.made.made - self.made.made,
            cpu_ns: later.cpu_ns - self.cpu_ns,
            wall_ns: (later.at - self.at).as_nanos() as u64,
        }
    }
}

/// What happened between two looks.
#[derive(Clone, Copy, Default)]
struct Slice {
    packets: u64,
    received: u64,
    cpu_ns: u64,
    wall_ns: u64,
}

impl Slice {
    fn and(self, other: Slice) -> Slice {
        Slice {
            packets: self.packets + other.packets,
            received: self.received + other.received,
            cpu_ns: self.cpu_ns + other.cpu_ns,
            wall_ns: self.wall_ns + other.wall_ns,
        }
    }

    /// True if the forwarding threads had their cores.
    fn undisturbed(&self, cores: usize) -> bool {
        self.cpu_ns as f64 >= (self.wall_ns * cores as u64) as f64 * PRESENT
    }
}

/// The sum of the slices that count, and how many these are: the undisturbed ones, but all if they
/// are less than half.
fn counted(slices: &[Slice], cores: usize) -> (Slice, u32) {
    let sum = |all: &[Slice]| all.iter().copied().fold(Slice::default(), Slice::and);
    let good: Vec<_> = slices.iter().copied().filter(|s| s.undisturbed(cores)).collect();
    match good.len() * 2 < slices.len() {
        true => (sum(slices), slices.len() as u32),
        false => (sum(&good), good.len() as u32),
    }
}

/// Looks from now on, for so many seconds.
fn watch(running: &Running, seconds: f64) -> Result<Vec<Look>> {
    let n = (seconds / SLICE).round().max(1.0);
    let mut looks = vec![Look::now(running)?];
    for _ in 0..n as u32 {
        pause(seconds / n)?;
        looks.push(Look::now(running)?);
    }
    Ok(looks)
}

/// Sockets and files of this process's runs: a directory whose name cannot be foreseen. The
/// hugepages' janitor removes it.
pub(crate) fn folder() -> Result<&'static Path> {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    if let Some(made) = MADE.get() {
        return Ok(made);
    }
    let new = tempfile::Builder::new().prefix("weft-lab-").tempdir().context("a directory")?;
    Ok(MADE.get_or_init(|| new.keep()))
}

/// The last `n` cores of the machine, which are to forward.
pub(crate) fn last_cores(n: usize) -> Result<Range<usize>> {
    let all = cores();
    let first = all.checked_sub(n).with_context(|| format!("this machine has {all} cores"))?;
    Ok(first..all)
}

/// Starts a system, waits for the first packet that comes through, and begins to change rules if
/// the case says so.
pub(crate) fn begin(system: &System, setup: &Setup) -> Result<(Running, Option<Churn>)> {
    let running = system.start(setup, folder()?.join("run"))?;
    let began = Instant::now();
    while running.taken().map_or(0, |c| c.taken) == 0 {
        pause(0.02)?;
        if began.elapsed() > Duration::from_secs(10) {
            bail!("no packet came through");
        }
    }
    let (case, lines) = (setup.case, &setup.rules.lines);
    let churn = match (case.churn, case.moves) {
        (0, 0) => None,
        (0, rate) => Some(Churn::begin_moves(&running.dir, rate, lines, case.functions)?),
        (rate, _) => Some(Churn::begin(&running.dir, rate)?),
    };
    Ok((running, churn))
}

/// One run: start, warm up, measure, end.
fn sample(
    case: &Case,
    rules: &RuleSet,
    system: &System,
    seconds: f64,
    programs: &Programs,
) -> Result<Sample> {
    let starting = Instant::now();
    let setup = Setup { case, rules, cores: last_cores(case.cores)?, programs, validate: false };
    let (running, churn) = begin(system, &setup)?;
    let changes = || churn.as_ref().map_or(0, Churn::acknowledged);
    pause(case.warming.warm_least)?;
    let warm = warm_up(&running, system, case.warming.warm)?;
    let clocks = || system.has_stages().then(|| Clocks::ask(&running.dir)).transpose();
    let marks = || system.offloads().then(|| Marks::ask(&running.dir)).transpose();
    let meters = || match case.functions > 0 && !system.ceiling() {
        true => Meters::read(&running).map(Some),
        false => Ok(None),
    };
    let (marks_before, meters_before) = (marks()?, meters()?);
    let (changes_before, clocks_before) = (changes(), clocks()?);
    let looks = watch(&running, seconds)?;
    let (changes_after, clocks_after) = (changes(), clocks()?);
    let host = meters_before.zip(meters()?).map(|(before, after)| before.until(after));
    let offloaded = match marks_before.zip(marks()?) {
        Some((before, after)) => Some(before.until(after, offloaded::rules(&running.dir)?)),
        None => None,
    };
    let slices: Vec<_> = looks.windows(2).map(|l| l[0].until(&l[1])).collect();
    let (Slice { packets, received, cpu_ns, wall_ns }, good) = counted(&slices, case.cores);
    if packets == 0 {
        bail!("no packet came through any more");
    }
    let found = match case.search {
        true => Some(search(&running, packets as f64 * 1e9 / wall_ns as f64, seconds / 2.0)?),
        false => None,
    };
    let at_loads = at_loads(&running, &case.loads, seconds)?;
    let (a, b) = (&looks[0], &looks[slices.len()]);
    let cycles = cpu_ns as f64 * b.taken.tsc_hz as f64 / 1e9 / packets as f64;
    let stages = clocks_before.zip(clocks_after).and_then(|(a, b)| b.since(&a, cycles));
    Ok(Sample {
        packets,
        received,
        cpu_ns,
        wall_ns,
        cycles,
        slices: [good, slices.len() as u32],
        took: starting.elapsed().as_secs_f64(),
        lost: b.taken.lost.saturating_sub(a.taken.lost),
        reordered: b.taken.reordered - a.taken.reordered,
        warm: Some(warm),
        cached: (!system.ceiling()).then(|| Cached::ask(&running.dir).ok()).flatten(),
        changes: churn
            .map(|_| (changes_after - changes_before) as f64 / (b.at - a.at).as_secs_f64()),
        stages,
        offloaded,
        host,
        found,
        at_loads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disturbed_slices_do_not_count_unless_most_are() {
        let slice = |cpu_ns| Slice { packets: 1, received: 2, cpu_ns, wall_ns: 100 };
        let (sum, n) = counted(&[100, 90, 97].map(slice), 1);
        assert_eq!((sum.packets, sum.received, sum.cpu_ns, sum.wall_ns, n), (2, 4, 197, 200, 2));
        let (sum, n) = counted(&[100, 90, 60].map(slice), 1);
        assert_eq!(counted(&[200, 100, 200].map(slice), 2).1, 2);
        assert_eq!((sum.packets, sum.cpu_ns, n), (3, 250, 3));
    }
}
