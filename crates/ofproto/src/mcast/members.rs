//! Multicast groups and routers of one bridge, as the control side keeps them: ages and limits, and
//! the view that packets see.
//!
//! Every membership has a serial number in the order of reports. Reporting, ending and expiring a
//! membership cost the same, except for the logarithm of their number and the number of ports in
//! the group. In a full table the port with the most memberships loses its oldest, so a port that
//! reports many groups displaces none of another port's. (OVS removes the group that was not
//! reported for the longest time.)
//!
//! What is flushed, or was learned behind a port that goes, is dead at once: the view says up to
//! which serial number. [`McastTable::sweep`] removes it later, some at a time.

use crate::shares::Shares;
use crate::types::McastConfig;
use openflow::OfPort;
use rpds::HashTrieMapSync;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::ops::Bound::{Excluded, Unbounded};
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
/// Memberships that one new group displaces, at most: those of groups with members behind several
/// ports make no room.
const DISPLACED_MAX: usize = 64;
/// Memberships of a port that goes which change decisions about their groups only; with more, those
/// about all multicast of the bridge.
const SINGLE_GROUPS_MAX: usize = 256;

/// A group in a VLAN. IPv4 addresses are IPv4-mapped.
pub(crate) type Group = (u16, Ipv6Addr);

/// Groups and routers as packets see them.
#[derive(Clone, Default)]
pub(crate) struct McastView {
    /// The ports with members, by group.
    groups: HashTrieMapSync<Group, Arc<[Shown]>>,
    /// The ports with routers, by VLAN.
    routers: HashTrieMapSync<u16, Arc<[Shown]>>,
    dead: Dead,
}

/// A port with members or a router, and the serial number of a report or query of it.
type Shown = (OfPort, u64);

/// Which memberships and routers are dead, though they are still in the tables: by the serial
/// number of their last report or query.
#[derive(Clone, Default)]
struct Dead {
    /// Memberships and routers up to this serial number are dead, whatever their port.
    all: u64,
    /// Memberships and routers of a port (OpenFlow number) up to its serial number are dead.
    ports: Arc<BTreeMap<OfPort, u64>>,
}

impl Dead {
    fn includes(&self, port: OfPort, serial: u64) -> bool {
        serial <= self.all || self.ports.get(&port).is_some_and(|last| serial <= *last)
    }
}

impl McastView {
    /// The ports with members of a group in a VLAN.
    pub fn members(&self, vlan: u16, group: Ipv6Addr) -> impl Iterator<Item = OfPort> {
        self.live(self.groups.get(&(vlan, group)))
    }

    /// The ports with routers in a VLAN.
    pub fn routers(&self, vlan: u16) -> impl Iterator<Item = OfPort> {
        self.live(self.routers.get(&vlan))
    }

    fn live(&self, all: Option<&Arc<[Shown]>>) -> impl Iterator<Item = OfPort> {
        let all = all.into_iter().flat_map(|all| all.iter());
        all.filter(|(port, serial)| !self.dead.includes(*port, *serial)).map(|(port, _)| *port)
    }
}

/// A change that decisions may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Changed {
    Group(Ipv6Addr),
    /// Routers, or very many groups: whatever goes to more than one station.
    All,
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

/// The group or router that was looked at last ([`McastTable::entries_after`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McastPlace {
    /// A group in a VLAN.
    Group(u16, Ipv6Addr),
    /// A router's VLAN and OpenFlow port.
    Router(u16, u32),
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
    groups: BTreeMap<Group, Vec<Member>>,
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
    /// VLANs in which each port has a router.
    router_vlans: BTreeSet<(OfPort, u16)>,
    /// Dead memberships and routers that are still in the tables.
    unswept: Unswept,
    /// When each port may send a full burst again, ns.
    whole_at: BTreeMap<OfPort, u64>,
    not_heard: u64,
    serial: u64,
    shown: McastView,
    pub published: Arc<Published<McastView>>,
    changed: BTreeSet<Changed>,
    /// True: what is shown differs from what is published.
    unpublished: bool,
    /// Memberships and routers that were looked at.
    #[cfg(test)]
    steps: u64,
}

/// Dead memberships and routers, by the port behind which they were.
#[derive(Default)]
struct Unswept {
    members: Vec<(OfPort, BTreeMap<u64, Group>)>,
    routers: Vec<(OfPort, u16)>,
}

impl McastTable {
    pub fn new(domain: Domain, config: McastConfig) -> McastTable {
        McastTable {
            config: within(config),
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
            by_port: BTreeMap::new(),
            shares: Shares::default(),
            order: BTreeMap::new(),
            routers: BTreeMap::new(),
            router_order: BTreeMap::new(),
            router_vlans: BTreeSet::new(),
            unswept: Unswept::default(),
            whole_at: BTreeMap::new(),
            not_heard: 0,
            serial: 0,
            shown: McastView::default(),
            published: Arc::new(Published::new(domain, McastView::default())),
            changed: BTreeSet::new(),
            unpublished: false,
            #[cfg(test)]
            steps: 0,
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
        self.routers.get(&(vlan, port)).is_some_and(|m| self.lives(m))
    }

    fn lives(&self, m: &Member) -> bool {
        !self.shown.dead.includes(m.port, m.serial)
    }

    fn step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }

    /// Records a router's query.
    pub fn router(&mut self, vlan: u16, port: OfPort, now: u64) {
        let new = self.member(port, now);
        self.router_order.insert(new.serial, (vlan, port));
        self.router_vlans.insert((port, vlan));
        let old = self.routers.insert((vlan, port), new);
        old.iter().for_each(|old| _ = self.router_order.remove(&old.serial));
        if !old.is_some_and(|old| self.lives(&old)) {
            self.show_routers(vlan);
        }
    }

    /// Records a member's report. In a full table a new group has room once the port with the most
    /// memberships has given up some; where these do not suffice, the next report finds more room.
    pub fn join(&mut self, group: Group, port: OfPort, now: u64) {
        let new = self.member(port, now);
        if !self.groups.contains_key(&group) && !self.has_room() {
            return;
        }
        let all = self.groups.entry(group).or_default();
        all.last().iter().for_each(|m| _ = self.order.remove(&m.serial));
        let before = all.iter().position(|m| m.port == port).map(|at| all.remove(at));
        all.push(new);
        self.order.insert(new.serial, group);
        before.iter().for_each(|m| self.unlink(m));
        if !before.is_some_and(|m| self.lives(&m)) {
            self.show_group(group);
        }
        self.members.insert(new.serial, (group, port));
        let own = self.by_port.entry(port).or_default();
        own.insert(new.serial, group);
        self.shares.set(port, own.len());
    }

    /// True if there is room for a new group, for which others give way if need be. As long as some
    /// are dead, those that are alive need not.
    fn has_room(&mut self) -> bool {
        let mut left = DISPLACED_MAX;
        let is_full = |t: &McastTable| t.groups.len() >= t.config.table_size;
        if is_full(self) {
            left -= self.sweep(left);
        }
        if !self.unswept.members.is_empty() {
            return true;
        }
        while is_full(self) && left > 0 && self.evict() {
            left -= 1;
        }
        !is_full(self)
    }

    fn unlink(&mut self, m: &Member) {
        self.members.remove(&m.serial);
        let Some(own) = self.by_port.get_mut(&m.port) else { return };
        if own.remove(&m.serial).is_some() {
            self.shares.set(m.port, own.len());
        }
        if own.is_empty() {
            self.by_port.remove(&m.port);
        }
    }

    /// Records that a member leaves.
    pub fn leave(&mut self, group: Group, port: OfPort) {
        if self.drop_member(group, port, None) {
            self.changed.insert(Changed::Group(group.1));
        }
    }

    /// Removes a membership, if its latest report has this serial number (None: any); false: it is
    /// not there.
    fn drop_member(&mut self, group: Group, port: OfPort, serial: Option<u64>) -> bool {
        self.step();
        let Some(all) = self.groups.get_mut(&group) else { return false };
        let is_it = |m: &Member| m.port == port && serial.is_none_or(|serial| m.serial == serial);
        let Some(at) = all.iter().position(is_it) else { return false };
        all.last().iter().for_each(|m| _ = self.order.remove(&m.serial));
        let gone = all.remove(at);
        match all.last() {
            Some(m) => _ = self.order.insert(m.serial, group),
            None => _ = self.groups.remove(&group),
        }
        self.unlink(&gone);
        self.view_group(group);
        true
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
        self.whole_at.remove(&port);
        let vlans = (port, 0)..=(port, u16::MAX);
        let vlans: Vec<_> = self.router_vlans.range(vlans).copied().collect();
        let own = self.by_port.remove(&port).unwrap_or_default();
        if vlans.is_empty() && own.is_empty() {
            return;
        }
        self.shares.set(port, 0);
        match vlans.is_empty() && own.len() <= SINGLE_GROUPS_MAX {
            true => self.changed.extend(own.values().map(|group| Changed::Group(group.1))),
            false => _ = self.changed.insert(Changed::All),
        }
        Arc::make_mut(&mut self.shown.dead.ports).insert(port, self.serial);
        self.unswept.members.push((port, own));
        self.unswept.routers.extend(vlans);
        self.unpublished = true;
    }

    fn drop_router(&mut self, vlan: u16, port: OfPort) {
        self.step();
        if let Some(gone) = self.routers.remove(&(vlan, port)) {
            self.router_order.remove(&gone.serial);
            self.router_vlans.remove(&(port, vlan));
        }
        self.view_routers(vlan);
    }

    /// Removes everything.
    pub fn flush(&mut self) {
        if self.by_port.is_empty() && self.routers.is_empty() {
            return;
        }
        self.unswept.members.extend(std::mem::take(&mut self.by_port));
        self.shares = Shares::default();
        self.shown.dead.all = self.serial;
        self.changed = BTreeSet::from([Changed::All]);
        self.unpublished = true;
    }

    /// True if dead memberships or routers are still in the tables.
    pub fn is_unswept(&self) -> bool {
        !self.unswept.members.is_empty() || !self.unswept.routers.is_empty() || self.dead_router()
    }

    /// True if everything was flushed after the oldest router was last heard of.
    fn dead_router(&self) -> bool {
        let oldest = self.router_order.first_key_value();
        oldest.is_some_and(|(serial, _)| *serial <= self.shown.dead.all)
    }

    /// Removes dead memberships and routers from the tables: at most `n`; returns how many.
    pub fn sweep(&mut self, n: usize) -> usize {
        let mut gone = 0;
        while gone < n
            && let Some((port, own)) = self.unswept.members.last_mut()
        {
            let port = *port;
            match own.pop_first() {
                Some((serial, group)) => {
                    self.drop_member(group, port, Some(serial));
                    gone += 1;
                }
                None => _ = self.unswept.members.pop(),
            }
        }
        while gone < n
            && let Some((port, vlan)) = self.unswept.routers.pop()
        {
            if self.routers.get(&(vlan, port)).is_some_and(|m| !self.lives(m)) {
                self.drop_router(vlan, port);
            }
            gone += 1;
        }
        while gone < n
            && self.dead_router()
            && let Some((_, &(vlan, port))) = self.router_order.first_key_value()
        {
            self.drop_router(vlan, port);
            gone += 1;
        }
        if !self.shown.dead.ports.is_empty() && !self.is_unswept() {
            self.shown.dead.ports = Arc::default();
            self.unpublished = true;
        }
        gone
    }

    /// Removes memberships and routers that were not heard of for too long, and memberships beyond
    /// the limit: at most `n`; returns how many.
    pub fn expire(&mut self, now: u64, n: usize) -> usize {
        let mut gone = self.sweep(n);
        if self.is_unswept() {
            return gone;
        }
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
            self.changed.insert(Changed::All);
            gone += 1;
        }
        gone
    }

    /// All memberships, those of the group that was heard of longest ago first, then all routers.
    pub fn entries(&self) -> Vec<McastEntry> {
        let members = self.order.values().flat_map(|group| {
            self.groups[group].iter().filter(|m| self.lives(m)).map(|m| McastEntry {
                port: m.port,
                vlan: group.0,
                group: Some(group.1),
                used: m.used,
            })
        });
        let mut routers: Vec<_> = self.routers.iter().filter(|(_, m)| self.lives(m)).collect();
        routers.sort_unstable_by_key(|(_, m)| m.serial);
        let routers = routers.into_iter().map(|((vlan, port), m)| McastEntry {
            port: *port,
            vlan: *vlan,
            group: None,
            used: m.used,
        });
        members.chain(routers).collect()
    }

    /// Number of memberships and routers, dead ones included.
    pub fn len(&self) -> usize {
        self.members.len() + self.routers.len()
    }

    /// Calls `each` with memberships by group, then with routers by VLAN. Examines `looks` of them
    /// behind a place, and the rest of a group. Returns the place to continue behind; None: there
    /// are no more.
    pub fn entries_after(
        &self,
        place: Option<McastPlace>,
        looks: usize,
        each: &mut dyn FnMut(McastEntry),
    ) -> Option<McastPlace> {
        use McastPlace::{Group, Router};
        let mut left = looks.max(1);
        let groups = match place {
            None => Some(Unbounded),
            Some(Group(vlan, group)) => Some(Excluded((vlan, group))),
            Some(Router(..)) => None,
        };
        let groups = groups.map(|from| self.groups.range((from, Unbounded)));
        for (&(vlan, group), members) in groups.into_iter().flatten() {
            for m in members.iter().filter(|m| self.lives(m)) {
                each(McastEntry { port: m.port, vlan, group: Some(group), used: m.used });
            }
            left = left.saturating_sub(members.len());
            if left == 0 {
                return Some(Group(vlan, group));
            }
        }
        let from = match place {
            Some(Router(vlan, port)) => Excluded((vlan, port)),
            _ => Unbounded,
        };
        for (&(vlan, port), m) in self.routers.range((from, Unbounded)) {
            if self.lives(m) {
                each(McastEntry { port, vlan, group: None, used: m.used });
            }
            left -= 1;
            if left == 0 {
                return Some(Router(vlan, port));
            }
        }
        None
    }

    fn show_group(&mut self, group: Group) {
        self.view_group(group);
        self.changed.insert(Changed::Group(group.1));
    }

    fn view_group(&mut self, group: Group) {
        let shown = |all: &Vec<Member>| all.iter().map(|m| (m.port, m.serial)).collect();
        match self.groups.get(&group) {
            Some(all) => self.shown.groups.insert_mut(group, shown(all)),
            None => _ = self.shown.groups.remove_mut(&group),
        }
        self.unpublished = true;
    }

    fn show_routers(&mut self, vlan: u16) {
        self.view_routers(vlan);
        self.changed.insert(Changed::All);
    }

    fn view_routers(&mut self, vlan: u16) {
        let own = self.routers.range((vlan, 0)..=(vlan, OfPort::MAX));
        let own: Arc<[Shown]> = own.map(|((_, port), m)| (*port, m.serial)).collect();
        match own.is_empty() {
            false => self.shown.routers.insert_mut(vlan, own),
            true => _ = self.shown.routers.remove_mut(&vlan),
        }
        self.unpublished = true;
    }

    /// Publishes the present state, and returns what has changed since it was last published.
    pub fn publish(&mut self) -> BTreeSet<Changed> {
        if std::mem::take(&mut self.unpublished) {
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
    use sync::Writer;

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

    /// All entries are shown piece by piece, each once, also those that are heard of meanwhile.
    #[test]
    fn entries_are_shown_piece_by_piece_and_once() {
        const PIECE: usize = 16;
        let config = McastConfig { table_size: 1000, ..McastConfig::default() };
        let mut t = McastTable::new(Domain::new().writer().domain().clone(), config);
        for i in 0..300 {
            (1..=1 + u32::from(i % 3)).for_each(|port| t.join(group(i), port, 1));
        }
        (0..40).for_each(|vlan| t.router(vlan, 9, 1));
        let key = |e: &McastEntry| (e.group.is_none(), e.vlan, e.group, e.port);
        let mut expected: Vec<_> = t.entries().iter().map(key).collect();
        expected.sort_unstable();
        let (mut shown, mut place) = (Vec::new(), None);
        loop {
            let before = shown.len();
            place = t.entries_after(place, PIECE, &mut |e| shown.push(key(&e)));
            assert!(shown.len() - before < PIECE + 3);
            (0..300).for_each(|i| t.join(group(i), 1, 2));
            (0..40).for_each(|vlan| t.router(vlan, 9, 2));
            if place.is_none() {
                break;
            }
        }
        shown.sort_unstable();
        assert_eq!((shown, t.len()), (expected, 640));
        t.flush();
        assert_eq!(t.entries_after(None, usize::MAX, &mut |_| panic!("dead")), None);
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
        assert!(t.publish().contains(&Changed::All) && t.entries().is_empty());
        t.sweep(usize::MAX);
        assert!(t.members.is_empty() && t.by_port.is_empty() && t.shares.is_empty());
        assert!(t.groups.is_empty() && t.order.is_empty() && t.router_vlans.is_empty());
        assert!(t.shown.groups.is_empty() && t.shown.routers.is_empty());
        assert!(t.publish().is_empty() && t.router_order.is_empty());
    }

    /// Ports 1 and 2 are members of each of very many groups; port 1 has a router in each VLAN.
    fn full() -> (Writer, McastTable) {
        let writer = Domain::new().writer();
        let mut t = McastTable::new(writer.domain().clone(), McastConfig::default());
        t.config.table_size = FULL_GROUPS.into();
        for i in 0..FULL_GROUPS {
            t.join(group(i), 1, 0);
            t.join(group(FULL_GROUPS - 1 - i), 2, 0);
        }
        (0..4095).for_each(|vlan| t.router(vlan, 1, 0));
        t.publish();
        (writer, t)
    }

    const FULL_GROUPS: u16 = 20_000;

    /// Ports to which packets of a group and of a router's VLAN go.
    fn to((writer, t): (&Writer, &McastTable), i: u16) -> (Vec<OfPort>, Vec<OfPort>) {
        let view = t.published.read(writer.pin());
        let (vlan, group) = group(i);
        (view.members(vlan, group).collect(), view.routers(vlan).collect())
    }

    #[test]
    fn what_is_flushed_is_dead_at_once_and_goes_some_at_a_time() {
        let (w, mut t) = full();
        assert_eq!(to((&w, &t), 5), (vec![1, 2], vec![1]));
        let before = t.steps;
        t.flush();
        assert_eq!(t.publish(), BTreeSet::from([Changed::All]));
        assert!(t.steps - before <= 2, "{} steps", t.steps - before);
        assert_eq!((to((&w, &t), 5), t.entries().len()), ((vec![], vec![]), 0));
        assert!(!t.is_router(5, 1));
        // Who reports again is a member again, in a table that is full of what is dead, too.
        t.join(group(5), 2, 1);
        t.join(group(FULL_GROUPS), 3, 1);
        t.router(group(5).0, 2, 1);
        t.publish();
        while t.is_unswept() {
            let before = t.steps;
            assert!(t.expire(2, 100) <= 100 && t.steps - before <= 100);
            assert!(!t.publish().contains(&Changed::All));
            assert_eq!(to((&w, &t), 5), (vec![2], vec![2]));
        }
        assert_eq!(shown(&t), (vec![(2, 5), (3, FULL_GROUPS)], vec![(2, group(5).0)]));
        assert_eq!((t.members.len(), t.groups.len(), t.router_vlans.len()), (2, 2, 1));
    }

    #[test]
    fn what_a_port_leaves_is_dead_at_once_and_goes_some_at_a_time() {
        let (w, mut t) = full();
        let before = t.steps;
        t.remove_port(1);
        assert_eq!(t.publish(), BTreeSet::from([Changed::All]));
        assert!(t.steps - before <= 2, "{} steps", t.steps - before);
        assert_eq!((to((&w, &t), 5), t.entries().len()), ((vec![2], vec![]), FULL_GROUPS.into()));
        // Another port under the same number has what it reports itself, and no more.
        t.join(group(7), 1, 1);
        t.publish();
        while t.is_unswept() {
            let before = t.steps;
            assert!(t.expire(2, 100) <= 100 && t.steps - before <= 100);
            assert!(t.publish().is_empty());
            assert_eq!((to((&w, &t), 5).0, to((&w, &t), 7).0), (vec![2], vec![2, 1]));
        }
        assert_eq!(t.members.len(), usize::from(FULL_GROUPS) + 1);
        assert!(t.shown.dead.ports.is_empty() && t.router_vlans.is_empty());
    }

    #[test]
    fn a_new_group_displaces_few_memberships() {
        let (w, mut t) = full();
        for i in 0..400 {
            let before = t.steps;
            t.join(group(FULL_GROUPS + i), 3, 1);
            assert!(t.steps - before <= DISPLACED_MAX as u64);
            assert!(t.groups.len() <= FULL_GROUPS.into());
        }
        t.publish();
        assert_eq!(to((&w, &t), FULL_GROUPS + 399).0, [3]);
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
        t.sweep(usize::MAX);
        assert!(t.routers.is_empty() && t.router_order.is_empty());
    }
}
