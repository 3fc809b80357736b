//! The switch's part of tunnels: routes, neighbours and what changes with them.

use crate::switch::Switch;
use crate::translate::{Hop, Snooped};
use crate::tunnel::neighbours::Learned;
use crate::tunnel::*;
use crate::types::{BridgeId, PortSpec};
use action::Region;
use flow::{Key, at};
use openflow::OfPort;
use std::net::IpAddr;

impl Switch {
    /// The routing table.
    pub fn routes(&self) -> &Routes {
        &self.underlay.routes
    }

    /// Changes the routing table; decisions are made anew.
    pub fn change_routes<T>(&mut self, f: impl FnOnce(&mut Routes) -> T) -> T {
        let out = f(&mut self.underlay.routes);
        self.publish_underlay();
        self.outbox.region(Region::ALL);
        out
    }

    /// UDP source ports of encapsulated packets: the first, and one behind the last.
    pub fn tunnel_source_ports(&self) -> (u16, u16) {
        let SourcePorts(min, max) = self.underlay.source_ports;
        (min, max)
    }

    /// Sets them.
    pub fn set_tunnel_source_ports(&mut self, min: u16, max: u16) {
        self.underlay.source_ports = SourcePorts(min, max.max(min));
        self.publish_underlay();
        self.outbox.region(Region::ALL);
    }

    /// Known next hops: port, address, what is known.
    pub fn neighbours(&self) -> impl Iterator<Item = (&str, IpAddr, &Neighbour)> {
        self.neighbours.all().iter().map(|((port, ip), n)| (port.as_str(), *ip, n))
    }

    /// Sets the hardware address of a next hop behind a port's device, at `now` (ns).
    pub fn set_neighbour(&mut self, port: &str, ip: IpAddr, mac: [u8; 6], now: u64) {
        let learned = self.neighbours.learn(port, ip, mac, now);
        if learned == Learned::Known {
            return;
        }
        self.publish_underlay();
        if learned == Learned::Matters {
            self.outbox.region(Region::ALL);
        }
    }

    /// Is anything known about this next hop?
    pub fn has_neighbour(&self, port: &str, ip: IpAddr) -> bool {
        self.neighbours.get(port, ip).is_some()
    }

    /// Forgets all next hops.
    pub fn flush_neighbours(&mut self) {
        self.neighbours.clear();
        self.publish_underlay();
        self.outbox.region(Region::ALL);
    }

    /// Seconds until a next hop that nobody uses is forgotten.
    pub fn neighbour_aging(&self) -> u32 {
        (self.neighbours.aging_ns / 1_000_000_000) as u32
    }

    /// Sets it, for what is learned from now on.
    pub fn set_neighbour_aging(&mut self, seconds: u32) {
        self.neighbours.aging_ns = u64::from(seconds) * 1_000_000_000;
    }

    /// Questions for next hops that are due.
    pub fn take_solicitations(&mut self) -> Vec<Solicitation> {
        std::mem::take(&mut self.solicitations)
    }

    /// The port that a decapsulated packet comes in on, by datapath port and tunnel fields.
    pub fn tunnel_receiver(&self, key: &Key) -> Option<(BridgeId, OfPort)> {
        // SAFETY: this is the thread of the only writer.
        let world = unsafe { self.shared.world.read() };
        debug_assert!(key.u16(at::IN_PORT) != flow::NO_PORT);
        world.tunnels.receiver(key).map(|(b, p)| (BridgeId(b), p))
    }

    /// The device by which a tunnel's packets leave now: port name. None: no route, or it depends
    /// on the flow.
    pub fn egress(&self, spec: &PortSpec) -> Option<&str> {
        let tunnel = spec.tunnel.as_ref()?;
        let Remote::Ip(to) = tunnel.remote else { return None };
        let from = match tunnel.local {
            Local::Ip(ip) => Some(ip),
            _ => None,
        };
        let mark = tunnel.egress_mark.unwrap_or(0);
        Some(&self.underlay.routes.lookup(to, mark, from)?.device)
    }

    /// A decision sends to this next hop, as it knew it.
    pub(crate) fn hop(&mut self, h: &Hop, now: u64) {
        let port = self.bridges.get(h.bridge as usize).and_then(|b| b.as_ref()?.ports.get(&h.port));
        let Some(port) = port else { return };
        if self.neighbours.wanted(&port.name, h.next, now)
            && let Some(frame) = question(port.hw_addr, h.source, h.next)
        {
            let (bridge, port) = (BridgeId(h.bridge), h.port);
            self.solicitations.push(Solicitation { bridge, port, frame });
        }
        if self.neighbours.get(&port.name, h.next) != h.used {
            // It was made before what is known now was published.
            self.outbox.region(Region::ALL);
        }
    }

    pub(crate) fn snooped(&mut self, s: &Snooped, now: u64) {
        self.set_neighbour(&s.port, s.ip, s.mac, now);
    }

    pub(crate) fn expire_neighbours(&mut self, now: u64) {
        if self.neighbours.expire(now) {
            self.publish_underlay();
            self.outbox.region(Region::ALL);
        }
    }

    fn publish_underlay(&mut self) {
        let known = self.neighbours.all().iter();
        self.underlay.neighbours = known.map(|(place, n)| (place.clone(), n.mac)).collect();
        self.shared.underlay.publish(self.underlay.clone());
    }
}
