//! Statistics requests.

use crate::bridge::TableRec;
use crate::counters::FlowRec;
use crate::flow_mod::Select;
use crate::switch::Switch;
use crate::table::N_TABLES;
use crate::types::{BridgeId, ConfigError};
use openflow::{FlowSelect, FlowStats, Match, OfError, TableStats, flow_flag};

const NS: u64 = 1_000_000_000;

impl Switch {
    pub(crate) fn stats_of(&self, rec: &FlowRec, now: u64) -> FlowStats {
        let (rule, flow) = (&rec.rule, rec.rule.value());
        let kept = |flag, n| if rec.flags & flag == 0 { n } else { u64::MAX };
        let age = |since: u64| Some((now.saturating_sub(since) / NS) as u32);
        FlowStats {
            table: rec.table,
            priority: rule.priority(),
            matching: Match { key: rule.key(), mask: rule.mask() },
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

    /// Calls `each` for every selected flow, one at a time: a million need no memory here.
    pub fn each_flow(
        &self,
        id: BridgeId,
        s: &FlowSelect,
        now: u64,
        each: &mut dyn FnMut(FlowStats),
    ) -> Result<(), OfError> {
        let select = Select {
            table: s.table,
            matching: &s.matching,
            priority: None,
            cookie: s.cookie,
            cookie_mask: s.cookie_mask,
            out_port: s.out_port,
            out_group: s.out_group,
        };
        for (_, rule) in self.select(id, &select, self.version())? {
            if let Some(rec) = self.slots.flow(rule.value().id) {
                each(self.stats_of(rec, now));
            }
        }
        Ok(())
    }

    /// The selected flows.
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

    /// (packets, bytes, flows) of the selected flows.
    pub fn aggregate(&self, id: BridgeId, s: &FlowSelect) -> Result<(u64, u64, u32), OfError> {
        let (mut packets, mut bytes, mut flows) = (0u64, 0u64, 0u32);
        self.each_flow(id, s, 0, &mut |f| {
            flows += 1;
            packets = packets.saturating_add(if f.packets == u64::MAX { 0 } else { f.packets });
            bytes = bytes.saturating_add(if f.bytes == u64::MAX { 0 } else { f.bytes });
        })?;
        Ok((packets, bytes, flows))
    }

    /// All tables of a bridge.
    pub fn table_stats(&self, id: BridgeId) -> Result<Vec<TableStats>, OfError> {
        let b = self.of_bridge(id)?;
        let one = |(i, r): (usize, &TableRec)| TableStats {
            table: i as u8,
            name: b.config.tables.get(&(i as u8)).map_or_else(String::new, |t| t.name.clone()),
            max_entries: 1_000_000,
            active: r.active,
            lookups: r.matched + r.missed,
            matched: r.matched,
            config: 0,
        };
        Ok(b.table_recs.iter().enumerate().take(N_TABLES).map(one).collect())
    }

    /// How many flows a bridge has.
    pub fn n_flows(&self, id: BridgeId) -> Result<usize, ConfigError> {
        Ok(self.bridge(id)?.table_recs.iter().map(|r| r.active as usize).sum())
    }
}
