//! Flows of a full table that make room for others.

use openflow::Subfield;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Importance, and when a flow expires, ns.
pub(crate) type Rank = (u16, u64);

/// Value and mask of each subfield by which flows are grouped for eviction.
pub(crate) type Group = Arc<[(u128, u128)]>;

/// The flows of a table that may be evicted, in order: kept from the first time that the table is
/// full and a flow comes, as long as the table evicts.
///
/// A flow that is used expires later, which is noticed only when the flow is next to be evicted.
#[derive(Default)]
pub(crate) struct Victims {
    /// What flows are grouped by.
    fields: Vec<Subfield>,
    /// Records of flows below this number were looked at.
    known: u32,
    /// Flows of each group by rank, as it was when the flow was last looked at.
    groups: BTreeMap<Group, BTreeSet<(Rank, u32)>>,
    /// The groups by size.
    sizes: BTreeSet<(usize, Group)>,
    /// Where each flow is: in a map that never moves all of them, which took 50 ms for 300,000.
    places: BTreeMap<u32, (Group, Rank)>,
}

impl Victims {
    /// An index that groups flows by these fields, and has looked at no flow of its table yet.
    pub fn by(fields: &[Subfield]) -> Victims {
        Victims { fields: fields.to_vec(), ..Victims::default() }
    }

    pub fn fields(&self) -> &[Subfield] {
        &self.fields
    }

    /// Number of flows that may be evicted.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The records that are to be looked at next, `n` at most of these that there are.
    pub fn look(&mut self, n: u32, there_are: u32) -> std::ops::Range<u32> {
        let from = self.known;
        self.known = from.saturating_add(n).min(there_are).max(from);
        from..self.known
    }

    /// The flow that is to go first, of the group with the most flows.
    pub fn first(&self) -> Option<(Rank, u32)> {
        let (_, group) = self.sizes.last()?;
        self.groups.get(group)?.first().copied()
    }

    /// Adds a flow.
    pub fn add(&mut self, id: u32, group: Group, rank: Rank) {
        self.remove(id);
        self.resize(&group, |flows| flows.insert((rank, id)));
        self.places.insert(id, (group, rank));
    }

    /// Removes a flow; it need not be there.
    pub fn remove(&mut self, id: u32) {
        if let Some((group, rank)) = self.places.remove(&id) {
            self.resize(&group, |flows| flows.remove(&(rank, id)));
        }
    }

    /// Gives a flow its rank as it is now; None: it never expires.
    pub fn set_rank(&mut self, id: u32, rank: Option<Rank>) {
        let Some((group, _)) = self.places.get(&id) else { return };
        let group = group.clone();
        match rank {
            Some(rank) => self.add(id, group, rank),
            None => self.remove(id),
        }
    }

    fn resize(&mut self, group: &Group, change: impl FnOnce(&mut BTreeSet<(Rank, u32)>) -> bool) {
        let flows = self.groups.entry(group.clone()).or_default();
        let before = flows.len();
        change(flows);
        let after = flows.len();
        if after == 0 {
            self.groups.remove(group);
        }
        self.sizes.remove(&(before, group.clone()));
        if after > 0 {
            self.sizes.insert((after, group.clone()));
        }
    }
}
