//! Cycles that a thread loses because a port's peer violates its protocol.
//!
//! Sending to a guest whose buffers are malformed costs cycles that must not be charged to the
//! senders of the packets. So a driver says what a call lost ([`charge_penalty`]), and the thread
//! does not charge that to the queues whose packets it works on ([`take_penalty`]). It is charged
//! to the guest's own receive queue ([`crate::RxQueue::take_port_penalty`]). Each thread has one
//! word for it: queues that lose nothing have no cost.

use std::cell::Cell;

thread_local! {
    static PENALTY: Cell<u64> = const { Cell::new(0) };
}

/// Records that the current call of a queue on this thread lost this many cycles.
#[cold]
pub fn charge_penalty(cycles: u64) {
    PENALTY.set(PENALTY.get() + cycles);
}

/// The cycles that this thread lost since its last call.
#[inline]
pub fn take_penalty() -> u64 {
    PENALTY.take()
}
