//! Step 2, parse: from a packet's bytes to its key.
//!
//! `parser.rs` parses a burst: profiles of common packets by a SIMD kernel (`profile.rs`, `simd.rs`),
//! everything else by the complete scalar parser (`scalar.rs`), which defines what is right.

pub(crate) mod frame;
pub(crate) mod parser;
pub(crate) mod profile;
pub(crate) mod scalar;
#[cfg(target_arch = "x86_64")]
mod simd;

pub(crate) use parser::Job;
#[cfg(test)]
pub(crate) use parser::port_word;
pub(crate) use profile::ProfileStats;
pub use scalar::extract;
pub(crate) use scalar::*;
