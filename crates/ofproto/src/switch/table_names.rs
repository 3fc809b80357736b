//! Names that controllers give tables. Those of the database (`Flow_Table.name`) go before them.

use crate::bridge::Bridge;
use crate::switch::Switch;
use crate::tables::table::N_TABLES;
use crate::types::BridgeId;
use openflow::{OfError, TableCommand, TableFeatures, TableStats};
use std::collections::BTreeMap;

impl Switch {
    /// Names tables as a table features request says, whose `tables` are by number. It may change
    /// nothing else, and all of it is refused if a part is: [`OfError::TableFeaturesEperm`].
    pub fn name_tables(
        &mut self,
        id: BridgeId,
        command: TableCommand,
        tables: &BTreeMap<u8, TableFeatures>,
    ) -> Result<(), OfError> {
        let b = self.of_bridge_mut(id)?;
        let asked = match command {
            TableCommand::Modify => true,
            // All of them: none can be taken away.
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
    /// The name that a table has in the database.
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

    /// The database gives tables names: controllers' are gone, also when it takes its own back.
    pub fn forget_names(&mut self) {
        for (table, _) in self.config.tables.iter().filter(|(_, t)| !t.name.is_empty()) {
            if let Some(rec) = self.table_recs.get_mut(usize::from(*table)) {
                rec.name.clear();
            }
        }
    }

    /// Can a table be what a controller wants, if it gets another name at most? No name at all is
    /// always granted, and leaves one of the database as it is.
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
