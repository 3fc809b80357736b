//! Decides whether the CPU or an engine makes the next copies, where no threshold is configured, by
//! the measured costs of both.
//!
//! A ring measures the CPU: of [`BURSTS_PER_SAMPLE`] bursts one is copied by the CPU and timed. A
//! thread measures its engine: of [`ITERATIONS_PER_SAMPLE`] iterations the engine's work in one is
//! timed. A frame is left to the engine from the length at which both cost the same, the ring's
//! *floor*. An iteration rings the doorbell if its copies together save more cycles than the
//! doorbell costs.

use crate::seat::Seat;
use std::sync::atomic::Ordering;

/// Bursts of a ring of which one is copied by the CPU and timed. That costs at most a 61st of what
/// the engine saves. A prime number, so that it does not coincide with a period of the traffic.
const BURSTS_PER_SAMPLE: u32 = 61;
/// Iterations of a thread of which one is timed.
const ITERATIONS_PER_SAMPLE: u32 = 61;
/// Fewest bytes of a burst from which the cost of copies is measured: with fewer, the stores are
/// still in the core's store buffer (some 64 entries) when the clock is read.
const SAMPLE_BYTES_MIN: u64 = 4096;
/// A frame is left to an engine only if it has more bytes than this.
const FLOOR_BYTES_MIN: usize = 128;
/// Cycles of a sample for a packet of no bytes, to a guest and from a guest, which are not copying:
/// `bench/micro/vhost/ring.rs` has 49 and 36 for 256 bytes, 113 and 102 for 1,500.
const PACKET_CYCLES: [f32; 2] = [40.0, 25.0];
/// Least plausible cycles for a byte: one load and one store of 32 bytes in a cycle.
const BYTE_CYCLES_MIN: f32 = 0.03;
/// A new measurement moves the mean by its difference divided by this.
const SMOOTHING: f32 = 8.0;
/// A measurement counts as at most this many times the mean: a higher one means that the thread was
/// interrupted meanwhile.
const OUTLIER: f32 = 4.0;
/// An engine has to cost less than the CPU by this factor.
const MARGIN: f32 = 1.125;
/// Cycles assumed until they are measured: to list a copy and give it to the engine, to settle it
/// when complete, and for a doorbell.
const LIST_CYCLES_UNMEASURED: f32 = 80.0;
const COMPLETE_CYCLES_UNMEASURED: f32 = 30.0;
const DOORBELL_CYCLES_UNMEASURED: f32 = 300.0;
/// Cycles (some 40 microseconds) after which an engine with copies in flight counts as late. An
/// engine of 30 GB/s has then more than a megabyte in flight.
const LATE_CYCLES: u64 = 100_000;

/// A mean of measurements, in which each counts less the older it is.
#[derive(Clone, Copy, Debug)]
struct Mean(f32);

impl Mean {
    fn add(&mut self, new: f32) {
        self.0 += (new.min(self.0 * OUTLIER) - self.0) / SMOOTHING;
    }
}

/// A burst that the CPU copied: its packets, their bytes, and cycles of the whole call.
pub(crate) struct Timed {
    pub packets: f32,
    pub bytes: u64,
    pub cycles: u64,
}

/// What the CPU's copies to or from a guest cost.
#[derive(Default)]
pub(crate) struct RingCost {
    /// Cycles for a byte; None: not measured yet.
    byte: Option<Mean>,
    /// 0 to the guest, 1 from it.
    direction: usize,
    bursts: u32,
    /// The burst is a sample: the CPU copies it and is timed.
    pub samples: bool,
    /// Frames of the burst with more bytes than this are listed.
    pub limit: usize,
}

impl RingCost {
    /// A burst of ring `ring` begins. `set` is the configured threshold, if there is one.
    #[inline]
    pub fn begin(&mut self, ring: usize, set: Option<usize>, engine: &EngineCost) {
        self.direction = ring % 2;
        self.bursts = self.bursts.wrapping_add(1);
        self.samples = set.is_none() && self.bursts.is_multiple_of(BURSTS_PER_SAMPLE);
        self.limit = match set {
            Some(bytes) => bytes,
            None if engine.pays && !self.samples => self.floor(engine),
            None => usize::MAX,
        };
    }

    /// Length of the longest frame that the CPU copies for less than the engine; every length
    /// before a measurement.
    #[inline]
    pub fn floor(&self, engine: &EngineCost) -> usize {
        let Some(byte) = self.byte else { return usize::MAX };
        let more = engine.copy_cycles(self.direction) * MARGIN - PACKET_CYCLES[self.direction];
        ((more / byte.0) as usize).max(FLOOR_BYTES_MIN)
    }

    /// The CPU copied a burst.
    pub fn measured(&mut self, burst: &Timed) {
        if burst.bytes < SAMPLE_BYTES_MIN {
            return;
        }
        let cycles = burst.cycles as f32 - PACKET_CYCLES[self.direction] * burst.packets;
        let new = (cycles / burst.bytes as f32).max(BYTE_CYCLES_MIN);
        self.byte.get_or_insert(Mean(new)).add(new);
    }

    /// Cycles that an engine saves with frames of these lengths, without doorbells, and the length
    /// of the longest.
    #[inline]
    pub fn saved(&self, engine: &EngineCost, lens: impl Iterator<Item = usize>) -> (f32, usize) {
        let floor = self.floor(engine);
        let (bytes, longest) = lens.fold((0, 0), |(bytes, longest): (usize, usize), len| {
            (bytes + len.saturating_sub(floor), longest.max(len))
        });
        (self.byte.map_or(0.0, |byte| byte.0 * bytes as f32), longest)
    }
}

/// What a thread's engine costs, and whether its doorbell is worthwhile in this iteration.
pub(crate) struct EngineCost {
    /// Cycles to give a copy to the engine, to a guest and from a guest.
    list: [Mean; 2],
    /// Cycles to settle a complete copy.
    complete: Mean,
    doorbell: Mean,
    iterations: u32,
    /// The engine's work in this iteration is timed.
    pub timed: bool,
    /// Cycles that the engine saves, or would save, with this iteration's copies; None: the
    /// iteration has no packets.
    saved: Option<f32>,
    /// Cycles that the engine is expected to save in the next iteration that has packets.
    expected: f32,
    /// Frames above a ring's floor are for the engine in this iteration.
    pays: bool,
    /// Copies given to the engine since it was made.
    handed_over: u64,
    /// While copies are in flight: the value of `handed_over` at an earlier time, and that time.
    /// Not all of these copies are complete.
    mark: Option<(u64, u64)>,
}

impl Default for EngineCost {
    fn default() -> Self {
        EngineCost {
            list: [Mean(LIST_CYCLES_UNMEASURED); 2],
            complete: Mean(COMPLETE_CYCLES_UNMEASURED),
            doorbell: Mean(DOORBELL_CYCLES_UNMEASURED),
            iterations: 0,
            timed: false,
            saved: None,
            expected: 0.0,
            pays: false,
            handed_over: 0,
            mark: None,
        }
    }
}

impl EngineCost {
    /// Cycles for a copy to a guest (0) or from one (1): to list it, give it to the engine and
    /// settle it.
    #[inline]
    pub fn copy_cycles(&self, direction: usize) -> f32 {
        self.list[direction].0 + self.complete.0
    }

    /// The engine saves, or would save, this many cycles of this iteration, which has packets.
    #[inline]
    pub fn save(&mut self, cycles: f32) {
        self.saved = Some(self.saved.unwrap_or(0.0) + cycles);
    }

    /// The engine accepted `n` copies.
    #[inline]
    pub fn handed_over(&mut self, n: usize) {
        self.handed_over += n as u64;
    }

    /// A call on the ring that `ring` describes took `cycles` to list `n` copies and give them to
    /// the engine.
    pub fn listed(&mut self, ring: &RingCost, n: usize, cycles: u64) {
        self.list[ring.direction].add(cycles as f32 / n as f32);
    }

    /// Takes note that settling `n` complete copies took `cycles`.
    pub fn completed(&mut self, n: usize, cycles: u64) {
        if n > 0 {
            self.complete.add(cycles as f32 / n as f32);
        }
    }

    /// A doorbell took `cycles`.
    pub fn rang(&mut self, cycles: u64) {
        self.doorbell.add(cycles as f32);
    }

    /// An iteration begins with `in_flight` copies in flight, at the time that `clock` returns. The
    /// expected saving of the iteration is that of the iterations before it. An engine that is late
    /// gets no more copies, as packets behind them wait for them.
    pub fn begin_iteration(&mut self, in_flight: usize, clock: impl Fn() -> u64) {
        self.iterations = self.iterations.wrapping_add(1);
        self.timed = self.iterations.is_multiple_of(ITERATIONS_PER_SAMPLE);
        let is_late = in_flight > 0 && self.is_late(in_flight as u64, clock());
        if in_flight == 0 {
            self.mark = None;
        }
        self.pays = self.expected > self.doorbell.0 && !is_late;
    }

    fn is_late(&mut self, in_flight: u64, now: u64) -> bool {
        let made = self.handed_over.saturating_sub(in_flight);
        let mark = self.mark.filter(|(handed_over, _)| made < *handed_over);
        let (_, began) = *self.mark.insert(mark.unwrap_or((self.handed_over, now)));
        now.saturating_sub(began) > LATE_CYCLES
    }

    /// An iteration ends: updates the mean saving of an iteration.
    pub fn end_iteration(&mut self) {
        if let Some(saved) = self.saved.take() {
            self.expected = saved.max(self.expected / 2.0);
        }
    }

    /// Writes the costs to `seat`, where the control side reads them.
    pub fn publish(&self, seat: &Seat) {
        for (to, shown) in seat.copy_cycles.iter().enumerate() {
            shown.store(self.copy_cycles(to) as u32, Ordering::Relaxed);
        }
        seat.doorbell_cycles.store(self.doorbell.0 as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(packets: u16, bytes: u64, cycles: u64) -> Timed {
        Timed { packets: packets.into(), bytes, cycles }
    }

    /// A ring whose bytes cost a quarter of a cycle.
    fn ring() -> RingCost {
        let mut ring = RingCost::default();
        ring.measured(&burst(100, 40_000, 14_000));
        ring
    }

    /// An engine behind an iteration that saved so much.
    fn engine(saved: f32) -> EngineCost {
        let mut engine = EngineCost::default();
        engine.save(saved);
        engine.end_iteration();
        engine.begin_iteration(0, || 0);
        engine
    }

    #[test]
    fn a_threshold_that_was_set_is_the_limit_of_every_burst() {
        let (mut ring, engine) = (ring(), engine(0.0));
        for _ in 0..2 * BURSTS_PER_SAMPLE {
            ring.begin(1, Some(700), &engine);
            assert_eq!((ring.limit, ring.samples), (700, false));
        }
    }

    #[test]
    fn one_burst_of_a_row_is_a_sample() {
        let (mut ring, engine) = (ring(), engine(1e6));
        let samples = (0..10 * BURSTS_PER_SAMPLE).filter(|_| {
            ring.begin(0, None, &engine);
            assert_eq!(ring.limit == usize::MAX, ring.samples, "the CPU copies a sample");
            ring.samples
        });
        assert_eq!(samples.count(), 10);
        // What a ring costs that was never measured is not known: the CPU copies.
        let mut ring = RingCost::default();
        ring.begin(0, None, &engine);
        assert_eq!(ring.limit, usize::MAX);
    }

    #[test]
    fn the_floor_is_where_both_cost_the_same() {
        let (mut ring, mut engine) = (ring(), engine(1e6));
        // 110 cycles for a copy by the engine, an eighth more, less 40; at four bytes for a cycle.
        assert_eq!(ring.floor(&engine), 335);
        ring.begin(0, None, &engine);
        assert_eq!(ring.limit, 335);
        let saved = ring.saved(&engine, [64, 335, 1335, 1335].into_iter());
        assert_eq!(saved, (500.0, 1335));
        // The engine becomes dearer, by measurement; an outlier changes little, the other direction
        // nothing.
        (0..99).for_each(|_| engine.listed(&ring, 10, 1800));
        engine.listed(&ring, 1, 100_000);
        let floor = ring.floor(&engine);
        assert!((780..1220).contains(&floor), "{floor}");
        ring.begin(1, None, &engine);
        assert_eq!(ring.floor(&engine), 395);
        // Short bursts say nothing.
        ring.measured(&burst(1, SAMPLE_BYTES_MIN - 1, 1_000_000));
        assert_eq!(ring.floor(&engine), 395);
        // Guests far away: bytes cost more.
        (0..99).for_each(|_| ring.measured(&burst(10, 10_000, 10_200)));
        assert_eq!(ring.floor(&engine), FLOOR_BYTES_MIN);
    }

    #[test]
    fn an_iteration_that_saves_less_than_a_doorbell_is_left_to_the_cpu() {
        let mut ring = ring();
        for (saved, pays) in [(0.0, false), (299.0, false), (301.0, true)] {
            ring.begin(0, None, &engine(saved));
            assert_eq!(ring.limit != usize::MAX, pays, "{saved}");
        }
        // Iterations without packets do not matter, several with few do.
        let mut engine = engine(1000.0);
        let pays = [None, Some(10.0), Some(10.0), Some(10.0)].map(|saved| {
            saved.into_iter().for_each(|saved| engine.save(saved));
            engine.end_iteration();
            engine.begin_iteration(0, || 0);
            engine.pays
        });
        assert_eq!(pays, [true, true, false, false]);
    }

    #[test]
    fn an_engine_that_is_late_gets_no_more() {
        let mut engine = engine(1e6);
        let mut iteration = |handed_over, in_flight, now| {
            engine.handed_over(handed_over);
            engine.save(1e6);
            engine.end_iteration();
            engine.begin_iteration(in_flight, || now);
            engine.pays
        };
        assert!(iteration(10, 10, 1));
        assert!(
            iteration(10, 11, LATE_CYCLES + 1),
            "the first ten have had no longer than they may"
        );
        assert!(!iteration(10, 21, LATE_CYCLES + 2), "one of them is late");
        assert!(iteration(0, 19, LATE_CYCLES + 3), "they are made");
        assert!(iteration(0, 1, 2 * LATE_CYCLES));
        assert!(!iteration(0, 1, 9 * LATE_CYCLES), "the last one is late");
        assert!(iteration(0, 0, 9 * LATE_CYCLES));
        assert!(iteration(10, 10, 20 * LATE_CYCLES));
    }
}
