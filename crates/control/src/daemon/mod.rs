//! The process: command line, directories, pidfile, background.
//!
//! Everything is as `ovs-vswitchd` has it, since scripts start this program in its place. Order
//! matters: [`Args::parse`], [`Args::open_logs`], [`Daemon::start`] while the process has one
//! thread, the work, [`Daemon::ready`] once configured.

mod args;
mod context;
mod detach;
mod machine;
mod paths;
mod pidfile;
pub mod system_stats;
mod takeover;
mod user;

pub use args::{Action, Args, Dummy, UsageError, help};
pub use detach::{Daemon, StartError};
pub use machine::log_machine;
pub use paths::Dirs;
pub use takeover::Standby;

/// The release of `ovs-vswitchd` whose interfaces this program offers.
pub const OVS_VERSION: &str = "3.1.0";

/// What `--version` and `ovs-appctl version` print: a first line that scripts read as
/// `ovs-vswitchd`'s, then who really answers.
pub fn version() -> String {
    format!(
        "{} (Open vSwitch) {OVS_VERSION}\nWeft {}",
        crate::vlog::PROGRAM,
        env!("CARGO_PKG_VERSION")
    )
}
