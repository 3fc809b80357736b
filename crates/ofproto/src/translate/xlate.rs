//! A translation: from a packet, or a controller's actions, to a decision.
//!
//! Actions change the packet's headers in `key`. An output commits the difference between `key` and
//! `base` as operations. `wc` collects the bits that were read.

use super::effects::Effects;
use super::frozen::{self, State};
use super::labels::labels;
use super::set;
use super::state::{Answer, CtState, End, Exporting, Layers, Mirroring, Miss, Outer, PacketState};
use super::state::{Running, Saved, Snapshot, Spent};
use crate::action_text::{action_text, actions_text};
use crate::fields;
use crate::published::{BridgeView, PortView, View};
use crate::trace::recorder::Recorder;
use crate::tunnel as outer;
use action::{Decision, Op};
use flow::{Key, Mask, PACKET_LINES, at};
use openflow::{Action, FragHandling, Instruction, OfPort, Reason, port, port_config};
use std::sync::Arc;
use sync::Guard;
use telemetry::Drop;

/// A translation under way.
pub(crate) struct Xlate<'a, 'o> {
    pub(super) snapshot: Snapshot<'a>,
    pub(super) bridge: &'a BridgeView,
    /// The packet as the actions made it.
    pub(super) key: Key,
    /// The packet as the operations make it.
    pub(super) base: Key,
    /// The bits of the key on which the decision depends so far.
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
                asked: Vec::new(),
                visited: Vec::new(),
                holds: Vec::new(),
                export: Exporting::default(),
            },
            trace,
        }
    }

    /// The right to read what is published.
    pub(crate) fn guard(&self) -> Guard<'a> {
        self.snapshot.guard
    }

    /// Looks flows and groups up at this version, instead of the published one.
    pub fn at_version(&mut self, version: u64) {
        self.snapshot.version = version;
    }

    /// Translates a packet that was just received.
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
        if port.is_some_and(|p| !self.receives(p)) {
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
        // What the action set sends to controllers has the first flow's cookie, as in OVS.
        if let Some(cookie) = self.table(0, None, Miss::Honor) {
            self.run.cookie = cookie;
        }
        self.trace_reopen();
        if port.is_none_or(PortView::forwards) {
            self.run_set();
            self.freeze();
        } else {
            self.answer.decision.ops.clear();
            self.only_learn();
            self.admit_dhcp();
        }
        self.trace_close();
        self.trace_close();
    }

    pub(super) fn in_port(&self) -> OfPort {
        self.key.u32(at::OF_IN_PORT)
    }

    /// The port by which the packet came in, or that actions have made its input port.
    pub(super) fn input(&mut self) -> Option<&'a PortView> {
        let number = self.in_port();
        let port = self.bridge.port(number);
        let received = self.key.u16(at::IN_PORT);
        let own = |p: &PortView| p.spec.dp_port == Some(received) || p.leads_elsewhere();
        if !port.is_some_and(own) && !matches!(number, port::CONTROLLER | port::ANY) {
            self.look_at_ports();
        }
        port
    }

    /// Executes the action set, as at the end of a pipeline.
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

    /// The state that work on a copy of the packet may change; [`Xlate::restore`] restores it.
    pub(super) fn save(&self) -> Saved {
        let Layers { was_mpls, labels, .. } = self.packet.layers;
        let (exit, tracked) = (self.end.exit, self.packet.ct.tracked);
        Saved { key: self.key, was_mpls, labels, exit, tracked, tun: self.tunnel.fields.clone() }
    }

    /// Restores the packet's state after work on a copy.
    pub(super) fn restore(&mut self, saved: Saved) {
        let Saved { key, was_mpls, labels, exit, tracked, tun } = saved;
        self.key = key;
        (self.packet.layers.was_mpls, self.packet.layers.labels) = (was_mpls, labels);
        (self.end.exit, self.packet.ct.tracked, self.tunnel.fields) = (exit, tracked, tun);
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

    /// True if the rest of the current list is skipped.
    pub(super) fn ends(&self) -> bool {
        self.end.exit || self.end.stopped || self.end.failed.is_some()
    }

    /// Records the action set for a trace.
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

    /// Keeps instructions for after the recirculation.
    pub(super) fn keep(&mut self, list: &[Instruction]) {
        let lists = list.iter().map(|i| match i {
            Instruction::Apply(a) | Instruction::Write(a) => a.as_slice(),
            _ => &[],
        });
        if self.spend(list.len()) && self.spend_on_copies(lists.flatten()) {
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

    /// Ends the translation, or that of a bucket: the packet is dropped. Had there been no output,
    /// it might not have ended.
    pub(super) fn fail(&mut self, why: Drop) {
        self.look_at_ports();
        self.end.failed.get_or_insert(why);
        self.end.exit = true;
    }

    /// The state that a frozen translation continues with.
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

    /// Completes the decision.
    pub(super) fn finish(&mut self) {
        self.forget_own();
        self.note_final();
        if let Some(why) = self.end.failed {
            self.answer.decision.ops.clear();
            self.answer.decision.drop = Some(why);
            let visited = std::mem::take(&mut self.answer.visited);
            visited.into_iter().for_each(|credit| self.ask_for_ports(credit));
            self.look_at_ports();
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
                    | Op::Kernel(_)
                    | Op::Drop(_)
            )
        };
        let used = self.answer.decision.ops.iter().rposition(ends).map_or(0, |i| i + 1);
        self.answer.decision.ops.truncate(used);
        // Nothing follows the last clone, so it needs no copy.
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
        self.answer.decision.steps = self.spent.steps as u32;
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

    /// Steps that it took.
    pub fn steps(&self) -> usize {
        self.spent.steps
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

    /// Executes a whole translation from table 0 on.
    pub fn run(&mut self) {
        self.start();
        self.finish();
    }

    /// Executes the rest of a translation that was paused.
    pub fn resume_paused(&mut self, state: &'a State) {
        self.thaw(state);
        self.finish();
    }

    /// Executes a controller's actions.
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

/// Adds the bits that every decision depends on to `wc`. Returns the key as tables see it first:
/// without registers and metadata.
pub(super) fn initial_key(key: &Key, wc: &mut Mask) -> Key {
    wc.set_u16(at::ETH_TYPE, 0xffff);
    wc.set_u32(at::RECIRC, !0);
    wc.set_u16(at::IN_PORT, 0xffff);
    if fields::is_ip(key.u16(at::ETH_TYPE)) {
        wc.set_u8(at::FRAG, flow::frag::ANY | flow::frag::LATER);
    }
    let mut key = *key;
    // What stands for Geneve options in a packet's key is where tables have ERSPAN's fields.
    if key.u8(at::FLAGS) & flow::flag::TUNNEL_OPTIONS != 0 {
        wc.set_u8(at::FLAGS, wc.u8(at::FLAGS) | flow::flag::TUNNEL_OPTIONS);
        key.set_u64(at::TUN_OPTIONS, 0);
    }
    empty_registers(&mut key);
    key
}

/// Clears registers and metadata, as for a packet that was just received.
pub(super) fn empty_registers(key: &mut Key) {
    key.words[PACKET_LINES * 8..].fill(0);
    no_action_set(key);
}

pub(super) fn no_action_set(key: &mut Key) {
    key.set_u32(at::ACTSET_OUTPUT, port::UNSET);
}

/// Bits of a port's config that keep some packets, or all, from being received.
pub(super) const RECV_BITS: u32 = port_config::NO_RECV | port_config::NO_RECV_STP;

/// The parameters of a packet that is sent to controllers.
pub(super) struct ToController<'a> {
    /// Number of bytes that the action asked for.
    pub max_len: u16,
    /// Id of the controllers that get it.
    pub id: u16,
    pub reason: Reason,
    pub userdata: &'a [u8],
    /// The meter of this output; None: the meter of all packets to controllers.
    pub meter: Option<u32>,
}

impl ToController<'_> {
    /// The whole packet, without user data, and without a meter of its own.
    pub fn new(id: u16, reason: Reason) -> Self {
        ToController { max_len: 0xffff, id, reason, userdata: &[], meter: None }
    }
}

/// Bit of `ct_state`: the packet was tracked.
pub(super) const TRK: u8 = 0x20;
