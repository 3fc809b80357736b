//! Changes of ports, and the decisions that they concern.
//!
//! A decision depends on a port of a bridge if its packets came in by the port (a region says
//! that), if it sends packets to the port, if it encapsulates packets that leave by the port's
//! device, or if it asked which ports the bridge has: it floods, names a port that does not exist
//! or takes no packets, or chooses by what is live. Such a decision has the bridge's
//! [`ports_credit`](crate::published::BridgeView::ports_credit) among its counters.

use crate::translate::effects::Effects;
use action::{CachedDecision, sends_to};
use flow::PortNo;
use std::collections::BTreeSet;

/// Changes since they were last taken.
#[derive(Default)]
pub(crate) struct PortChanges {
    /// Datapath ports.
    pub ports: BTreeSet<PortNo>,
    /// Names of the ports' devices.
    pub devices: BTreeSet<String>,
    /// The counters of decisions that asked which ports the bridge has.
    pub credits: BTreeSet<u32>,
}

impl PortChanges {
    /// True if no port changed.
    pub fn is_empty(&self) -> bool {
        self.credits.is_empty()
    }

    /// True if the decision may be another one now. Packets that came in by the ports are not
    /// asked about.
    pub fn reach(&self, d: &CachedDecision<'_>) -> bool {
        let by_device = |e: &Effects| {
            let mut answers = e.asked.iter().filter_map(|a| a.answer.as_ref());
            answers.any(|a| self.devices.contains(&a.device))
        };
        d.credits.iter().any(|c| self.credits.contains(c))
            || sends_to(d.ops, &|port| self.ports.contains(&port))
            || d.effects.and_then(|e| e.downcast_ref()).is_some_and(by_device)
    }
}
