//! Eviction: a full table with eviction removes its least important flow instead of refusing a new
//! one. An index of its flows is kept, in which a flow's use is noticed late: a new flow costs some
//! visits, however large the table is.

use crate::switch::Switch;
use crate::tables::counters::FlowRec;
use crate::tables::table::{FlowRule, N_TABLES};
use crate::transaction::Txn;
use crate::types::BridgeId;
use crate::victims::{Group, Rank, Victims};
use crate::work::step;
use openflow::{OfError, Removed, Subfield};
use std::sync::Arc;

/// In a table of so many flows each eviction takes the flow that is least important then: 0.2 ms if
/// all were used since they were last looked at.
const EXACT_FLOWS_MAX: usize = 1024;
/// In a larger one it takes the least important of so many.
const VISITS_PER_VICTIM: usize = 16;
/// Records that are looked at for each new flow until all flows of the table are indexed: 0.2 ms.
const RECORDS_PER_FLOW: u32 = 4096;

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
        self.index_victims(txn.bridge, table)?;
        let victims = self.victims_of(txn.bridge, table)?;
        let visits =
            if victims.len() <= EXACT_FLOWS_MAX { victims.len() } else { VISITS_PER_VICTIM };
        let mut least: Option<(Rank, u32)> = None;
        for _ in 0..visits {
            step();
            let first = self.victims_of(txn.bridge, table)?.first()?;
            let rank = self.rank(first.1);
            if rank == Some(first.0) {
                least = Some(least.map_or(first, |l| l.min(first)));
                break;
            }
            self.victims_of(txn.bridge, table)?.set_rank(first.1, rank);
            let now = rank.map(|rank| (rank, first.1));
            least = least.into_iter().chain(now).min();
        }
        Some(self.slots.flow(least?.1)?.rule.clone())
    }

    fn victims_of(&mut self, bridge: BridgeId, table: u8) -> Option<&mut Victims> {
        let rec = &mut self.bridge_mut(bridge).ok()?.table_recs[usize::from(table)];
        rec.victims.as_deref_mut()
    }

    /// Looks at more flows of a full table, at least until one is found that may be evicted.
    fn index_victims(&mut self, bridge: BridgeId, table: u8) -> Option<()> {
        let b = self.bridge_mut(bridge).ok()?;
        let config = b.config.tables.get(&table);
        let fields = config.map_or(&[][..], |t| &t.groups);
        let rec = &mut b.table_recs[usize::from(table)];
        rec.victims.get_or_insert_with(|| Box::new(Victims::by(fields)));
        let there_are = self.slots.len() as u32;
        loop {
            let numbers = self.victims_of(bridge, table)?.look(RECORDS_PER_FLOW, there_are);
            let done = numbers.is_empty();
            for id in numbers {
                step();
                let here = self.slots.flow(id).filter(|r| (r.bridge, r.table) == (bridge.0, table));
                if here.is_some_and(|r| r.rule.visible(classifier::NEVER - 1)) {
                    self.note_victim(bridge, table, id, true);
                }
            }
            if done || self.victims_of(bridge, table)?.len() > 0 {
                return Some(());
            }
        }
    }

    /// Keeps the index of a table: a flow comes or changes, or goes.
    pub(crate) fn note_victim(&mut self, bridge: BridgeId, table: u8, id: u32, there: bool) {
        let Some(victims) = self.victims_of(bridge, table) else { return };
        if !there {
            return victims.remove(id);
        }
        let Ok(b) = self.bridge(bridge) else { return };
        let Some(victims) = &b.table_recs[usize::from(table)].victims else { return };
        let Some(rec) = self.slots.flow(id).filter(|r| !r.rule.value().hidden) else { return };
        let group: Group = victims.fields().iter().map(|s| bits(&rec.rule, s)).collect();
        let rank = self.rank(id);
        if let (Some(rank), Some(victims)) = (rank, self.victims_of(bridge, table)) {
            victims.add(id, group, rank);
        }
    }

    /// None: the flow never expires.
    fn rank(&self, id: u32) -> Option<Rank> {
        let rec = self.slots.flow(id)?;
        Some((rec.importance, expires(rec)?))
    }
}
