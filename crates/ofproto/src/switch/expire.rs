//! Timeouts of flows and learned addresses.

use crate::switch::Switch;
use crate::switch::flow_mod::deadlines;
use crate::types::BridgeId;
use openflow::Removed;
use std::collections::BTreeMap;

impl Switch {
    /// Removes flows and learned addresses that timed out, at most `n` of each; `now` in ns.
    /// `known`: all use of flows up to then was credited, so flows that were idle until then are
    /// removed. Flows without timeouts cost nothing. True: there are more.
    pub fn expire(&mut self, now: u64, known: u64, n: usize) -> bool {
        self.touch_meters(now);
        if self.busy() {
            // A change is open: its flows are examined afterwards.
            return false;
        }
        let mut due: BTreeMap<BridgeId, Vec<(u32, Removed)>> = BTreeMap::new();
        let mut left = n;
        while let Some((at, id)) = self.slots.next_timer()
            && at <= now
            && left > 0
        {
            left -= 1;
            if let Some((bridge, reason)) = self.due(id, now, known) {
                due.entry(bridge).or_default().push((id, reason));
            }
        }
        for (bridge, flows) in due {
            let _ = self.transact(bridge, now, |s, txn| {
                for (id, reason) in flows {
                    let found = s.slots.flow(id).map(|r| (r.table, r.rule.clone()));
                    // The one before may have been its last owner.
                    if let Some((table, rule)) = found.filter(|(_, r)| r.visible(txn.version)) {
                        s.stage_remove(txn, table, &rule, reason);
                    }
                }
                Ok(())
            });
        }
        if left > 0 {
            left -= self.expire_macs(now, left);
            left -= self.expire_mcast(now, left);
        }
        if left > 0 {
            self.expire_neighbours(now);
            self.sweep.run(self.writer.pin(), &self.shared.frozen, &self.shared.domain, now);
        }
        left == 0
    }

    /// Whether a flow times out now, and why; it has no timer then. Sets its timer again if it does
    /// not.
    fn due(&mut self, id: u32, now: u64, known: u64) -> Option<(BridgeId, Removed)> {
        let rec = self.slots.flow(id)?;
        let (idle, hard) = deadlines(rec);
        let reason = match (idle, hard) {
            // As in OVS, a flow that is exactly as old as its timeout stays.
            (_, Some(at)) if at < now => Removed::HardTimeout,
            (Some(at), _) if at <= known.min(now) => Removed::IdleTimeout,
            _ => {
                // The flow was used since, or may have been.
                let at = idle.into_iter().chain(hard).min();
                self.slots.set_timer(id, at.map(|at| at.max(now + 1)));
                return None;
            }
        };
        let bridge = BridgeId(rec.bridge);
        self.slots.set_timer(id, None);
        Some((bridge, reason))
    }

    /// When [`Switch::expire`] next has a flow to examine, ns.
    pub fn next_expiry(&self) -> Option<u64> {
        self.slots.next_timer().map(|(at, _)| at)
    }
}
