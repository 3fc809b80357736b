//! Where a worker's cycles go: to stages, to receive queues, to iterations.

use super::Worker;
use crate::messages::Report;
use crate::stats::perf::{Iteration, Recorder};
use crate::stats::stage_clock::StageClock;
use packet::BURST;

/// Measurements of a worker's iterations, in cycles.
#[derive(Default)]
pub(crate) struct IterationCycles {
    /// Records single iterations (`pmd-perf-metrics`).
    pub recorder: Recorder,
    /// Divides the cycles of iterations among stages.
    pub clock: StageClock,
    /// Cycle at which the last iteration, or the sleep after it, ended.
    pub ended: u64,
}

impl Worker {
    /// Counts an iteration with `n` packets that began at cycle `began`. `between`: the cycles at
    /// which receiving and lookup ended, if they were measured.
    pub(super) fn count_cycles(&mut self, n: usize, began: u64, between: Option<(u64, u64)>) {
        let ended = self.cycles.ended;
        let [rx, lookup, act] = self.cycles.clock.divide(began, between, ended);
        let perf = &self.shared.perf;
        let (claimed, parsing) = self.parser.take_counts();
        // The thread may have lost its core while a sampled vector was parsed.
        let parsing = parsing.min(rx);
        perf.claimed.add(claimed);
        perf.passes.add(n as u64);
        perf.vectors.add(1);
        perf.rx_cycles.add(rx - parsing);
        perf.parse_cycles.add(parsing);
        perf.lookup_cycles.add(lookup);
        perf.act_cycles.add(act);
        perf.busy_cycles.add(ended - began);
        let marks = self.marks.take_counts();
        perf.mark_hits.add(marks.hits);
        perf.mark_stale.add(marks.stale);
        perf.mark_wrong.add(marks.wrong);
        let counts = self.lookup.table.take_counts();
        perf.cache_hits.add(counts.cache_hits);
        perf.flow_hits.add(counts.flow_hits);
        perf.subtable_lookups.add(counts.visits);
        // The receive queues that filled the vector are charged. The penalty is not theirs: the
        // peers of other queues caused it, and those queues are charged (`Worker::housekeeping`).
        self.rx.charge((ended - began).saturating_sub(port::take_penalty()));
    }

    /// Counts an iteration without packets that began at cycle `began`.
    pub(super) fn count_idle_cycles(&mut self, began: u64) {
        // Reading nothing but ring errors or refused frames is work, too: it counts as busy.
        let (perf, all) = (&self.shared.perf, self.cycles.ended - began);
        let lost = (port::take_penalty() + self.rx.charge_refused()).min(all);
        perf.idle_iterations.add(1);
        perf.idle_cycles.add(all - lost);
        perf.busy_cycles.add(lost);
    }

    /// Records an iteration that began at cycle `began` and had `n` packets. `misses`: the worker's
    /// misses and cycles of misses up to then.
    #[cold]
    pub(super) fn record(&mut self, n: usize, began: u64, misses: (u64, u64)) {
        let perf = &self.shared.perf;
        let cycles = self.cycles.ended - began;
        let polled = &self.rx.polled;
        let fresh: usize = polled.iter().map(|p| p.packets).sum();
        let bursts = |n: usize| n.div_ceil(BURST);
        let one = Iteration {
            stamp: perf.iterations.get(),
            iterations: 1,
            cycles,
            busy_cycles: if n > 0 { cycles } else { 0 },
            packets: fresh as u64,
            bursts: polled.iter().map(|p| bursts(p.packets) as u64).sum(),
            misses: perf.misses.get() - misses.0,
            miss_cycles: perf.miss_cycles.get() - misses.1,
        };
        let fill = |n: usize| (0..bursts(n)).map(move |i| (n - i * BURST).min(BURST) as u64);
        let all = polled.iter().flat_map(|p| fill(p.packets));
        if let Some(one) = self.cycles.recorder.record(&self.shared.metrics, &one, all) {
            self.reports.send(Report::Suspicious(Box::new(one)));
        }
    }
}
