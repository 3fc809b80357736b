//! Direct mode: when the new flows of a port hardly ever come back, the pipeline is asked what to
//! do with their packets, one by one, and nothing else: not what it looked at, nor whether the flow
//! was seen or has a megaflow somewhere.
//!
//! Two samples of the flows go the whole way. One is always the same and shows whether flows come
//! back, however long that takes them; the other changes, and lets those in that come back soon
//! while most do not.

use crate::batch::keys::KeyRef;

/// One flow in so many is in a sample.
const SAMPLE_FLOWS: u64 = 64;

/// Judgements until other flows are the changing sample.
const SAMPLE_INTERVALS: u32 = 4;

/// Decisions about flows of the sample that stays that a judgement needs.
const SAMPLED_FLOWS_MIN: u32 = 64;

/// Direct mode begins when fewer than one flow in so many came back, and ends when more than one in
/// so many do.
const ENTER_RETURNING_RATIO: u32 = 8;
const LEAVE_RETURNING_RATIO: u32 = 4;

/// Judgements until it is tried again after the pipeline did not answer most of what it was asked.
const RETRY_INTERVALS: u32 = 32;

/// One port's.
#[derive(Default)]
pub(crate) struct DirectMode {
    pub on: bool,
    /// Most flows come back.
    pub mostly_returning: bool,
    /// What makes hashes unknown to others.
    secret: u64,
    /// Which flows are the changing sample (that of 0 stays), and judgements so far.
    sample: u64,
    judged: u32,
    /// Decisions about flows of the sample that stays since the last judgement, and those whose
    /// flow deserved a place.
    sampled: u32,
    returning: u32,
    /// Packets that went direct, and those of them that the pipeline said nothing about.
    resolved: u32,
    unresolved: u32,
    /// Judgements until it is tried again.
    retry_in: u32,
}

impl DirectMode {
    pub fn new(secret: u64) -> Self {
        DirectMode { secret, ..DirectMode::default() }
    }

    /// A hash of Ethernet and IP addresses and what follows them on line 0, whatever megaflows say;
    /// its low part says which of [`SAMPLE_FLOWS`] a flow is in.
    #[inline]
    fn flow_hash(&self, key: &KeyRef<'_>) -> u64 {
        let both = |w: &[u64]| {
            let (a, b) = (w[0] ^ self.secret, w[1] ^ 0xd6e8_feb8_6659_fd93);
            let p = a as u128 * b as u128;
            p as u64 ^ (p >> 64) as u64
        };
        let h = both(&key.line[..2]).rotate_left(32) ^ both(&key.line[2..4]);
        let ext = &key.ext[0];
        let long = if key.have & 1 == 0 { 0 } else { both(&ext[..2]) ^ both(&ext[2..4]) };
        (h ^ long.rotate_left(16)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
    }

    /// Is nothing asked about this packet's flow?
    #[inline]
    pub fn bypasses(&self, key: &KeyRef<'_>) -> bool {
        self.on && ![0, self.sample].contains(&(self.flow_hash(key) % SAMPLE_FLOWS))
    }

    /// The hash of this packet's flow, if it is of the sample that stays.
    pub fn in_fixed_sample(&self, key: &KeyRef<'_>) -> Option<u64> {
        Some(self.flow_hash(key)).filter(|hash| hash.is_multiple_of(SAMPLE_FLOWS))
    }

    /// Packets that one stands for that went the whole way.
    pub fn sample_weight(&self) -> u64 {
        if self.on && self.unresolved * 2 <= self.resolved { SAMPLE_FLOWS / 2 } else { 1 }
    }

    /// A packet of the sample that stays went the whole way; does its flow save decisions from now
    /// on?
    pub fn count_sampled(&mut self, returning: bool) {
        self.sampled += 1;
        self.returning += u32::from(returning);
    }

    /// A packet was to go direct; did the pipeline answer?
    #[inline]
    pub fn count_resolved(&mut self, answered: bool) {
        self.resolved += 1;
        self.unresolved += u32::from(!answered);
    }

    /// Sees, every 100 ms, whether it is worth it. `pressed`: there are many new flows.
    pub fn judge(&mut self, new_flow_rate_high: bool) {
        self.judged = self.judged.wrapping_add(1);
        if self.judged.is_multiple_of(SAMPLE_INTERVALS) {
            self.sample = self.sample % (SAMPLE_FLOWS - 1) + 1;
        }
        self.retry_in = if self.unresolved * 2 > self.resolved {
            RETRY_INTERVALS
        } else {
            self.retry_in.saturating_sub(1)
        };
        (self.resolved, self.unresolved) = (0, 0);
        if new_flow_rate_high && self.sampled < SAMPLED_FLOWS_MIN && self.retry_in == 0 {
            return;
        }
        self.mostly_returning = new_flow_rate_high && self.returning * 2 >= self.sampled;
        let few = self.returning
            * if self.on { LEAVE_RETURNING_RATIO } else { ENTER_RETURNING_RATIO }
            <= self.sampled;
        (self.on, self.sampled, self.returning) =
            (new_flow_rate_high && few && self.retry_in == 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(d: &mut DirectMode, sampled: u32, returning: u32) -> bool {
        (0..sampled).for_each(|n| d.count_sampled(n < returning));
        d.judge(true);
        d.on
    }

    #[test]
    fn it_is_on_while_flows_do_not_come_back() {
        let mut d = DirectMode::default();
        assert!(!judged(&mut d, 10, 0), "too few say nothing");
        assert!(judged(&mut d, 90, 12));
        assert!(judged(&mut d, 100, 24), "it is not given up at once");
        assert!(!judged(&mut d, 100, 26) && !d.mostly_returning);
        assert!(!judged(&mut d, 100, 50) && d.mostly_returning);
        assert!(!judged(&mut d, 100, 13));
        assert!(judged(&mut d, 100, 12));
        d.judge(false);
        assert!(!d.on, "new flows are few");
    }

    #[test]
    fn it_waits_where_the_pipeline_does_not_answer() {
        let mut d = DirectMode::default();
        assert!(judged(&mut d, 100, 0));
        (0..10).for_each(|n| d.count_resolved(n % 2 == 0));
        assert!(judged(&mut d, 100, 0), "half of them are worth it");
        (0..10).for_each(|n| d.count_resolved(n % 3 == 0));
        let off = (0..2 * RETRY_INTERVALS).take_while(|_| !judged(&mut d, 100, 0)).count();
        assert_eq!(off, RETRY_INTERVALS as usize);
    }

    #[test]
    fn every_flow_is_in_a_sample_now_and_then_and_some_always_are() {
        let (mut d, ext) = (DirectMode { on: true, sample: 1, ..DirectMode::new(5) }, [[0; 8]; 3]);
        let mut times = [0; 1000];
        for _ in 0..(SAMPLE_FLOWS - 1) as u32 * SAMPLE_INTERVALS {
            for (flow, times) in times.iter_mut().enumerate() {
                let key = KeyRef { line: &[0, 0, flow as u64, 0, 0, 0, 0, 0], ext: &ext, have: 0 };
                *times += u32::from(!d.bypasses(&key));
                assert!(d.in_fixed_sample(&key).is_none() || !d.bypasses(&key));
            }
            d.judge(true);
            d.on = true;
        }
        let always = times.iter().filter(|t| **t > SAMPLE_INTERVALS).count();
        assert!((1..50).contains(&always), "{always}");
        assert!(
            times
                .iter()
                .all(|t| [SAMPLE_INTERVALS, (SAMPLE_FLOWS - 1) as u32 * SAMPLE_INTERVALS]
                    .contains(t))
        );
    }
}
