//! Decides once per second which flows enter the adapter, and which leave.

use super::*;
use crate::bytes::first_bytes;
use crate::mark::SLOTS;
use crate::pick::{self, Candidate, RESIDENCE_MS};
use flow::{Key, Mask};
use port::MarkRule;

/// Time for which a mask stays at least, on adapters with one mask per packet type, milliseconds.
const MASK_STAYS_MS: u64 = 30_000;
/// Packets of other flows with a rule's mark, in a second, from which on the rule is removed.
const WRONG_MIN: u32 = 16;
/// Their share of the rule's marked packets from which on the rule is removed.
const WRONG_PART: f32 = 1.0 / 64.0;
/// Packets per second of a flow, none of them marked, from which on its rule is taken to be missing
/// or too narrow.
const SILENT_PPS_MIN: f32 = 50.0;
/// Seconds in a row for which that has to be so.
const SILENT_S: u32 = 3;

impl Port {
    /// Records a flow's packets in the second that ends. Called once per second and flow.
    pub fn observe(&mut self, flow: FlowId, pps: f32) {
        match self.by_flow.get(&flow) {
            Some(mark) => self.units.get_mut(mark).expect("both or none").recent += pps,
            None if pps >= self.enter_pps() => self.candidates.push(Candidate { flow, pps }),
            None => {}
        }
    }

    /// Records for the second that ends how many packets with this mark were of other flows, and
    /// whether some were of its own. Called between the flows' [`Port::observe`] and
    /// [`Port::decide`].
    pub fn compared(&mut self, now_ms: u64, mark: Mark, wrong: u32, some: bool) {
        let Some(unit) = self.units.get_mut(&mark) else { return };
        let settled = now_ms >= unit.since_ms + RESIDENCE_MS;
        match settled && !some && unit.recent >= SILENT_PPS_MIN {
            true => unit.silent_s += 1,
            false => unit.silent_s = 0,
        }
        if wrong >= WRONG_MIN && wrong as f32 > unit.pps * WRONG_PART {
            let form = form_of(&unit.pattern);
            self.leave(now_ms, mark);
            self.stats.rules.wider += 1;
            self.bar(now_ms, form, Reason::Wider);
        } else if unit.silent_s >= SILENT_S {
            self.leave(now_ms, mark);
            self.stats.rules.silent += 1;
        }
    }

    /// Decides at the end of a second. `find`: key and mask of a flow that is still there.
    pub fn decide(&mut self, now_ms: u64, find: &mut dyn FnMut(FlowId) -> Option<(Key, Mask)>) {
        self.pace.advance(now_ms);
        if self.unable || self.ill.is_some() {
            self.candidates.take();
            let at = self.ill.unwrap_or(0);
            if at != 0 && now_ms >= at {
                self.ill = Some(0);
                self.requests.push_back(MarkRequest::Flush);
            }
            return;
        }
        if self.worth == Worth::Withdrawn {
            return self.withdraw(now_ms);
        }
        let leave = self.enter_pps() * pick::LEAVE_PART;
        self.cooling.retain(|_, until| *until > now_ms);
        for unit in self.units.values_mut() {
            unit.pps = 0.5 * (unit.pps + unit.recent);
            unit.recent = 0.0;
        }
        let settled =
            |u: &Unit| matches!(u.state, State::In(_)) && now_ms >= u.since_ms + RESIDENCE_MS;
        let idle = self.units.iter().filter(|(_, u)| settled(u) && u.pps < leave);
        let idle: Vec<Mark> = idle.map(|(m, _)| *m).collect();
        idle.into_iter().for_each(|mark| self.leave(now_ms, mark));
        let others = self.units.iter().filter(|(_, u)| settled(u));
        let mut victims: Vec<(f32, Mark)> = others.map(|(m, u)| (u.pps, *m)).collect();
        victims.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut blocked = HashMap::<Form, f32>::new();
        for c in self.candidates.take() {
            if self.cooling.contains_key(&c.flow) {
                continue;
            }
            let Some((key, mask)) = find(c.flow) else { continue };
            let Ok((bytes, pattern)) = first_bytes(&key, &mask) else { continue };
            if self.join(c, &pattern) {
                continue;
            }
            let form = form_of(&pattern);
            if let Some(b) = self.barred.get(&form).filter(|b| b.until_ms > now_ms) {
                if b.reason == Reason::MaskConflict {
                    *blocked.entry(form).or_default() += c.pps;
                }
                continue;
            }
            if !self.make_room(now_ms, c.pps, &mut victims) {
                break;
            }
            self.enter(now_ms, c, pattern, bytes);
        }
        self.change_masks(now_ms, &blocked);
    }

    /// Removes all rules.
    fn withdraw(&mut self, now_ms: u64) {
        self.candidates.take();
        self.withdraw_waiting(now_ms);
        let all: Vec<Mark> = self.units.keys().copied().collect();
        all.into_iter().for_each(|mark| self.leave(now_ms, mark));
    }

    /// If another worker's flow has the same rule already, adds this flow to it; true if so.
    fn join(&mut self, c: Candidate, pattern: &Pattern) -> bool {
        let Some(mark) = self.by_pattern.get(pattern).copied() else {
            return false;
        };
        let unit = self.units.get_mut(&mark).expect("both or none");
        unit.flows.push(c.flow);
        unit.recent += c.pps;
        self.by_flow.insert(c.flow, mark);
        if let State::In(_) = unit.state {
            let bytes = Box::new(unit.bytes.clone());
            self.bindings.push_back(Binding::Bind(c.flow, mark, bytes));
        }
        true
    }

    /// True if there is room for a flow with this rate, or room can be made.
    fn make_room(&mut self, now_ms: u64, pps: f32, victims: &mut Vec<(f32, Mark)>) -> bool {
        if let Some((n, until)) = self.capacity
            && now_ms >= until
        {
            // The table may have room for one more rule by now.
            self.capacity = Some((n + 1, now_ms + FULL_MS));
        }
        let room = self.capacity.map_or(SLOTS - 2, |(n, _)| n);
        if self.marks.used() < room {
            return self.pace.pay(false);
        }
        let Some((victim, mark)) = victims.last().copied() else { return false };
        if !pick::beats(pps, victim) || !self.pace.pay(true) {
            return false;
        }
        victims.pop();
        self.leave(now_ms, mark);
        self.stats.rules.swaps += 1;
        true
    }

    fn enter(&mut self, now_ms: u64, c: Candidate, pattern: Pattern, bytes: FirstBytes) {
        let Some(mark) = self.marks.take(now_ms) else { return };
        let rule = MarkRule { pattern: pattern.clone(), mark: mark.number() };
        self.requests.push_back(MarkRequest::Create(mark, rule));
        self.by_pattern.insert(pattern.clone(), mark);
        self.by_flow.insert(c.flow, mark);
        let (state, flows) = (State::Creating { doomed: false }, vec![c.flow]);
        let (pps, recent, since_ms) = (c.pps, 0.0, now_ms);
        let silent_s = 0;
        let unit = Unit { pattern, bytes, flows, state, pps, recent, since_ms, silent_s };
        self.units.insert(mark, unit);
    }

    /// Removes a rule. Removals are not limited by the pace, and come before insertions.
    pub(super) fn leave(&mut self, now_ms: u64, mark: Mark) {
        let Some(unit) = self.units.get_mut(&mark) else { return };
        for flow in std::mem::take(&mut unit.flows) {
            self.by_flow.remove(&flow);
            if let State::In(_) = unit.state {
                self.cooling.insert(flow, now_ms + RESIDENCE_MS);
                self.bindings.push_back(Binding::Unbind(flow, mark));
            }
        }
        self.by_pattern.remove(&unit.pattern);
        match unit.state {
            State::Creating { .. } => unit.state = State::Creating { doomed: true },
            State::In(id) => {
                unit.state = State::Leaving;
                self.requests.push_front(MarkRequest::Destroy(mark, id));
            }
            State::Leaving => {}
        }
    }

    /// Changes the mask, on adapters with one mask per packet type, if another one is worth more
    /// than those in the table, and those have stayed long enough.
    fn change_masks(&mut self, now_ms: u64, blocked: &HashMap<Form, f32>) {
        let best = blocked.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let Some((form, pps)) = best else { return };
        let same_type = |u: &&Unit| u.pattern.headers == form.0 && u.pattern.mask != form.1;
        let inside = || self.units.values().filter(same_type);
        let sum: f32 = inside().map(|u| u.pps).sum();
        let since = inside().map(|u| u.since_ms).min().unwrap_or(0);
        if !pick::beats(*pps, sum) || now_ms < since + MASK_STAYS_MS {
            return;
        }
        let all =
            self.units.iter().filter(|(_, u)| same_type(u)).map(|(m, u)| (*m, form_of(&u.pattern)));
        let all: Vec<(Mark, Form)> = all.collect();
        for (mark, old) in all {
            self.leave(now_ms, mark);
            self.bar(now_ms, old, Reason::MaskConflict);
        }
        self.barred.remove(form);
    }
}
