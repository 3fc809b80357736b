//! The daemon that takes `ovs-vswitchd`'s place: arguments and wiring only.

use control::daemon::{Action, Args, Daemon, Dirs, help, log_machine, version};
use control::vlog;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Flow-mods mix short-lived cache-line-aligned blocks (keys, regions) with long-lived small ones
/// (rules). glibc's `malloc` cannot reuse what such blocks leave: 3 KB per flow instead of 0.4.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let dirs = Dirs::from_env();
    match Args::parse(std::env::args().skip(1), dirs.clone()) {
        Ok(Action::Help) => print!("{}", help(&dirs)),
        Ok(Action::Version) => println!("{}", version()),
        Ok(Action::Run(args)) => return run(&args),
        Err(error) => return fail(error),
    }
    ExitCode::SUCCESS
}

fn fail(error: impl Display) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Starts the process and runs the switch. No thread may exist before `Daemon::start` is through.
fn run(args: &Args) -> ExitCode {
    if let Err(error) = args.open_logs() {
        return fail(error);
    }
    let daemon = match Daemon::start(args) {
        Ok(daemon) => daemon,
        Err(error) => return fail(error),
    };
    log_machine();
    std::panic::set_hook(Box::new(|panic| vlog::emer!("backtrace", "{panic}")));
    match catch_unwind(AssertUnwindSafe(|| control::run(args, daemon))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            vlog::emer!("vswitchd", "{error:#}");
            fail(format_args!("ovs-vswitchd: {error:#}"))
        }
        // A monitor takes this for a crash and starts the daemon again.
        Err(_) => std::process::abort(),
    }
}
