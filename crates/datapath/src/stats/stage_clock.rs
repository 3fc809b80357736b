//! How an iteration's cycles divide among stages. Reading the clock costs as much as a packet does,
//! so short iterations are sampled; the others are assumed to divide as the last sampled one did.

use crate::stats::clock::cycles;

/// Iterations with at least this many packets are always measured.
const SAMPLED_PACKETS_MIN: usize = 64;
/// One in this many of the shorter iterations is measured.
const SAMPLE_ITERATIONS: u32 = 16;

/// How the cycles of iterations divide among the stages.
#[derive(Default)]
pub(crate) struct StageClock {
    short: u32,
    /// The current iteration is short, and measured.
    sample: bool,
    /// The share of the first two stages in the last short iteration that was measured, in
    /// 65,536ths.
    parts: [u64; 2],
}

impl StageClock {
    /// True if the clock is read during an iteration with `n` packets.
    #[inline]
    pub fn is_sampled(&mut self, n: usize) -> bool {
        let short = n < SAMPLED_PACKETS_MIN;
        self.short = self.short.wrapping_add(short.into());
        self.sample = short && self.short % SAMPLE_ITERATIONS == 1;
        self.sample || !short
    }

    /// Cycles of the three stages of an iteration. `between`: the cycles at which the first two
    /// ended, if they were measured.
    #[inline]
    pub fn divide(&mut self, began: u64, between: Option<(u64, u64)>, ended: u64) -> [u64; 3] {
        let all = ended - began;
        let [first, second] = match between {
            Some((t1, t2)) => {
                let stages = [t1 - began, t2 - t1];
                if self.sample {
                    self.parts = stages.map(|c| (c << 16) / all.max(1));
                }
                stages
            }
            None => self.parts.map(|part| (all * part) >> 16),
        };
        [first, second, all - first - second]
    }
}

/// One vector in this many is measured.
const SAMPLE_VECTORS: u32 = 16;

/// The cost of parsing. Bursts are short, and reading the clock costs as much as parsing a packet,
/// so vectors are sampled; the others are assumed to cost as much as the last sampled one.
#[derive(Default)]
pub(crate) struct ParseClock {
    vectors: u32,
    packets: u64,
    cycles: u64,
    /// Cost of parsing a packet, in 256ths of a cycle.
    rate: u64,
}

impl ParseClock {
    /// Begins a burst; returns the current cycle if this vector is measured.
    #[inline]
    pub fn begin(&self) -> Option<u64> {
        self.vectors.is_multiple_of(SAMPLE_VECTORS).then(cycles)
    }

    #[inline]
    pub fn end(&mut self, began: Option<u64>, packets: usize) {
        self.packets += packets as u64;
        if let Some(began) = began {
            self.cycles += cycles() - began;
        }
    }

    /// Ends a vector; returns the cycles of its parsing.
    pub fn take(&mut self) -> u64 {
        let (packets, cycles) =
            (std::mem::take(&mut self.packets), std::mem::take(&mut self.cycles));
        if self.vectors.is_multiple_of(SAMPLE_VECTORS) {
            self.rate = (cycles * 256).checked_div(packets).unwrap_or(self.rate);
        }
        self.vectors = self.vectors.wrapping_add(1);
        self.rate * packets / 256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_iterations_are_measured_and_short_ones_divide_like_the_last_that_was() {
        let mut clock = StageClock::default();
        assert!(clock.is_sampled(1));
        assert_eq!(clock.divide(1000, Some((1100, 1300)), 1400), [100, 200, 100]);
        for _ in 1..SAMPLE_ITERATIONS {
            assert!(clock.is_sampled(SAMPLED_PACKETS_MIN));
            assert_eq!(clock.divide(0, Some((10, 20)), 1000), [10, 10, 980]);
            assert!(!clock.is_sampled(SAMPLED_PACKETS_MIN - 1));
            assert_eq!(clock.divide(0, None, 800), [200, 400, 200]);
        }
        assert!(clock.is_sampled(1), "again");
    }

    #[test]
    fn vectors_that_are_not_measured_are_taken_to_be_like_the_last_one_that_was() {
        let mut time = ParseClock::default();
        let mut vector = |packets| {
            let began = time.begin();
            time.end(began, packets);
            (began.is_some(), time.take())
        };
        let (measured, ten) = vector(10);
        assert!(measured);
        for _ in 1..SAMPLE_VECTORS {
            let (measured, twenty) = vector(20);
            assert!(!measured && (2 * ten..=2 * ten + 1).contains(&twenty));
        }
        assert!(vector(1).0);
    }
}
