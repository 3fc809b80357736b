//! Expectations: connections that helpers announced and that have not begun yet.

use crate::conn::Translation;
use crate::tuple::Tuple;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Expectations at once, at most: 400 KiB.
const EXPECTED_COUNT_MAX: usize = 4096;
/// Most expectations of one zone. When a port adds one, it may have in all zones together as many
/// as this zone has left.
const OF_ZONE_COUNT_MAX: u16 = EXPECTED_COUNT_MAX as u16 / 4;
/// Attempts to take the lock while other threads hold it, which they do for less than a
/// microsecond.
const ATTEMPTS_COUNT_MAX: usize = 256;

/// What becomes of the connection that meets an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Name of the connection that announced it ([`crate::Store::name`]).
    pub parent: u64,
    /// The translation of its first packet.
    pub nat: Translation,
    /// The address that this translation writes, with the port if it is of the destination.
    pub to: (u128, u16),
}

/// Expectations by the tuple of the first packet; source port 0 in it stands for any port. No
/// worker waits for another: one that does not get the lock finds nothing.
pub struct Expectations {
    announced: Mutex<Announced>,
    count: AtomicU32,
    zones: Box<[AtomicU16]>,
}

/// The expectations, each with the port whose packet announced it, and their number by port.
struct Announced {
    all: HashMap<Tuple, (Expected, u16)>,
    ports: HashMap<u16, u16>,
}

impl Default for Expectations {
    fn default() -> Self {
        Expectations {
            announced: Mutex::new(Announced {
                all: HashMap::with_capacity(EXPECTED_COUNT_MAX),
                ports: HashMap::with_capacity(EXPECTED_COUNT_MAX),
            }),
            count: AtomicU32::new(0),
            zones: (0..=u16::MAX).map(|_| AtomicU16::new(0)).collect(),
        }
    }
}

/// The tuple by which an expectation is found: of any source port.
fn key(tuple: &Tuple) -> Tuple {
    Tuple { sport: 0, icmp_type: 0, ..*tuple }
}

impl Expectations {
    /// True if there are expectations in this zone.
    #[inline]
    pub fn are_in(&self, zone: u16) -> bool {
        self.zones[usize::from(zone)].load(Relaxed) != 0
    }

    /// The expectation that a connection with this first tuple meets. `lives` tells whether the
    /// connection that announced it has not ended.
    pub fn find(&self, tuple: &Tuple, lives: impl FnOnce(u64) -> bool) -> Option<Expected> {
        if !self.are_in(tuple.zone) {
            return None;
        }
        let (found, _) = self.lock()?.all.get(&key(tuple)).copied()?;
        lives(found.parent).then_some(found)
    }

    /// Adds an expectation that a packet of `port` announced; false: there are too many, another
    /// connection announced the same tuple, or other threads held the lock for too long.
    pub fn add(
        &self,
        tuple: &Tuple,
        what: Expected,
        port: u16,
        lives: impl FnOnce(u64) -> bool,
    ) -> bool {
        let Some(mut announced) = self.lock() else { return false };
        let Announced { all, ports } = &mut *announced;
        let key = key(tuple);
        if let Some((old, _)) = all.get_mut(&key) {
            let ours = old.parent == what.parent || !lives(old.parent);
            if ours {
                *old = what;
            }
            return ours;
        }
        let of_zone = &self.zones[usize::from(tuple.zone)];
        let left = OF_ZONE_COUNT_MAX - of_zone.load(Relaxed);
        let of_port = ports.get(&port).copied().unwrap_or(0);
        if all.len() >= EXPECTED_COUNT_MAX || of_port >= left {
            return false;
        }
        all.insert(key, (what, port));
        ports.insert(port, of_port + 1);
        of_zone.fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        true
    }

    /// Removes expectations whose parent has ended. Called by the keeper.
    pub fn tidy(&self, lives: impl Fn(u64) -> bool) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let Ok(mut announced) = self.announced.try_lock() else { return };
        let Announced { all, ports } = &mut *announced;
        all.retain(|tuple, (e, port)| {
            let stays = lives(e.parent);
            if !stays {
                self.zones[usize::from(tuple.zone)].fetch_sub(1, Relaxed);
                self.count.fetch_sub(1, Relaxed);
                ports.entry(*port).and_modify(|n| *n -= 1);
            }
            stays
        });
        ports.retain(|_, n| *n > 0);
    }

    fn lock(&self) -> Option<MutexGuard<'_, Announced>> {
        (0..ATTEMPTS_COUNT_MAX).find_map(|_| {
            std::hint::spin_loop();
            self.announced.try_lock().ok()
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
        assert!(all.add(&tuple(80), of(1), 1, |_| true));
        assert!(!all.add(&tuple(80), of(2), 1, |_| true), "announced by another connection");
        let any_port = Tuple { sport: 1234, ..tuple(80) };
        assert_eq!(all.find(&any_port, |_| true), Some(of(1)));
        assert_eq!(all.find(&any_port, |_| false), None);
        assert_eq!(all.find(&tuple(81), |_| true), None);
        all.tidy(|_| true);
        assert_eq!(all.find(&tuple(80), |_| true), Some(of(1)));
        assert!(all.add(&tuple(80), of(2), 1, |_| false), "its parent has ended");
        all.tidy(|_| false);
        assert_eq!(all.find(&tuple(80), |_| true), None);
    }

    #[test]
    fn a_zone_leaves_room_for_others() {
        let all = Expectations::default();
        let add =
            |zone, dport, port| all.add(&Tuple { zone, ..tuple(dport) }, of(1), port, |_| true);
        let ports = 1..OF_ZONE_COUNT_MAX + 1;
        let n = ports.clone().filter(|port| add(3, *port, *port)).count();
        assert_eq!(n, usize::from(OF_ZONE_COUNT_MAX));
        assert!(!add(3, 5000, 5000) && add(4, 5000, 5000));
    }

    #[test]
    fn a_port_leaves_room_for_others() {
        let all = Expectations::default();
        let flood = |zone, port| {
            let one = |n: &u16| all.add(&Tuple { zone, ..tuple(*n) }, of(1), port, |_| true);
            (10_000 * port..10_000 * port + 5000).filter(one).count() as u16
        };
        assert_eq!(flood(3, 1), OF_ZONE_COUNT_MAX / 2);
        assert_eq!(flood(3, 2), OF_ZONE_COUNT_MAX / 4, "another one in the zone");
        // In no number of zones does a port have more than one zone may have.
        let elsewhere: u16 = (4..100).map(|zone| flood(zone, 1)).sum();
        assert!(elsewhere <= OF_ZONE_COUNT_MAX / 2, "{elsewhere}");
        all.tidy(|_| false);
        assert_eq!(flood(5, 1), OF_ZONE_COUNT_MAX / 2, "what has ended no longer counts");
    }
}
