//! The misses step: the pipeline decides about packets without a megaflow, in order; most decisions
//! are stored as megaflows.

mod costly;
pub(crate) mod direct;
pub(crate) mod policy;
#[cfg(test)]
mod policy_tests;
pub(crate) mod rates;
mod resolve_batch;
mod resolve_costly;
pub(crate) mod seen_flows;
pub(crate) mod uncached_stats;

use crate::actions::program::Programs;
use crate::batch::Batch;
use crate::batch::keys::Words;
use crate::lookup::Lookup;
use crate::lookup::predictor::PREDICTIONS_MAX;
use crate::lookup::table::{Admission, INDICES_AT_ONCE_MAX, InsertPosition, Table};
use crate::messages::{Report, Shared};
use crate::miss::costly::CostlyPorts;
use crate::miss::rates::{FULL_TABLE_FLOWS_RATIO, RESOLVE_PACKETS_MAX};
use crate::miss::resolve_batch::ResolveBatch;
use crate::miss::uncached_stats::UncachedStats;
use crate::report::Reports;
use crate::settings::Settings;
use crate::stats::clock::cycles;
use action::{Decision, Pipeline, Request};
use flow::{Key, at, flag};
use packet::{Packet, VECTOR};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sync::{Guard, Reader};

/// The words of a key that packets have; the others are the pipeline's own.
fn packet_words(key: &Key) -> &Words {
    key.words.first_chunk().expect("a key has more")
}

/// The Geneve options of a packet that was just decapsulated: they are still in front of it.
fn options_of<'p>(packet: &'p Packet, key: &Key) -> &'p [u8] {
    match (key.u8(at::FLAGS) & flag::TUNNEL_OPTIONS, key.u32(at::RECIRC)) {
        (0, _) | (_, 1..) => &[],
        _ => packet.before(4 * usize::from(key.u8(at::TUN_OPTION_WORDS))),
    }
}

/// What resolving the misses of one vector reads and changes.
pub(crate) struct Scope<'a> {
    pub batch: &'a mut Batch,
    pub table: &'a mut Table,
    pub programs: &'a mut Programs,
    pub reports: &'a mut Reports,
    pub now_ms: u64,
    /// The reader's guard, for the pipeline's reads of published tables.
    pub guard: Guard<'a>,
}

impl Scope<'_> {
    /// The pipeline's request about packet `i`, which has this key.
    fn request<'p>(&'p self, key: &'p Key, i: usize) -> Request<'p> {
        let packet = &self.batch.packets[i];
        Request { key, options: options_of(packet, key), packet: packet.data() }
    }
}

/// Resolves the misses of a worker.
pub(crate) struct Misses {
    pipeline: Arc<dyn Pipeline>,
    shared: Arc<Shared>,
    /// Packets about which the pipeline is asked with masks, so that its decisions may be stored.
    whole_batch: Option<Box<ResolveBatch>>,
    /// Packets of ports in direct mode, about which the pipeline is asked without masks.
    direct_batch: Option<Box<ResolveBatch>>,
    /// Traffic of decisions that were not stored, for the control side.
    pub uncached: UncachedStats,
    /// Programs of decisions that are used for one packet of this vector and not stored.
    once_programs: Vec<u32>,
    /// Misses that may be resolved per vector; packets beyond wait for the next one.
    budget: usize,
    /// Misses that may still be resolved in this vector.
    left: usize,
    /// Megaflows that the table may have: this worker's share of the flow limit.
    limit: u32,
    /// Number of decisions so far: when the table is full, one of [`FULL_TABLE_FLOWS_RATIO`] is
    /// stored.
    missed: u32,
    /// Compare the pipeline's decisions in direct mode with those that it makes with masks.
    validate: bool,
    /// Ports whose misses take long.
    pub costly: CostlyPorts,
    /// Narrow each megaflow to one key (`debug`).
    exact: bool,
    /// Report missed packets to the control side (`debug`).
    report: bool,
}

impl Misses {
    pub fn new(pipeline: Arc<dyn Pipeline>, shared: Arc<Shared>) -> Self {
        Misses {
            pipeline,
            shared,
            whole_batch: Some(Box::default()),
            direct_batch: Some(Box::default()),
            uncached: UncachedStats::default(),
            once_programs: Vec::new(),
            budget: VECTOR,
            left: VECTOR,
            limit: u32::MAX,
            missed: 0,
            validate: false,
            costly: CostlyPorts::default(),
            exact: false,
            report: false,
        }
    }

    /// Takes over new settings.
    pub fn configure(&mut self, s: &Settings) {
        self.budget = s.miss_budget.max(1);
        self.validate = s.validate;
        (self.exact, self.report) = (s.debug.exact_megaflows, s.debug.report_misses);
    }

    /// Takes over this worker's share of the flow limit.
    pub fn take_limit(&mut self, table: &Table) {
        let part = self.shared.limit.load(Ordering::Relaxed);
        self.limit = part.min(table.store.capacity() as u32);
    }

    /// Begins a vector with the whole budget.
    #[inline]
    pub fn begin(&mut self) {
        self.left = self.budget;
    }

    /// Gives each missed packet a program: first those of ports in direct mode, then the others, in
    /// order. Packets beyond the budget are postponed.
    #[inline]
    pub fn resolve(
        &mut self,
        batch: &mut Batch,
        lookup: &mut Lookup,
        programs: &mut Programs,
        reports: &mut Reports,
        now_ms: u64,
        reader: &Reader,
    ) {
        if !lookup.missed.is_empty() {
            let Lookup { table, missed, .. } = lookup;
            let guard = reader.pin();
            self.resolve_missed(Scope { batch, table, programs, reports, now_ms, guard }, missed);
        }
    }

    fn resolve_missed(&mut self, mut v: Scope<'_>, missed: &mut Vec<u8>) {
        let (start, v) = (cycles(), &mut v);
        let (before, mut postponed) = (self.left, [false; VECTOR]);
        if !self.costly.is_empty() {
            self.resolve_costly(v, missed, &mut postponed);
        }
        let direct = if v.table.any_port.direct { self.resolve_direct(v, missed) } else { 0 };
        self.left -= direct;
        if !missed.is_empty() {
            self.left = self.resolve_all(v, missed, self.left, &mut postponed);
        }
        if self.left == 0 || !self.costly.is_empty() {
            v.batch.postpone(&postponed);
        }
        let (misses, cycles_spent) = ((before - self.left) as u64, cycles() - start);
        v.table.count_misses(misses, cycles_spent);
        let perf = v.reports.perf();
        perf.misses.add(misses);
        perf.direct.add(direct as u64);
        perf.miss_cycles.add(cycles_spent);
    }

    /// Decides about missed packets in order, at most `left`; the others are postponed. Returns
    /// what is left of the budget.
    fn resolve_all(
        &mut self,
        v: &mut Scope<'_>,
        todo: &[u8],
        mut left: usize,
        postponed: &mut [bool; VECTOR],
    ) -> usize {
        // Packets are looked up again in the subtables that got megaflows during this vector,
        // unless these are more than a prediction has: then asking the pipeline costs less.
        let (mut filled, mut filled_count) = ([0; PREDICTIONS_MAX + 1], 0);
        let mut asked = self.whole_batch.take().unwrap_or_default();
        let mut todo = todo.iter().map(|n| usize::from(*n)).peekable();
        // One packet at first, then two, then four: the megaflow of the first packets often covers
        // those behind them.
        let mut at_once = 1;
        while todo.peek().is_some() {
            asked.len = 0;
            while asked.len < at_once
                && let Some(i) = todo.next_if(|i| !asked.has(&v.batch.keys.line.0[*i]))
            {
                if left == 0 || self.is_costly(v, i) {
                    postponed[i] = true;
                } else if filled_count > PREDICTIONS_MAX
                    || !is_in_filled(v, i, &filled[..filled_count])
                {
                    left -= 1;
                    asked.add(i, &v.batch.keys.get(i));
                }
            }
            at_once = (at_once * 2).min(RESOLVE_PACKETS_MAX);
            if asked.len > 0 {
                self.ask(v, &mut asked);
            }
            for n in 0..asked.len {
                if let Some(subtable) = self.apply_decision(v, &mut asked, n)
                    && filled_count <= PREDICTIONS_MAX
                    && !filled[..filled_count].contains(&subtable)
                {
                    filled[filled_count] = subtable;
                    filled_count += 1;
                }
            }
        }
        self.whole_batch = Some(asked);
        left
    }

    /// Asks the pipeline about the packets of the batch, charges their ports, and prefetches what
    /// storing the decisions reads.
    fn ask(&mut self, v: &mut Scope<'_>, asked: &mut ResolveBatch) {
        let ResolveBatch { len, packets, keys, decisions, positions, .. } = asked;
        decisions[..*len].iter_mut().for_each(Decision::clear);
        let requests: [Request<'_>; RESOLVE_PACKETS_MAX] =
            std::array::from_fn(|a| v.request(&keys[a], packets[a.min(*len - 1)]));
        self.pipeline.resolve_all(v.guard, &requests[..*len], &mut decisions[..*len]);
        if self.exact || self.report {
            self.apply_debug_settings(v.reports, &keys[..*len], &mut decisions[..*len]);
        }
        for ((key, d), position) in keys.iter().zip(&*decisions).zip(positions).take(*len) {
            *position = d
                .cacheable
                .then(|| v.table.insert_position(packet_words(key), packet_words(&d.mask)));
            position.iter().for_each(|s| v.table.prefetch(s));
        }
        self.charge(v, asked, asked.len);
    }

    /// Reports the missed packets while the ring has room, and narrows each decision to its
    /// packet's key, as the settings say.
    #[cold]
    fn apply_debug_settings(
        &self,
        reports: &mut Reports,
        keys: &[Key],
        decisions: &mut [Decision],
    ) {
        for (key, d) in keys.iter().zip(decisions) {
            if self.report && reports.room() > 0 {
                reports.send(Report::Missed(Box::new(*key)));
            }
            if self.exact {
                let exact = flow::exact_mask(key);
                d.mask.words.iter_mut().zip(exact.words).for_each(|(m, e)| *m |= e);
            }
        }
    }

    /// Gives packet `n` of the batch its decision, and stores the decision as a megaflow, unless
    /// the table has one for the packet already. Returns the subtable of a megaflow that was
    /// stored.
    fn apply_decision(
        &mut self,
        v: &mut Scope<'_>,
        asked: &mut ResolveBatch,
        n: usize,
    ) -> Option<usize> {
        let (i, d) = (asked.packets[n], &mut asked.decisions[n]);
        let keep_alive = d.keep_alive.take();
        let mut position = asked.positions[n].take();
        if position.as_ref().is_some_and(|s| !v.table.is_current(s)) {
            position =
                Some(v.table.insert_position(packet_words(&asked.keys[n]), packet_words(&d.mask)));
        }
        if let Some((megaflow, program)) = position.as_ref().and_then(|s| v.table.find_existing(s))
        {
            (v.batch.keys.megaflow[i], v.batch.keys.program[i]) = (megaflow, program);
            v.table.remember(&v.batch.keys.get(i), megaflow);
            return None;
        }
        let program = v.programs.intern(&d.ops, d.drop);
        v.batch.keys.program[i] = program;
        let position = position.filter(|s| self.is_admitted(v, s));
        let room = position.is_some() && announce_program(v, program) && v.reports.room() > 0;
        let position = position.filter(|_| room);
        let megaflow = position.as_ref().and_then(|s| v.table.install(s, program, self.limit));
        v.batch.keys.megaflow[i] = megaflow.unwrap_or(0);
        match megaflow {
            Some(idx) => {
                report_installed(v, idx, i, d);
                if let Some(what) = keep_alive {
                    v.reports.send(Report::KeepAlive(idx, what));
                }
                v.table.remember(&v.batch.keys.get(i), idx);
            }
            None => self.apply_once(v, i, program, d),
        }
        megaflow.and(position).map(|p| p.subtable)
    }

    /// True if the decision may be stored. With many new flows, only those that come a second time
    /// are. When the table is full, only one in [`FULL_TABLE_FLOWS_RATIO`] is: frequent flows get
    /// in, and flows that come once do not push each other out.
    fn is_admitted(&mut self, v: &mut Scope<'_>, position: &InsertPosition) -> bool {
        self.missed = self.missed.wrapping_add(1);
        let some = self.missed.is_multiple_of(FULL_TABLE_FLOWS_RATIO);
        let full = v.table.live + 4 * self.margin() > self.limit;
        match v.table.admit(position) {
            Admission::Unlimited | Admission::SeenBefore => !full || some,
            Admission::Unprobed => some,
            Admission::FirstSeen => false,
        }
    }

    /// Number of megaflows that are evicted together when the table is full.
    fn margin(&self) -> u32 {
        (self.limit / FULL_TABLE_FLOWS_RATIO).min(INDICES_AT_ONCE_MAX)
    }

    /// Applies a decision that is not stored: credits it, and marks its program to be released
    /// after the vector.
    fn apply_once(&mut self, v: &mut Scope<'_>, i: usize, program: u32, d: &mut Decision) {
        self.once_programs.push(program);
        v.reports.perf().not_installed.add(1);
        let bytes = v.batch.packets[i].len();
        self.uncached.credit(&d.credits, bytes as u64, v.now_ms);
        self.uncached.effects(v.batch.in_port[i], d.effects.take(), bytes);
    }

    /// Releases programs that were used once, unlinks dead megaflows, and evicts others if the
    /// table is full. Called after the last use of this vector's megaflow and program numbers.
    pub fn finish(
        &mut self,
        table: &mut Table,
        programs: &mut Programs,
        reports: &mut Reports,
        now_ms: u64,
    ) {
        for id in self.once_programs.drain(..) {
            programs.release(id);
        }
        let dead = table.take_dead();
        if !dead.is_empty() {
            unlink(table, programs, reports, dead);
        }
        // Megaflows are evicted before their indices are needed: an index comes back only after the
        // control thread folded its counters.
        let margin = self.margin();
        if table.live + margin > self.limit {
            for _ in 0..margin.max(1) {
                let Some(victim) = table.victim(now_ms) else { break };
                reports.perf().evicted.add(1);
                unlink(table, programs, reports, [victim]);
            }
        }
    }
}

/// Unlinks megaflows, and reports those that were linked to the control side.
pub(crate) fn unlink(
    table: &mut Table,
    programs: &mut Programs,
    reports: &mut Reports,
    megaflows: impl IntoIterator<Item = u32>,
) {
    for idx in megaflows {
        if let Some(program) = table.unlink(idx) {
            programs.release(program);
            reports.send(Report::Unlinked(idx));
        }
    }
}

/// True if a subtable that got megaflows during this vector has one for packet `i`.
fn is_in_filled(v: &mut Scope<'_>, i: usize, subtables: &[usize]) -> bool {
    let Some(found) = v.table.find_in(subtables, &v.batch.keys.get(i)) else { return false };
    (v.batch.keys.megaflow[i], v.batch.keys.program[i]) = found;
    true
}

/// Makes sure that the control side knows the operations of a program. False: the ring has no room.
fn announce_program(v: &mut Scope<'_>, program: u32) -> bool {
    if v.reports.room() == 0 {
        return false;
    }
    if let Some(ops) = v.programs.announce(program) {
        v.reports.send(Report::Program(program, ops));
    }
    true
}

/// Reports the megaflow that was stored for packet `i` to the control side.
fn report_installed(v: &mut Scope<'_>, idx: u32, i: usize, d: &mut Decision) {
    let (port, bytes) = (v.batch.in_port[i], v.batch.columns.len[i]);
    v.table.store.counters(idx).begin(bytes, v.now_ms);
    v.reports.perf().installed.add(1);
    let (credits, effects) = (d.credits.as_slice().into(), d.effects.take());
    v.reports.send(Report::Installed { idx, port, bytes, credits, effects });
}
