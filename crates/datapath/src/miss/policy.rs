//! Direct mode: when the new flows of a port hardly ever come back, the pipeline is asked what to do with their packets,
//! one by one, and nothing else: not what it looked at, nor whether the flow was seen or has a rule somewhere.
//!
//! Two samples of the flows go the whole way. One is always the same and shows whether flows come back, however long
//! that takes them; the other changes, and lets those in that come back soon while most do not.

use crate::lookup::KeyRef;

/// One flow in so many is in a sample.
const SAMPLE: u64 = 64;

/// Judgements until other flows are the changing sample.
const STAY: u32 = 4;

/// Decisions about flows of the sample that stays that a judgement needs.
const ENOUGH: u32 = 64;

/// Direct mode begins when fewer than one flow in so many came back, and ends when more than one in so many do.
const BEGIN: u32 = 8;
const END: u32 = 4;

/// Judgements until it is tried again after the pipeline did not answer most of what it was asked.
const PATIENCE: u32 = 32;

/// One port's.
#[derive(Default)]
pub(crate) struct Direct {
    pub on: bool,
    /// Most flows come back.
    pub most: bool,
    /// What makes hashes unknown to others.
    secret: u64,
    /// Which flows are the changing sample (that of 0 stays), and judgements so far.
    sample: u64,
    judged: u32,
    /// Decisions about flows of the sample that stays since the last judgement, and those whose flow deserved a place.
    asked: u32,
    deserved: u32,
    /// Packets that went direct, and those of them that the pipeline said nothing about.
    went: u32,
    lost: u32,
    /// Judgements until it is tried again.
    wait: u32,
}

impl Direct {
    pub fn new(secret: u64) -> Self {
        Direct { secret, ..Direct::default() }
    }

    /// A hash of Ethernet and IP addresses and what follows them on line 0, whatever rules say; its low part says which of
    /// [`SAMPLE`] a flow is in.
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
    pub fn takes(&self, key: &KeyRef<'_>) -> bool {
        self.on && ![0, self.sample].contains(&(self.flow_hash(key) % SAMPLE))
    }

    /// The hash of this packet's flow, if it is of the sample that stays.
    pub fn stays(&self, key: &KeyRef<'_>) -> Option<u64> {
        Some(self.flow_hash(key)).filter(|hash| hash.is_multiple_of(SAMPLE))
    }

    /// Packets that one stands for that went the whole way.
    pub fn stands_for(&self) -> u64 {
        if self.on && self.lost * 2 <= self.went { SAMPLE / 2 } else { 1 }
    }

    /// A packet of the sample that stays went the whole way; does its flow save decisions from now on?
    pub fn asked(&mut self, deserved: bool) {
        self.asked += 1;
        self.deserved += u32::from(deserved);
    }

    /// A packet was to go direct; did the pipeline answer?
    #[inline]
    pub fn went(&mut self, answered: bool) {
        self.went += 1;
        self.lost += u32::from(!answered);
    }

    /// Sees, every 100 ms, whether it is worth it. `pressed`: there are many new flows.
    pub fn judge(&mut self, pressed: bool) {
        self.judged = self.judged.wrapping_add(1);
        if self.judged.is_multiple_of(STAY) {
            self.sample = self.sample % (SAMPLE - 1) + 1;
        }
        self.wait = if self.lost * 2 > self.went { PATIENCE } else { self.wait.saturating_sub(1) };
        (self.went, self.lost) = (0, 0);
        if pressed && self.asked < ENOUGH && self.wait == 0 {
            return;
        }
        self.most = pressed && self.deserved * 2 >= self.asked;
        let few = self.deserved * if self.on { END } else { BEGIN } <= self.asked;
        (self.on, self.asked, self.deserved) = (pressed && few && self.wait == 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(d: &mut Direct, asked: u32, deserved: u32) -> bool {
        (0..asked).for_each(|n| d.asked(n < deserved));
        d.judge(true);
        d.on
    }

    #[test]
    fn it_is_on_while_flows_do_not_come_back() {
        let mut d = Direct::default();
        assert!(!judged(&mut d, 10, 0), "too few say nothing");
        assert!(judged(&mut d, 90, 12));
        assert!(judged(&mut d, 100, 24), "it is not given up at once");
        assert!(!judged(&mut d, 100, 26) && !d.most);
        assert!(!judged(&mut d, 100, 50) && d.most);
        assert!(!judged(&mut d, 100, 13));
        assert!(judged(&mut d, 100, 12));
        d.judge(false);
        assert!(!d.on, "nobody is pressed");
    }

    #[test]
    fn it_waits_where_the_pipeline_does_not_answer() {
        let mut d = Direct::default();
        assert!(judged(&mut d, 100, 0));
        (0..10).for_each(|n| d.went(n % 2 == 0));
        assert!(judged(&mut d, 100, 0), "half of them are worth it");
        (0..10).for_each(|n| d.went(n % 3 == 0));
        let off = (0..2 * PATIENCE).take_while(|_| !judged(&mut d, 100, 0)).count();
        assert_eq!(off, PATIENCE as usize);
    }

    #[test]
    fn every_flow_is_in_a_sample_now_and_then_and_some_always_are() {
        let (mut d, ext) = (Direct { on: true, sample: 1, ..Direct::new(5) }, [[0; 8]; 3]);
        let mut times = [0; 1000];
        for _ in 0..(SAMPLE - 1) as u32 * STAY {
            for (flow, times) in times.iter_mut().enumerate() {
                let key = KeyRef { line: &[0, 0, flow as u64, 0, 0, 0, 0, 0], ext: &ext, have: 0 };
                *times += u32::from(!d.takes(&key));
                assert!(d.stays(&key).is_none() || !d.takes(&key));
            }
            d.judge(true);
            d.on = true;
        }
        let always = times.iter().filter(|t| **t > STAY).count();
        assert!((1..50).contains(&always), "{always}");
        assert!(times.iter().all(|t| [STAY, (SAMPLE - 1) as u32 * STAY].contains(t)));
    }
}
