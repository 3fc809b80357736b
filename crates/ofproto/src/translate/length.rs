//! `check_pkt_larger`: the actions behind it are translated twice, for longer packets and for all
//! others.

use crate::translate::state::Headers;
use crate::translate::xlate::Xlate;
use action::Op;
use flow::Key;
use openflow::{Action, Instruction, Subfield};

/// The state with which both translations begin.
#[derive(Clone, Copy)]
struct Layers {
    key: Key,
    base: Key,
    hidden: usize,
    labels: u8,
    was_mpls: bool,
    own: Option<Headers>,
    conntracked: bool,
    exited: bool,
    mirrors: u32,
}

impl<'a> Xlate<'a, '_> {
    /// Translates `actions` and `then`, which are all that follows in the flow, for packets of more
    /// than `size` bytes and for others; `dst` says which. Each translation ends as a pipeline
    /// does, so the caller of the flow continues with the packet as it was and without an action
    /// set.
    pub(super) fn by_length<I>(
        &mut self,
        size: u16,
        dst: Subfield,
        actions: I,
        then: &'a [Instruction],
    ) where
        I: Iterator<Item = &'a Action> + Clone,
    {
        self.commit();
        if self.is_too_much() {
            return;
        }
        self.spent.depth += 1;
        let saved = self.layers();
        let (tun, set, stack) =
            (self.tunnel.fields.clone(), self.packet.set.clone(), self.packet.stack.clone());
        let [(more, exits), (others, too)] = [1, 0].map(|larger| {
            let from = self.answer.decision.ops.len();
            // Headers put on in front of the branches are the same for both.
            self.packet.layers.sealed = from;
            if self.spend_on_lists() {
                self.write_bits(dst, larger);
                self.follow(actions.clone(), then);
                self.run_set();
                self.freeze();
            }
            let exited = self.end.exited;
            self.set_layers(saved);
            self.tunnel.fields.clone_from(&tun);
            self.packet.set.clone_from(&set);
            self.packet.stack.clone_from(&stack);
            (self.answer.decision.ops.split_off(from).into_boxed_slice(), exited)
        });
        self.spent.depth -= 1;
        self.packet.set.clear();
        self.end.exited |= exits && too;
        self.end.exit = self.end.exited || self.end.failed.is_some();
        if !more.is_empty() || !others.is_empty() {
            let size = size.saturating_add(self.unseen_bytes());
            self.op(Op::CheckLen { size, more, others });
        }
    }

    /// Translates the rest of a flow.
    fn follow<I>(&mut self, actions: I, then: &'a [Instruction])
    where
        I: Iterator<Item = &'a Action> + Clone,
    {
        if actions.clone().next().is_none() && then.is_empty() {
            self.note_action(|| "drop".into());
        }
        if self.actions_then(actions, then) {
            return;
        }
        match self.end.rest.is_some() {
            true => self.keep(then),
            false if !self.end.exit && !self.end.stopped => self.instructions(then),
            false => {}
        }
        self.end.stopped = false;
    }

    fn layers(&self) -> Layers {
        Layers {
            key: self.key,
            base: self.base,
            hidden: self.packet.layers.hidden,
            labels: self.packet.layers.labels,
            was_mpls: self.packet.layers.was_mpls,
            own: self.own_headers(),
            conntracked: self.packet.ct.tracked,
            exited: self.end.exited,
            mirrors: self.mirror.met,
        }
    }

    fn set_layers(&mut self, l: Layers) {
        (self.key, self.base, self.packet.layers.hidden, self.packet.layers.labels) =
            (l.key, l.base, l.hidden, l.labels);
        (self.packet.layers.was_mpls, self.packet.ct.tracked, self.end.exited) =
            (l.was_mpls, l.conntracked, l.exited);
        self.mirror.met = l.mirrors;
        self.back_to(l.own);
        self.end.exit = l.exited || self.end.failed.is_some();
    }
}

#[cfg(test)]
mod tests {
    use crate::parse_subfield;
    use crate::tests::{Lab, apply, flow, out, packet};
    use openflow::{Action, Instruction};
    use telemetry::Drop;

    fn check(len: u16, bit: &str) -> Action {
        Action::CheckPktLarger { len, dst: parse_subfield(bit).unwrap() }
    }

    fn resubmit(table: u8) -> Action {
        Action::Resubmit { in_port: None, table: Some(table), ct: false }
    }

    /// Table 1 sends longer packets to port 2 and others with a tag to port 3.
    fn lab() -> Lab {
        let mut lab = Lab::new();
        lab.add(flow(1, 9, "reg0=1/1", apply(vec![out(2)])));
        let tag = Action::PushVlan { ethertype: 0x8100 };
        lab.add(flow(1, 9, "reg0=0/1", apply(vec![tag, out(3)])));
        lab
    }

    // What ovs-vswitchd 3.1's ofproto/trace says of the same flows, with Weft's numbers of ports.
    #[test]
    fn all_that_follows_in_the_flow_is_done_for_both_kinds() {
        let mut lab = lab();
        let actions = apply(vec![check(1500, "NXM_NX_REG0[0]"), resubmit(1)]);
        let rest = [Instruction::Write(vec![out(4)]), Instruction::Goto(2)];
        lab.add(flow(0, 9, "in_port=1", [actions, rest.to_vec()].concat()));
        lab.add(flow(2, 9, "", apply(vec![out(2)])));
        let text = "check_pkt_len(size=1500,gt(12,12,14),le(push_vlan(vid=0,pcp=0),13,12,14))";
        assert_eq!(lab.send("in_port=1,ip"), text);
    }

    #[test]
    fn who_led_to_the_flow_goes_on_with_the_packet_as_it_was() {
        let mut lab = lab();
        let twice = vec![check(100, "NXM_NX_REG0[0]"), check(1000, "NXM_NX_REG0[1]"), resubmit(1)];
        lab.add(flow(3, 9, "", apply(twice)));
        lab.add(flow(0, 9, "in_port=4", apply(vec![resubmit(3), out(1)])));
        let inner = |ops| format!("check_pkt_len(size=1000,gt({ops}),le({ops}))");
        let (long, short) = (inner("12"), inner("push_vlan(vid=0,pcp=0),13"));
        let text = format!("check_pkt_len(size=100,gt({long}),le({short})),11");
        assert_eq!(lab.send("in_port=4,ip"), text);
    }

    // ovs-vswitchd executes it once more at the end.
    #[test]
    fn an_action_set_is_executed_once() {
        let mut lab = lab();
        let set = Instruction::Write(vec![out(4)]);
        lab.add(flow(0, 9, "in_port=1", vec![set, Instruction::Goto(3)]));
        lab.add(flow(3, 9, "", apply(vec![resubmit(4), out(1), out(3)])));
        lab.add(flow(4, 9, "", apply(vec![check(100, "NXM_NX_REG0[0]"), resubmit(1)])));
        let text = "check_pkt_len(size=100,gt(12,14),le(push_vlan(vid=0,pcp=0),13,14)),13";
        assert_eq!(lab.send("in_port=1,ip"), text);
    }

    #[test]
    fn nothing_to_do_is_nothing() {
        let mut lab = lab();
        lab.add(flow(0, 9, "in_port=1", apply(vec![out(2), check(100, "NXM_NX_REG0[0]")])));
        assert_eq!(lab.send("in_port=1,ip"), "12");
        lab.add(flow(0, 9, "in_port=2", apply(vec![check(100, "NXM_NX_REG0[0]")])));
        assert_eq!(lab.send("in_port=2,ip"), "drop");
    }

    #[test]
    fn checks_of_checks_end() {
        let mut lab = lab();
        for (n, why) in [(20, Drop::ResubmitLimit), (2000, Drop::DepthLimit)] {
            let list = vec![check(100, "NXM_NX_REG0[0]"); n];
            lab.add(flow(0, 9, "in_port=1", apply([list, vec![out(2)]].concat())));
            let d = lab.decide(&packet("in_port=1,ip"));
            assert_eq!((d.ops.len(), d.drop), (0, Some(why)));
        }
    }
}
