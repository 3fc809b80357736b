//! What controllers' packets may have the packet side do: a packet-out may have thousands of
//! outputs, and the worker that sends them serves other ports, too.

use ofproto::BridgeId;
use std::collections::BTreeMap;
use std::time::Instant;

/// Operations of a bridge's packets each millisecond, and at once.
const OPS_PER_MS: i64 = 64;
const OPS_BURST: i64 = 8192;

/// What each bridge's packets may still do, and when that was reckoned.
#[derive(Default)]
pub struct Injected(BTreeMap<BridgeId, (i64, Option<Instant>)>);

impl Injected {
    /// True if another packet of a bridge may be sent.
    pub fn has_room(&mut self, bridge: BridgeId, now: Instant) -> bool {
        let (left, since) = self.0.entry(bridge).or_insert((OPS_BURST, None));
        let passed = now.saturating_duration_since(since.unwrap_or(now)).as_millis();
        let earned = i64::try_from(passed).unwrap_or(i64::MAX).saturating_mul(OPS_PER_MS);
        if earned > 0 || since.is_none() {
            (*left, *since) = (left.saturating_add(earned).min(OPS_BURST), Some(now));
        }
        *left > 0
    }

    /// A packet of a bridge was sent.
    pub fn spend(&mut self, bridge: BridgeId, ops: usize) {
        let (left, _) = self.0.entry(bridge).or_insert((OPS_BURST, None));
        *left -= ops as i64;
    }

    /// A bridge is gone.
    pub fn forget(&mut self, bridge: BridgeId) {
        self.0.remove(&bridge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bridge_has_its_rate_and_others_theirs() {
        let mut sw = ofproto::Switch::new(sync::Domain::new().writer());
        let [a, b] =
            ["a", "b"].map(|name| sw.add_bridge(name, Default::default(), 0).expect("a bridge"));
        let (mut all, now) = (Injected::default(), Instant::now());
        let ms = |n| now + Duration::from_millis(n);
        let send = |all: &mut Injected, bridge, at| {
            all.has_room(bridge, at).then(|| all.spend(bridge, 4096)).is_some()
        };
        let sent =
            |all: &mut Injected, bridge, at| (0..99).filter(|_| send(all, bridge, at)).count();
        assert_eq!([sent(&mut all, a, now), sent(&mut all, b, now)], [2, 2]);
        assert_eq!(sent(&mut all, a, ms(1)), 1, "as soon as a part of it may be sent");
        assert_eq!([sent(&mut all, a, ms(64)), sent(&mut all, a, ms(65))], [0, 1]);
        assert_eq!(sent(&mut all, a, ms(100_000)), 2, "no more for having waited for long");
    }
}
