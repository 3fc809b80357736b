//! Rates at which next to nothing is lost (RFC 2544 section 26.1, with the goals and words of
//! MLRsearch), and latency at parts of that rate. A trial offers a load for a time, stops, lets the
//! switch drain, and counts what did not come.

use crate::counters::Counters;
use crate::measure::pause;
use crate::results::Spread;
use crate::system::Running;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Goals: the greatest share that may be lost.
pub const GOALS: [f64; 3] = [0.001, 0.0001, 0.0];
/// Loads at which latency is measured: parts of the rate of the second goal, which is the papers'.
pub const PARTS: [f64; 2] = [0.5, 0.9];
const SHARES: [f64; 3] = [0.5, 0.99, 0.999];
/// The search ends when the bounds are this near to each other.
const WIDTH: f64 = 0.02;
const LEAST: f64 = 10_000.0;

/// What was found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Mpps of [`GOALS`]: the lower bound, at which the goal was met; 0 if it never was.
    pub mpps: [f64; 3],
    /// Microseconds at [`PARTS`]: p50, p99, p99.9; the upper edges of buckets that are an eighth of
    /// a power of two wide.
    pub latency_us: [[f64; 3]; 2],
}

/// Latency at a load that is given, the same for every system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AtLoad {
    /// Mpps offered.
    pub mpps: f64,
    /// Share that was lost.
    pub loss: f64,
    /// Microseconds, as in [`Found`].
    pub latency_us: [f64; 3],
    /// p50 and p99 of each millisecond, the middle ones: without what a machine does that is not
    /// this one's alone, as long as most milliseconds are spared.
    #[serde(default)]
    pub middle_us: [f64; 2],
}

/// Offers each of these loads, Mpps.
///
/// # Errors
/// The switch ended, or we were interrupted.
pub fn at_loads(running: &Running, loads: &[f64], seconds: f64) -> Result<Vec<AtLoad>> {
    let at = |mpps: &f64| {
        let Trial { loss, latency_us, middle_us } = trial(running, mpps * 1e6, seconds)?;
        Ok(AtLoad { mpps: *mpps, loss, latency_us, middle_us })
    };
    if !loads.is_empty() {
        // What waits in the ring came due under another load.
        Counters::set_rate(&running.made, 0)?;
        pause(0.05)?;
    }
    loads.iter().map(at).collect()
}

/// One trial's outcome.
struct Trial {
    loss: f64,
    latency_us: [f64; 3],
    middle_us: [f64; 2],
}

/// Waits for so long; says the medians of p50 and p99 over milliseconds.
fn milliseconds(running: &Running, seconds: f64) -> Result<[f64; 2]> {
    let mut last = running.taken()?;
    let mut all = [Vec::new(), Vec::new()];
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        pause(0.001)?;
        let now = running.taken()?;
        for (all, share) in all.iter_mut().zip(SHARES) {
            all.extend(now.latency_us(&last, share));
        }
        last = now;
    }
    Ok(all.map(|us| Spread::of(us.into_iter()).map_or(0.0, |s| s.median)))
}

fn counters(running: &Running) -> Result<(Counters, Counters)> {
    Ok((Counters::read(&running.made)?, running.taken()?))
}

fn trial(running: &Running, rate: f64, seconds: f64) -> Result<Trial> {
    let before = counters(running)?;
    Counters::set_rate(&running.made, rate as u64)?;
    let middle_us = milliseconds(running, seconds)?;
    Counters::set_rate(&running.made, 0)?;
    pause(0.05)?;
    let after = counters(running)?;
    let offered = after.0.made - before.0.made + after.0.missed - before.0.missed;
    let came = after.1.taken - before.1.taken;
    if offered == 0 {
        bail!("the switch took nothing at {rate:.0} packets per second");
    }
    let latency = |share| after.1.latency_us(&before.1, share).unwrap_or(0.0);
    Ok(Trial {
        loss: 1.0 - came.min(offered) as f64 / offered as f64,
        latency_us: SHARES.map(latency),
        middle_us,
    })
}

/// Bounds of a rate: halves what is between until a goal's bounds are near. `meets` says whether a
/// rate meets the goal.
fn bisect(mut low: f64, mut high: f64, mut meets: impl FnMut(f64) -> Result<bool>) -> Result<f64> {
    while high - low > WIDTH * high && high > LEAST {
        let middle = (low + high) / 2.0;
        if meets(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Searches below `capacity`, packets per second, what the switch forwards under overload. Stricter
/// goals begin with the bound that the laxer one met; a pause of the machine may fail a trial, so a
/// failed one is done twice.
///
/// # Errors
/// The switch ended, or we were interrupted.
pub fn search(running: &Running, capacity: f64, seconds: f64) -> Result<Found> {
    let mut high = capacity * 1.05;
    let mut found = [0.0; 3];
    for (i, goal) in GOALS.iter().enumerate() {
        let rate = bisect(0.0, high, |rate| {
            Ok(trial(running, rate, seconds)?.loss <= *goal
                || trial(running, rate, seconds)?.loss <= *goal)
        })?;
        found[i] = found.get(i.wrapping_sub(1)).map_or(rate, |laxer| rate.min(*laxer));
        high = rate.max(LEAST) * (1.0 + WIDTH);
    }
    let mut latency_us = [[0.0; 3]; 2];
    for (i, part) in PARTS.iter().enumerate() {
        latency_us[i] = trial(running, (found[1] * part).max(LEAST), seconds)?.latency_us;
    }
    Ok(Found { mpps: found.map(|r| r / 1e6), latency_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_found_between_its_bounds() {
        let mut trials = 0;
        let found = bisect(0.0, 20e6, |rate| {
            trials += 1;
            Ok(rate < 7e6)
        });
        let found = found.unwrap();
        assert!((6.8e6..7e6).contains(&found), "{found}");
        assert!(trials < 12);
        assert_eq!(bisect(0.0, 20e6, |_| Ok(false)).unwrap(), 0.0);
    }
}
