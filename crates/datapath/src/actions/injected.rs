//! Packets of the control side whose operations are not finished.

use super::fragments::Paused;
use crate::messages::Execute;
use std::collections::VecDeque;

/// A packet of the control side, or the rest of its operations.
pub(crate) enum Work {
    /// A packet none of whose operations was executed.
    All(Box<Execute>),
    /// The rest of a packet's operations.
    Rest(Box<Paused>),
}

/// Packets that are to be injected, in order.
#[derive(Default)]
pub(crate) struct Injected {
    work: VecDeque<Work>,
    /// Packets that the control side has sent so far.
    sent: u64,
    /// Packets that are known to be done.
    done: u64,
}

impl Injected {
    /// Adds a packet of the control side behind all others.
    pub fn push(&mut self, packet: Box<Execute>) {
        self.sent += 1;
        self.work.push_back(Work::All(packet));
    }

    /// Takes the next packet, or rest of one.
    pub fn next(&mut self) -> Option<Work> {
        self.work.pop_front()
    }

    /// Puts the rest of a packet's operations in front of all other packets.
    pub fn push_front(&mut self, rest: Paused) {
        self.work.push_front(Work::Rest(Box::new(rest)));
    }

    /// Puts the rest of a packet's operations behind all other packets.
    pub fn wait(&mut self, rest: Paused) {
        self.work.push_back(Work::Rest(Box::new(rest)));
    }

    /// Ends an iteration, in which packets were also looked up again. Returns the number of packets
    /// that are done, if it has grown.
    #[inline]
    pub fn end_iteration(&mut self) -> Option<u64> {
        let has_grown = self.done != self.sent && self.work.is_empty();
        has_grown.then(|| {
            self.done = self.sent;
            self.done
        })
    }

    /// True if no packet is left.
    pub fn is_empty(&self) -> bool {
        self.work.is_empty()
    }
}
