//! Which changes affect the outer packets of tunnels.

use crate::outer_changes::OuterChanges;
use crate::published::PublishedState;
use crate::switch::Switch;
use crate::switch::reach::joined;
use std::collections::BTreeSet;

impl Switch {
    /// The changes since the last call that may affect outer packets; None: there are none.
    pub(crate) fn take_outer_changes(&mut self) -> Option<OuterChanges> {
        let mut changes = std::mem::take(&mut self.outbox.outer);
        let published = self.published();
        if changes.is_empty() || published.tunnels.is_empty() {
            return None;
        }
        if !changes.bridges.is_empty() {
            let met = self.outer_bridges(published);
            changes.bridges.retain(|b| met.contains(b));
        }
        if !changes.all_macs && !changes.macs.is_empty() {
            let hops: BTreeSet<_> = self.neighbours().map(|(_, _, n)| n.mac).collect();
            changes.macs.retain(|mac| hops.contains(mac));
        }
        (!changes.is_empty()).then_some(changes)
    }

    /// Bridges through which outer packets may go: those of devices with addresses, and those that
    /// patch ports lead to from there.
    pub(crate) fn outer_bridges(&self, published: &PublishedState) -> BTreeSet<u32> {
        let devices: BTreeSet<_> = self.routes().addresses().iter().map(|(d, ..)| &**d).collect();
        let bridges = published.bridges.iter().flatten();
        let own = bridges.filter(|b| b.ports.iter().any(|p| devices.contains(&*p.spec.name)));
        joined(published, own.map(|b| b.id))
    }
}

#[cfg(test)]
mod tests {
    use crate::BridgeConfig;
    use crate::switch::Switch;
    use crate::tests::tunnel_lab::{geneve_lab, route_to_port_2, tunnel_to};
    use crate::tests::{Lab, apply, flow, out, packet};
    use action::Decision;
    use openflow::port::NORMAL;

    /// True if a change since the last call reaches this decision by what its outer packets met.
    fn is_reached(sw: &mut Switch, d: &Decision) -> bool {
        sw.take_regions();
        sw.take_stale().is_some_and(|is| is(&d.cached()))
    }

    const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 0, 6];

    /// Packets of port 1 go into the tunnel to 10.0.0.6 behind port 2.
    fn lab() -> Lab {
        let mut lab = geneve_lab();
        route_to_port_2(&mut lab);
        lab.sw.set_neighbour("p2", [10, 0, 0, 6].into(), NEXT_HOP, 2);
        let list = vec![tunnel_to([10, 0, 0, 6]), out(5)];
        lab.add(flow(0, 1, "in_port=1", apply(list)));
        lab.add(flow(0, 0, "in_port=2", apply(vec![out(3)])));
        lab
    }

    #[test]
    fn a_flow_for_outer_packets_reaches_decisions_about_inner_ones() {
        let mut lab = lab();
        let before = lab.decide(&packet("in_port=1,tcp"));
        is_reached(&mut lab.sw, &before);
        assert!(!is_reached(&mut lab.sw, &before), "nothing changed");
        lab.add(flow(0, 2, "udp,nw_dst=10.0.0.6", apply(vec![out(4)])));
        let after = lab.decide(&packet("in_port=1,tcp"));
        assert_ne!(after.ops, before.ops);
        assert!(is_reached(&mut lab.sw, &before));
        assert!(!is_reached(&mut lab.sw, &before), "once");
    }

    #[test]
    fn flows_of_bridges_that_outer_packets_do_not_come_to_reach_nothing() {
        let mut lab = lab();
        let before = lab.decide(&packet("in_port=1,tcp"));
        is_reached(&mut lab.sw, &before);
        let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
        is_reached(&mut lab.sw, &before);
        lab.sw.flow_mod(other, &flow(0, 2, "udp", apply(vec![])), 1).unwrap();
        assert!(lab.sw.take_stale().is_none());
    }

    #[test]
    fn a_next_hop_that_moves_reaches_decisions_about_inner_packets() {
        let mut lab = lab();
        lab.add(flow(0, 0, "in_port=2", apply(vec![out(NORMAL)])));
        lab.sw.learn(lab.br.0, 0, NEXT_HOP, 3, 1);
        let before = lab.decide(&packet("in_port=1,tcp"));
        is_reached(&mut lab.sw, &before);
        lab.sw.learn(lab.br.0, 0, [2; 6], 3, 2);
        assert!(!is_reached(&mut lab.sw, &before), "no next hop's address");
        lab.sw.learn(lab.br.0, 0, NEXT_HOP, 4, 9_000_000_000);
        let after = lab.decide(&packet("in_port=1,tcp"));
        assert_ne!(after.ops, before.ops);
        assert!(is_reached(&mut lab.sw, &before));
    }
}
