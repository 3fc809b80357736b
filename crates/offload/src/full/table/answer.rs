//! Answers of the adapter, and flows that ended.

use super::*;
use crate::class::{Class, class};

/// How long a flow that ended is expected to come again with other operations, milliseconds.
const HEIRS_MS: u64 = 2000;
/// Flows that are expected at a time, at most; others enter at the end of a second.
const HEIRS_MAX: usize = 8192;
/// Weight of a new measurement: about the last 32 count.
const WEIGHT: f64 = 1.0 / 32.0;

impl ForwardTable {
    /// Handles the end of a flow in the datapath.
    pub fn gone(&mut self, now_ms: u64, flow: FlowId) {
        self.cooling.remove(&flow);
        for id in self.by_outer.remove(&flow).unwrap_or_default() {
            self.leave(now_ms, id);
        }
        for id in self.by_flow.remove(&flow).unwrap_or_default() {
            let unit = self.units.get_mut(&id).expect("both or none");
            unit.flows.retain(|f| *f != flow);
            if let State::In(_) = unit.state
                && self.heirs.len() < HEIRS_MAX
            {
                let items = unit.plan.rule.items.clone();
                self.heirs.insert(items, (unit.pps, now_ms + HEIRS_MS));
            }
            // Other workers' flows that share the rule get a new one, if they are still there.
            self.leave(now_ms, id);
        }
    }

    /// Handles an answer of the adapter. `took_us`: duration of the call; `cpu_us`: how long it
    /// kept a core busy. True: all rules must be flushed, as it is not known which ones exist.
    #[must_use]
    pub fn answer(&mut self, now_ms: u64, outcome: Outcome, took_us: u64, cpu_us: u64) -> bool {
        match outcome {
            Outcome::Created(id, result) => {
                self.pace.took(took_us, cpu_us);
                if !self.units.contains_key(&id) {
                    // The table was flushed since.
                    return false;
                }
                self.queue.under_way = self.queue.under_way.saturating_sub(1);
                match result {
                    Ok(rule) => self.created(now_ms, id, rule),
                    Err(e) => return self.refused(now_ms, id, &e),
                }
            }
            Outcome::Destroyed(id, count, result) => {
                let weight = if self.leaving.destroy_us == 0.0 { 1.0 } else { WEIGHT };
                self.leaving.destroy_us += (took_us as f64 - self.leaving.destroy_us) * weight;
                if let Some(count) = count {
                    self.counted(now_ms, id, count);
                }
                if !self.units.contains_key(&id) {
                    return false;
                }
                match result {
                    Ok(()) => self.forget(id),
                    Err(e) => {
                        self.stats.rules.stuck += 1;
                        *self.stats.rules.refused.entry(e.errno).or_default() += 1;
                        return true;
                    }
                }
            }
            Outcome::Counted(all) => {
                self.counting.under_way = self.counting.under_way.saturating_sub(1);
                all.into_iter().for_each(|(id, count)| self.counted(now_ms, id, count));
            }
        }
        false
    }

    fn created(&mut self, now_ms: u64, id: Id, rule: RuleId) {
        self.stats.rules.inserted += 1;
        let unit = self.units.get_mut(&id).expect("the caller looked");
        let doomed = unit.state == State::Asked { doomed: true };
        (unit.state, unit.since_ms) = (State::In(rule), now_ms);
        if doomed {
            self.leave(now_ms, id);
        }
    }

    fn refused(&mut self, now_ms: u64, id: Id, e: &RuleError) -> bool {
        *self.stats.rules.refused.entry(e.errno).or_default() += 1;
        let form = form_of(&self.units[&id].plan.rule);
        let probes = self.units[&id].probes.clone();
        self.leave(now_ms, id);
        self.forget(id);
        if let Some(shape) = probes {
            match class(e.errno) {
                Class::Form => self.distrust(now_ms, &shape, Reason::Refused(e.to_string())),
                _ => self.give_up_probes(now_ms, &shape),
            }
        }
        match class(e.errno) {
            Class::Full => {
                // A leaving rule exists until the adapter has answered.
                let has = |u: &&Unit| matches!(u.state, State::In(_) | State::Leaving);
                let inside = self.units.values().filter(has).count();
                self.capacity = Some((inside, now_ms + FULL_MS));
                self.withdraw_waiting(now_ms);
            }
            Class::Form => self.bar(now_ms, form, Reason::Refused(e.to_string())),
            Class::Busy => self.pace.busy(),
            Class::Ill => return true,
        }
        false
    }

    fn bar(&mut self, now_ms: u64, form: Form, reason: Reason) {
        let before = self.barred.get(&form).map_or(0, |b| b.wait_ms);
        self.barred.insert(form, Barred::again(now_ms, before, reason));
    }

    /// Makes insertions that were not sent yet candidates again.
    fn withdraw_waiting(&mut self, now_ms: u64) {
        let waiting = self.units.iter().filter(|(_, u)| u.state == State::Waiting);
        let waiting: Vec<Id> = waiting.map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.leave(now_ms, id));
        self.queue.requests.retain(|r| matches!(r, ForwardRequest::Count(_)));
    }

    /// Takes over a rule's counters, and credits their growth.
    fn counted(&mut self, now_ms: u64, id: Id, now: RuleCount) {
        let Some(unit) = self.units.get_mut(&id) else { return };
        if let Some(shape) = unit.probes.clone() {
            if now.packets > 0 && matches!(self.shapes.get(&shape), Some(Trust::Probing(_))) {
                self.stats.rules.wider += 1;
                self.distrust(now_ms, &shape, Reason::Wider);
            }
            return;
        }
        let before = std::mem::replace(&mut unit.reported, now);
        if now.packets < before.packets || now.bytes < before.bytes {
            // What is known stays known; the counter continues from its new value.
            self.stats.went_back += 1;
            return;
        }
        let more =
            RuleCount { packets: now.packets - before.packets, bytes: now.bytes - before.bytes };
        if more.packets > 0 {
            unit.recent += more.packets as f32;
            self.stats.packets += more.packets;
            let sent = more.bytes as i64 + more.packets as i64 * growth(&unit.plan);
            let (fate, sent_bytes) = (unit.plan.rule.fate, sent.max(0) as u64);
            self.steps.push_back(Step::Credit { id, more, sent_bytes, fate });
        }
    }

    /// Forgets a rule that is certainly not in the adapter.
    pub(super) fn forget(&mut self, id: Id) {
        let Some(unit) = self.units.remove(&id) else { return };
        if let Some(number) = unit.leaving {
            self.leaving.ids.remove(&number);
        }
        if matches!(unit.state, State::In(_) | State::Leaving) {
            self.stats.rules.removed += 1;
        }
        self.steps.push_back(Step::Unwatch(id));
    }

    /// Removes all rules by a flush of the adapter's table; [`ForwardTable::flushed`] is called
    /// when it is done.
    pub fn leave_all(&mut self, now_ms: u64) {
        let all: Vec<Id> = self.units.keys().copied().collect();
        all.into_iter().for_each(|id| self.leave(now_ms, id));
        self.shapes.retain(|_, t| !matches!(t, Trust::Probing(_)));
        self.queue.destroys.clear();
        self.candidates.take();
        self.counting.left.clear();
    }

    /// Handles the end of a flush of the adapter's table: rules requested before it do not exist.
    pub fn flushed(&mut self) {
        let all: Vec<Id> = self.units.keys().copied().collect();
        all.into_iter().for_each(|id| self.forget(id));
        self.by_rule.clear();
        self.by_flow.clear();
        self.by_outer.clear();
        self.queue.requests.clear();
        self.queue.destroys.clear();
        (self.queue.under_way, self.counting.under_way) = (0, 0);
    }
}
