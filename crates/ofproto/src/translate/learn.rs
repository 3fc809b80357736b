//! The learn and fin_timeout actions: changes of flow tables by packets.

use super::actions::ones;
use crate::learned::{Fin, LearnedFlow};
use crate::translate::xlate::Xlate;
use flow::{Field, at, match_text};
use openflow::{
    Action, FlowMod, FlowModCommand, Instruction, Learn, LearnSource, LearnSpec, LearnTarget,
    Match, OfPort, Subfield, flow_flag, learn_flag, port,
};
use std::sync::atomic::Ordering::Relaxed;

/// TCP flags FIN and RST.
const ENDS: u8 = 0b101;

impl<'a> Xlate<'a, '_> {
    pub(super) fn learn_flow(&mut self, l: &'a Learn) {
        if !self.spend_on_message(0) || !self.spend(l.specs.len()) {
            return;
        }
        let flow = self.learned_flow(l);
        if self.suppresses() {
            return self
                .trace_warning(|| "suppressing side effects, so learn action ignored".into());
        }
        self.trace_detail(|| learned_text(&flow));
        let counts = self.bridge.learned.read(self.guard());
        let count = counts.get(&(l.table, l.cookie)).map_or(0, |n| n.load(Relaxed));
        let limited = l.limit > 0 && count >= l.limit;
        if let Some(dst) = l.result {
            self.write_bits(dst, u128::from(!limited));
            self.now(dst);
        }
        if limited {
            return self.trace_detail(|| "Limit exceeded, learn failed".into());
        }
        if !self.may_teach() {
            return;
        }
        let (bridge, port) = (self.bridge.id, self.base.u16(at::IN_PORT));
        self.answer.effects.flows.push(LearnedFlow { bridge, port, limit: l.limit, flow });
    }

    /// The flow that the packet, as it is now, adds. Looks at the fields that are copied.
    fn learned_flow(&mut self, l: &Learn) -> FlowMod {
        let (mut matching, mut actions) = (Match::default(), Vec::new());
        if l.fin_idle_timeout != 0 || l.fin_hard_timeout != 0 {
            let (idle, hard) = (l.fin_idle_timeout, l.fin_hard_timeout);
            actions.push(Action::FinTimeout { idle, hard });
        }
        for spec in &l.specs {
            let value = match spec.src {
                LearnSource::Field(s) => self.read_bits(s),
                LearnSource::Value(v) => v,
            };
            put_spec(spec, value, &mut matching, &mut actions);
        }
        let reports_removal = l.flags & learn_flag::SEND_FLOW_REM != 0;
        let instructions = match actions.is_empty() {
            true => vec![],
            false => vec![Instruction::Apply(actions)],
        };
        FlowMod {
            priority: l.priority,
            cookie: l.cookie,
            modify_cookie: l.cookie != u64::MAX,
            idle_timeout: l.idle_timeout,
            hard_timeout: l.hard_timeout,
            flags: if reports_removal { flow_flag::SEND_FLOW_REM } else { 0 },
            instructions,
            ..FlowMod::new(FlowModCommand::ModifyStrict, l.table, matching)
        }
    }

    /// Shortens the rule's timeouts if this packet ends a TCP connection.
    pub(super) fn fin_timeout(&mut self, idle: u16, hard: u16) {
        Field::IpProto.unwildcard(&mut self.wc);
        let Some(rule) = self.run.rule else { return };
        if self.key.u8(at::PROTO) != 6 {
            return;
        }
        Field::TcpFlags.set_masked(&mut self.wc, ENDS.into(), ENDS.into());
        if Field::TcpFlags.get(&self.key) & u128::from(ENDS) != 0
            && !self.suppresses()
            && self.may_teach()
        {
            self.answer.effects.fins.push(Fin { rule, idle, hard });
        }
    }
}

/// Adds one part to a learned flow.
fn put_spec(spec: &LearnSpec, value: u128, m: &mut Match, actions: &mut Vec<Action>) {
    match spec.dst {
        LearnTarget::Match(d) => match d.field {
            Field::TunMetadata(i) => {
                let part = flow::TunMetadata::subfield(i, d.ofs, d.bits, value as u64);
                crate::tables::tlv::set(&mut m.tun, part);
            }
            f => {
                let mask = ones(d.bits) << d.ofs;
                f.set_masked(&mut m.mask, mask, mask);
                f.set_masked(&mut m.key, (value & ones(d.bits)) << d.ofs, mask);
            }
        },
        LearnTarget::Load(dst) if dst.bits <= 64 => {
            actions.push(Action::Load { dst, value: value as u64 });
        }
        // Bits of options are not in a key, and may be more than a set-field has.
        LearnTarget::Load(dst) if matches!(dst.field, Field::TunMetadata(_)) => {
            for ofs in (0..dst.bits).step_by(64) {
                let part = Subfield { ofs: dst.ofs + ofs, bits: (dst.bits - ofs).min(64), ..dst };
                let value = value.checked_shr(ofs.into()).unwrap_or(0);
                actions
                    .push(Action::Load { dst: part, value: value as u64 & ones(part.bits) as u64 });
            }
        }
        LearnTarget::Load(dst) => {
            let (field, mask) = (dst.field, ones(dst.bits) << dst.ofs);
            actions.push(Action::SetField { field, value: value << dst.ofs, mask });
        }
        LearnTarget::Output => actions.extend(out_port(value).map(Action::output)),
    }
}

/// The port of an output: 16 bits, or 32 bits with the same value.
fn out_port(value: u128) -> Option<OfPort> {
    let reserved = [port::IN_PORT, port::FLOOD, port::ALL, port::LOCAL];
    match u32::try_from(value).ok()? {
        p @ ..0xff00 => Some(p),
        p => {
            let wide = if p <= 0xffff { 0xffff_0000 | p } else { p };
            reserved.contains(&wide).then_some(wide)
        }
    }
}

/// A learned flow as text, in the layout of ovs-vswitchd's traces.
fn learned_text(m: &FlowMod) -> String {
    let matching = match_text(&m.matching.key, &m.matching.mask, &m.matching.tun, &|_| None);
    let mut text = format!("table={} {matching}", m.table).trim_end().to_string();
    text += &format!(" priority={}", m.priority);
    if m.cookie != 0 {
        text += &format!(" cookie={:#x}", m.cookie);
    }
    if m.idle_timeout != 0 {
        text += &format!(" idle={}", m.idle_timeout);
    }
    if m.hard_timeout != 0 {
        text += &format!(" hard={}", m.hard_timeout);
    }
    if m.flags & flow_flag::SEND_FLOW_REM != 0 {
        text += " send_flow_rem";
    }
    let actions = crate::action_text::instructions_text(&m.instructions);
    text + &format!(" actions={actions}")
}
