//! The forwarding rules of one port: which are in the adapter, which should be, and why others are
//! not.

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

/// Cycles per packet that a rule saves the host: receive, parse, lookup, actions and send.
const SAVED_CYCLES: f32 = 155.0;
/// Time after which a refused form or shape of rules is tried again, milliseconds; doubled with
/// each refusal.
const BARRED_MS: u64 = 60_000;
/// Longest such time, milliseconds.
const BARRED_MS_MAX: u64 = 3_600_000;
/// A full table is tried again after this time, milliseconds.
const FULL_MS: u64 = 10_000;
/// Rules whose counters are read by one request, at most.
const COUNT_RULES: usize = 64;
/// Insertions that were sent to the adapter and are not answered, at most. The removal of a rule
/// waits behind these.
const UNDER_WAY_MAX: usize = 16;

/// Identity of a rule, or of one that is to be made. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

/// A request to the adapter.
#[derive(Clone, Debug, PartialEq)]
pub enum ForwardRequest {
    /// Make a rule.
    Create(Id, ForwardRule),
    /// Read the counters of this rule, then remove it. Removals come before all other requests.
    Destroy(Id, RuleId),
    /// Read the counters of these rules.
    Count(Vec<(Id, RuleId)>),
}

/// The adapter's answer to a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The answer to [`ForwardRequest::Create`].
    Created(Id, Result<RuleId, RuleError>),
    /// The answer to [`ForwardRequest::Destroy`], with the last counters if they could be read.
    Destroyed(Id, Option<RuleCount>, Result<(), RuleError>),
    /// The answer to [`ForwardRequest::Count`]: the counters that could be read.
    Counted(Vec<(Id, RuleCount)>),
}

/// A request to the datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Watch a megaflow: its end is to be reported ([`ForwardTable::gone`]) before a change is
    /// complete, even if it has ended already.
    Watch {
        /// The rule that forwards its packets.
        id: Id,
        /// The megaflow.
        flow: FlowId,
        /// Bytes of each packet of the rule that the megaflow does not count.
        outer_bytes: u16,
        /// True: the rule's packets are credited to this megaflow. False: to another; this one is
        /// only kept from being idle.
        counts: bool,
    },
    /// Credit packets and bytes that the rule has forwarded since the last time.
    Credit {
        /// The rule.
        id: Id,
        /// Packets and bytes as received.
        more: RuleCount,
        /// Bytes as sent, if they were sent.
        sent_bytes: u64,
        /// Where the rule sends packets.
        fate: Fate,
    },
    /// End the watch of this rule: it has no further packets.
    Unwatch(Id),
}

/// Counters of forwarding rules since the port was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardStats {
    /// Counters of all rules.
    pub rules: RuleStats,
    /// How often an adapter's counter had gone back.
    pub went_back: u64,
    /// Packets that the adapter forwarded or dropped.
    pub packets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The adapter was not asked yet.
    Waiting,
    /// The adapter was asked to create the rule, and has not answered. `doomed`: the rule is to be
    /// removed when it is created.
    Asked {
        doomed: bool,
    },
    In(RuleId),
    Leaving,
}

/// A forwarding rule, in the adapter or on its way there.
struct Unit {
    plan: Plan,
    flows: Vec<FlowId>,
    state: State,
    /// Packets per second, a moving average.
    pps: f32,
    /// Packets since `pps` was updated.
    recent: f32,
    since_ms: u64,
    reported: RuleCount,
    /// Its number among the rules that leave; None: it does not leave.
    leaving: Option<u64>,
    /// The rule is a probe of this shape: it forwards nothing, but counts packets that it should
    /// not match.
    probes: Option<Shape>,
    /// Packets per second that the host received of its flows, in the current second.
    host_pps: f32,
}

impl Unit {
    /// True if it forwards, and has done so for long enough for its counters to be significant.
    fn is_settled(&self, now_ms: u64) -> bool {
        let inside = matches!(self.state, State::In(_)) && self.probes.is_none();
        inside && now_ms >= self.since_ms + pick::RESIDENCE_MS
    }
}

/// A form: rules of one form (headers, masks, kinds of edits) are refused or accepted together.
type Form = (Shape, Vec<std::mem::Discriminant<Edit>>, bool);

struct Barred {
    until_ms: u64,
    wait_ms: u64,
    reason: Reason,
}

impl Barred {
    /// Barred from now on; `before`: how long it was barred the last time, milliseconds.
    fn again(now_ms: u64, before: u64, reason: Reason) -> Barred {
        let wait_ms = (2 * before).clamp(BARRED_MS, BARRED_MS_MAX);
        Barred { until_ms: now_ms + wait_ms, wait_ms, reason }
    }
}

/// The forwarding rules of one port. One thread owns it, and passes on what
/// [`ForwardTable::next_request`] and [`ForwardTable::next_step`] return.
pub struct ForwardTable {
    limits: Limits,
    units: HashMap<Id, Unit>,
    by_rule: HashMap<ForwardRule, Id>,
    /// The rules of each flow. A flow has several if its packets' outer headers are of several
    /// megaflows.
    by_flow: HashMap<FlowId, BTreeSet<Id>>,
    /// The rules that remove the outer header of this megaflow's packets.
    by_outer: HashMap<FlowId, BTreeSet<Id>>,
    candidates: Candidates,
    barred: HashMap<Form, Barred>,
    shapes: HashMap<Shape, Trust>,
    cooling: HashMap<FlowId, u64>,
    /// Patterns of rules whose flows ended: their packets per second, and how long a successor is
    /// expected.
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

/// Requests to the adapter that were not sent yet.
#[derive(Default)]
struct Queue {
    requests: VecDeque<ForwardRequest>,
    /// Removals, which are sent first.
    destroys: VecDeque<ForwardRequest>,
    /// Insertions that were sent and are not answered.
    under_way: usize,
}

/// Rules that leave.
#[derive(Default)]
struct Leaving {
    /// Rules in the order in which they began to leave, by the number that each got.
    ids: BTreeMap<u64, Id>,
    /// The last number that was given.
    last: u64,
    /// How long the removal of a rule takes, microseconds.
    destroy_us: f64,
}

/// The pass over all counters that is under way.
#[derive(Default)]
struct Counting {
    /// Rules whose counters are still to be requested.
    left: Vec<Id>,
    /// Number of requests without an answer.
    under_way: usize,
    began_ms: u64,
    /// When the last complete pass began, milliseconds.
    counted_ms: u64,
}

impl ForwardTable {
    /// An empty table; the adapter's table was flushed.
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
            counting: Counting { counted_ms: now_ms, ..Counting::default() },
            stats: ForwardStats::default(),
        }
    }

    /// The next request to the datapath. All of these come before the next request to the adapter.
    pub fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// The next request to the adapter.
    pub fn next_request(&mut self) -> Option<ForwardRequest> {
        if let Some(destroy) = self.queue.destroys.pop_front() {
            return Some(destroy);
        }
        while self.queue.under_way < UNDER_WAY_MAX
            && let Some(request) = self.queue.requests.pop_front()
        {
            let ForwardRequest::Create(id, _) = &request else { return Some(request) };
            // It may have been removed while it waited.
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

    /// Number of forwarding rules in the adapter.
    pub fn rules(&self) -> usize {
        let forwards = |u: &&Unit| matches!(u.state, State::In(_)) && u.probes.is_none();
        self.units.values().filter(forwards).count()
    }

    /// True if there is no rule, not even one that is requested or leaves.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Number of rules that the adapter's table seems to hold, if it was full once.
    pub fn capacity(&self) -> Option<usize> {
        self.capacity.map(|(n, _)| n)
    }

    /// Number of requests that were not sent yet.
    pub fn waiting(&self) -> usize {
        self.queue.requests.len() + self.queue.destroys.len()
    }

    /// The number that the last leaving rule got, and the least number of those that are not
    /// removed yet.
    pub fn leaving(&self) -> (u64, Option<u64>) {
        (self.leaving.last, self.leaving.ids.keys().next().copied())
    }

    /// Estimated time until all leaving rules are removed, milliseconds.
    pub fn leaving_ms(&self) -> u64 {
        (self.leaving.ids.len() as f64 * self.leaving.destroy_us / 1000.0) as u64
    }

    /// Time up to which all packets were reported to the datapath, milliseconds.
    pub fn counted_ms(&self) -> u64 {
        self.counting.counted_ms
    }

    /// Packets per second from which on a flow is worth a rule.
    pub fn enter_pps(&self) -> f32 {
        let us = self.pace.cpu_us() as f32;
        pick::enter_pps(us * self.limits.cycles_per_us, self.limits.saved_cycles, 10.0)
    }

    /// True if a rule of the flow is in the adapter.
    pub fn is_in(&self, flow: FlowId) -> bool {
        self.rules_of(flow).any(|u| matches!(u.state, State::In(_)))
    }

    /// True if a rule of the flow is in the adapter, or requested.
    pub fn has(&self, flow: FlowId) -> bool {
        self.rules_of(flow).next().is_some()
    }

    /// The rules that forward packets of the flow.
    fn rules_of(&self, flow: FlowId) -> impl Iterator<Item = &Unit> {
        let (own, outer) = (self.by_flow.get(&flow), self.by_outer.get(&flow));
        own.into_iter().chain(outer).flatten().map(|id| &self.units[id])
    }

    /// True if one rule forwards all packets of the flow.
    fn is_whole(&self, flow: FlowId) -> bool {
        self.rules_of(flow).any(|u| u.plan.outer.is_none())
    }

    /// Whether a rule like this may be requested now, or why not.
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

    /// Why a flow with this rate, for which there could be a rule, is in the adapter or not.
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

/// Bytes by which a packet grows by the edits.
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
