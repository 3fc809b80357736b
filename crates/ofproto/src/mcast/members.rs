//! Multicast groups and routers of one bridge, as the control side keeps them: ages and limits, and
//! the view that packets see.
//!
//! Every membership has a serial number in the order of reports. Reporting, ending and expiring a
//! membership cost the same, except for the logarithm of their number and the number of ports in
//! the group. In a full table the port with the most memberships loses its oldest, so a port that
//! reports many groups displaces none of another port's. (OVS removes the group that was not
//! reported for the longest time.)

use crate::shares::Shares;
use crate::types::McastConfig;
use openflow::OfPort;
use rpds::HashTrieMapSync;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv6Addr;
use std::sync::Arc;
use sync::{Domain, Published};

/// How long a port counts as a router's after its last query, ns, as in OVS.
const ROUTER_AGE_NS_MAX: u64 = 180 * 1_000_000_000;
/// Packets of a port, and memberships that they report, that are processed per second, and at once.
/// Each costs the control thread about a microsecond.
const HEARD_RATE_PER_SECOND: u64 = 2048;
const HEARD_BURST_MAX: u64 = 4096;
const HEARD_COST_NS: u64 = 1_000_000_000 / HEARD_RATE_PER_SECOND;
/// Limits of a membership's age in seconds, as in OVS.
const AGING_SECONDS: (u32, u32) = (15, 3600);
const GROUPS: (usize, usize) = (10, 1_000_000);

/// A group in a VLAN. IPv4 addresses are IPv4-mapped.
pub(crate) type Group = (u16, Ipv6Addr);

/// Groups and routers as packets see them.
#[derive(Clone, Default)]
pub(crate) struct McastView {
    /// The ports with members, by group.
    pub groups: HashTrieMapSync<Group, Arc<[OfPort]>>,
    /// The ports with routers, by VLAN.
    pub routers: HashTrieMapSync<u16, Arc<[OfPort]>>,
}

/// A change that decisions may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Changed {
    Group(Ipv6Addr),
    Routers,
}

/// A port with members of a group, or with a router: a line of `mdb/show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastEntry {
    /// OpenFlow port.
    pub port: u32,
    /// VLAN id (0: untagged).
    pub vlan: u16,
    /// The group; None: a router.
    pub group: Option<Ipv6Addr>,
    /// When the membership or the router was last heard of, ns.
    pub used: u64,
}

#[derive(Clone, Copy)]
struct Member {
    port: OfPort,
    used: u64,
    serial: u64,
}

/// A bridge's multicast groups and their members.
pub(crate) struct McastTable {
    config: McastConfig,
    /// Members of each group; the member that reported longest ago is first.
    groups: HashMap<Group, Vec<Member>>,
    /// Groups and ports of memberships, by serial number.
    members: BTreeMap<u64, (Group, OfPort)>,
    /// The groups of each port, by the membership's serial number.
    by_port: BTreeMap<OfPort, BTreeMap<u64, Group>>,
    shares: Shares,
    /// Groups, by the serial number of their latest membership.
    order: BTreeMap<u64, Group>,
    routers: BTreeMap<(u16, OfPort), Member>,
    /// Routers, by the serial number of their latest query; the first is the oldest.
    router_order: BTreeMap<u64, (u16, OfPort)>,
    /// When each port may send a full burst again, ns.
    whole_at: BTreeMap<OfPort, u64>,
    not_heard: u64,
    serial: u64,
    shown: McastView,
    pub published: Arc<Published<McastView>>,
    changed: BTreeSet<Changed>,
}

impl McastTable {
    pub fn new(domain: Domain, config: McastConfig) -> McastTable {
        McastTable {
            config: within(config),
            groups: HashMap::new(),
            members: BTreeMap::new(),
            by_port: BTreeMap::new(),
            shares: Shares::default(),
            order: BTreeMap::new(),
            routers: BTreeMap::new(),
            router_order: BTreeMap::new(),
            whole_at: BTreeMap::new(),
            not_heard: 0,
            serial: 0,
            shown: McastView::default(),
            published: Arc::new(Published::new(domain, McastView::default())),
            changed: BTreeSet::new(),
        }
    }

    /// Sets ages and limits, also for memberships that exist already.
    pub fn configure(&mut self, config: McastConfig) {
        self.config = within(config);
    }

    /// True if one more packet of a port, or one more membership that it reports, may be processed
    /// now.
    pub fn hears(&mut self, port: OfPort, now: u64) -> bool {
        let at = self.whole_at.entry(port).or_default();
        let whole_at = now.max(*at) + HEARD_COST_NS;
        let heard = whole_at <= now + HEARD_BURST_MAX * HEARD_COST_NS;
        match heard {
            true => *at = whole_at,
            false => self.not_heard += 1,
        }
        heard
    }

    /// Number of packets and memberships that were not processed.
    pub fn not_heard(&self) -> u64 {
        self.not_heard
    }

    pub fn is_router(&self, vlan: u16, port: OfPort) -> bool {
        self.routers.contains_key(&(vlan, port))
    }

    /// Records a router's query.
    pub fn router(&mut self, vlan: u16, port: OfPort, now: u64) {
        let new = self.member(port, now);
        self.router_order.insert(new.serial, (vlan, port));
        match self.routers.insert((vlan, port), new) {
            Some(old) => _ = self.router_order.remove(&old.serial),
            None => self.show_routers(vlan),
        }
    }

    /// Records a member's report.
    pub fn join(&mut self, group: Group, port: OfPort, now: u64) {
        let new = self.member(port, now);
        if !self.groups.contains_key(&group) {
            while self.groups.len() >= self.config.table_size && self.evict() {}
        }
        let all = self.groups.entry(group).or_default();
        all.last().iter().for_each(|m| _ = self.order.remove(&m.serial));
        let before = all.iter().position(|m| m.port == port).map(|at| all.remove(at));
        all.push(new);
        self.order.insert(new.serial, group);
        match before {
            Some(m) => self.unlink(&m),
            None => self.show_group(group),
        }
        self.members.insert(new.serial, (group, port));
        let own = self.by_port.entry(port).or_default();
        own.insert(new.serial, group);
        self.shares.set(port, own.len());
    }

    fn unlink(&mut self, m: &Member) {
        self.members.remove(&m.serial);
        let own = self.by_port.entry(m.port).or_default();
        own.remove(&m.serial);
        self.shares.set(m.port, own.len());
        if own.is_empty() {
            self.by_port.remove(&m.port);
        }
    }

    /// Records that a member leaves.
    pub fn leave(&mut self, group: Group, port: OfPort) {
        let Some(all) = self.groups.get_mut(&group) else { return };
        let Some(at) = all.iter().position(|m| m.port == port) else { return };
        all.last().iter().for_each(|m| _ = self.order.remove(&m.serial));
        let gone = all.remove(at);
        match all.last() {
            Some(m) => _ = self.order.insert(m.serial, group),
            None => _ = self.groups.remove(&group),
        }
        self.unlink(&gone);
        self.show_group(group);
    }

    fn member(&mut self, port: OfPort, used: u64) -> Member {
        self.serial += 1;
        Member { port, used, serial: self.serial }
    }

    /// Removes the oldest membership of the port with the most; false: there is none.
    fn evict(&mut self) -> bool {
        let most = self.shares.most();
        let oldest =
            most.and_then(|port| Some((*self.by_port.get(&port)?.first_key_value()?.1, port)));
        oldest.iter().for_each(|(group, port)| self.leave(*group, *port));
        oldest.is_some()
    }

    /// Removes all memberships and routers of a port.
    pub fn remove_port(&mut self, port: OfPort) {
        let own: Vec<Group> =
            self.by_port.get(&port).map_or_else(Vec::new, |own| own.values().copied().collect());
        own.into_iter().for_each(|group| self.leave(group, port));
        self.whole_at.remove(&port);
        let vlans: Vec<u16> =
            self.routers.keys().filter(|(_, p)| *p == port).map(|(vlan, _)| *vlan).collect();
        vlans.into_iter().for_each(|vlan| self.drop_router(vlan, port));
    }

    fn drop_router(&mut self, vlan: u16, port: OfPort) {
        if let Some(gone) = self.routers.remove(&(vlan, port)) {
            self.router_order.remove(&gone.serial);
        }
        self.show_routers(vlan);
    }

    /// Removes everything.
    pub fn flush(&mut self) {
        while self.evict() {}
        let routers: Vec<_> = self.routers.keys().copied().collect();
        routers.into_iter().for_each(|(vlan, port)| self.drop_router(vlan, port));
    }

    /// Removes memberships and routers that were not heard of for too long, and memberships beyond
    /// the limit: at most `n`; returns how many.
    pub fn expire(&mut self, now: u64, n: usize) -> usize {
        let mut gone = 0;
        let age = u64::from(self.config.aging_s) * 1_000_000_000;
        while gone < n && self.groups.len() > self.config.table_size && self.evict() {
            gone += 1;
        }
        while gone < n
            && let Some((serial, (group, port))) = self.members.first_key_value()
        {
            let (serial, group, port) = (*serial, *group, *port);
            let used = self.groups[&group].iter().find(|m| m.serial == serial).map(|m| m.used);
            if used.is_some_and(|used| now.saturating_sub(used) < age) {
                break;
            }
            self.leave(group, port);
            gone += 1;
        }
        while gone < n
            && let Some((_, &(vlan, port))) = self.router_order.first_key_value()
            && now.saturating_sub(self.routers[&(vlan, port)].used) >= ROUTER_AGE_NS_MAX
        {
            self.drop_router(vlan, port);
            gone += 1;
        }
        gone
    }

    /// All memberships, those of the group that was heard of longest ago first, then all routers.
    pub fn entries(&self) -> Vec<McastEntry> {
        let members = self.order.values().flat_map(|group| {
            self.groups[group].iter().map(|m| McastEntry {
                port: m.port,
                vlan: group.0,
                group: Some(group.1),
                used: m.used,
            })
        });
        let mut routers: Vec<_> = self.routers.iter().collect();
        routers.sort_unstable_by_key(|(_, m)| m.serial);
        let routers = routers.into_iter().map(|((vlan, port), m)| McastEntry {
            port: *port,
            vlan: *vlan,
            group: None,
            used: m.used,
        });
        members.chain(routers).collect()
    }

    fn show_group(&mut self, group: Group) {
        match self.groups.get(&group) {
            Some(all) => self.shown.groups.insert_mut(group, all.iter().map(|m| m.port).collect()),
            None => _ = self.shown.groups.remove_mut(&group),
        }
        self.changed.insert(Changed::Group(group.1));
    }

    fn show_routers(&mut self, vlan: u16) {
        let own = self.routers.range((vlan, 0)..=(vlan, OfPort::MAX));
        let own: Arc<[OfPort]> = own.map(|((_, port), _)| *port).collect();
        match own.is_empty() {
            false => self.shown.routers.insert_mut(vlan, own),
            true => _ = self.shown.routers.remove_mut(&vlan),
        }
        self.changed.insert(Changed::Routers);
    }

    /// Publishes the present state, and returns what has changed since it was last published.
    pub fn publish(&mut self) -> BTreeSet<Changed> {
        if !self.changed.is_empty() {
            self.published.publish(self.shown.clone());
        }
        std::mem::take(&mut self.changed)
    }
}

fn within(config: McastConfig) -> McastConfig {
    McastConfig {
        aging_s: config.aging_s.clamp(AGING_SECONDS.0, AGING_SECONDS.1),
        table_size: config.table_size.clamp(GROUPS.0, GROUPS.1),
        ..config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn table() -> McastTable {
        let config = McastConfig { table_size: 0, ..McastConfig::default() };
        McastTable::new(Domain::new().writer().domain().clone(), config)
    }

    fn group(i: u16) -> Group {
        (i % 3, Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, i))
    }

    type Pairs = Vec<(u32, u16)>;

    /// Port and group of each member, port and VLAN of each router.
    fn shown(t: &McastTable) -> (Pairs, Pairs) {
        let all = t.entries();
        let members = all.iter().filter_map(|e| Some((e.port, e.group?.segments()[7]))).collect();
        let routers = all.iter().filter(|e| e.group.is_none()).map(|e| (e.port, e.vlan)).collect();
        (members, routers)
    }

    #[test]
    fn in_a_full_table_the_port_with_the_most_gives_up_its_oldest() {
        let mut t = table();
        (1..=10).for_each(|i| t.join(group(i), 1, u64::from(i)));
        t.join(group(1), 2, 11);
        t.join(group(11), 1, 12);
        let members: Vec<u16> = shown(&t).0.iter().map(|(_, g)| *g).collect();
        assert_eq!(members, [3, 4, 5, 6, 7, 8, 9, 10, 1, 11]);
        assert!(t.publish().contains(&Changed::Group(group(2).1)));
        assert!(t.publish().is_empty());
        (20..200).for_each(|i| t.join(group(i), 1, 13));
        assert_eq!((shown(&t).0[0], shown(&t).0.len()), ((2, 1), 10), "port 2 keeps its own");
        let fewer = McastConfig { table_size: 0, ..t.config };
        t.config.table_size = 20;
        (200..210).for_each(|i| t.join(group(i), 1, 13));
        t.configure(fewer);
        assert_eq!((t.expire(14, 4), t.expire(14, 99), t.groups.len()), (4, 6, 10));
    }

    #[test]
    fn a_port_that_says_too_much_is_not_heard_and_others_are() {
        let mut t = table();
        let heard =
            |t: &mut McastTable, port, now| (0..9999).filter(|_| t.hears(port, now)).count();
        assert_eq!(heard(&mut t, 1, SECOND_NS) as u64, HEARD_BURST_MAX);
        assert_eq!(heard(&mut t, 2, SECOND_NS) as u64, HEARD_BURST_MAX);
        let later = heard(&mut t, 1, 2 * SECOND_NS) as u64;
        assert!(later.abs_diff(HEARD_RATE_PER_SECOND) <= 1, "{later}");
        assert_eq!(t.not_heard(), 3 * 9999 - 2 * HEARD_BURST_MAX - later);
    }

    #[test]
    fn each_membership_has_its_own_age() {
        let mut t = table();
        t.join(group(1), 1, 0);
        t.join(group(1), 2, 10 * SECOND_NS);
        t.router(1, 3, 0);
        t.join(group(1), 2, 20 * SECOND_NS);
        assert_eq!(t.expire(180 * SECOND_NS - 1, 9), 0);
        assert_eq!(t.expire(180 * SECOND_NS, 9), 1);
        assert_eq!(shown(&t), (vec![(1, 1), (2, 1)], vec![]));
        assert_eq!(t.expire(300 * SECOND_NS, 9), 1);
        assert_eq!(shown(&t).0, [(2, 1)]);
        assert_eq!(t.expire(320 * SECOND_NS, 9), 1);
        assert!(t.entries().is_empty() && t.groups.is_empty() && t.order.is_empty());
    }

    #[test]
    fn nothing_is_left_of_what_goes() {
        let mut t = table();
        for i in 1..=9 {
            t.join(group(i), 1, 0);
            t.join(group(i), 2, 0);
            t.router(i, u32::from(i % 2), 0);
        }
        t.leave(group(1), 7);
        t.leave(group(77), 1);
        t.remove_port(1);
        let (members, routers) = shown(&t);
        assert!(members.len() == 9 && members.iter().all(|(port, _)| *port == 2));
        assert_eq!(routers, [(0, 2), (0, 4), (0, 6), (0, 8)]);
        t.publish();
        t.flush();
        assert_eq!(t.publish().len(), 10, "nine groups, and routers");
        assert!(t.members.is_empty() && t.by_port.is_empty() && t.shares.is_empty());
        assert!(t.shown.groups.is_empty() && t.shown.routers.is_empty());
    }

    /// A guest on a trunk can be a router in each VLAN: a turn removes some, and reads one
    /// more.
    #[test]
    fn routers_leave_oldest_first_and_some_a_turn() {
        const ROUTERS: u16 = 1000;
        let mut t = table();
        (1..=ROUTERS).for_each(|vlan| t.router(vlan, 1, u64::from(vlan)));
        t.router(5, 1, 100 * SECOND_NS);
        assert_eq!(t.router_order.len(), t.routers.len());
        let end = ROUTER_AGE_NS_MAX + u64::from(ROUTERS);
        assert_eq!(t.expire(end, 10), 10);
        assert!(!t.is_router(11, 1) && t.is_router(12, 1), "the oldest are gone");
        assert_eq!(t.expire(end, usize::MAX), usize::from(ROUTERS) - 11);
        assert_eq!(shown(&t).1, [(1, 5)], "it asked again");
        t.remove_port(1);
        assert!(t.routers.is_empty() && t.router_order.is_empty());
    }
}
