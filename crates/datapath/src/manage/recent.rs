//! Recent misses and new megaflows, for a log.

use crate::info::FlowDump;
use crate::manage::worker::Handle;
use flow::Key;

/// New megaflows, and keys of missed packets, that are kept at most.
const NEW_FLOWS_MAX: usize = 1024;

/// Misses and new megaflows since they were last taken.
#[derive(Default)]
pub(crate) struct Recent {
    /// New megaflows; None: they are not collected.
    flows: Option<Vec<FlowDump>>,
    /// Keys of missed packets, if settings say that they are reported.
    missed: Vec<Key>,
}

impl Recent {
    /// Adds the key of a missed packet.
    pub fn missed(&mut self, key: Key) {
        if self.missed.len() < NEW_FLOWS_MAX {
            self.missed.push(key);
        }
    }

    /// Adds a megaflow that a worker stored.
    pub fn installed(&mut self, w: &mut Handle, idx: u32) {
        if !self.missed.is_empty() {
            w.flows.note_first(idx, &self.missed);
        }
        if let Some(new) = self.flows.as_mut().filter(|n| n.len() < NEW_FLOWS_MAX) {
            new.push(w.flows.describe((w.id, 0), idx));
        }
    }

    /// Takes the megaflows. They are collected for the next call only if `next`.
    pub fn take_flows(&mut self, next: bool) -> Vec<FlowDump> {
        std::mem::replace(&mut self.flows, next.then(Vec::new)).unwrap_or_default()
    }

    /// Takes the keys.
    pub fn take_missed(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.missed)
    }
}
