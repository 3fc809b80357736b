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
pub mod front_end;
mod netns;
mod noise;
mod probe;
mod repair;
mod rng;
pub mod strategy;
mod stream;
mod switch;

pub use frame::{Ext, Frame, L4, Net, V4, V6, hex, to_hex};
pub use netns::{Netns, veth};
pub use noise::Noise;
pub use probe::{Probe, Raw};
pub use repair::fix_checksums;
pub use rng::Rng;
pub use stream::tcp_stream;
pub use switch::{Switch, SwitchConfig};

/// What a helper gives back: the text of an error says what was tried.
pub type Result<T> = std::result::Result<T, String>;

/// True if this process may make namespaces and devices. See [`available`].
pub fn privileged() -> bool {
    // SAFETY: no arguments, no memory.
    available(unsafe { libc::geteuid() } == 0, "root, for namespaces and devices")
}

/// True if there is what a test needs. A test that cannot run fails: one that passed would be taken
/// for evidence. With `WEFT_TEST_SKIP=1` in the environment it is skipped instead, with a line on
/// stderr, and this is false.
///
/// # Panics
/// If it is not there and skipping is not allowed.
pub fn available(there: bool, what: &str) -> bool {
    if !there {
        let allowed = std::env::var_os("WEFT_TEST_SKIP").is_some_and(|v| v == "1");
        assert!(allowed, "this test needs {what}; with WEFT_TEST_SKIP=1 it is skipped");
        eprintln!("skipped: needs {what}");
    }
    there
}
