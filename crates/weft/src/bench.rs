//! `weft bench`: the lab's experiments.

use anyhow::{Context, Result};
use clap::Subcommand;
use std::path::PathBuf;

/// What to do in the lab.
#[derive(Subcommand)]
pub enum Bench {
    /// The experiments there are.
    List,
    /// Run an experiment (as root) and write its results to bench/results.
    Run {
        /// Its name; see `weft bench list`.
        name: String,
        /// Times that each system goes through each case; the experiment's file says how often
        /// else.
        #[arg(short = 'n', long)]
        repetitions: Option<usize>,
        /// Seconds that count, per run; the experiment's file says how many else.
        #[arg(short, long)]
        seconds: Option<f64>,
        /// Every case, size and system, for as long as it takes.
        #[arg(long)]
        full: bool,
        /// No run begins after so many minutes, except with --full.
        #[arg(long, default_value_t = 15.0)]
        minutes: f64,
        /// Only these systems, such as ovs-emc,weft.
        #[arg(long, value_delimiter = ',')]
        systems: Vec<String>,
        /// Only cases whose name contains this.
        #[arg(long)]
        case: Option<String>,
        /// Add to the samples that this commit's results have.
        #[arg(long)]
        add: bool,
        /// Do not measure: only Weft, in its validating mode, which compares every kernel with its
        /// twin. Fails if one differs or was not compared.
        #[arg(long)]
        validate: bool,
        /// The daemon; the one beside this program if not given.
        #[arg(long)]
        weftd: Option<PathBuf>,
    },
    /// Writes the page of a folder of bench/results anew, from what is in it.
    Page {
        /// The folder.
        folder: PathBuf,
    },
    /// Two results side by side: folders of bench/results, or files in them.
    Compare {
        /// Results before the change.
        old: PathBuf,
        /// Results after the change.
        new: PathBuf,
    },
}

/// Runs the command.
pub fn bench(command: Bench) -> Result<()> {
    match command {
        Bench::List => {
            for (name, title) in lab::Experiment::all()? {
                println!("{name:<16}{title}");
            }
        }
        Bench::Page { folder } => lab::write_page(&folder)?,
        Bench::Compare { old, new } => print!("{}", lab::compare(&old, &new)?),
        Bench::Run {
            name,
            repetitions,
            seconds,
            full,
            minutes,
            systems,
            case,
            add,
            validate,
            weftd,
        } => {
            let weftd = match weftd {
                Some(path) => path.canonicalize().with_context(|| path.display().to_string())?,
                None => std::env::current_exe()?.with_file_name("weftd"),
            };
            let root = tree()?;
            let options = lab::Options {
                repetitions,
                seconds,
                full,
                minutes,
                systems,
                case,
                add,
                validate,
                weftd,
                root,
            };
            let run = if validate { lab::validate } else { lab::run };
            println!("{}", run(&name, &options)?.display());
        }
    }
    Ok(())
}

/// The source tree: the generator is built from it.
fn tree() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let found = here.ancestors().find(|d| d.join("lab/generator/build.sh").exists());
    found
        .map(PathBuf::from)
        .context("run this inside Weft's source tree: there is no lab/generator here")
}
