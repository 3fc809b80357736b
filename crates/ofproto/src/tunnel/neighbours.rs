//! Hardware addresses of next hops: learned from packets, told by the kernel, set by the user.

use std::collections::HashMap;
use std::net::IpAddr;

const SECOND: u64 = 1_000_000_000;
/// One question per next hop and second.
const PATIENCE: u64 = SECOND;
/// A used entry is asked for again when nobody has confirmed it for so long.
const DOUBT: u64 = 60 * SECOND;
/// Seconds until an entry that nobody uses is forgotten.
pub const AGING_S: u32 = 900;
/// Next hops that nobody asked for are not remembered beyond this number.
const MOST: usize = 16_384;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Hardware address.
    pub mac: [u8; 6],
    /// When it is forgotten, ns.
    pub expires: u64,
    /// When it was last heard of, ns.
    confirmed: u64,
}

type Place = (String, IpAddr);

/// The table, with what is known about questions under way. Times in ns.
pub(crate) struct Neighbours {
    known: HashMap<Place, Neighbour>,
    /// When each next hop was last asked for; also, which next hops decisions depend on.
    asked: HashMap<Place, u64>,
    pub aging_ns: u64,
}

impl Default for Neighbours {
    fn default() -> Self {
        let aging_ns = u64::from(AGING_S) * SECOND;
        Neighbours { known: HashMap::new(), asked: HashMap::new(), aging_ns }
    }
}

/// What a change means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// As before.
    Known,
    /// New or different, and some decision may depend on it.
    Matters,
    /// New or different.
    Changed,
}

impl Neighbours {
    /// This is its address; when there are too many, what no decision depends on is passed over.
    pub fn learn(&mut self, port: &str, ip: IpAddr, mac: [u8; 6], now: u64) -> Learned {
        let place = (port.to_string(), ip);
        let matters = self.asked.contains_key(&place);
        if self.known.len() >= MOST && !matters && !self.known.contains_key(&place) {
            return Learned::Known;
        }
        let new = Neighbour { mac, expires: now + self.aging_ns, confirmed: now };
        match self.known.insert(place, new) {
            Some(old) if old.mac == mac => Learned::Known,
            _ if matters => Learned::Matters,
            _ => Learned::Changed,
        }
    }

    pub fn get(&self, port: &str, ip: IpAddr) -> Option<[u8; 6]> {
        self.known.get(&(port.to_string(), ip)).map(|n| n.mac)
    }

    /// A decision depends on this next hop: keeps it alive. Is it time to ask for it?
    pub fn wanted(&mut self, port: &str, ip: IpAddr, now: u64) -> bool {
        let place = (port.to_string(), ip);
        let sure = match self.known.get_mut(&place) {
            Some(n) => {
                n.expires = now + self.aging_ns;
                n.confirmed + DOUBT > now
            }
            None => false,
        };
        let last = self.asked.get(&place).copied();
        if sure {
            self.asked.entry(place).or_insert(0);
            return false;
        }
        let due = last.is_none_or(|t| t == 0 || t + PATIENCE <= now);
        self.asked.insert(place, if due { now } else { last.unwrap_or(now) });
        due
    }

    /// Forgets what is too old; did anything go?
    pub fn expire(&mut self, now: u64) -> bool {
        let before = self.known.len();
        self.known.retain(|_, n| n.expires > now);
        let aging = self.aging_ns;
        let known = &self.known;
        self.asked.retain(|p, t| known.contains_key(p) || *t + aging > now);
        self.known.len() != before
    }

    /// Forgets all behind these ports; was there any?
    pub fn forget(&mut self, ports: &[&str]) -> bool {
        let before = self.known.len();
        self.known.retain(|(port, _), _| !ports.contains(&port.as_str()));
        self.known.len() != before
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    pub fn all(&self) -> &HashMap<Place, Neighbour> {
        &self.known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_rare_and_answers_matter() {
        let (mut n, ip) = (Neighbours::default(), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(n.learn("b", ip, [1; 6], SECOND), Learned::Changed);
        let other = IpAddr::from([10, 0, 0, 3]);
        assert!(n.wanted("b", other, 2 * SECOND));
        assert!(!n.wanted("b", other, 2 * SECOND + 1));
        assert!(n.wanted("b", other, 3 * SECOND));
        assert_eq!(n.learn("b", other, [2; 6], 3 * SECOND), Learned::Matters);
        assert_eq!(n.learn("b", other, [2; 6], 4 * SECOND), Learned::Known);
        assert!(!n.wanted("b", other, 5 * SECOND));
        assert_eq!(n.get("b", other), Some([2; 6]));
        assert_eq!(n.get("c", other), None);
        assert!(!n.forget(&["c"]) && n.forget(&["a", "b"]) && n.all().is_empty());
    }

    #[test]
    fn what_is_used_stays_and_is_asked_for_again() {
        let (mut n, ip) = (Neighbours::default(), IpAddr::from([10, 0, 0, 2]));
        n.learn("b", ip, [1; 6], 0);
        assert!(!n.wanted("b", ip, 59 * SECOND));
        assert!(n.wanted("b", ip, 800 * SECOND));
        assert!(!n.expire(1000 * SECOND));
        assert!(n.expire(1700 * SECOND));
        assert_eq!(n.get("b", ip), None);
    }

    #[test]
    fn too_many_that_nobody_asked_for_are_passed_over() {
        let mut n = Neighbours::default();
        let ip = |i: usize| IpAddr::from((i as u32).to_be_bytes());
        for i in 0..MOST + 10 {
            n.learn("p", ip(i), [1; 6], 0);
        }
        assert_eq!((n.known.len(), n.get("p", ip(MOST))), (MOST, None));
        n.wanted("p", ip(MOST), 0);
        assert_eq!(n.learn("p", ip(MOST), [1; 6], 0), Learned::Matters);
        assert_eq!(n.learn("p", ip(7), [2; 6], 0), Learned::Changed);
    }
}
