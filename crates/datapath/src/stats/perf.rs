//! Statistics of single iterations of a PMD thread (`pmd-perf-metrics`): histograms, the last
//! thousand iterations and milliseconds, and iterations that took suspiciously long.
//!
//! The worker writes these while they are switched on. The control side may read at any time:
//! numbers that belong together may then be of neighbouring iterations.

use crate::stats::clock::{cycles_per_second, now_ms};
use crate::stats::counters::Count;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bins of a histogram; the last one has no upper edge.
pub const BINS: usize = 32;
/// Number of iterations, and of milliseconds, that are kept.
pub const HISTORY: usize = 1000;

/// One iteration, or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// The iteration's number; for a sum over a millisecond, the time by [`now_ms`].
    pub stamp: u64,
    /// Number of iterations.
    pub iterations: u64,
    /// Cycles, without sleep.
    pub cycles: u64,
    /// Cycles of iterations with packets.
    pub busy_cycles: u64,
    /// Packets received.
    pub packets: u64,
    /// Bursts received.
    pub bursts: u64,
    /// Packets that the pipeline decided about.
    pub misses: u64,
    /// Cycles that these misses took.
    pub miss_cycles: u64,
}

impl Iteration {
    fn words(&self) -> [u64; 8] {
        let [a, b] = [[self.stamp, self.iterations], [self.cycles, self.busy_cycles]];
        let [c, d] = [[self.packets, self.bursts], [self.misses, self.miss_cycles]];
        [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
    }

    fn from_words(w: [u64; 8]) -> Self {
        let [stamp, iterations, cycles, busy_cycles, packets, bursts, misses, miss_cycles] = w;
        Self { stamp, iterations, cycles, busy_cycles, packets, bursts, misses, miss_cycles }
    }

    fn add(&mut self, one: &Iteration) {
        self.iterations += one.iterations;
        self.cycles += one.cycles;
        self.busy_cycles += one.busy_cycles;
        self.packets += one.packets;
        self.bursts += one.bursts;
        self.misses += one.misses;
        self.miss_cycles += one.miss_cycles;
    }
}

/// The quantities that have histograms, in the order of `pmd-perf-show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Cycles of an iteration.
    Cycles,
    /// Packets of an iteration.
    Packets,
    /// Cycles per packet of an iteration with packets.
    PacketCycles,
    /// Packets of a received burst.
    Burst,
    /// Fill of a guest's ring, which is not measured.
    RingFill,
    /// Misses of an iteration.
    Misses,
    /// Cycles per miss of an iteration with misses.
    MissCycles,
}

impl Of {
    const ALL: [Of; 7] = [
        Of::Cycles,
        Of::Packets,
        Of::PacketCycles,
        Of::Burst,
        Of::RingFill,
        Of::Misses,
        Of::MissCycles,
    ];

    /// Upper edges of the bins, as ovs-vswitchd has them.
    fn edges(self) -> [u32; BINS] {
        match self {
            Of::Cycles => logarithmic(500, 24_000_000),
            Of::Packets => logarithmic(0, 1000),
            Of::PacketCycles => linear(100, 30_000),
            Of::Burst => linear(0, 32),
            Of::RingFill => logarithmic(0, 512),
            Of::Misses => linear(0, 30),
            Of::MissCycles => logarithmic(1000, 1_000_000),
        }
    }
}

fn linear(min: u32, max: u32) -> [u32; BINS] {
    let edge = |i: usize| min + i as u32 * (max - min) / (BINS as u32 - 2);
    std::array::from_fn(|i| if i + 1 < BINS { edge(i) } else { u32::MAX })
}

/// Edges that grow by the same factor, but at least by 1. `min` 0 is an additional first edge.
fn logarithmic(min: u32, max: u32) -> [u32; BINS] {
    let mut edges = [0; BINS];
    let first = usize::from(min == 0);
    let (low, high) = (f64::from(min.max(1)).ln(), f64::from(max).ln());
    let steps = (BINS - 2 - first) as f64;
    let mut least = first as u32;
    for (i, edge) in edges[first..BINS - 1].iter_mut().enumerate() {
        *edge = least.max((low + i as f64 * (high - low) / steps).exp() as u32);
        least = *edge + 1;
    }
    edges[BINS - 2] = edges[BINS - 2].max(max);
    edges[BINS - 1] = u32::MAX;
    edges
}

/// A histogram: the upper edge of each bin, and its count.
pub type Histogram = [(u32, u64); BINS];

struct Bins {
    edges: [u32; BINS],
    counts: [Count; BINS],
}

impl Bins {
    fn add(&self, value: u64) {
        let bin = self.edges.iter().position(|e| value <= u64::from(*e)).unwrap_or(BINS - 1);
        self.counts[bin].add(1);
    }
}

/// A ring of the last samples.
struct History {
    samples: Box<[[AtomicU64; 8]]>,
    /// Number of samples that were ever stored.
    stored: AtomicU64,
}

impl Default for History {
    fn default() -> Self {
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        History { samples: (0..HISTORY).map(|_| empty()).collect(), stored: AtomicU64::new(0) }
    }
}

impl History {
    fn store(&self, one: &Iteration) {
        let n = self.stored.load(Ordering::Relaxed);
        for (to, w) in self.samples[n as usize % HISTORY].iter().zip(one.words()) {
            to.store(w, Ordering::Relaxed);
        }
        self.stored.store(n + 1, Ordering::Release);
    }

    /// The last `n` samples, latest first.
    fn last(&self, n: usize) -> Vec<Iteration> {
        let stored = self.stored.load(Ordering::Acquire);
        let read = |at: u64| {
            let words = &self.samples[at as usize % HISTORY];
            Iteration::from_words(std::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
        };
        (0..stored).rev().take(n.min(HISTORY)).map(read).collect()
    }

    fn clear(&self) {
        self.stored.store(0, Ordering::Release);
    }
}

/// A worker's statistics of its iterations.
pub(crate) struct Metrics {
    bins: [Bins; 7],
    iterations: History,
    milliseconds: History,
    total: [AtomicU64; 8],
    /// The control side sets this to have all statistics cleared.
    pub clear: AtomicBool,
}

impl Default for Metrics {
    fn default() -> Self {
        let bins = |of: Of| Bins { edges: of.edges(), counts: Default::default() };
        Metrics {
            bins: Of::ALL.map(bins),
            iterations: History::default(),
            milliseconds: History::default(),
            total: Default::default(),
            clear: AtomicBool::new(false),
        }
    }
}

impl Metrics {
    /// The histogram of one quantity.
    pub fn histogram(&self, of: Of) -> Histogram {
        let b = &self.bins[of as usize];
        std::array::from_fn(|i| (b.edges[i], b.counts[i].get()))
    }

    pub fn view(&self, iterations: usize, milliseconds: usize) -> MetricsView {
        let total = std::array::from_fn(|i| self.total[i].load(Ordering::Relaxed));
        MetricsView {
            histograms: Of::ALL.map(|of| self.histogram(of)),
            total: Iteration::from_words(total),
            iterations: self.iterations.last(iterations),
            milliseconds: self.milliseconds.last(milliseconds),
        }
    }

    fn begin_anew(&self) {
        self.bins.iter().flat_map(|b| &b.counts).for_each(Count::clear);
        self.total.iter().for_each(|w| w.store(0, Ordering::Relaxed));
        self.iterations.clear();
        self.milliseconds.clear();
    }
}

/// A worker's statistics of its iterations, at one time.
#[derive(Clone, Debug)]
pub struct MetricsView {
    /// In the order of `Of`.
    pub histograms: [Histogram; 7],
    /// The sum of all complete milliseconds.
    pub total: Iteration,
    /// The last iterations, latest first.
    pub iterations: Vec<Iteration>,
    /// The last milliseconds, latest first.
    pub milliseconds: Vec<Iteration>,
}

/// Which iterations are logged (`pmd-perf-log-set`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfLog {
    /// True if suspicious iterations are logged.
    pub on: bool,
    /// Number of iterations that are logged before a suspicious one.
    pub before: usize,
    /// Number of iterations that are logged after a suspicious one.
    pub after: usize,
    /// True: a suspicious iteration among those after another one prolongs the log.
    pub extend: bool,
    /// An iteration that takes longer than this is suspicious, microseconds.
    pub longest_us: u64,
    /// An iteration in which a guest's ring is fuller than this is suspicious. Not measured.
    pub ring_fill: u64,
}

impl Default for PerfLog {
    fn default() -> Self {
        PerfLog { on: false, before: 5, after: 5, extend: false, longest_us: 250, ring_fill: 128 }
    }
}

/// A suspicious iteration, and those around it.
#[derive(Debug)]
pub struct Suspicious {
    /// Number of the iteration.
    pub iteration: u64,
    /// Duration of the iteration, microseconds.
    pub us: u64,
    /// The iterations around it, latest first. Empty: the log of a later suspicious iteration has
    /// them.
    pub neighbours: Vec<Iteration>,
}

/// The worker's part of [`Metrics`].
#[derive(Default)]
pub(crate) struct Recorder {
    pub on: bool,
    pub log: PerfLog,
    /// The sum of the current millisecond.
    ms: Iteration,
    /// The suspicious iteration that is to be logged: its number, its cycles, the first and the
    /// last iteration to log.
    pending: Option<(u64, u64, u64, u64)>,
}

impl Recorder {
    /// Records an iteration that ended; `bursts`: the sizes of its received bursts.
    #[cold]
    pub fn record(
        &mut self,
        m: &Metrics,
        one: &Iteration,
        bursts: impl Iterator<Item = u64>,
    ) -> Option<Suspicious> {
        if m.clear.swap(false, Ordering::Relaxed) {
            m.begin_anew();
            (self.ms, self.pending) = (Iteration::default(), None);
        }
        let add = |of: Of, value: u64| m.bins[of as usize].add(value);
        add(Of::Cycles, one.cycles);
        add(Of::Packets, one.packets);
        add(Of::Misses, one.misses);
        add(Of::RingFill, 0);
        one.cycles.checked_div(one.packets).into_iter().for_each(|c| add(Of::PacketCycles, c));
        one.miss_cycles.checked_div(one.misses).into_iter().for_each(|c| add(Of::MissCycles, c));
        bursts.for_each(|n| add(Of::Burst, n));
        m.iterations.store(one);
        let now = now_ms();
        if self.ms.stamp != now {
            if self.ms.iterations > 0 {
                m.milliseconds.store(&self.ms);
                let mut total = Iteration::from_words(std::array::from_fn(|i| {
                    m.total[i].load(Ordering::Relaxed)
                }));
                total.add(&self.ms);
                m.total.iter().zip(total.words()).for_each(|(t, w)| t.store(w, Ordering::Relaxed));
            }
            self.ms = Iteration { stamp: now, ..Iteration::default() };
        }
        self.ms.add(one);
        self.suspect(m, one)
    }

    /// Returns a suspicious iteration that can be logged now.
    fn suspect(&mut self, m: &Metrics, one: &Iteration) -> Option<Suspicious> {
        if !self.log.on {
            return None;
        }
        let us = |cycles: u64| cycles * 1_000_000 / cycles_per_second();
        let (before, after) = (self.log.before as u64, self.log.after as u64);
        let mut logged = None;
        if us(one.cycles) > self.log.longest_us {
            match self.pending {
                None => {
                    let first = one.stamp.saturating_sub(before);
                    self.pending = Some((one.stamp, one.cycles, first, one.stamp + after));
                }
                Some((iteration, cycles, first, _)) if self.log.extend => {
                    let last = (one.stamp + after).min(first + HISTORY as u64 - 2);
                    self.pending = Some((one.stamp, one.cycles, first, last));
                    logged = Some(Suspicious { iteration, us: us(cycles), neighbours: Vec::new() });
                }
                _ => {}
            }
        }
        match self.pending {
            Some((iteration, cycles, first, last)) if one.stamp >= last && logged.is_none() => {
                self.pending = None;
                let neighbours = m.iterations.last((one.stamp - first + 1) as usize);
                Some(Suspicious { iteration, us: us(cycles), neighbours })
            }
            _ => logged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_those_of_ovs() {
        // As the installed ovs-vswitchd 3.1 prints them.
        assert_eq!(Of::Packets.edges()[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Of::Packets.edges()[30], 1000);
        assert_eq!(Of::Cycles.edges()[..3], [499, 716, 1025]);
        assert_eq!(Of::Cycles.edges()[30], 24_000_000);
        assert_eq!(Of::PacketCycles.edges()[..3], [100, 1096, 2093]);
        assert_eq!(Of::Burst.edges()[..3], [0, 1, 2]);
        for of in Of::ALL {
            assert!(of.edges().windows(2).all(|w| w[0] < w[1]), "{of:?}");
        }
    }

    fn iteration(stamp: u64, cycles: u64, packets: u64) -> Iteration {
        let busy_cycles = if packets > 0 { cycles } else { 0 };
        Iteration {
            stamp,
            iterations: 1,
            cycles,
            busy_cycles,
            packets,
            bursts: 1,
            ..Iteration::default()
        }
    }

    #[test]
    fn iterations_are_counted_and_remembered() {
        let (m, mut r) = (Metrics::default(), Recorder::default());
        for n in 1..=1500 {
            assert!(r.record(&m, &iteration(n, 600, n % 3), [n % 3].into_iter()).is_none());
        }
        let packets = m.histogram(Of::Packets);
        assert_eq!(packets[..4].iter().map(|b| b.1).collect::<Vec<_>>(), [500, 500, 500, 0]);
        assert_eq!(m.histogram(Of::Cycles)[1], (716, 1500));
        assert_eq!(m.histogram(Of::PacketCycles).iter().map(|b| b.1).sum::<u64>(), 1000);
        let view = m.view(2000, 2000);
        assert_eq!(view.iterations.len(), HISTORY);
        assert_eq!((view.iterations[0].stamp, view.iterations[999].stamp), (1500, 501));
        assert_eq!(
            view.milliseconds.iter().map(|m| m.iterations).sum::<u64>(),
            view.total.iterations
        );
        m.clear.store(true, Ordering::Relaxed);
        r.record(&m, &iteration(1501, 1, 0), [].into_iter());
        assert_eq!(m.view(9, 9).iterations.len(), 1);
        assert_eq!(m.histogram(Of::Cycles)[0].1, 1);
    }

    #[test]
    fn long_iterations_are_told_of_with_their_neighbours() {
        let (m, mut r) = (Metrics::default(), Recorder::default());
        r.log = PerfLog { on: true, before: 2, after: 3, ..PerfLog::default() };
        let long = cycles_per_second() / 1000;
        let run = |r: &mut Recorder, from: u64| -> Vec<(u64, Vec<u64>)> {
            let one = |n: u64| iteration(n, if n % 100 < 2 { long } else { 10 }, 1);
            let logged = (from..from + 100).filter_map(|n| r.record(&m, &one(n), [].into_iter()));
            logged.map(|s| (s.iteration, s.neighbours.iter().map(|i| i.stamp).collect())).collect()
        };
        run(&mut r, 50);
        assert_eq!(run(&mut r, 150), [(200, vec![203, 202, 201, 200, 199, 198])]);
        r.log.extend = true;
        let both = [(300, vec![]), (301, vec![304, 303, 302, 301, 300, 299, 298])];
        assert_eq!(run(&mut r, 250), both);
        r.log.on = false;
        assert!(run(&mut r, 350).is_empty());
    }
}
