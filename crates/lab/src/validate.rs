//! An experiment's traffic through Weft in its validating mode: every kernel beside its twin, case
//! by case. Nothing is measured, so the machine need not be quiet.

use crate::cached::{appctl, control_socket};
use crate::environment::Environment;
use crate::experiment::{Case, Experiment, Role, Tunnel};
use crate::hugepages::Hugepages;
use crate::measure::{self, Options, begin, folder, pause};
use crate::rules::RuleSet;
use crate::system::{Programs, Setup, System};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What is compared, as `pmd-perf-show` names it: kernels of parsing with the scalar parser, what
/// lookups found with what rules say, decisions of direct mode with those of the whole way,
/// decapsulation in one pass with two steps, programs with the interpreter.
const KINDS: [&str; 5] = ["parse", "lookup", "direct", "decapsulation", "act"];

/// What one case's run compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    /// Comparisons, by [`KINDS`].
    of: [u64; 5],
    differences: u64,
}

impl Compared {
    /// Reads what `dpif-netdev/pmd-perf-show` prints: all threads together.
    fn read(show: &str) -> Option<Self> {
        let lines = show.lines().filter_map(|l| l.trim_start().strip_prefix("Validated:"));
        let each: Vec<_> = lines.map(Compared::of_thread).collect::<Option<_>>()?;
        each.into_iter().reduce(|a, b| Compared {
            of: std::array::from_fn(|i| a.of[i] + b.of[i]),
            differences: a.differences + b.differences,
        })
    }

    fn of_thread(line: &str) -> Option<Self> {
        let number = |mark: &str| {
            let behind = &line[line.find(mark)? + mark.len()..];
            behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let mut of = [0; 5];
        for (n, kind) in of.iter_mut().zip(KINDS) {
            *n = number(&format!("{kind} "))?;
        }
        Some(Compared { of, differences: number("differences ")? })
    }

    /// What should have been compared and was not.
    fn missing(&self, case: &Case) -> Vec<&'static str> {
        let ends =
            matches!(case.tunnel, Tunnel::Source | Tunnel::Both) && case.guest.role != Role::Source;
        let none = KINDS.into_iter().zip(self.of).filter(|(_, n)| *n == 0);
        let there = |kind: &&str| match *kind {
            "decapsulation" => ends,
            // Only where every packet is of a new flow; elsewhere it is as it comes.
            "direct" => case.source.split(',').any(|a| a == "new=1000"),
            _ => true,
        };
        none.map(|(kind, _)| kind).filter(there).collect()
    }
}

/// Runs Weft alone over every case; writes a table beside the experiment's results, and gives its
/// path.
///
/// # Errors
/// As [`crate::run`]; and a case that did not run, that found a difference, or in which something
/// was not compared.
pub fn validate(name: &str, options: &Options) -> Result<PathBuf> {
    let experiment = Experiment::load(name, options.full)?;
    let cases = measure::wanted(name, &experiment, options)?;
    let weft: Vec<_> =
        System::choose(&["weft".to_string()])?.into_iter().filter(System::is_weft).collect();
    measure::prepare_signals()?;
    let (weft, programs) = measure::prepare(weft, options, false)?;
    let pages = Hugepages::take(measure::HUGEPAGES, folder()?)?;
    let seconds = options.seconds.unwrap_or(experiment.seconds);
    let (mut table, mut bad) = (String::new(), Vec::new());
    for case in &cases {
        eprintln!("{}", case.name);
        pages.refill()?;
        match one(case, &weft[0], seconds, &programs) {
            _ if measure::interrupted() => bail!("interrupted"),
            Err(error) => bad.push(format!("{}: {error:#}", case.name)),
            Ok(c) => {
                let [parse, lookup, direct, decapsulation, act] = c.of;
                let _ = writeln!(
                    table,
                    "| {} | {parse} | {lookup} | {direct} | {decapsulation} | {act} | {} |",
                    case.name, c.differences
                );
                if c.differences > 0 {
                    bad.push(format!("{}: {} differences", case.name, c.differences));
                }
                let missing = c.missing(case).into_iter();
                bad.extend(missing.map(|kind| format!("{}: no comparison of {kind}", case.name)));
            }
        }
    }
    let file = write(name, &experiment.title, &table, &options.root)?;
    ensure!(bad.is_empty(), "{}", bad.join("\n"));
    Ok(file)
}

fn one(case: &Case, weft: &System, seconds: f64, programs: &Programs) -> Result<Compared> {
    let rules: RuleSet = case.rules.build()?;
    let cores = measure::last_cores(case.cores)?;
    let (running, churn) =
        begin(weft, &Setup { case, rules: &rules, cores, programs, validate: true })?;
    pause(seconds)?;
    drop(churn);
    let socket = control_socket(&running.dir)?;
    let show = appctl(&socket, &["dpif-netdev/pmd-perf-show"])?;
    Compared::read(&show).context("dpif-netdev/pmd-perf-show: nothing was validated")
}

fn write(name: &str, title: &str, table: &str, root: &Path) -> Result<PathBuf> {
    let environment = Environment::now(root);
    let folder = root.join("bench/results").join(environment.folder());
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let file = folder.join(format!("{name}.validated.md"));
    let text = format!(
        "# {title}: validating mode\n\n{}, commit {}, {}. Comparisons of each kernel with its twin, and how many found a \
         difference.\n\n| case | parse | lookup | direct | decapsulation | act | differences |\n|---|--:|--:|--:|--:|--:|--:|\n{table}",
        environment.date, environment.commit, environment.cpu
    );
    print!("{text}");
    std::fs::write(&file, text).with_context(|| file.display().to_string())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_are_read_and_missing_ones_noticed() {
        let show = "  Rx packets: 5\n  Validated:  100  (parse 50, lookup 30, direct 0, decapsulation 0, act 20, differences 2)\n";
        let compared = Compared::read(show).unwrap();
        assert_eq!(compared, Compared { of: [50, 30, 0, 0, 20], differences: 2 });
        let both = Compared::read(&show.repeat(2)).unwrap();
        assert_eq!(both, Compared { of: [100, 60, 0, 0, 40], differences: 4 });
        assert_eq!(Compared::read("  Rx packets: 5\n"), None);
        let mut case = Experiment::load("vxlan", false).unwrap().cases.remove(0);
        assert_eq!(compared.missing(&case), ["decapsulation"]);
        case.source = "flows=9,new=1000".into();
        assert_eq!(compared.missing(&case), ["direct", "decapsulation"]);
        (case.guest.role, case.source) = (Role::Source, "flows=9,new=10".into());
        assert_eq!(compared.missing(&case), Vec::<&str>::new());
        assert_eq!(Compared::default().missing(&case), ["parse", "lookup", "act"]);
    }
}
