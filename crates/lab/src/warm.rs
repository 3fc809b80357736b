//! Warm-up: until the caches are filled, or as long as is allowed.

use crate::cached::Cached;
use crate::measure::pause;
use crate::offloaded;
use crate::system::{Running, System};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Between two looks, seconds.
const STEP: f64 = 0.4;
/// Looks in a row that see no growth.
const CALM: u32 = 2;
/// [`CALM`] where rules go to an adapter, which Weft decides about once a second.
const CALM_OFFLOAD: u32 = 5;
/// Growth that is none.
const GROWTH: f64 = 0.0025;

/// How a warm-up ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Warm {
    /// How long it took.
    pub seconds: f64,
    /// True if the number of megaflows stood still.
    pub settled: bool,
}

/// Waits until the switch's megaflows (and its adapter's rules) do not grow from one look to the
/// next, `limit` seconds at most. testpmd caches nothing and gets half a second.
///
/// # Errors
/// Interrupted.
pub fn warm_up(running: &Running, system: &System, limit: f64) -> Result<Warm> {
    let began = Instant::now();
    if system.ceiling() {
        pause(0.5)?;
        return Ok(Warm { seconds: 0.5, settled: true });
    }
    let (mut calm, mut before) = (0, f64::INFINITY);
    let wanted = if system.offloads() { CALM_OFFLOAD } else { CALM };
    while calm < wanted && began.elapsed().as_secs_f64() < limit {
        pause(STEP)?;
        let rules = if system.offloads() { offloaded::rules(&running.dir).unwrap_or(0) } else { 0 };
        let now = (Cached::megaflows_of(&running.dir).unwrap_or(0) + rules) as f64;
        // Before the first rules Weft finds out for some seconds what the adapter makes of them.
        let begun = !system.offloads() || rules > 0;
        calm = if begun && is_calm(before, now) { calm + 1 } else { 0 };
        before = now;
    }
    Ok(Warm { seconds: began.elapsed().as_secs_f64(), settled: calm >= wanted })
}

fn is_calm(before: f64, now: f64) -> bool {
    now <= before * (1.0 + GROWTH) && now >= before * (1.0 - GROWTH)
}

#[cfg(test)]
mod tests {
    #[test]
    fn calm_is_a_quarter_per_cent() {
        for (before, now, calm) in
            [(1000.0, 1002.0, true), (1000.0, 1003.0, false), (1000.0, 900.0, false)]
        {
            assert_eq!(super::is_calm(before, now), calm);
        }
        assert!(!super::is_calm(f64::INFINITY, 1.0));
    }
}
