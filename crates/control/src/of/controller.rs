//! A controller row of the database at work.

use super::io::{Task, UnixSocket};
use super::timing::Times;
use crate::config::ControllerConf;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A controller row at work.
pub struct Controller {
    pub(crate) conf: ControllerConf,
    /// How many connections have agreed on a version (a passive one may have several).
    pub connections: usize,
    /// Since when the row is there: the start of an absence before the first connection.
    pub(crate) started: Instant,
    /// When the last connection came up, by the daemon's clock, milliseconds.
    pub connected_at: Option<u64>,
    /// When the last connection ended, by the same clock.
    pub disconnected_at: Option<u64>,
    /// When that was by a clock that is not put forward: connections wait for others by this one.
    pub(crate) left_at: Option<Instant>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Packet-ins held back by the rate limit: misses, others.
    limits: [Limit; 2],
    /// Sends changed times to the row's connections.
    times: watch::Sender<Times>,
    _keep: Keep,
}

impl Controller {
    /// A row without connections yet. `times` sends changed times to its connections, `keep` is
    /// what connects or listens for it.
    pub(crate) fn new(
        conf: &ControllerConf,
        (times, keep): (watch::Sender<Times>, Keep),
        last_error: Option<String>,
    ) -> Self {
        Controller {
            conf: conf.clone(),
            connections: 0,
            started: Instant::now(),
            connected_at: None,
            disconnected_at: None,
            left_at: None,
            last_error,
            limits: Default::default(),
            times,
            _keep: keep,
        }
    }

    /// Takes over a changed row, without closing its connections.
    pub(crate) fn reconfigure(&mut self, conf: &ControllerConf) {
        self.conf = conf.clone();
        let times = times(conf);
        self.times.send_if_modified(|old| std::mem::replace(old, times) != times);
    }

    /// True if at least one connection of this row has agreed on a version.
    pub fn connected(&self) -> bool {
        self.connections > 0
    }

    /// True if the switch connects to the controller; false: the controller connects to the switch.
    pub fn active(&self) -> bool {
        is_active(&self.conf)
    }

    /// True if another packet-in may be sent; one that may not is counted.
    pub fn admit(&mut self, miss: bool, now_ms: u64) -> bool {
        let (rate, burst) = (self.conf.rate_limit, self.conf.burst_limit);
        self.limits[usize::from(!miss)].admit(rate, burst, now_ms)
    }

    /// Packet-ins that the rate limit dropped: misses, others. None without a limit.
    pub fn held_back(&self) -> Option<[u64; 2]> {
        (self.conf.rate_limit > 0).then(|| [self.limits[0].dropped, self.limits[1].dropped])
    }
}

/// The times of the connections of a row; the longest pause is at least 100 ms.
pub(crate) fn times(conf: &ControllerConf) -> Times {
    let max_backoff = conf.max_backoff.max(Duration::from_millis(100));
    Times { max_backoff, probe: conf.inactivity_probe }
}

/// True if the switch connects to the controller of this row (`tcp:`, `ssl:`, `unix:`).
pub fn is_active(conf: &ControllerConf) -> bool {
    ["tcp:", "ssl:", "unix:"].iter().any(|kind| conf.target.starts_with(kind))
}

/// A token bucket, in thousandths of a packet.
#[derive(Default)]
struct Limit {
    tokens: u64,
    at_ms: Option<u64>,
    dropped: u64,
}

impl Limit {
    /// `rate`: packets per second, 0 for no limit; `burst`: packets at once, 0 for a quarter of
    /// that.
    fn admit(&mut self, rate: u32, burst: u32, now_ms: u64) -> bool {
        if rate == 0 {
            return true;
        }
        let burst = if burst == 0 { rate / 4 } else { burst };
        let full = u64::from(burst.max(1)) * 1000;
        let passed = self.at_ms.map_or(u64::MAX, |at| now_ms.saturating_sub(at));
        self.at_ms = Some(now_ms);
        self.tokens = self.tokens.saturating_add(passed.saturating_mul(rate.into())).min(full);
        let pass = self.tokens >= 1000;
        if pass {
            self.tokens -= 1000;
        } else {
            self.dropped += 1;
        }
        pass
    }
}

/// What lives as long as the row.
pub(crate) enum Keep {
    Task(#[allow(dead_code)] Task),
    Socket(#[allow(dead_code)] UnixSocket),
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_lets_a_burst_and_then_its_rate_pass() {
        let mut limit = Limit::default();
        let passed = |l: &mut Limit, ms: u64| (0..100).filter(|_| l.admit(100, 10, ms)).count();
        assert_eq!(passed(&mut limit, 5), 10);
        assert_eq!(passed(&mut limit, 25), 2);
        assert_eq!(limit.dropped, 188);
        assert_eq!(passed(&mut limit, 100_000), 10, "no more than a burst is saved up");
        assert!((0..1000).all(|_| Limit::default().admit(0, 0, 0)));
    }
}
