//! Flows of a full table that make room for others.

use crate::tables::table::FlowRule;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// In a table of so many flows each eviction takes the flow that is least important then.
const EXACT_FLOWS_MAX: usize = 1024;
/// In a larger one, so many flows are visited for each that is evicted.
const VISITS_PER_VICTIM: usize = 16;
/// How long a list of flows to be evicted holds, ns: flows that come meanwhile are not on it.
const LIST_NS_MAX: u64 = 1_000_000_000;

/// Importance, and when a flow expires, ns.
pub(crate) type Rank = (u16, u64);

/// A flow, and its rank when it was put on the list.
pub(crate) type Victim = (Rank, Arc<FlowRule>);

/// Flows of a table that are evicted next.
#[derive(Clone, Default)]
pub(crate) struct Victims {
    /// The next one is the last.
    list: Vec<Victim>,
    until: u64,
    /// No flow of a large table has a timeout.
    barren: bool,
}

impl Victims {
    /// Of a table of so many flows, by eviction groups: of the group with the most flows the one of
    /// least importance, and of several the one that expires first, and so on. Of a large table a
    /// sixteenth is listed.
    pub fn of(flows: usize, mut groups: Vec<Vec<Victim>>, now: u64) -> Victims {
        let wanted = if flows <= EXACT_FLOWS_MAX { 1 } else { flows / VISITS_PER_VICTIM };
        for group in &mut groups {
            group.sort_by_key(|(rank, _)| *rank);
            group.reverse();
        }
        let mut sizes: BinaryHeap<_> =
            groups.iter().enumerate().map(|(i, group)| (group.len(), i)).collect();
        let mut list = Vec::new();
        while list.len() < wanted
            && let Some((size, i)) = sizes.pop()
        {
            list.extend(groups[i].pop());
            if size > 1 {
                sizes.push((size - 1, i));
            }
        }
        list.reverse();
        let barren = list.is_empty() && flows > EXACT_FLOWS_MAX;
        Victims { list, until: now.saturating_add(LIST_NS_MAX), barren }
    }

    /// Is it known that there is none?
    pub fn is_barren(&self, now: u64) -> bool {
        self.barren && now < self.until
    }

    /// The next one; None: the table has to be looked at again.
    pub fn next(&mut self, now: u64) -> Option<Victim> {
        self.list.pop().filter(|_| now < self.until)
    }
}
