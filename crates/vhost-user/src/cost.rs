//! Whether the CPU or an engine makes the next copies, where no threshold is set: by what both cost,
//! as measured.
//!
//! A ring measures the CPU: of [`BURSTS_PER_SAMPLE`] bursts one is copied by the CPU under the clock.
//! A thread measures its engine: of [`TURNS_PER_SAMPLE`] turns one has the calls of the engine under
//! the clock. A copy is worth the engine from the length on at which both cost the same, the ring's
//! *floor*. A turn is worth a doorbell if its copies together save more cycles than that costs.

use crate::seat::Seat;
use std::sync::atomic::Ordering;

/// Bursts of a ring, of which one is copied by the CPU under the clock. It costs at most a 64th of
/// what the engine saves.
const BURSTS_PER_SAMPLE: u32 = 64;
/// Turns of a thread, of which one is under the clock.
const TURNS_PER_SAMPLE: u32 = 64;
/// Fewest bytes of a burst that say what a byte costs: with fewer, the stores are still in the
/// core's buffer (some 64 entries) when the clock is read.
const SAMPLE_BYTES_MIN: u64 = 4096;
/// Shortest frame, less one, that is left to an engine or listed for a sample. The cost of a copy
/// is taken as proportional to its length, which is wrong for short ones.
const FLOOR_BYTES_MIN: usize = 128;
/// Of a new measurement one part in so many is taken over.
const SMOOTHING: f32 = 8.0;
/// A measurement counts as at most so many times the mean: the thread was interrupted meanwhile.
const OUTLIER: f32 = 4.0;
/// Cycles that it costs to list a copy and to publish its buffer later, beside the engine's calls:
/// `bench/micro/vhost/ring.rs` shows 21 to 24 more than for copying at once.
const LIST_CYCLES: f32 = 24.0;
/// An engine has to cost less than the CPU by this factor.
const MARGIN: f32 = 1.125;
/// Cycles that are taken for true until they are measured: of a copy's way to an engine, of its way
/// back, of a doorbell.
const CYCLES_UNMEASURED: [f32; 3] = [30.0, 30.0, 300.0];

/// A mean of measurements, each of which counts less the older it is.
#[derive(Clone, Copy, Debug)]
struct Mean(f32);

impl Mean {
    fn add(&mut self, new: f32) {
        self.0 += (new.min(self.0 * OUTLIER) - self.0) / SMOOTHING;
    }
}

/// What the CPU's copies to or from a guest cost.
#[derive(Default)]
pub(crate) struct RingCost {
    /// Cycles for a byte; none yet.
    byte: Option<Mean>,
    bursts: u32,
    /// The burst is a sample: the CPU copies what is listed.
    pub samples: bool,
    /// Frames of more bytes are listed of the burst.
    pub limit: usize,
}

impl RingCost {
    /// A burst begins. `set` is the threshold that was set, if one was.
    #[inline]
    pub fn begin(&mut self, set: Option<usize>, engine: &EngineCost) {
        self.bursts = self.bursts.wrapping_add(1);
        self.samples = set.is_none() && self.bursts.is_multiple_of(BURSTS_PER_SAMPLE);
        self.limit = match set {
            Some(bytes) => bytes,
            None if self.samples => FLOOR_BYTES_MIN,
            None if engine.pays => self.floor(engine),
            None => usize::MAX,
        };
    }

    /// Longest frame that the CPU copies for less than the engine: all, as long as nothing is known.
    #[inline]
    pub fn floor(&self, engine: &EngineCost) -> usize {
        let Some(byte) = self.byte else { return usize::MAX };
        ((engine.copy_cycles() * MARGIN / byte.0) as usize).max(FLOOR_BYTES_MIN)
    }

    /// The CPU copied so many bytes in so many cycles.
    pub fn measured(&mut self, bytes: u64, cycles: u64) {
        if bytes < SAMPLE_BYTES_MIN {
            return;
        }
        let new = (cycles.max(1) as f32) / bytes as f32;
        self.byte.get_or_insert(Mean(new)).add(new);
    }

    /// Cycles that an engine saves with frames of these lengths, doorbells apart; and the length of
    /// the longest.
    #[inline]
    pub fn saved(&self, engine: &EngineCost, lens: impl Iterator<Item = usize>) -> (f32, usize) {
        let floor = self.floor(engine);
        let (bytes, longest) = lens.fold((0, 0), |(bytes, longest): (usize, usize), len| {
            (bytes + len.saturating_sub(floor), longest.max(len))
        });
        (self.byte.map_or(0.0, |byte| byte.0 * bytes as f32), longest)
    }
}

/// What a thread's engine costs, and whether it is worth its doorbell in this turn.
pub(crate) struct EngineCost {
    hand_over: Mean,
    complete: Mean,
    doorbell: Mean,
    turns: u32,
    /// This turn's calls of the engine are under the clock.
    pub timed: bool,
    /// Cycles that the engine saves with this turn's copies, or would save, if the turn had packets;
    /// and what is expected of the next turn that has.
    saved: Option<f32>,
    expected: f32,
    /// Frames above a ring's floor are for the engine in this turn.
    pays: bool,
    /// Copies that the engine got, ever; at the end of the last turn, and of the one before.
    handed_over: u64,
    marks: [u64; 2],
}

impl Default for EngineCost {
    fn default() -> Self {
        let [hand_over, complete, doorbell] = CYCLES_UNMEASURED.map(Mean);
        let (turns, timed, saved, expected, pays) = (0, false, None, 0.0, false);
        let (handed_over, marks) = (0, [0; 2]);
        EngineCost {
            hand_over,
            complete,
            doorbell,
            turns,
            timed,
            saved,
            expected,
            pays,
            handed_over,
            marks,
        }
    }
}

impl EngineCost {
    /// Cycles for a copy: listed, handed over and completed.
    #[inline]
    pub fn copy_cycles(&self) -> f32 {
        LIST_CYCLES + self.hand_over.0 + self.complete.0
    }

    /// The engine saves so many cycles of this turn, which has packets, or would save them.
    #[inline]
    pub fn save(&mut self, cycles: f32) {
        self.saved = Some(self.saved.unwrap_or(0.0) + cycles);
    }

    /// The engine got `n` copies in so many cycles, if that was measured.
    #[inline]
    pub fn handed_over(&mut self, n: usize, cycles: Option<u64>) {
        self.handed_over += n as u64;
        if let Some(cycles) = cycles.filter(|_| n > 0) {
            self.hand_over.add(cycles as f32 / n as f32);
        }
    }

    /// It took so many cycles to take in `n` completed copies.
    pub fn completed(&mut self, n: usize, cycles: u64) {
        if n > 0 {
            self.complete.add(cycles as f32 / n as f32);
        }
    }

    /// A doorbell took so many cycles.
    pub fn rang(&mut self, cycles: u64) {
        self.doorbell.add(cycles as f32);
    }

    /// A turn begins with so many copies in flight. The turn is as worth a doorbell as those before
    /// it were. An engine that has not made the copies of the turn before the last one is slower
    /// than the CPU: it gets no more, as packets behind those copies wait for them.
    pub fn begin_turn(&mut self, in_flight: usize) {
        self.turns = self.turns.wrapping_add(1);
        self.timed = self.turns.is_multiple_of(TURNS_PER_SAMPLE);
        let is_late = self.handed_over - (in_flight as u64).min(self.handed_over) < self.marks[1];
        self.pays = self.expected > self.doorbell.0 && !is_late;
    }

    /// A turn ends.
    pub fn end_turn(&mut self) {
        if let Some(saved) = self.saved.take() {
            self.expected = saved.max(self.expected / 2.0);
        }
        self.marks = [self.handed_over, self.marks[0]];
    }

    /// Shows the costs to the control side.
    pub fn publish(&self, seat: &Seat) {
        seat.copy_cycles.store(self.copy_cycles() as u32, Ordering::Relaxed);
        seat.doorbell_cycles.store(self.doorbell.0 as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring whose bytes cost a quarter of a cycle.
    fn ring() -> RingCost {
        let mut ring = RingCost::default();
        ring.measured(40_000, 10_000);
        ring
    }

    /// An engine behind a turn that saved so much.
    fn engine(saved: f32) -> EngineCost {
        let mut engine = EngineCost::default();
        engine.save(saved);
        engine.end_turn();
        engine.begin_turn(0);
        engine
    }

    #[test]
    fn a_threshold_that_was_set_is_the_limit_of_every_burst() {
        let (mut ring, engine) = (ring(), engine(0.0));
        for _ in 0..2 * BURSTS_PER_SAMPLE {
            ring.begin(Some(700), &engine);
            assert_eq!((ring.limit, ring.samples), (700, false));
        }
    }

    #[test]
    fn one_burst_of_a_row_is_a_sample() {
        let (mut ring, engine) = (RingCost::default(), engine(1e6));
        let samples = (0..10 * BURSTS_PER_SAMPLE).filter(|_| {
            ring.begin(None, &engine);
            // What a ring costs that was never measured is not known: the CPU copies.
            assert_eq!(ring.limit, if ring.samples { FLOOR_BYTES_MIN } else { usize::MAX });
            ring.samples
        });
        assert_eq!(samples.count(), 10);
    }

    #[test]
    fn the_floor_is_where_both_cost_the_same() {
        let (mut ring, mut engine) = (ring(), engine(1e6));
        // 84 cycles for a copy by the engine, an eighth more, at four bytes for a cycle.
        assert_eq!(ring.floor(&engine), 378);
        ring.begin(None, &engine);
        assert_eq!(ring.limit, 378);
        let saved = ring.saved(&engine, [64, 378, 1378, 1378].into_iter());
        assert_eq!(saved, (500.0, 1378));
        // The engine becomes dearer, by measurement; an outlier changes little.
        (0..99).for_each(|_| engine.handed_over(1, Some(130)));
        engine.handed_over(1, Some(100_000));
        let floor = ring.floor(&engine);
        assert!((800..1100).contains(&floor), "{floor}");
        // Short bursts say nothing.
        ring.measured(SAMPLE_BYTES_MIN - 1, 1_000_000);
        assert_eq!(ring.floor(&engine), floor);
        // Guests far away: bytes cost more.
        (0..99).for_each(|_| ring.measured(10_000, 10_000));
        assert!(ring.floor(&engine) < floor / 3);
    }

    #[test]
    fn a_turn_that_saves_less_than_a_doorbell_is_left_to_the_cpu() {
        let mut ring = ring();
        for (saved, pays) in [(0.0, false), (299.0, false), (301.0, true)] {
            ring.begin(None, &engine(saved));
            assert_eq!(ring.limit != usize::MAX, pays, "{saved}");
        }
        // Turns without packets do not matter, several with few do.
        let mut engine = engine(1000.0);
        let pays = [None, Some(10.0), Some(10.0), Some(10.0)].map(|saved| {
            saved.into_iter().for_each(|saved| engine.save(saved));
            engine.end_turn();
            engine.begin_turn(0);
            engine.pays
        });
        assert_eq!(pays, [true, true, false, false]);
    }

    #[test]
    fn an_engine_that_is_late_gets_no_more() {
        let mut engine = engine(1e6);
        let mut turn = |handed_over, in_flight| {
            engine.handed_over(handed_over, None);
            engine.save(1e6);
            engine.end_turn();
            engine.begin_turn(in_flight);
            engine.pays
        };
        assert!(turn(10, 10), "those of the last turn may be in flight");
        assert!(!turn(10, 11), "those of the turn before it may not");
        assert!(turn(0, 0));
        assert!(turn(10, 10));
    }
}
