//! One port's rules: what is in the adapter, what should be, and why not.

mod mark_answer;
mod mark_decide;

use crate::bytes::{FirstBytes, first_bytes};
use crate::judge::Worth;
use crate::mark::{Mark, Marks};
use crate::pace::Pace;
use crate::pick::{self, Candidates};
use crate::reason::Reason;
use crate::types::*;
use flow::{Key, Mask};
use port::{Header, PATTERN_BYTES, Pattern, RuleId};
use std::collections::{HashMap, VecDeque};

/// A full table is tried again after so long.
const FULL_MS: u64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Asked for; `doomed`: not wanted any more.
    Creating {
        doomed: bool,
    },
    In(RuleId),
    Leaving,
}

/// A rule, or one to be.
struct Unit {
    pattern: Pattern,
    bytes: FirstBytes,
    flows: Vec<FlowId>,
    state: State,
    /// Packets per second, smoothed; and of the second that runs.
    pps: f32,
    recent: f32,
    since_ms: u64,
    /// Seconds in a row with packets and without marked ones.
    silent_s: u32,
}

/// What adapters that take one mask per packet type tell apart.
type Form = (Vec<Header>, [u8; PATTERN_BYTES]);

struct Barred {
    until_ms: u64,
    wait_ms: u64,
    reason: Reason,
}

/// One port's rules. One thread owns it; [`Port::next`] and [`Port::binding`] say what others are
/// to do.
pub struct Port {
    limits: Limits,
    marks: Marks,
    units: HashMap<Mark, Unit>,
    by_pattern: HashMap<Pattern, Mark>,
    by_flow: HashMap<FlowId, Mark>,
    candidates: Candidates,
    barred: HashMap<Form, Barred>,
    cooling: HashMap<FlowId, u64>,
    pace: Pace,
    requests: VecDeque<MarkRequest>,
    bindings: VecDeque<Binding>,
    /// Rules that are supposed to fit, and until when that is believed.
    capacity: Option<(usize, u64)>,
    /// The adapter is ill: when it is asked again. Some(0): it was asked.
    ill: Option<u64>,
    /// Rules that could not be ended since all were.
    stuck: usize,
    /// The driver knows no rules.
    unable: bool,
    worth: Worth,
    stats: Stats,
}

impl Port {
    /// No rules yet. What a predecessor left is flushed.
    pub fn new(limits: Limits, now_ms: u64) -> Port {
        Port {
            limits,
            marks: Marks::new(),
            units: HashMap::new(),
            by_pattern: HashMap::new(),
            by_flow: HashMap::new(),
            candidates: Candidates::default(),
            barred: HashMap::new(),
            cooling: HashMap::new(),
            pace: Pace::new(now_ms),
            requests: VecDeque::from([MarkRequest::Flush]),
            bindings: VecDeque::new(),
            capacity: None,
            ill: Some(0),
            stuck: 0,
            unable: false,
            worth: Worth::Used,
            stats: Stats::default(),
        }
    }

    /// What the adapter is to do next.
    pub fn next_request(&mut self) -> Option<MarkRequest> {
        self.requests.pop_front()
    }

    /// What the datapath is to do next.
    pub fn next_binding(&mut self) -> Option<Binding> {
        self.bindings.pop_front()
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Rules in the adapter.
    pub fn rules(&self) -> usize {
        self.units.values().filter(|u| matches!(u.state, State::In(_))).count()
    }

    /// Marks of rules in the adapter.
    pub fn marks(&self) -> Vec<Mark> {
        let inside = self.units.iter().filter(|(_, u)| matches!(u.state, State::In(_)));
        inside.map(|(mark, _)| *mark).collect()
    }

    /// Is the adapter ill, or was it not heard of yet?
    pub fn is_down(&self) -> bool {
        self.ill.is_some()
    }

    /// Rules that are thought to fit, if that was found out.
    pub fn capacity(&self) -> Option<usize> {
        self.capacity.map(|(n, _)| n)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// What becomes of its marks, as was measured.
    pub fn set_worth(&mut self, worth: Worth) {
        self.worth = worth;
    }

    /// Marks that are out: of rules in the adapter, on their way there, or leaving.
    pub fn marks_used(&self) -> usize {
        self.marks.used()
    }

    /// A mark saves so many cycles per packet.
    pub fn set_saved_cycles(&mut self, cycles: f32) {
        self.limits.saved_cycles = cycles;
    }

    /// Mean duration of an insertion, microseconds.
    pub fn create_us(&self) -> f64 {
        self.pace.create_us()
    }

    /// Packets per second from which on a flow is worth a rule.
    pub fn enter_pps(&self) -> f32 {
        let us = self.pace.cpu_us() as f32;
        pick::enter_pps(us * self.limits.cycles_per_us, self.limits.saved_cycles, 10.0)
    }

    /// Is the flow's rule in the adapter?
    pub fn is_in(&self, flow: FlowId) -> bool {
        self.by_flow.get(&flow).is_some_and(|m| matches!(self.units[m].state, State::In(_)))
    }

    /// Why a flow with so many packets per second is in the adapter, or why not.
    pub fn reason(&self, now_ms: u64, flow: FlowId, key: &Key, mask: &Mask, pps: f32) -> Reason {
        let pattern = match first_bytes(key, mask) {
            Ok((_, pattern)) => pattern,
            Err(why) => return why,
        };
        if self.worth != Worth::Used {
            return Reason::NoGain;
        }
        if let Some(mark) = self.by_flow.get(&flow) {
            return match self.units[mark].state {
                State::In(_) => Reason::Partial,
                _ => Reason::Pending,
            };
        }
        if self.unable {
            return Reason::PortType;
        }
        if self.ill.is_some() {
            return Reason::PortDown;
        }
        if let Some(b) = self.barred.get(&form_of(&pattern)).filter(|b| b.until_ms > now_ms) {
            return b.reason.clone();
        }
        if self.cooling.get(&flow).is_some_and(|until| *until > now_ms) {
            return Reason::CoolingDown;
        }
        let full = self.capacity.is_some_and(|(n, _)| self.marks.used() >= n);
        match pps >= self.enter_pps() {
            false => Reason::NotHot,
            true if full => Reason::TableFull,
            true => Reason::Pending,
        }
    }
}

fn form_of(pattern: &Pattern) -> Form {
    (pattern.headers.clone(), pattern.mask)
}
