//! Counters, drop reasons and the state tree.
//!
//! *Place*: ground row. *Does not know*: who counts what; names are data.

#![forbid(unsafe_code)]

mod drops;

pub use drops::Drop;
