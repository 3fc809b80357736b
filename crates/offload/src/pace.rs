//! The pace of insertions: how fast an adapter takes rules, and how many may be requested.

/// Assumed duration of an insertion before one was measured, microseconds.
const GUESS_US: f64 = 1000.0;
/// Least time for which an insertion is taken to keep a core busy, microseconds.
const CPU_US_MIN: f64 = 20.0;
/// Share of the adapter's time that filling free room may take.
const FILL_PART: f64 = 0.9;
/// Share of the adapter's time that exchanging rules may take.
const SWAP_PART: f64 = 0.5;
/// Weight of a new measurement: about the last 32 count.
const WEIGHT: f64 = 1.0 / 32.0;
/// A measurement of CPU time counts at most as so many times the average: a call in which the
/// machine did something else is no slow adapter.
const OUTLIER_FACTOR: f64 = 4.0;
/// Half of the CPU time above [`CPU_US_MIN`] is forgotten in so many seconds. Where no flow is
/// worth an insertion any more none is measured, so a wrong average would stay for ever.
const FORGET_HALF_SECONDS: f64 = 60.0;
/// Factor for the eagerness after a second without "busy".
const MORE: f64 = 1.1;
/// Factor for the eagerness after each "busy".
const LESS: f64 = 0.5;
/// Insertions per second that are tried at least, however slow they are.
const RATE_MIN: f64 = 1.0;

/// Budget of insertions: that of a second at most is saved up.
pub(crate) struct Pace {
    create_us: f64,
    cpu_us: f64,
    measured: bool,
    /// Factor for the rate: 1, less after "busy".
    eagerness: f64,
    fill: f64,
    swap: f64,
    at_ms: u64,
}

impl Pace {
    pub fn new(now_ms: u64) -> Pace {
        let (fill, swap) = (RATE_MIN, RATE_MIN);
        let (create_us, measured) = (GUESS_US, false);
        Pace { create_us, cpu_us: CPU_US_MIN, measured, eagerness: 1.0, fill, swap, at_ms: now_ms }
    }

    /// Duration of an insertion, microseconds.
    pub fn create_us(&self) -> f64 {
        self.create_us
    }

    /// Insertions per second into free room.
    pub fn rate(&self) -> f64 {
        (FILL_PART * 1e6 / self.create_us.max(0.1) * self.eagerness).max(RATE_MIN)
    }

    /// Time for which an insertion keeps a core busy, microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_us
    }

    /// Records the duration of an insertion, and for how long it kept a core busy.
    pub fn took(&mut self, us: u64, cpu_us: u64) {
        let most = OUTLIER_FACTOR * self.cpu_us;
        let (us, cpu_us) = (us as f64, (cpu_us as f64).clamp(CPU_US_MIN, most));
        self.cpu_us += (cpu_us - self.cpu_us) * WEIGHT;
        let weight = if self.measured { WEIGHT } else { 1.0 };
        self.measured = true;
        self.create_us += (us - self.create_us) * weight;
    }

    /// Records that the adapter answered "busy".
    pub fn busy(&mut self) {
        self.eagerness = (self.eagerness * LESS).max(1e-3);
        (self.fill, self.swap) = (0.0, 0.0);
    }

    /// Adds budget for the time that has passed.
    pub fn advance(&mut self, now_ms: u64) {
        let seconds = now_ms.saturating_sub(self.at_ms) as f64 / 1000.0;
        self.at_ms = now_ms;
        self.eagerness = (self.eagerness * MORE.powf(seconds.min(60.0))).min(1.0);
        let kept = 0.5_f64.powf(seconds / FORGET_HALF_SECONDS);
        self.cpu_us = CPU_US_MIN + (self.cpu_us - CPU_US_MIN) * kept;
        let rate = self.rate();
        self.fill = (self.fill + rate * seconds).min(rate.max(1.0));
        let rate = rate * SWAP_PART / FILL_PART;
        self.swap = (self.swap + rate * seconds).min(rate.max(1.0));
    }

    /// Takes the budget for one insertion; `swap`: another rule is removed for it. False: there is
    /// none.
    pub fn pay(&mut self, swap: bool) -> bool {
        let pocket = if swap { &mut self.swap } else { &mut self.fill };
        let enough = *pocket >= 1.0;
        if enough {
            *pocket -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paid(pace: &mut Pace, swap: bool) -> usize {
        (0..1_000_000).take_while(|_| pace.pay(swap)).count()
    }

    #[test]
    fn insertions_fit_the_adapter() {
        let mut pace = Pace::new(0);
        for _ in 0..200 {
            pace.took(10_000, 5);
        }
        let mut sums = [0, 0];
        for second in 1..=10 {
            pace.advance(second * 1000);
            sums[0] += paid(&mut pace, false);
            sums[1] += paid(&mut pace, true);
        }
        // 100 per second at most: 90 and 50.
        assert!((890..=901).contains(&sums[0]) && (490..=501).contains(&sums[1]), "{sums:?}");
        pace.advance(100_000);
        assert!(paid(&mut pace, false) <= 90, "a second's worth is saved up");
    }

    #[test]
    fn busy_means_less_and_time_heals() {
        let mut pace = Pace::new(0);
        (0..200).for_each(|_| pace.took(1000, 5));
        pace.busy();
        pace.busy();
        pace.advance(1000);
        let after = paid(&mut pace, false);
        assert!((200..300).contains(&after), "{after}");
        pace.advance(61_000);
        assert!(paid(&mut pace, false) >= 895);
    }

    #[test]
    fn one_slow_call_does_not_make_an_adapter_slow_but_many_do() {
        let mut pace = Pace::new(0);
        (0..20).for_each(|_| pace.took(10, 5));
        pace.took(50_000, 50_000);
        assert!(pace.cpu_us() < 25.0, "{}", pace.cpu_us());
        (0..100).for_each(|_| pace.took(2000, 1000));
        assert!(pace.cpu_us() > 900.0, "{}", pace.cpu_us());
        // Flows for which that is too much are tried again after some minutes.
        pace.advance(600_000);
        assert!(pace.cpu_us() < 25.0, "{}", pace.cpu_us());
    }
}
