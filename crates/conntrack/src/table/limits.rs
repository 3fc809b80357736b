//! How many connections there may be, and how many there are: in all and per zone.

use super::atomics::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use crate::count::Refused;

/// Connections there may be until `ct-set-maxconns` says otherwise (as in OVS).
pub const CONNECTIONS_COUNT_DEFAULT: u32 = 3_000_000;
/// The half-open connections of one zone may be a quarter of the limit of all connections, 750,000
/// of 3,000,000: a flood of SYNs in one zone leaves the rest to all others.
const HALF_OPEN_SHARE: u32 = 4;
/// Where the limit of all connections is no higher than this, zones and ports have no shares.
const SHARED_COUNT_MAX: u32 = 1024;
/// Attempts to change a zone's count while others do.
const ATTEMPTS_COUNT_MAX: usize = 64;
/// How many zones there are.
pub const ZONES: usize = 1 << 16;
/// The zone has no limit of its own.
const UNSET: u32 = u32::MAX;

/// The limits of the number of connections, and whether TCP sequence numbers are checked.
pub struct Limits {
    total: AtomicU32,
    /// The limit of zones without their own; 0: none.
    default: AtomicU32,
    zones: Box<[AtomicU32]>,
    no_sequence: AtomicBool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            total: AtomicU32::new(CONNECTIONS_COUNT_DEFAULT),
            default: AtomicU32::new(0),
            zones: (0..ZONES).map(|_| AtomicU32::new(UNSET)).collect(),
            no_sequence: AtomicBool::new(false),
        }
    }
}

impl Limits {
    /// Connections there may be in all.
    pub fn total(&self) -> u32 {
        self.total.load(Relaxed)
    }

    /// Sets how many connections there may be in all.
    pub fn set_total(&self, n: u32) {
        self.total.store(n, Relaxed);
    }

    /// The limit that holds for a zone; None: there is none.
    pub fn of(&self, zone: u16) -> Option<u32> {
        match self.zones[usize::from(zone)].load(Relaxed) {
            UNSET => Some(self.default.load(Relaxed)).filter(|n| *n != 0),
            n => Some(n),
        }
    }

    /// Zones that have a limit of their own, ascending.
    pub fn own(&self) -> Vec<(u16, u32)> {
        let all = self.zones.iter().enumerate().map(|(z, n)| (z as u16, n.load(Relaxed)));
        all.filter(|(_, n)| *n != UNSET).collect()
    }

    /// Sets a zone's own limit; None: the default's.
    pub fn set_zone(&self, zone: u16, n: Option<u32>) {
        self.zones[usize::from(zone)].store(n.unwrap_or(UNSET), Relaxed);
    }

    /// The limit of zones without their own; 0: none.
    pub fn of_others(&self) -> u32 {
        self.default.load(Relaxed)
    }

    /// Sets the limit of zones without their own; 0: none.
    pub fn set_of_others(&self, n: u32) {
        self.default.store(n, Relaxed);
    }

    /// True if sequence numbers of TCP are checked.
    pub fn checks_sequence(&self) -> bool {
        !self.no_sequence.load(Relaxed)
    }

    /// Sets whether sequence numbers of TCP are checked.
    pub fn set_checks_sequence(&self, on: bool) {
        self.no_sequence.store(!on, Relaxed);
    }
}

/// How many connections there are. A zone's word is its epoch (16 bits), its half-open connections
/// (24 bits) and all its connections (24 bits): one exchange empties the zone, and connections made
/// before have another epoch than the zone.
///
/// A port may begin a half-open connection in a zone as long as it has, in all zones together,
/// fewer of them than the zone's share has left. So one port that floods a zone gets half of the
/// share, two ports get two thirds, and there is always room for another port.
pub struct Counts {
    total: AtomicU32,
    zones: Box<[AtomicU64]>,
    /// Half-open connections by the port whose packets began them; those of a flushed zone count
    /// until the keeper ends them.
    ports: Box<[AtomicU32]>,
}

const FIELD: u64 = (1 << 24) - 1;
const HALF_OPEN: u64 = 1 << 24;

/// Number of connections in a zone's word.
fn of_word(word: u64) -> u32 {
    (word & FIELD) as u32
}

/// Number of half-open connections in a zone's word.
fn half_open(word: u64) -> u32 {
    (word >> 24 & FIELD) as u32
}

/// The epoch in a zone's word.
fn epoch(word: u64) -> u16 {
    (word >> 48) as u16
}

impl Counts {
    /// Counters for so many zones, all of them 0.
    pub fn new(zones: usize) -> Self {
        Counts {
            total: AtomicU32::new(0),
            zones: (0..zones).map(|_| AtomicU64::new(0)).collect(),
            ports: (0..=u16::MAX).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Number of connections in all.
    pub fn total(&self) -> u32 {
        self.total.load(Relaxed)
    }

    /// Number of connections of a zone.
    pub fn of(&self, zone: u16) -> u32 {
        of_word(self.zones[usize::from(zone)].load(Relaxed))
    }

    /// The epoch of a zone: connections of another one have ended.
    #[inline]
    pub fn epoch(&self, zone: u16) -> u16 {
        epoch(self.zones[usize::from(zone)].load(Acquire))
    }

    /// Counts one more half-open connection, which a packet of the port begins; returns the zone's
    /// epoch. The error is the limit that is reached.
    pub fn enter(
        &self,
        (zone, port): (u16, u16),
        limit: Option<u32>,
        total: u32,
    ) -> Result<u16, Refused> {
        let limit = limit.unwrap_or(u32::MAX).min(FIELD as u32);
        let share = (total / HALF_OPEN_SHARE).max(total.min(SHARED_COUNT_MAX));
        if self.total.fetch_add(1, Relaxed) >= total {
            self.total.fetch_sub(1, Relaxed);
            return Err(Refused::Full);
        }
        let of_port = self.ports[usize::from(port)].fetch_add(1, Relaxed);
        let shares = total > SHARED_COUNT_MAX;
        let mut why = Refused::Busy;
        let entered = self.change(zone, |word| {
            why = match half_open(word) {
                _ if of_word(word) >= limit => Refused::ZoneFull,
                n if n >= share => Refused::HalfOpen,
                n if shares && of_port >= share - n => Refused::PortHalfOpen,
                _ => return Some(word + HALF_OPEN + 1),
            };
            None
        });
        entered.map(epoch).ok_or_else(|| {
            self.total.fetch_sub(1, Relaxed);
            self.ports[usize::from(port)].fetch_sub(1, Relaxed);
            why
        })
    }

    /// Counts that a connection which was made in this epoch is no longer half-open.
    pub fn opened(&self, (zone, port): (u16, u16), made: u16) {
        self.ports[usize::from(port)].fetch_sub(1, Relaxed);
        let _ = self.change(zone, |word| {
            (epoch(word) == made && half_open(word) > 0).then(|| word - HALF_OPEN)
        });
    }

    /// Counts that a connection which was made in this epoch has ended; `half_open`: it was
    /// half-open, and a packet of this port began it.
    pub fn leave(&self, zone: u16, made: u16, half_open: Option<u16>) {
        let word = &self.zones[usize::from(zone)];
        let less = 1 + if half_open.is_some() { HALF_OPEN } else { 0 };
        if let Some(port) = half_open {
            self.ports[usize::from(port)].fetch_sub(1, Relaxed);
        }
        let left = word.fetch_update(AcqRel, Relaxed, |w| (epoch(w) == made).then(|| w - less));
        if left.is_ok() {
            self.total.fetch_sub(1, Relaxed);
        }
    }

    /// Ends all connections of a zone.
    pub fn flush(&self, zone: u16) {
        let word = &self.zones[usize::from(zone)];
        let next = |w| Some(u64::from(epoch(w).wrapping_add(1)) << 48);
        let old = word.fetch_update(AcqRel, Relaxed, next).unwrap_or(0);
        self.total.fetch_sub(of_word(old), Relaxed);
    }

    /// Changes a zone's word in a bounded number of attempts; returns the new word. None: `to`
    /// returned none, or other threads changed the word at each attempt.
    fn change(&self, zone: u16, mut to: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let word = &self.zones[usize::from(zone)];
        let mut now = word.load(Relaxed);
        for _ in 0..ATTEMPTS_COUNT_MAX {
            let new = to(now)?;
            match word.compare_exchange_weak(now, new, AcqRel, Relaxed) {
                Ok(_) => return Some(new),
                Err(other) => now = other,
            }
        }
        None
    }
}
