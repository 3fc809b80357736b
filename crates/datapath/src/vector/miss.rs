//! Packets that no rule matched: decided about in order, and the decisions stored.

use super::Vector;
use crate::clock::cycles;
use crate::events::{Cold, Credit, Report};
use crate::lookup::mask::Words;
use crate::tunnel;
use crate::tx::Pending;
use action::Request;
use flow::{Key, at};
use packet::VECTOR;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Distinct effects remembered in [`super::Uncached`]; beyond, only credits are.
const UNCACHED: usize = 4096;

/// A missed packet is looked up again in the subtables that got rules during its vector, unless they
/// are more than this: then asking the pipeline costs less.
const FEW: usize = 2;

/// With a full table one decision in so many is stored.
const STORED: u32 = 8;

impl Vector {
    /// Decides about packets that no rule matched, in order.
    pub(super) fn misses(&mut self, todo: &[u8], now_ms: u64) {
        let start = cycles();
        let (mut left, mut stored, mut slots) = (self.budget, [0; FEW + 1], 0);
        let mut later = [false; VECTOR];
        for i in todo.iter().map(|n| *n as usize) {
            if left == 0 {
                later[i] = true;
                continue;
            }
            if slots <= FEW && self.was_stored(i, &stored[..slots]) {
                continue;
            }
            left -= 1;
            if let Some(slot) = self.resolve(i, now_ms)
                && slots <= FEW
                && !stored[..slots].contains(&slot)
            {
                stored[slots] = slot;
                slots += 1;
            }
        }
        if left == 0 {
            self.postpone(&later);
        }
        let perf = &self.shared.perf;
        perf.misses.add((self.budget - left) as u64);
        perf.miss_cycles.add(cycles() - start);
    }

    fn postpone(&mut self, later: &[bool; VECTOR]) {
        for i in (0..self.packets.len()).filter(|i| later[*i]) {
            self.carry.push(Pending {
                packet: self.packets[i],
                in_port: self.in_port[i],
                depth: if i < self.meta.len() { self.depth[i] } else { 0 },
                meta: match self.meta.get_mut(i) {
                    Some(meta) => meta.take(),
                    // The outer header that its tunnel's fields came from is gone.
                    None => (self.keys.have[i] & tunnel::EXT2 != 0).then(|| self.frame(i).into()),
                },
            });
        }
        self.close_up(later);
    }

    /// Is there a rule for packet `i` in the subtables that got new ones during this vector?
    fn was_stored(&mut self, i: usize, subtables: &[usize]) -> bool {
        let Some(found) = self.table.among(subtables, &self.keys.get(i)) else { return false };
        (self.keys.rule[i], self.keys.program[i]) = found;
        true
    }

    /// Asks the pipeline about packet `i`, and stores the decision unless a packet before it with the
    /// same one made that needless. Says in which subtable.
    fn resolve(&mut self, i: usize, now_ms: u64) -> Option<usize> {
        let kref = self.keys.get(i);
        let words = kref.words();
        let mut key = Key::ZERO;
        key.words[..32].copy_from_slice(&words);
        self.decision.clear();
        // The options of a packet that just lost its outer header are still in front of it.
        let len = 4 * usize::from(key.u8(at::TUN_OPTION_WORDS));
        let fresh = key.u16(at::RECIRC) == 0 && kref.have & tunnel::EXT2 != 0;
        let options = if fresh { self.packets[i].before(len) } else { &[] };
        let request = Request { key: &key, options, packet: self.packets[i].data() };
        self.pipeline.resolve(&request, &mut self.decision);
        let mask: Words = self.decision.mask.words[..32].try_into().unwrap();
        let spot = self.decision.cacheable.then(|| self.table.spot(&words, &mask));
        if let Some((rule, program)) = spot.as_ref().and_then(|s| self.table.known(s)) {
            (self.keys.rule[i], self.keys.program[i]) = (rule, program);
            self.table.remember(&self.keys.get(i), rule);
            return None;
        }
        let d = &mut self.decision;
        let program = self.programs.intern(&d.ops, d.drop);
        self.keys.program[i] = program;
        let room = self.may_store() && self.told_of(program) && self.reports.room() > 0;
        let spot = spot.filter(|_| room);
        let rule = spot.as_ref().and_then(|s| self.table.install(s, program, self.limit));
        self.keys.rule[i] = rule.unwrap_or(0);
        match rule {
            Some(idx) => {
                self.report_installed(idx, now_ms);
                self.table.remember(&self.keys.get(i), idx);
            }
            None => self.use_once(i, program, now_ms),
        }
        rule.and(spot).map(|s| s.slot)
    }

    /// Is there room in the table? When it is full only some decisions are stored: those that are used
    /// often get in, and flows that come by once do not push each other out.
    fn may_store(&mut self) -> bool {
        self.missed = self.missed.wrapping_add(1);
        let full = self.table.live + 4 * self.margin() > self.limit;
        !full || self.missed.is_multiple_of(STORED)
    }

    /// Makes sure that control knows what a program does; false: there is no room to say so.
    fn told_of(&mut self, program: u32) -> bool {
        if !self.late.is_empty() || self.reports.room() == 0 {
            return false;
        }
        if let Some(ops) = self.programs.tell(program) {
            self.report(Report::Program(program, ops));
        }
        true
    }

    /// Rules that are evicted at once when the table is full.
    pub(super) fn margin(&self) -> u32 {
        (self.limit / 8).min(64)
    }

    fn report_installed(&mut self, idx: u32, now_ms: u64) {
        let d = &mut self.decision;
        let cold = Cold {
            credits: d.credits.as_slice().into(),
            effects: d.effects.take(),
            packets: 0,
            bytes: 0,
            leaving: false,
        };
        // Its age counts from now.
        self.table.store.counters(idx).used_ms.store(now_ms, Ordering::Relaxed);
        self.shared.perf.installed.add(1);
        self.report(Report::Installed(idx, cold));
    }

    /// The decision holds for this packet only: credit it, and drop its program after the vector.
    fn use_once(&mut self, i: usize, program: u32, now_ms: u64) {
        self.passing.push(program);
        self.shared.perf.not_installed.add(1);
        let d = &mut self.decision;
        let mut effects = d.effects.take();
        if self.uncached.len() >= UNCACHED {
            effects = None;
        }
        let tag = effects.as_ref().map_or(0, |e| Arc::as_ptr(e).cast::<u8>() as usize);
        let credits: Box<[u32]> = d.credits.as_slice().into();
        let c = self.uncached.entry((credits, tag)).or_insert_with_key(|(credits, _)| Credit {
            credits: credits.clone(),
            effects,
            packets: 0,
            bytes: 0,
            used_ms: now_ms,
        });
        c.packets += 1;
        c.bytes += self.packets[i].len() as u64;
        c.used_ms = now_ms;
    }
}
