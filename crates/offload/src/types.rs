//! What a port's rules, the adapter and the datapath say to each other.

use crate::bytes::FirstBytes;
use crate::mark::Mark;
use port::{MarkRule, RuleError, RuleId};
use std::collections::BTreeMap;

/// A megaflow: whose table it is in, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId {
    /// Number of the worker.
    pub worker: u32,
    /// Index in its table.
    pub megaflow: u32,
}

/// What the machine is like.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What a mark saves: parse and lookup less the comparison, cycles per packet.
    pub saved_cycles: f32,
    /// The clock.
    pub cycles_per_us: f32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { saved_cycles: 40.0, cycles_per_us: 2500.0 }
    }
}

/// What the adapter is to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum MarkRequest {
    /// Make a rule.
    Create(Mark, MarkRule),
    /// End one.
    Destroy(Mark, RuleId),
    /// End all: nothing is known of them any more.
    Flush,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Of [`MarkRequest::Create`].
    Created(Mark, Result<RuleId, RuleError>),
    /// Of [`MarkRequest::Destroy`].
    Destroyed(Mark, Result<(), RuleError>),
    /// Of [`MarkRequest::Flush`].
    Flushed(Result<(), RuleError>),
}

/// What the adapter did, and how long that took.
#[derive(Clone, Debug)]
pub struct MarkAnswer {
    /// What became of the request.
    pub outcome: Outcome,
    /// Microseconds of the call.
    pub took_us: u64,
    /// Of them, those that it kept a core busy.
    pub cpu_us: u64,
}

/// What the datapath is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// Packets with this mark belong to this flow if they begin so.
    Bind(FlowId, Mark, Box<FirstBytes>),
    /// They do not any more.
    Unbind(FlowId, Mark),
}

/// Rules of a port, since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleStats {
    /// Rules made.
    pub inserted: u64,
    /// Rules ended, however.
    pub removed: u64,
    /// Rules made in place of others.
    pub swaps: u64,
    /// Refusals by error number.
    pub refused: BTreeMap<i32, u64>,
    /// Rules that could not be ended one by one.
    pub stuck: u64,
    /// Rules, or shapes of them, that had to go because they had packets of other flows.
    pub wider: u64,
    /// Rules that had to go because the host had packets of their flows as if there were none.
    pub silent: u64,
}

/// Counters of rules that mark, since the port was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rules.
    pub rules: RuleStats,
    /// Times that all rules were given up.
    pub flushes: u64,
    /// Of them, those because the adapter was reset or removed.
    pub resets: u64,
}
