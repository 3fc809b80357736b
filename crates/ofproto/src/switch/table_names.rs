//! Names that controllers give tables. Names in the database (`Flow_Table.name`) take precedence.

use crate::bridge::Bridge;
use crate::switch::Switch;
use crate::tables::table::N_TABLES;
use crate::types::BridgeId;
use openflow::{OfError, TableCommand, TableFeatures, TableStats};
use std::collections::BTreeMap;

impl Switch {
    /// Names tables as a table features request says; `tables` is sorted by number. It may change
    /// nothing else: otherwise all of it is refused with [`OfError::TableFeaturesEperm`].
    pub fn name_tables(
        &mut self,
        id: BridgeId,
        command: TableCommand,
        tables: &BTreeMap<u8, TableFeatures>,
    ) -> Result<(), OfError> {
        let b = self.of_bridge_mut(id)?;
        let asked = match command {
            TableCommand::Modify => true,
            // All of them: no table can be removed.
            TableCommand::Replace => tables.len() == N_TABLES,
            TableCommand::Enable | TableCommand::Disable => false,
        };
        if !asked || !tables.values().all(|t| b.can_be(t)) {
            return Err(OfError::TableFeaturesEperm);
        }
        for (table, wanted) in tables {
            if b.configured_name(*table).is_none() {
                b.table_recs[usize::from(*table)].name.clone_from(&wanted.name);
            }
        }
        Ok(())
    }
}

impl Bridge {
    /// The name that the database gives a table.
    pub fn configured_name(&self, table: u8) -> Option<&str> {
        let config = self.config.tables.get(&table)?;
        Some(config.name.as_str()).filter(|name| !name.is_empty())
    }

    /// The name of a table, as much of it as a message has room for.
    pub fn table_name(&self, table: u8) -> &str {
        let given = &self.table_recs[usize::from(table)].name;
        let name = self.configured_name(table).unwrap_or(given);
        &name[..name.floor_char_boundary(TableFeatures::NAME_BYTES_MAX)]
    }

    /// Removes the names that controllers gave, because the database gives names, or takes its own
    /// back.
    pub fn forget_names(&mut self) {
        for (table, _) in self.config.tables.iter().filter(|(_, t)| !t.name.is_empty()) {
            if let Some(rec) = self.table_recs.get_mut(usize::from(*table)) {
                rec.name.clear();
            }
        }
    }

    /// True if a table can be as a controller wants it with no more than another name. An empty
    /// name is always granted, and keeps one of the database.
    fn can_be(&self, wanted: &TableFeatures) -> bool {
        if usize::from(wanted.table) >= N_TABLES {
            return false;
        }
        let now = self.table_stats(wanted.table);
        let features = TableStats::EVICTION | TableStats::VACANCY;
        let named = wanted.name.is_empty() || wanted.name == now.name;
        wanted.max_entries == now.max_entries
            && wanted.capabilities & features & !now.config == 0
            && wanted.reach.is_some_and(|table| usize::from(table) < N_TABLES)
            && (named || self.configured_name(wanted.table).is_none())
    }
}
