//! The project's one tool: `cargo xtask layers` and `cargo xtask tidy`.
//!
//! *Place*: support row. Checks the tree; changes nothing.

mod layers;
mod tidy;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    match std::env::args().nth(1).as_deref() {
        Some("layers") => layers::check(&root),
        Some("tidy") => tidy::check(&root),
        _ => bail!("usage: cargo xtask layers|tidy"),
    }
}
