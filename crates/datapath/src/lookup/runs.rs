//! Runs of packets that need one lookup together: those that differ from the packet before them in
//! nothing that matters ([`Columns::same`](crate::batch::columns::Columns::same)).

use crate::batch::Batch;
use crate::lookup::table::Table;
use packet::VECTOR;

/// The runs of a vector.
pub(super) struct Runs {
    /// The first packet of each run.
    leaders: [u8; VECTOR],
    /// Number of runs.
    len: usize,
}

impl Runs {
    pub fn new() -> Self {
        Runs { leaders: [0; VECTOR], len: 0 }
    }

    /// Collects the packets that need a lookup: the first of each run.
    pub fn find(&mut self, batch: &Batch, todo: &mut Vec<u8>) {
        let mut runs = 0;
        for (i, same) in batch.columns.same[..batch.packets.len()].iter().enumerate() {
            self.leaders[runs] = i as u8;
            runs += !same as usize;
        }
        self.len = runs;
        todo.clear();
        todo.extend_from_slice(&self.leaders[..runs]);
        if batch.preset_count > 0 {
            leave_out_preset(todo, &batch.columns.preset);
        }
    }

    /// Gives the other packets of each run the megaflow of its first. If the first has none, each
    /// packet of the run is a miss of its own.
    pub fn follow(&self, batch: &mut Batch, table: &mut Table, todo: &mut Vec<u8>) {
        if self.len == batch.len() {
            return;
        }
        let mut missed = [false; VECTOR];
        todo.iter().for_each(|i| missed[*i as usize] = true);
        let (before, mut hits) = (todo.len(), 0);
        for run in 0..self.len {
            let leader = self.leaders[run] as usize;
            let end = match run + 1 < self.len {
                true => self.leaders[run + 1] as usize,
                false => batch.packets.len(),
            };
            if end == leader + 1 {
                continue;
            }
            if missed[leader] {
                todo.extend((leader + 1..end).map(|i| i as u8));
            } else {
                let (first, rest) = (batch.keys.megaflow[leader], leader + 1..end);
                batch.keys.megaflow[rest.clone()].fill(first);
                let first = batch.keys.program[leader];
                hits += rest.len() as u64;
                batch.keys.program[rest].fill(first);
            }
        }
        table.followed(hits);
        if todo.len() > before {
            todo.sort_unstable();
        }
    }
}

/// Removes preset packets from `todo`, without a branch for each.
fn leave_out_preset(todo: &mut Vec<u8>, preset: &[bool; VECTOR]) {
    let mut left = 0;
    for n in 0..todo.len() {
        todo[left] = todo[n];
        left += usize::from(!preset[usize::from(todo[n])]);
    }
    todo.truncate(left);
}
