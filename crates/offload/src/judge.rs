//! Judges whether a port's marks pay, while the switch runs: by the cost of a packet in pairs of
//! windows, one with marks and one with marks ignored.
//!
//! Only one port is measured at a time, so that savings at one are not taken for another's.

/// Length of the part of a window that counts, milliseconds. A part that does not count comes
/// before it: lookups adapt in it, which they do every 100 ms.
const COUNTED_MS: u64 = 300;
const SETTLING_MS: u64 = 200;
/// Pairs of windows of one trial. Marks do not pay if they cost more in all of them: by chance
/// alone this is so in one trial of 64. Every other pair begins without marks, so costs that only
/// rise or only fall decide nothing.
const PAIRS: u32 = 6;
/// Packets of a window below which the trial ends: below 500,000 packets per second a thread has
/// cycles to spare, and the clock is read for few packets at a time.
const WINDOW_PACKETS_MIN: u64 = 500 * COUNTED_MS;
/// Time from when the port has an adapter to the first trial, milliseconds; it is put off by as
/// much while there are no rules.
const FIRST_MS: u64 = 10_000;
/// Time from the first trial to the second, milliseconds; doubled from trial to trial.
const WAIT_MS: u64 = 15_000;
/// Longest time between two trials, milliseconds.
const WAIT_MS_MAX: u64 = 600_000;
/// Trials in a row in which marks do not pay, after which the rules are withdrawn.
const LOST_MAX: u32 = 2;
/// Time over which the growth of the number of rules is measured, milliseconds.
const FILLING_MS: u64 = 10_000;
/// Growth in that time from which on the table is taken to be filling up.
const FILLING_FACTOR: f32 = 1.125;

/// How a port's marks are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Worth {
    /// Marks are used, after comparison.
    #[default]
    Used,
    /// Packets are treated as if they had no marks; the rules stay.
    Ignored,
    /// There are no rules until the next trial.
    Withdrawn,
}

/// What a port's packets have cost so far. Only differences of two are meaningful.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortTotals {
    /// Packets received.
    pub packets: u64,
    /// Cycles of the threads that received them, for these packets.
    pub cycles: u64,
}

/// A trial that is under way.
struct Trial {
    /// Number of windows that have ended.
    window: u32,
    /// Totals when the window began to count; None: it does not count yet.
    before: Option<PortTotals>,
    /// Cycles per packet in the last windows: with marks, and without.
    last: [f32; 2],
    /// True: marks cost more in all pairs so far.
    lost: bool,
    /// Cycles per packet in the cheapest windows: with marks, and without.
    least: [f32; 2],
}

impl Trial {
    /// True if marks are ignored in this window. The order is: with, without, without, with, and so
    /// on.
    fn ignores(&self) -> bool {
        matches!(self.window % 4, 1 | 2)
    }
}

/// The judge of one port's marks. Time is an argument.
pub struct Judge {
    worth: Worth,
    trial: Option<Trial>,
    /// When something is next to be done, milliseconds.
    due_ms: u64,
    wait_ms: u64,
    lost: u32,
    /// Number of rules at the last call.
    rules: usize,
    /// Cycles per packet in the last trial: with marks, and without.
    measured: Option<[f32; 2]>,
}

impl Judge {
    /// A new judge: marks are used until it was measured that they do not pay.
    pub fn new(now_ms: u64) -> Judge {
        Judge {
            worth: Worth::Used,
            trial: None,
            due_ms: now_ms + FIRST_MS,
            wait_ms: WAIT_MS,
            lost: 0,
            rules: 0,
            measured: None,
        }
    }

    /// True if something is to be done. If not, [`Judge::advance`] does nothing.
    pub fn is_due(&self, now_ms: u64) -> bool {
        now_ms >= self.due_ms
    }

    /// True if a trial is under way.
    pub fn is_measuring(&self) -> bool {
        self.trial.is_some()
    }

    /// True if marks are used now.
    pub fn marks_count(&self) -> bool {
        match &self.trial {
            Some(trial) => !trial.ignores(),
            None => self.worth == Worth::Used,
        }
    }

    /// The result of the last trial.
    pub fn worth(&self) -> Worth {
        self.worth
    }

    /// Cycles per packet of the last trial, with marks and without.
    pub fn measured(&self) -> Option<[f32; 2]> {
        self.measured
    }

    /// Continues at `now_ms`, with the port's present number of rules that mark, and its totals.
    pub fn advance(&mut self, now_ms: u64, rules: usize, now: PortTotals) {
        if !self.is_due(now_ms) {
            return;
        }
        if self.trial.is_some() {
            return self.end_window(now_ms, now);
        }
        let before = std::mem::replace(&mut self.rules, rules);
        let filling = rules as f32 > before as f32 * FILLING_FACTOR;
        match self.worth {
            Worth::Withdrawn => {
                self.worth = Worth::Ignored;
                self.due_ms = now_ms + FILLING_MS;
            }
            Worth::Ignored if filling => self.due_ms = now_ms + FILLING_MS,
            _ if rules == 0 => self.due_ms = now_ms + FIRST_MS,
            _ => {
                let (last, least) = ([0.0; 2], [f32::MAX; 2]);
                self.trial = Some(Trial { window: 0, before: None, last, lost: true, least });
                self.due_ms = now_ms + SETTLING_MS;
            }
        }
    }

    /// Begins to count in a window, or ends the window.
    fn end_window(&mut self, now_ms: u64, now: PortTotals) {
        let Some(trial) = &mut self.trial else { return };
        let Some(before) = trial.before.take() else {
            trial.before = Some(now);
            self.due_ms = now_ms + COUNTED_MS;
            return;
        };
        let packets = now.packets.saturating_sub(before.packets);
        if packets < WINDOW_PACKETS_MIN {
            self.trial = None;
            self.due_ms = now_ms + self.wait_ms;
            return;
        }
        let cycles = now.cycles.saturating_sub(before.cycles);
        let (cost, kind) = (cycles as f32 / packets as f32, usize::from(trial.ignores()));
        trial.last[kind] = cost;
        trial.least[kind] = trial.least[kind].min(cost);
        trial.window += 1;
        if trial.window % 2 == 0 {
            trial.lost &= trial.last[0] > trial.last[1];
        }
        self.due_ms = now_ms + SETTLING_MS;
        if trial.window == 2 * PAIRS {
            let (pays, least) = (!trial.lost, trial.least);
            self.trial = None;
            self.conclude(now_ms, pays, least);
        }
    }

    fn conclude(&mut self, now_ms: u64, pays: bool, least: [f32; 2]) {
        self.measured = Some(least);
        let was = self.lost > 0;
        self.lost = if pays { 0 } else { self.lost + 1 };
        self.worth = match self.lost {
            0 => Worth::Used,
            LOST_MAX.. => Worth::Withdrawn,
            _ => Worth::Ignored,
        };
        if was != (self.lost > 0) {
            self.wait_ms = WAIT_MS;
        }
        self.due_ms = now_ms + self.wait_ms;
        self.wait_ms = (2 * self.wait_ms).min(WAIT_MS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port whose packets cost so much with marks and without, from 0 ms on.
    struct Bench {
        judge: Judge,
        now_ms: u64,
        totals: PortTotals,
        rules: usize,
        calls: u64,
    }

    impl Bench {
        fn new() -> Bench {
            let (judge, totals) = (Judge::new(0), PortTotals::default());
            Bench { judge, now_ms: 0, totals, rules: 1000, calls: 0 }
        }

        /// Milliseconds of the next `ms` in which marks counted.
        fn pass(&mut self, ms: u64, pps: u64, [with, without]: [u64; 2]) -> u64 {
            let mut counted = 0;
            for _ in 0..ms / 10 {
                self.now_ms += 10;
                let count = self.judge.marks_count();
                counted += 10 * u64::from(count);
                self.totals.packets += pps / 100;
                self.totals.cycles += pps / 100 * if count { with } else { without };
                if self.judge.is_due(self.now_ms) {
                    self.calls += 1;
                    let rules = if self.judge.worth() == Worth::Withdrawn { 0 } else { self.rules };
                    self.judge.advance(self.now_ms, rules, self.totals);
                }
            }
            counted
        }
    }

    #[test]
    fn marks_that_pay_are_used_and_measured_more_and_more_seldom() {
        let mut b = Bench::new();
        let counted = b.pass(3_600_000, 1_000_000, [60, 80]);
        assert_eq!(b.judge.worth(), Worth::Used);
        assert!(counted > 3_600_000 - 12 * 3_000, "{counted}");
        assert!(b.calls <= 12 * u64::from(4 * PAIRS + 1), "{}", b.calls);
        assert_eq!(b.judge.measured(), Some([60.0, 80.0]));
    }

    #[test]
    fn marks_that_do_not_pay_are_ignored_then_withdrawn_and_tried_again() {
        let mut b = Bench::new();
        b.pass(16_100, 1_000_000, [90, 80]);
        assert_eq!((b.judge.worth(), b.judge.marks_count()), (Worth::Ignored, false));
        b.pass(22_000, 1_000_000, [90, 80]);
        assert_eq!(b.judge.worth(), Worth::Withdrawn);
        // Seconds of an hour that marks cost something: less than a hundredth.
        let counted = b.pass(3_600_000, 1_000_000, [90, 80]);
        assert!((3_000..36_000).contains(&counted), "{counted}");
        b.pass(2 * WAIT_MS_MAX, 1_000_000, [70, 80]);
        assert_eq!(b.judge.worth(), Worth::Used);
    }

    #[test]
    fn a_table_that_fills_up_is_judged_when_it_has() {
        let mut b = Bench::new();
        b.rules = 100;
        b.pass(16_100, 1_000_000, [90, 80]);
        assert_eq!(b.judge.worth(), Worth::Ignored);
        for _ in 0..12 {
            b.rules = b.rules * 3 / 2;
            assert_eq!(b.pass(FILLING_MS, 1_000_000, [70, 80]), 0, "no trial");
        }
        b.pass(2 * FILLING_MS, 1_000_000, [70, 80]);
        assert_eq!(b.judge.worth(), Worth::Used);
    }

    /// What costs a fifth more or less at random, whatever the marks, ends marks that pay seldom.
    #[test]
    fn noise_decides_nothing() {
        let (mut random, mut ignored) = (1u32, 0);
        for _ in 0..200 {
            let mut b = Bench::new();
            while b.judge.measured().is_none() {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = u64::from(random >> 16) % 40;
                b.pass(100, 1_000_000, [90 + noise, 100 + noise]);
            }
            ignored += u32::from(b.judge.worth() != Worth::Used);
        }
        assert!(ignored <= 2, "{ignored} of 200");
    }

    /// A port that is measured like this until the trial ends; `cost` is asked for cycles per
    /// packet by whether marks count, since when they did or did not, and the time, milliseconds.
    fn trial(cost: impl Fn(bool, u64, u64) -> u64) -> Bench {
        let (mut b, mut counted, mut changed_ms) = (Bench::new(), true, 0);
        while b.judge.measured().is_none() {
            if counted != b.judge.marks_count() {
                (counted, changed_ms) = (!counted, b.now_ms);
            }
            let c = cost(counted, b.now_ms - changed_ms, b.now_ms);
            b.pass(10, 1_000_000, [c, c]);
        }
        b
    }

    #[test]
    fn what_settles_after_a_change_does_not_count() {
        let unsettled = |for_ms| if for_ms < 190 { 500 } else { 0 };
        let b = trial(|marks, for_ms, _| if marks { 60 + unsettled(for_ms) } else { 80 });
        assert_eq!((b.judge.worth(), b.judge.measured()), (Worth::Used, Some([60.0, 80.0])));
        let b = trial(|marks, for_ms, _| if marks { 90 } else { 80 + unsettled(for_ms) });
        assert_eq!((b.judge.worth(), b.judge.measured()), (Worth::Ignored, Some([90.0, 80.0])));
    }

    #[test]
    fn costs_that_only_fall_decide_nothing() {
        let b = trial(|marks, _, now_ms| (20_000 - now_ms) / 10 - u64::from(marks));
        assert_eq!(b.judge.worth(), Worth::Used);
    }

    #[test]
    fn few_packets_say_nothing() {
        let mut b = Bench::new();
        b.pass(60_000, 400_000, [90, 80]);
        assert_eq!((b.judge.worth(), b.judge.measured()), (Worth::Used, None));
        b.rules = 0;
        b.pass(60_000, 1_000_000, [90, 80]);
        assert_eq!(b.judge.measured(), None, "no rules");
    }
}
