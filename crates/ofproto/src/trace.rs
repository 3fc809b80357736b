//! `ofproto/trace`: the way of a packet, in OVS's layout.

mod fork;

use crate::action_text::{action_text, actions_text, metadata_text};
use crate::switch::Switch;
use crate::tables::table::FlowRule;
use crate::translate::{PacketInContext, Xlate, resolve};
use crate::types::{BridgeId, ConfigError};
use action::{Decision, Punt, Request};
use flow::{Key, TunMetadata, at, flow_text, match_text, megaflow_text};
use openflow::{Action, OfPort, Reason};
use std::collections::VecDeque;

pub(crate) fn action(a: &Action) -> String {
    action_text(a)
}

pub(crate) fn actions(list: &[Action]) -> String {
    actions_text(list)
}

/// Options of the header of a traced packet's tunnel.
pub enum Options {
    /// As they come.
    Bytes(Vec<u8>),
    /// As the fields that they are.
    Fields(Vec<TunMetadata>),
}

impl Default for Options {
    fn default() -> Self {
        Options::Bytes(Vec::new())
    }
}

/// A step. Bridges and tables contain others.
struct Node {
    text: String,
    kind: Kind,
    subs: Vec<Node>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
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
    open: Vec<Node>,
    done: Vec<Node>,
    final_key: Option<Key>,
    /// The options of the packet at first and at last, and what was looked at of them.
    options: [Vec<TunMetadata>; 3],
    /// What NORMAL learns is said, since it will be kept.
    learning: bool,
    /// Why the translation failed, in OVS's words.
    failed: Option<&'static str>,
    /// Copies of the packet that connection tracking has looked up again.
    forks: VecDeque<fork::Fork>,
    /// And how many may still be looked at.
    forks_left: usize,
}

impl Recorder {
    fn new(learning: bool) -> Recorder {
        Recorder { learning, forks_left: fork::FORKS_MAX, ..Recorder::default() }
    }

    fn list(&mut self) -> &mut Vec<Node> {
        match self.open.last_mut() {
            Some(node) => &mut node.subs,
            None => &mut self.done,
        }
    }

    fn leaf(&mut self, kind: Kind, text: String) {
        self.list().push(Node { text, kind, subs: Vec::new() });
    }

    fn open(&mut self, kind: Kind, text: String) {
        self.open.push(Node { text, kind, subs: Vec::new() });
    }

    fn close(&mut self) {
        if let Some(node) = self.open.pop() {
            self.list().push(node);
        }
    }

    fn text(&mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        let mut out = String::new();
        print(&self.done, 0, &mut out);
        out
    }
}

/// A step that another follows, and every action, is indented more.
fn print(nodes: &[Node], level: usize, out: &mut String) {
    for (i, node) in nodes.iter().enumerate() {
        let leaf = !matches!(node.kind, Kind::Bridge | Kind::Table);
        let more = usize::from(leaf || i + 1 < nodes.len());
        let indent = " ".repeat((level + more) * 4);
        let text = &node.text;
        match node.kind {
            Kind::Bridge => {
                let line = "-".repeat(text.len());
                out.push_str(&format!("\n{indent}{text}\n{indent}{line}\n"));
            }
            Kind::Table | Kind::Bucket | Kind::Action => out.push_str(&format!("{indent}{text}\n")),
            Kind::Detail => out.push_str(&format!("{indent} -> {text}\n")),
            Kind::Warning => out.push_str(&format!("{indent} >> {text}\n")),
            Kind::Error => out.push_str(&format!("{indent} >>>> {text} <<<<\n")),
        }
        print(&node.subs, level + 2 * more, out);
    }
}

impl<'a> Xlate<'a, '_> {
    fn leaf(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        if let Some(r) = self.recorder() {
            r.leaf(kind, text());
        }
    }

    pub(crate) fn note_action(&mut self, text: impl FnOnce() -> String) {
        self.leaf(Kind::Action, text);
    }

    pub(crate) fn detail(&mut self, text: impl FnOnce() -> String) {
        self.leaf(Kind::Detail, text);
    }

    pub(crate) fn warn(&mut self, text: impl FnOnce() -> String) {
        self.leaf(Kind::Warning, text);
    }

    /// The translation ends here; `name` is what the trace's last line calls that.
    pub(crate) fn error(&mut self, name: &'static str, text: impl FnOnce() -> String) {
        self.leaf(Kind::Error, text);
        if let Some(r) = self.recorder() {
            r.failed.get_or_insert(name);
        }
    }

    /// Something that cannot be done; the translation goes on.
    pub(crate) fn wrong(&mut self, text: impl FnOnce() -> String) {
        self.leaf(Kind::Error, text);
    }

    /// Is this more than a trace of a flow without a packet?
    pub(crate) fn teaches(&mut self) -> bool {
        self.recorder().is_none_or(|r| r.learning)
    }

    /// Says what will be learned that is not known yet.
    pub(crate) fn note_learn(&mut self, vlan: u16, mac: [u8; 6], port: OfPort) {
        let bridge = self.bridge();
        let learning = self.recorder().is_some_and(|r| r.learning);
        let known = self.taught(vlan, mac).or_else(|| bridge.macs.find(vlan, mac));
        if !learning || known == Some(port) {
            return;
        }
        let Some(p) = bridge.port(port) else { return };
        let [a, b, c, d, e, f] = mac;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        self.detail(|| format!("learned that {mac} is on port {} in VLAN {vlan}", p.spec.bundle));
    }

    pub(crate) fn note_metadata(&mut self, value: u64, mask: u64) {
        self.note_action(|| metadata_text(value, mask));
    }

    pub(crate) fn note_bridge(&mut self) {
        let bridge = self.bridge();
        if let Some(r) = self.recorder() {
            r.open(Kind::Bridge, format!("bridge(\"{}\")", bridge.name));
        }
    }

    pub(crate) fn note_table(&mut self, text: impl FnOnce() -> String) {
        if let Some(r) = self.recorder() {
            r.open(Kind::Table, text());
        }
    }

    /// Is this a trace that changes nothing?
    pub(crate) fn suppresses(&mut self) -> bool {
        self.recorder().is_some_and(|r| !r.learning)
    }

    pub(crate) fn note_bucket(&mut self, id: u32) {
        if let Some(r) = self.recorder() {
            r.open(Kind::Bucket, format!("bucket {id}"));
        }
    }

    pub(crate) fn note_rule(&mut self, table: u8, rule: &FlowRule) {
        self.note_table(|| {
            let m = crate::tables::tlv::match_of(rule);
            let m = match_text(&m.key, &m.mask, &m.tun, &|_| None);
            let comma = if m.is_empty() { "" } else { ", " };
            let cookie = match rule.value().cookie {
                0 => String::new(),
                c => format!(", cookie {c:#x}"),
            };
            format!("{table:2}. {m}{comma}priority {}{cookie}", rule.priority())
        });
    }

    /// Ends the innermost table or bridge.
    pub(crate) fn close(&mut self) {
        if let Some(r) = self.recorder() {
            r.close();
        }
    }

    /// Opens the last step again: OVS shows the action set inside the first table.
    pub(crate) fn reopen(&mut self) {
        if let Some(r) = self.recorder()
            && let Some(node) = r.list().pop_if(|n| n.kind == Kind::Table)
        {
            r.open.push(node);
        }
    }

    pub(crate) fn note_final(&mut self) {
        let mut key = *self.key();
        key.set_u32(at::ACTSET_OUTPUT, 0);
        let options = self.options_seen();
        if let Some(r) = self.recorder() {
            r.final_key = Some(key);
            r.options = options;
        }
    }
}

/// `userspace(...)` as OVS's datapath prints it, for packets to controllers.
pub fn punt_text(p: &Punt) -> String {
    let Some(c) = p.context.downcast_ref::<PacketInContext>() else {
        return "userspace(pid=0)".into();
    };
    let reason = match c.reason {
        Reason::ActionSet | Reason::Group | Reason::PacketOut => Reason::Action,
        r => r,
    } as u8;
    let cookie = match c.cookie {
        0 => "0".into(),
        c => format!("{c:#x}"),
    };
    format!(
        "userspace(pid=0,controller(reason={reason},dont_send=0,continuation={},recirc_id=0,\
         rule_cookie={cookie},controller_id={},max_len={}))",
        u8::from(c.continuation.is_some()),
        c.controller_id,
        c.max_len
    )
}

impl Switch {
    /// What happens to a packet with this key that comes from `at::OF_IN_PORT` (and, where it is
    /// one, `at::IN_PORT` is set to its datapath port). `ct_next`: what connection tracking says of it, one time after
    /// the other ([`at::CT_STATE`]); afterwards that it begins a connection.
    ///
    /// Nothing is learned, counted or sent.
    pub fn trace(
        &self,
        id: BridgeId,
        key: &Key,
        options: &Options,
        ct_next: &[u8],
    ) -> Result<String, ConfigError> {
        let (key, out, recorder) = self.traced(id, (key, options), Recorder::new(false))?;
        Ok(self.reports(&key, &out, recorder, ct_next))
    }

    /// As [`Switch::trace`], as if the packet were real: what it teaches is learned at `now` (ns).
    pub fn trace_learning(
        &mut self,
        id: BridgeId,
        key: &Key,
        options: &Options,
        ct_next: &[u8],
        now: u64,
    ) -> Result<String, ConfigError> {
        let (key, out, recorder) = self.traced(id, (key, options), Recorder::new(true))?;
        if let Some(effects) = &out.effects {
            self.effects(effects, now);
        }
        Ok(self.reports(&key, &out, recorder, ct_next))
    }

    fn traced(
        &self,
        id: BridgeId,
        (key, options): (&Key, &Options),
        recorder: Recorder,
    ) -> Result<(Key, Decision, Recorder), ConfigError> {
        let bridge = self.bridge(id)?;
        let in_port = key.u32(at::OF_IN_PORT);
        let mut key = *key;
        let dp = bridge.dp_port(in_port);
        key.set_u16(at::IN_PORT, dp.unwrap_or(flow::NO_PORT));
        let mut out = Decision::default();
        out.clear();
        let mut recorder = Some(recorder);
        match key.u32(at::RECIRC) {
            0 => self.trace_tables(id, (&key, options), &mut out, &mut recorder),
            _ => self.trace_frozen(&key, &mut out, &mut recorder),
        }
        Ok((key, out, recorder.unwrap_or_default()))
    }

    /// A packet that was looked up before.
    fn trace_frozen(&self, key: &Key, out: &mut Decision, recorder: &mut Option<Recorder>) {
        // SAFETY: this is the thread of the only writer.
        let world = unsafe { self.shared.world.read() };
        let request = Request { key, options: &[], packet: &[] };
        resolve(&self.shared, world, self.version(), &request, out, recorder)
    }

    /// From table 0 on, with the registers and the port that the caller gave, real or not.
    fn trace_tables(
        &self,
        id: BridgeId,
        (key, options): (&Key, &Options),
        out: &mut Decision,
        recorder: &mut Option<Recorder>,
    ) {
        // SAFETY: this is the thread of the only writer.
        let world = unsafe { self.shared.world.read() };
        let Some(view) = world.bridge(id.0) else { return };
        let mut x = Xlate::new(&self.shared, world, view, key, out, recorder);
        x.pipeline(&key.words[flow::PACKET_LINES * 8..]);
        match options {
            Options::Bytes(bytes) => x.options(bytes),
            Options::Fields(fields) => x.set_options(fields),
        }
        x.run();
    }

    fn report(&self, key: &Key, out: &Decision, r: &mut Recorder) -> String {
        let learning = r.learning;
        let names = |_| None;
        let [first, last, looked_at] = &std::mem::take(&mut r.options);
        let flow = flow_text(key, first, &names);
        let mut text = format!("Flow: {flow}\n");
        text.push_str(&r.text());
        let done = r.final_key.map(|k| flow_text(&k, last, &names));
        let done = done.filter(|d| *d != flow).unwrap_or_else(|| "unchanged".into());
        let mut mask = out.mask;
        if key.u16(at::VLAN) == 0 {
            // An untagged packet has no tag to match on; the datapath knows that anyway.
            mask.set_u16(at::VLAN, 0);
        }
        if key.u16(at::VLAN1) == 0 {
            mask.set_u16(at::VLAN1, 0);
        }
        mask.set_u32(at::OF_IN_PORT, !0);
        let megaflow = megaflow_text(&key.masked(&mask), &mask, looked_at, &names);
        let punt = |p: &Punt| match learning {
            true => punt_text(p),
            false => punt_text(p).replace("dont_send=0", "dont_send=1"),
        };
        let style = action::OpsText { punt: &punt, ..action::OpsText::default() };
        let ops = action::ops_text_with(&out.ops, &style);
        text.push_str(&format!(
            "\nFinal flow: {done}\nMegaflow: {megaflow}\nDatapath actions: {ops}\n"
        ));
        if let Some(why) = r.failed {
            text.push_str(&format!("\nTranslation failed ({why}), packet is dropped.\n"));
        }
        text
    }
}
