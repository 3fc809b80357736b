//! Connections that a control connection announced.

use crate::conn::Translation;
use crate::tuple::Tuple;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Announced connections there may be at once: 400 KiB. Those of one zone are a quarter at most.
const EXPECTED_COUNT_MAX: usize = 4096;
const ZONE_SHARE: u16 = 4;
/// Attempts at the lock while others have it, which is for less than a microsecond.
const ATTEMPTS_COUNT_MAX: usize = 256;

/// What an announced connection is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The connection that announced it, as its store names it.
    pub parent: u64,
    /// What is translated of its first packet.
    pub nat: Translation,
    /// The address and, of a destination, the port that this becomes.
    pub to: (u128, u16),
}

/// All of them, by the tuple of the first packet, whose source port is 0: any. Workers never wait for each other:
/// whoever does not get the lock finds nothing.
pub struct Expectations {
    all: Mutex<HashMap<Tuple, Expected>>,
    count: AtomicU32,
    zones: Box<[AtomicU16]>,
}

impl Default for Expectations {
    fn default() -> Self {
        Expectations {
            all: Mutex::new(HashMap::with_capacity(EXPECTED_COUNT_MAX)),
            count: AtomicU32::new(0),
            zones: (0..=u16::MAX).map(|_| AtomicU16::new(0)).collect(),
        }
    }
}

fn key(tuple: &Tuple) -> Tuple {
    Tuple { sport: 0, icmp_type: 0, ..*tuple }
}

impl Expectations {
    /// Is this the first packet of one? `lives`: does the parent live still?
    pub fn find(&self, tuple: &Tuple, lives: impl FnOnce(u64) -> bool) -> Option<Expected> {
        if self.zones[usize::from(tuple.zone)].load(Relaxed) == 0 {
            return None;
        }
        let found = self.lock()?.get(&key(tuple)).copied();
        found.filter(|e| lives(e.parent))
    }

    /// Adds one; false: there are too many, or another connection announced the same.
    pub fn add(&self, tuple: &Tuple, what: Expected, lives: impl FnOnce(u64) -> bool) -> bool {
        let Some(mut all) = self.lock() else { return false };
        let of_zone = &self.zones[usize::from(tuple.zone)];
        let key = key(tuple);
        if let Some(old) = all.get_mut(&key) {
            let ours = old.parent == what.parent || !lives(old.parent);
            if ours {
                *old = what;
            }
            return ours;
        }
        let share = EXPECTED_COUNT_MAX as u16 / ZONE_SHARE;
        if all.len() >= EXPECTED_COUNT_MAX || of_zone.load(Relaxed) >= share {
            return false;
        }
        all.insert(key, what);
        of_zone.fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        true
    }

    /// Forgets those whose parent has ended. For the keeper.
    pub fn tidy(&self, lives: impl Fn(u64) -> bool) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let Ok(mut all) = self.all.try_lock() else { return };
        all.retain(|tuple, e| {
            let stays = lives(e.parent);
            if !stays {
                self.zones[usize::from(tuple.zone)].fetch_sub(1, Relaxed);
                self.count.fetch_sub(1, Relaxed);
            }
            stays
        });
    }

    fn lock(&self) -> Option<MutexGuard<'_, HashMap<Tuple, Expected>>> {
        (0..ATTEMPTS_COUNT_MAX).find_map(|_| {
            std::hint::spin_loop();
            self.all.try_lock().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(dport: u16) -> Tuple {
        Tuple { src: 1, dst: 2, sport: 9, dport, proto: 6, zone: 3, ..Tuple::default() }
    }

    fn of(parent: u64) -> Expected {
        Expected { parent, nat: Translation::None, to: (0, 0) }
    }

    #[test]
    fn announced_connections_live_as_long_as_their_parents() {
        let all = Expectations::default();
        assert!(all.add(&tuple(80), of(1), |_| true));
        assert!(!all.add(&tuple(80), of(2), |_| true), "announced by somebody else");
        let any_port = Tuple { sport: 1234, ..tuple(80) };
        assert_eq!(all.find(&any_port, |_| true), Some(of(1)));
        assert_eq!(all.find(&any_port, |_| false), None);
        assert_eq!(all.find(&tuple(81), |_| true), None);
        all.tidy(|_| true);
        assert_eq!(all.find(&tuple(80), |_| true), Some(of(1)));
        assert!(all.add(&tuple(80), of(2), |_| false), "its parent has ended");
        all.tidy(|_| false);
        assert_eq!(all.find(&tuple(80), |_| true), None);
    }

    #[test]
    fn a_zone_leaves_room_for_others() {
        let all = Expectations::default();
        let n = (1..5000).filter(|port| all.add(&tuple(*port), of(1), |_| true)).count();
        assert_eq!(n, EXPECTED_COUNT_MAX / usize::from(ZONE_SHARE));
        assert!(all.add(&Tuple { zone: 4, ..tuple(1) }, of(1), |_| true));
    }
}
