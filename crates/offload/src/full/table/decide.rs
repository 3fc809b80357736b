//! Decides once per second which flows enter the adapter, and which leave.

use super::*;
use crate::pick::{Candidate, RESIDENCE_MS};

/// Time from the beginning of one pass over all counters to the next, milliseconds.
const COUNT_MS: u64 = 500;
/// Requests for counters that are not answered, at most.
const COUNTS_MAX: usize = 4;
/// A flow whose rule had no packets gets another rule after this time, milliseconds.
const SILENT_MS: u64 = 60_000;
/// A bound that is higher than the capacity of any adapter.
const RULES_MAX: usize = 1 << 20;

impl ForwardTable {
    /// Records that the host received packets of a flow at this rate. Called once per second and
    /// flow.
    pub fn observe(&mut self, flow: FlowId, pps: f32) {
        for id in self.by_flow.get(&flow).into_iter().flatten() {
            self.units.get_mut(id).expect("both or none").host_pps += pps;
        }
        if !self.is_whole(flow) && pps >= self.enter_pps() {
            self.candidates.push(Candidate { flow, pps });
        }
    }

    /// Decides at the end of a second. `find`: the rules for a flow that is still there; several if
    /// its packets' outer headers are of several megaflows.
    pub fn decide(&mut self, now_ms: u64, find: &mut dyn FnMut(FlowId) -> Vec<Plan>) {
        self.pace.advance(now_ms);
        let seconds = now_ms.saturating_sub(self.decided_ms).max(1) as f32 / 1000.0;
        self.decided_ms = now_ms;
        self.cooling.retain(|_, until| *until > now_ms);
        self.heirs.retain(|_, (_, until)| *until > now_ms);
        for unit in self.units.values_mut() {
            unit.pps = 0.5 * (unit.pps + std::mem::take(&mut unit.recent) / seconds);
        }
        self.end_idle(now_ms);
        self.expire_probes(now_ms);
        let others = self.units.iter().filter(|(_, u)| u.is_settled(now_ms));
        let mut victims: Vec<(f32, Id)> = others.map(|(id, u)| (u.pps, *id)).collect();
        victims.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for c in self.candidates.take() {
            if self.cooling.contains_key(&c.flow) {
                continue;
            }
            for plan in find(c.flow) {
                if self.takes(now_ms, &plan.rule).is_err()
                    || self.share(c, &plan)
                    || !self.trusts(now_ms, c.flow, &plan)
                {
                    continue;
                }
                if !self.make_room(now_ms, c.pps, &mut victims) {
                    return;
                }
                self.enter(now_ms, c, plan);
            }
        }
    }

    /// True if flows are expected to come again with other operations.
    pub fn expects(&self) -> bool {
        !self.heirs.is_empty()
    }

    /// Handles a new flow for which there could be this rule. If a rule with the same packets was
    /// there until lately, this one is requested at once.
    pub fn follow(&mut self, now_ms: u64, flow: FlowId, plan: Plan) {
        let heir = self.heirs.remove(&plan.rule.items).filter(|(_, until)| *until > now_ms);
        let Some((pps, _)) = heir else { return };
        let c = Candidate { flow, pps };
        let may = self.takes(now_ms, &plan.rule).is_ok() && self.is_honoured(&plan.rule);
        if may && !self.share(c, &plan) && self.make_room(now_ms, pps, &mut Vec::new()) {
            self.enter(now_ms, c, plan);
        }
    }

    /// Removes rules whose flows have no packets any more. A rule whose flow's packets all reach
    /// the host does not work.
    fn end_idle(&mut self, now_ms: u64) {
        let enter = self.enter_pps();
        let mut idle = Vec::new();
        for (id, unit) in &mut self.units {
            let host_pps = std::mem::take(&mut unit.host_pps);
            if unit.is_settled(now_ms) && unit.pps < enter * pick::LEAVE_PART {
                idle.push((*id, unit.plan.outer.is_none() && host_pps >= enter));
            }
        }
        for (id, silent) in idle {
            let flows = self.units[&id].flows.clone();
            self.leave(now_ms, id);
            if silent {
                self.stats.rules.silent += 1;
                self.cooling.extend(flows.into_iter().map(|f| (f, now_ms + SILENT_MS)));
            }
        }
    }

    /// If the rule exists already, for another worker's flow, adds this flow to it; true if so.
    fn share(&mut self, c: Candidate, plan: &Plan) -> bool {
        let Some(id) = self.by_rule.get(&plan.rule).copied() else { return false };
        let unit = self.units.get_mut(&id).expect("both or none");
        if !unit.flows.contains(&c.flow) {
            unit.flows.push(c.flow);
            self.by_flow.entry(c.flow).or_default().insert(id);
            self.watch(id, c.flow, plan.outer_bytes, false);
        }
        true
    }

    /// True if there is room for a flow with this rate, or room can be made.
    fn make_room(&mut self, now_ms: u64, pps: f32, victims: &mut Vec<(f32, Id)>) -> bool {
        if let Some((n, until)) = self.capacity
            && now_ms >= until
        {
            // The table may have room for one more rule by now.
            self.capacity = Some((n + 1, now_ms + FULL_MS));
        }
        if self.units.len() < self.capacity.map_or(RULES_MAX, |(n, _)| n) {
            return self.pace.pay(false);
        }
        let Some((victim, id)) = victims.last().copied() else { return false };
        if !pick::beats(pps, victim) || !self.pace.pay(true) {
            return false;
        }
        victims.pop();
        self.leave(now_ms, id);
        self.stats.rules.swaps += 1;
        true
    }

    fn watch(&mut self, id: Id, flow: FlowId, outer_bytes: u16, counts: bool) {
        self.steps.push_back(Step::Watch { id, flow, outer_bytes, counts });
    }

    fn enter(&mut self, now_ms: u64, c: Candidate, plan: Plan) {
        let (outer, outer_bytes) = (plan.outer, plan.outer_bytes);
        let id = self.insert(now_ms, plan, c.pps);
        self.units.get_mut(&id).expect("it was inserted").flows.push(c.flow);
        self.by_flow.entry(c.flow).or_default().insert(id);
        self.watch(id, c.flow, outer_bytes, true);
        if let Some(outer) = outer {
            self.by_outer.entry(outer).or_default().insert(id);
            self.watch(id, outer, 0, true);
        }
    }

    /// Requests a rule.
    pub(super) fn insert(&mut self, now_ms: u64, plan: Plan, pps: f32) -> Id {
        let id = Id(self.next_id);
        self.next_id += 1;
        self.queue.requests.push_back(ForwardRequest::Create(id, plan.rule.clone()));
        self.by_rule.insert(plan.rule.clone(), id);
        let unit = Unit {
            plan,
            flows: Vec::new(),
            state: State::Waiting,
            pps,
            recent: 0.0,
            since_ms: now_ms,
            reported: RuleCount::default(),
            leaving: None,
            probes: None,
            host_pps: 0.0,
        };
        self.units.insert(id, unit);
        id
    }

    /// Removes a rule. Removals are not limited by the pace, and come before insertions.
    pub(super) fn leave(&mut self, now_ms: u64, id: Id) {
        let Some(unit) = self.units.get_mut(&id) else { return };
        let state = unit.state;
        for flow in std::mem::take(&mut unit.flows) {
            take_out(&mut self.by_flow, flow, id);
            if let State::In(_) = state {
                self.cooling.insert(flow, now_ms + RESIDENCE_MS);
            }
        }
        if self.by_rule.get(&unit.plan.rule) == Some(&id) {
            self.by_rule.remove(&unit.plan.rule);
        }
        if let Some(outer) = unit.plan.outer {
            take_out(&mut self.by_outer, outer, id);
        }
        match state {
            State::Waiting => self.forget(id),
            State::Asked { .. } => unit.state = State::Asked { doomed: true },
            State::In(rule) => {
                unit.state = State::Leaving;
                self.queue.destroys.push_back(ForwardRequest::Destroy(id, rule));
            }
            State::Leaving => {}
        }
        self.number(id);
    }

    /// Gives a leaving rule its number.
    fn number(&mut self, id: Id) {
        if let Some(unit) = self.units.get_mut(&id)
            && unit.leaving.is_none()
        {
            self.leaving.last += 1;
            unit.leaving = Some(self.leaving.last);
            self.leaving.ids.insert(self.leaving.last, id);
        }
    }

    /// Requests counters, so that all are read twice a second.
    pub fn count(&mut self, now_ms: u64) {
        let c = &mut self.counting;
        if c.left.is_empty() && c.under_way == 0 {
            if c.began_ms > c.counted_ms {
                c.counted_ms = c.began_ms;
            }
            if now_ms < c.began_ms + COUNT_MS {
                return;
            }
            c.began_ms = now_ms;
            let inside = self.units.iter().filter(|(_, u)| matches!(u.state, State::In(_)));
            c.left = inside.map(|(id, _)| *id).collect();
        }
        while c.under_way < COUNTS_MAX && !c.left.is_empty() {
            let some = c.left.split_off(c.left.len().saturating_sub(COUNT_RULES));
            let rule = |id: Id| match self.units.get(&id)?.state {
                State::In(rule) => Some((id, rule)),
                _ => None,
            };
            let some: Vec<(Id, RuleId)> = some.into_iter().filter_map(rule).collect();
            if !some.is_empty() {
                c.under_way += 1;
                self.queue.requests.push_front(ForwardRequest::Count(some));
            }
        }
    }
}

/// Removes the rule from those of the flow.
fn take_out(rules: &mut HashMap<FlowId, BTreeSet<Id>>, flow: FlowId, id: Id) {
    if let Some(all) = rules.get_mut(&flow) {
        all.remove(&id);
        if all.is_empty() {
            rules.remove(&flow);
        }
    }
}
