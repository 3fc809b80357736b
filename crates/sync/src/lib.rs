//! Publication of tables from the control side to packet threads, bounded queues in the other
//! direction, and values that one thread at a time uses; prefetching and the time-stamp counter;
//! peers that have a thread wait.
//!
//! *Place*: ground row. *Knows*: memory ordering and threads. *Does not know*: packets, flows,
//! ports.
//!
//! Invariants
//! - A reader never waits, locks, allocates or makes a system call.
//! - What is retired is dropped on the thread of the domain's one [`Writer`], after every
//!   registered reader has passed a quiescent point (QSBR). The quiescent point of a PMD thread is
//!   the end of its loop.
//! - A reader has a [`Guard`], which the references that it reads cannot outlive: the compiler ends
//!   both before the next quiescent point.
#![deny(unsafe_op_in_unsafe_fn)]

mod atomics;
mod cpu;
mod link;
mod place;
mod qsbr;
mod spsc;
pub mod waits;

pub use cpu::{cycles, prefetch, prefetch_write};
pub use link::{Link, Slot};
pub use place::{Held, Place};
pub use qsbr::{Domain, Grace, Guard, Published, Reader, Writer};
pub use spsc::{Consumer, Producer, ring};
