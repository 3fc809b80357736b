//! The state of a translation, and its way through tables, instructions and the action set.
//!
//! Header changes live in its `key` until an output commits the difference to `base` as operations.
//! What was looked at collects in `wc`.

use super::frozen::{self, Kept, State};
use super::own::Own;
use super::set;
use crate::action_text::{action_text, actions_text};
use crate::fields;
use crate::published::{BridgeView, PortView, PublishedState, Shared, View};
use crate::tables::table::{FlowRule, Table};
use crate::trace::recorder::Recorder;
use crate::translate::effects::Effects;
use crate::translate::export::Exporting;
use crate::tunnel as outer;
use crate::tunnel::Underlay;
use crate::{N_TABLES, TableMiss};
use action::{Decision, Op};
use flow::{Key, Mask, PACKET_LINES, TunMetadata, at};
use openflow::{Action, FragHandling, Instruction, OfPort, Reason, port, port_config};
use std::net::IpAddr;
use std::sync::Arc;
use sync::Guard;
use telemetry::Drop;

/// How deep tables that lead back, groups and patch ports nest: as deep as in OVS.
pub(super) const DEPTH_MAX: usize = 64;

/// What the trace calls the priority of the NORMAL that stands above all flows; OVS's number.
pub(super) const FAIL_OPEN_PRIORITY: u32 = 0xf0f0f0;

/// What a translation reads: what was published when it began.
pub(super) struct Snapshot<'a> {
    pub shared: &'a Shared,
    pub guard: Guard<'a>,
    pub published: &'a PublishedState,
    pub underlay: &'a Underlay,
    /// The version of flow tables and groups.
    pub version: u64,
}

/// What is known of the tunnel that the packet came out of, and of the outer header that it may
/// get.
pub(super) struct Outer<'o> {
    /// Where the packet's tunnel ended: no packet is sent there.
    pub dst: IpAddr,
    /// The packet came out of a tunnel.
    pub received: bool,
    /// It is the outer packet that tables see now.
    pub encapsulated: bool,
    /// Options of the outer header as they came.
    pub options: &'o [u8],
    /// Fields `tun_metadataN` as the actions made them.
    pub fields: Vec<TunMetadata>,
    /// Those fields as the packet brought them; for the trace.
    pub first: Vec<TunMetadata>,
    /// Bits of those fields that were looked at; for the trace.
    pub wc: Vec<TunMetadata>,
    /// The outer header's other fields as they came.
    pub outer: frozen::Outer,
}

/// The rule whose actions run.
pub(super) struct Running {
    pub table: u8,
    pub cookie: u64,
    /// Its credit id.
    pub rule: Option<u32>,
    /// No flow matched, and controllers get the packet.
    pub no_flow: bool,
    /// True if the rule is the table-miss flow: priority 0, matches everything.
    pub miss_flow: bool,
    /// The cookie of the first rule met in this bridge: the action set is executed under it.
    pub first_cookie: Option<u64>,
    /// What the actions belong to: a packet-out, buckets, the action set.
    pub origin: Origin,
}

/// Whether the actions have ended, why, and what is left to do when the translation goes on later.
#[derive(Default)]
pub(super) struct End<'a> {
    /// The rest of this action list is skipped, and of all that led to it.
    pub exit: bool,
    /// The rest of this action list is skipped, but not of those that led to it (expired TTL).
    pub stopped: bool,
    /// Skipped because of an exit action, which also ends the list around a clone.
    pub exited: bool,
    /// The packet is dropped for this reason, and nothing more runs.
    pub failed: Option<Drop>,
    /// Instructions for after the recirculation, while unwinding to it.
    pub rest: Option<Vec<Instruction>>,
    /// A controller is to say when they run.
    pub paused: Option<&'a Action>,
}

/// What connection tracking said.
pub(super) struct CtState {
    /// Connection tracking saw the packet, and tables may match what it said.
    pub tracked: bool,
    /// The next lookup is with the connection's original addresses.
    pub original: bool,
}

/// Headers between Ethernet's and the network layer's.
#[derive(Default)]
pub(super) struct Layers {
    /// Tags pushed over two others, out of the key's sight.
    pub hidden: usize,
    /// MPLS label stack entries that the key knows.
    pub labels: u8,
    /// The packet must be parsed again before its upper layers mean anything.
    pub was_mpls: bool,
    /// Headers in the key that no packet brought.
    pub own: Option<Box<Own>>,
}

/// What the packet has at this point of its way, beside its key.
pub(super) struct PacketState<'a> {
    /// Its action set.
    pub set: Vec<&'a Action>,
    /// What `push` saved: values and their bits.
    pub stack: Vec<(u128, u16)>,
    pub ct: CtState,
    pub layers: Layers,
}

/// What is handed over at the end.
pub(super) struct Answer<'o> {
    pub decision: &'o mut Decision,
    pub effects: Effects,
    /// States that the decision names or began with.
    pub holds: Vec<Arc<Kept>>,
    /// What collectors are to get of the packets of this decision.
    pub export: Exporting,
}

/// What mirrors have seen of the packet.
#[derive(Default)]
pub(super) struct Mirroring {
    /// The mirrors of the port that the packet came in on have not got it yet.
    pub fresh: bool,
    /// Mirrors that have got the packet in this bridge, a bit each.
    pub met: u32,
    /// What is sent now is a mirror's copy.
    pub copying: bool,
    /// The copy is cut to this many bytes; 0: it is whole.
    pub snaplen: u16,
}

/// A translation under way.
pub(crate) struct Xlate<'a, 'o> {
    pub(super) snapshot: Snapshot<'a>,
    pub(super) bridge: &'a BridgeView,
    /// The packet as the actions made it.
    pub(super) key: Key,
    /// The packet as the operations made it.
    pub(super) base: Key,
    /// The bits of the key that the decision depends on so far.
    pub(super) wc: Mask,
    pub(super) packet: PacketState<'a>,
    pub(super) tunnel: Outer<'o>,
    pub(super) run: Running,
    pub(super) spent: Spent,
    pub(super) end: End<'a>,
    pub(super) mirror: Mirroring,
    pub(super) answer: Answer<'o>,
    pub(super) trace: &'o mut Option<Recorder>,
}

impl Default for Running {
    fn default() -> Self {
        let (rule, first_cookie, origin) = (None, None, Origin::default());
        Running {
            table: 0,
            cookie: u64::MAX,
            rule,
            no_flow: false,
            miss_flow: false,
            first_cookie,
            origin,
        }
    }
}

impl Outer<'_> {
    fn of(key: &Key) -> Self {
        Outer {
            dst: outer::destination(key),
            received: key.u8(at::FLAGS) & flow::flag::TUNNEL != 0,
            encapsulated: false,
            options: &[],
            fields: Vec::new(),
            first: Vec::new(),
            wc: Vec::new(),
            outer: frozen::outer(key),
        }
    }
}

impl<'a, 'o> Xlate<'a, 'o> {
    pub fn new(
        View { shared, guard, published }: View<'a>,
        bridge: &'a BridgeView,
        key: &Key,
        out: &'o mut Decision,
        trace: &'o mut Option<Recorder>,
    ) -> Self {
        let mut wc = Mask::ZERO;
        let key = initial_key(key, &mut wc);
        let underlay = shared.underlay.read(guard);
        Xlate {
            snapshot: Snapshot { shared, guard, published, underlay, version: shared.version() },
            bridge,
            base: key,
            key,
            wc,
            packet: PacketState {
                set: Vec::new(),
                stack: Vec::new(),
                ct: CtState { tracked: key.u8(at::CT_STATE) & TRK != 0, original: false },
                layers: Layers { labels: labels(&key), ..Layers::default() },
            },
            tunnel: Outer::of(&key),
            run: Running::default(),
            spent: Spent::default(),
            end: End::default(),
            mirror: Mirroring::default(),
            answer: Answer {
                decision: out,
                effects: Effects::default(),
                holds: Vec::new(),
                export: Exporting::default(),
            },
            trace,
        }
    }

    /// For reading what is published.
    pub(crate) fn guard(&self) -> Guard<'a> {
        self.snapshot.guard
    }

    /// Looks flows and groups up as they are at a version, instead of as packets see them.
    pub fn at_version(&mut self, version: u64) {
        self.snapshot.version = version;
    }

    /// A packet fresh from a port.
    pub(super) fn start(&mut self) {
        self.note_bridge();
        self.begin_export();
        let port = self.bridge.port(self.in_port());
        if let Some(p) = port.filter(|p| p.spec.tunnel.is_some()) {
            self.leave_tunnel(p);
            if self.end.failed.is_some() {
                return self.trace_close();
            }
        }
        if port.is_some_and(|p| self.take_special(p)) {
            return self.trace_close();
        }
        if port.is_some_and(|p| !may_receive(p)) {
            self.trace_warning(|| "OpenFlow port is configured not to receive, dropping".into());
            return self.trace_close();
        }
        let fragment = self.key.u8(at::FRAG) & flow::frag::ANY != 0;
        if self.bridge.config.frag == FragHandling::Drop && fragment {
            self.note_table(|| {
                " 0. Packets are IP fragments and the fragment handling mode is \"drop\".".into()
            });
            return self.trace_close();
        }
        self.mirror.fresh = true;
        // What the action set sends to controllers goes under the first flow's cookie, as in OVS.
        if let Some(cookie) = self.table(0, None, Miss::Honor) {
            self.run.cookie = cookie;
        }
        self.trace_reopen();
        self.run_set();
        self.freeze();
        self.trace_close();
        self.trace_close();
    }

    pub(super) fn in_port(&self) -> OfPort {
        self.key.u32(at::OF_IN_PORT)
    }

    /// Runs the action set, as the end of a pipeline does.
    pub(super) fn run_set(&mut self) {
        if self.end.rest.is_some() || self.packet.set.is_empty() || self.end.failed.is_some() {
            return;
        }
        let set = std::mem::take(&mut self.packet.set);
        let list = set::in_order(&set);
        if list.is_empty() {
            return;
        }
        self.note_table(|| "--. Executing action set:".into());
        let cookie = self.run.cookie;
        self.run.cookie = self.run.first_cookie.unwrap_or(cookie);
        self.run.origin.set = true;
        self.actions(list.into_iter());
        self.run.origin.set = false;
        self.run.cookie = cookie;
        self.trace_close();
    }

    /// Looks a table up and runs what it finds; the cookie of that. `in_port`: for this lookup
    /// only.
    pub(super) fn table(&mut self, table: u8, in_port: Option<OfPort>, miss: Miss) -> Option<u64> {
        if self.is_too_much() || !self.spend(1) {
            return None;
        }
        // The first lookup is none of those that actions ask for.
        let again = std::mem::replace(&mut self.spent.begun, true);
        self.spent.resubmits += usize::from(again);
        if table == 0 && self.bridge.config.fail_open {
            self.fail_open();
            return None;
        }
        let own = self.in_port();
        if let Some(p) = in_port {
            self.key.set_u32(at::OF_IN_PORT, p);
        }
        let rule = match std::mem::take(&mut self.packet.ct.original) {
            true => self.lookup_original(table),
            false => self.lookup_in_table(table),
        };
        let (table, rule) = match rule {
            None if miss == Miss::Honor => self.continue_from(table),
            rule => (table, rule),
        };
        self.key.set_u32(at::OF_IN_PORT, own);
        let before = (self.run.table, self.run.cookie, self.run.miss_flow, self.run.rule);
        self.run.rule = rule.map(|r| r.value().id);
        // As in OVS a pipeline that only goes on to later tables is as long as it likes.
        let deepens = usize::from(again && table <= self.run.table);
        self.run.table = table;
        self.spent.depth += deepens;
        self.spent.nesting += 1;
        match rule {
            Some(rule) => {
                self.run.cookie = rule.value().cookie;
                self.run.first_cookie.get_or_insert(self.run.cookie);
                self.run.miss_flow = rule.priority() == 0 && rule.mask() == Mask::ZERO;
                self.note_rule(table, rule);
                self.credit(rule.value().id);
                if self.admit_once() {
                    let list = &rule.value().instructions;
                    if list.is_empty() {
                        self.note_action(|| "drop".into());
                    }
                    self.instructions(list);
                    self.end.stopped = false;
                }
                self.trace_close();
            }
            None => self.miss(table, miss),
        }
        self.spent.depth -= deepens;
        self.spent.nesting -= 1;
        (self.run.table, self.run.cookie, self.run.miss_flow, self.run.rule) = before;
        rule.map(|r| r.value().cookie)
    }

    /// The rule for the packet as it is now. In the usual handling of fragments none of a
    /// datagram's parts shows ports, so that all are treated alike.
    pub(super) fn lookup_in_table(&mut self, table: u8) -> Option<&'a FlowRule> {
        let table = self.bridge.tables.get(table)?;
        let own = self.key;
        let fragment = self.key.u8(at::FRAG) & flow::frag::ANY != 0;
        if fragment && self.bridge.config.frag == FragHandling::Normal {
            self.key.set_u16(at::TP_SRC, 0);
            self.key.set_u16(at::TP_DST, 0);
        }
        let key = self.key;
        let found = match self.is_ethernet() {
            true => match self.classify(table, &key) {
                found if self.wc.u64(at::TUN_MATCH) == 0 => found,
                found => self.by_options(table, found),
            },
            false => {
                let Snapshot { guard, version, .. } = self.snapshot;
                let mut steps = 0;
                let found = table.lookup_bare(guard, &key, version, &mut self.wc, &mut steps);
                self.pays(steps).then_some(found).flatten()
            }
        };
        self.key = own;
        found
    }

    /// The rule of a table for a key; None also if that takes too many steps: with conjunctive
    /// matches, or very many masks.
    pub(super) fn classify(&mut self, table: &'a Table, key: &Key) -> Option<&'a FlowRule> {
        let mut steps = 0;
        let Snapshot { guard, version, .. } = self.snapshot;
        let found = table.lookup(guard, key, version, &mut self.wc, &mut steps);
        self.pays(steps).then_some(found).flatten()
    }

    /// What a copy of the packet may change: the packet gets it back by [`Xlate::restore`].
    pub(super) fn save(&self) -> Saved {
        let Layers { was_mpls, labels, .. } = self.packet.layers;
        let (exit, tracked) = (self.end.exit, self.packet.ct.tracked);
        Saved { key: self.key, was_mpls, labels, exit, tracked, tun: self.tunnel.fields.clone() }
    }

    /// The packet goes on as it was before a copy of it was worked on.
    pub(super) fn restore(&mut self, saved: Saved) {
        let Saved { key, was_mpls, labels, exit, tracked, tun } = saved;
        self.key = key;
        (self.packet.layers.was_mpls, self.packet.layers.labels) = (was_mpls, labels);
        (self.end.exit, self.packet.ct.tracked, self.tunnel.fields) = (exit, tracked, tun);
    }

    /// [`Xlate::spend`] for what may have taken no step.
    fn pays(&mut self, steps: usize) -> bool {
        steps == 0 || self.spend(steps)
    }

    /// Stands above every flow of table 0 while all controllers are away.
    pub(super) fn fail_open(&mut self) {
        self.note_table(|| format!(" 0. priority {FAIL_OPEN_PRIORITY}"));
        if self.admit_once() {
            self.note_action(|| "NORMAL".into());
            self.normal();
        }
        self.trace_close();
    }

    /// Looks further tables up as long as controllers have said that what a table misses goes on
    /// to the next one; where that ended.
    fn continue_from(&mut self, mut table: u8) -> (u8, Option<&'a FlowRule>) {
        let misses = &self.bridge.config.misses;
        while misses.get(&table) == Some(&TableMiss::Continue)
            && usize::from(table) + 1 < N_TABLES
            && self.spend(1)
        {
            self.credit(self.bridge.miss_base + u32::from(table));
            table += 1;
            if let Some(rule) = self.lookup_in_table(table) {
                return (table, Some(rule));
            }
        }
        (table, None)
    }

    pub(super) fn miss(&mut self, table: u8, miss: Miss) {
        self.credit(self.bridge.miss_base + u32::from(table));
        let silent = |p: &PortView| p.spec.config & port_config::NO_PACKET_IN != 0;
        let wanted = match self.bridge.config.misses.get(&table) {
            Some(miss) => *miss != TableMiss::Drop,
            None => self.bridge.config.miss_to_controller,
        };
        let reported =
            wanted && miss == Miss::Honor && !self.bridge.port(self.in_port()).is_some_and(silent);
        if !reported {
            self.note_table(|| format!("{table:2}. No match."));
            if self.admit_once() {
                self.note_action(|| "drop".into());
            }
            return self.trace_close();
        }
        let text = "No match, and a \"packet-in\" is called for.";
        self.note_table(|| format!("{table:2}. {text}"));
        if self.admit_once() {
            self.note_action(|| "CONTROLLER".into());
            (self.run.cookie, self.run.no_flow) = (0, true);
            self.controller(&ToController::new(0, Reason::TableMiss));
            self.run.no_flow = false;
        }
        self.trace_close();
    }

    pub(super) fn instructions(&mut self, list: &'a [Instruction]) {
        for (i, instruction) in list.iter().enumerate() {
            match instruction {
                Instruction::Apply(a) if a.is_empty() => self.note_action(|| "drop".into()),
                Instruction::Apply(a) => {
                    if self.actions_then(a.iter(), &list[i + 1..]) {
                        return;
                    }
                }
                Instruction::Clear => {
                    self.note_action(|| "clear_actions".into());
                    self.note_set("was");
                    self.packet.set.clear();
                }
                Instruction::Write(a) => self.write(a),
                Instruction::WriteMetadata { value, mask } => {
                    self.note_metadata(*value, *mask);
                    let old = self.key.u64(at::METADATA);
                    self.key.set_u64(at::METADATA, old & !mask | value & mask);
                }
                Instruction::Goto(t) if self.packet.layers.was_mpls => {
                    self.end.rest.get_or_insert_default().push(Instruction::Goto(*t));
                }
                Instruction::Goto(t) => {
                    self.note_action(|| format!("goto_table:{t}"));
                    self.table(*t, None, Miss::Honor);
                }
                Instruction::Meter(id) => {
                    self.note_action(|| format!("meter:{id}"));
                    self.meter(*id);
                }
            }
            if self.end.rest.is_some() {
                return self.keep(&list[i + 1..]);
            }
            if self.ends() {
                return;
            }
        }
    }

    /// Is nothing left to do of the list that runs?
    pub(super) fn ends(&self) -> bool {
        self.end.exit || self.end.stopped || self.end.failed.is_some()
    }

    /// Says what the action set is, or was.
    pub(super) fn note_set(&mut self, verb: &str) {
        let set = std::mem::take(&mut self.packet.set);
        self.trace_detail(|| {
            let text: Vec<_> = set::in_order(&set).iter().map(|a| action_text(a)).collect();
            match text.is_empty() {
                true => format!("action set {verb} empty"),
                false => format!("action set {verb}: {}", text.join(",")),
            }
        });
        self.packet.set = set;
    }

    /// Instructions for after the recirculation.
    pub(super) fn keep(&mut self, list: &[Instruction]) {
        let size = |i: &Instruction| match i {
            Instruction::Apply(a) | Instruction::Write(a) => a.len(),
            _ => 1,
        };
        if self.spend(list.iter().map(size).sum()) {
            self.end.rest.get_or_insert_default().extend(list.iter().cloned());
        }
    }

    pub(super) fn write(&mut self, list: &'a [Action]) {
        if !self.spend(list.len()) || !self.spend_on_lists() {
            return;
        }
        self.note_action(|| format!("write_actions({})", actions_text(list)));
        self.packet.set.extend(list);
        self.note_set("is");
        let port = set::output_port(&self.packet.set).unwrap_or(port::UNSET);
        self.key.set_u32(at::ACTSET_OUTPUT, port);
    }

    pub(super) fn fail(&mut self, why: Drop) {
        self.end.failed.get_or_insert(why);
        self.end.exit = true;
    }

    /// The state that a recirculation carries over.
    pub(super) fn state(&self, rest: Vec<Instruction>) -> State {
        let outer = Some(frozen::outer(&self.key)).filter(|o| *o != self.tunnel.outer);
        State {
            conntracked: self.packet.ct.tracked,
            mirrors: self.mirror.met,
            outer: outer.map(Box::new),
            bridge: self.bridge.id,
            table: self.run.table,
            cookie: self.run.cookie,
            pipeline: self.key.words[PACKET_LINES * 8..].try_into().unwrap_or([0; 16]),
            set: self.packet.set.iter().map(|a| (*a).clone()).collect(),
            stack: self.packet.stack.clone(),
            tun: self.tunnel.fields.clone(),
            rest,
        }
    }

    /// Hands the result over.
    pub(super) fn finish(&mut self) {
        self.forget_own();
        self.note_final();
        if let Some(why) = self.end.failed {
            self.answer.decision.ops.clear();
            self.answer.decision.drop = Some(why);
        }
        let ends = |op: &Op| {
            matches!(
                op,
                Op::Output(_)
                    | Op::Punt(_)
                    | Op::Recirc(_)
                    | Op::Ct(_)
                    | Op::TunnelPop { .. }
                    | Op::Clone(_)
                    | Op::CheckLen { .. }
                    | Op::Sample { .. }
                    | Op::Meter(_)
                    | Op::Drop(_)
            )
        };
        let used = self.answer.decision.ops.iter().rposition(ends).map_or(0, |i| i + 1);
        self.answer.decision.ops.truncate(used);
        // Nothing follows that a copy would have to be kept for.
        while let Some(Op::Clone(last)) =
            self.answer.decision.ops.pop_if(|op| matches!(op, Op::Clone(_)))
        {
            self.answer.decision.ops.extend(last);
        }
        if self.answer.decision.ops.iter().all(|op| matches!(op, Op::Ct(_))) {
            self.answer.decision.drop.get_or_insert(Drop::Policy);
        }
        self.finish_export();
        if !self.answer.effects.is_empty() {
            self.answer.decision.effects = Some(Arc::new(std::mem::take(&mut self.answer.effects)));
        }
        if !self.answer.holds.is_empty() {
            self.answer.decision.keep_alive =
                Some(Arc::new(std::mem::take(&mut self.answer.holds)));
        }
        self.finish_mask();
    }

    pub(super) fn finish_mask(&mut self) {
        let wc = &mut self.wc;
        wc.words[PACKET_LINES * 8..].fill(0);
        if !self.tunnel.received {
            outer::forget(wc);
        }
        if wc.u16(at::VLAN) != 0 {
            wc.set_u16(at::VLAN, wc.u16(at::VLAN) | fields::VLAN_PRESENT);
        }
        self.answer.decision.mask = *wc;
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    pub fn bridge(&self) -> &'a BridgeView {
        self.bridge
    }

    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.trace.as_mut()
    }

    /// Sets metadata, registers and in_port.
    pub fn pipeline(&mut self, words: &[u64]) {
        self.key.words[PACKET_LINES * 8..].copy_from_slice(words);
        self.key.set_u32(at::ACTSET_OUTPUT, port::UNSET);
        self.base = self.key;
    }

    /// A whole translation from table 0 on.
    pub fn run(&mut self) {
        self.start();
        self.finish();
    }

    /// The rest of a translation that paused.
    pub fn resume_paused(&mut self, state: &'a State) {
        self.thaw(state);
        self.finish();
    }

    /// A whole translation of a controller's actions.
    pub fn packet_out(&mut self, list: &'a [Action]) {
        self.note_bridge();
        self.begin_export();
        self.run.origin.packet_out = true;
        self.spent.begun = true;
        self.mirror.fresh = true;
        if self.admit_once() {
            self.actions(list.iter());
        }
        self.run_set();
        self.freeze();
        self.trace_close();
        self.finish();
    }
}

/// A packet's state while a copy of it goes through a clone, a bucket or another bridge.
pub(super) struct Saved {
    key: Key,
    was_mpls: bool,
    labels: u8,
    exit: bool,
    tracked: bool,
    tun: Vec<TunMetadata>,
}

/// Where the actions that run now come from, for the reason of packet-ins (1.4 and later).
#[derive(Clone, Copy, Default)]
pub(super) struct Origin {
    pub(super) packet_out: bool,
    pub(super) groups: u32,
    pub(super) set: bool,
}

impl Origin {
    pub(super) fn reason(self) -> Reason {
        match self {
            Origin { packet_out: true, .. } => Reason::PacketOut,
            Origin { groups: 1.., .. } => Reason::Group,
            Origin { set: true, .. } => Reason::ActionSet,
            _ => Reason::Action,
        }
    }
}

/// What a table without a match means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Miss {
    /// The bridge's rule for misses.
    Honor,
    /// Nothing (resubmit).
    Ignore,
}

/// Says in `wc` what every decision looks at; returns the key as tables see it first: registers and
/// metadata are empty.
pub(super) fn initial_key(key: &Key, wc: &mut Mask) -> Key {
    wc.set_u16(at::ETH_TYPE, 0xffff);
    wc.set_u32(at::RECIRC, !0);
    wc.set_u16(at::IN_PORT, 0xffff);
    if fields::is_ip(key.u16(at::ETH_TYPE)) {
        wc.set_u8(at::FRAG, flow::frag::ANY | flow::frag::LATER);
    }
    let mut key = *key;
    empty_registers(&mut key);
    key
}

/// Clears registers and metadata, as for a packet that just came in.
pub(super) fn empty_registers(key: &mut Key) {
    key.words[PACKET_LINES * 8..].fill(0);
    no_action_set(key);
}

pub(super) fn no_action_set(key: &mut Key) {
    key.set_u32(at::ACTSET_OUTPUT, port::UNSET);
}

pub(super) fn may_receive(p: &PortView) -> bool {
    p.spec.config & port_config::NO_RECV == 0
}

/// Label stack entries in the key.
pub(super) fn labels(key: &Key) -> u8 {
    match (fields::is_mpls(key.u16(at::ETH_TYPE)), key.u32(at::MPLS) & 0x100 != 0) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => 2,
    }
}

/// What a translation has used up.
#[derive(Default)]
pub(super) struct Spent {
    /// Tables that lead back, groups and patch ports that the translation is within.
    pub(super) depth: usize,
    /// The first table was looked up, or actions of a controller's packet run.
    begun: bool,
    pub resubmits: usize,
    pub nesting: usize,
    pub(super) steps: usize,
    pub(super) ops: usize,
}

/// What a controller is sent.
pub(super) struct ToController<'a> {
    /// Bytes that the action asked for.
    pub max_len: u16,
    /// Id of the controllers that get it.
    pub id: u16,
    pub reason: Reason,
    pub userdata: &'a [u8],
    /// The meter that decides; else that of all packets to controllers.
    pub meter: Option<u32>,
}

impl ToController<'_> {
    /// The whole packet, and nothing beside.
    pub fn new(id: u16, reason: Reason) -> Self {
        ToController { max_len: 0xffff, id, reason, userdata: &[], meter: None }
    }
}

/// Bit of `ct_state`: connection tracking saw the packet.
pub(super) const TRK: u8 = 0x20;
