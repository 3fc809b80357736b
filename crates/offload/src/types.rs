//! Messages between a port's rules, the adapter and the datapath.

use crate::bytes::FirstBytes;
use crate::mark::Mark;
use port::{MarkRule, RuleError, RuleId};
use std::collections::BTreeMap;

/// Identity of a megaflow: worker and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    /// Number of the worker whose megaflow it is.
    pub worker: u32,
    /// Index in the worker's table.
    pub megaflow: u32,
}

/// Properties of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Cycles per packet that a mark saves: parse and lookup, less the comparison.
    pub saved_cycles: f32,
    /// Cycles of the clock per microsecond.
    pub cycles_per_us: f32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { saved_cycles: 40.0, cycles_per_us: 2500.0 }
    }
}

/// A request to the adapter. Requests are executed in order.
#[derive(Clone, Debug, PartialEq)]
pub enum MarkRequest {
    /// Make a rule.
    Create(Mark, MarkRule),
    /// Remove a rule.
    Destroy(Mark, RuleId),
    /// Remove all rules, as it is not known which ones exist.
    Flush,
}

/// The result of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The result of [`MarkRequest::Create`].
    Created(Mark, Result<RuleId, RuleError>),
    /// The result of [`MarkRequest::Destroy`].
    Destroyed(Mark, Result<(), RuleError>),
    /// The result of [`MarkRequest::Flush`].
    Flushed(Result<(), RuleError>),
}

/// The adapter's answer: the result of a request, and how long it took.
#[derive(Clone, Debug)]
pub struct MarkAnswer {
    /// The result.
    pub outcome: Outcome,
    /// Duration of the call, microseconds.
    pub took_us: u64,
    /// Time for which the call kept a core busy, microseconds.
    pub cpu_us: u64,
}

/// A request to the datapath.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// Bind a mark: packets with this mark and these first bytes belong to this flow.
    Bind(FlowId, Mark, Box<FirstBytes>),
    /// Unbind the mark from this flow.
    Unbind(FlowId, Mark),
}

/// Counters of a port's rules, since the port was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleStats {
    /// Rules created.
    pub inserted: u64,
    /// Rules removed, for whatever reason.
    pub removed: u64,
    /// Rules made in place of others.
    pub swaps: u64,
    /// Refusals by error number.
    pub refused: BTreeMap<i32, u64>,
    /// Rules that could not be removed one by one.
    pub stuck: u64,
    /// Rules, or shapes of rules, that were removed because they matched packets of other flows.
    pub wider: u64,
    /// Rules that were removed because the host received packets of their flows unmarked.
    pub silent: u64,
}

/// Counters of marking rules since the port was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Counters of rules.
    pub rules: RuleStats,
    /// How often all rules were given up.
    pub flushes: u64,
    /// How often of these because the adapter was reset or removed.
    pub resets: u64,
}
