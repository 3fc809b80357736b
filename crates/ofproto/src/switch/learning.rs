//! Learned flows: the control side executes the flow-mods that packets teach.
//!
//! A translation makes the flow-mod, and the control side executes it when it processes the
//! decision's effects: at once for packet-outs and traces, in its next turn for packets of workers.
//! A flow that exists already is renewed, as it is whenever the traffic of a megaflow is folded.
//! How much a port can teach is limited by port.

use crate::learned::{Fin, LearnedFlow, Place};
use crate::switch::Switch;
use crate::tables::instructions::learns;
use crate::tables::table::Flow;
use crate::types::BridgeId;
use openflow::{TABLE_ALL, learn_flag};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

impl Switch {
    /// Number of flows that packets taught and that were not made: too many of one port, at once or
    /// in all, or during a long change.
    pub fn flows_not_learned(&self) -> u64 {
        self.learned.limited
    }

    /// Makes a flow that a packet taught, or renews it. `used`: when the packet came, ns.
    pub(crate) fn learn_flow(&mut self, l: &LearnedFlow, used: u64) {
        if self.renew(l, used) || self.is_limited(l) || !self.learned.admits(l.port, used) {
            return;
        }
        if !self.busy() && self.learned.deferred.is_empty() {
            self.make_learned(l, used);
        } else if !self.learned.deferred.push(l, used) {
            self.learned.limited += 1;
        }
    }

    fn make_learned(&mut self, l: &LearnedFlow, used: u64) {
        // Errors were checked when the learning flow was added, except for a table of the switch's
        // own, and one that is full.
        self.learned.teacher = Some(l.port);
        let _ = self.flow_mod(BridgeId(l.bridge), &l.flow, used);
        self.learned.teacher = None;
    }

    /// Makes flows that waited for the end of a change, at most `n`. True: there are more, and no
    /// change is open.
    pub fn learn_deferred(&mut self, n: usize) -> bool {
        for _ in 0..n {
            if self.busy() {
                return false;
            }
            let Some((l, used)) = self.learned.deferred.pop() else { return false };
            // Others that waited may have been the same, or may have reached its limit.
            if !self.renew(&l, used) && !self.is_limited(&l) {
                self.make_learned(&l, used);
            }
        }
        !self.busy() && !self.learned.deferred.is_empty()
    }

    /// If this very flow exists, restarts its timeouts; true if so.
    fn renew(&mut self, l: &LearnedFlow, used: u64) -> bool {
        let Ok(b) = self.bridge(BridgeId(l.bridge)) else { return false };
        let Ok(matching) = crate::tables::tlv::fitted(&b.options.tlv, &l.flow.matching) else {
            return false;
        };
        let (key, mask) = crate::tables::tlv::in_rule(&matching);
        let rule = b
            .tables
            .get(l.flow.table)
            .and_then(|t| t.find_exact(&key, &mask, l.flow.priority, self.version()));
        let same = |f: &Flow| {
            let cookie = l.flow.cookie == u64::MAX || f.cookie == l.flow.cookie;
            cookie && *f.instructions == *l.flow.instructions
        };
        let Some(rule) = rule.filter(|r| same(r.value())) else { return false };
        if let Some(rec) = self.slots.flow_mut(rule.value().id) {
            rec.modified = rec.modified.max(used);
        }
        true
    }

    fn is_limited(&self, l: &LearnedFlow) -> bool {
        let Ok(b) = self.bridge(BridgeId(l.bridge)) else { return true };
        let count = b.learning.counts.get(&(l.flow.table, l.flow.cookie));
        l.limit > 0 && count.is_some_and(|n| n.load(Relaxed) >= l.limit)
    }

    /// Reduces a rule's timeouts.
    pub(crate) fn fin(&mut self, f: &Fin) {
        let shrink = |to: u16, t: &mut u16| {
            if to != 0 && (*t == 0 || *t > to) {
                *t = to;
            }
        };
        let Some(rec) = self.slots.flow_mut(f.rule) else { return };
        let before = (rec.idle, rec.hard);
        shrink(f.idle, &mut rec.idle);
        shrink(f.hard, &mut rec.hard);
        if before != (rec.idle, rec.hard) {
            let (bridge, table) = (BridgeId(rec.bridge), rec.table);
            self.set_timer(f.rule);
            self.note_victim(bridge, table, f.rule, true);
        }
    }

    /// Updates, when a flow is added or removed, what its learn actions own and count.
    pub(crate) fn note_learning(&mut self, id: BridgeId, table: u8, flow: &Flow, added: bool) {
        if let Ok(b) = self.bridge(id)
            && !b.learning.counts.is_empty()
            && let Some(n) = b.learning.counts.get(&(table, flow.cookie))
        {
            let one = if added { 1 } else { u32::MAX };
            n.store(n.load(Relaxed).wrapping_add(one), Relaxed);
        }
        if !flow.learns {
            return;
        }
        for l in learns(&flow.instructions) {
            let place = (l.table, l.cookie);
            if l.limit > 0 {
                self.note_limit(id, place, added);
            }
            if l.flags & learn_flag::DELETE_LEARNED != 0 {
                self.note_owner(id, place, added);
            }
        }
    }

    fn note_limit(&mut self, id: BridgeId, place: Place, added: bool) {
        let Ok(b) = self.bridge_mut(id) else { return };
        let n = b.learning.limits.entry(place).or_default();
        *n = if added { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            b.learning.limits.remove(&place);
            self.learned.unlimited.push((id, place));
        }
    }

    fn note_owner(&mut self, id: BridgeId, place: Place, added: bool) {
        let Ok(b) = self.bridge_mut(id) else { return };
        let n = b.learning.owners.entry(place).or_default();
        *n = if added { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            b.learning.owners.remove(&place);
            self.learned.unowned.push((id, place));
        }
    }

    /// After each flow-mod of a change: the places that have lost their last owner by it are
    /// emptied after the change, even if a later one of the change gives them another owner, as in
    /// OVS; those whose owner it replaced are not.
    pub(crate) fn settle_owners(&mut self) {
        for (id, place) in std::mem::take(&mut self.learned.unowned) {
            if self.bridge(id).is_ok_and(|b| !b.learning.owners.contains_key(&place)) {
                self.learned.dead.push((id, place));
            }
        }
    }

    /// A change is undone: nothing that was taught goes.
    pub(crate) fn keep_owners(&mut self) {
        self.learned.unowned.clear();
        self.learned.dead.clear();
    }

    /// Begins to count the flows of places, which learn actions limit; how many there are now.
    pub(crate) fn begin_counting(&mut self, id: BridgeId, places: &BTreeMap<Place, u32>) {
        let Ok(b) = self.bridge_mut(id) else { return };
        for (place, n) in places {
            b.learning.counts.insert_mut(*place, Arc::new(AtomicU32::new(*n)));
        }
        if !places.is_empty() {
            b.learning.published.publish(b.learning.counts.clone());
        }
        // The flow may be refused still.
        self.learned.unlimited.extend(places.keys().map(|place| (id, *place)));
    }

    /// After a change: does not count the flows of places that no learn action limits any more.
    pub(crate) fn stop_counting(&mut self) {
        let mut changed = BTreeSet::new();
        for (id, place) in std::mem::take(&mut self.learned.unlimited) {
            if let Ok(b) = self.bridge_mut(id)
                && !b.learning.limits.contains_key(&place)
                && b.learning.counts.remove_mut(&place)
            {
                changed.insert(id.0);
            }
        }
        for id in changed {
            if let Ok(b) = self.bridge_mut(BridgeId(id)) {
                b.learning.published.publish(b.learning.counts.clone());
            }
        }
    }

    /// After a change: the places of a bridge whose last owner it removed. Their flows are to go,
    /// and are not learned any more.
    pub(crate) fn next_dead(&mut self) -> Option<(BridgeId, BTreeSet<Place>)> {
        let dead = std::mem::take(&mut self.learned.dead);
        let there =
            |(id, (table, _)): &(BridgeId, Place)| *table != TABLE_ALL && self.bridge(*id).is_ok();
        let mut dead: Vec<_> = dead.into_iter().filter(there).collect();
        let bridge = dead.first()?.0;
        let own = |(id, _): &(BridgeId, Place)| *id == bridge;
        let places: BTreeSet<Place> = dead.iter().filter(|d| own(d)).map(|(_, p)| *p).collect();
        dead.retain(|d| !own(d));
        self.learned.dead = dead;
        self.learned.deferred.forget(bridge, &places);
        Some((bridge, places))
    }
}
