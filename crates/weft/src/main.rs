//! See the crate's Cargo.toml; under construction.
fn main() {}
