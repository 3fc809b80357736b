//! Control's half of a worker's table: the cold part of each rule, and exact counting.

use crate::events::{Cold, Command, Credit};
use crate::index::Index;
use crate::invalidate::Areas;
use crate::lookup::store::{DEAD, Store};
use crate::types::{FlowDump, Stale, Used, WorkerId};
use action::Op;
use flow::Key;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A worker with fewer rules needs no memory ahead.
const FIRST: usize = 1 << 14;
/// Rules for which there is memory ahead of the worker.
const AHEAD: usize = 1 << 16;

/// Cold records of one worker's rules, by rule index.
pub(crate) struct Flows {
    pub store: Arc<Store>,
    cold: Vec<Option<Cold>>,
    /// What programs do, by their number.
    programs: Vec<Arc<[Op]>>,
    /// Rules below have memory.
    populated: usize,
    /// Where the search for idle rules goes on.
    hand: usize,
    index: Index,
    /// Traffic of rules that are gone and of decisions that were never stored.
    past: Vec<Credit>,
    /// Indices to give back.
    done: Vec<u32>,
}

impl Flows {
    pub fn new(store: Arc<Store>) -> Self {
        Flows {
            store,
            cold: Vec::new(),
            programs: Vec::new(),
            populated: 0,
            hand: 0,
            index: Index::new(),
            past: Vec::new(),
            done: Vec::new(),
        }
    }

    /// What rules with this program do from now on.
    pub fn program(&mut self, id: u32, ops: Arc<[Op]>) {
        let i = id as usize;
        if self.programs.len() <= i {
            self.programs.resize_with(i + 1, || Arc::new([]));
        }
        self.programs[i] = ops;
    }

    /// Provides memory for rules to come, so that the worker does not wait for it at each new page.
    pub fn provide(&mut self) {
        let high = self.store.high.load(Ordering::Relaxed) as usize;
        if high > FIRST && high + AHEAD > self.populated {
            let to = high + 2 * AHEAD;
            self.store.populate(self.populated.max(high)..to);
            self.populated = to;
        }
    }

    /// A rule came.
    pub fn installed(&mut self, idx: u32, cold: Cold) {
        let i = idx as usize;
        if self.cold.len() <= i {
            self.cold.resize_with(i + 1, || None);
        }
        self.cold[i] = Some(cold);
        self.index.insert(&self.store, idx);
    }

    /// A rule went: its last traffic is kept for `collect`.
    pub fn unlinked(&mut self, idx: u32) {
        if let Some(mut cold) = self.cold.get_mut(idx as usize).and_then(Option::take)
            && let Some((packets, bytes, used_ms)) = delta(&self.store, idx, &mut cold)
        {
            let Cold { credits, effects, .. } = cold;
            let credits = (*credits).into();
            self.past.push(Credit { credits, effects, packets, bytes, used_ms });
        }
        self.index.remove(&self.store, idx);
        self.done.push(idx);
    }

    /// A decision was used without being stored.
    pub fn uncached(&mut self, credit: Credit) {
        self.past.push(credit);
    }

    /// Indices the worker may use again.
    pub fn take_done(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.done)
    }

    /// Marks rules as asked to leave; those that already were are left out.
    pub fn leaving(&mut self, mut rules: Vec<u32>) -> Option<Command> {
        rules.retain(|i| match self.cold.get_mut(*i as usize) {
            Some(Some(c)) => !std::mem::replace(&mut c.leaving, true),
            // Not heard of yet: the report is on its way, and unlinking twice is harmless.
            _ => true,
        });
        (!rules.is_empty()).then_some(Command::Unlink(rules))
    }

    /// Marks every rule that overlaps a region dead and returns those. Exact for rules whose coming
    /// was reported: read the reports first.
    pub fn kill(&mut self, areas: &Areas) -> Vec<u32> {
        let (store, mut dead) = (&self.store, Vec::new());
        self.index.overlapping(store, areas, &mut |i| {
            if store.kill(i, store.payload(i)) {
                dead.push(i);
            }
        });
        dead
    }

    /// Marks every rule with stale effects dead and returns those. Exact as [`Flows::kill`] is.
    pub fn kill_stale(&mut self, stale: &Stale) -> Vec<u32> {
        let cold = self.cold.iter().enumerate();
        let effects = cold.filter_map(|(i, c)| Some((i as u32, c.as_ref()?.effects.as_ref()?)));
        let found = effects.filter(|(_, e)| stale(&***e)).map(|(i, _)| i);
        found.filter(|i| self.store.kill(*i, self.store.payload(*i))).collect()
    }

    /// Rules unused since `before_ms` among the next `part` in a thousand.
    pub fn idle(&mut self, before_ms: u64, part: u64) -> Vec<u32> {
        let n = self.cold.len();
        let end = (self.hand + 1 + n * part.min(1000) as usize / 1000).min(n);
        let old = (self.hand..end).filter(|i| {
            let used = self.store.counters(*i as u32).used_ms.load(Ordering::Relaxed);
            used < before_ms && self.cold[*i].as_ref().is_some_and(|c| !c.leaving)
        });
        let old = old.map(|i| i as u32).collect();
        self.hand = if end == n { 0 } else { end };
        old
    }

    /// Every rule.
    pub fn all(&self) -> Vec<u32> {
        (0..self.cold.len() as u32).filter(|i| self.cold[*i as usize].is_some()).collect()
    }

    /// What was used since the last call.
    pub fn collect(&mut self, each: &mut dyn FnMut(Used<'_>)) {
        for c in self.past.drain(..) {
            each(Used {
                credits: &c.credits,
                effects: c.effects.as_ref(),
                packets: c.packets,
                bytes: c.bytes,
                used_ms: c.used_ms,
            });
        }
        for (i, cold) in self.cold.iter_mut().enumerate() {
            let Some(cold) = cold else { continue };
            if let Some((packets, bytes, used_ms)) = delta(&self.store, i as u32, cold) {
                let (credits, effects) = (&*cold.credits, cold.effects.as_ref());
                each(Used { credits, effects, packets, bytes, used_ms });
            }
        }
    }

    /// Every rule, for people.
    pub fn dump(&self, worker: WorkerId, out: &mut Vec<FlowDump>) {
        for (i, cold) in self.cold.iter().enumerate() {
            if cold.is_none() {
                continue;
            }
            let (i, o) = (i as u32, Ordering::Relaxed);
            let payload = self.store.payload(i);
            let words = self.store.mask(payload.mask());
            let (mut key, mut mask) = (Key::ZERO, Key::ZERO);
            key.words[..32].copy_from_slice(&self.store.key_words(i, &words));
            mask.words[..32].copy_from_slice(&words);
            let c = self.store.counters(i);
            out.push(FlowDump {
                worker,
                key,
                mask,
                ops: self.programs.get(payload.program() as usize).cloned().unwrap_or_default(),
                packets: c.packets.load(o),
                bytes: c.bytes.load(o),
                used_ms: c.used_ms.load(o),
                dead: payload.0 & DEAD != 0,
            });
        }
    }
}

/// Traffic of a rule since it was last asked.
fn delta(store: &Store, idx: u32, cold: &mut Cold) -> Option<(u64, u64, u64)> {
    let (c, o) = (store.counters(idx), Ordering::Relaxed);
    let (packets, bytes) = (c.packets.load(o), c.bytes.load(o));
    let d = (packets - cold.packets, bytes - cold.bytes);
    (cold.packets, cold.bytes) = (packets, bytes);
    (d != (0, 0)).then(|| (d.0, d.1, c.used_ms.load(o)))
}
