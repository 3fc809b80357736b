//! The routing table for outer packets: the kernel's routes and the user's.

use crate::work;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Priority of local routes, and of the user's, over others of the same length (OVS's order).
const PREFERRED: u16 = 64;

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub prefix: IpAddr,
    /// Bits of the destination that are compared.
    pub len: u8,
    /// The device by which packets leave: useful here only if it is a port of a bridge.
    pub device: String,
    /// Next hop; None: the destination itself.
    pub gateway: Option<IpAddr>,
    /// Source address of packets.
    pub source: IpAddr,
    /// Only packets with this mark use the route.
    pub mark: u32,
    /// True: it leads to an own address.
    pub local: bool,
    /// True if it was added by `ovs/route/add`, false if it is the kernel's.
    pub user: bool,
}

/// Addresses of devices: name, address, prefix length of its network.
pub type Addresses = Vec<(String, IpAddr, u8)>;

/// An IPv6 address as a number; IPv4 addresses are mapped.
fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn cut(bits: u128, len: u8) -> u128 {
    if len == 0 { 0 } else { bits & u128::MAX << (128 - len) }
}

impl Route {
    /// Length of the prefix, as IPv6 counts it.
    fn long(&self) -> u8 {
        self.len + if self.prefix.is_ipv4() { 96 } else { 0 }
    }

    /// Priority; a higher one comes first.
    fn priority(&self) -> u16 {
        u16::from(self.long()) + if self.local || self.user { PREFERRED } else { 0 }
    }
}

/// Routes by prefix and mark, in a table for each priority and length.
type Tables = BTreeMap<(u16, u8), HashMap<(u128, u32), Route>>;

/// The routing table.
#[derive(Clone, Default)]
pub struct Routes {
    tables: Arc<Tables>,
    addresses: Arc<Addresses>,
}

/// The kernel's routes. There may be very many, so that a thread of its own puts them together.
#[derive(Default)]
pub struct KernelRoutes(Routes);

impl FromIterator<Route> for KernelRoutes {
    fn from_iter<I: IntoIterator<Item = Route>>(routes: I) -> KernelRoutes {
        let mut all = Routes::default();
        routes.into_iter().for_each(|r| all.insert(r));
        KernelRoutes(all)
    }
}

impl Routes {
    /// Adds a route, which replaces one to the same destination.
    pub fn insert(&mut self, r: Route) {
        let at = (r.priority(), r.long());
        let key = (cut(bits(r.prefix), at.1), r.mark);
        Arc::make_mut(&mut self.tables).entry(at).or_default().insert(key, r);
    }

    /// Removes one of the user's routes; false: there is none.
    pub fn remove_user(&mut self, prefix: IpAddr, len: u8, mark: u32) -> bool {
        let long = len + if prefix.is_ipv4() { 96 } else { 0 };
        let tables = Arc::make_mut(&mut self.tables);
        let table = tables.get_mut(&(u16::from(long) + PREFERRED, long));
        let key = (cut(bits(prefix), long), mark);
        table.is_some_and(|t| match t.get(&key) {
            Some(r) if r.user => t.remove(&key).is_some(),
            _ => false,
        })
    }

    /// Replaces the kernel's routes; the user's stay. However many of the kernel's there are, this
    /// visits those to own addresses and the user's only.
    pub fn replace_kernel(&mut self, new: KernelRoutes, addresses: Addresses) {
        let old = std::mem::replace(self, new.0);
        self.addresses = Arc::new(addresses);
        for ((priority, long), table) in old.tables.iter() {
            if *priority == u16::from(*long) + PREFERRED {
                let user = table.values().inspect(|_| work::step()).filter(|r| r.user);
                user.for_each(|r| self.insert(r.clone()));
            }
        }
    }

    /// Sets the addresses of devices.
    pub fn set_addresses(&mut self, addresses: Addresses) {
        self.addresses = Arc::new(addresses);
    }

    /// All routes, in the order in which they are used.
    pub fn all(&self) -> Vec<&Route> {
        self.tables
            .values()
            .rev()
            .flat_map(|t| {
                let mut list: Vec<&Route> = t.values().collect();
                list.sort_by_key(|r| (bits(r.prefix), r.mark));
                list
            })
            .collect()
    }

    fn find(&self, to: IpAddr, mark: u32) -> Option<&Route> {
        let to = bits(to);
        self.tables.iter().rev().find_map(|((_, len), t)| t.get(&(cut(to, *len), mark)))
    }

    /// The route to an address for packets with a mark, from `source` if that is given, which must
    /// be an own address.
    pub fn lookup(&self, to: IpAddr, mark: u32, source: Option<IpAddr>) -> Option<&Route> {
        if let Some(source) = source
            && !self.find(source, mark).is_some_and(|r| r.local)
        {
            return None;
        }
        self.find(to, mark)
    }

    /// The address of `device` whose network is the smallest that contains `peer`.
    pub fn source_for(&self, device: &str, peer: IpAddr) -> Option<IpAddr> {
        source_for(&self.addresses, device, peer)
    }

    /// True if the device has this address.
    pub fn has_address(&self, device: &str, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(d, a, _)| *a == ip && d == device)
    }

    /// True if the device has an address.
    pub fn has_addresses(&self, device: &str) -> bool {
        self.addresses.iter().any(|(d, _, _)| d == device)
    }

    /// Addresses of devices.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }
}

/// The address of `device` in a list whose network is the smallest that contains `peer`.
pub fn source_for(addresses: &Addresses, device: &str, peer: IpAddr) -> Option<IpAddr> {
    let long = |ip: IpAddr, len: u8| len + if ip.is_ipv4() { 96 } else { 0 };
    let shared = |(d, ip, len): &&(String, IpAddr, u8)| {
        let len = long(*ip, *len);
        let family = ip.is_ipv4() == peer.is_ipv4();
        d == device && family && cut(bits(*ip), len) == cut(bits(peer), len)
    };
    let best = addresses.iter().filter(shared).max_by_key(|(_, ip, len)| long(*ip, *len));
    best.map(|(_, ip, _)| *ip)
}

/// The solicited-node multicast address (RFC 4291, section 2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    let base = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(base | u128::from(u32::from_be_bytes([0, o[13], o[14], o[15]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix: &str, len: u8, device: &str) -> Route {
        Route {
            prefix: prefix.parse().unwrap(),
            len,
            device: device.into(),
            gateway: None,
            source: "10.0.0.1".parse().unwrap(),
            mark: 0,
            local: false,
            user: false,
        }
    }

    #[test]
    fn the_longest_prefix_wins_and_the_users_come_first() {
        let mut t = Routes::default();
        t.replace_kernel(
            [route("0.0.0.0", 0, "a"), route("10.0.0.0", 24, "b")].into_iter().collect(),
            vec![],
        );
        let dev = |t: &Routes, ip: &str| {
            t.lookup(ip.parse().unwrap(), 0, None).map(|r| r.device.clone()).unwrap_or_default()
        };
        assert_eq!((dev(&t, "10.0.0.9"), dev(&t, "11.0.0.9")), ("b".into(), "a".into()));
        assert_eq!(dev(&t, "::1"), "");
        t.insert(Route { user: true, ..route("10.0.0.0", 8, "c") });
        t.replace_kernel([route("10.0.0.0", 24, "b")].into_iter().collect(), vec![]);
        assert_eq!((dev(&t, "10.0.0.9"), dev(&t, "11.0.0.9")), ("c".into(), "".into()));
        let ten = "10.0.0.0".parse().unwrap();
        assert!(!t.remove_user(ten, 24, 0));
        assert!(t.remove_user(ten, 8, 0) && !t.remove_user(ten, 8, 0));
        assert_eq!(dev(&t, "10.0.0.9"), "b");
    }

    #[test]
    fn very_many_routes_of_the_kernel_are_taken_over_in_few_steps() {
        let mut t = Routes::default();
        t.insert(Route { user: true, ..route("10.0.0.0", 8, "c") });
        for n in [1000, 10_000] {
            let prefix = |i: u32| std::net::Ipv4Addr::from(i << 8).into();
            let one = |i| Route { prefix: prefix(i), ..route("0.0.0.0", 24, "b") };
            let new = (0..n).map(one).collect();
            let (steps, ()) = work::steps(|| t.replace_kernel(new, vec![]));
            assert!(steps < 10, "{n} routes: {steps} steps");
            assert_eq!(t.all().len(), n as usize + 1);
        }
    }

    #[test]
    fn a_source_that_is_asked_for_must_be_ours() {
        let (mut t, ip) = (Routes::default(), |s: &str| s.parse::<IpAddr>().unwrap());
        let own = Route { local: true, ..route("10.0.0.1", 32, "b") };
        t.replace_kernel([own, route("10.0.0.0", 24, "b")].into_iter().collect(), vec![]);
        assert!(t.lookup(ip("10.0.0.9"), 0, Some(ip("10.0.0.1"))).is_some());
        assert!(t.lookup(ip("10.0.0.9"), 0, Some(ip("10.0.0.2"))).is_none());
        assert!(t.lookup(ip("10.0.0.9"), 7, None).is_none());
    }

    #[test]
    fn sources_are_in_the_narrowest_network() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let all = vec![
            ("b".to_string(), ip("10.0.0.1"), 8),
            ("b".to_string(), ip("10.1.0.1"), 16),
            ("c".to_string(), ip("10.1.2.1"), 24),
        ];
        assert_eq!(source_for(&all, "b", ip("10.1.2.9")), Some(ip("10.1.0.1")));
        assert_eq!(source_for(&all, "b", ip("11.1.2.9")), None);
    }
}
