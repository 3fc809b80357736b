//! Hardware addresses of next hops: learned from packets, taken from the kernel, set by the user.
//!
//! What the user set stays until it is flushed, removed or set again. What the kernel has confirmed
//! lately is only changed by the kernel and the user. What packets announce is accepted at a
//! limited rate per port, unless it answers a solicitation; and only a limited number of next hops
//! that no decision uses is kept.

use super::neighbourhood::Neighbourhood;
use crate::mac_table::REPORT_INTERVAL_NS;
use flow::{NO_PORT, PortNo};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

const SECOND: u64 = 1_000_000_000;
/// Time between two solicitations for a next hop, ns.
const QUESTION_INTERVAL_NS: u64 = SECOND;
/// Time without confirmation after which a used entry is solicited again, ns.
const CONFIRM_INTERVAL_NS: u64 = 60 * SECOND;
/// Time after a solicitation within which a packet is an answer to it, ns: Linux asks three times,
/// one second apart.
const ANSWER_NS_MAX: u64 = 3 * SECOND;
/// A next hop that does not answer is removed when no decision has solicited it for this long, ns:
/// as long as an idle megaflow is kept.
const UNANSWERED_NS_MAX: u64 = 10 * SECOND;
/// Time for which packets do not change what the kernel confirmed, ns: the average time for which
/// Linux itself takes a confirmed neighbour to be reachable (base_reachable_time).
const KERNEL_TRUST_NS: u64 = 30 * SECOND;
/// Seconds without use after which an entry is removed, by default.
pub const AGING_S: u32 = 900;
/// Entries for next hops that no decision uses, of all sources together, at most.
const UNASKED_MAX: usize = 16_384;
/// Entries that unsolicited packets of one port may add, at most.
const PORT_UNASKED_MAX: usize = 1024;
/// New or changed addresses per port and second that unsolicited packets may bring, once the port's
/// burst is used up. Each costs the control thread a copy of one part of the table, and the work of
/// finding megaflows if some depend on it. A network has few such changes, for example when a
/// gateway fails over.
const CHANGE_RATE_PER_SECOND: u64 = 64;
/// New or changed addresses that unsolicited packets of one port may bring at once, at most: as
/// when all hosts of a network announce themselves after a power failure.
const CHANGE_BURST_MAX: u64 = 256;
const CHANGE_COST_NS: u64 = SECOND / CHANGE_RATE_PER_SECOND;

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Hardware address.
    pub mac: [u8; 6],
    /// When it is removed, ns.
    pub expires: u64,
    /// When it was last confirmed, ns; 0: another address was announced since.
    confirmed: u64,
    source: Source,
    /// True: it counts as an unsolicited entry of its port.
    unasked: bool,
}

/// Where an entry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Packets,
    /// The kernel, which had confirmed it at this time.
    Kernel,
    User,
}

/// How a next hop's address was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// `tnl/neigh/set`.
    User,
    /// The kernel knows the neighbour; `sure`: it has confirmed it, or its user has set it.
    Kernel { sure: bool },
    /// An ARP reply or a Neighbour Advertisement to one of the own addresses.
    Reply,
    /// A gratuitous ARP, which everyone may learn from (RFC 5227 calls these announcements).
    Announcement,
    /// A Neighbour Advertisement to all nodes. It makes no entry (RFC 4861, 7.2.5); one with
    /// another address makes sure that the next hop is solicited again.
    Unsolicited,
}

type Place = (String, IpAddr);

/// The limit of what packets from one port may bring, or make the switch solicit.
#[derive(Default)]
struct Share {
    unasked: usize,
    /// When its burst will be full again, ns.
    whole_at: u64,
    /// Announcements passed over, how many of them were reported, and when that was, ns.
    limited: u64,
    reported: u64,
    reported_at: Option<u64>,
}

impl Share {
    /// Takes one change; false, and counted: none is left.
    fn take(&mut self, now: u64) -> bool {
        let whole_at = self.whole_at.max(now) + CHANGE_COST_NS;
        let may = whole_at <= now + CHANGE_BURST_MAX * CHANGE_COST_NS;
        if may {
            self.whole_at = whole_at;
        } else {
            self.limited += 1;
        }
        may
    }
}

/// The neighbour table, with the solicitations under way. Times in ns.
pub(crate) struct Neighbours {
    known: HashMap<Place, Neighbour>,
    /// When each next hop was last solicited; decisions depend on these next hops.
    asked: HashMap<Place, u64>,
    /// Limits for unsolicited packets, by port name.
    shares: BTreeMap<String, Share>,
    /// Limits for unknown next hops, by the datapath port whose packets are sent there: where
    /// packets themselves say where they go, they may name any address.
    askers: BTreeMap<PortNo, Share>,
    /// The neighbours' entries in the form that translation reads.
    view: Neighbourhood,
    pub aging_ns: u64,
}

impl Default for Neighbours {
    fn default() -> Self {
        Neighbours {
            known: HashMap::new(),
            asked: HashMap::new(),
            shares: BTreeMap::new(),
            askers: BTreeMap::new(),
            view: Neighbourhood::default(),
            aging_ns: u64::from(AGING_S) * SECOND,
        }
    }
}

/// The result of learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// The entry was known with this address.
    Known,
    /// The neighbour is new or changed, and some decision may depend on it.
    Matters,
    /// The neighbour is new or changed.
    Changed,
}

impl Neighbours {
    /// Learns the hardware address of a next hop at `now` (ns), if its source may set it (see the
    /// module).
    pub fn learn(&mut self, port: &str, ip: IpAddr, mac: [u8; 6], how: How, now: u64) -> Learned {
        let place = (port.to_string(), ip);
        let asked = self.asked.get(&place).copied();
        let source = match how {
            How::User => Source::User,
            How::Kernel { sure: true } => Source::Kernel,
            _ => Source::Packets,
        };
        let full = self.known.len() >= UNASKED_MAX;
        let old = match self.known.get_mut(&place) {
            Some(old) => {
                if !old.gives_way(mac, how, now) {
                    return Learned::Known;
                }
                if old.mac == mac {
                    (old.expires, old.confirmed) = (now + self.aging_ns, now);
                    old.source = old.source.max_of(source);
                    return Learned::Known;
                }
                Some(*old)
            }
            None if how == How::Unsolicited => return Learned::Known,
            None if asked.is_none() && full => return Learned::Known,
            None => None,
        };
        let heard = matches!(how, How::Reply | How::Announcement);
        if heard && !self.admits(&place, old.as_ref(), asked, now) {
            return Learned::Known;
        }
        let unasked = old.map_or(heard && asked.is_none(), |n| n.unasked);
        if unasked && old.is_none() {
            self.shares.entry(place.0.clone()).or_default().unasked += 1;
        }
        self.view.set(&place, Some(mac));
        let expires = now + self.aging_ns;
        self.known.insert(place, Neighbour { mac, expires, confirmed: now, source, unasked });
        if asked.is_some() { Learned::Matters } else { Learned::Changed }
    }

    /// True if a packet may change or make this entry, by its port's limit, or because it is an
    /// answer.
    fn admits(
        &mut self,
        place: &Place,
        old: Option<&Neighbour>,
        asked: Option<u64>,
        now: u64,
    ) -> bool {
        let since = old.map_or(0, |n| n.confirmed);
        if asked.is_some_and(|at| at > since && now < at.saturating_add(ANSWER_NS_MAX)) {
            return true;
        }
        let share = self.shares.entry(place.0.clone()).or_default();
        if old.is_none() && asked.is_none() && share.unasked >= PORT_UNASKED_MAX {
            share.limited += 1;
            return false;
        }
        share.take(now)
    }

    pub fn get(&self, port: &str, ip: IpAddr) -> Option<[u8; 6]> {
        self.known.get(&(port.to_string(), ip)).map(|n| n.mac)
    }

    /// Records that a decision about packets from datapath port `from` depends on this next hop.
    /// True if it is to be solicited now.
    pub fn wanted(&mut self, from: PortNo, port: &str, ip: IpAddr, now: u64) -> bool {
        let place = (port.to_string(), ip);
        let is_new = !self.known.contains_key(&place) && !self.asked.contains_key(&place);
        if is_new && from != NO_PORT && !self.askers.entry(from).or_default().take(now) {
            return false;
        }
        let sure = match self.known.get_mut(&place) {
            Some(n) => {
                n.expires = now + self.aging_ns;
                if std::mem::take(&mut n.unasked) {
                    self.shares.entry(place.0.clone()).or_default().unasked -= 1;
                }
                n.confirmed > 0 && n.confirmed + CONFIRM_INTERVAL_NS > now
            }
            None => false,
        };
        let last = self.asked.get(&place).copied();
        if sure {
            self.asked.entry(place).or_insert(0);
            return false;
        }
        let due = last.is_none_or(|t| t == 0 || t + QUESTION_INTERVAL_NS <= now);
        self.asked.insert(place, if due { now } else { last.unwrap_or(now) });
        due
    }

    /// Removes the entries for which `stays` is false; true: there were some.
    fn retain(&mut self, stays: impl Fn(&Place, &Neighbour) -> bool) -> bool {
        let before = self.known.len();
        let (view, shares) = (&mut self.view, &mut self.shares);
        self.known.retain(|place, n| {
            let stays = stays(place, n);
            if !stays {
                view.set(place, None);
                if n.unasked
                    && let Some(share) = shares.get_mut(&place.0)
                {
                    share.unasked -= 1;
                }
            }
            stays
        });
        self.known.len() != before
    }

    /// Removes entries that are too old; true: there were some.
    pub fn expire(&mut self, now: u64) -> bool {
        let gone = self.retain(|_, n| n.expires > now);
        let known = &self.known;
        self.asked.retain(|p, t| known.contains_key(p) || *t + UNANSWERED_NS_MAX > now);
        gone
    }

    /// Removes the entries of these ports; true: there were some.
    pub fn forget(&mut self, ports: &[&str]) -> bool {
        if self.known.is_empty() && self.shares.is_empty() {
            return false;
        }
        let gone = self.retain(|(port, _), _| !ports.contains(&port.as_str()));
        self.shares.retain(|port, _| !ports.contains(&port.as_str()));
        gone
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.retain(|_, _| false);
    }

    pub fn all(&self) -> &HashMap<Place, Neighbour> {
        &self.known
    }

    /// A copy of the entries in the form that translation reads; shares their memory.
    pub fn view(&self) -> Neighbourhood {
        self.view.clone()
    }

    /// Number of announcements that were ignored because their port sends too many, over all
    /// existing ports, and of next hops that were not solicited.
    pub fn limited(&self) -> u64 {
        self.shares.values().chain(self.askers.values()).map(|s| s.limited).sum()
    }

    /// Ignored announcements that were not reported yet, by port; each port is reported once a
    /// minute.
    pub fn take_limited(&mut self, now: u64) -> Vec<(String, u64)> {
        let new = |(port, s): (&String, &mut Share)| {
            if s.limited == s.reported
                || s.reported_at.is_some_and(|at| now < at + REPORT_INTERVAL_NS)
            {
                return None;
            }
            s.reported_at = Some(now);
            Some((port.clone(), s.limited - std::mem::replace(&mut s.reported, s.limited)))
        };
        self.shares.iter_mut().filter_map(new).collect()
    }
}

impl Source {
    /// The source of an entry on whose address both sources agree.
    fn max_of(self, other: Source) -> Source {
        match (self, other) {
            (Source::User, _) | (_, Source::User) => Source::User,
            (Source::Kernel, _) | (_, Source::Kernel) => Source::Kernel,
            _ => Source::Packets,
        }
    }
}

impl Neighbour {
    /// True if the entry may be confirmed or changed. If not, the attempt is recorded in it.
    fn gives_way(&mut self, mac: [u8; 6], how: How, now: u64) -> bool {
        let trusted = match self.source {
            Source::User => true,
            Source::Kernel => self.confirmed + KERNEL_TRUST_NS > now,
            Source::Packets => false,
        };
        let same = self.mac == mac;
        match how {
            How::User => true,
            How::Kernel { sure: true } => same || self.source != Source::User,
            How::Kernel { sure: false } => {
                if !same && self.source == Source::Kernel {
                    // The kernel itself has heard another address.
                    self.source = Source::Packets;
                }
                false
            }
            How::Reply | How::Announcement => same || !trusted,
            How::Unsolicited => {
                if !same && !trusted {
                    self.confirmed = 0;
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_rare_and_answers_matter() {
        let (mut n, ip) = (Neighbours::default(), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(n.learn("b", ip, [1; 6], How::Reply, SECOND), Learned::Changed);
        let other = IpAddr::from([10, 0, 0, 3]);
        assert!(n.wanted(1, "b", other, 2 * SECOND));
        assert!(!n.wanted(1, "b", other, 2 * SECOND + 1));
        assert!(n.wanted(1, "b", other, 3 * SECOND));
        assert_eq!(n.learn("b", other, [2; 6], How::Reply, 3 * SECOND), Learned::Matters);
        assert_eq!(n.learn("b", other, [2; 6], How::Reply, 4 * SECOND), Learned::Known);
        assert!(!n.wanted(1, "b", other, 5 * SECOND));
        assert_eq!(n.get("b", other), Some([2; 6]));
        assert_eq!(n.get("c", other), None);
        assert!(!n.forget(&["c"]) && n.forget(&["a", "b"]) && n.all().is_empty());
    }

    #[test]
    fn what_is_used_stays_and_is_asked_for_again() {
        let (mut n, ip) = (Neighbours::default(), IpAddr::from([10, 0, 0, 2]));
        n.learn("b", ip, [1; 6], How::Reply, 0);
        n.learn("b", ip, [1; 6], How::Reply, 1);
        assert!(!n.wanted(1, "b", ip, 59 * SECOND));
        assert!(n.wanted(1, "b", ip, 800 * SECOND));
        assert!(!n.expire(1000 * SECOND));
        assert!(n.expire(1700 * SECOND));
        assert_eq!(n.get("b", ip), None);
    }

    #[test]
    fn too_many_that_nobody_asked_for_are_passed_over() {
        let mut n = Neighbours::default();
        let ip = |i: usize| IpAddr::from((i as u32).to_be_bytes());
        for i in 0..UNASKED_MAX + 10 {
            n.learn("p", ip(i), [1; 6], How::Kernel { sure: true }, 0);
        }
        assert_eq!((n.known.len(), n.get("p", ip(UNASKED_MAX))), (UNASKED_MAX, None));
        n.wanted(1, "p", ip(UNASKED_MAX), 0);
        assert_eq!(n.learn("p", ip(UNASKED_MAX), [1; 6], How::Reply, 0), Learned::Matters);
        assert_eq!(n.learn("p", ip(7), [2; 6], How::User, 0), Learned::Changed);
    }

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn the_user_beats_the_kernel_and_the_kernel_beats_packets_for_a_time() {
        let mut n = Neighbours::default();
        let kernel = How::Kernel { sure: true };
        let mac = |n: &Neighbours| n.get("b", IP).map(|m| m[0]);
        n.learn("b", IP, [1; 6], How::Announcement, SECOND);
        n.learn("b", IP, [2; 6], How::Announcement, SECOND);
        assert_eq!(mac(&n), Some(2), "among packets the last one counts, as in OVS");
        n.learn("b", IP, [3; 6], kernel, SECOND);
        for how in [How::Reply, How::Announcement, How::Unsolicited] {
            assert_eq!(n.learn("b", IP, [4; 6], how, 2 * SECOND), Learned::Known);
        }
        assert_eq!(mac(&n), Some(3));
        n.learn("b", IP, [4; 6], How::Announcement, 32 * SECOND);
        assert_eq!(mac(&n), Some(4), "nothing confirmed it for thirty seconds");
        n.learn("b", IP, [3; 6], kernel, 33 * SECOND);
        n.learn("b", IP, [5; 6], How::Kernel { sure: false }, 34 * SECOND);
        assert_eq!(mac(&n), Some(3));
        n.learn("b", IP, [5; 6], How::Announcement, 34 * SECOND);
        assert_eq!(mac(&n), Some(5), "the kernel itself had doubts");
        n.learn("b", IP, [6; 6], How::User, 35 * SECOND);
        for how in [kernel, How::Reply, How::Announcement, How::Unsolicited] {
            assert_eq!(n.learn("b", IP, [7; 6], how, 500 * SECOND), Learned::Known);
        }
        assert_eq!(mac(&n), Some(6));
    }

    #[test]
    fn an_unsolicited_advertisement_makes_nothing_but_doubt() {
        let mut n = Neighbours::default();
        n.learn("b", IP, [1; 6], How::Unsolicited, SECOND);
        assert_eq!(n.get("b", IP), None);
        n.learn("b", IP, [1; 6], How::Reply, SECOND);
        assert!(!n.wanted(1, "b", IP, 2 * SECOND));
        n.learn("b", IP, [1; 6], How::Unsolicited, 2 * SECOND);
        assert!(!n.wanted(1, "b", IP, 3 * SECOND), "it says what is known");
        n.learn("b", IP, [2; 6], How::Unsolicited, 3 * SECOND);
        assert_eq!(n.get("b", IP), Some([1; 6]));
        assert!(n.wanted(1, "b", IP, 4 * SECOND), "asks again");
        assert_eq!(n.learn("b", IP, [2; 6], How::Reply, 4 * SECOND + 1), Learned::Matters);
    }

    #[test]
    fn packets_of_one_port_change_little_and_answers_are_not_counted() {
        let mut n = Neighbours::default();
        let ip = |i: u32| IpAddr::from(i.to_be_bytes());
        let tell = |n: &mut Neighbours, port: &str, i: u32, mac: u8, now: u64| {
            n.learn(port, ip(i), [mac; 6], How::Announcement, now) != Learned::Known
        };
        let taken = (0..10_000).filter(|i| tell(&mut n, "p", *i, 2, SECOND)).count();
        assert_eq!(taken, CHANGE_BURST_MAX as usize);
        assert_eq!(n.take_limited(SECOND), [("p".to_string(), 10_000 - CHANGE_BURST_MAX)]);
        assert!(n.take_limited(2 * SECOND).is_empty());
        assert!(tell(&mut n, "q", 1, 2, SECOND), "another port's share");
        assert!(n.wanted(1, "p", ip(20_000), SECOND));
        assert_eq!(n.learn("p", ip(20_000), [4; 6], How::Reply, SECOND + 1), Learned::Matters);
        assert!(!tell(&mut n, "p", 20_000, 6, SECOND + 2), "it was answered");
        // However long it goes on.
        let all: usize = (2..10_000)
            .map(|s| {
                (0..70).filter(|i| tell(&mut n, "p", s * 70 + i, 2, u64::from(s) * SECOND)).count()
            })
            .sum();
        assert!(all < PORT_UNASKED_MAX && n.all().len() <= PORT_UNASKED_MAX + 2, "{all}");
        n.forget(&["p"]);
        assert_eq!((n.all().len(), n.limited()), (1, 0));
    }

    #[test]
    fn packets_of_one_port_have_few_next_hops_asked_for() {
        let mut n = Neighbours::default();
        let ip = |i: usize| IpAddr::from((i as u32).to_be_bytes());
        let asked = |n: &mut Neighbours, from, ips: std::ops::Range<usize>, now| {
            ips.filter(|i| n.wanted(from, "p", ip(*i), now)).count()
        };
        let burst = CHANGE_BURST_MAX as usize;
        assert_eq!(asked(&mut n, 1, 0..10_000, SECOND), burst);
        assert_eq!(n.limited(), (10_000 - burst) as u64);
        assert_eq!(asked(&mut n, 1, 0..burst, 2 * SECOND), burst, "those are asked for again");
        assert_eq!(asked(&mut n, 2, 20_000..20_001, SECOND), 1, "another port's share");
        assert_eq!(asked(&mut n, NO_PORT, 30_000..31_000, SECOND), 1000, "the switch's own");
        n.learn("p", ip(0), [2; 6], How::Reply, 2 * SECOND);
        // However long it goes on.
        for s in 3..100 {
            assert!(asked(&mut n, 1, s * 40_000..s * 40_000 + 100, s as u64 * SECOND) <= 100);
            n.expire(s as u64 * SECOND);
        }
        let most = (CHANGE_RATE_PER_SECOND * (UNANSWERED_NS_MAX / SECOND + 1)) as usize;
        assert!(n.asked.len() <= most, "{}", n.asked.len());
        assert!(n.asked.contains_key(&("p".into(), ip(0))), "it has answered");
    }

    #[test]
    fn a_change_in_a_full_table_copies_a_part_of_it() {
        let mut n = Neighbours::default();
        let ip = |i: usize| IpAddr::from((i as u32).to_be_bytes());
        for i in 0..UNASKED_MAX {
            n.learn("p", ip(i), [2; 6], How::Kernel { sure: true }, 0);
        }
        let before = n.view.copied();
        let mut published = n.view();
        for i in 0..10_000 {
            n.learn("p", ip(i % UNASKED_MAX), [4; 6], How::User, 0);
            // Published after each change, as if each were a turn's only one.
            published = n.view();
        }
        let copied = (n.view.copied() - before) / 10_000;
        assert!(copied < UNASKED_MAX as u64 / 100, "{copied} entries for each change");
        assert_eq!(published.get(&("p".into(), ip(9_999))), Some([4; 6]));
        assert_eq!(published.get(&("p".into(), ip(10_001))), Some([2; 6]));
    }
}
