//! Timeouts of flows and learned addresses.

use crate::flow_mod::deadline;
use crate::switch::Switch;
use crate::types::BridgeId;
use openflow::Removed;
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl Switch {
    /// Removes what timed out, at most `n` flows of it; `now` in ns. Call after crediting the datapath's
    /// counters. Costs nothing for flows without timeouts. True: there is more.
    pub fn expire(&mut self, now: u64, n: usize) -> bool {
        if self.busy() {
            // What is about to change is looked at afterwards.
            return false;
        }
        let mut due: BTreeMap<BridgeId, Vec<(u32, Removed)>> = BTreeMap::new();
        let mut left = n;
        while let Some(Reverse((at, id))) = self.timers.peek().copied()
            && at <= now
            && left > 0
        {
            left -= 1;
            self.timers.pop();
            if let Some((bridge, reason)) = self.due(id, now) {
                due.entry(bridge).or_default().push((id, reason));
            }
        }
        for (bridge, flows) in due {
            let _ = self.transact(bridge, now, |s, txn| {
                for (id, reason) in flows {
                    let found = s.slots.flow(id).map(|r| (r.table, r.rule.clone()));
                    // A flow may have had two timers.
                    if let Some((table, rule)) = found.filter(|(_, r)| r.visible(txn.version)) {
                        s.stage_remove(txn, table, &rule, reason);
                    }
                }
                Ok(())
            });
        }
        if left > 0 {
            self.expire_macs(now);
            self.expire_neighbours(now);
        }
        left == 0
    }

    /// Is it time for a flow to go, and why? Sets its timer again if it is not.
    fn due(&mut self, id: u32, now: u64) -> Option<(BridgeId, Removed)> {
        let rec = self.slots.flow(id)?;
        let at = deadline(rec)?;
        if at > now {
            // Used since, or another flow has the id now.
            self.timers.push(Reverse((at, id)));
            return None;
        }
        let hard_at = rec.modified.saturating_add(u64::from(rec.hard) * 1_000_000_000);
        let hard = rec.hard != 0 && hard_at <= now;
        let reason = if hard { Removed::HardTimeout } else { Removed::IdleTimeout };
        Some((BridgeId(rec.bridge), reason))
    }

    /// When [`Switch::expire`] next has a flow to look at, ns.
    pub fn next_expiry(&self) -> Option<u64> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }
}
