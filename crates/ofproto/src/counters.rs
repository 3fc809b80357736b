//! Counters by credit id: what the datapath counted for flows, group buckets and table misses.

use crate::table::FlowRule;
use std::collections::VecDeque;
use std::sync::Arc;

/// A freed id is not given out again for this long: cached decisions may still credit it.
const QUARANTINE_NS: u64 = 10_000_000_000;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// What changes about a flow while its rule stays.
#[derive(Clone)]
pub(crate) struct FlowRec {
    pub rule: Arc<FlowRule>,
    pub bridge: u32,
    pub table: u8,
    pub flags: u16,
    pub idle: u16,
    pub hard: u16,
    pub importance: u16,
    pub created: u64,
    pub modified: u64,
    pub used: u64,
    pub count: Counter,
}

pub(crate) enum Slot {
    Free,
    Flow(FlowRec),
    /// A group or a bucket.
    Count(Counter),
    /// Packets that a table had no flow for.
    Miss {
        bridge: u32,
        table: u8,
    },
}

/// The slots, dense.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: VecDeque<(u64, u32)>,
}

impl Slots {
    /// An id for `slot`; `now` decides whether an old one may be used again.
    pub fn alloc(&mut self, slot: Slot, now: u64) -> u32 {
        match self.free.front() {
            Some((at, _)) if at.saturating_add(QUARANTINE_NS) <= now => {
                let id = self.free.pop_front().map_or(0, |(_, id)| id);
                self.slots[id as usize] = slot;
                id
            }
            _ => self.push(slot),
        }
    }

    fn push(&mut self, slot: Slot) -> u32 {
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    /// The next id if no old one is used.
    pub fn push_run(&mut self, n: usize, slot: impl Fn(usize) -> Slot) -> u32 {
        let base = self.slots.len() as u32;
        self.slots.extend((0..n).map(slot));
        base
    }

    /// The id that [`Slots::alloc`] will give next.
    pub fn next(&self, now: u64) -> u32 {
        match self.free.front() {
            Some((at, id)) if at.saturating_add(QUARANTINE_NS) <= now => *id,
            _ => self.slots.len() as u32,
        }
    }

    pub fn release(&mut self, id: u32, now: u64) {
        if let Some(s) = self.slots.get_mut(id as usize) {
            *s = Slot::Free;
            self.free.push_back((now, id));
        }
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Slot> {
        self.slots.get_mut(id as usize)
    }

    pub fn flow(&self, id: u32) -> Option<&FlowRec> {
        match self.slots.get(id as usize)? {
            Slot::Flow(f) => Some(f),
            _ => None,
        }
    }

    pub fn flow_mut(&mut self, id: u32) -> Option<&mut FlowRec> {
        match self.slots.get_mut(id as usize)? {
            Slot::Flow(f) => Some(f),
            _ => None,
        }
    }

    pub fn count(&self, id: u32) -> Counter {
        match self.slots.get(id as usize) {
            Some(Slot::Count(c)) => *c,
            Some(Slot::Flow(f)) => f.count,
            _ => Counter::default(),
        }
    }
}
