//! The types by which a worker and the control side hand over an engine, and by which guests'
//! memory is mapped for engines. The models in `tests/model.rs` and `tests/dma_model.rs` compile
//! the same code with another module of this name, whose types try every order of loads and stores.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
pub(crate) use std::sync::{Mutex as Handed, MutexGuard as HandedGuard};
