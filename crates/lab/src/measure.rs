//! Runs an experiment: every case, every system, several times, interleaved.

use crate::cached::Cached;
use crate::counters::Counters;
use crate::environment::{self, Environment};
use crate::experiment::{Case, Experiment};
use crate::hugepages::Hugepages;
use crate::report::{self, Results};
use crate::rules::RuleSet;
use crate::system::{Setup, System};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// 2 MiB pages: OVS takes 1 GiB, testpmd less.
const HUGEPAGES: u64 = 900;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Times that each system goes through each case.
    pub repetitions: usize,
    /// Seconds that count, per run.
    pub seconds: f64,
    /// Only these systems; all if empty.
    pub systems: Vec<String>,
    /// Only cases whose name contains this.
    pub case: Option<String>,
    /// The daemon.
    pub weftd: PathBuf,
    /// The tree with `lab/`; results go to `bench/results` there.
    pub root: PathBuf,
}

/// One run's figures.
#[derive(Clone, Copy, Debug, Serialize)]
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
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

fn check_interrupt() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted; everything is cleaned up");
    }
    Ok(())
}

fn pause(seconds: f64) -> Result<()> {
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
    let experiment = Experiment::load(name)?;
    let systems = present(&experiment, options)?;
    // SAFETY: geteuid has no conditions; the handlers only store into an atomic.
    unsafe {
        if libc::geteuid() != 0 {
            bail!("a benchmark needs root: hugepages and namespaces");
        }
        let handler = interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::signal(libc::SIGINT, handler);
        libc::signal(libc::SIGTERM, handler);
    }
    let generator = build_generator(&options.root)?;
    let pages = Hugepages::take(HUGEPAGES)?;
    let mut environment = Environment::now(&options.root);
    let wanted =
        |c: &&Case| options.case.as_ref().is_none_or(|part| c.name.contains(part.as_str()));
    let cases: Vec<_> = experiment.cases.iter().filter(wanted).cloned().collect();
    let sets = cases.iter().map(|c| c.rules.build()).collect::<Result<Vec<_>>>()?;
    let mut results = Results::new(&experiment.title, &cases, &systems);
    for turn in 0..options.repetitions {
        for (row, case) in cases.iter().enumerate() {
            for (column, system) in systems.iter().enumerate() {
                eprint!(
                    "\r{}/{} {}, {}      ",
                    turn + 1,
                    options.repetitions,
                    case.name,
                    system.name
                );
                let sample = pages
                    .refill()
                    .and_then(|()| sample(case, &sets[row], system, options, &generator));
                match sample {
                    Ok(sample) => results.add(row, column, sample),
                    Err(error) => eprintln!("\n{} under {}: {error:#}", case.name, system.name),
                }
                check_interrupt()?;
            }
        }
    }
    eprintln!();
    environment.steal_ticks = environment::steal() - environment.steal_ticks;
    report::write(&options.root, name, &environment, &results)
}

/// The systems that are wanted and here.
fn present(experiment: &Experiment, options: &Options) -> Result<Vec<System>> {
    for name in &options.systems {
        System::named(name)?;
    }
    let mut found = Vec::new();
    for name in &experiment.systems {
        if !options.systems.is_empty() && !options.systems.contains(name) {
            continue;
        }
        let system = System::named(name)?;
        let program = system.program(&options.weftd);
        if program.exists() {
            found.push(system);
        } else {
            eprintln!("{name} is left out: there is no {}", program.display());
        }
    }
    Ok(found)
}

fn build_generator(root: &Path) -> Result<PathBuf> {
    let script = root.join("lab/generator/build.sh");
    let out = Command::new(&script).output().with_context(|| script.display().to_string())?;
    if !out.status.success() {
        bail!("{}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().into())
}

/// One run: start, warm up, measure, end.
fn sample(
    case: &Case,
    rules: &RuleSet,
    system: &System,
    options: &Options,
    generator: &Path,
) -> Result<Sample> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (source, weftd) = (case.source.as_str(), options.weftd.as_path());
    let setup = Setup { generator, source, rules, core: cores - 1, weftd };
    let dir = std::env::temp_dir().join(format!("weft-lab-{}", std::process::id()));
    let running = system.start(&setup, dir)?;
    let began = Instant::now();
    while Counters::read(&running.taken).map_or(0, |c| c.taken) == 0 {
        pause(0.02)?;
        if began.elapsed() > Duration::from_secs(10) {
            bail!("no packet came through");
        }
    }
    pause(case.warm)?;
    let look = || {
        anyhow::Ok((
            Counters::read(&running.made)?,
            Counters::read(&running.taken)?,
            running.cpu_ns()?,
            Instant::now(),
        ))
    };
    let a = look()?;
    pause(options.seconds)?;
    let b = look()?;
    let (packets, cpu_ns) = (b.1.taken - a.1.taken, b.2 - a.2);
    if packets == 0 {
        bail!("no packet came through any more");
    }
    Ok(Sample {
        packets,
        received: b.0.made - a.0.made,
        cpu_ns,
        wall_ns: (b.3 - a.3).as_nanos() as u64,
        cycles: cpu_ns as f64 * b.1.tsc_hz as f64 / 1e9 / packets as f64,
        lost: b.1.lost.saturating_sub(a.1.lost),
        reordered: b.1.reordered - a.1.reordered,
        cached: Cached::ask(&running.dir).ok(),
    })
}
