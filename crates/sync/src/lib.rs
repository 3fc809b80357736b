//! Publication of tables from control to packet threads, the bounded queues back, and values that
//! one thread at a time uses.
//!
//! *Place*: ground row. *Knows*: memory ordering and threads. *Does not know*: packets, flows,
//! ports.
//!
//! Invariants
//! - A reader never waits, locks, allocates or makes a system call.
//! - What a writer retires is dropped on the writer's thread, after every registered reader has
//!   passed a quiescent point (QSBR). The quiescent point of a PMD thread is the end of its loop.
#![deny(unsafe_op_in_unsafe_fn)]

mod atomics;
mod place;
mod qsbr;
mod spsc;

pub use place::{Held, Place};
pub use qsbr::{Domain, Grace, Published, Reader};
pub use spsc::{Consumer, Producer, ring};
