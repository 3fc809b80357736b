//! Searches the flows that a statistics request selects, a bounded number at a time: a table may
//! have a million flows, and other work must not wait for that.

use crate::switch::Switch;
use crate::switch::flow_mod::wanted;
use crate::tables::counters::FlowRec;
use crate::tables::table::{FlowRule, packet_type_fits};
use crate::tables::tlv;
use crate::transaction::Select;
use crate::types::BridgeId;
use openflow::{FlowSelect, Loose, OfError, TABLE_ALL};
use std::ops::Range;
use std::sync::Arc;

/// Flows that one turn examines. Far fewer than a million, each of which may be a cache miss; and
/// so many that the fixed cost of a turn does not matter.
pub const FLOWS_TURN_MAX: usize = 4096;

/// A search for the flows that a request selects.
pub(crate) struct FlowSearch {
    pub bridge: BridgeId,
    pub select: FlowSelect,
    ahead: Ahead,
}

/// What is left to be examined.
enum Ahead {
    /// The flows that the tables' indexes lead to, if they are not too many.
    Indexes,
    /// The records with these numbers. A flow keeps its number as long as it exists, and flows that
    /// are newer than `version` are left out, so no flow is found twice, not even one that replaced
    /// another.
    Records {
        version: u64,
        numbers: Range<u32>,
    },
    Nothing,
}

impl FlowSearch {
    /// True if everything was examined.
    pub fn is_over(&self) -> bool {
        matches!(self.ahead, Ahead::Nothing)
    }
}

impl Switch {
    /// Begins a search for the flows that a request selects.
    pub(crate) fn flow_search(
        &self,
        id: BridgeId,
        select: &FlowSelect,
    ) -> Result<FlowSearch, OfError> {
        let matching =
            tlv::fitted(&self.of_bridge(id)?.options.tlv, &select.matching)?.into_owned();
        self.tables_of(id, select.table).map(drop)?;
        let select = FlowSelect { matching, ..select.clone() };
        Ok(FlowSearch { bridge: id, select, ahead: Ahead::Indexes })
    }

    /// Examines at most [`FLOWS_TURN_MAX`] flows, and calls `each` with the selected ones as they
    /// are now. Every flow that exists from the beginning to the end is found once.
    pub(crate) fn search_on(
        &self,
        search: &mut FlowSearch,
        each: &mut dyn FnMut(&FlowRec, &Arc<FlowRule>),
    ) {
        match &mut search.ahead {
            Ahead::Nothing => {}
            Ahead::Indexes => match self.by_indexes(search) {
                Some(found) => {
                    search.ahead = Ahead::Nothing;
                    for rule in found {
                        self.slots.flow(rule.value().id).into_iter().for_each(|r| each(r, &rule));
                    }
                }
                None => {
                    let numbers = 0..self.slots.len() as u32;
                    search.ahead = Ahead::Records { version: self.version(), numbers };
                }
            },
            Ahead::Records { version, numbers } => {
                let (born, from) = (*version, numbers.start);
                let to = numbers.end.min(from.saturating_add(FLOWS_TURN_MAX as u32));
                numbers.start = to;
                if to == numbers.end {
                    search.ahead = Ahead::Nothing;
                }
                for number in from..to {
                    if let Some((rec, rule)) = self.by_record(search, number, born) {
                        each(rec, &rule);
                    }
                }
            }
        }
    }

    /// All selected flows, by table and number; None: examining them would take too long.
    fn by_indexes(&self, search: &FlowSearch) -> Option<Vec<Arc<FlowRule>>> {
        let (version, select) = (self.version(), Select::from(&search.select));
        let mut looks = FLOWS_TURN_MAX;
        let mut found = Vec::new();
        for (_, table) in self.tables_of(search.bridge, select.table).ok()? {
            let from = found.len();
            let matching = select.matching;
            found.extend(table.within_few(matching, version, &mut looks, |r| wanted(&select, r))?);
            found[from..].sort_unstable_by_key(|rule: &Arc<FlowRule>| rule.value().id);
        }
        Some(found)
    }

    /// The flow with this number, if it is selected and not newer than `version`.
    fn by_record(
        &self,
        search: &FlowSearch,
        number: u32,
        version: u64,
    ) -> Option<(&FlowRec, Arc<FlowRule>)> {
        let select = Select::from(&search.select);
        let rec = self.slots.flow(number)?;
        let table = select.table == TABLE_ALL || select.table == rec.table;
        if rec.bridge != search.bridge.0 || !table || rec.born > version {
            return None;
        }
        let rule = match rec.rule.visible(self.version()) {
            true => rec.rule.clone(),
            // An open change has put its next form there, or is removing it.
            false => self.successor(search.bridge, rec.table, &rec.rule)?,
        };
        let loose = Loose::new(select.matching);
        let fits = rule.within(loose.key, &loose.mask) && packet_type_fits(&loose, &rule);
        let is = rule.value().id == number && fits && wanted(&select, &rule);
        is.then_some((rec, rule))
    }

    /// The visible flow with a rule's table, match and priority.
    pub(crate) fn successor(
        &self,
        id: BridgeId,
        table: u8,
        rule: &FlowRule,
    ) -> Option<Arc<FlowRule>> {
        let t = self.bridge(id).ok()?.tables.get(table)?;
        t.find_exact(&rule.key(), &rule.mask(), rule.priority(), self.version())
    }
}
