//! Whose turn it is.

use flow::PortNo;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;
use tokio::sync::Notify;

/// Devices whose traffic control is not as it is to be yet.
#[derive(Default)]
pub struct Due {
    pub(super) ports: BTreeSet<PortNo>,
    /// The one that had the last turn.
    last: PortNo,
    /// Notified when some are due.
    pub(super) wake: Rc<Notify>,
}

impl Due {
    pub(super) fn add(&mut self, no: PortNo) {
        self.ports.insert(no);
        self.wake.notify_one();
    }

    /// Who has the next turn: each has one after the other.
    pub(super) fn next(&mut self) -> Option<PortNo> {
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.ports.range(after).next().or_else(|| self.ports.first()).copied()?;
        self.last = next;
        Some(next)
    }
}

/// Ports about whose queues the kernel is to be asked ([`super::counters`]).
#[derive(Default)]
pub struct Asked {
    /// The ports that the kernel was not asked about yet, each once, in turn.
    pub(super) due: Due,
    /// The port that the kernel is being asked about; None: it is not asked.
    pub(super) current: Option<PortNo>,
    /// Number of questions that were begun since the start; the last one has this number.
    pub(super) begun: u64,
}
