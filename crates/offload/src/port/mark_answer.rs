//! Answers of the adapter, and flows that ended.

use super::*;
use crate::class::{Class, class};
use port::RuleError;

/// Time after which a refused form of rules is tried again, milliseconds; doubled with each
/// refusal.
const BARRED_MS: u64 = 60_000;
/// Longest such time, milliseconds.
const BARRED_MS_MAX: u64 = 3_600_000;
/// An adapter that does not work is asked again after this time, milliseconds.
const PROBE_MS: u64 = 1000;

impl Port {
    /// Handles the end of a flow in the datapath, which also ended the flow's binding.
    pub fn gone(&mut self, now_ms: u64, flow: FlowId) {
        self.cooling.remove(&flow);
        let Some(mark) = self.by_flow.remove(&flow) else { return };
        let unit = self.units.get_mut(&mark).expect("both or none");
        unit.flows.retain(|f| *f != flow);
        if unit.flows.is_empty() {
            self.leave(now_ms, mark);
        }
    }

    /// Handles an answer of the adapter.
    pub fn answer(&mut self, now_ms: u64, answer: MarkAnswer) {
        match answer.outcome {
            Outcome::Created(mark, result) => {
                self.pace.took(answer.took_us, answer.cpu_us);
                match result {
                    Ok(id) => self.created(now_ms, mark, id),
                    Err(e) => self.refused(now_ms, mark, e),
                }
            }
            Outcome::Destroyed(mark, result) => {
                if self.units.remove(&mark).is_none() {
                    return;
                }
                self.stats.rules.removed += 1;
                match result {
                    Ok(()) => self.marks.give_back(mark, now_ms),
                    Err(e) => {
                        // It is not known whether the rule exists: its mark is not used again.
                        self.stats.rules.stuck += 1;
                        self.stuck += 1;
                        *self.stats.rules.refused.entry(e.errno).or_default() += 1;
                        if class(e.errno) == Class::Ill {
                            self.fall_ill(now_ms);
                        }
                    }
                }
            }
            Outcome::Flushed(result) => {
                self.unable = result.as_ref().is_err_and(|e| e.errno == libc::ENOSYS);
                self.ill = result.err().filter(|_| !self.unable).map(|_| now_ms + PROBE_MS);
            }
        }
    }

    fn created(&mut self, now_ms: u64, mark: Mark, id: RuleId) {
        // An answer from before all rules were given up: the rule was flushed since.
        let Some(unit) = self.units.get_mut(&mark) else { return };
        self.stats.rules.inserted += 1;
        let doomed = unit.state == State::Creating { doomed: true };
        unit.state = State::In(id);
        unit.since_ms = now_ms;
        if doomed {
            return self.leave(now_ms, mark);
        }
        for flow in &unit.flows {
            let bytes = Box::new(unit.bytes.clone());
            self.bindings.push_back(Binding::Bind(*flow, mark, bytes));
        }
    }

    fn refused(&mut self, now_ms: u64, mark: Mark, e: RuleError) {
        *self.stats.rules.refused.entry(e.errno).or_default() += 1;
        let Some(unit) = self.units.get_mut(&mark) else { return };
        let form = form_of(&unit.pattern);
        self.forget(now_ms, mark);
        match class(e.errno) {
            Class::Full => {
                let inside = self.rules();
                self.capacity = Some((inside, now_ms + FULL_MS));
                self.withdraw_waiting(now_ms);
            }
            // A rule that could not be removed may be in conflict: all are flushed.
            Class::Form if e.errno == libc::EEXIST && self.stuck > 0 => self.fall_ill(now_ms),
            Class::Form => {
                let other = |u: &Unit| {
                    matches!(u.state, State::In(_))
                        && u.pattern.headers == form.0
                        && u.pattern.mask != form.1
                };
                let reason = match self.units.values().any(other) {
                    true => Reason::MaskConflict,
                    false => Reason::Refused(e.to_string()),
                };
                self.bar(now_ms, form, reason);
            }
            Class::Busy => self.pace.busy(),
            Class::Ill => self.fall_ill(now_ms),
        }
    }

    /// Forgets a rule that is not in the adapter and will not be.
    pub(super) fn forget(&mut self, now_ms: u64, mark: Mark) {
        self.leave(now_ms, mark);
        self.units.remove(&mark);
        self.marks.give_back(mark, now_ms);
    }

    /// Makes insertions that were not sent yet candidates again.
    pub(super) fn withdraw_waiting(&mut self, now_ms: u64) {
        let waiting = std::mem::take(&mut self.requests);
        for request in waiting {
            match request {
                MarkRequest::Create(mark, _) => self.forget(now_ms, mark),
                other => self.requests.push_back(other),
            }
        }
    }

    pub(super) fn bar(&mut self, now_ms: u64, form: Form, reason: Reason) {
        let before = self.barred.get(&form).map_or(0, |b| b.wait_ms);
        let fresh = self.barred.get(&form).is_none_or(|b| b.until_ms <= now_ms);
        let wait_ms = match (before, fresh) {
            (0, _) => BARRED_MS,
            (wait, true) => (2 * wait).min(BARRED_MS_MAX),
            (wait, false) => wait,
        };
        self.barred.insert(form, Barred { until_ms: now_ms + wait_ms, wait_ms, reason });
    }

    /// Handles a reset or removal of the adapter: its rules do not exist any more.
    pub fn upset(&mut self, now_ms: u64) {
        self.stats.resets += 1;
        self.fall_ill(now_ms);
    }

    /// Gives all rules up: marks from before are invalid, and the adapter is asked every second
    /// whether it works again. Also called when the port restarts or was reset.
    pub fn fall_ill(&mut self, now_ms: u64) {
        for (mark, unit) in std::mem::take(&mut self.units) {
            if let State::In(_) = unit.state {
                self.stats.rules.removed += 1;
                let unbind = unit.flows.into_iter().map(|flow| Binding::Unbind(flow, mark));
                self.bindings.extend(unbind);
            }
            self.marks.give_back(mark, now_ms);
        }
        self.by_flow.clear();
        self.by_pattern.clear();
        self.candidates.take();
        self.requests.clear();
        self.stuck = 0;
        self.stats.flushes += 1;
        self.ill = Some(now_ms + PROBE_MS);
    }
}
