//! The lookup step: finds each packet's megaflow, in the signature cache, then in the megaflow
//! table (`table.rs`). A packet without a megaflow is a miss.
//!
//! A packet that differs from the packet before it in nothing that a megaflow of their port matches
//! on is not looked up: it takes the same megaflow.

mod candidates;
mod classify;
pub(crate) mod compare;
pub(crate) mod flow_store;
pub(crate) mod mask;
pub(crate) mod port_classifier;
pub(crate) mod predictor;
pub(crate) mod recirc_memo;
mod runs;
mod search;
mod signature_cache;
mod subtable;
mod subtable_memo;
pub(crate) mod table;
#[cfg(test)]
mod table_tests;
mod through_cache;

use crate::batch::Batch;
use crate::lookup::runs::Runs;
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
    runs: Runs,
}

impl Lookup {
    /// A lookup whose table is empty and has room for `capacity` megaflows.
    pub fn new(capacity: usize) -> Self {
        Lookup {
            table: Table::new(capacity),
            validate: false,
            missed: Vec::with_capacity(VECTOR),
            runs: Runs::new(),
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
        self.runs.find(batch, &mut todo);
        self.table.classify(&mut batch.keys, &mut todo);
        self.runs.follow(batch, &mut self.table, &mut todo);
        if self.validate {
            self.validate_lookup(batch, &todo, reports);
        }
        self.missed = todo;
    }

    /// The lookup's twin: a megaflow that was found covers its packet, and for a packet without one
    /// no subtable of its port has any.
    fn validate_lookup(&self, batch: &Batch, missed: &[u8], reports: &mut Reports) {
        let found = (0..batch.len()).filter_map(|i| {
            let megaflow = (batch.keys.megaflow[i], batch.keys.program[i]);
            let hit = !missed.contains(&(i as u8));
            self.table.compare(&batch.keys.get(i), hit.then_some(megaflow))
        });
        let found: Vec<_> = found.collect();
        reports.count_validated(Twin::Megaflows, batch.len(), found);
    }
}
