//! Eviction: a full table with eviction removes its least important flow instead of refusing a new
//! one. It examines every flow of the table, so its cost grows with the table's limit; only tables
//! with a limit and eviction have this cost.

use crate::switch::Switch;
use crate::tables::counters::FlowRec;
use crate::tables::table::{FlowRule, N_TABLES};
use crate::transaction::{Select, Txn};
use crate::types::BridgeId;
use openflow::{Match, OfError, Removed, Subfield};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An eviction group: the number of its flows, and the one to be evicted first, by importance and
/// expiry.
#[derive(Default)]
struct Group {
    flows: usize,
    first: Option<(u16, u64, Arc<FlowRule>)>,
}

/// When a flow expires if it is not used, ns. None: never; then it is not evicted either.
fn expires(rec: &FlowRec) -> Option<u64> {
    let after = |since: u64, seconds: u16| since + u64::from(seconds) * 1_000_000_000;
    let hard = (rec.hard > 0).then(|| after(rec.modified, rec.hard));
    let idle = (rec.idle > 0).then(|| after(rec.used, rec.idle));
    hard.into_iter().chain(idle).min()
}

/// Value and mask of a subfield in a rule's match.
fn bits(rule: &FlowRule, s: &Subfield) -> (u128, u128) {
    let ones = u128::MAX >> (128 - u32::from(s.bits).clamp(1, 128));
    let of = |key: &flow::Key| s.field.get(key) >> s.ofs & ones;
    (of(&rule.key()), of(&rule.mask()))
}

impl Switch {
    /// Makes room for another flow in a full table.
    pub(crate) fn make_room(&mut self, txn: &mut Txn, table: u8) -> Result<(), OfError> {
        let evicts = self.of_bridge(txn.bridge)?.evicts(table);
        let victim = evicts.then(|| self.victim(txn.bridge, table, txn.version)).flatten();
        let victim = victim.ok_or(OfError::FlowTableFull)?;
        self.stage_remove(txn, table, &victim, Removed::Eviction);
        Ok(())
    }

    /// Evicts flows beyond the tables' limits, which may have become lower.
    pub fn shrink_tables(&mut self, id: BridgeId, now: u64) {
        for table in 0..N_TABLES as u8 {
            let over = |s: &Switch| s.bridge(id).is_ok_and(|b| b.evicts(table) && b.over(table));
            while over(self) {
                let gone = self.transact(id, now, |s, txn| s.make_room(txn, table));
                if gone.is_err() {
                    break;
                }
            }
        }
    }

    /// The flow to evict: from the eviction group with the most flows, the flow of least
    /// importance; of several the one that expires first. None: no flow of the table has a timeout.
    fn victim(&self, id: BridgeId, table: u8, version: u64) -> Option<Arc<FlowRule>> {
        let config = self.bridge(id).ok()?.config.tables.get(&table);
        let fields = config.map_or(&[][..], |t| &t.groups);
        let everything = Match::default();
        let all = Select { table, ..Select::all(&everything) };
        let mut groups: BTreeMap<Vec<(u128, u128)>, Group> = BTreeMap::new();
        for (_, rule) in self.select(id, &all, version).ok()? {
            let Some(rec) = self.slots.flow(rule.value().id) else { continue };
            let Some(expires) = expires(rec) else { continue };
            let group = groups.entry(fields.iter().map(|s| bits(&rule, s)).collect()).or_default();
            group.flows += 1;
            let rank = (rec.importance, expires);
            if group.first.as_ref().is_none_or(|f| rank < (f.0, f.1)) {
                group.first = Some((rank.0, rank.1, rule));
            }
        }
        groups.into_values().max_by_key(|g| g.flows)?.first.map(|f| f.2)
    }
}
