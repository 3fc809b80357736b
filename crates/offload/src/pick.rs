//! Picks the flows that get rules: those with the most packets, without moving them in and out.

use crate::types::FlowId;

/// Time for which a rule stays in the adapter at least, milliseconds, so that flows are seldom
/// moved.
pub(crate) const RESIDENCE_MS: u64 = 3000;
/// How many times the packets of another flow a flow must have to take its place.
const SWAP_FACTOR: f32 = 2.0;
/// How many times the cost of its insertion a rule must save while it stays.
const WORTH: f32 = 4.0;
/// Share of the rate at which flows enter, below which they leave.
pub(crate) const LEAVE_PART: f32 = 1.0 / 8.0;
/// Candidates that are kept in one second, at most.
const CANDIDATES_MAX: usize = 8192;

/// A flow that is not in the adapter, and its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub flow: FlowId,
    pub pps: f32,
}

/// The candidates of a second with the most packets; their number is bounded.
#[derive(Default)]
pub(crate) struct Candidates(Vec<Candidate>);

impl Candidates {
    /// Adds a candidate.
    pub fn push(&mut self, c: Candidate) {
        self.0.push(c);
        if self.0.len() >= 2 * CANDIDATES_MAX {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        if self.0.len() > CANDIDATES_MAX {
            self.0.select_nth_unstable_by(CANDIDATES_MAX, |a, b| b.pps.total_cmp(&a.pps));
            self.0.truncate(CANDIDATES_MAX);
        }
    }

    /// Takes all candidates, the one with the most packets first.
    pub fn take(&mut self) -> Vec<Candidate> {
        self.shorten();
        let mut all = std::mem::take(&mut self.0);
        all.sort_unstable_by(|a, b| b.pps.total_cmp(&a.pps).then(a.flow.cmp(&b.flow)));
        all
    }
}

/// Packets per second from which on a rule pays that costs `cost_cycles` once, and saves
/// `saved_cycles` per packet for `life_s` seconds.
pub(crate) fn enter_pps(cost_cycles: f32, saved_cycles: f32, life_s: f32) -> f32 {
    WORTH * cost_cycles / (saved_cycles.max(1.0) * life_s.max(1.0))
}

/// True if a flow with this rate may take the place of a flow with that rate.
pub(crate) fn beats(candidate: f32, victim: f32) -> bool {
    candidate >= SWAP_FACTOR * victim
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The bounded list is the hottest of all, in order.
        #[test]
        fn the_hottest_stay(rates in proptest::collection::vec(0u16..500, 0..3 * CANDIDATES_MAX)) {
            let mut list = Candidates::default();
            for (i, pps) in rates.iter().enumerate() {
                let flow = FlowId { worker: 0, megaflow: i as u32 };
                list.push(Candidate { flow, pps: f32::from(*pps) });
                prop_assert!(list.0.len() < 2 * CANDIDATES_MAX);
            }
            let mut slow: Vec<f32> = rates.into_iter().map(f32::from).collect();
            slow.sort_by(|a, b| b.total_cmp(a));
            slow.truncate(CANDIDATES_MAX);
            let fast: Vec<f32> = list.take().into_iter().map(|c| c.pps).collect();
            prop_assert_eq!(fast, slow);
            prop_assert!(list.take().is_empty());
        }
    }

    #[test]
    fn break_even() {
        // 20 microseconds at 2.5 GHz, 75 cycles, 10 seconds.
        assert_eq!(enter_pps(50_000.0, 75.0, 10.0).round(), 267.0);
        assert!(beats(2.0, 1.0) && !beats(1.9, 1.0));
    }
}
