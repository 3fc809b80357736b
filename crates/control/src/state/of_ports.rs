//! Ports and settings of bridges as OpenFlow asks for them.

use super::State;
use crate::of::ConnId;
use crate::vlog;
use ofproto::BridgeId;
use openflow::{FragHandling, OfError, OfPort, PortDesc, PortStats, Reply, port};

/// Ports whose counters are read in one turn.
const PORTS_PER_TURN: usize = 256;

impl State {
    /// The reply to a features request.
    pub fn features(&mut self, id: ConnId) -> Reply {
        let ports = self.port_descs(id);
        let dpid =
            self.conns.get(&id).and_then(|c| self.bridges.get(&c.bridge)).map_or(0, |b| b.dpid);
        Reply::Features { dpid, n_buffers: 0, n_tables: 254, ports }
    }

    /// Descriptions of a connection's bridge's ports.
    pub fn port_descs(&mut self, id: ConnId) -> Vec<PortDesc> {
        self.bridge_id(id).map_or(Vec::new(), |b| self.ofproto.port_descs(b))
    }

    /// Counters of some of a connection's bridge's ports: a port, or those with numbers from `from`
    /// on; and where the next ones begin.
    pub fn port_stats(
        &mut self,
        id: ConnId,
        wanted: OfPort,
        from: OfPort,
    ) -> (Vec<PortStats>, Option<OfPort>) {
        let now = self.now_ms();
        self.count_patches();
        let bridge = self.conns.get(&id).and_then(|c| self.bridges.get_mut(&c.bridge));
        let Some(bridge) = bridge else { return Default::default() };
        let is_wanted = |n: &OfPort| *n >= from && (wanted == port::ANY || *n == wanted);
        let numbers = bridge.ifaces.values().filter_map(|i| i.of_port).filter(is_wanted);
        let (some, next) = some_ports(numbers.collect());
        let ifaces = bridge.ifaces.values_mut();
        let ifaces = ifaces.filter(|i| i.of_port.is_some_and(|n| some.binary_search(&n).is_ok()));
        let mut all: Vec<PortStats> =
            ifaces.filter_map(|i| i.of_stats(&mut self.dp, now)).collect();
        all.sort_by_key(|p| p.port);
        (all, next)
    }

    /// Looks at the counters of patch and tunnel ports, which the switch half keeps.
    pub fn count_patches(&mut self) {
        for bridge in self.bridges.values_mut() {
            for iface in bridge.ifaces.values_mut().filter(|i| i.is_virtual()) {
                let counted = iface.of_port.map(|no| self.ofproto.patch_counters(bridge.id, no));
                iface.patch = counted.flatten().unwrap_or(iface.patch);
            }
        }
    }

    /// A controller's change of a port's configuration.
    pub fn port_mod(&mut self, id: ConnId, pm: &openflow::PortMod) -> Result<(), OfError> {
        let bridge = self.bridge_id(id).ok_or(OfError::BadType)?;
        self.ofproto.port_mod(bridge, pm)?;
        if let Some(up) = admin_up(pm) {
            self.set_admin_up(bridge, pm.port, up);
        }
        Ok(())
    }

    /// Takes the device of a port up or down: at once, or soon if the kernel may take long.
    pub fn set_admin_up(&mut self, bridge: BridgeId, port: OfPort, up: bool) {
        let Some(bridge) = self.bridge_name(bridge) else { return };
        let mut ifaces = self.bridges.get(&bridge).into_iter().flat_map(|b| &b.ifaces);
        let Some((name, iface)) = ifaces.find(|(_, i)| i.of_port == Some(port)) else { return };
        let name = name.clone();
        if let Some(port) = iface.dp_port.and_then(|no| self.dp.port_mut(no)) {
            if port.inquiry().is_some() {
                return self.pending.devices.set_admin_up((bridge, name), up);
            }
            let _ = port.set_admin_up(up);
        }
        crate::links::look_at_one(self, &bridge, &name);
    }

    /// Fragment handling is per bridge.
    pub fn set_frag(&mut self, id: ConnId, frag: FragHandling) -> Result<(), OfError> {
        let bridge = self.bridge_id(id).ok_or(OfError::BadType)?;
        if frag == FragHandling::Reassemble {
            vlog::warn!("ofproto", "ignoring a controller's wish to reassemble fragments");
            return Ok(());
        }
        self.change_bridge(bridge, |c| c.frag = frag);
        Ok(())
    }

    /// How a connection's bridge treats fragments now.
    pub fn frag(&self, id: ConnId) -> FragHandling {
        let config = self.bridge_id(id).and_then(|b| self.ofproto.bridge_config(b));
        config.map_or(FragHandling::Normal, |c| c.frag)
    }
}

/// Whether a port-mod takes a port's device up (true) or down; None: it leaves it as it is.
pub fn admin_up(pm: &openflow::PortMod) -> Option<bool> {
    const DOWN: u32 = openflow::port_config::PORT_DOWN;
    (pm.mask & DOWN != 0).then_some(pm.config & DOWN == 0)
}

/// The lowest numbers of ports, in order, and the one that is next.
fn some_ports(mut numbers: Vec<OfPort>) -> (Vec<OfPort>, Option<OfPort>) {
    numbers.sort_unstable();
    let next = numbers.get(PORTS_PER_TURN).copied();
    numbers.truncate(PORTS_PER_TURN);
    (numbers, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_few_ports_are_read_in_a_turn_and_of_all_in_the_end() {
        let (mut left, mut seen): (Vec<OfPort>, _) = ((1..1000).rev().collect(), Vec::new());
        left.push(port::LOCAL);
        let all = left.len();
        loop {
            let (some, next) = some_ports(left.clone());
            assert!(some.len() <= PORTS_PER_TURN && some.is_sorted());
            seen.extend(some);
            let Some(next) = next else { break };
            left.retain(|n| *n >= next);
        }
        assert!(seen.is_sorted() && seen.len() == all && seen.last() == Some(&port::LOCAL));
        assert_eq!(some_ports(Vec::new()), (Vec::new(), None));
    }
}
