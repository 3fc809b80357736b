//! How long a burst that is not full is held, to wait for more packets (`tx-flush-interval`).
//!
//! Sending a burst has a fixed cost, and with many ports each gets few packets per vector. Holding
//! a burst pays when the worker is saturated and the port's rate is high enough to fill it soon;
//! otherwise it would only add delay. If no interval is configured, a burst is held only while
//! vectors are half full or more, only if the port's rate promises at least 4 packets more, only
//! until the burst is full at that rate, and at most 25 microseconds.

use crate::stats::clock;
use packet::{BURST, VECTOR};

/// Longest hold without configuration, microseconds.
const FLUSH_WAIT_US_MAX: u64 = 25;
/// Packets that the rate must promise for a burst to be held.
const FLUSH_GAIN_PACKETS_MIN: f32 = 4.0;

/// The conditions that all ports of a worker share at the end of a vector.
#[derive(Clone, Copy, Default)]
pub(crate) struct FlushPolicy {
    /// The configured hold, in cycles; None: by rate and load.
    pub fixed: Option<u64>,
    /// [`FLUSH_WAIT_US_MAX`] in cycles.
    longest: u64,
    /// The last vector was half full or more.
    busy: bool,
}

impl FlushPolicy {
    /// Sets the configured hold, in microseconds; None: by rate and load.
    pub fn configure(&mut self, fixed_us: Option<u64>) {
        let cycles = |us: u64| us * (clock::cycles_per_second() / 1_000_000);
        (self.fixed, self.longest) = (fixed_us.map(cycles), cycles(FLUSH_WAIT_US_MAX));
    }

    /// Records the size of the vector that ended.
    pub fn end_vector(&mut self, n: usize) {
        self.busy = n >= VECTOR / 2;
    }
}

/// A port's recent rate, and how long its burst is held.
#[derive(Default)]
pub(crate) struct FlushTimer {
    /// Packets since the rate was last updated.
    pub new_packets: u64,
    /// Packets per cycle, a moving average.
    rate: f32,
    updated: u64,
    /// Cycle at which the burst is sent; 0: not decided.
    until: u64,
}

impl FlushTimer {
    /// Ends a vector at cycle `now`, and decides about the port's burst of `waiting` packets. True:
    /// it is sent now.
    #[inline]
    pub fn end_vector(&mut self, policy: &FlushPolicy, waiting: usize, now: u64) -> bool {
        let hurried = policy.fixed == Some(0) || policy.fixed.is_none() && !policy.busy;
        if hurried {
            // The rate need not be updated now: packets that come meanwhile are counted in
            // `new_packets`.
            return self.sends_now();
        }
        if self.new_packets > 0 {
            let passed = now.saturating_sub(std::mem::replace(&mut self.updated, now)).max(1);
            let rate = std::mem::take(&mut self.new_packets) as f32 / passed as f32;
            self.rate += (rate - self.rate) / 4.0;
        }
        if waiting == 0 || waiting >= BURST {
            return self.sends_now();
        }
        if self.until == 0 {
            let wait = policy.fixed.unwrap_or_else(|| self.wait_cycles(policy.longest, waiting));
            self.until = now + wait;
        }
        now >= self.until && self.sends_now()
    }

    fn sends_now(&mut self) -> bool {
        self.until = 0;
        true
    }

    /// How long to hold a burst of `waiting` packets, cycles; 0: holding does not pay.
    fn wait_cycles(&self, longest: u64, waiting: usize) -> u64 {
        if self.rate * (longest as f32) < FLUSH_GAIN_PACKETS_MIN {
            return 0;
        }
        let full = (BURST - waiting.min(BURST)) as f32 / self.rate;
        (full as u64).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cycles per microsecond.
    const US: u64 = 2_000;

    fn policy(fixed: Option<u64>, n: usize) -> FlushPolicy {
        let mut policy = FlushPolicy { fixed, longest: FLUSH_WAIT_US_MAX * US, busy: false };
        policy.end_vector(n);
        policy
    }

    /// Vectors of 20 us that bring `n` packets each to an empty burst: how long it then waits, in
    /// us.
    fn wait(policy: &FlushPolicy, n: u64) -> u64 {
        let mut timer = FlushTimer::default();
        let mut now = 1_000_000;
        for _ in 0..50 {
            now += 20 * US;
            timer.new_packets = n;
            timer.end_vector(policy, 0, now);
        }
        (0..1000).find(|us| timer.end_vector(policy, n as usize, now + us * US)).unwrap()
    }

    #[test]
    fn a_busy_worker_waits_for_busy_ports_and_not_long() {
        assert_eq!(wait(&policy(None, VECTOR), 8), FLUSH_WAIT_US_MAX);
        assert_eq!(wait(&policy(None, VECTOR), 24), 7, "until it is full");
        assert_eq!(wait(&policy(None, VECTOR), 2), 0, "too few to gain");
    }

    #[test]
    fn who_has_time_does_not_wait() {
        for n in [0, 1, VECTOR / 2 - 1] {
            assert_eq!(wait(&policy(None, n), 8), 0);
        }
    }

    #[test]
    fn a_fixed_interval_is_kept() {
        for (us, n) in [(0, VECTOR), (50, VECTOR), (50, 1), (100, 0)] {
            assert_eq!(wait(&policy(Some(us * US), n), 8), us);
        }
    }

    #[test]
    fn a_burst_does_not_wait_when_the_load_goes_away() {
        let (busy, idle) = (policy(None, VECTOR), policy(None, 0));
        let mut timer = FlushTimer::default();
        for t in 1..50 {
            timer.new_packets = 8;
            timer.end_vector(&busy, 0, t * 20 * US);
        }
        assert!(!timer.end_vector(&busy, 8, 1000 * US));
        assert!(timer.end_vector(&idle, 8, 1000 * US));
    }
}
