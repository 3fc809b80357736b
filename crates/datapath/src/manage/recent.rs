//! Misses and new flows, for a log that wants them.

use crate::info::FlowDump;
use crate::manage::worker::Handle;
use flow::Key;

/// New flows that are kept, and keys of packets that were missed.
const NEW_FLOWS_MAX: usize = 1024;

/// What came since it was asked for the last time.
#[derive(Default)]
pub(crate) struct Recent {
    /// Flows that were cached; None: none are kept.
    flows: Option<Vec<FlowDump>>,
    /// Keys of packets that were missed, if settings want them.
    missed: Vec<Key>,
}

impl Recent {
    /// A packet was missed.
    pub fn missed(&mut self, key: Key) {
        if self.missed.len() < NEW_FLOWS_MAX {
            self.missed.push(key);
        }
    }

    /// A worker cached a flow.
    pub fn installed(&mut self, w: &mut Handle, idx: u32) {
        if !self.missed.is_empty() {
            w.flows.note_first(idx, &self.missed);
        }
        if let Some(new) = self.flows.as_mut().filter(|n| n.len() < NEW_FLOWS_MAX) {
            new.push(w.flows.describe((w.id, 0), idx));
        }
    }

    /// Takes the flows; None are kept from now on unless the next ones are asked for.
    pub fn take_flows(&mut self, next: bool) -> Vec<FlowDump> {
        std::mem::replace(&mut self.flows, next.then(Vec::new)).unwrap_or_default()
    }

    /// Takes the keys.
    pub fn take_missed(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.missed)
    }
}
