//! Cycles that a thread loses because the other side of a port violates its protocol.
//!
//! Sending to a guest whose buffers are malformed costs cycles that the senders of the packets must
//! not pay for. So a driver says what a call lost ([`charge_penalty`]), and the thread that called
//! it does not charge that to the queues whose packets it works on ([`take_penalty`]); the guest's
//! own receive queue owes it ([`crate::RxQueue::take_port_penalty`]). A word of the thread's:
//! queues that lose nothing pay nothing for it.

use std::cell::Cell;

thread_local! {
    static PENALTY: Cell<u64> = const { Cell::new(0) };
}

/// The call of a queue that is under way on this thread lost so many cycles.
#[cold]
pub fn charge_penalty(cycles: u64) {
    PENALTY.set(PENALTY.get() + cycles);
}

/// Cycles that this thread lost since it asked last.
#[inline]
pub fn take_penalty() -> u64 {
    PENALTY.take()
}
