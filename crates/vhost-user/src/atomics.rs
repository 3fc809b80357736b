//! The types by which a worker and the control side hand over an engine. The model in
//! `tests/model.rs` compiles the same code with another module of this name, whose types try every
//! order of loads and stores.

pub(crate) use std::sync::Mutex as Handed;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
