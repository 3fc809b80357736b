//! What end-to-end and property tests of all crates are made with.
//!
//! *Place*: support row, used by tests only. *Knows*: namespaces, the stock OVS tools, header
//! layouts. *Does not know*: anything of the switch's inside; it is looked at from outside.
//!
//! Invariants
//! - Nothing is left behind: namespaces have no name and end with the process, even when it is
//!   killed; daemons are killed and directories removed on drop.
//! - Nothing leaves the machine: namespaces have no way out.
//! - Errors are texts that say what was tried; a test unwraps them.

mod frame;
mod netns;
mod noise;
mod probe;
mod repair;
pub mod strategy;
mod switch;

pub use frame::{Ext, Frame, L4, Net, V4, V6, hex, to_hex};
pub use netns::{Netns, veth};
pub use noise::Noise;
pub use probe::{Probe, Raw};
pub use repair::fix_checksums;
pub use switch::{Switch, SwitchConfig};

/// What a helper gives back: the text of an error says what was tried.
pub type Result<T> = std::result::Result<T, String>;

/// May this process make namespaces and devices? Says on stderr why a test is skipped if not.
pub fn privileged() -> bool {
    // SAFETY: no arguments, no memory.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: needs root for namespaces and devices");
    }
    root
}
