//! Timeouts of flows and learned addresses.

use crate::flow_mod::deadline;
use crate::switch::Switch;
use crate::types::BridgeId;
use openflow::Removed;
use std::cmp::Reverse;

impl Switch {
    /// Removes what timed out; `now` in ns. Call after crediting the datapath's counters. Costs
    /// nothing for flows without timeouts.
    pub fn expire(&mut self, now: u64) {
        self.collect();
        while let Some(Reverse((at, id))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            self.expire_flow(id, now);
        }
        self.expire_macs(now);
        self.expire_neighbours(now);
        self.shared.domain.reclaim();
    }

    fn expire_flow(&mut self, id: u32, now: u64) {
        let Some(rec) = self.slots.flow(id) else { return };
        let Some(at) = deadline(rec) else { return };
        if at > now {
            // Used since, or another flow has the id now.
            self.timers.push(Reverse((at, id)));
            return;
        }
        let hard_at = rec.modified.saturating_add(u64::from(rec.hard) * 1_000_000_000);
        let reason = match rec.hard != 0 && hard_at <= now {
            true => Removed::HardTimeout,
            false => Removed::IdleTimeout,
        };
        let (bridge, table, rule) = (BridgeId(rec.bridge), rec.table, rec.rule.clone());
        let _ = self.transact(bridge, now, |s, txn| {
            s.stage_remove(txn, table, &rule, reason);
            Ok(())
        });
    }

    /// When [`Switch::expire`] next has a flow to look at, ns.
    pub fn next_expiry(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }
}
