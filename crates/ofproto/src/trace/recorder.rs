//! The steps of a translation as a trace shows them.

use crate::translate::frozen_store::Kept;
use crate::types::BridgeId;
use flow::{Key, TunMetadata};
use openflow::Nat;
use std::collections::VecDeque;
use std::sync::Arc;

/// Lookups after connection tracking that one trace shows.
pub(crate) const FORKS_MAX: usize = 64;

/// A step. Bridges and tables contain others.
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

/// Collects the steps of a translation.
#[derive(Default)]
pub(crate) struct Recorder {
    /// The open containers, outermost first; the first stands for the whole.
    pub open: Vec<Node>,
    pub done: Vec<Node>,
    pub final_key: Option<Key>,
    /// The options of the packet at first and at last, and what was looked at of them.
    pub options: [Vec<TunMetadata>; 3],
    /// What NORMAL learns is said, since it will be kept.
    pub learning: bool,
    /// The bridge whose ports are named in texts; None: they have numbers.
    pub names: Option<BridgeId>,
    /// Why the translation failed, in OVS's words.
    pub failed: Option<&'static str>,
    /// A flow asks for the slow path.
    pub slow: bool,
    /// Copies of the packet that connection tracking has looked up again.
    pub forks: VecDeque<Fork>,
    /// How many more such copies this trace may look up, at most [`FORKS_MAX`] at first.
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

    /// A step that contains none.
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

/// A step that another follows, and every action, is indented more.
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

/// A copy of a packet that connection tracking has looked up again.
pub(crate) struct Fork {
    /// The packet's key when it was copied, with the id of the frozen state and the connection's
    /// zone.
    pub key: Key,
    /// The translation that was asked for.
    pub nat: Option<Nat>,
    /// Keeps the state there.
    pub _kept: Arc<Kept>,
}
