//! Eviction: a full table with eviction removes its least important flow instead of refusing a new
//! one. In a large table one look at all its flows lists a part of them, which go before it is
//! looked at again: a new flow costs some visits, however large the table is.

use crate::switch::Switch;
use crate::tables::counters::FlowRec;
use crate::tables::table::{FlowRule, N_TABLES};
use crate::transaction::{Select, Txn};
use crate::types::BridgeId;
use crate::victims::{Rank, Victim, Victims};
use crate::work::step;
use openflow::{Match, OfError, Removed, Subfield};
use std::collections::BTreeMap;
use std::sync::Arc;

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
        let victim = evicts.then(|| self.victim(txn, table)).flatten();
        let victim = victim.ok_or(OfError::FlowTableFull)?;
        self.stage_remove(txn, table, &victim, Removed::Eviction);
        Ok(())
    }

    /// Evicts flows beyond the tables' limits, which may have become lower: at most `n`. True:
    /// there are more.
    pub fn shrink_tables(&mut self, id: BridgeId, mut n: usize, now: u64) -> bool {
        for table in 0..N_TABLES as u8 {
            let over = |s: &Switch| s.bridge(id).is_ok_and(|b| b.evicts(table) && b.over(table));
            while over(self) {
                if n == 0 {
                    return true;
                }
                n -= 1;
                let gone = self.transact(id, now, |s, txn| s.make_room(txn, table));
                if gone.is_err() {
                    break;
                }
            }
        }
        false
    }

    /// The flow to evict; None: no flow of the table has a timeout.
    fn victim(&mut self, txn: &Txn, table: u8) -> Option<Arc<FlowRule>> {
        let rec = &mut self.bridge_mut(txn.bridge).ok()?.table_recs[usize::from(table)];
        if rec.victims.is_barren(txn.now) {
            return None;
        }
        let mut victims = std::mem::take(&mut rec.victims);
        let listed = self.take_victim(&mut victims, txn);
        let found = listed.or_else(|| {
            victims = self.victims(txn, table).unwrap_or_default();
            self.take_victim(&mut victims, txn)
        });
        self.bridge_mut(txn.bridge).ok()?.table_recs[usize::from(table)].victims = victims;
        found
    }

    /// The next one of a list that is still there and was not used since.
    fn take_victim(&self, victims: &mut Victims, txn: &Txn) -> Option<Arc<FlowRule>> {
        while let Some((rank, rule)) = victims.next(txn.now) {
            if rule.visible(txn.version) && self.rank(&rule) == Some(rank) {
                return Some(rule);
            }
        }
        None
    }

    /// None: the flow never expires.
    fn rank(&self, rule: &FlowRule) -> Option<Rank> {
        let rec = self.slots.flow(rule.value().id)?;
        Some((rec.importance, expires(rec)?))
    }

    /// The flows to evict next.
    fn victims(&self, txn: &Txn, table: u8) -> Option<Victims> {
        let config = self.bridge(txn.bridge).ok()?.config.tables.get(&table);
        let fields = config.map_or(&[][..], |t| &t.groups);
        let everything = Match::default();
        let all = Select { table, ..Select::all(&everything) };
        let all = self.select(txn.bridge, &all, txn.version).ok()?;
        let (flows, mut groups) = (all.len(), BTreeMap::<Vec<(u128, u128)>, Vec<Victim>>::new());
        for (_, rule) in all {
            step();
            let Some(rank) = self.rank(&rule) else { continue };
            let group = fields.iter().map(|s| bits(&rule, s)).collect();
            groups.entry(group).or_default().push((rank, rule));
        }
        Some(Victims::of(flows, groups.into_values().collect(), txn.now))
    }
}
