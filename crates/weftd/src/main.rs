//! The daemon that takes `ovs-vswitchd`'s place: arguments and wiring only.

#![forbid(unsafe_code)]

use control::daemon::{Action, Args, Daemon, Dirs, help, log_machine, version};
use control::tls::Tls;
use control::vlog;
use std::backtrace::Backtrace;
use std::fmt::Display;
use std::panic::PanicHookInfo;
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
    // Keys may be readable only now: the daemon may become another user.
    let tls = Tls::new(args.tls.clone());
    tls.load_now();
    let daemon = match Daemon::start(args) {
        Ok(daemon) => daemon,
        Err(error) => return fail(error),
    };
    log_machine();
    std::panic::set_hook(Box::new(on_panic));
    match control::run(args, daemon, &tls) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            vlog::emer!("vswitchd", "{error:#}");
            fail(format_args!("ovs-vswitchd: {error:#}"))
        }
    }
}

/// A panic in any thread ends the process, whatever the build: a thread less would stop its ports
/// in silence. A monitor takes it for the crash that it is and starts the daemon again.
fn on_panic(panic: &PanicHookInfo<'_>) {
    vlog::last_words("backtrace", &format!("{panic}\n{}", Backtrace::force_capture()));
    std::process::abort();
}
