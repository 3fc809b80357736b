//! What is fuzzed: each [`FuzzTarget`] is a function over bytes that must return, whatever the
//! bytes are. It panics when a promise is broken: a fast part that differs from its slow twin, a
//! message that takes too long, memory that was written outside of a guest, a buffer that leaked.
//!
//! *Place*: support row. `tests/replay.rs` runs every target over its seeds and over changed copies
//! of them with any toolchain; `libfuzzer/` (outside of the workspace) runs one under libFuzzer,
//! guided by coverage: `make fuzz`.
//!
//! Seeds are in `seeds/TARGET.hex`, one input a line; `cargo run -p fuzz --example seeds` makes
//! them anew from our own encoders and test vectors, and keeps the lines below `# found`, which are
//! inputs that failed once.

mod action_text;
mod connections;
mod gso;
mod json;
mod lldp;
mod memif;
mod netlink;
mod openflow;
mod parse;
mod ring;
mod tunnel;
mod vhost_user;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// One thing that is fuzzed.
pub struct FuzzTarget {
    /// Its name on the command line, and that of its seeds' file.
    pub name: &'static str,
    /// Takes any bytes and returns; a panic is a defect.
    pub run: fn(&[u8]),
    /// Well-formed inputs to begin with.
    pub make_seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [FuzzTarget; 13] = [
    FuzzTarget { name: "openflow", run: openflow::run, make_seeds: openflow::seeds },
    FuzzTarget { name: "parse", run: parse::run, make_seeds: parse::seeds },
    FuzzTarget { name: "tunnel", run: tunnel::run, make_seeds: tunnel::seeds },
    FuzzTarget { name: "ring-split", run: ring::split, make_seeds: ring::seeds },
    FuzzTarget { name: "ring-packed", run: ring::packed, make_seeds: ring::seeds },
    FuzzTarget { name: "vhost-user", run: vhost_user::run, make_seeds: vhost_user::seeds },
    FuzzTarget { name: "memif", run: memif::run, make_seeds: memif::seeds },
    FuzzTarget { name: "json", run: json::run, make_seeds: json::seeds },
    FuzzTarget { name: "netlink", run: netlink::run, make_seeds: netlink::seeds },
    FuzzTarget { name: "connections", run: connections::run, make_seeds: connections::seeds },
    FuzzTarget { name: "action-text", run: action_text::run, make_seeds: action_text::seeds },
    FuzzTarget { name: "gso", run: gso::run, make_seeds: gso::seeds },
    FuzzTarget { name: "lldp", run: lldp::run, make_seeds: lldp::seeds },
];

/// How many times longer than in a release build work may take: debug builds are about 20 times
/// slower.
static SLOWNESS: AtomicU64 = AtomicU64::new(if cfg!(debug_assertions) { 20 } else { 1 });

/// Says how much slower than a release build this one is, which limits of time allow for.
pub fn set_slowness(times: u64) {
    SLOWNESS.store(times, Ordering::Relaxed);
}

impl FuzzTarget {
    /// The target of this name.
    pub fn find(name: &str) -> Option<&'static FuzzTarget> {
        TARGETS.iter().find(|t| t.name == name)
    }

    /// Where its seeds are.
    pub fn seeds_file(&self) -> PathBuf {
        let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/seeds"));
        dir.join(self.name).with_extension("hex")
    }

    /// The committed seeds.
    ///
    /// # Panics
    /// When the file is absent or a line is not hexadecimal.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        let path = self.seeds_file();
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let lines = text.lines().filter(|l| !l.starts_with('#'));
        lines.map(|l| testkit::hex(l).unwrap_or_else(|| panic!("{path:?}: {l}"))).collect()
    }
}

/// Does `work` and fails when this thread worked for longer than `ms` milliseconds: time that
/// others had does not count.
fn within<T>(ms: u64, what: &str, work: impl FnOnce() -> T) -> T {
    let start = worked();
    let out = work();
    let took = worked() - start;
    assert!(
        took <= ms * SLOWNESS.load(Ordering::Relaxed) * 1_000_000,
        "{what} took {} ms",
        took / 1_000_000
    );
    out
}

/// Nanoseconds that this thread has run.
fn worked() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
