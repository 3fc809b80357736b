//! Limits of what one packet may cause. A translation that exceeds them drops the packet
//! ([`Drop::DepthLimit`], [`Drop::ResubmitLimit`], [`Drop::StackLimit`]).

use crate::translate::bytes::bytes_of;
use crate::translate::state::DEPTH_MAX;
use crate::translate::xlate::Xlate;
use crate::work;
use action::Op;
use openflow::Action;
use telemetry::Drop;

/// Depth of nested lookups, in whatever direction. With OVN there are some 30 for each logical
/// switch or router on the way. OVS has no such limit; here 8 MiB of stack, which the main thread
/// has, are enough in every build.
const NESTED_LOOKUPS_MAX: usize = 512;
/// Table lookups of one translation, at most: OVS's number.
const RESUBMITS_MAX: usize = 4096;
/// Steps of one translation, at most: actions, buckets, outputs, checks whether a bucket is live.
/// Sixteen for each table lookup: no pipeline that OVS completes has come near that, and it takes a
/// few ms at worst.
const TRANSLATION_STEPS_MAX: usize = 16 * RESUBMITS_MAX;
/// Operations of one decision after which no table is looked up, and the lists that led there end:
/// OVS ends them at 64 kB of operations, 16 bytes each.
const OPS_ENOUGH: usize = 4096;
/// Operations of one decision, at most: more than one flow may have outputs.
const OPS_MAX: usize = 2 * OPS_ENOUGH;
/// Counters of one decision, at most: a flow, or a group and its bucket, for each table lookup.
const CREDITS_MAX: usize = 2 * RESUBMITS_MAX;
/// Values on the stack, at most: OVS ends at 64 kB of them, 16 bytes each.
const STACK_VALUES_MAX: usize = 4096;
/// Flows that one packet may teach or shorten the timeouts of, at most. The control side makes
/// them, for each packet and in each second in which a cached decision is used.
const TAUGHT_FLOWS_MAX: usize = 32;
/// Decisions that teach more than this are not cached, as each would keep the flows.
const TAUGHT_CACHED_MAX: usize = 4;
/// Steps of making what tells controllers of a packet, or a learned flow.
const MESSAGE_STEPS: usize = 8;
/// Bytes that are copied in one step.
const STEP_BYTES: usize = 16;
/// Entries of the action set and the stack that are copied or searched in one step.
const STEP_ENTRIES_MAX: usize = 16;

impl Xlate<'_, '_> {
    /// True if the translation is too deep, or had too many table lookups, to enter another table,
    /// group or bridge.
    pub(super) fn is_too_much(&mut self) -> bool {
        if self.spent.depth >= DEPTH_MAX {
            self.give_up(Drop::DepthLimit, || format!("over max translation depth {DEPTH_MAX}"));
        } else if self.spent.nesting >= NESTED_LOOKUPS_MAX {
            self.give_up(Drop::DepthLimit, || format!("over {NESTED_LOOKUPS_MAX} nested lookups"));
        } else if self.spent.resubmits >= RESUBMITS_MAX {
            self.give_up(Drop::ResubmitLimit, || format!("over {RESUBMITS_MAX} resubmit actions"));
        }
        self.end.failed.is_some()
    }

    /// True if there are so many operations that no table is looked up any more. The lists that led
    /// here end; what they have done so far is done, as in OVS.
    pub(super) fn has_enough(&mut self) -> bool {
        if self.spent.ops <= OPS_ENOUGH {
            return false;
        }
        let text = "resubmits yielded over 64 kB of actions";
        if !self.end.exited {
            self.trace_refusal(|| text.into());
        }
        self.note_failure(text);
        self.note_slow();
        (self.end.exit, self.end.exited) = (true, true);
        true
    }

    /// Takes steps; false: too few are left, and the packet is dropped.
    #[inline]
    pub(super) fn spend(&mut self, steps: usize) -> bool {
        work::step();
        self.spent.steps += steps;
        if self.spent.steps > TRANSLATION_STEPS_MAX {
            self.give_up(Drop::ResubmitLimit, || {
                format!("over {TRANSLATION_STEPS_MAX} translation steps")
            });
        }
        self.end.failed.is_none()
    }

    /// As [`Xlate::spend`], for searching or copying the action set and the stack.
    pub(super) fn spend_on_lists(&mut self) -> bool {
        self.spend((self.packet.set.len() + self.packet.stack.len()) / STEP_ENTRIES_MAX)
    }

    /// As [`Xlate::spend`], for a message with so many bytes.
    pub(super) fn spend_on_message(&mut self, bytes: usize) -> bool {
        self.spend(MESSAGE_STEPS + bytes / STEP_BYTES)
    }

    /// As [`Xlate::spend`], for copies of actions.
    pub(super) fn spend_on_copies<'b>(&mut self, list: impl Iterator<Item = &'b Action>) -> bool {
        self.spend(list.map(|a| 1 + bytes_of(a) / STEP_BYTES).sum())
    }

    /// True if the packet may teach another flow, or shorten the timeouts of one.
    pub(super) fn may_teach(&mut self) -> bool {
        let taught = self.answer.effects.flows.len() + self.answer.effects.fins.len();
        if taught >= TAUGHT_FLOWS_MAX {
            self.give_up(Drop::ResubmitLimit, || {
                format!("over {TAUGHT_FLOWS_MAX} flows that a packet teaches")
            });
        }
        self.answer.decision.cacheable &= taught < TAUGHT_CACHED_MAX;
        self.end.failed.is_none()
    }

    /// True if the stack has room.
    pub(super) fn has_stack(&mut self) -> bool {
        if self.packet.stack.len() >= STACK_VALUES_MAX {
            self.give_up(Drop::StackLimit, || "resubmits yielded over 64 kB of stack".into());
        }
        self.end.failed.is_none()
    }

    /// Credits this packet to a counter.
    pub(super) fn credit(&mut self, id: u32) {
        match self.answer.decision.credits.len() < CREDITS_MAX {
            true => self.answer.decision.credits.push(id),
            false => self.give_up(Drop::ResubmitLimit, || format!("over {CREDITS_MAX} counters")),
        }
    }

    /// Records that the decision depends on which ports the bridge has, and not only on the one by
    /// which the packet came in and those to which it is sent.
    pub(super) fn look_at_ports(&mut self) {
        self.ask_for_ports(self.bridge.ports_credit);
    }

    /// As [`Xlate::look_at_ports`] of the bridge that has this credit.
    pub(super) fn ask_for_ports(&mut self, credit: u32) {
        if !self.answer.asked.contains(&credit) {
            self.answer.asked.push(credit);
            self.answer.decision.credits.push(credit);
        }
    }

    /// Adds an operation to the decision.
    pub(super) fn op(&mut self, op: Op) {
        self.spent.ops += 1;
        match self.spent.ops <= OPS_MAX {
            true => self.answer.decision.ops.push(op),
            false => self.give_up(Drop::ResubmitLimit, || format!("over {OPS_MAX} operations")),
        }
    }

    /// Drops the packet: the bridge has as many frozen states as it may have.
    pub(super) fn too_many_states(&mut self) {
        if self.end.failed.is_none() {
            let text = "no recirculation id is free";
            self.note_failure(text);
            self.trace_error("No recirculation context", || text.into());
            self.fail(Drop::RecircLimit);
        }
    }

    fn give_up(&mut self, why: Drop, text: impl FnOnce() -> String) {
        if self.end.failed.is_none() {
            let name = match why {
                Drop::DepthLimit => "Recursion too deep",
                Drop::StackLimit => "Stack too deep",
                _ => "Too many resubmits",
            };
            let text = text();
            self.note_failure(&text);
            self.trace_error(name, || text);
            self.fail(why);
        }
    }
}
