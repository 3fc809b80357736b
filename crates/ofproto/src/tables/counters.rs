//! Counters by credit id: what the datapath counted for flows, group buckets and table misses.

use crate::N_TABLES;
use crate::learned::Taught;
use crate::tables::memory::{FlowMemory, flow_bytes};
use crate::tables::table::FlowRule;
use crate::types::BridgeId;
use flow::{NO_PORT, PortNo};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Time for which a freed id is not used again, ns: megaflows may still credit it.
pub(crate) const QUARANTINE_NS: u64 = 10_000_000_000;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    pub packets: u64,
    pub bytes: u64,
}

/// The part of a flow that changes while its rule stays.
#[derive(Clone)]
pub(crate) struct FlowRec {
    pub rule: Arc<FlowRule>,
    pub bridge: u32,
    pub table: u8,
    pub flags: u16,
    pub idle: u16,
    pub hard: u16,
    pub importance: u16,
    /// The port whose packet taught the flow; [`NO_PORT`]: none.
    pub teacher: PortNo,
    /// The first version of the tables that has the flow.
    pub born: u64,
    pub created: u64,
    pub modified: u64,
    pub used: u64,
    pub count: Counter,
    /// When its timeouts are next to be examined, ns; 0: never ([`Slots::set_timer`]).
    pub timer: u64,
}

impl FlowRec {
    /// The port whose packet taught the flow.
    fn taught_by(&self) -> Option<PortNo> {
        Some(self.teacher).filter(|p| *p != NO_PORT)
    }

    /// Bytes that the flow takes, about.
    pub fn memory(&self) -> u32 {
        flow_bytes(&self.rule.value().instructions)
    }

    /// The record of a flow of a bridge's table that never times out and was not used yet; `born`:
    /// the first version that has it.
    pub fn new(
        rule: Arc<FlowRule>,
        (bridge, table): (BridgeId, u8),
        born: u64,
        now: u64,
    ) -> FlowRec {
        FlowRec {
            rule,
            bridge: bridge.0,
            table,
            flags: 0,
            idle: 0,
            hard: 0,
            importance: 0,
            teacher: NO_PORT,
            born,
            created: now,
            modified: now,
            used: now,
            count: Counter::default(),
            timer: 0,
        }
    }
}

pub(crate) enum Slot {
    Free,
    Flow(FlowRec),
    /// A group or a bucket.
    Count(Counter),
    /// Packets without a flow in a table.
    Miss {
        bridge: u32,
        table: u8,
    },
}

/// Number of slots that are allocated together.
const CHUNK: usize = 4096;

/// Freed ids and when they were freed (ns), the oldest first, in chunks: growing moves none, which
/// would keep the control thread for tenths of a second when there are millions.
#[derive(Default)]
struct FreedIds(VecDeque<VecDeque<(u64, u32)>>);

impl FreedIds {
    fn front(&self) -> Option<&(u64, u32)> {
        self.0.front()?.front()
    }

    fn push_back(&mut self, freed: (u64, u32)) {
        match self.0.back_mut() {
            Some(last) if last.len() < last.capacity() => last.push_back(freed),
            _ => {
                let mut chunk = VecDeque::with_capacity(CHUNK);
                chunk.push_back(freed);
                self.0.push_back(chunk);
            }
        }
    }

    fn pop_front(&mut self) -> Option<(u64, u32)> {
        let first = self.0.front_mut()?;
        let freed = first.pop_front();
        if first.is_empty() {
            self.0.pop_front();
        }
        freed
    }
}

/// All slots, in chunks: growing moves none.
#[derive(Default)]
pub(crate) struct Slots {
    chunks: Vec<Vec<Slot>>,
    /// Freed ids of flows, groups and buckets.
    free: FreedIds,
    /// Freed ids of removed bridges' tables, of each bridge the first one, and when they were
    /// freed, ns.
    free_tables: VecDeque<(u64, u32)>,
    /// When flows with timeouts are next to be examined (ns), and their ids: each flow once, as
    /// long as its record is there.
    timers: BTreeSet<(u64, u32)>,
    /// How many of the flows packets taught.
    pub taught: Taught,
    /// The memory that all flows take.
    pub memory: FlowMemory,
}

impl Slots {
    /// A new id for `slot`. `now`: the time, by which a freed id may be used again or not.
    pub fn alloc(&mut self, slot: Slot, now: u64) -> u32 {
        if let Slot::Flow(rec) = &slot {
            self.taught.add(rec.taught_by());
            self.memory.change(rec.bridge, 0, rec.memory());
        }
        match self.free.front() {
            Some((at, _)) if at.saturating_add(QUARANTINE_NS) <= now => {
                let id = self.free.pop_front().map_or(0, |(_, id)| id);
                *self.at(id) = slot;
                id
            }
            _ => self.push(slot),
        }
    }

    /// A bound: all ids are below it.
    pub fn len(&self) -> usize {
        self.chunks.len().saturating_sub(1) * CHUNK + self.chunks.last().map_or(0, Vec::len)
    }

    fn get(&self, id: u32) -> Option<&Slot> {
        self.chunks.get(id as usize / CHUNK)?.get(id as usize % CHUNK)
    }

    /// The slot of an id in use.
    fn at(&mut self, id: u32) -> &mut Slot {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
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

    /// Allocates `n` consecutive ids that were never used; returns the first.
    pub fn push_run(&mut self, n: usize, slot: impl Fn(usize) -> Slot) -> u32 {
        let base = self.len() as u32;
        (0..n).for_each(|i| {
            self.push(slot(i));
        });
        base
    }

    /// Allocates an id for the misses of each table of a bridge: table t has the returned id plus
    /// t.
    pub fn alloc_tables(&mut self, bridge: u32, now: u64) -> u32 {
        let slot = |t| Slot::Miss { bridge, table: t as u8 };
        match self.free_tables.front() {
            Some((at, base)) if at.saturating_add(QUARANTINE_NS) <= now => {
                let base = *base;
                self.free_tables.pop_front();
                (0..N_TABLES).for_each(|t| *self.at(base + t as u32) = slot(t));
                base
            }
            _ => self.push_run(N_TABLES, slot),
        }
    }

    /// Frees the ids that [`Slots::alloc_tables`] returned.
    pub fn release_tables(&mut self, base: u32, now: u64) {
        (0..N_TABLES as u32).for_each(|t| *self.at(base + t) = Slot::Free);
        self.free_tables.push_back((now, base));
    }

    /// The id that [`Slots::alloc`] will return next.
    pub fn next(&self, now: u64) -> u32 {
        match self.free.front() {
            Some((at, id)) if at.saturating_add(QUARANTINE_NS) <= now => *id,
            _ => self.len() as u32,
        }
    }

    /// Frees an id; a flow's timer goes with it.
    pub fn release(&mut self, id: u32, now: u64) {
        self.set_timer(id, None);
        let (teacher, memory) = self
            .flow(id)
            .map_or((None, None), |rec| (rec.taught_by(), Some((rec.bridge, rec.memory()))));
        self.taught.remove(teacher);
        if let Some((bridge, bytes)) = memory {
            self.memory.change(bridge, bytes, 0);
        }
        if let Some(s) = self.get_mut(id) {
            *s = Slot::Free;
            self.free.push_back((now, id));
        }
    }

    /// Sets when a flow's timeouts are next to be examined, ns, instead of when they were to be.
    pub fn set_timer(&mut self, id: u32, at: Option<u64>) {
        let Some(rec) = self.flow_mut(id) else { return };
        let (old, new) = (rec.timer, at.unwrap_or(0));
        rec.timer = new;
        if old != 0 {
            self.timers.remove(&(old, id));
        }
        if new != 0 {
            self.timers.insert((new, id));
        }
    }

    /// Number of timers.
    #[cfg(test)]
    pub fn timers(&self) -> usize {
        self.timers.len()
    }

    /// The flow that is to be examined next, and when, ns.
    pub fn next_timer(&self) -> Option<(u64, u32)> {
        self.timers.first().copied()
    }

    /// Sets a flow's record back to what it was, but for its timer.
    pub fn restore(&mut self, id: u32, old: FlowRec) {
        if let Some(rec) = self.flow_mut(id) {
            let (bridge, from, to) = (rec.bridge, rec.memory(), old.memory());
            *rec = FlowRec { timer: rec.timer, ..old };
            self.memory.change(bridge, from, to);
        }
    }

    /// Gives a flow another rule.
    pub fn set_rule(&mut self, id: u32, rule: Arc<FlowRule>) {
        if let Some(rec) = self.flow_mut(id) {
            let (bridge, from) = (rec.bridge, rec.memory());
            rec.rule = rule;
            let to = rec.memory();
            self.memory.change(bridge, from, to);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ids_wait_in_order_and_growing_moves_none() {
        const IDS: u32 = 100_000;
        let mut slots = Slots::default();
        slots.push_run(IDS as usize, |_| Slot::Count(Counter::default()));
        let is_even = |id: &u32| id.is_multiple_of(2);
        let odd_then_even = || (0..IDS).filter(|id| !is_even(id)).chain((0..IDS).filter(is_even));
        let mut places = BTreeSet::new();
        for id in odd_then_even() {
            slots.release(id, u64::from(id % 2 == 0));
            places.extend(slots.free.0.back().and_then(VecDeque::front).map(std::ptr::from_ref));
        }
        assert_eq!(places.len(), slots.free.0.len());
        let alloc = |slots: &mut Slots, now| slots.alloc(Slot::Count(Counter::default()), now);
        assert_eq!(alloc(&mut slots, QUARANTINE_NS - 1), IDS, "none is free");
        for id in odd_then_even() {
            assert_eq!(slots.next(QUARANTINE_NS + 1), id);
            assert_eq!(alloc(&mut slots, QUARANTINE_NS + 1), id);
        }
        assert!(slots.free.0.is_empty());
        assert_eq!(alloc(&mut slots, QUARANTINE_NS + 1), IDS + 1);
    }

    #[test]
    fn counters_of_tables_are_used_again_when_no_decision_credits_them() {
        let mut slots = Slots::default();
        let base = slots.alloc_tables(0, 0);
        let len = slots.len();
        slots.release_tables(base, 5);
        assert!(matches!(slots.get(base), Some(Slot::Free)));
        let early = slots.alloc_tables(1, 4 + QUARANTINE_NS);
        assert_ne!(early, base);
        assert_eq!(slots.alloc_tables(2, 5 + QUARANTINE_NS), base);
        assert_eq!(slots.len(), len + N_TABLES);
        let last = slots.get(base + N_TABLES as u32 - 1);
        assert!(
            matches!(last, Some(Slot::Miss { bridge: 2, table }) if *table as usize == N_TABLES - 1)
        );
    }
}
