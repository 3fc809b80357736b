//! Records the steps of a translation for a trace.

use crate::translate::frozen_store::Kept;
use crate::types::BridgeId;
use flow::{Key, TunMetadata};
use openflow::Nat;
use std::collections::VecDeque;
use std::sync::Arc;

/// Lookups after connection tracking that one trace shows, at most.
pub(crate) const FORKS_MAX: usize = 64;

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
}

impl Recorder {
    pub fn new(learning: bool, names: Option<BridgeId>) -> Recorder {
        Recorder { learning, names, forks_left: FORKS_MAX, ..Recorder::default() }
    }

    pub fn list(&mut self) -> &mut Vec<Node> {
        match self.open.last_mut() {
            Some(node) => &mut node.subs,
            None => &mut self.done,
        }
    }

    pub fn leaf(&mut self, kind: StepKind, text: String) {
        self.list().push(Node { text, kind, subs: Vec::new() });
    }

    pub fn open(&mut self, kind: StepKind, text: String) {
        self.open.push(Node { text, kind, subs: Vec::new() });
    }

    pub fn close(&mut self) {
        if let Some(node) = self.open.pop() {
            self.list().push(node);
        }
    }

    /// Records a step that contains no others.
    pub fn step(&mut self, text: String) {
        self.open(StepKind::Table, text);
        self.close();
    }

    pub fn text(&mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        let mut out = String::new();
        print(&self.done, 0, &mut out);
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
