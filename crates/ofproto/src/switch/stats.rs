//! Statistics requests.

use crate::bridge::Bridge;
use crate::events::Event;
use crate::switch::Switch;
use crate::switch::flow_mod::wanted;
use crate::switch::flow_search::FlowSearch;
use crate::tables::counters::FlowRec;
use crate::tables::table::{FlowRule, N_TABLES, match_of};
use crate::transaction::Select;
use crate::types::{BridgeId, ConfigError};
use openflow::{FlowSelect, FlowStats, OfError, TABLE_ALL, TableStats, flow_flag};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const NS: u64 = 1_000_000_000;

/// Flows that a request selects, which are read part by part ([`Switch::dump`]). Every flow that
/// exists from the beginning to the end is returned once, whatever else changes meanwhile.
pub struct Dump {
    search: FlowSearch,
    /// Rules that were found and not returned yet, by table.
    found: BTreeMap<u8, VecDeque<Arc<FlowRule>>>,
}

impl Dump {
    /// Memory that this keeps to remember the flows that were found, bytes. Flows that are removed
    /// meanwhile are kept in addition.
    pub fn held(&self) -> usize {
        self.found.values().map(|rules| rules.capacity() * size_of::<Arc<FlowRule>>()).sum()
    }
}

/// Sums over the flows that a request selects, which are counted part by part
/// ([`Switch::aggregate`]).
pub struct Aggregate {
    search: FlowSearch,
    /// Packets of flows that count them.
    pub packets: u64,
    /// Bytes of flows that count them.
    pub bytes: u64,
    /// Number of flows.
    pub flows: u32,
}

impl<'a> From<&'a FlowSelect> for Select<'a> {
    fn from(s: &'a FlowSelect) -> Self {
        Select {
            table: s.table,
            matching: &s.matching,
            priority: None,
            cookie: s.cookie,
            cookie_mask: s.cookie_mask,
            out_port: s.out_port,
            out_group: s.out_group,
        }
    }
}

impl Switch {
    /// Statistics of a flow with this rule and record.
    pub(crate) fn stats_of(&self, rule: &FlowRule, rec: &FlowRec, now: u64) -> FlowStats {
        let flow = rule.value();
        let kept = |flag, n| if rec.flags & flag == 0 { n } else { u64::MAX };
        let age = |since: u64| Some((now.saturating_sub(since) / NS) as u32);
        FlowStats {
            table: rec.table,
            priority: rule.priority(),
            matching: match_of(rule),
            cookie: flow.cookie,
            idle_timeout: rec.idle,
            hard_timeout: rec.hard,
            importance: rec.importance,
            flags: rec.flags,
            duration_ns: now.saturating_sub(rec.created),
            idle_age: age(rec.used),
            hard_age: age(rec.modified),
            packets: kept(flow_flag::NO_PKT_COUNTS, rec.count.packets),
            bytes: kept(flow_flag::NO_BYT_COUNTS, rec.count.bytes),
            instructions: flow.instructions.to_vec(),
        }
    }

    /// Begins to read the flows that a request selects.
    pub fn dump(&self, id: BridgeId, select: &FlowSelect) -> Result<Dump, OfError> {
        let mut dump = Dump { search: self.flow_search(id, select)?, found: BTreeMap::new() };
        self.find_more(&mut dump);
        Ok(dump)
    }

    /// Searches flows for one turn.
    fn find_more(&self, dump: &mut Dump) {
        self.search_on(&mut dump.search, &mut |rec, rule| {
            dump.found.entry(rec.table).or_default().push_back(rule.clone());
        });
    }

    /// Calls `each` with the next `n` flows, by table, as they are now, without flows that were
    /// removed meanwhile. The search comes first, [`FLOWS_TURN_MAX`](crate::FLOWS_TURN_MAX) flows
    /// with each call: until it ends there are no flows. False: there are no more.
    pub fn dump_next(
        &self,
        dump: &mut Dump,
        n: usize,
        now: u64,
        each: &mut dyn FnMut(FlowStats),
    ) -> bool {
        if !dump.search.is_over() {
            self.find_more(dump);
            return true;
        }
        let version = self.version();
        let mut left = n;
        while left > 0
            && let Some(mut of_table) = dump.found.first_entry()
        {
            let table = *of_table.key();
            let Some(rule) = of_table.get_mut().pop_front() else {
                of_table.remove();
                continue;
            };
            left -= 1;
            let rule = match rule.visible(version) {
                true => Some(rule),
                // The flow was modified or replaced: the flow in its place counts, if it is still
                // selected.
                false => self
                    .successor(dump.search.bridge, table, &rule)
                    .filter(|r| wanted(&Select::from(&dump.search.select), r)),
            };
            if let Some(rule) = rule
                && let Some(rec) = self.slots.flow(rule.value().id)
            {
                each(self.stats_of(&rule, rec, now));
            }
        }
        dump.found.values().any(|rules| !rules.is_empty())
    }

    /// Calls `each` for every selected flow.
    pub fn each_flow(
        &self,
        id: BridgeId,
        s: &FlowSelect,
        now: u64,
        each: &mut dyn FnMut(FlowStats),
    ) -> Result<(), OfError> {
        let mut dump = self.dump(id, s)?;
        while self.dump_next(&mut dump, usize::MAX, now, each) {}
        Ok(())
    }

    /// All selected flows.
    pub fn flow_stats(
        &self,
        id: BridgeId,
        s: &FlowSelect,
        now: u64,
    ) -> Result<Vec<FlowStats>, OfError> {
        let mut out = Vec::new();
        self.each_flow(id, s, now, &mut |f| out.push(f))?;
        Ok(out)
    }

    /// Begins to sum up the flows that a request selects.
    pub fn aggregate(&self, id: BridgeId, s: &FlowSelect) -> Result<Aggregate, OfError> {
        Ok(Aggregate { search: self.flow_search(id, s)?, packets: 0, bytes: 0, flows: 0 })
    }

    /// Continues with at most [`FLOWS_TURN_MAX`](crate::FLOWS_TURN_MAX) flows. False: the sums are
    /// complete.
    pub fn aggregate_next(&self, sums: &mut Aggregate) -> bool {
        let Aggregate { search, packets, bytes, flows } = sums;
        self.search_on(search, &mut |rec, _| {
            let kept = |flag, n| if rec.flags & flag == 0 { n } else { 0 };
            *flows += 1;
            *packets = packets.saturating_add(kept(flow_flag::NO_PKT_COUNTS, rec.count.packets));
            *bytes = bytes.saturating_add(kept(flow_flag::NO_BYT_COUNTS, rec.count.bytes));
        });
        !search.is_over()
    }

    /// Statistics of all tables of a bridge.
    pub fn table_stats(&self, id: BridgeId) -> Result<Vec<TableStats>, OfError> {
        let b = self.of_bridge(id)?;
        Ok((0..N_TABLES as u8).map(|table| b.table_stats(table)).collect())
    }

    /// Sends a table-status event for each table whose share of free places crossed a threshold
    /// that a controller set.
    pub(crate) fn watch_vacancies(&mut self, id: BridgeId) {
        let Ok(b) = self.bridge_mut(id) else { return };
        let mut events = Vec::new();
        for table in b.vacancies.clone() {
            let free = b.table_stats(table).free_percent();
            let rec = &mut b.table_recs[usize::from(table)];
            let Some([down, up]) = rec.vacancy else { continue };
            if if rec.scarce { free > up } else { free < down } {
                rec.scarce = !rec.scarce;
                let more = !rec.scarce;
                events.push(Event::TableStatus(id, more, Box::new(b.table_stats(table))));
            }
        }
        self.outbox.events.append(&mut events);
    }

    /// Sets eviction and the vacancy thresholds (percent of free places, lower and upper) of a
    /// table, or of all ([`TABLE_ALL`]).
    pub fn table_mod(
        &mut self,
        id: BridgeId,
        table: u8,
        evict: bool,
        vacancy: Option<[u8; 2]>,
    ) -> Result<(), OfError> {
        if table != TABLE_ALL && usize::from(table) >= N_TABLES {
            return Err(OfError::TableModBadTable);
        }
        let b = self.of_bridge_mut(id)?;
        for table in (0..N_TABLES as u8).filter(|t| table == TABLE_ALL || *t == table) {
            let free = b.table_stats(table).free_percent();
            let rec = &mut b.table_recs[usize::from(table)];
            (rec.evict, rec.vacancy) = (evict, vacancy);
            rec.scarce = vacancy.is_some_and(|[_, up]| free < up);
        }
        b.forget_victims();
        b.vacancies = (0..N_TABLES as u8)
            .filter(|t| b.table_recs[usize::from(*t)].vacancy.is_some())
            .collect();
        Ok(())
    }

    /// Number of flows of a bridge.
    pub fn n_flows(&self, id: BridgeId) -> Result<usize, ConfigError> {
        Ok(self.bridge(id)?.table_recs.iter().map(|r| r.active as usize).sum())
    }
}

impl Bridge {
    /// Statistics of a table.
    pub fn table_stats(&self, table: u8) -> TableStats {
        let (rec, config) = (&self.table_recs[usize::from(table)], self.config.tables.get(&table));
        TableStats {
            table,
            name: self.table_name(table).into(),
            max_entries: config.and_then(|t| t.limit).unwrap_or(1_000_000),
            active: rec.active,
            lookups: rec.matched + rec.missed,
            matched: rec.matched,
            config: if self.evicts(table) { TableStats::EVICTION } else { 0 }
                | if rec.vacancy.is_some() { TableStats::VACANCY } else { 0 }
                | self.config.misses.get(&table).map_or(0, |miss| *miss as u32),
            vacancy: rec.vacancy,
        }
    }
}
