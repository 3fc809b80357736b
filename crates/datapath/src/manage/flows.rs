//! The control side's part of a worker's megaflow table: the cold part of each megaflow, and exact
//! counting.

use crate::events::{Stale, Used};
use crate::info::FlowDump;
use crate::lookup::flow_store::{Column, DEAD, Payload, Store, Zero, before_first};
use crate::manage::flow_index::Index;
use crate::manage::flow_stats::FlowStats;
use crate::manage::invalidate::RegionSet;
use crate::manage::mark_bindings::FlowMarks;
use crate::manage::watches::FlowWatches;
use crate::messages::Effects;
use crate::messages::{Command, Credits, UncachedReport};
use crate::miss::rates::RESOLVE_PACKETS_MAX;
use crate::settings::WorkerId;
use action::Op;
use flow::{Key, Mask, PortNo};
use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Megaflows below which no memory is provided ahead.
const PROVIDE_MEGAFLOWS_MIN: usize = 1 << 14;
/// Number of megaflows for which memory is provided before the worker needs it.
const PROVIDE_MEGAFLOWS: usize = 1 << 16;

/// The cold part of a megaflow, of which there are millions: its account, and how much of its
/// counters was credited. That is packets modulo 2^32 and bytes modulo 2^38, more than a megaflow
/// can have between two sweeps.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cold {
    /// Bits 0 to 24: the account; 0: there is no megaflow. Bit 25: unlinking was requested. Bits 26
    /// to 31: bits 32 to 37 of the bytes.
    bits: u32,
    bytes: u32,
    packets: u32,
}

const ACCOUNT_BITS: u32 = (1 << 25) - 1;
const LEAVING_BIT: u32 = 1 << 25;
const BYTE_BITS: u64 = (1 << 38) - 1;

// SAFETY: zero is no megaflow.
unsafe impl Zero for Cold {}

impl Cold {
    /// The cold part of a megaflow that was made for a packet of this length, which is to be
    /// credited.
    fn new(account: u32, bytes: u16) -> Cold {
        assert!(account <= ACCOUNT_BITS, "there are at most as many as megaflows, which are 2^24");
        let mut cold = Cold { bits: account, ..Cold::default() };
        cold.advance(before_first(1), before_first(bytes.into()));
        cold
    }

    fn account(&self) -> Option<u32> {
        let account = self.bits & ACCOUNT_BITS;
        (account != 0).then_some(account)
    }

    fn is_leaving(&self) -> bool {
        self.bits & LEAVING_BIT != 0
    }

    /// Records that the counters have these values; returns how much they grew.
    fn advance(&mut self, packets: u64, bytes: u64) -> (u64, u64) {
        let before = u64::from(self.bits >> 26) << 32 | u64::from(self.bytes);
        let more = (packets as u32).wrapping_sub(self.packets);
        let more_bytes = bytes.wrapping_sub(before) & BYTE_BITS;
        let high = (bytes >> 32) as u32 & 0x3f;
        self.bits = self.bits & (ACCOUNT_BITS | LEAVING_BIT) | high << 26;
        (self.bytes, self.packets) = (bytes as u32, packets as u32);
        (more.into(), more_bytes)
    }
}

/// Up to this many megaflows, all counters are read when traffic is collected; beyond, counters are
/// those of the last complete sweep.
const FOLD_ALL_MEGAFLOWS_MAX: usize = 1 << 18;
/// Megaflows that one slice of a sweep examines, at most.
const SLICE_MEGAFLOWS_MAX: usize = 1 << 16;
/// Idle megaflows that one slice of a sweep finds, at most: a worker has to unlink and report them.
const IDLE_MEGAFLOWS_MAX: usize = 2048;
/// Entries of [`Flows::first_keys`], at most.
const FIRST_KEYS_MAX: usize = 1024;
/// Length of a sweep, milliseconds, as far as [`SLICE_MEGAFLOWS_MAX`] and [`IDLE_MEGAFLOWS_MAX`]
/// allow it.
const SWEEP_MS: u64 = 1000;

/// The progress of a sweep over all megaflows.
#[derive(Default)]
struct Sweep {
    /// The megaflow at which it continues.
    hand: usize,
    /// When it began.
    since_ms: u64,
    /// When the last complete sweep began: accounts have all traffic up to then.
    credited_ms: u64,
}

/// The control side's part of one worker's megaflows, by megaflow index.
pub(crate) struct Flows {
    pub store: Arc<Store>,
    cold: Column<Cold>,
    /// Indices from here on were never used.
    end: usize,
    stats: FlowStats,
    /// The operations of programs, by program number.
    programs: Vec<Arc<[Op]>>,
    /// Megaflows below this index have memory.
    populated: usize,
    sweep: Sweep,
    index: Index,
    /// Objects that must live as long as a megaflow. Few megaflows have one.
    kept_alive: HashMap<u32, Arc<dyn Any + Send + Sync>>,
    /// Whole keys of the packets for which megaflows were made: at most [`FIRST_KEYS_MAX`], and
    /// only while missed packets are reported.
    first_keys: HashMap<u32, Box<Key>>,
    /// Indices that can be given back to the worker.
    done: Vec<u32>,
    pub marks: FlowMarks,
    pub watches: FlowWatches,
}

impl Flows {
    pub fn new(store: Arc<Store>) -> Self {
        let room = store.capacity() + 1;
        Flows {
            store,
            cold: Column::new(room),
            end: 0,
            stats: FlowStats::new(),
            programs: Vec::new(),
            populated: 0,
            sweep: Sweep::default(),
            index: Index::new(room),
            kept_alive: HashMap::new(),
            first_keys: HashMap::new(),
            done: Vec::new(),
            marks: FlowMarks::default(),
            watches: FlowWatches::default(),
        }
    }

    /// Sets the operations of a program.
    pub fn program(&mut self, id: u32, ops: Arc<[Op]>) {
        let i = id as usize;
        if self.programs.len() <= i {
            self.programs.resize_with(i + 1, || Arc::new([]));
        }
        self.programs[i] = ops;
    }

    /// Provides memory for future megaflows, so that the worker has no page fault for each new
    /// page.
    pub fn provide(&mut self) {
        let high = self.store.high.load(Ordering::Relaxed) as usize;
        if high > PROVIDE_MEGAFLOWS_MIN && high + PROVIDE_MEGAFLOWS > self.populated {
            let to = high + 2 * PROVIDE_MEGAFLOWS;
            self.store.populate(self.populated.max(high)..to);
            self.populated = to;
        }
    }

    /// Records a megaflow that was stored, made for a packet of this length.
    pub fn installed(&mut self, idx: u32, bytes: u16, credits: Credits, effects: Effects) {
        let i = idx as usize;
        self.cold[i] = Cold::new(self.stats.open(credits, effects), bytes);
        self.end = self.end.max(i + 1);
        self.index.insert(&self.store, idx);
        self.watches.came(idx);
    }

    /// Records for which of these packets, which missed lately, a new megaflow was made.
    pub fn note_first(&mut self, idx: u32, missed: &[Key]) {
        let (key, mask) = self.key(idx, self.store.payload(idx));
        let first = missed.iter().rev().take(RESOLVE_PACKETS_MAX);
        let first = first.copied().find(|k| k.masked(&mask) == key.masked(&mask));
        if let Some(key) = first.filter(|_| self.first_keys.len() < FIRST_KEYS_MAX) {
            self.first_keys.insert(idx, Box::new(key));
        }
    }

    /// Keeps an object alive as long as a megaflow.
    pub fn keep_alive(&mut self, idx: u32, what: Arc<dyn Any + Send + Sync>) {
        self.kept_alive.insert(idx, what);
    }

    /// Records that a megaflow was unlinked, and credits its last traffic.
    pub fn unlinked(&mut self, idx: u32) {
        self.fold_counters(idx as usize);
        if let Some(account) = std::mem::take(&mut self.cold[idx as usize]).account() {
            self.stats.close(account);
        }
        self.index.remove(&self.store, idx);
        self.kept_alive.remove(&idx);
        self.first_keys.remove(&idx);
        self.marks.ended(idx);
        self.watches.ended(idx);
        self.done.push(idx);
    }

    /// Records traffic of decisions that were not stored.
    pub fn uncached(&mut self, uncached: &UncachedReport) {
        self.stats.uncached(uncached);
    }

    /// Indices that the worker may use again.
    pub fn take_done(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.done)
    }

    /// Marks megaflows as leaving and returns the command to unlink them, except those that were
    /// marked before. A megaflow that was not reported yet is included: its report is on its way,
    /// and unlinking it twice is harmless.
    pub fn leaving(&mut self, mut megaflows: Vec<u32>) -> Option<Command> {
        megaflows.retain(|i| {
            let cold = &mut self.cold[*i as usize];
            let new = !cold.is_leaving();
            if cold.account().is_some() {
                cold.bits |= LEAVING_BIT;
            }
            new
        });
        (!megaflows.is_empty()).then_some(Command::Unlink(megaflows))
    }

    /// Begins to look for megaflows that overlap regions: see [`Flows::kill`].
    pub fn begin_kill(&mut self) {
        self.index.begin();
    }

    /// Marks megaflows dead that overlap a region, until `steps` is 0, and returns them; true:
    /// those were all. Exact for megaflows that were reported before it began: reports must be
    /// read first.
    pub fn kill(&mut self, regions: &RegionSet, steps: &mut usize) -> (Vec<u32>, bool) {
        let (store, mut dead) = (&self.store, Vec::new());
        let complete = self.index.go_on(store, regions, steps, &mut |i| {
            if store.kill(i, store.payload(i)) {
                dead.push(i);
            }
        });
        dead.iter().for_each(|i| self.watches.ended(*i));
        (dead, complete)
    }

    /// Marks megaflows with these indices dead if they are stale, and returns them. Exact for
    /// megaflows that were reported: reports must be read first.
    pub fn kill_stale(&mut self, stale: &[Stale], numbers: Range<usize>) -> Vec<u32> {
        let store = &self.store;
        let numbers = numbers.start.min(self.end)..numbers.end.min(self.end);
        let is_stale = |i: usize| {
            let Some(account) = self.cold[i].account() else { return false };
            let program = self.programs.get(store.payload(i as u32).program() as usize);
            self.stats.is_stale(account, program.map_or(&[], |ops| ops), stale)
        };
        let found = numbers.filter(|i| is_stale(*i)).map(|i| i as u32);
        let dead: Vec<u32> = found.filter(|i| store.kill(*i, store.payload(*i))).collect();
        dead.iter().for_each(|i| self.watches.ended(*i));
        dead
    }

    /// The index behind those of all megaflows so far.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Keeps a megaflow's account open beyond its end; None: it has ended, or is leaving.
    pub fn hold_account(&mut self, i: u32) -> Option<u32> {
        self.find(i)?;
        let account = self.cold[i as usize].account()?;
        self.stats.hold(account);
        Some(account)
    }

    /// What is needed to credit packets that adapters forwarded.
    pub fn watches_and_stats(&mut self) -> (&mut FlowWatches, &mut FlowStats) {
        (&mut self.watches, &mut self.stats)
    }

    /// The megaflows that were reported.
    fn reported(&self) -> impl Iterator<Item = (u32, &Cold)> {
        let all = self.cold[..self.end].iter().enumerate();
        all.filter(|(_, c)| c.account().is_some()).map(|(i, c)| (i as u32, c))
    }

    /// Examines the next slice of megaflows: as many as make a whole sweep in a second, if this is
    /// called every `elapsed_ms`. Reports were read at `now_ms`. Credits their traffic, and returns
    /// those that were not used since `before_ms`.
    pub fn sweep_slice(&mut self, now_ms: u64, elapsed_ms: u64, before_ms: u64) -> Vec<u32> {
        let part = self.end as u64 * elapsed_ms.min(SWEEP_MS) / SWEEP_MS;
        let n = (part as usize + 1).min(SLICE_MEGAFLOWS_MAX);
        if self.sweep.hand == 0 {
            self.sweep.since_ms = now_ms;
        }
        let end = (self.sweep.hand + n).min(self.end);
        let mut idle = Vec::new();
        while self.sweep.hand < end && idle.len() < IDLE_MEGAFLOWS_MAX {
            let i = self.sweep.hand;
            self.sweep.hand += 1;
            let used = self.store.counters(i as u32).used_ms.load(Ordering::Relaxed);
            let used = self.watches.used_ms(i as u32, used);
            if self.fold_counters(i) && used < before_ms && !self.cold[i].is_leaving() {
                idle.push(i as u32);
            }
        }
        if self.sweep.hand == self.end {
            self.sweep.hand = 0;
            self.sweep.credited_ms = self.sweep.since_ms;
        }
        idle
    }

    /// Credits a megaflow's traffic to its account; false: there is no such megaflow.
    fn fold_counters(&mut self, i: usize) -> bool {
        let Some(account) = self.cold[i].account() else { return false };
        let (cold, c) = (&mut self.cold[i], self.store.counters(i as u32));
        let o = Ordering::Relaxed;
        let (packets, bytes) = (c.packets.load(o), c.bytes.load(o));
        let (packets, bytes) = cold.advance(packets, bytes);
        if packets != 0 {
            self.stats.credit(account, packets, bytes, c.used_ms.load(o));
        }
        true
    }

    /// All megaflows.
    pub fn all(&self) -> Vec<u32> {
        self.reported().map(|(i, _)| i).collect()
    }

    /// Credits the traffic of all megaflows, if they are not too many. Reports were read at
    /// `now_ms`.
    pub fn fold(&mut self, now_ms: u64) {
        if self.end <= FOLD_ALL_MEGAFLOWS_MAX {
            (0..self.end).for_each(|i| {
                self.fold_counters(i);
            });
            self.sweep = Sweep { credited_ms: now_ms, ..Sweep::default() };
        }
        self.stats.begin();
    }

    /// Hands over credited traffic: see [`FlowStats::collect`].
    pub fn collect(&mut self, most: usize, each: &mut dyn FnMut(Used<'_>)) -> Option<usize> {
        self.stats.collect(most, each)
    }

    /// Time up to which [`Flows::collect`] has all traffic, milliseconds.
    pub fn credited_ms(&self) -> u64 {
        self.sweep.credited_ms
    }

    /// Describes the megaflows among the next indices from `from` on, for output. Returns the index
    /// to continue from; None: there are no more.
    pub fn dump(
        &self,
        (worker, worker_no): (WorkerId, usize),
        from: usize,
        most: usize,
        out: &mut Vec<FlowDump>,
    ) -> Option<usize> {
        let end = from.saturating_add(most).min(self.end);
        for i in from..end {
            if self.cold[i].account().is_some() {
                out.push(self.describe((worker, worker_no), i as u32));
            }
        }
        (end < self.end).then_some(end)
    }

    /// Describes a megaflow that was reported.
    pub fn describe(&self, (worker, worker_no): (WorkerId, usize), i: u32) -> FlowDump {
        let o = Ordering::Relaxed;
        let payload = self.store.payload(i);
        let (key, mask) = self.key(i, payload);
        let c = self.store.counters(i);
        let (more, own) = (self.watches.forwarded(i), c.own());
        FlowDump {
            worker,
            key,
            first_key: self.first_keys.get(&i).cloned(),
            mask,
            ops: self.programs.get(payload.program() as usize).cloned().unwrap_or_default(),
            packets: own.0 + more.packets,
            bytes: own.1 + more.bytes,
            used_ms: c.used_ms.load(o).max(more.used_ms),
            dead: payload.0 & DEAD != 0,
            id: offload::FlowId { worker: worker_no as u32, megaflow: i },
            pps: self.marks.pps(i),
        }
    }

    fn key(&self, i: u32, payload: Payload) -> (Key, Mask) {
        let words = self.store.mask(payload.mask());
        let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
        key.words[..32].copy_from_slice(&self.store.key_words(i, &words));
        mask.words[..32].copy_from_slice(&words);
        (key, mask)
    }

    /// Key, mask and operations of a megaflow that was reported and is not dead.
    pub fn find(&self, i: u32) -> Option<(Key, Mask, Arc<[Op]>)> {
        let payload = self.store.payload(i);
        let reported = (i as usize) < self.end && self.cold[i as usize].account().is_some();
        if !reported || !payload.usable() || self.cold[i as usize].is_leaving() {
            return None;
        }
        let (key, mask) = self.key(i, payload);
        let ops = self.programs.get(payload.program() as usize).cloned().unwrap_or_default();
        Some((key, mask, ops))
    }

    /// Samples the megaflows among the next indices from `from` on: calls back with input port, and
    /// packets since the last sample. Returns the index to continue from; None: there are no more.
    pub fn sample(
        &mut self,
        from: usize,
        most: usize,
        each: &mut dyn FnMut(u32, PortNo, u32),
    ) -> Option<usize> {
        let end = (from + most).min(self.end);
        for i in from..end {
            let idx = i as u32;
            if self.cold[i].account().is_some() && self.store.payload(idx).usable() {
                let (packets, _) = self.store.counters(idx).own();
                let port = crate::lookup::table::port_of(self.store.line(idx)[4]);
                each(idx, port, self.marks.sampled(idx, packets as u32, self.cold.len()));
            }
        }
        (end < self.end).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::keys::Words;
    use crate::lookup::mask::FULL;
    use crate::lookup::table::Table;

    /// A table with `n` megaflows that were used at 100 ms, each with counter 1.
    fn filled(n: u64) -> (Table, Flows) {
        let mut table = Table::new(n as usize);
        let mut flows = Flows::new(table.store.clone());
        for i in 0..n {
            let key: Words = std::array::from_fn(|w| if w == 0 { i + 1 } else { 0 });
            let megaflow = table.put(&key, &FULL, 1, n as u32).expect("room");
            table.store.counters(megaflow).begin(50, 90);
            flows.installed(megaflow, 50, [1][..].into(), None);
            table.store.counters(megaflow).add(2, 120, 100);
        }
        (table, flows)
    }

    /// Packets and bytes of everybody since the last time.
    fn collected(flows: &mut Flows) -> (u64, u64) {
        let mut sum = (0, 0);
        flows.stats.begin();
        flows.collect(usize::MAX, &mut |u| sum = (sum.0 + u.packets, sum.1 + u.bytes));
        sum
    }

    #[test]
    fn a_pass_sees_each_megaflow_once_and_says_since_when() {
        let (table, mut flows) = filled(1000);
        let mut idle = Vec::new();
        for round in 1..=10 {
            let now = 5_000 + 100 * round;
            idle.extend(flows.sweep_slice(now, 100, 5_000));
            assert_eq!(flows.credited_ms(), if round == 10 { 5_100 } else { 0 });
        }
        assert_eq!(collected(&mut flows), (2_000, 120_000));
        assert_eq!(idle.len(), 1000);
        assert!(flows.leaving(idle.clone()).is_some());
        assert!(flows.leaving(idle).is_none(), "they were asked once");
        table.store.counters(7).add(1, 60, 7_000);
        assert!((0..10).all(|_| flows.sweep_slice(9_000, 100, 5_000).is_empty()));
        assert_eq!(collected(&mut flows), (1, 60));
    }

    #[test]
    fn the_packet_that_a_megaflow_was_made_for_is_credited_and_not_counted() {
        let (mut table, id) = (Table::new(1), (WorkerId::Kernel, 0));
        let mut flows = Flows::new(table.store.clone());
        let key: Words = std::array::from_fn(|w| if w == 0 { 1 } else { 0 });
        let megaflow = table.put(&key, &FULL, 1, 1).expect("room");
        table.store.counters(megaflow).begin(60, 90);
        flows.installed(megaflow, 60, [1][..].into(), None);
        let counts = |flows: &Flows| {
            let f = flows.describe(id, megaflow);
            (f.packets, f.bytes)
        };
        assert_eq!((counts(&flows), collected(&mut flows)), ((0, 0), (0, 0)), "not counted yet");
        table.store.counters(megaflow).add(1, 60, 100);
        flows.fold(200);
        assert_eq!((counts(&flows), collected(&mut flows)), ((0, 0), (1, 60)));
        table.store.counters(megaflow).add(2, 150, 100);
        flows.fold(300);
        assert_eq!((counts(&flows), collected(&mut flows)), ((2, 150), (2, 150)));
    }

    #[test]
    fn what_a_megaflow_that_went_and_a_wrapped_counter_leave_is_credited() {
        let (table, mut flows) = filled(3);
        flows.fold(200);
        collected(&mut flows);
        assert_eq!(flows.credited_ms(), 200);
        table.store.counters(1).add((1 << 32) - 1, (1 << 38) - 2, 300);
        table.store.counters(2).add(1, 60, 300);
        flows.unlinked(2);
        assert_eq!(collected(&mut flows), (1, 60));
        flows.fold_counters(1);
        assert_eq!(collected(&mut flows), ((1 << 32) - 1, (1 << 38) - 2));
        table.store.counters(1).add(3, 5, 300);
        let mut seen = 0;
        flows.fold(500);
        flows.collect(usize::MAX, &mut |u| seen += u.packets);
        assert_eq!((seen, flows.all()), (3, vec![1, 3]));
    }
}
