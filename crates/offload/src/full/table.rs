//! One port's rules that forward: what is in the adapter, what should be, and why not.

mod answer;
mod decide;
mod trust;

use super::plan::Plan;
use crate::pace::Pace;
use crate::pick::{self, Candidates};
use crate::reason::Reason;
use crate::types::{FlowId, Limits, RuleStats};
use port::{Edit, Fate, ForwardRule, Header, Item, RuleCount, RuleError, RuleId};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use trust::{Shape, Trust, shape_of};

/// What a rule saves the host: receive, parse, lookup, actions and send, cycles per packet.
const SAVED_CYCLES: f32 = 155.0;
/// A form or shape of rules that was refused is tried again after so long, then twice as long, up
/// to:
const BARRED_MS: u64 = 60_000;
const BARRED_MS_MAX: u64 = 3_600_000;
/// A full table is tried again after so long.
const FULL_MS: u64 = 10_000;
/// Rules that are asked about in one request.
const COUNT_RULES: usize = 64;
/// Requests for insertions that the adapter has not answered, at most: who waits for a rule to go
/// waits for these.
const UNDER_WAY_MAX: usize = 16;

/// A rule, or one to be; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

/// What the adapter is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum ForwardRequest {
    /// Make a rule.
    Create(Id, ForwardRule),
    /// Say what it had, then end it. Before everything else that waits.
    Destroy(Id, RuleId),
    /// Say what these had.
    Count(Vec<(Id, RuleId)>),
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Of [`ForwardRequest::Create`].
    Created(Id, Result<RuleId, RuleError>),
    /// Of [`ForwardRequest::Destroy`], with the last counters, if they could be read.
    Destroyed(Id, Option<RuleCount>, Result<(), RuleError>),
    /// Of [`ForwardRequest::Count`]: those that could be read.
    Counted(Vec<(Id, RuleCount)>),
}

/// What the datapath is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// That this megaflow ends is to be reported ([`ForwardTable::gone`]) before a change is
    /// complete; also if it is gone already.
    Watch {
        /// What does its work.
        id: Id,
        /// The megaflow.
        flow: FlowId,
        /// Bytes of each packet of the rule that the megaflow has not.
        outer_bytes: u16,
        /// The rule's packets are to be counted as this one's; else they are counted already, and
        /// it is merely in use.
        counts: bool,
    },
    /// The rule had so many packets and bytes more.
    Credit {
        /// The rule.
        id: Id,
        /// As they came in.
        more: RuleCount,
        /// Bytes as they went out, if they did.
        sent_bytes: u64,
        /// Where they went.
        fate: Fate,
    },
    /// Of the rule nothing will be heard any more.
    Unwatch(Id),
}

/// Counters of rules that forward, since the port was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardStats {
    /// Rules.
    pub rules: RuleStats,
    /// Counters that were less than before.
    pub went_back: u64,
    /// Packets that the adapter forwarded or dropped.
    pub packets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The adapter was not asked yet.
    Waiting,
    /// It was asked; `doomed`: the rule is not wanted any more.
    Asked {
        doomed: bool,
    },
    In(RuleId),
    Leaving,
}

struct Unit {
    plan: Plan,
    flows: Vec<FlowId>,
    state: State,
    /// Packets per second, smoothed; and packets since that was reckoned.
    pps: f32,
    recent: f32,
    since_ms: u64,
    reported: RuleCount,
    /// Its number among those that leave.
    leaving: Option<u64>,
    /// It forwards nothing, but shows whether rules of this shape would have packets of others.
    probes: Option<Shape>,
    /// Packets per second that the host had of its flows, of the second that ends.
    host_pps: f32,
}

impl Unit {
    /// Does it forward, and for so long that what it had says something?
    fn is_settled(&self, now_ms: u64) -> bool {
        let inside = matches!(self.state, State::In(_)) && self.probes.is_none();
        inside && now_ms >= self.since_ms + pick::RESIDENCE_MS
    }
}

/// Rules of one form are refused or taken together: headers, masks, kinds of edits.
type Form = (Shape, Vec<std::mem::Discriminant<Edit>>, bool);

struct Barred {
    until_ms: u64,
    wait_ms: u64,
    reason: Reason,
}

impl Barred {
    /// From now on, after it was barred for `before` milliseconds.
    fn again(now_ms: u64, before: u64, reason: Reason) -> Barred {
        let wait_ms = (2 * before).clamp(BARRED_MS, BARRED_MS_MAX);
        Barred { until_ms: now_ms + wait_ms, wait_ms, reason }
    }
}

/// The rules that forward of one port, and what became of each. One thread owns it;
/// [`ForwardTable::next_request`] and [`ForwardTable::next_step`] say what others are to do.
pub struct ForwardTable {
    limits: Limits,
    units: HashMap<Id, Unit>,
    by_rule: HashMap<ForwardRule, Id>,
    /// A flow has several if its packets' outer headers are several megaflows'.
    by_flow: HashMap<FlowId, BTreeSet<Id>>,
    /// Rules that take off the outer header which this megaflow is about.
    by_outer: HashMap<FlowId, BTreeSet<Id>>,
    candidates: Candidates,
    barred: HashMap<Form, Barred>,
    shapes: HashMap<Shape, Trust>,
    cooling: HashMap<FlowId, u64>,
    /// Patterns of rules whose flows ended, packets per second that they had, and until when that
    /// counts.
    heirs: HashMap<Vec<Item>, (f32, u64)>,
    pace: Pace,
    queue: Queue,
    steps: VecDeque<Step>,
    next_id: u64,
    leaving: Leaving,
    capacity: Option<(usize, u64)>,
    decided_ms: u64,
    counting: Counting,
    stats: ForwardStats,
}

/// What the adapter is still to be asked.
#[derive(Default)]
struct Queue {
    requests: VecDeque<ForwardRequest>,
    /// Before all others.
    destroys: VecDeque<ForwardRequest>,
    /// Rules to be made that the adapter has not answered yet.
    under_way: usize,
}

/// Rules that leave.
#[derive(Default)]
struct Leaving {
    /// In the order in which they were asked to, by the number that each got.
    ids: BTreeMap<u64, Id>,
    /// The number that the last one got.
    last: u64,
    /// What ending one takes, microseconds.
    destroy_us: f64,
}

/// The pass over all counters that is under way.
#[derive(Default)]
struct Counting {
    /// Who is still to be asked about.
    left: Vec<Id>,
    /// Requests without an answer.
    under_way: usize,
    began_ms: u64,
    /// When the last complete pass began.
    known_ms: u64,
}

impl ForwardTable {
    /// No rules yet; the adapter's table was flushed.
    pub fn new(limits: Limits, now_ms: u64) -> ForwardTable {
        ForwardTable {
            limits: Limits { saved_cycles: SAVED_CYCLES, ..limits },
            units: HashMap::new(),
            by_rule: HashMap::new(),
            by_flow: HashMap::new(),
            by_outer: HashMap::new(),
            candidates: Candidates::default(),
            barred: HashMap::new(),
            shapes: HashMap::new(),
            cooling: HashMap::new(),
            heirs: HashMap::new(),
            pace: Pace::new(now_ms),
            queue: Queue::default(),
            steps: VecDeque::new(),
            next_id: 1,
            leaving: Leaving::default(),
            capacity: None,
            decided_ms: now_ms,
            counting: Counting { known_ms: now_ms, ..Counting::default() },
            stats: ForwardStats::default(),
        }
    }

    /// What the datapath is to do next. All steps come before the requests.
    pub fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// What the adapter is to do next.
    pub fn next_request(&mut self) -> Option<ForwardRequest> {
        if let Some(destroy) = self.queue.destroys.pop_front() {
            return Some(destroy);
        }
        while self.queue.under_way < UNDER_WAY_MAX
            && let Some(request) = self.queue.requests.pop_front()
        {
            let ForwardRequest::Create(id, _) = &request else { return Some(request) };
            // It may have left while it waited.
            if let Some(unit) = self.units.get_mut(id) {
                unit.state = State::Asked { doomed: false };
                self.queue.under_way += 1;
                return Some(request);
            }
        }
        None
    }

    /// Counters.
    pub fn stats(&self) -> &ForwardStats {
        &self.stats
    }

    /// Rules in the adapter that forward.
    pub fn rules(&self) -> usize {
        let forwards = |u: &&Unit| matches!(u.state, State::In(_)) && u.probes.is_none();
        self.units.values().filter(forwards).count()
    }

    /// Is there any rule, also one that is only asked for or leaves?
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Rules that are thought to fit, if that was found out.
    pub fn capacity(&self) -> Option<usize> {
        self.capacity.map(|(n, _)| n)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.queue.requests.len() + self.queue.destroys.len()
    }

    /// The number that the last rule to leave got; and the least number of those that are not gone
    /// yet.
    pub fn leaving(&self) -> (u64, Option<u64>) {
        (self.leaving.last, self.leaving.ids.keys().next().copied())
    }

    /// How long it will take until all that leave are gone, milliseconds.
    pub fn leaving_ms(&self) -> u64 {
        (self.leaving.ids.len() as f64 * self.leaving.destroy_us / 1000.0) as u64
    }

    /// All packets before this time, in milliseconds, were reported to the datapath.
    pub fn known_ms(&self) -> u64 {
        self.counting.known_ms
    }

    /// Packets per second from which on a flow is worth a rule.
    pub fn enter_pps(&self) -> f32 {
        let us = self.pace.cpu_us() as f32;
        pick::enter_pps(us * self.limits.cycles_per_us, self.limits.saved_cycles, 10.0)
    }

    /// Is a rule of the flow in the adapter?
    pub fn is_in(&self, flow: FlowId) -> bool {
        self.rules_of(flow).any(|u| matches!(u.state, State::In(_)))
    }

    /// Is a rule of the flow there or on its way?
    pub fn has(&self, flow: FlowId) -> bool {
        self.rules_of(flow).next().is_some()
    }

    /// Rules that have packets of the flow.
    fn rules_of(&self, flow: FlowId) -> impl Iterator<Item = &Unit> {
        let (own, outer) = (self.by_flow.get(&flow), self.by_outer.get(&flow));
        own.into_iter().chain(outer).flatten().map(|id| &self.units[id])
    }

    /// Does one rule have all of the flow's packets?
    fn is_whole(&self, flow: FlowId) -> bool {
        self.rules_of(flow).any(|u| u.plan.outer.is_none())
    }

    /// May a rule like this be asked for?
    pub fn takes(&self, now_ms: u64, rule: &ForwardRule) -> Result<(), Reason> {
        let form = self.barred.get(&form_of(rule));
        let shape = match self.shapes.get(&shape_of(rule)) {
            Some(Trust::Barred(b)) => Some(b),
            _ => None,
        };
        match form.into_iter().chain(shape).find(|b| b.until_ms > now_ms) {
            Some(b) => Err(b.reason.clone()),
            None => Ok(()),
        }
    }

    /// Why a flow with so many packets per second, for which there could be a rule, is in the
    /// adapter, or why not.
    pub fn reason(&self, now_ms: u64, flow: FlowId, pps: f32) -> Reason {
        if self.has(flow) {
            return if self.is_in(flow) { Reason::Full } else { Reason::Pending };
        }
        if self.cooling.get(&flow).is_some_and(|until| *until > now_ms) {
            return Reason::CoolingDown;
        }
        let full = self.capacity.is_some_and(|(n, _)| self.units.len() >= n);
        match pps >= self.enter_pps() {
            false => Reason::NotHot,
            true if full => Reason::TableFull,
            true => Reason::Pending,
        }
    }
}

/// Bytes that a packet has more behind the edits than before.
fn growth(plan: &Plan) -> i64 {
    let one = |e: &Edit| match e {
        Edit::PopVlan => -4,
        Edit::PushVlan { .. } => 4,
        Edit::VxlanDecap => -i64::from(plan.outer_bytes),
        Edit::VxlanEncap(headers) => headers.len() as i64,
        _ => 0,
    };
    plan.rule.edits.iter().map(one).sum()
}

fn form_of(rule: &ForwardRule) -> Form {
    let edits = rule.edits.iter().map(std::mem::discriminant).collect();
    (shape_of(rule), edits, rule.fate == Fate::Drop)
}
