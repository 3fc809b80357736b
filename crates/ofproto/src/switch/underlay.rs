//! The underlay of tunnels: routes, neighbours, and what changes with them.

use crate::switch::Switch;
use crate::translate::effects::{Hop, Snooped};
use crate::tunnel::neighbours::{How, Learned};
use crate::tunnel::*;
use crate::types::{BridgeId, PortSpec};
use crate::work;
use action::Region;
use flow::{Key, at};
use openflow::OfPort;
use std::collections::BTreeSet;
use std::net::IpAddr;

impl Switch {
    /// The routing table.
    pub fn routes(&self) -> &Routes {
        &self.tunnels.underlay.routes
    }

    /// Changes the routing table. Decisions that would change are made anew.
    pub fn change_routes<T>(&mut self, f: impl FnOnce(&mut Routes) -> T) -> T {
        let before = self.tunnels.underlay.routes.addresses().clone();
        let out = f(&mut self.tunnels.underlay.routes);
        self.publish_underlay();
        self.outbox.underlay = true;
        if before != *self.tunnels.underlay.routes.addresses() {
            self.addresses_changed(&before);
        }
        out
    }

    /// Makes decisions anew that depend on the addresses of ports' devices, which were `before`.
    /// Without tunnels there are none.
    fn addresses_changed(&mut self, before: &Addresses) {
        if self.published().tunnels.is_empty() {
            return;
        }
        let [old, new] = [before, self.routes().addresses()].map(|a| a.iter().collect());
        let differ = BTreeSet::symmetric_difference(&old, &new);
        let devices: BTreeSet<&str> = differ.map(|(device, ..)| device.as_str()).collect();
        let ports = self.bridges.iter().flatten().flat_map(|b| {
            let named = |p: &&PortSpec| devices.contains(p.name.as_str());
            b.ports.values().inspect(|_| work::step()).filter(named).map(|p| (b.id, p.clone()))
        });
        let ports: Vec<_> = ports.collect();
        ports.iter().for_each(|(bridge, p)| self.port_concerns(*bridge, p));
    }

    /// UDP source ports of encapsulated packets: the first, and the one behind the last.
    pub fn tunnel_source_ports(&self) -> (u16, u16) {
        let SourcePorts(min, max) = self.tunnels.underlay.source_ports;
        (min, max)
    }

    /// Sets the UDP source ports of encapsulated packets: `min` to `max`, both included.
    pub fn set_tunnel_source_ports(&mut self, min: u16, max: u16) {
        self.tunnels.underlay.source_ports = SourcePorts(min, max.max(min));
        self.publish_underlay();
        self.outbox.region(Region::ALL);
    }

    /// True if tunnels' packets are left to a kernel's datapath.
    pub fn leaves_tunnels(&self) -> bool {
        self.tunnels.underlay.left_to_kernel
    }

    /// Whether tunnels' packets are left to a kernel's datapath. There is none here, so they end;
    /// traces show what OVS would send it.
    pub fn leave_tunnels(&mut self, leave: bool) {
        self.tunnels.underlay.left_to_kernel = leave;
        self.publish_underlay();
        self.outbox.region(Region::ALL);
    }

    /// The known next hops: port, address, and what is known of it.
    pub fn neighbours(&self) -> impl Iterator<Item = (&str, IpAddr, &Neighbour)> {
        self.tunnels.neighbours.all().iter().map(|((port, ip), n)| (port.as_str(), *ip, n))
    }

    /// Sets the hardware address of a next hop behind a port's device statically, at `now` (ns):
    /// neither the kernel nor packets change it.
    pub fn set_neighbour(&mut self, port: &str, ip: IpAddr, mac: [u8; 6], now: u64) {
        self.learn_neighbour(port, ip, mac, How::User, now);
        self.publish_neighbours();
    }

    /// Records a next hop that the kernel knows; `sure`: the kernel has confirmed it. It is
    /// published when changes are next taken.
    pub fn kernel_neighbour(&mut self, port: &str, ip: IpAddr, mac: [u8; 6], sure: bool, now: u64) {
        self.learn_neighbour(port, ip, mac, How::Kernel { sure }, now);
    }

    fn learn_neighbour(&mut self, port: &str, ip: IpAddr, mac: [u8; 6], how: How, now: u64) {
        let learned = self.tunnels.neighbours.learn(port, ip, mac, how, now);
        self.outbox.neighbours |= learned != Learned::Known;
        self.outbox.underlay |= learned == Learned::Matters;
    }

    /// Number of announcements of next hops that were ignored because their port sent too many.
    pub fn neighbours_limited(&self) -> u64 {
        self.tunnels.neighbours.limited()
    }

    /// Announcements of next hops that were ignored since they were last reported, by port. Each
    /// port is reported once a minute. `now` in ns.
    pub fn take_limited_neighbours(&mut self, now: u64) -> Vec<(String, u64)> {
        self.tunnels.neighbours.take_limited(now)
    }

    /// Removes all next hops.
    pub fn flush_neighbours(&mut self) {
        self.tunnels.neighbours.clear();
        self.publish_underlay();
        self.outbox.underlay = true;
    }

    /// Removes the next hops behind ports that do not exist any more.
    pub(crate) fn forget_neighbours(&mut self, ports: &[&str]) {
        if self.tunnels.neighbours.forget(ports) {
            self.publish_underlay();
        }
    }

    /// Seconds without use after which a next hop is removed.
    pub fn neighbour_aging(&self) -> u32 {
        (self.tunnels.neighbours.aging_ns / 1_000_000_000) as u32
    }

    /// Sets the seconds without use after which a next hop that is learned from now on is removed.
    pub fn set_neighbour_aging(&mut self, seconds: u32) {
        self.tunnels.neighbours.aging_ns = u64::from(seconds) * 1_000_000_000;
    }

    /// Takes the solicitations of next hops that are due.
    pub fn take_solicitations(&mut self) -> Vec<Solicitation> {
        std::mem::take(&mut self.tunnels.solicitations)
    }

    /// The port on which a decapsulated packet comes in, by datapath port and tunnel fields.
    pub fn tunnel_receiver(&self, key: &Key) -> Option<(BridgeId, OfPort)> {
        let published = self.published();
        debug_assert!(key.u16(at::IN_PORT) != flow::NO_PORT);
        published.tunnels.receiver(key).map(|(b, p)| (BridgeId(b), p))
    }

    /// The port by which a tunnel's packets leave now. None: there is no route, or it depends on
    /// the flow.
    pub fn egress(&self, spec: &PortSpec) -> Option<&str> {
        let tunnel = spec.tunnel.as_ref()?;
        let Remote::Ip(to) = tunnel.remote else { return None };
        let from = match tunnel.local {
            Local::Ip(ip) => Some(ip),
            _ => None,
        };
        let mark = tunnel.egress_mark.unwrap_or(0);
        Some(&self.tunnels.underlay.routes.lookup(to, mark, from)?.device)
    }

    /// Processes that a decision sends to this next hop: solicits it if that is due, and has the
    /// decision made anew if it has another hardware address.
    pub(crate) fn hop(&mut self, h: &Hop, now: u64) {
        let port = self.bridges.get(h.bridge as usize).and_then(|b| b.as_ref()?.ports.get(&h.port));
        let Some(port) = port else { return };
        if self.tunnels.neighbours.wanted(h.from, &port.name, h.next, now)
            && let Some(frame) = question(port.hw_addr, h.source, h.next)
        {
            let (bridge, port) = (BridgeId(h.bridge), h.port);
            self.tunnels.solicitations.push(Solicitation { bridge, port, frame });
        }
        if self.tunnels.neighbours.get(&port.name, h.next) != h.used {
            // The decision is older than the present knowledge.
            self.outbox.underlay = true;
        }
    }

    pub(crate) fn snooped(&mut self, s: &Snooped, now: u64) {
        self.learn_neighbour(&s.port, s.ip, s.mac, s.how, now);
    }

    pub(crate) fn expire_neighbours(&mut self, now: u64) {
        if self.tunnels.neighbours.expire(now) {
            self.publish_underlay();
            self.outbox.underlay = true;
        }
    }

    /// Publishes what changed about next hops since the last time; how much that is does not
    /// matter.
    pub(super) fn publish_neighbours(&mut self) {
        if std::mem::take(&mut self.outbox.neighbours) {
            self.publish_underlay();
        }
    }

    fn publish_underlay(&mut self) {
        self.tunnels.underlay.neighbours = self.tunnels.neighbours.view();
        self.shared.underlay.publish(self.tunnels.underlay.clone());
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{Lab, apply, flow, out, packet};
    use crate::*;
    use ::action::{Decision, TunnelKind};
    use std::net::IpAddr;

    /// Port 2 is an underlay's device with address 10.0.0.1/8; ports 5 and 6 are tunnels to .5 and
    /// .6.
    fn lab() -> Lab {
        let mut lab = Lab::new();
        for n in [5, 6] {
            let tunnel = TunnelSpec {
                kind: TunnelKind::Vxlan,
                mode: PacketMode::LegacyL2,
                gpe: false,
                dst_port: 4789,
                remote: Remote::Ip([10, 0, 0, n].into()),
                local: Local::Any,
                in_key: Some(1),
                out_key: Some(1),
                tos: Some(0),
                ttl: Some(64),
                df: true,
                keyed: true,
                csum: false,
                sequence: false,
                erspan: ErspanSpec::default(),
                egress_mark: None,
            };
            let (of_port, name) = (n.into(), format!("t{n}"));
            let (dp_port, tunnel) = (Some(30), Some(tunnel));
            let spec = PortSpec { of_port, name, dp_port, tunnel, ..PortSpec::default() };
            lab.sw.add_port(lab.br, spec).unwrap();
            lab.add(flow(0, 9, &format!("in_port={}", n - 2), apply(vec![out(n.into())])));
        }
        let address = ("p2".to_string(), [10, 0, 0, 1].into(), 8);
        lab.sw.change_routes(|t| {
            t.replace_kernel([route([10, 0, 0, 0], 8, None)].into_iter().collect(), vec![address])
        });
        lab
    }

    fn route(prefix: [u8; 4], len: u8, gateway: Option<[u8; 4]>) -> Route {
        Route {
            prefix: prefix.into(),
            len,
            device: "p2".into(),
            gateway: gateway.map(IpAddr::from),
            source: [10, 0, 0, 1].into(),
            mark: 0,
            local: false,
            user: true,
        }
    }

    #[test]
    fn only_decisions_that_would_be_others_are_stale() {
        let mut lab = lab();
        let mut decisions = ["in_port=3", "in_port=4", "in_port=2"].map(|p| lab.decide(&packet(p)));
        for e in decisions.iter().filter_map(|d| d.effects.as_ref()) {
            lab.sw.effects(e, 1);
        }
        lab.sw.take_regions();
        lab.sw.take_stale();
        let stale = |sw: &mut Switch, decisions: &[Decision]| -> Vec<bool> {
            assert!(sw.take_regions().is_empty(), "only what is stale");
            let Some(is) = sw.take_stale() else { return Vec::new() };
            decisions.iter().map(|d| is(&d.cached())).collect()
        };
        assert!(stale(&mut lab.sw, &decisions).iter().all(|s| !s));
        lab.sw.set_neighbour("p2", [10, 0, 0, 5].into(), [5; 6], 2);
        assert_eq!(stale(&mut lab.sw, &decisions), [true, false, false]);
        decisions[0] = lab.decide(&packet("in_port=3"));
        lab.sw.set_neighbour("p2", [10, 0, 0, 7].into(), [7; 6], 2);
        assert!(stale(&mut lab.sw, &decisions).is_empty(), "no decision asked for that one");
        lab.sw.change_routes(|t| t.insert(route([10, 0, 0, 6], 32, Some([10, 0, 0, 7]))));
        assert_eq!(stale(&mut lab.sw, &decisions), [false, true, false]);
        lab.sw.flush_neighbours();
        assert_eq!(stale(&mut lab.sw, &decisions), [true, true, false]);
    }

    /// What is known of fd00::fe after this advertisement of it came to the port with address
    /// fd00::1.
    fn after(lab: &mut Lab, mac: &str, dst: &str, ttl: u8) -> Option<[u8; 6]> {
        let na = "in_port=1,icmp6,icmp_type=136,icmp_code=0,nd_target=fd00::fe";
        lab.send(&format!("{na},nd_tll={mac},ipv6_dst={dst},nw_ttl={ttl}"));
        let of = |(port, ip, n): (&str, IpAddr, &Neighbour)| {
            (port == "p2" && ip == "fd00::fe".parse::<IpAddr>().unwrap()).then_some(n.mac)
        };
        lab.sw.neighbours().find_map(of)
    }

    #[test]
    fn advertisements_come_from_this_link_and_to_us() {
        let mut lab = lab();
        let addresses = [("10.0.0.1", 8), ("fd00::1", 64), ("fd00::12:3456", 64)];
        let addresses = addresses.map(|(ip, len)| ("p2".to_string(), ip.parse().unwrap(), len));
        lab.sw.change_routes(|t| t.replace_kernel(KernelRoutes::default(), addresses.into()));
        lab.add(flow(0, 9, "in_port=1", apply(vec![out(2)])));
        let (good, bad) = ("02:00:00:00:00:0a", "66:66:66:66:66:66");
        for (dst, ttl) in [("fd00::1", 64), ("fd00::1", 254), ("fd00::7", 255), ("fd99::1", 64)] {
            assert_eq!(after(&mut lab, bad, dst, ttl), None, "{dst} {ttl}");
        }
        assert_eq!(after(&mut lab, bad, "ff02::1", 255), None, "makes no entry");
        let known = Some([2, 0, 0, 0, 0, 10]);
        assert_eq!(after(&mut lab, good, "ff02::1:ff12:3456", 255), known, "as OVS");
        for (dst, ttl) in [("fd00::1", 64), ("fd00::7", 255), ("ff02::1", 255), ("ff02::1", 64)] {
            assert_eq!(after(&mut lab, bad, dst, ttl), known, "{dst} {ttl}");
        }
        assert_eq!(after(&mut lab, "02:00:00:00:00:0b", "fd00::1", 255), Some([2, 0, 0, 0, 0, 11]));
    }

    #[test]
    fn next_hops_are_published_once_when_changes_are_taken() {
        let mut lab = lab();
        lab.add(flow(0, 9, "in_port=1", apply(vec![out(2)])));
        lab.settle();
        let known = |lab: &Lab| {
            let view = &lab.sw.shared.underlay.read(lab.sw.pin()).neighbours;
            (1..=9).filter(|i| view.get(&("p2".into(), [10, 0, 1, *i].into())).is_some()).count()
        };
        for i in 1..=9 {
            let arp = format!("arp,arp_op=1,arp_spa=10.0.1.{i},arp_tpa=10.0.1.{i}");
            lab.send(&format!("in_port=1,{arp},arp_sha=02:00:00:00:00:0{i}"));
        }
        assert_eq!((known(&lab), lab.sw.neighbours().count()), (0, 9));
        assert!(lab.sw.take_stale().is_none(), "no decision depends on them");
        assert_eq!(known(&lab), 9);
    }
}
