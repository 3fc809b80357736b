//! Changes of flows and groups. They are staged under the next version, in steps if there is much
//! to do, and then committed at once or undone.
//!
//! One change is open at a time. The caller that began it calls [`Switch::advance`] until it is
//! done, and may do other things in between. Any other change of flows or groups finishes it first.

use crate::events::Event;
use crate::switch::Switch;
use crate::tables::counters::FlowRec;
use crate::tables::table::FlowRule;
use crate::transaction::{
    BundleItem, Change, DeferredFree, Items, MonitorEvent, Open, Outcome, Record, Remaining, Txn,
    Undo,
};
use crate::types::BridgeId;
use classifier::Unlinked;
use openflow::{FlowMod, FlowRemoved, MonitorUpdate, OfError, Removed};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Flows of earlier changes that a small change frees, at most.
const CLEANUP_FLOWS_MAX: usize = 64;
/// How many rules ahead the memory of rules to be removed is prefetched.
const PREFETCH_RULES: usize = 8;
/// Steps that telling all connections of a bridge about a port takes.
const PORT_MOD_STEPS: usize = 64;
/// Steps of one change beyond one for each item and each flow that it changes, at most: of
/// searches, translations and groups' buckets. No other change begins meanwhile, and no flow times
/// out. 1,300 searches through 100,000 flows are allowed, as agents delete by cookie.
const EXTRA_STEPS_MAX: usize = 1 << 23;
/// Number of changes after which retired memory is freed.
const RECLAIM_INTERVAL_CHANGES: u32 = 256;

impl Switch {
    /// Executes a flow-mod. When this returns packets see it; [`Switch::take_regions`] returns the
    /// regions of the megaflows that it may have changed.
    pub fn flow_mod(&mut self, id: BridgeId, m: &FlowMod, now: u64) -> Result<(), OfError> {
        self.transact(id, now, |s, txn| s.stage_flow(txn, m))
    }

    /// Executes all items or none; packets see all at once. An error says which item failed.
    pub fn bundle(&mut self, id: BridgeId, items: Vec<BundleItem>, now: u64) -> Outcome {
        let items = Box::new(items.into_iter().map(Ok));
        self.begin(id, items, now).map_err(|e| (0, e))?;
        self.step(usize::MAX).unwrap_or(Ok(()))
    }

    /// Opens a change of many steps. Nothing is done before [`Switch::advance`].
    pub fn begin(&mut self, id: BridgeId, items: Items, now: u64) -> Result<Change, OfError> {
        let txn = self.start(id, now)?;
        Ok(self.open(txn, items))
    }

    /// Continues a change for about `steps` flows. Returns its outcome when it has ended.
    pub fn advance(&mut self, change: &Change, steps: usize) -> Option<Outcome> {
        if let Some(i) = self.changes.outcomes.iter().position(|(c, _)| *c == change.0) {
            return Some(self.changes.outcomes.swap_remove(i).1);
        }
        match &self.changes.open {
            Some(open) if open.change == change.0 => self.step(steps),
            _ => None,
        }
    }

    /// True if a change is open.
    pub fn busy(&self) -> bool {
        self.changes.open.is_some()
    }

    /// The bridge of which a change is open.
    pub fn busy_bridge(&self) -> Option<BridgeId> {
        self.changes.open.as_ref().map(|open| open.txn.bridge)
    }

    /// Runs the open change to its end; the caller that began it gets the outcome later.
    pub(crate) fn finish(&mut self) {
        if let Some(change) = self.changes.open.as_ref().map(|o| o.change)
            && let Some(outcome) = self.step(usize::MAX)
        {
            self.changes.outcomes.push((change, outcome));
        }
    }

    /// Runs `stage`, and commits or undoes what it staged.
    pub(crate) fn transact(
        &mut self,
        bridge: BridgeId,
        now: u64,
        stage: impl FnOnce(&mut Switch, &mut Txn) -> Result<(), OfError>,
    ) -> Result<(), OfError> {
        let mut txn = self.start(bridge, now)?;
        if let Err(e) = stage(self, &mut txn) {
            self.undo_some(&mut txn, &mut { usize::MAX });
            return Err(e);
        }
        self.open(txn, Box::new(std::iter::empty()));
        self.step(usize::MAX).unwrap_or(Ok(())).map_err(|(_, e)| e)
    }

    fn start(&mut self, bridge: BridgeId, now: u64) -> Result<Txn, OfError> {
        self.of_bridge(bridge)?;
        self.finish();
        self.reclaim(CLEANUP_FLOWS_MAX);
        Ok(self.next_txn(bridge, now))
    }

    fn next_txn(&mut self, bridge: BridgeId, now: u64) -> Txn {
        Txn {
            bridge,
            version: self.version() + 1,
            now,
            undo: Vec::new(),
            removed: Vec::new(),
            regions: std::mem::take(&mut self.changes.spare_regions),
            covered: false,
            monitor_events: Vec::new(),
            packets: Vec::new(),
            remaining: Remaining::Nothing,
            view: None,
            cost: 0,
            extra_steps: 0,
            packet_bytes: 0,
            groups: None,
        }
    }

    fn open(&mut self, txn: Txn, items: Items) -> Change {
        self.changes.begun += 1;
        let change = self.changes.begun;
        self.changes.open = Some(Open::new(change, txn, items, 0));
        Change(change)
    }

    fn step(&mut self, mut steps: usize) -> Option<Outcome> {
        loop {
            let mut open = self.changes.open.take()?;
            if let Some(failed) = open.failed {
                if self.undo_some(&mut open.txn, &mut steps) {
                    return Some(Err(failed));
                }
                self.changes.open = Some(open);
                return None;
            }
            if !open.committed {
                match self.stage_some(&mut open, &mut steps) {
                    Err(e) => {
                        open.failed = Some((open.taken.saturating_sub(1), e));
                        self.changes.open = Some(open);
                        continue;
                    }
                    Ok(true) => self.commit(&mut open),
                    Ok(false) => {}
                }
            }
            if !open.committed || !self.notify_some(&mut open, &mut steps) {
                self.changes.open = Some(open);
                return None;
            }
            let Open { change, txn, items, taken, .. } = open;
            let now = txn.now;
            self.defer_frees(txn);
            self.stop_counting();
            let Some((bridge, places)) = self.next_dead() else { return Some(Ok(())) };
            // What its last owner has left behind goes, by the same change.
            let mut txn = self.next_txn(bridge, now);
            txn.remaining = self.unlearning(places);
            self.changes.open = Some(Open::new(change, txn, items, taken));
        }
    }

    /// Stages about as many steps; true: nothing is left. An item takes a step, and more if it has
    /// much to do.
    fn stage_some(&mut self, open: &mut Open, steps: &mut usize) -> Result<bool, OfError> {
        // Others may have changed ports since the last slice.
        open.txn.view = None;
        while *steps > 0 {
            *steps -= 1;
            if self.stage_remaining(&mut open.txn)? {
                continue;
            }
            self.settle_owners();
            let Some(item) = open.items.next() else { return Ok(true) };
            open.taken += 1;
            self.stage(&mut open.txn, &item?)?;
            let cost = std::mem::take(&mut open.txn.cost);
            *steps = steps.saturating_sub(cost);
            open.txn.spend(cost)?;
        }
        Ok(false)
    }

    fn stage(&mut self, txn: &mut Txn, item: &BundleItem) -> Result<(), OfError> {
        match item {
            BundleItem::Flow(m) => self.stage_flow(txn, m),
            BundleItem::Group(m) => self.stage_group(txn, m),
            BundleItem::Port(m) => {
                let old = self.port(txn.bridge, m.port).ok_or(OfError::PortModBadPort)?.clone();
                txn.undo.push(Undo::Port(Box::new(old)));
                txn.cost += self.ports_steps() + PORT_MOD_STEPS;
                txn.view = None;
                self.port_mod(txn.bridge, m)
            }
            BundleItem::MeterUsers(which) => self.stage_meter_users(txn, *which),
            BundleItem::PacketOut(p) => self.stage_packet(txn, &p.0, &p.1),
        }
    }

    /// Steps of making what packets see of all ports.
    pub(crate) fn ports_steps(&self) -> usize {
        self.bridges.iter().flatten().map(|b| b.ports.len()).sum()
    }

    /// Changes the next flow that the current item selects, or looks for these; false: nothing is
    /// left.
    fn stage_remaining(&mut self, txn: &mut Txn) -> Result<bool, OfError> {
        let mut remaining = std::mem::replace(&mut txn.remaining, Remaining::Nothing);
        let more = match &mut remaining {
            Remaining::Nothing => false,
            Remaining::Select(_) => {
                let Remaining::Select(search) = remaining else { return Ok(false) };
                txn.spend(1)?;
                return self.select_on(txn, search);
            }
            Remaining::Remove(rules, reason) => {
                if let Some((_, later)) = rules.as_slice().get(PREFETCH_RULES) {
                    later.prefetch();
                }
                let next = rules.next();
                next.map(|(table, rule)| self.stage_remove(txn, table, &rule, *reason)).is_some()
            }
            Remaining::RemoveUsers(flows, reason) => {
                let next = flows.next();
                let found = next.and_then(|id| self.slots.flow(id));
                if let Some((table, rule)) = found.map(|rec| (rec.table, rec.rule.clone())) {
                    self.stage_remove(txn, table, &rule, *reason);
                }
                next.is_some()
            }
            Remaining::Modify(rules, to) => rules
                .next()
                .map(|(table, rule)| self.stage_rewrite(txn, table, &rule, to))
                .is_some(),
        };
        if more {
            txn.remaining = remaining;
        } else {
            txn.covered = false;
        }
        Ok(more)
    }

    /// Makes the change visible to packets.
    fn commit(&mut self, open: &mut Open) {
        let txn = &mut open.txn;
        if let Some(groups) = txn.groups.take() {
            self.publish_groups(txn.bridge, txn.version, groups);
        }
        self.shared.version.store(txn.version, Ordering::Release);
        self.outbox.outer.bridge(txn.bridge.0);
        txn.regions.drain().for_each(|r| self.region_of(txn.bridge.0, r));
        self.changes.spare_regions = std::mem::take(&mut txn.regions);
        self.outbox.packets.append(&mut txn.packets);
        self.watch_vacancies(txn.bridge);
        open.monitor_events = std::mem::take(&mut txn.monitor_events).into_iter();
        open.removed = std::mem::take(&mut txn.removed).into_iter();
        open.committed = true;
    }

    /// Reports at most `steps` changed flows; true: nothing is left.
    fn notify_some(&mut self, open: &mut Open, steps: &mut usize) -> bool {
        while *steps > 0 {
            *steps -= 1;
            if let Some(event) = open.monitor_events.next() {
                self.notify_monitors(&open.txn, event);
            } else if let Some((id, reason)) = open.removed.next() {
                self.notify_removed(&open.txn, id, reason);
            } else {
                return true;
            }
        }
        false
    }

    fn notify_monitors(&mut self, txn: &Txn, event: MonitorEvent) {
        let stats = |rule: &FlowRule| {
            self.slots.flow(rule.value().id).map(|rec| self.stats_of(rule, rec, txn.now))
        };
        let (update, old) = match event {
            MonitorEvent::Added(rule) => (stats(&rule).map(MonitorUpdate::Added), Vec::new()),
            MonitorEvent::Modified(rule, old) => {
                (stats(&rule).map(MonitorUpdate::Modified), old.value().instructions.to_vec())
            }
            MonitorEvent::Deleted(rule, reason) => {
                (stats(&rule).map(|s| MonitorUpdate::Deleted(s, reason)), Vec::new())
            }
        };
        if let Some(update) = update {
            self.outbox.events.push(Event::Flow(txn.bridge, Box::new(update), old));
        }
    }

    /// Reports that a flow was removed.
    fn notify_removed(&mut self, txn: &Txn, id: u32, reason: Removed) {
        let Some(rec) = self.slots.flow(id) else { return };
        let stats = self.stats_of(&rec.rule, rec, txn.now);
        let message = Box::new(FlowRemoved { stats, reason });
        self.outbox.events.push(Event::FlowRemoved(txn.bridge, message));
    }

    /// Keeps what readers of the old version may still use, to be freed by [`Switch::reclaim`].
    fn defer_frees(&mut self, txn: Txn) {
        let old = txn.undo.len() > CLEANUP_FLOWS_MAX
            || txn.undo.iter().any(|u| !matches!(u, Undo::Added(..)));
        if old && let Ok(b) = self.bridge(txn.bridge) {
            let (grace, tables) = (self.shared.domain.grace(), b.tables.clone());
            let steps = txn.undo.into_iter();
            self.changes.deferred.push_back(DeferredFree { grace, tables, now: txn.now, steps });
        }
        self.reclaim(CLEANUP_FLOWS_MAX);
    }

    /// Frees what changes left behind and no reader can use any more: at most `n` flows of it.
    pub fn reclaim(&mut self, n: usize) {
        self.changes.count = self.changes.count.wrapping_add(1);
        if self.changes.count.is_multiple_of(RECLAIM_INTERVAL_CHANGES) {
            self.writer.reclaim();
        }
        let mut unlinked = Vec::new();
        let mut left = n;
        while left > 0 {
            let Some(deferred) = self.changes.deferred.front_mut() else { break };
            if !self.shared.domain.passed(deferred.grace) {
                break;
            }
            match deferred.steps.next() {
                Some(Undo::Removed(table, rule, record)) => {
                    let t = deferred.tables.get(table);
                    if record == Record::Goes {
                        self.slots.release(rule.value().id, deferred.now);
                    }
                    unlinked.extend(t.and_then(|t| t.unlink(&rule)));
                }
                Some(Undo::Group(g)) => {
                    let now = deferred.now;
                    g.freed.into_iter().for_each(|id| self.slots.release(id, now));
                }
                Some(_) => {}
                None => drop(self.changes.deferred.pop_front()),
            }
            left -= 1;
        }
        if !unlinked.is_empty() {
            Unlinked::retire(unlinked, &self.shared.domain);
        }
    }

    /// True if [`Switch::reclaim`] has something to do.
    pub fn has_garbage(&self) -> bool {
        !self.changes.deferred.is_empty()
    }

    /// Undoes about as many steps of a change that failed, the last one first; true: nothing is
    /// left.
    fn undo_some(&mut self, txn: &mut Txn, steps: &mut usize) -> bool {
        while *steps > 0
            && let Some(u) = txn.undo.pop()
        {
            *steps -= 1;
            txn.monitor_events.pop();
            match u {
                Undo::Added(table, rule) => self.undo_add(txn.bridge, table, rule, txn.now),
                Undo::Removed(table, rule, _) => {
                    rule.set_remove_version(classifier::NEVER);
                    self.note(txn.bridge, table, rule.value(), true);
                }
                Undo::Record(id, rec) => self.slots.restore(id, *rec),
                Undo::Group(g) => self.group_undo(txn.bridge, *g),
                Undo::Port(spec) => {
                    *steps = steps.saturating_sub(self.ports_steps() + PORT_MOD_STEPS);
                    let _ = self.update_port(txn.bridge, *spec);
                }
            }
        }
        if txn.undo.is_empty() {
            self.keep_owners();
            self.stop_counting();
        }
        txn.undo.is_empty()
    }

    fn undo_add(&mut self, bridge: BridgeId, table: u8, rule: Arc<FlowRule>, now: u64) {
        let table_of = self.bridge(bridge).ok().and_then(|b| b.tables.get(table));
        let unlinked = table_of.and_then(|t| t.unlink(&rule));
        Unlinked::retire(unlinked.into_iter().collect(), &self.shared.domain);
        self.note(bridge, table, rule.value(), false);
        let mine = |r: &FlowRec| Arc::ptr_eq(&r.rule, &rule);
        if self.slots.flow(rule.value().id).is_some_and(mine) {
            self.slots.release(rule.value().id, now);
        }
    }
}

impl Txn {
    /// Takes steps beyond one for each item and flow.
    fn spend(&mut self, steps: usize) -> Result<(), OfError> {
        self.extra_steps += steps;
        match self.extra_steps <= EXTRA_STEPS_MAX {
            true => Ok(()),
            false => Err(OfError::BundleMsgTooMany),
        }
    }
}
