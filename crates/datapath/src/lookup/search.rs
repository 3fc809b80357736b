//! The state of a search for a vector's packets, from step to step.

use super::predictor::PREDICTIONS_MAX;
use super::table::port_of;
use crate::batch::keys::Keys;
use packet::VECTOR;

/// Packets of one input port that are looked up together.
#[derive(Clone, Copy, Default)]
pub(super) struct Group {
    /// The input port.
    pub(super) port: usize,
    /// Number of the subtable of the current round.
    pub(super) subtable: usize,
    /// The group's part of `Search::todo` begins here; packets that are found leave it.
    pub(super) from: usize,
    pub(super) end: usize,
    /// End of the group's part after the signature cache was asked.
    pub(super) unknown: usize,
    /// True if the group's packets were looked up in predicted subtables.
    pub(super) predicted: bool,
}

impl Group {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.from..self.end
    }
}

/// The working memory of a search, reused for each vector.
pub(super) struct Search {
    /// Numbers of the packets that are not found yet, group by group.
    pub(super) todo: [u8; VECTOR],
    pub(super) groups: Vec<Group>,
    /// Groups that take part in this round.
    pub(super) round: Vec<u8>,
    /// The predicted subtables of each packet.
    pub(super) near: [[u8; PREDICTIONS_MAX]; VECTOR],
    /// For each packet: true if the subtable may have other candidates for it.
    pub(super) more: [bool; VECTOR],
    /// Numbers of a group's packets whose megaflows may be in their second buckets or in the stash.
    pub(super) far: [u8; VECTOR],
    /// Dead megaflows that lookups met and that are not unlinked yet.
    pub dead: Vec<u32>,
}

impl Search {
    pub fn new() -> Self {
        Search {
            todo: [0; VECTOR],
            groups: Vec::with_capacity(VECTOR),
            round: Vec::with_capacity(VECTOR),
            near: [[0; PREDICTIONS_MAX]; VECTOR],
            more: [false; VECTOR],
            far: [0; VECTOR],
            dead: Vec::new(),
        }
    }

    /// Begins a search for the packets of `todo`, grouped by input port.
    pub(super) fn begin(&mut self, keys: &Keys, todo: &[u8]) {
        self.todo[..todo.len()].copy_from_slice(todo);
        self.groups.clear();
        let mut from = 0;
        while from < todo.len() {
            let port = |i: &u8| port_of(keys.line.0[usize::from(*i)][4]);
            let first = port(&todo[from]);
            let end = from + todo[from..].iter().take_while(|i| port(i) == first).count();
            self.groups.push(Group { port: first.into(), from, end, ..Group::default() });
            from = end;
        }
    }

    /// Number of predicted subtables of the packets that are left of a group.
    pub(super) fn predictions(&self, g: Group) -> u64 {
        let near = self.todo[g.range()].iter().map(|i| &self.near[usize::from(*i)]);
        near.flatten().filter(|subtable| **subtable > 0).count() as u64
    }

    /// Writes the packets that were not found to `todo`, in order.
    pub(super) fn rest(&self, todo: &mut Vec<u8>) {
        todo.clear();
        for g in self.groups.iter().filter(|g| g.from < g.end) {
            todo.extend_from_slice(&self.todo[g.range()]);
        }
    }
}
