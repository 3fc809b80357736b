//! Packets of the control side that wait for the worker to do something with them.

use super::fragments::Held;
use crate::messages::Execute;
use std::collections::VecDeque;

/// A packet of the control side, or what is left to do with one.
pub(crate) enum Work {
    /// A packet with which nothing was done yet.
    All(Box<Execute>),
    /// The rest of a packet's operations.
    Rest(Box<Held>),
}

/// Packets that are to be injected, in order.
#[derive(Default)]
pub(crate) struct Injected {
    work: VecDeque<Work>,
    sent: u64,
}

impl Injected {
    /// The control side sends a packet.
    pub fn push(&mut self, packet: Box<Execute>) {
        self.sent += 1;
        self.work.push_back(Work::All(packet));
    }

    /// Takes what is to be done next.
    pub fn next(&mut self) -> Option<Work> {
        self.work.pop_front()
    }

    /// Puts the rest of a packet's operations in front of all other packets.
    pub fn go_on(&mut self, rest: Held) {
        self.work.push_front(Work::Rest(Box::new(rest)));
    }

    /// Puts the rest of a packet's operations behind all other packets.
    pub fn wait(&mut self, rest: Held) {
        self.work.push_back(Work::Rest(Box::new(rest)));
    }

    /// Number of packets that the control side has sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// True if nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }
}
