//! Outputs: to ports, to another bridge, to controllers.

use crate::published::{BridgeView, PortView};
use crate::translate::effects::PacketInContext;
use crate::translate::state::{Miss, Pause};
use crate::translate::tunnel::OAM;
use crate::translate::xlate::{ToController, Xlate};
use crate::types::BridgeId;
use action::{Meter, Op, Punt, PuntClass, TunnelKind};
use flow::{FIELDS, Field, Key, PACKET_LINES, PortNo, at};
use openflow::{
    Action, Continuation, Instruction, Match, OfPort, Reason, meter_id, port, port_config,
};
use std::sync::Arc;

impl<'a> Xlate<'a, '_> {
    /// Executes an output action.
    pub(super) fn output(&mut self, p: OfPort, trunc: u32) {
        let before = self.begin_export_output();
        self.send(p, trunc);
        self.end_export_output(before);
    }

    fn send(&mut self, p: OfPort, trunc: u32) {
        match p {
            port::IN_PORT => self.output_port(self.in_port(), trunc),
            port::TABLE => self.table_again(),
            port::NORMAL => self.normal(),
            port::FLOOD => self.flood(false),
            port::ALL => self.flood(true),
            port::CONTROLLER => self.controller(&ToController::new(0, self.run.origin.reason())),
            p if p == self.in_port() => {
                self.trace_warning(|| "skipping output to input port".into())
            }
            p => self.output_port(p, trunc),
        }
    }

    fn flood(&mut self, all: bool) {
        let bridge = self.bridge;
        self.look_at_ports();
        for p in &bridge.ports {
            if !self.spend(1) {
                return;
            }
            let (number, config) = (p.spec.of_port, p.spec.config);
            let floods = all || config & port_config::NO_FLOOD == 0;
            if number != self.in_port() && floods {
                self.output_by(number, 0, !all);
            }
        }
        self.export_flooded();
    }

    /// Sends to a port, even to the one on which the packet came in.
    pub(super) fn output_port(&mut self, number: OfPort, trunc: u32) {
        self.output_by(number, trunc, true);
    }

    /// As [`Xlate::output_port`]; `tree`: as the spanning tree allows, which `ALL` does not ask.
    fn output_by(&mut self, number: OfPort, trunc: u32, tree: bool) {
        if !self.spend(1) {
            return;
        }
        let bridge = self.bridge;
        let Some(p) = bridge.port(number) else {
            self.look_at_ports();
            return self.trace_warning(|| "Nonexistent output port".into());
        };
        if self.is_refused(p, number, trunc) || tree && self.is_closed(p) {
            return self.look_at_ports();
        }
        if let Some((peer, peer_port)) = p.peer {
            p.counts.iter().for_each(|base| self.credit(base + 1));
            return self.patch(peer, peer_port);
        }
        if !self.is_taken(p) {
            return self.look_at_ports();
        }
        let Some(dp) = p.spec.dp_port else {
            self.look_at_ports();
            return self.trace_warning(|| "Nonexistent output port".into());
        };
        let tos = self.mark_dscp(p);
        match &p.spec.tunnel {
            Some(spec) => {
                let before = self.export_outputs();
                if self.enter_tunnel(p, spec, dp, trunc) {
                    self.export_way(before);
                    self.export_sent(p);
                    self.mirror_sent(p);
                }
            }
            None => self.send_by(p, dp, trunc),
        }
        self.unmark_dscp(tos);
    }

    /// Records in the trace why nothing is sent to a port, if so.
    fn is_refused(&mut self, p: &PortView, number: OfPort, trunc: u32) -> bool {
        let is_patch = p.spec.patch_peer.is_some();
        if p.spec.config & port_config::NO_FWD != 0 {
            self.trace_detail(|| "OFPPC_NO_FWD set, skipping output".into());
        } else if is_patch && self.mirror.snaplen != 0 {
            self.trace_warning(|| "Mirror truncate to ODPP_NONE, skipping output".into());
        } else if is_patch && trunc != 0 {
            self.trace_warning(|| format!("output_trunc does not support patch port {number}"));
        } else {
            return false;
        }
        true
    }

    /// Sends by the port's device, or to the tunnel that ends there.
    fn send_by(&mut self, p: &'a PortView, dp: PortNo, trunc: u32) {
        let tunnel = self.terminates(p);
        if tunnel.is_some() {
            self.look_at_ports();
        }
        self.commit();
        let cut = match u32::from(self.mirror.snaplen) {
            // A packet that goes into a tunnel is not truncated.
            _ if tunnel.is_some() => trunc,
            0 | 0xffff => trunc,
            snaplen => snaplen,
        };
        self.sample_output(p, dp);
        if cut != 0 {
            self.op(Op::Truncate(cut));
        }
        self.op(match tunnel {
            Some((port, kind)) => {
                let options = match kind {
                    TunnelKind::Geneve => self.snapshot.published.options.clone(),
                    _ => Default::default(),
                };
                Op::TunnelPop { port, kind, options }
            }
            None => Op::Output(dp),
        });
        self.export_sent(p);
        self.mirror_sent(p);
    }

    /// Continues in the bridge at the other end of a patch port; the packet comes back unchanged.
    fn patch(&mut self, bridge: u32, in_port: OfPort) {
        let published = self.snapshot.published;
        let Some(peer) = published.bridge(bridge) else { return };
        if self.is_too_much() {
            return;
        }
        peer.port(in_port).and_then(|p| p.counts).iter().for_each(|c| self.credit(*c));
        let mark = self.mark();
        let saved = self.save();
        self.visit(peer, in_port);
        self.restore(saved);
        self.end.exit |= self.end.failed.is_some();
        self.isolate(mark);
    }

    /// Translates the packet, as it is now, in another bridge. Key, base and MPLS state are as that
    /// bridge left them afterwards.
    pub(super) fn visit(&mut self, peer: &'a BridgeView, in_port: OfPort) {
        let from = self.bridge;
        let (table, cookie, exit) = (self.run.table, self.run.cookie, self.end.exit);
        let exited = self.end.exited;
        let set = std::mem::take(&mut self.packet.set);
        let stack = std::mem::take(&mut self.packet.stack);
        let first_cookie = self.run.first_cookie.take();
        let (conntracked, mirrors) = (self.packet.ct.tracked, self.mirror.met);
        if peer.id != from.id {
            self.mirror.met = 0;
        }
        self.untrack();
        let packet_type = self.key.u32(at::PACKET_TYPE);
        self.key.words[PACKET_LINES * 8..].fill(0);
        self.key.set_u32(at::PACKET_TYPE, packet_type);
        self.key.set_u32(at::OF_IN_PORT, in_port);
        self.key.set_u32(at::ACTSET_OUTPUT, port::UNSET);
        self.bridge = peer;
        if !self.answer.visited.contains(&peer.ports_credit) {
            self.answer.visited.push(peer.ports_credit);
        }
        if self.tunnel.encapsulated && !self.answer.effects.outer_bridges.contains(&peer.id) {
            self.answer.effects.outer_bridges.push(peer.id);
        }
        self.spent.depth += 1;
        self.note_bridge();
        let entry = peer.port(in_port).filter(|p| !self.take_special(p));
        if let Some(entry) = entry.filter(|p| self.receives(p)) {
            let mark = (self.answer.decision.ops.len(), self.base, self.mirror.met);
            match self.packet.layers.was_mpls {
                true => self.end.rest = Some(vec![openflow::Instruction::Goto(0)]),
                false => drop(self.table(0, None, Miss::Honor)),
            }
            if entry.forwards() {
                self.run_set();
                self.freeze();
            } else {
                self.answer.decision.ops.truncate(mark.0);
                (self.base, self.mirror.met) = (mark.1, mark.2);
                self.only_learn();
            }
        }
        self.trace_close();
        self.spent.depth -= 1;
        if peer.id != from.id {
            self.mirror.met = mirrors;
        }
        self.bridge = from;
        (self.run.table, self.run.cookie) = (table, cookie);
        (self.packet.ct.tracked, self.end.exited) = (conntracked, exited);
        self.end.exit = exit || self.end.failed.is_some();
        (self.packet.set, self.packet.stack, self.run.first_cookie) = (set, stack, first_cookie);
    }

    /// Sends the packet to controllers.
    pub(super) fn controller(&mut self, to: &ToController<'_>) {
        self.tell(to, None);
    }

    /// Sends the packet to controllers with what they need to resume the pipeline.
    pub(super) fn pause(&mut self, pause: &Pause<'a>, rest: Vec<Instruction>) {
        let Action::Controller { max_len, reason, id, userdata, meter, .. } = pause.action else {
            return;
        };
        if !self.is_ethernet() {
            return self.unsupported("a pause");
        }
        let set = std::mem::take(&mut self.packet.set);
        let room = self.spend_on_copies(set.iter().copied()) && self.spend(self.packet.stack.len());
        self.packet.set = set;
        if !room {
            return;
        }
        self.commit();
        let odp_port = self.key.u16(at::IN_PORT).into();
        let continuation = Continuation {
            bridge: self.snapshot.shared.name_of(self.bridge.id, odp_port),
            stack: self.packet.stack.clone(),
            mirrors: self.mirror.met,
            conntracked: self.packet.ct.tracked,
            table: self.run.table,
            cookie: self.run.cookie,
            rest,
            set: self.packet.set.iter().map(|a| (*a).clone()).collect(),
            odp_port,
        };
        let (max_len, id, reason, meter) = (*max_len, *id, *reason, *meter);
        let to = ToController { max_len, id, reason, userdata, meter };
        // The lists that led to the rule have ended: what is executed now may be another one's.
        let run = (self.run.table, self.run.cookie, self.run.miss_flow);
        (self.run.table, self.run.cookie) = (pause.table, pause.cookie);
        self.run.miss_flow = pause.miss_flow;
        self.tell(&to, Some(continuation));
        (self.run.table, self.run.cookie, self.run.miss_flow) = run;
    }

    fn tell(&mut self, to: &ToController<'_>, continuation: Option<Continuation>) {
        if !self.spend_on_message(to.userdata.len()) {
            return;
        }
        self.commit();
        // All packets of a megaflow bring controllers the same fields.
        self.look_at_received();
        let (max_len, reason) = (to.max_len, to.reason);
        let context = PacketInContext {
            bridge: BridgeId(self.bridge.id),
            table: self.run.table,
            cookie: self.run.cookie,
            reason,
            miss_flow: self.run.miss_flow,
            no_flow: self.run.no_flow && !self.run.origin.packet_out,
            max_len,
            controller_id: to.id,
            userdata: to.userdata.to_vec(),
            continuation,
            matching: Match { tun: self.tunnel.fields.clone(), ..pipeline_fields(&self.key) },
        };
        // Hardly any controller wants these packets; if none does, they are drops and not punts.
        let wanted = (reason == Reason::InvalidTtl).then(|| self.bridge.expired_wanted.clone());
        let class = PuntClass::Controller;
        let punt = Punt { class, max_len: u16::MAX, wanted, context: Box::new(context) };
        let punt = Op::Punt(Arc::new(punt));
        let named = to.meter.and_then(|id| self.meter_of(id));
        self.op(match named.or_else(|| self.meter_of(meter_id::CONTROLLER)) {
            Some(meter) => {
                Op::Sample { chance: u32::MAX, ops: Box::new([Op::Meter(meter.clone()), punt]) }
            }
            None => punt,
        });
    }

    fn meter_of(&self, id: u32) -> Option<&'a Arc<Meter>> {
        self.bridge.meter(self.guard(), id)
    }

    /// Lets a meter decide whether the packet continues; a meter that does not exist lets it pass.
    pub(super) fn meter(&mut self, id: u32) {
        if let Some(meter) = self.meter_of(id) {
            self.op(Op::Meter(meter.clone()));
        }
    }
}

/// in_port, and those of packet type, metadata, registers and tunnel fields that are not zero.
fn pipeline_fields(key: &Key) -> Match {
    let mut m = Match::default();
    let value = |f: Field| match f {
        Field::TunFlags => f.get(key) & u128::from(OAM),
        f => f.get(key),
    };
    let mut take = |f: Field| {
        f.unwildcard(&mut m.mask);
        f.set(&mut m.key, value(f));
    };
    take(Field::InPort);
    let tunnel = at::TUN_DST..at::CT_LABEL;
    let wanted = |f: &Field| {
        tunnel.contains(&f.offset())
            || matches!(f, Field::PacketType | Field::Metadata | Field::TunId | Field::TunSrc)
    };
    let fields = FIELDS.iter().copied().filter(wanted).chain((0..16).map(Field::Reg));
    let tracked = std::iter::once(Field::CtState);
    fields.chain(tracked).filter(|f| value(*f) != 0).for_each(take);
    m
}

impl PacketInContext {
    /// The fields of a packet-in. Those of the connection are taken from the packet's own key,
    /// since the context is the same for all packets of a megaflow. If translation took the packet
    /// as not tracked, there are none, even if an earlier `ct` has filled its key.
    pub fn fields_of(&self, key: &Key) -> Match {
        let mut m = self.matching.clone();
        if m.mask.u8(at::CT_STATE) == 0 {
            return m;
        }
        for f in connection_fields(key).filter(|f| f.get(key) != 0) {
            f.unwildcard(&mut m.mask);
            f.set(&mut m.key, f.get(key));
        }
        m
    }
}

/// Which `ct` fields are valid, and the Ethertype, which says which addresses there are.
fn connection_fields(key: &Key) -> impl Iterator<Item = Field> {
    /// new, est, rel or rpl: there is a first packet, which has a tuple.
    const HAS_TUPLE: u8 = 0xf;
    let state = key.u8(at::CT_STATE);
    let of_packet = [Field::CtState, Field::EthType, Field::CtZone, Field::CtMark, Field::CtLabel];
    let of_tuple = [
        Field::CtNwSrc,
        Field::CtNwDst,
        Field::CtIpv6Src,
        Field::CtIpv6Dst,
        Field::CtNwProto,
        Field::CtTpSrc,
        Field::CtTpDst,
    ];
    let of_packet = of_packet.into_iter().take(if state == 0 { 0 } else { 5 });
    of_packet.chain(of_tuple.into_iter().take(if state & HAS_TUPLE == 0 { 0 } else { 7 }))
}
