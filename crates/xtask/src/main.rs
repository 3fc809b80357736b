//! The project's one tool: `cargo xtask circles`, `docs`, `layers`, `names` and `tidy`.
//!
//! *Place*: support row. Checks the tree; changes nothing.

#![forbid(unsafe_code)]

mod circles;
mod docs;
mod layers;
mod names;
mod tidy;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    match std::env::args().nth(1).as_deref() {
        Some("circles") => circles::check(&root),
        Some("docs") => docs::check(&root),
        Some("layers") => layers::check(&root),
        Some("names") => names::check(&root),
        Some("tidy") => tidy::check(&root),
        _ => bail!("usage: cargo xtask circles|docs|layers|names|tidy"),
    }
}
