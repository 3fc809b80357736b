//! Meters (OpenFlow 1.3.5, section 5.7): token buckets that all workers share.
//!
//! A bucket is one 64-bit word, its level and the time at which that was right, which a worker
//! replaces in one step or reads again: no lock, nothing is lost, and no two packets spend the same
//! tokens. Levels are bits or thousandths of a packet, of which rates in kbit/s or packets per
//! second bring whole numbers per millisecond, as in ovs-vswitchd.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Bands of one meter, at most (OVS's number).
pub const METER_BANDS_MAX: usize = 8;

/// Upper bits of a bucket's word: milliseconds, which come round after 70 minutes.
const TIME_BITS: u32 = 22;
/// A time that is further ahead than this belongs to a core whose clock is behind.
const AHEAD_MS: u64 = 1 << (TIME_BITS - 1);
/// Lower bits: the level. The largest burst, `u32::MAX` thousand units, fits.
const LEVEL_BITS: u32 = 64 - TIME_BITS;
const LEVEL: u64 = (1 << LEVEL_BITS) - 1;
/// Units of a packet, and units of a burst of 1.
const PACKET_UNITS: u64 = 1000;
/// In the meter's shape: rates are packets per second, not kbit/s.
const BY_PACKETS: u32 = 1 << 8;

/// How often a meter must be looked at ([`Meter::touch`]) so that its clock is not misread, ms.
pub const METER_TOUCH_MS: u64 = AHEAD_MS / 4;

/// What a band does to packets beyond its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandKind {
    /// Packets beyond the band's rate are dropped.
    Drop,
    /// The drop precedence of the DSCP of packets beyond the band's rate rises by so much.
    Remark(u8),
}

/// A band as a controller sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandConfig {
    /// kbit/s or packets per second.
    pub rate: u32,
    /// Depth of the bucket in kbit or packets; 0: as much as the rate brings in a second.
    pub burst: u32,
    /// What happens to packets beyond the rate.
    pub kind: BandKind,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No band is exceeded.
    Pass,
    /// The packet goes on with a higher drop precedence ([`remarked`]).
    Remark(u8),
    /// The packet is dropped.
    Drop,
}

/// A bucket and what it counted.
#[derive(Debug)]
struct Band {
    word: AtomicU64,
    rate: AtomicU32,
    burst: AtomicU32,
    /// 0: drop; else remark by one less.
    kind: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// A meter. Workers run packets through it while the control side changes and reads it; a packet
/// that comes in the middle of a change may meet bands of both.
#[derive(Debug)]
pub struct Meter {
    id: u32,
    /// Number of bands, and [`BY_PACKETS`].
    shape: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
    bands: [Band; METER_BANDS_MAX],
}

/// Two are equal if they are the same one in memory.
impl PartialEq for Meter {
    fn eq(&self, other: &Meter) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Meter {}

impl Hash for Meter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

/// Packets and bytes.
pub type Counted = (u64, u64);

impl Meter {
    /// A meter that everything passes, with the datapath's number for it.
    pub fn new(id: u32) -> Meter {
        let band = || Band {
            word: AtomicU64::new(0),
            rate: AtomicU32::new(0),
            burst: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        Meter {
            id,
            shape: AtomicU32::new(0),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bands: std::array::from_fn(|_| band()),
        }
    }

    /// The datapath's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Sets at most [`METER_BANDS_MAX`] bands; buckets begin full and counters at zero, as in OVS.
    pub fn set(&self, bands: &[BandConfig], by_packets: bool, now_ms: u64) {
        self.shape.store(0, Release);
        [&self.packets, &self.bytes].iter().for_each(|c| c.store(0, Relaxed));
        for (band, to) in self.bands.iter().zip(bands) {
            let burst = if to.burst == 0 { to.rate } else { to.burst };
            let kind = match to.kind {
                BandKind::Drop => 0,
                BandKind::Remark(by) => 1 + u32::from(by),
            };
            band.rate.store(to.rate, Relaxed);
            band.burst.store(burst, Relaxed);
            band.kind.store(kind, Relaxed);
            band.packets.store(0, Relaxed);
            band.bytes.store(0, Relaxed);
            band.word.store(word(u64::from(burst) * PACKET_UNITS, now_ms), Relaxed);
        }
        let unit = if by_packets { BY_PACKETS } else { 0 };
        self.shape.store(bands.len().min(METER_BANDS_MAX) as u32 | unit, Release);
    }

    /// What becomes of a packet of `bytes` bytes at `now_ms`. Of the bands that it exceeds the one
    /// with the highest rate decides.
    pub fn run(&self, bytes: usize, now_ms: u64) -> Verdict {
        let shape = self.shape.load(Acquire);
        let cost = if shape & BY_PACKETS != 0 { PACKET_UNITS } else { 8 * bytes as u64 };
        self.packets.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
        let mut highest: Option<(u32, &Band)> = None;
        for band in &self.bands[..(shape & 0xff) as usize] {
            let rate = band.rate.load(Relaxed);
            if !band.take(cost, rate, now_ms) && rate > highest.map_or(0, |(r, _)| r) {
                highest = Some((rate, band));
            }
        }
        let Some((_, band)) = highest else { return Verdict::Pass };
        band.packets.fetch_add(1, Relaxed);
        band.bytes.fetch_add(bytes as u64, Relaxed);
        match band.kind.load(Relaxed) {
            0 => Verdict::Drop,
            by => Verdict::Remark((by - 1) as u8),
        }
    }

    /// Adds what the time brought. To be called at least every [`METER_TOUCH_MS`].
    pub fn touch(&self, now_ms: u64) {
        let n = (self.shape.load(Acquire) & 0xff) as usize;
        self.bands[..n].iter().for_each(|b| _ = b.take(0, b.rate.load(Relaxed), now_ms));
    }

    /// What came in, and what each band acted on.
    pub fn counted(&self) -> (Counted, Vec<Counted>) {
        let of = |p: &AtomicU64, b: &AtomicU64| (p.load(Relaxed), b.load(Relaxed));
        let n = (self.shape.load(Acquire) & 0xff) as usize;
        let bands = self.bands[..n].iter().map(|b| of(&b.packets, &b.bytes)).collect();
        (of(&self.packets, &self.bytes), bands)
    }
}

fn word(level: u64, now_ms: u64) -> u64 {
    now_ms << LEVEL_BITS | level
}

impl Band {
    /// Takes `cost` units, if there are as many.
    fn take(&self, cost: u64, rate: u32, now_ms: u64) -> bool {
        let depth = u64::from(self.burst.load(Relaxed)) * PACKET_UNITS;
        let mut old = self.word.load(Relaxed);
        loop {
            let (then, passed) = (old >> LEVEL_BITS, now_ms.wrapping_sub(old >> LEVEL_BITS));
            let passed = passed & ((1 << TIME_BITS) - 1);
            let (passed, at) = if passed < AHEAD_MS { (passed, now_ms) } else { (0, then) };
            let full = ((old & LEVEL) + passed * u64::from(rate)).min(depth);
            let left = full.checked_sub(cost);
            let new = word(left.unwrap_or(full), at);
            if new == old {
                return left.is_some();
            }
            match self.word.compare_exchange_weak(old, new, Relaxed, Relaxed) {
                Ok(_) => return left.is_some(),
                Err(now) => old = now,
            }
        }
    }
}

/// A TOS byte whose DSCP has a drop precedence that is higher by `by`, at most the highest: of
/// assured forwarding (RFC 2597, section 6); other classes have none and stay.
pub fn remarked(tos: u8, by: u8) -> u8 {
    let (class, precedence) = (tos >> 5, tos >> 3 & 3);
    let assured = (1..=4).contains(&class) && precedence > 0 && tos & 4 == 0;
    if !assured {
        return tos;
    }
    tos & !0x18 | precedence.saturating_add(by).min(3) << 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn drops(rate: u32, burst: u32) -> BandConfig {
        BandConfig { rate, burst, kind: BandKind::Drop }
    }

    fn meter(bands: &[BandConfig], by_packets: bool, now_ms: u64) -> Meter {
        let m = Meter::new(0);
        m.set(bands, by_packets, now_ms);
        m
    }

    #[test]
    fn packets_pass_up_to_the_burst_then_at_the_rate() {
        let m = meter(&[drops(10, 4)], true, 5_000);
        let passed = |at| (0..20).filter(|_| m.run(60, at) == Verdict::Pass).count();
        assert_eq!([5_000, 5_099, 5_100, 5_350, 9_000].map(passed), [4, 0, 1, 2, 4]);
        assert_eq!(passed(8_000), 0, "another core's clock is behind");
        assert_eq!(m.counted(), ((120, 7_200), vec![(109, 6_540)]));
        m.set(&[drops(1, 0)], true, 9_000);
        assert_eq!(m.counted(), ((0, 0), vec![(0, 0)]));
        assert_eq!(passed(9_000), 1, "a burst of 0 is that of a second");
    }

    #[test]
    fn kilobits_count_whole_packets() {
        // A kbit is 125 bytes; a burst of 8 kbit is 10 packets of 100 bytes.
        let m = meter(&[drops(1, 8)], false, 0);
        let passed = |at, len| (0..20).filter(|_| m.run(len, at) == Verdict::Pass).count();
        assert_eq!((passed(0, 100), passed(799, 100), passed(800, 100)), (10, 0, 1));
        assert_eq!((passed(9_000, 1001), passed(9_000, 1000)), (0, 1));
    }

    #[test]
    fn of_the_exceeded_bands_that_of_the_highest_rate_acts() {
        let remark = BandConfig { rate: 1, burst: 1, kind: BandKind::Remark(1) };
        let m = meter(&[remark, drops(3, 3), drops(0, 0)], true, 0);
        let verdicts: Vec<_> = (0..5).map(|_| m.run(60, 0)).collect();
        use Verdict::*;
        assert_eq!(verdicts, [Pass, Remark(1), Remark(1), Drop, Drop]);
        assert_eq!(m.counted(), ((5, 300), vec![(2, 120), (2, 120), (0, 0)]));
    }

    #[test]
    fn the_clock_comes_round() {
        let m = meter(&[drops(1000, u32::MAX)], true, 0);
        let days = 5 * 24 * 3_600_000;
        let level = |m: &Meter| m.bands[0].word.load(Relaxed) & LEVEL;
        m.bands[0].word.store(word(0, 0), Relaxed);
        (0..days).step_by(METER_TOUCH_MS as usize).for_each(|at| m.touch(at));
        let last = (days - 1) / METER_TOUCH_MS * METER_TOUCH_MS;
        assert_eq!(level(&m), last * 1000);
    }

    #[test]
    fn workers_share_a_bucket_and_spend_nothing_twice() {
        let m = meter(&[drops(1, 1000)], true, 7);
        let passed: usize = std::thread::scope(|s| {
            let work = || (0..500).filter(|_| m.run(60, 7) == Verdict::Pass).count();
            let all: Vec<_> = (0..4).map(|_| s.spawn(work)).collect();
            all.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!((passed, m.counted()), (1000, ((2000, 120_000), vec![(1000, 60_000)])));
    }

    /// The slow twin: passed packets of the past, by the definition of a bucket.
    #[test]
    fn a_bucket_is_as_full_as_its_history_says() {
        let (rate, burst) = (7u64, 13u64);
        let m = meter(&[drops(rate as u32, burst as u32)], true, 0);
        let (mut level, mut at, mut seed) = (burst * 1000, 0u64, 1u64);
        let mut times: VecDeque<u64> = (0..4000)
            .map(|_| {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                seed >> 57
            })
            .collect();
        let mut now = 0;
        while let Some(step) = times.pop_front() {
            now += step;
            level = (level + (now - at) * rate).min(burst * 1000);
            at = now;
            let pass = level >= 1000;
            level -= if pass { 1000 } else { 0 };
            assert_eq!(m.run(60, now) == Verdict::Pass, pass, "at {now}");
        }
    }

    #[test]
    fn drop_precedence_rises_to_three() {
        let af = |class: u8, drop: u8| (class << 3 | drop << 1) << 2;
        assert_eq!(remarked(af(1, 1) | 2, 1), af(1, 2) | 2);
        assert_eq!(remarked(af(4, 2), 9), af(4, 3));
        for tos in [0, 0xb8, 0xe0, af(2, 0), 0x2c | 4] {
            assert_eq!(remarked(tos, 1), tos, "{tos:#x} is no assured forwarding");
        }
    }
}
