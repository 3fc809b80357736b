//! Policing: limits of what a port may receive (`ingress_policing_*`), checked before packets are
//! parsed, and of what may be sent to it (QoS of type `egress-policer`), checked when a burst is
//! sent.
//!
//! There are two token buckets, one of bytes and one of packets. A packet passes if both have
//! enough tokens, otherwise it is dropped as `Drop::Policed` or `Drop::TxPoliced`. Several workers
//! may serve a port's queues: the levels are atomics, read and written once per burst. If two
//! workers decide at the same moment both may spend the same tokens. The level is below zero then
//! until the rate has paid for that, so a port is ahead of its rate by at most one burst per
//! worker.

use crate::settings::{EgressPolicer, Policing};
use packet::Packet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Bytes of a packet that are not counted: its Ethernet header (as for OVS's DPDK ports).
const ETHERNET_BYTES: usize = 14;
/// Tokens of one byte or packet: so the rate in tokens per nanosecond is a whole number.
const TOKENS_PER_UNIT: u64 = 1_000_000_000;
/// Bytes or packets that a bucket holds at most: their tokens fit 63 bits.
const DEPTH_UNITS_MAX: u64 = i64::MAX as u64 / TOKENS_PER_UNIT;
/// Default of `ingress_policing_burst`, kbit (as in OVS).
const DEFAULT_BURST_KBIT: u32 = 8_000;
/// Default of `ingress_policing_kpkts_burst`, thousands of packets (as in OVS).
const DEFAULT_BURST_KPKT: u32 = 16;

/// A token bucket.
struct Bucket {
    /// Tokens per nanosecond; as a number this is the rate in bytes or packets per second.
    rate: u64,
    depth: i64,
    level: AtomicI64,
    filled_ns: AtomicU64,
}

impl Bucket {
    /// A bucket that is full at `now_ns`.
    fn new(rate: u64, depth: u64, now_ns: u64) -> Bucket {
        let depth = (depth.min(DEPTH_UNITS_MAX) * TOKENS_PER_UNIT) as i64;
        Bucket { rate, depth, level: AtomicI64::new(depth), filled_ns: AtomicU64::new(now_ns) }
    }

    /// Adds the tokens for the time that has passed; returns the level.
    fn fill(&self, now_ns: u64) -> i64 {
        let since = self.filled_ns.load(Relaxed);
        let passed = now_ns.saturating_sub(since);
        if passed > 0 && self.filled_ns.compare_exchange(since, now_ns, Relaxed, Relaxed).is_ok() {
            let fresh = (u128::from(passed) * u128::from(self.rate)).min(i64::MAX as u128) as i64;
            let more = |level: i64| Some(level.saturating_add(fresh).min(self.depth));
            let _ = self.level.fetch_update(Relaxed, Relaxed, more);
        }
        self.level.load(Relaxed)
    }

    fn spend(&self, tokens: i64) {
        self.level.fetch_sub(tokens, Relaxed);
    }
}

/// The limits of one port, shared by the workers that serve it.
pub(crate) struct Policer {
    bytes: Option<Bucket>,
    packets: Option<Bucket>,
}

impl Policer {
    /// The limit of what is sent to a port, with a full bucket at `now_ns`.
    pub fn egress(p: &EgressPolicer, now_ns: u64) -> Policer {
        Policer { bytes: Some(Bucket::new(p.cir, p.cbs, now_ns)), packets: None }
    }

    /// The limits of what a port receives, with full buckets at `now_ns`; None: there is no limit.
    pub fn new(p: &Policing, now_ns: u64) -> Option<Policer> {
        let or = |burst: u32, default: u32| u64::from(if burst == 0 { default } else { burst });
        let bucket = |rate: u32, burst: u64, unit: u64| {
            (rate > 0).then(|| Bucket::new(u64::from(rate) * unit, burst * unit, now_ns))
        };
        // A kbit is 125 bytes.
        let bytes = bucket(p.kbit_rate, or(p.kbit_burst, DEFAULT_BURST_KBIT), 125);
        let packets = bucket(p.kpkt_rate, or(p.kpkt_burst, DEFAULT_BURST_KPKT), 1000);
        (bytes.is_some() || packets.is_some()).then_some(Policer { bytes, packets })
    }

    /// Moves those of `packets[start..]` that exceed the limits at `now_ns` to `refused`; the
    /// others keep their order.
    pub fn run(
        &self,
        now_ns: u64,
        packets: &mut Vec<Packet>,
        start: usize,
        refused: &mut Vec<Packet>,
    ) {
        let level = |b: &Option<Bucket>| b.as_ref().map_or(i64::MAX, |b| b.fill(now_ns));
        let had = [level(&self.bytes), level(&self.packets)];
        let mut have = had;
        let is_refused = |p: &mut Packet| {
            let bytes = p.len().saturating_sub(ETHERNET_BYTES) as u64;
            let cost = [bytes, 1].map(|units| (units * TOKENS_PER_UNIT) as i64);
            let passes = have.iter().zip(cost).all(|(have, cost)| *have >= cost);
            if passes {
                have.iter_mut().zip(cost).for_each(|(have, cost)| *have -= cost);
            }
            !passes
        };
        refused.extend(packets.extract_if(start.., is_refused));
        for ((bucket, had), have) in [&self.bytes, &self.packets].iter().zip(had).zip(have) {
            if let Some(bucket) = bucket {
                bucket.spend(had - have);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{HeapPool, Pool};

    const SECOND_NS: u64 = 1_000_000_000;

    /// Offers packets of `len` bytes at `now_ns`; how many pass.
    fn offer(p: &Policer, pool: &HeapPool, now_ns: u64, n: usize, len: usize) -> usize {
        let mut packets: Vec<Packet> =
            (0..n).map(|i| pool.packet(&vec![i as u8; len]).unwrap()).collect();
        let mut refused = Vec::new();
        p.run(now_ns, &mut packets, 0, &mut refused);
        assert_eq!(packets.len() + refused.len(), n);
        let order = |list: &[Packet]| list.iter().map(|p| p.data()[0]).is_sorted();
        assert!(n > 256 || order(&packets) && order(&refused));
        pool.free(&packets);
        pool.free(&refused);
        assert_eq!(pool.in_use(), 0);
        n - refused.len()
    }

    fn policer(p: Policing) -> Policer {
        Policer::new(&p, 5 * SECOND_NS).expect("limits")
    }

    #[test]
    fn no_rate_no_policer() {
        let only_bursts = Policing { kbit_burst: 7, kpkt_burst: 7, ..Policing::default() };
        assert!(Policer::new(&Policing::default(), 0).is_none());
        assert!(Policer::new(&only_bursts, 0).is_none());
    }

    #[test]
    fn bytes_without_ethernet_header_up_to_the_burst_then_at_the_rate() {
        let pool = HeapPool::new();
        // 1 Mbit/s is 125 packets of 1,000 bytes per second.
        let p = policer(Policing { kbit_rate: 1000, kbit_burst: 80, ..Policing::default() });
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS, 30, 1014), 10, "the burst");
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS, 30, 1014), 0);
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS + 7_999_999, 30, 1014), 0, "a byte is missing");
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS + 8_000_000, 30, 1014), 1);
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS + 8_000_000, 30, 60), 0);
        assert_eq!(offer(&p, &pool, 4 * SECOND_NS, 30, 1014), 0, "another core's clock");
        assert_eq!(offer(&p, &pool, 500 * SECOND_NS, 30, 1014), 10, "no more than the burst");
        let passed = |ms: u64| offer(&p, &pool, 500 * SECOND_NS + ms * 1_000_000, 5, 1014);
        assert_eq!((1..=10_000).map(passed).sum::<usize>(), 1250, "10 s at 125 packets per second");
    }

    #[test]
    fn small_packets_pass_where_large_ones_do_not() {
        let (pool, mut refused) = (HeapPool::new(), Vec::new());
        let p = policer(Policing { kbit_rate: 1, kbit_burst: 8, ..Policing::default() });
        let mut packets: Vec<Packet> =
            [60, 1514, 514, 1514, 454].map(|n| pool.packet(&vec![0; n]).unwrap()).into();
        p.run(5 * SECOND_NS, &mut packets, 1, &mut refused);
        let lens = |list: &[Packet]| list.iter().map(Packet::len).collect::<Vec<_>>();
        assert_eq!((lens(&packets), lens(&refused)), (vec![60, 514, 454], vec![1514, 1514]));
        [packets, refused].iter().for_each(|list| pool.free(list));
    }

    #[test]
    fn packets_count_too_and_what_one_bucket_refuses_costs_the_other_nothing() {
        let pool = HeapPool::new();
        let p = policer(Policing { kpkt_rate: 1, kpkt_burst: 2, ..Policing::default() });
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS, 3000, 60), 2000);
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS + 10_000_000, 3000, 1514), 10);
        let both = policer(Policing { kbit_rate: 8, kbit_burst: 8, kpkt_rate: 1, kpkt_burst: 1 });
        assert_eq!(offer(&both, &pool, 5 * SECOND_NS, 500, 1514), 0, "longer than the burst");
        assert_eq!(offer(&both, &pool, 5 * SECOND_NS, 3000, 14), 1000, "no packet was charged");
        assert_eq!(offer(&both, &pool, 5 * SECOND_NS, 1, 14), 0);
    }

    #[test]
    fn bursts_of_the_defaults_and_the_largest_numbers() {
        let pool = HeapPool::new();
        let p = policer(Policing { kbit_rate: 1, ..Policing::default() });
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS, 1200, 1014), 1000, "8,000 kbit");
        let p = policer(Policing { kpkt_rate: 1, ..Policing::default() });
        assert_eq!(offer(&p, &pool, 5 * SECOND_NS, 16_001, 60), 16_000);
        let most = u32::MAX;
        let p = policer(Policing {
            kbit_rate: most,
            kbit_burst: most,
            kpkt_rate: most,
            kpkt_burst: most,
        });
        assert_eq!(offer(&p, &pool, u64::MAX, 1000, 1514), 1000);
    }

    #[test]
    fn workers_that_decide_together_are_ahead_by_a_burst_at_most() {
        let p = policer(Policing { kpkt_rate: 1, kpkt_burst: 1, ..Policing::default() });
        let passed: usize = std::thread::scope(|s| {
            let work = || (0..500).map(|_| offer(&p, &HeapPool::new(), 5 * SECOND_NS, 4, 60)).sum();
            let all: Vec<_> = (0..4).map(|_| s.spawn(work)).collect();
            all.into_iter().map(|t| -> usize { t.join().unwrap() }).sum()
        });
        assert!((1000..=1000 + 3 * 4).contains(&passed), "{passed}");
        let level = p.packets.as_ref().unwrap().level.load(Relaxed);
        assert_eq!(level, (1000 - passed as i64) * TOKENS_PER_UNIT as i64, "what is owed");
    }
}
