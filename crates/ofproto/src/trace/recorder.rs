//! Records the steps of a translation for a trace.

use crate::translate::frozen_store::Kept;
use crate::types::BridgeId;
use flow::{Key, TunMetadata};
use openflow::Nat;
use std::collections::VecDeque;
use std::sync::Arc;

/// Lookups after connection tracking that one trace shows, at most.
pub(crate) const FORKS_MAX: usize = 64;

/// Bytes of one trace's text with all indents that there may be, at most, but for the step that
/// reaches that. Steps of deep pipelines are indented much, and flows may have actions of 64 kB.
pub(crate) const TRACE_BYTES_MAX: usize = 4 << 20;
/// Bytes by which a step may be indented more than the one around it.
const INDENT_BYTES: usize = 8;

/// A step. Steps that are bridges and tables contain other steps.
pub(crate) struct Node {
    pub text: String,
    pub kind: StepKind,
    pub subs: Vec<Node>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepKind {
    Bridge,
    Table,
    Bucket,
    Action,
    Detail,
    Warning,
    Error,
}

/// The recorded steps of a translation.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Steps that are not ended, outermost first; the first contains all.
    pub open: Vec<Node>,
    pub done: Vec<Node>,
    pub final_key: Option<Key>,
    /// The options of the received packet, those that it has at the end, and the bits that were
    /// read.
    pub options: [Vec<TunMetadata>; 3],
    /// True: NORMAL's learning is shown, since it will be kept.
    pub learning: bool,
    /// The bridge whose ports are named; None: ports are numbered.
    pub names: Option<BridgeId>,
    /// Why the translation failed, in OVS's words.
    pub failed: Option<&'static str>,
    /// True: the translation needs ovs-vswitchd's slow path.
    pub slow: bool,
    /// Copies of the packet that are looked up again after connection tracking.
    pub forks: VecDeque<Fork>,
    /// How many more copies this trace may look up; at first [`FORKS_MAX`].
    pub forks_left: usize,
    /// Bytes of the steps so far, and how many there may be.
    pub bytes: usize,
    pub bytes_max: usize,
    /// Steps that are not ended and not shown.
    pub hidden: usize,
}

impl Recorder {
    pub fn new(learning: bool, names: Option<BridgeId>, bytes_max: Option<usize>) -> Recorder {
        let bytes_max = bytes_max.map_or(TRACE_BYTES_MAX, |max| max.min(TRACE_BYTES_MAX));
        Recorder { learning, names, forks_left: FORKS_MAX, bytes_max, ..Recorder::default() }
    }

    pub fn list(&mut self) -> &mut Vec<Node> {
        match self.open.last_mut() {
            Some(node) => &mut node.subs,
            None => &mut self.done,
        }
    }

    /// True if the trace is as long as it may be.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// A step that contains no others yet; None: the trace is as long as it may be.
    fn node(&mut self, kind: StepKind, text: impl FnOnce() -> String) -> Option<Node> {
        if self.is_full() {
            return None;
        }
        let text = text();
        self.bytes += text.len() + INDENT_BYTES * (self.open.len() + 1);
        Some(Node { text, kind, subs: Vec::new() })
    }

    pub fn leaf(&mut self, kind: StepKind, text: impl FnOnce() -> String) {
        let node = self.node(kind, text);
        self.list().extend(node);
    }

    /// Records why the translation failed; the first reason is shown however long the trace is.
    pub fn failure(&mut self, name: &'static str, text: impl FnOnce() -> String) {
        if self.failed.is_some() {
            return self.leaf(StepKind::Error, text);
        }
        self.failed = Some(name);
        let node = Node { text: text(), kind: StepKind::Error, subs: Vec::new() };
        self.list().push(node);
    }

    pub fn open(&mut self, kind: StepKind, text: impl FnOnce() -> String) {
        match self.node(kind, text) {
            Some(node) => self.open.push(node),
            None => self.hidden += 1,
        }
    }

    pub fn close(&mut self) {
        if self.hidden > 0 {
            self.hidden -= 1;
            return;
        }
        if let Some(node) = self.open.pop() {
            self.list().push(node);
        }
    }

    /// Records a step that contains no others.
    pub fn step(&mut self, text: impl FnOnce() -> String) {
        self.open(StepKind::Table, text);
        self.close();
    }

    pub fn text(&mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        let mut out = String::new();
        print(&self.done, 0, &mut out);
        if self.is_full() {
            out.push_str("The rest of the trace is not shown: it is too long.\n");
        }
        out
    }
}

/// Prints steps. A step that another one follows, and every action, is indented more.
pub(crate) fn print(nodes: &[Node], level: usize, out: &mut String) {
    for (i, node) in nodes.iter().enumerate() {
        let leaf = !matches!(node.kind, StepKind::Bridge | StepKind::Table);
        let more = usize::from(leaf || i + 1 < nodes.len());
        let indent = " ".repeat((level + more) * 4);
        let text = &node.text;
        match node.kind {
            StepKind::Bridge => {
                let line = "-".repeat(text.len());
                out.push_str(&format!("\n{indent}{text}\n{indent}{line}\n"));
            }
            StepKind::Table | StepKind::Bucket | StepKind::Action => {
                out.push_str(&format!("{indent}{text}\n"))
            }
            StepKind::Detail => out.push_str(&format!("{indent} -> {text}\n")),
            StepKind::Warning => out.push_str(&format!("{indent} >> {text}\n")),
            StepKind::Error => out.push_str(&format!("{indent} >>>> {text} <<<<\n")),
        }
        print(&node.subs, level + 2 * more, out);
    }
}

/// A copy of a packet that is looked up again after connection tracking.
pub(crate) struct Fork {
    /// The packet's key when it was copied, with the frozen state's id and the connection's zone.
    pub key: Key,
    /// The NAT that was asked for.
    pub nat: Option<Nat>,
    /// Keeps the state alive.
    pub _kept: Arc<Kept>,
}
