//! Packets that no megaflow matched: decided about in order, and the decisions stored.

pub(crate) mod policy;
pub(crate) mod seen_flows;
pub(crate) mod uncached;
pub(crate) mod uncached_stats;

use crate::batch::Vector;
use crate::batch::keys::EXT2;
use crate::batch::keys::{Line, Words};
use crate::lookup::{Admission, InsertPosition};
use crate::messages::Report;
use crate::stats::clock::cycles;
use crate::tx::Pending;
use action::{Decision, Request};
use flow::{Key, PortNo, at, flag};
use packet::{Packet, VECTOR};
use std::sync::atomic::Ordering;

/// A missed packet is looked up again in the subtables that got megaflows during its vector, unless
/// they are more than this: then asking the pipeline costs less.
const FILLED_SUBTABLES_MAX: usize = 2;

/// Of flows for which there is no room, or no use yet, one in so many is stored.
const FULL_TABLE_SAMPLE_FLOWS: u32 = 8;

/// Packets that the pipeline is asked about side by side: their memory accesses overlap.
const RESOLVE_PACKETS_MAX: usize = 8;

/// Packets about which the pipeline is asked, and what it says; kept to be used again.
pub(crate) struct MissBatch {
    len: usize,
    packets: [usize; RESOLVE_PACKETS_MAX],
    keys: [Key; RESOLVE_PACKETS_MAX],
    decisions: [Decision; RESOLVE_PACKETS_MAX],
    positions: [Option<InsertPosition>; RESOLVE_PACKETS_MAX],
}

impl Default for MissBatch {
    fn default() -> Self {
        MissBatch {
            len: 0,
            packets: [0; RESOLVE_PACKETS_MAX],
            keys: [Key::ZERO; RESOLVE_PACKETS_MAX],
            decisions: Default::default(),
            positions: Default::default(),
        }
    }
}

impl MissBatch {
    /// Is a packet with the same first line among them?
    fn has(&self, line: &Line) -> bool {
        let same = |key: &Key| key.words[..7] == line[..7];
        self.keys[..self.len].iter().any(same)
    }

    fn add(&mut self, packet: usize, words: &Words) {
        self.packets[self.len] = packet;
        self.keys[self.len].words[..words.len()].copy_from_slice(words);
        self.len += 1;
    }
}

/// The words that a packet has.
fn packet_words(key: &Key) -> &Words {
    key.words.first_chunk().expect("a key has more")
}

/// The options of a packet that just lost its outer header: they are still in front of it.
fn options_of<'p>(packet: &'p Packet, key: &Key) -> &'p [u8] {
    match (key.u8(at::FLAGS) & flag::TUNNEL_OPTIONS, key.u32(at::RECIRC)) {
        (0, _) | (_, 1..) => &[],
        _ => packet.before(4 * usize::from(key.u8(at::TUN_OPTION_WORDS))),
    }
}

impl Vector {
    /// Decides about packets that no megaflow matched: at first those of ports in direct mode, then
    /// the others, in order.
    pub(crate) fn misses(&mut self, todo: &mut Vec<u8>, now_ms: u64) {
        let start = cycles();
        let direct = if self.table.direct { self.resolve_uncached(todo, now_ms) } else { 0 };
        let mut left = self.budget - direct;
        if !todo.is_empty() {
            left = self.resolve_all_missed(todo, left, now_ms);
        }
        let (misses, cycles_spent) = ((self.budget - left) as u64, cycles() - start);
        self.table.count_misses(misses, cycles_spent);
        let perf = &self.shared.perf;
        perf.misses.add(misses);
        perf.direct.add(direct as u64);
        perf.miss_cycles.add(cycles_spent);
    }

    /// Decides about packets in order, `left` of them at most; says how many more there might have
    /// been.
    fn resolve_all_missed(&mut self, todo: &[u8], mut left: usize, now_ms: u64) -> usize {
        let (mut filled, mut slots) = ([0; FILLED_SUBTABLES_MAX + 1], 0);
        let mut postponed = [false; VECTOR];
        let mut miss_batch = self.miss_batch.take().unwrap_or_default();
        let mut todo = todo.iter().map(|n| usize::from(*n)).peekable();
        // One, then two...: the first ones often bring what the others need.
        let mut at_once = 1;
        while todo.peek().is_some() {
            miss_batch.len = 0;
            while miss_batch.len < at_once
                && let Some(i) = todo.next_if(|i| !miss_batch.has(&self.keys.line.0[*i]))
            {
                if left == 0 {
                    postponed[i] = true;
                } else if slots > FILLED_SUBTABLES_MAX || !self.is_in_filled(i, &filled[..slots]) {
                    left -= 1;
                    miss_batch.add(i, &self.keys.get(i).words());
                }
            }
            at_once = (at_once * 2).min(RESOLVE_PACKETS_MAX);
            if miss_batch.len > 0 {
                self.resolve(&mut miss_batch);
            }
            for n in 0..miss_batch.len {
                if let Some(slot) = self.apply_decision(&mut miss_batch, n, now_ms)
                    && slots <= FILLED_SUBTABLES_MAX
                    && !filled[..slots].contains(&slot)
                {
                    filled[slots] = slot;
                    slots += 1;
                }
            }
        }
        self.miss_batch = Some(miss_batch);
        if left == 0 {
            self.postpone(&postponed);
        }
        left
    }

    fn postpone(&mut self, postponed: &[bool; VECTOR]) {
        for i in (0..self.packets.len()).filter(|i| postponed[*i]) {
            self.carry.push(Pending {
                packet: self.packets[i],
                in_port: self.in_port[i],
                depth: if i < self.meta.len() { self.depth[i] } else { 0 },
                meta: match self.meta.get_mut(i) {
                    Some(meta) => meta.take(),
                    // The outer header that its tunnel's fields came from is gone.
                    None => (self.keys.have[i] & EXT2 != 0).then(|| self.frame(i).into()),
                },
            });
        }
        self.close_up(postponed);
    }

    /// Is there a megaflow for packet `i` in the subtables that got new ones during this vector?
    fn is_in_filled(&mut self, i: usize, subtables: &[usize]) -> bool {
        let Some(found) = self.table.find_in(subtables, &self.keys.get(i)) else { return false };
        (self.keys.megaflow[i], self.keys.program[i]) = found;
        true
    }

    /// Asks the pipeline about these packets, and the memory for what storing the answers will
    /// read.
    fn resolve(&mut self, miss_batch: &mut MissBatch) {
        let MissBatch { len, packets, keys, decisions, positions } = miss_batch;
        decisions[..*len].iter_mut().for_each(Decision::clear);
        let requests: [Request<'_>; RESOLVE_PACKETS_MAX] =
            std::array::from_fn(|a| self.request(&keys[a], packets[a.min(*len - 1)]));
        self.pipeline.resolve_all(&requests[..*len], &mut decisions[..*len]);
        for ((key, d), position) in keys.iter().zip(&*decisions).zip(positions).take(*len) {
            *position = d
                .cacheable
                .then(|| self.table.insert_position(packet_words(key), packet_words(&d.mask)));
            position.iter().for_each(|s| self.table.prefetch(s));
        }
    }

    /// Packet `i`, which has this key, as the pipeline is asked about it.
    pub(crate) fn request<'p>(&'p self, key: &'p Key, i: usize) -> Request<'p> {
        let packet = &self.packets[i];
        Request { key, options: options_of(packet, key), packet: packet.data() }
    }

    /// Packet `n` of these gets what was decided, which is stored unless it is known. Says in which
    /// subtable.
    fn apply_decision(
        &mut self,
        miss_batch: &mut MissBatch,
        n: usize,
        now_ms: u64,
    ) -> Option<usize> {
        let (i, d) = (miss_batch.packets[n], &mut miss_batch.decisions[n]);
        let holds = d.holds.take();
        let mut position = miss_batch.positions[n].take();
        if position.as_ref().is_some_and(|s| !self.table.holds(s)) {
            position = Some(
                self.table
                    .insert_position(packet_words(&miss_batch.keys[n]), packet_words(&d.mask)),
            );
        }
        let key = packet_words(&miss_batch.keys[n]);
        if let Some((megaflow, program)) = position.as_ref().and_then(|s| self.table.known(s, key))
        {
            (self.keys.megaflow[i], self.keys.program[i]) = (megaflow, program);
            self.table.remember(&self.keys.get(i), megaflow);
            return None;
        }
        let program = self.programs.intern(&d.ops, d.drop);
        self.keys.program[i] = program;
        let position = position.filter(|s| self.is_admitted(s));
        let room = position.is_some() && self.announce_program(program) && self.reports.room() > 0;
        let position = position.filter(|_| room);
        let megaflow = position.as_ref().and_then(|s| self.table.install(s, program, self.limit));
        self.keys.megaflow[i] = megaflow.unwrap_or(0);
        match megaflow {
            Some(idx) => {
                self.report_installed(idx, self.in_port[i], d, now_ms);
                if let Some(what) = holds {
                    self.report(Report::Holds(idx, what));
                }
                self.table.remember(&self.keys.get(i), idx);
            }
            None => self.apply_once(i, program, d, now_ms),
        }
        megaflow.and(position).map(|s| s.slot)
    }

    /// Shall the decision be stored? Under pressure only what comes a second time is. When the
    /// table is full, only some are: those that are used often get in, and flows that come by once
    /// do not push each other out.
    fn is_admitted(&mut self, position: &InsertPosition) -> bool {
        self.missed = self.missed.wrapping_add(1);
        let some = self.missed.is_multiple_of(FULL_TABLE_SAMPLE_FLOWS);
        let full = self.table.live + 4 * self.margin() > self.limit;
        match self.table.admission(position) {
            Admission::Unlimited | Admission::SeenBefore => !full || some,
            Admission::Unprobed => some,
            Admission::FirstSeen => false,
        }
    }

    /// Makes sure that control knows what a program does; false: there is no room to say so.
    fn announce_program(&mut self, program: u32) -> bool {
        if !self.backlog.is_empty() || self.reports.room() == 0 {
            return false;
        }
        if let Some(ops) = self.programs.announce(program) {
            self.report(Report::Program(program, ops));
        }
        true
    }

    /// Megaflows that are evicted at once when the table is full.
    pub(crate) fn margin(&self) -> u32 {
        (self.limit / 8).min(64)
    }

    fn report_installed(&mut self, idx: u32, port: PortNo, d: &mut Decision, now_ms: u64) {
        // Its age counts from now.
        self.table.store.counters(idx).used_ms.store(now_ms, Ordering::Relaxed);
        self.shared.perf.installed.add(1);
        let (credits, effects) = (d.credits.as_slice().into(), d.effects.take());
        self.report(Report::Installed(idx, port, credits, effects));
    }

    /// The decision holds for this packet only: credit it, and drop its program after the vector.
    pub(crate) fn apply_once(&mut self, i: usize, program: u32, d: &mut Decision, now_ms: u64) {
        self.once_programs.push(program);
        self.shared.perf.not_installed.add(1);
        self.uncached.credit(&d.credits, self.packets[i].len() as u64, now_ms);
        self.uncached.effects(self.in_port[i], d.effects.take());
    }
}
