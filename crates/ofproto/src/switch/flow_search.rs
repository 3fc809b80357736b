//! Looking for the flows that a statistics request means, a bounded number at a time: a table may
//! have a million, and others wait meanwhile.

use crate::switch::Switch;
use crate::switch::flow_mod::wanted;
use crate::tables::counters::FlowRec;
use crate::tables::table::FlowRule;
use crate::tables::tlv;
use crate::transaction::Select;
use crate::types::BridgeId;
use openflow::{FlowSelect, OfError, TABLE_ALL};
use std::ops::Range;
use std::sync::Arc;

/// Flows that one turn looks at: fewer than a million by far, each of which may be a line of memory
/// that no cache has, and so many that what a turn costs besides does not count.
pub const FLOWS_TURN_MAX: usize = 4096;

/// Flows that a request means, of which some have not been looked for yet.
pub(crate) struct FlowSearch {
    pub bridge: BridgeId,
    pub select: FlowSelect,
    ahead: Ahead,
}

/// What is left to look at.
enum Ahead {
    /// Whatever the tables' indexes lead to, if it is not too much.
    Indexes,
    /// The records with these numbers. A flow has one number as long as it is there, and flows that
    /// are newer than `version` are left out, so that none is met twice: not even one that replaced
    /// another.
    Records {
        version: u64,
        numbers: Range<u32>,
    },
    Nothing,
}

impl FlowSearch {
    /// Has it looked at everything?
    pub fn is_over(&self) -> bool {
        matches!(self.ahead, Ahead::Nothing)
    }
}

impl Switch {
    /// Begins to look for the flows that a request means.
    pub(crate) fn flow_search(
        &self,
        id: BridgeId,
        select: &FlowSelect,
    ) -> Result<FlowSearch, OfError> {
        let matching = tlv::fitted(&self.of_bridge(id)?.tlv, &select.matching)?.into_owned();
        self.tables_of(id, select.table).map(drop)?;
        let select = FlowSelect { matching, ..select.clone() };
        Ok(FlowSearch { bridge: id, select, ahead: Ahead::Indexes })
    }

    /// Looks at no more than [`FLOWS_TURN_MAX`] flows, and gives `each` the wanted ones as they are
    /// now. Every flow that is there from the beginning to the end is given once.
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

    /// All flows that are wanted, by table and number; None if that takes too long.
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

    /// The flow with this number, if it is a wanted one and not newer than `version`.
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
            // A change that is not over has its next form there, or takes it away.
            false => self.successor(search.bridge, rec.table, &rec.rule)?,
        };
        let m = select.matching;
        let is =
            rule.value().id == number && rule.within(&m.key, &m.mask) && wanted(&select, &rule);
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
