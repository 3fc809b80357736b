//! `weft`: the tool people type. Starts and stops the switch and shows it at work.
//!
//! *Place*: programs row. Talks to the switch only through the stock tools and its sockets.

mod advise;
mod bench;
mod demo;
mod dirs;
mod manual;
mod netns;
mod place;
mod run;
mod say;
mod stop;
mod top;
mod trace;
mod up;
mod view;
mod web;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "weft", version, about = "The Weft virtual switch: start, stop, watch")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what would help the running switch; change nothing.
    Advise(advise::AdviseArgs),
    /// Measure the switch next to its peers.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Have weftd started in ovs-vswitchd's place from now on, and hand over what runs.
    Enable(place::PlaceArgs),
    /// Have what was there before `weft enable` started again, and hand over what runs.
    Disable(place::PlaceArgs),
    /// Write man pages and bash completion; for packages.
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    /// Show the running switch, live.
    Top(top::TopArgs),
    /// Show packets of a port or a flow with what the switch decides about them.
    Trace(trace::TraceArgs),
    /// Show the running switch as a page, and to Prometheus.
    Web(web::WebArgs),
    /// What the unit of weftd does when it is stopped and started.
    #[command(hide = true)]
    Unit {
        /// When the unit asks.
        moment: place::Moment,
    },
    /// Start the switch, with a database of its own where none is running.
    Up,
    /// Stop the switch, and the database if `weft up` started it.
    Down,
    /// Bring up a private switch with namespaces and a guest, and show its traffic until Ctrl-C.
    Demo {
        /// Stop by itself after this many seconds.
        #[arg(long)]
        seconds: Option<u64>,
    },
}

/// What goes wrong is said in one line, whatever the environment asks for.
fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("weft: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    match Args::parse().command {
        Command::Advise(options) => advise::advise(&dirs::Dirs::from_env(), &options),
        Command::Bench(command) => bench::bench(command),
        Command::Enable(options) => place::enable(&dirs::Dirs::from_env(), &options),
        Command::Disable(options) => place::disable(&dirs::Dirs::from_env(), &options),
        Command::Manual(options) => manual::manual(Args::command(), &options),
        Command::Top(options) => top::top(&dirs::Dirs::from_env(), &options),
        Command::Trace(options) => trace::trace(&dirs::Dirs::from_env(), &options),
        Command::Web(options) => web::web(&dirs::Dirs::from_env(), &options),
        Command::Unit { moment } => place::at(&dirs::Dirs::from_env(), moment),
        Command::Up => up::up(&dirs::Dirs::from_env()),
        Command::Down => up::down(&dirs::Dirs::from_env()),
        Command::Demo { seconds } => demo::demo(seconds),
    }
}
