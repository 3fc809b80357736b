//! What the control side does about marks of adapters: tables for workers, bindings, and samples of
//! what megaflows are worth.

use crate::manage::Datapath;
use crate::manage::mark_bindings::{Bound, FlowMarks};
use crate::marks::{MarkBinding, MarkChange, MarkMemory, MarkTable};
use crate::messages::Command;
use action::Op;
use flow::{Key, Mask, PortNo};
use offload::{FirstBytes, FlowId, Mark, PortTotals, first_bytes};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a pass over all megaflows goes on.
#[derive(Clone, Copy, Default)]
pub struct SampleCursor {
    worker: usize,
    megaflow: usize,
}

impl Datapath {
    /// Packets of this port may be marked from now on ([`Datapath::bind_mark`]); false: there is no
    /// such port.
    pub fn enable_marks(&mut self, no: PortNo) -> bool {
        let Some(p) = self.ports.get_mut(&no) else { return false };
        p.marks.get_or_insert_default();
        (0..self.workers.len()).for_each(|slot| self.give_mark_tables(slot));
        true
    }

    /// Marks of this port's packets mean nothing any more.
    pub fn disable_marks(&mut self, no: PortNo) {
        let Some(marks) = self.ports.get_mut(&no).and_then(|p| p.marks.take()) else { return };
        for w in self.workers.iter_mut().flatten() {
            w.send(Command::Mark(no, MarkChange::Table(None)));
            w.flows.marks.bound.retain(|_, b| b.port != no);
        }
        self.marks.retired.extend(marks.memories.into_values());
    }

    /// From now on marks of this port's packets are ignored, or used again; bindings stay
    /// as they are and change as ever. Nothing happens if that is so already.
    pub fn ignore_marks(&mut self, no: PortNo, ignored: bool) {
        let Some(marks) = self.ports.get_mut(&no).and_then(|p| p.marks.as_mut()) else { return };
        if std::mem::replace(&mut marks.ignored, ignored) != ignored {
            for w in self.workers.iter_mut().flatten() {
                w.send(Command::Mark(no, MarkChange::Ignore(ignored)));
            }
        }
    }

    /// What the port's packets cost so far, on all workers, as `dpif-netdev/pmd-rxq-show` has it.
    pub fn port_totals(&self, no: PortNo) -> PortTotals {
        let mut all = PortTotals::default();
        for q in self.ports.get(&no).into_iter().flat_map(|p| &p.rxqs) {
            all.packets += q.cell.packets.get();
            all.cycles += q.cell.cycles.get();
        }
        all
    }

    /// May packets of this port be marked?
    pub fn has_marks(&self, no: PortNo) -> bool {
        self.ports.get(&no).is_some_and(|p| p.marks.is_some())
    }

    /// Gives a worker the tables that it lacks.
    pub(crate) fn give_mark_tables(&mut self, slot: usize) {
        let Some(Some(w)) = self.workers.get_mut(slot) else { return };
        for (no, p) in &mut self.ports {
            let Some(marks) = &mut p.marks else { continue };
            marks.memories.entry(slot).or_insert_with(|| {
                let memory = Arc::new(MarkMemory::new());
                let table = Box::new(MarkTable::new(memory.clone(), marks.ignored));
                w.send(Command::Mark(*no, MarkChange::Table(Some(table))));
                memory
            });
        }
    }

    /// A worker is gone, and its megaflows are.
    pub(crate) fn forget_mark_tables(&mut self, slot: usize) {
        let of_port = self.ports.values_mut().filter_map(|p| p.marks.as_mut());
        let memories = of_port.filter_map(|m| m.memories.remove(&slot));
        self.marks.retired.extend(memories);
    }

    /// Packets of this port with this mark belong to this megaflow if they begin so. False, and
    /// nothing happens: the megaflow ended, or another one has its index by now.
    pub fn bind_mark(&mut self, flow: FlowId, no: PortNo, mark: Mark, bytes: &FirstBytes) -> bool {
        let is_it = |(key, mask, _): (Key, Mask, Arc<[Op]>)| {
            first_bytes(&key, &mask).is_ok_and(|(now, _)| now == *bytes)
                && key.u16(flow::at::IN_PORT) == no
        };
        if !self.megaflow(flow).is_some_and(is_it) {
            return false;
        }
        let Some(marks) = self.ports.get_mut(&no).and_then(|p| p.marks.as_mut()) else {
            return false;
        };
        let Some(form) = marks.form(bytes) else { return false };
        let w = self.workers[flow.worker as usize].as_mut().expect("it has a megaflow");
        let bound = Bound { flow, port: no, slot: mark.slot(), form };
        if let Some(before) = w.flows.marks.bound.insert(flow.megaflow, bound) {
            // A slot that stays bound would stand for whatever has the megaflow's index next.
            w.send(Command::Mark(no, MarkChange::Unbind(before.slot, flow.megaflow)));
            marks.release(before.form);
        }
        let binding = MarkBinding { mark, megaflow: flow.megaflow, bytes: bytes.clone(), form };
        w.send(Command::Mark(no, MarkChange::Bind(Box::new(binding))));
        true
    }

    /// The mark does not stand for this megaflow any more.
    pub fn unbind_mark(&mut self, flow: FlowId, no: PortNo, mark: Mark) {
        let Some(Some(w)) = self.workers.get_mut(flow.worker as usize) else { return };
        let is_it = |b: &&Bound| b.port == no && b.slot == mark.slot();
        let Some(bound) = w.flows.marks.bound.get(&flow.megaflow).filter(is_it).copied() else {
            return;
        };
        w.flows.marks.bound.remove(&flow.megaflow);
        w.send(Command::Mark(no, MarkChange::Unbind(mark.slot(), flow.megaflow)));
        if let Some(marks) = self.ports.get_mut(&no).and_then(|p| p.marks.as_mut()) {
            marks.release(bound.form);
        }
    }

    /// Unbinds marks of megaflows that a worker ended; before their indices are given back. Returns
    /// the commands for it.
    pub(crate) fn unbind_ended(&mut self, marks: &mut FlowMarks) -> Vec<Command> {
        let ended = std::mem::take(&mut marks.ended);
        let one = |b: Bound| {
            self.marks.ended.push(b.flow);
            if let Some(marks) = self.ports.get_mut(&b.port).and_then(|p| p.marks.as_mut()) {
                marks.release(b.form);
            }
            Command::Mark(b.port, MarkChange::Unbind(b.slot, b.flow.megaflow))
        };
        ended.into_iter().map(one).collect()
    }

    /// Megaflows with marks that ended since the last call; nothing is bound to them any more.
    pub fn take_ended_marks(&mut self) -> Vec<FlowId> {
        self.marks.retired.retain(|memory| Arc::strong_count(memory) > 1);
        std::mem::take(&mut self.marks.ended)
    }

    /// Packets so far that came with a mark of this slot and did not begin as its megaflow's do.
    pub fn wrong_marks(&self, no: PortNo, slot: u16) -> u32 {
        let Some(marks) = self.ports.get(&no).and_then(|p| p.marks.as_ref()) else { return 0 };
        let each = marks.memories.values().map(|m| m.wrong(slot).load(Ordering::Relaxed));
        each.fold(0, u32::wrapping_add)
    }

    /// Did packets come with a mark of this slot that were its megaflow's, since the last call?
    pub fn take_marked(&self, no: PortNo, slot: u16) -> bool {
        let Some(marks) = self.ports.get(&no).and_then(|p| p.marks.as_ref()) else { return false };
        let each = marks.memories.values().map(|m| m.take_came(slot));
        each.fold(false, |any, one| any | one)
    }

    /// Looks at `most` megaflows from a place on: input port, and packets since they were sampled
    /// last. True: there are more; false: that was all, and the place is the first again.
    pub fn sample(
        &mut self,
        at: &mut SampleCursor,
        most: usize,
        each: &mut dyn FnMut(FlowId, PortNo, u32),
    ) -> bool {
        let slot = at.worker;
        if let Some(Some(w)) = self.workers.get_mut(slot) {
            let next = w.flows.sample(at.megaflow, most, &mut |megaflow, port, packets| {
                each(FlowId { worker: slot as u32, megaflow }, port, packets);
            });
            if let Some(megaflow) = next {
                at.megaflow = megaflow;
                return true;
            }
        }
        *at = SampleCursor { worker: slot + 1, megaflow: 0 };
        let more = at.worker < self.workers.len();
        if !more {
            *at = SampleCursor::default();
        }
        more
    }

    /// Key, mask and operations of a megaflow, if it is there and not dead.
    pub fn megaflow(&self, flow: FlowId) -> Option<(Key, Mask, Arc<[Op]>)> {
        self.workers.get(flow.worker as usize)?.as_ref()?.flows.find(flow.megaflow)
    }
}
