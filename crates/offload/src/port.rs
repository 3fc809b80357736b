//! The marking rules of one port: which are in the adapter, which should be, and why others are
//! not.

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

/// A full table is tried again after this time, milliseconds.
const FULL_MS: u64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The rule was requested. `doomed`: it is to be removed when it is created.
    Creating {
        doomed: bool,
    },
    In(RuleId),
    Leaving,
}

/// A rule, or one that is to be made.
struct Unit {
    pattern: Pattern,
    bytes: FirstBytes,
    flows: Vec<FlowId>,
    state: State,
    /// Packets per second, a moving average.
    pps: f32,
    /// Packets in the current second.
    recent: f32,
    since_ms: u64,
    /// Seconds in a row in which the host had packets of its flow and none was marked.
    silent_s: u32,
}

/// The form of a rule: what adapters that take one mask per packet type distinguish.
type Form = (Vec<Header>, [u8; PATTERN_BYTES]);

struct Barred {
    until_ms: u64,
    wait_ms: u64,
    reason: Reason,
}

/// The marking rules of one port. One thread owns it, and passes on what [`Port::next_request`] and
/// [`Port::next_binding`] return.
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
    /// Number of rules that seem to fit into the adapter's table, and until when this is assumed.
    capacity: Option<(usize, u64)>,
    /// Some: the adapter does not work; when it is asked again. Some(0): it was asked.
    ill: Option<u64>,
    /// Rules that could not be removed since the last flush.
    stuck: usize,
    /// True: the driver has no rules.
    unable: bool,
    worth: Worth,
    stats: Stats,
}

impl Port {
    /// No rules yet; rules that are in the adapter already are flushed.
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

    /// The next request to the adapter.
    pub fn next_request(&mut self) -> Option<MarkRequest> {
        self.requests.pop_front()
    }

    /// The next request to the datapath.
    pub fn next_binding(&mut self) -> Option<Binding> {
        self.bindings.pop_front()
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Number of rules in the adapter.
    pub fn rules(&self) -> usize {
        self.units.values().filter(|u| matches!(u.state, State::In(_))).count()
    }

    /// Marks of rules in the adapter.
    pub fn marks(&self) -> Vec<Mark> {
        let inside = self.units.iter().filter(|(_, u)| matches!(u.state, State::In(_)));
        inside.map(|(mark, _)| *mark).collect()
    }

    /// True if the adapter does not work, or has not answered yet.
    pub fn is_down(&self) -> bool {
        self.ill.is_some()
    }

    /// Number of rules that the adapter's table seems to hold, if it was full once.
    pub fn capacity(&self) -> Option<usize> {
        self.capacity.map(|(n, _)| n)
    }

    /// Number of requests that were not sent yet.
    pub fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// Sets how the port's marks are used, as measured.
    pub fn set_worth(&mut self, worth: Worth) {
        self.worth = worth;
    }

    /// Number of marks in use: of rules in the adapter, requested ones, and leaving ones.
    pub fn marks_used(&self) -> usize {
        self.marks.used()
    }

    /// Sets how many cycles per packet a mark saves.
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

    /// True if the flow's rule is in the adapter.
    pub fn is_in(&self, flow: FlowId) -> bool {
        self.by_flow.get(&flow).is_some_and(|m| matches!(self.units[m].state, State::In(_)))
    }

    /// Why a flow with this rate is in the adapter or not.
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
