//! The lookup step: finds each packet's megaflow, in the signature cache, then in the megaflow
//! table (`table.rs`). A packet without a megaflow is a miss.
//!
//! A packet with the same key as the packet before it is not looked up: it takes the same megaflow.

mod candidates;
mod classify;
pub(crate) mod compare;
pub(crate) mod flow_store;
pub(crate) mod mask;
pub(crate) mod port_classifier;
pub(crate) mod predictor;
pub(crate) mod recirc_memo;
mod search;
mod signature_cache;
mod subtable;
mod subtable_memo;
pub(crate) mod table;
#[cfg(test)]
mod table_tests;
mod through_cache;

use crate::batch::Batch;
use crate::lookup::table::Table;
use crate::report::Reports;
use crate::settings::Settings;
use crate::verify::Twin;
use packet::VECTOR;

/// Looks up the packets of a worker.
pub(crate) struct Lookup {
    pub table: Table,
    /// Compare each packet's megaflow with what its subtables say.
    validate: bool,
    /// Packets of this vector that no megaflow matches, in order.
    pub missed: Vec<u8>,
    /// The first packet of each run of packets with the same key.
    leaders: [u8; VECTOR],
    /// Number of runs.
    runs: usize,
}

impl Lookup {
    /// A lookup whose table is empty and has room for `capacity` megaflows.
    pub fn new(capacity: usize) -> Self {
        Lookup {
            table: Table::new(capacity),
            validate: false,
            missed: Vec::with_capacity(VECTOR),
            leaders: [0; VECTOR],
            runs: 0,
        }
    }

    /// Takes over new settings.
    pub fn configure(&mut self, s: &Settings) {
        self.table.level = s.lookup_level();
        self.table.own_masks = s.debug.own_masks;
        self.validate = s.validate;
    }

    /// Sets the megaflow and program of each packet; the numbers of packets without one are in
    /// `missed` then.
    pub fn classify(&mut self, batch: &mut Batch, reports: &mut Reports) {
        if batch.preset_count == batch.len() && !self.validate {
            return self.missed.clear();
        }
        let mut todo = std::mem::take(&mut self.missed);
        self.leaders(batch, &mut todo);
        self.table.classify(&mut batch.keys, &mut todo);
        if self.validate {
            self.validate_lookup(batch, &todo, reports);
        }
        if self.runs < batch.len() {
            self.follow(batch, &mut todo);
        }
        self.missed = todo;
    }

    /// The lookup's twin: a megaflow that was found covers its packet, and for a packet without one
    /// no subtable of its port has any.
    fn validate_lookup(&self, batch: &Batch, missed: &[u8], reports: &mut Reports) {
        let leaders = &self.leaders[..self.runs];
        let found = leaders.iter().filter_map(|i| {
            let key = batch.keys.get(usize::from(*i));
            let megaflow =
                (batch.keys.megaflow[usize::from(*i)], batch.keys.program[usize::from(*i)]);
            self.table.compare(&key, (!missed.contains(i)).then_some(megaflow))
        });
        let found: Vec<_> = found.collect();
        reports.count_validated(Twin::Megaflows, leaders.len(), found);
    }

    /// Collects the packets that need a lookup: those whose key is not that of the packet before
    /// them.
    fn leaders(&mut self, batch: &Batch, todo: &mut Vec<u8>) {
        let mut runs = 0;
        for (i, same) in batch.columns.same[..batch.packets.len()].iter().enumerate() {
            self.leaders[runs] = i as u8;
            runs += !same as usize;
        }
        self.runs = runs;
        todo.clear();
        todo.extend_from_slice(&self.leaders[..runs]);
        if batch.preset_count > 0 {
            leave_out_preset(todo, &batch.columns.preset);
        }
    }

    /// Gives the other packets of each run the megaflow of its first. If the first has none, each
    /// packet of the run is a miss of its own.
    fn follow(&mut self, batch: &mut Batch, todo: &mut Vec<u8>) {
        let mut missed = [false; VECTOR];
        todo.iter().for_each(|i| missed[*i as usize] = true);
        let (before, mut hits) = (todo.len(), 0);
        for run in 0..self.runs {
            let leader = self.leaders[run] as usize;
            let end = match run + 1 < self.runs {
                true => self.leaders[run + 1] as usize,
                false => batch.packets.len(),
            };
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
        self.table.followed(hits);
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
