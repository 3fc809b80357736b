//! How many cycles a mark saves, by the PMD threads' own counters.

/// Assumed before both kinds of packets were measured: 64-byte packets, 1,000 rules
/// (docs/perf/002-offload.md: 34).
const SAVED_CYCLES_ASSUMED: f32 = 40.0;
/// Packets of a second below which it is not measured.
const PACKETS_MIN: u64 = 10_000;
/// Share of marked packets up to which a second measures the cost of packets without marks.
const PLAIN_PART: f32 = 0.05;
/// Share of marked packets from which on a second measures the cost of packets with marks.
const MARKED_PART: f32 = 0.5;
/// Weight of a new second.
const WEIGHT: f32 = 0.25;
/// Cycles that a mark is taken to save at least: those of parsing. With few packets, or on a busy
/// machine, the counters say little.
const SAVED_CYCLES_MIN: f32 = 24.0;
/// Cycles that a mark is taken to save at most.
const SAVED_CYCLES_MAX: f32 = 1000.0;

/// Sums of the counters of all PMD threads; they may be cleared to 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageTotals {
    /// Packets received or recirculated.
    pub packets: u64,
    /// Packets known by their mark.
    pub marked: u64,
    /// Cycles of parsing and lookup.
    pub cycles: u64,
}

/// Measures cycles of parsing and lookup per packet, with and without a mark.
#[derive(Debug, Default)]
pub struct Saved {
    before: StageTotals,
    plain: Option<f32>,
    marked: Option<f32>,
}

impl Saved {
    /// Records the counters at the end of a second.
    pub fn second(&mut self, now: StageTotals) {
        let b = std::mem::replace(&mut self.before, now);
        if now.packets < b.packets || now.marked < b.marked || now.cycles < b.cycles {
            return;
        }
        let (n, marked) = (now.packets - b.packets, (now.marked - b.marked) as f32);
        if n < PACKETS_MIN {
            return;
        }
        let (n, cycles) = (n as f32, (now.cycles - b.cycles) as f32);
        let part = marked / n;
        if part <= PLAIN_PART {
            mix(&mut self.plain, cycles / n);
        } else if part >= MARKED_PART
            && let Some(plain) = self.plain
        {
            mix(&mut self.marked, (cycles - plain * (n - marked)).max(0.0) / marked);
        }
    }

    /// Cycles that a mark saves, and whether they were measured.
    pub fn cycles(&self) -> (f32, bool) {
        match (self.plain, self.marked) {
            (Some(plain), Some(marked)) => {
                ((plain - marked).clamp(SAVED_CYCLES_MIN, SAVED_CYCLES_MAX), true)
            }
            _ => (SAVED_CYCLES_ASSUMED, false),
        }
    }
}

fn mix(mean: &mut Option<f32>, value: f32) {
    *mean = Some(mean.map_or(value, |m| m + WEIGHT * (value - m)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_counts() {
        let (mut saved, mut all) = (Saved::default(), StageTotals::default());
        let mut second = |saved: &mut Saved, plain: u64, marked: u64| {
            all.packets += plain + marked;
            all.marked += marked;
            all.cycles += 85 * plain + 20 * marked;
            saved.second(all);
        };
        second(&mut saved, 0, 100_000);
        assert_eq!(saved.cycles(), (SAVED_CYCLES_ASSUMED, false), "plain ones are not known");
        second(&mut saved, 100_000, 0);
        second(&mut saved, 5000, 0);
        assert!(!saved.cycles().1);
        (0..30).for_each(|_| second(&mut saved, 20_000, 80_000));
        let (cycles, measured) = saved.cycles();
        assert!(measured && (cycles - 65.0).abs() < 1.0, "{cycles}");
        // Cleared counters are no second.
        saved.second(StageTotals::default());
        assert!((saved.cycles().0 - cycles).abs() < 0.01);
    }
}
