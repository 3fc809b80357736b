//! Runs an experiment: every case, every system, several times, interleaved.

use crate::cached::Cached;
use crate::churn::Churn;
use crate::counters::Counters;
use crate::environment::{Environment, Steal};
use crate::experiment::{Case, Experiment};
use crate::hugepages::Hugepages;
use crate::progress::Progress;
use crate::report;
use crate::results::Results;
use crate::rules::RuleSet;
use crate::search::{Found, search};
use crate::system::{Programs, Running, Setup, System};
use crate::warm::{Warm, warm_up};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// 2 MiB pages: OVS takes 1 GiB, 64 guests that send 700 MiB, testpmd less.
const HUGEPAGES: u64 = 900;

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
    /// The tree with `lab/`; results go to `bench/results` there.
    pub root: PathBuf,
}

/// One run's figures.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Packets that left.
    pub packets: u64,
    /// Packets that came.
    pub received: u64,
    /// CPU time of the forwarding thread, ns.
    pub cpu_ns: u64,
    /// Wall time, ns.
    pub wall_ns: u64,
    /// TSC cycles of that CPU time per packet that left.
    pub cycles: f64,
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
    /// Rates without loss, and latency.
    #[serde(default)]
    pub found: Option<Found>,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

fn interrupted() -> bool {
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
    let wanted =
        |c: &&Case| options.case.as_ref().is_none_or(|part| c.name.contains(part.as_str()));
    let cases: Vec<_> = experiment.cases.iter().filter(wanted).cloned().collect();
    if cases.is_empty() {
        bail!("no case of {name} has '{}' in its name", options.case.as_deref().unwrap_or(""));
    }
    let mut systems = System::choose(&experiment.systems)?;
    if !options.systems.is_empty() {
        let chosen: Vec<_> = System::choose(&options.systems)?.iter().map(|s| s.name).collect();
        systems.retain(|s| chosen.contains(&s.name));
    }
    prepare_signals()?;
    let (systems, programs) = prepare(systems, options, experiment.build)?;
    let sets = cases.iter().map(|c| c.rules.build()).collect::<Result<Vec<_>>>()?;
    let pages = Hugepages::take(HUGEPAGES, &folder())?;
    let seconds = options.seconds.unwrap_or(experiment.seconds);
    let steal = Steal::begin();
    let sizes: Vec<_> =
        cases.iter().zip(&sets).map(|(c, s)| (c, [s.lines.len(), s.masks()])).collect();
    let environment = Environment::now(&options.root);
    let mut results = Results::new(name, &experiment.title, environment, &sizes, &systems);
    let runs: Vec<_> = (0..options.repetitions.unwrap_or(experiment.repetitions))
        .flat_map(|_| (0..cases.len()).flat_map(|row| (0..systems.len()).map(move |c| (row, c))))
        .filter(|(row, column)| systems[*column].can(&cases[*row]))
        .collect();
    let mut progress = Progress::new(runs.len());
    let limit = if options.full { f64::INFINITY } else { options.minutes * 60.0 };
    for (row, column) in runs {
        if progress.seconds() > limit {
            results.environment.cut = progress.say_cut(options.minutes);
            break;
        }
        let (case, system) = (&cases[row], &systems[column]);
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

/// Ctrl-C is answered between two steps, so that everything ends in order.
fn prepare_signals() -> Result<()> {
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

/// Builds what is built here (the peer only if `build`); leaves out systems that are not on this machine.
fn prepare(
    systems: Vec<System>,
    options: &Options,
    build: bool,
) -> Result<(Vec<System>, Programs)> {
    let root = &options.root;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    if cores < 2 {
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

/// What is read at the beginning and the end of a window.
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
            taken: Counters::read(&running.taken)?,
            cpu_ns: running.cpu_ns()?,
            at: Instant::now(),
        })
    }
}

/// Sockets and files of the run at hand.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("weft-lab-{}", std::process::id()))
}

/// One run: start, warm up, measure, end.
fn sample(
    case: &Case,
    rules: &RuleSet,
    system: &System,
    seconds: f64,
    programs: &Programs,
) -> Result<Sample> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let setup = Setup { case, rules, core: cores - 1, programs };
    let running = system.start(&setup, folder())?;
    let began = Instant::now();
    while Counters::read(&running.taken).map_or(0, |c| c.taken) == 0 {
        pause(0.02)?;
        if began.elapsed() > Duration::from_secs(10) {
            bail!("no packet came through");
        }
    }
    let churn = match case.churn {
        0 => None,
        rate => Some(Churn::begin(&running.dir, rate)?),
    };
    let changes = || churn.as_ref().map_or(0, Churn::acknowledged);
    let warm = warm_up(&running, system, case.warm)?;
    let (a, changes_before) = (Look::now(&running)?, changes());
    pause(seconds)?;
    let (b, changes_after) = (Look::now(&running)?, changes());
    let (packets, cpu_ns) = (b.taken.taken - a.taken.taken, b.cpu_ns - a.cpu_ns);
    if packets == 0 {
        bail!("no packet came through any more");
    }
    let wall_ns = (b.at - a.at).as_nanos() as u64;
    let found = match case.search {
        true => Some(search(&running, packets as f64 * 1e9 / wall_ns as f64, seconds / 2.0)?),
        false => None,
    };
    Ok(Sample {
        packets,
        received: b.made.made - a.made.made,
        cpu_ns,
        wall_ns,
        cycles: cpu_ns as f64 * b.taken.tsc_hz as f64 / 1e9 / packets as f64,
        lost: b.taken.lost.saturating_sub(a.taken.lost),
        reordered: b.taken.reordered - a.taken.reordered,
        warm: Some(warm),
        cached: (!system.ceiling()).then(|| Cached::ask(&running.dir).ok()).flatten(),
        changes: churn.map(|_| (changes_after - changes_before) as f64 * 1e9 / wall_ns as f64),
        found,
    })
}
