//! What controllers' packets may have the packet side do: a packet-out may have thousands of
//! outputs, and the worker that sends them serves other ports, too.

use ofproto::BridgeId;
use std::collections::BTreeMap;
use std::time::Instant;

/// Operations of a bridge's packets each millisecond, and at once.
const OPS_PER_MS: i64 = 64;
const OPS_BURST: i64 = 8192;

/// What each bridge's packets may still do, and which was its last.
#[derive(Default)]
pub struct Injected(BTreeMap<BridgeId, Account>);

/// One bridge's packets.
struct Account {
    /// Operations that they may still do; less than zero: the last packet did more than was left.
    ops_left: i64,
    /// When `ops_left` was reckoned.
    since: Option<Instant>,
    /// Number of packets of the control side, of all bridges, up to its last one.
    last: u64,
}

impl Default for Account {
    fn default() -> Self {
        Account { ops_left: OPS_BURST, since: None, last: 0 }
    }
}

impl Injected {
    /// True if another packet of a bridge may be sent.
    pub fn has_room(&mut self, bridge: BridgeId, now: Instant) -> bool {
        let account = self.0.entry(bridge).or_default();
        let passed = now.saturating_duration_since(account.since.unwrap_or(now)).as_millis();
        let earned = i64::try_from(passed).unwrap_or(i64::MAX).saturating_mul(OPS_PER_MS);
        if earned > 0 || account.since.is_none() {
            account.ops_left = account.ops_left.saturating_add(earned).min(OPS_BURST);
            account.since = Some(now);
        }
        account.ops_left > 0
    }

    /// A packet of a bridge was sent, the control side's packet number `packet`, counted from 1.
    pub fn sent(&mut self, bridge: BridgeId, ops: usize, packet: u64) {
        let account = self.0.entry(bridge).or_default();
        account.ops_left -= ops as i64;
        account.last = packet;
    }

    /// Number of the last packet that a bridge sent; 0: it sent none.
    pub fn last(&self, bridge: BridgeId) -> u64 {
        self.0.get(&bridge).map_or(0, |account| account.last)
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
            all.has_room(bridge, at).then(|| all.sent(bridge, 4096, 1)).is_some()
        };
        let sent =
            |all: &mut Injected, bridge, at| (0..99).filter(|_| send(all, bridge, at)).count();
        assert_eq!([sent(&mut all, a, now), sent(&mut all, b, now)], [2, 2]);
        assert_eq!(sent(&mut all, a, ms(1)), 1, "as soon as a part of it may be sent");
        assert_eq!([sent(&mut all, a, ms(64)), sent(&mut all, a, ms(65))], [0, 1]);
        assert_eq!(sent(&mut all, a, ms(100_000)), 2, "no more for having waited for long");
    }
}
