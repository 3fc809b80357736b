//! Which changes concern the outer packets of tunnels.

use crate::bridge::Bridge;
use crate::outer_changes::OuterChanges;
use crate::switch::Switch;
use std::collections::BTreeSet;

impl Switch {
    /// The changes since the last call that may concern outer packets; None: there are none.
    pub(crate) fn take_outer_changes(&mut self) -> Option<OuterChanges> {
        let mut changes = std::mem::take(&mut self.outbox.outer);
        let has_tunnel = |b: &Bridge| b.ports.values().any(|p| p.tunnel.is_some());
        if changes.is_empty() || !self.bridges.iter().flatten().any(has_tunnel) {
            return None;
        }
        let linked = self.linked_bridges();
        changes.bridges.retain(|b| linked.contains(b));
        if !changes.all_macs && !changes.macs.is_empty() {
            let hops: BTreeSet<_> = self.neighbours().map(|(_, _, n)| n.mac).collect();
            changes.macs.retain(|mac| hops.contains(mac));
        }
        (!changes.is_empty()).then_some(changes)
    }
}

#[cfg(test)]
mod tests {
    use crate::switch::Switch;
    use crate::tests::{Lab, apply, flow, geneve_lab, out, packet, route_to_port_2, tunnel_to};
    use action::Decision;
    use openflow::port::NORMAL;

    /// Does a change since the last call reach this decision by what its outer packets met?
    fn is_reached(sw: &mut Switch, d: &Decision) -> bool {
        sw.take_regions();
        let effects = d.effects.as_ref().expect("it asked for a route");
        sw.take_stale().is_some_and(|is| is(&**effects))
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
