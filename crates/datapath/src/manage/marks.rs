//! [`Datapath`]: marks of adapters. Tables for workers, bindings, and samples of megaflows'
//! traffic.

use crate::manage::Datapath;
use crate::manage::mark_bindings::{Bound, FlowMarks};
use crate::marks::{MarkBinding, MarkChange, MarkMemory, MarkTable};
use crate::messages::Command;
use action::Op;
use flow::{Key, Mask, PortNo};
use offload::{FirstBytes, FlowId, Mark, PortTotals, first_bytes};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Position of [`Datapath::sample`] within all megaflows.
#[derive(Clone, Copy, Default)]
pub struct SampleCursor {
    worker: usize,
    megaflow: usize,
}

impl Datapath {
    /// Allows marks on packets of this port ([`Datapath::bind_mark`]); false: there is no such
    /// port.
    pub fn enable_marks(&mut self, no: PortNo) -> bool {
        let Some(p) = self.ports.get_mut(&no) else { return false };
        p.marks.get_or_insert_default();
        (0..self.workers.len()).for_each(|worker_no| self.give_mark_tables(worker_no));
        true
    }

    /// Ends the use of marks on packets of this port.
    pub fn disable_marks(&mut self, no: PortNo) {
        let Some(marks) = self.ports.get_mut(&no).and_then(|p| p.marks.take()) else { return };
        for w in self.workers.iter_mut().flatten() {
            w.send(Command::Mark(no, MarkChange::Table(None)));
            w.flows.marks.bound.retain(|_, b| b.port != no);
        }
        self.marks.retired.extend(marks.memories.into_values());
    }

    /// Makes workers ignore marks on packets of this port, or use them again. Bindings are kept and
    /// can be changed. Does nothing if that is so already.
    pub fn ignore_marks(&mut self, no: PortNo, ignored: bool) {
        let Some(marks) = self.ports.get_mut(&no).and_then(|p| p.marks.as_mut()) else { return };
        if std::mem::replace(&mut marks.ignored, ignored) != ignored {
            for w in self.workers.iter_mut().flatten() {
                w.send(Command::Mark(no, MarkChange::Ignore(ignored)));
            }
        }
    }

    /// What the port's packets cost so far, on all workers, as `dpif-netdev/pmd-rxq-show` shows it.
    pub fn port_totals(&self, no: PortNo) -> PortTotals {
        let mut all = PortTotals::default();
        for q in self.ports.get(&no).into_iter().flat_map(|p| &p.rxqs) {
            all.packets += q.cell.packets.get();
            all.cycles += q.cell.cycles.get();
        }
        all
    }

    /// True if packets of this port may have marks.
    pub fn has_marks(&self, no: PortNo) -> bool {
        self.ports.get(&no).is_some_and(|p| p.marks.is_some())
    }

    /// Gives a worker the tables of all ports with marks that it does not have yet.
    pub(crate) fn give_mark_tables(&mut self, worker_no: usize) {
        let Some(Some(w)) = self.workers.get_mut(worker_no) else { return };
        for (no, p) in &mut self.ports {
            let Some(marks) = &mut p.marks else { continue };
            marks.memories.entry(worker_no).or_insert_with(|| {
                let memory = Arc::new(MarkMemory::new());
                let table = Box::new(MarkTable::new(memory.clone(), marks.ignored));
                w.send(Command::Mark(*no, MarkChange::Table(Some(table))));
                memory
            });
        }
    }

    /// Forgets the tables of a worker that ended.
    pub(crate) fn forget_mark_tables(&mut self, worker_no: usize) {
        let of_port = self.ports.values_mut().filter_map(|p| p.marks.as_mut());
        let memories = of_port.filter_map(|m| m.memories.remove(&worker_no));
        self.marks.retired.extend(memories);
    }

    /// Binds a mark: packets of this port with this mark and these first bytes belong to this
    /// megaflow. False, without effect: the megaflow ended, or another one has its index now.
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
            // If the old slot stayed bound, it would stand for the next megaflow with this index.
            w.send(Command::Mark(no, MarkChange::Unbind(before.slot, flow.megaflow)));
            marks.release(before.form);
        }
        let binding = MarkBinding { mark, megaflow: flow.megaflow, bytes: bytes.clone(), form };
        w.send(Command::Mark(no, MarkChange::Bind(Box::new(binding))));
        true
    }

    /// Unbinds a mark from a megaflow.
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

    /// Unbinds the marks of megaflows that a worker ended, before their indices are given back.
    /// Returns the commands for it.
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

    /// Megaflows with marks that ended since the last call; no mark is bound to them any more.
    pub fn take_ended_marks(&mut self) -> Vec<FlowId> {
        self.marks.retired.retain(|memory| Arc::strong_count(memory) > 1);
        std::mem::take(&mut self.marks.ended)
    }

    /// Number of packets so far that came with a mark of this slot and were not of its megaflow.
    pub fn wrong_marks(&self, no: PortNo, slot: u16) -> u32 {
        let Some(marks) = self.ports.get(&no).and_then(|p| p.marks.as_ref()) else { return 0 };
        let each = marks.memories.values().map(|m| m.wrong(slot).load(Ordering::Relaxed));
        each.fold(0, u32::wrapping_add)
    }

    /// True if packets of its megaflow came with a mark of this slot since the last call.
    pub fn take_marked(&self, no: PortNo, slot: u16) -> bool {
        let Some(marks) = self.ports.get(&no).and_then(|p| p.marks.as_ref()) else { return false };
        let each = marks.memories.values().map(|m| m.take_came(slot));
        each.fold(false, |any, one| any | one)
    }

    /// Samples the next `most` megaflows: calls back with input port, and packets since the last
    /// sample. False: those were the last, and the next call begins again.
    pub fn sample(
        &mut self,
        at: &mut SampleCursor,
        most: usize,
        each: &mut dyn FnMut(FlowId, PortNo, u32),
    ) -> bool {
        let worker_no = at.worker;
        if let Some(Some(w)) = self.workers.get_mut(worker_no) {
            let next = w.flows.sample(at.megaflow, most, &mut |megaflow, port, packets| {
                each(FlowId { worker: worker_no as u32, megaflow }, port, packets);
            });
            if let Some(megaflow) = next {
                at.megaflow = megaflow;
                return true;
            }
        }
        *at = SampleCursor { worker: worker_no + 1, megaflow: 0 };
        let more = at.worker < self.workers.len();
        if !more {
            *at = SampleCursor::default();
        }
        more
    }

    /// Key, mask and operations of a megaflow, if it exists and is not dead.
    pub fn megaflow(&self, flow: FlowId) -> Option<(Key, Mask, Arc<[Op]>)> {
        self.workers.get(flow.worker as usize)?.as_ref()?.flows.find(flow.megaflow)
    }
}
