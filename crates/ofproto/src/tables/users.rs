//! Which flows name a group or a meter: what a deletion of these deletes as well.

use std::collections::{BTreeSet, HashMap};

/// Numbers of flows, by the group or the meter that they name.
#[derive(Default)]
pub(crate) struct Users(HashMap<u32, BTreeSet<u32>>);

impl Users {
    /// A flow that names `id` comes or goes.
    pub fn note(&mut self, id: u32, flow: u32, comes: bool) {
        let flows = self.0.entry(id).or_default();
        if comes {
            flows.insert(flow);
        } else {
            flows.remove(&flow);
        }
        if flows.is_empty() {
            self.0.remove(&id);
        }
    }

    /// How many flows name it.
    pub fn count(&self, id: u32) -> u32 {
        self.0.get(&id).map_or(0, |flows| flows.len() as u32)
    }

    /// The flows that name one of these, each once.
    pub fn of(&self, ids: impl Iterator<Item = u32>) -> BTreeSet<u32> {
        ids.filter_map(|id| self.0.get(&id)).flatten().copied().collect()
    }
}
