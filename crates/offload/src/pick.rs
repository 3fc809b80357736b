//! Which flows deserve a place: the hottest, without going to and fro.

use crate::types::FlowId;

/// A rule that is in the adapter stays at least so long, so that a flow changes sides seldom.
pub(crate) const RESIDENCE_MS: u64 = 3000;
/// To take another flow's place a flow has so many times its packets.
const SWAP_FACTOR: f32 = 2.0;
/// A rule pays if what it saves while it stays is so many times what its insertion costs.
const WORTH: f32 = 4.0;
/// Below this part of the rate at which flows enter, they leave.
pub(crate) const LEAVE_PART: f32 = 1.0 / 8.0;
/// Candidates of one second, at most.
pub(crate) const CANDIDATES_MAX: usize = 8192;

/// A flow that is not in the adapter and has so many packets per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub flow: FlowId,
    pub pps: f32,
}

/// The hottest candidates of a second; a bounded number, whatever comes.
#[derive(Default)]
pub(crate) struct Candidates(Vec<Candidate>);

impl Candidates {
    /// Takes part.
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

    /// All of them, the hottest first.
    pub fn take(&mut self) -> Vec<Candidate> {
        self.shorten();
        let mut all = std::mem::take(&mut self.0);
        all.sort_unstable_by(|a, b| b.pps.total_cmp(&a.pps).then(a.flow.cmp(&b.flow)));
        all
    }
}

/// Packets per second from which on a rule pays that costs `cost_cycles` once and saves
/// `saved_cycles` per packet while it stays, `life_s` seconds.
pub(crate) fn enter_pps(cost_cycles: f32, saved_cycles: f32, life_s: f32) -> f32 {
    WORTH * cost_cycles / (saved_cycles.max(1.0) * life_s.max(1.0))
}

/// May a flow with this rate take the place of one with that rate?
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
