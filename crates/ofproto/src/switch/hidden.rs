//! Hidden flows: flows of table 0 that the switch itself sets up. Controllers neither see nor
//! change them.

use crate::in_band::InBand;
use crate::switch::Switch;
use crate::tables::counters::{FlowRec, Slot};
use crate::tables::table::{Flow, FlowRule, priority_of};
use crate::transaction::{Rewrite, Txn};
use crate::types::{BridgeId, ConfigError};
use openflow::{FlowStats, Match, Removed};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Switch {
    /// Gives a bridge the hidden flows that in-band control needs. Those that stay keep their
    /// counters. Takes steps for each remote that was there, or is now.
    pub fn set_in_band(
        &mut self,
        id: BridgeId,
        wanted: &InBand,
        now: u64,
    ) -> Result<(), ConfigError> {
        let (flows, old) = (wanted.flows(), self.hidden_rules(id));
        let mut config = self.bridge(id)?.config.clone();
        config.in_band = !flows.is_empty();
        self.configure_bridge(id, config)?;
        let rewrite =
            Rewrite { instructions: wanted.instructions().into(), cookie: None, reset: false };
        let staged = self.transact(id, now, |s, txn| {
            s.stage_hidden(txn, flows, &old, &rewrite);
            Ok(())
        });
        staged.map_err(|_| ConfigError::NoBridge)
    }

    /// The hidden flows of a bridge by their priorities, the oldest of each first.
    pub fn hidden_flows(&self, id: BridgeId, now: u64) -> Vec<(u32, FlowStats)> {
        let mut rules = self.hidden_rules(id);
        rules.sort_unstable_by_key(|rule| (rule.priority(), rule.value().id));
        let stats = |rule: Arc<FlowRule>| {
            let rec = self.slots.flow(rule.value().id)?;
            Some((priority_of(&rule), self.stats_of(&rule, rec, now)))
        };
        rules.into_iter().filter_map(stats).collect()
    }

    /// The hidden rules of a bridge, in no order.
    pub(crate) fn hidden_rules(&self, id: BridgeId) -> Vec<Arc<FlowRule>> {
        let table = self.bridge(id).ok().and_then(|b| b.tables.get(0));
        table.map(|t| t.hidden(self.version())).unwrap_or_default()
    }

    fn stage_hidden(
        &mut self,
        txn: &mut Txn,
        flows: Vec<(u16, Match)>,
        old: &[Arc<FlowRule>],
        to: &Rewrite,
    ) {
        let mut kept = BTreeSet::new();
        for (rank, m) in flows {
            let table = self.bridge(txn.bridge).ok().and_then(|b| b.tables.get(0));
            match table.and_then(|t| t.find_hidden(&m.key, &m.mask, rank, txn.version)) {
                Some(rule) => {
                    kept.insert(rule.value().id);
                    if rule.value().instructions != to.instructions {
                        self.stage_rewrite(txn, 0, &rule, to);
                    }
                }
                None => self.stage_hidden_flow(txn, rank, &m, to),
            }
        }
        for rule in old.iter().filter(|r| !kept.contains(&r.value().id)) {
            self.stage_remove(txn, 0, rule, Removed::Delete);
        }
    }

    fn stage_hidden_flow(&mut self, txn: &mut Txn, rank: u16, m: &Match, to: &Rewrite) {
        let id = self.slots.next(txn.now);
        let flow = Flow { hidden: true, ..Flow::new(id, false, 0, to.instructions.clone()) };
        let rule = Arc::new(FlowRule::with_version(&m.key, &m.mask, rank, txn.version, flow));
        let rec = FlowRec::new(rule.clone(), (txn.bridge, 0), txn.version, txn.now);
        self.slots.alloc(Slot::Flow(rec), txn.now);
        self.stage_insert(txn, 0, rule, None);
    }
}
