//! Counters by credit id: what the datapath counted for flows, group buckets and table misses.

use crate::tables::table::FlowRule;
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
    /// The first version that has the flow.
    pub born: u64,
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

/// Slots that are allocated together.
const CHUNK: usize = 4096;

/// The slots, dense, in chunks: growing moves none.
#[derive(Default)]
pub(crate) struct Slots {
    chunks: Vec<Vec<Slot>>,
    free: VecDeque<(u64, u32)>,
}

impl Slots {
    /// An id for `slot`; `now` decides whether an old one may be used again.
    pub fn alloc(&mut self, slot: Slot, now: u64) -> u32 {
        match self.free.front() {
            Some((at, _)) if at.saturating_add(QUARANTINE_NS) <= now => {
                let id = self.free.pop_front().map_or(0, |(_, id)| id);
                self.chunks[id as usize / CHUNK][id as usize % CHUNK] = slot;
                id
            }
            _ => self.push(slot),
        }
    }

    /// All ids are below.
    pub fn len(&self) -> usize {
        self.chunks.len().saturating_sub(1) * CHUNK + self.chunks.last().map_or(0, Vec::len)
    }

    fn get(&self, id: u32) -> Option<&Slot> {
        self.chunks.get(id as usize / CHUNK)?.get(id as usize % CHUNK)
    }

    fn push(&mut self, slot: Slot) -> u32 {
        let id = self.len() as u32;
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(slot),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(slot);
                self.chunks.push(chunk);
            }
        }
        id
    }

    /// The next id if no old one is used.
    pub fn push_run(&mut self, n: usize, slot: impl Fn(usize) -> Slot) -> u32 {
        let base = self.len() as u32;
        (0..n).for_each(|i| {
            self.push(slot(i));
        });
        base
    }

    /// The id that [`Slots::alloc`] will give next.
    pub fn next(&self, now: u64) -> u32 {
        match self.free.front() {
            Some((at, id)) if at.saturating_add(QUARANTINE_NS) <= now => *id,
            _ => self.len() as u32,
        }
    }

    pub fn release(&mut self, id: u32, now: u64) {
        if let Some(s) = self.get_mut(id) {
            *s = Slot::Free;
            self.free.push_back((now, id));
        }
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Slot> {
        self.chunks.get_mut(id as usize / CHUNK)?.get_mut(id as usize % CHUNK)
    }

    pub fn flow(&self, id: u32) -> Option<&FlowRec> {
        match self.get(id)? {
            Slot::Flow(f) => Some(f),
            _ => None,
        }
    }

    pub fn flow_mut(&mut self, id: u32) -> Option<&mut FlowRec> {
        match self.get_mut(id)? {
            Slot::Flow(f) => Some(f),
            _ => None,
        }
    }

    pub fn count(&self, id: u32) -> Counter {
        match self.get(id) {
            Some(Slot::Count(c)) => *c,
            Some(Slot::Flow(f)) => f.count,
            _ => Counter::default(),
        }
    }
}
