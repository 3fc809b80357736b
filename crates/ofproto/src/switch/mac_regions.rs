//! Which megaflows are affected when learned addresses are added, moved or removed.
//!
//! With few addresses: the megaflows of packets from or to these. With too many in one VLAN of a
//! bridge: all megaflows of packets in that VLAN of that bridge. Never those of unrelated bridges:
//! flooding one bridge with addresses does not cost another tenant's bridge its megaflows.

use crate::mac_changes::Changed;
use crate::switch::Switch;
use crate::types::{BridgeId, VlanMode};
use action::Region;
use flow::{Key, at};
use std::collections::BTreeSet;

impl Switch {
    /// Adds the regions of megaflows that may be wrong now because of learned addresses.
    pub(crate) fn take_mac_regions(&mut self, out: &mut Vec<Region>) {
        for changed in std::mem::take(&mut self.outbox.macs).drain() {
            match changed {
                Changed::Mac(bridge, mac) => {
                    let ports = self.ports_to(bridge);
                    let regions = self.rewritten.mac_regions(mac);
                    out.extend(regions.map(|r| r.from_ports(&ports)));
                    self.outbox.outer.mac(mac);
                }
                Changed::Vlan(bridge, vlan) => {
                    self.bridge_regions(bridge, Some(vlan), out);
                    self.outbox.outer.bridge(bridge);
                }
                Changed::Bridge(bridge) => {
                    self.bridge_regions(bridge, None, out);
                    self.outbox.outer.bridge(bridge);
                }
            }
        }
    }

    /// Adds the regions of packets that a bridge's NORMAL may decide about, by input port; with
    /// `vlan`, those of one VLAN if its packets can be recognized.
    fn bridge_regions(&self, bridge: u32, vlan: Option<u16>, out: &mut Vec<Region>) {
        if self.bridge(BridgeId(bridge)).is_err() {
            return;
        }
        let linked = self.linked_bridges();
        let alone = !linked.contains(&bridge);
        let vlan = vlan.filter(|_| alone && self.rewritten.keeps_tags());
        for b in self.bridges.iter().flatten() {
            if b.id != bridge && (alone || !linked.contains(&b.id)) {
                continue;
            }
            for p in b.ports.values() {
                if let Some(dp) = p.dp_port
                    && let Some(mut r) = in_vlan(&p.vlan, vlan)
                {
                    r.mask.set_u16(at::IN_PORT, 0xffff);
                    r.key.set_u16(at::IN_PORT, dp);
                    out.push(r);
                }
            }
        }
    }

    /// Bridges to which packets of other bridges may come: by patch ports, or as the network under
    /// tunnels. All such bridges count as linked to each other.
    fn linked_bridges(&self) -> BTreeSet<u32> {
        let routes = &self.tunnels.underlay.routes;
        let all = self.bridges.iter().flatten();
        let linked = all.filter(|b| {
            b.ports.values().any(|p| {
                p.patch_peer.is_some() || p.tunnel.is_some() || routes.has_addresses(&p.name)
            })
        });
        linked.map(|b| b.id).collect()
    }
}

/// The packets that come in on a port of this mode and belong to a VLAN (None: to any); None: there
/// are none.
fn in_vlan(mode: &VlanMode, vlan: Option<u16>) -> Option<Region> {
    let Some(vlan) = vlan else { return Some(Region::ALL) };
    let tagged = || {
        let mut r = Region::new(Key::ZERO, Key::ZERO);
        r.mask.set_u16(at::VLAN, 0x0fff);
        r.key.set_u16(at::VLAN, vlan);
        Some(r)
    };
    match mode {
        VlanMode::Access(tag) | VlanMode::Dot1qTunnel { tag, .. } => {
            (*tag == vlan).then_some(Region::ALL)
        }
        VlanMode::Trunk(set) => set.contains(vlan).then(tagged)?,
        VlanMode::NativeTagged { tag, .. } | VlanMode::NativeUntagged { tag, .. }
            if *tag == vlan =>
        {
            Some(Region::ALL)
        }
        VlanMode::NativeTagged { trunks, .. } | VlanMode::NativeUntagged { trunks, .. } => {
            trunks.contains(vlan).then(tagged)?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Lab, packet};
    use crate::{BridgeConfig, PortSpec};

    fn mac(i: u32) -> [u8; 6] {
        let [a, b, c, d] = i.to_be_bytes();
        [2, 0, a, b, c, d]
    }

    fn hits(regions: &[Region], text: &str) -> bool {
        let key = packet(text);
        let mut all = Key::ZERO;
        all.words.fill(u64::MAX);
        regions.iter().any(|r| r.overlaps(&key, &all))
    }

    /// Ports 1 and 2 carry VLANs 10 and 20, all; port 3 is in VLAN 20. Bridge br1 has port 21
    /// (datapath port 31).
    fn lab() -> Lab {
        let mut lab = Lab::new();
        lab.port(2, VlanMode::Access(10));
        lab.port(3, VlanMode::Access(20));
        let br1 = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
        let (name, bundle, dp_port) = ("q".into(), "q".into(), Some(31));
        lab.sw
            .add_port(br1, PortSpec { of_port: 21, name, bundle, dp_port, ..PortSpec::default() })
            .unwrap();
        lab.sw.take_regions();
        lab
    }

    fn flood(lab: &mut Lab, n: u32, vlan: impl Fn(u32) -> u16, port: u32) {
        (0..n).for_each(|i| lab.sw.learn(lab.br.0, vlan(i), mac(i), port, 1));
    }

    #[test]
    fn a_few_addresses_are_told_of_one_by_one() {
        let mut lab = lab();
        flood(&mut lab, 1000, |_| 20, 3);
        let regions = lab.sw.take_regions();
        assert_eq!(regions.len(), 1000);
        assert!(hits(&regions, "in_port=1,dl_vlan=20,dl_dst=02:00:00:00:00:07"));
        assert!(!hits(&regions, "in_port=1,dl_vlan=20,dl_dst=02:00:00:00:ff:07"));
    }

    #[test]
    fn who_teaches_an_address_keeps_its_decision_until_the_address_changes() {
        let mut lab = lab();
        let [from, to] = ["src", "dst"].map(|way| format!("in_port=1,dl_{way}=02:00:00:00:00:07"));
        let mut changed = |act: &dyn Fn(&mut Lab)| {
            act(&mut lab);
            let regions = lab.sw.take_regions();
            [&from, &to].map(|text| hits(&regions, text))
        };
        assert_eq!(changed(&|lab| lab.sw.learn(lab.br.0, 20, mac(7), 3, 1)), [false, true]);
        assert_eq!(changed(&|lab| lab.sw.learn(lab.br.0, 20, mac(7), 3, 2)), [false, false]);
        assert_eq!(changed(&|lab| lab.sw.learn(lab.br.0, 20, mac(7), 1, 3)), [true, true]);
        assert_eq!(changed(&|lab| lab.sw.fdb_flush(lab.br).unwrap()), [true, true]);
    }

    #[test]
    fn too_many_addresses_are_all_of_their_vlan() {
        let mut lab = lab();
        flood(&mut lab, 6000, |_| 20, 3);
        let regions = lab.sw.take_regions();
        assert!(regions.len() < 10, "{}", regions.len());
        for text in ["in_port=1,dl_vlan=20", "in_port=3,dl_dst=06:00:00:00:00:07"] {
            assert!(hits(&regions, text), "{text}");
        }
        for text in ["in_port=1,dl_vlan=10", "in_port=2", "in_port=21"] {
            assert!(!hits(&regions, text), "{text}");
        }
        // Ageing of as many at once.
        while lab.sw.expire(1_000_000_000_000, 0, 4096) {}
        let regions = lab.sw.take_regions();
        assert!(hits(&regions, "in_port=3") && !hits(&regions, "in_port=2"));
    }

    #[test]
    fn too_many_vlans_are_all_of_their_bridge() {
        let mut lab = lab();
        flood(&mut lab, 6000, |i| (i % 4000) as u16 + 1, 1);
        let regions = lab.sw.take_regions();
        assert!(regions.len() < 4200, "{}", regions.len());
        assert!(hits(&regions, "in_port=2") && hits(&regions, "in_port=1,dl_vlan=7"));
        assert!(!hits(&regions, "in_port=21,dl_dst=06:00:00:00:00:07"));
    }

    #[test]
    fn bridges_that_patch_ports_join_are_one() {
        let mut lab = lab();
        let br1 = lab.sw.find_bridge("br1").unwrap();
        for (bridge, of_port, name, peer) in [(lab.br, 8, "a", "b"), (br1, 9, "b", "a")] {
            let (name, patch_peer) = (name.to_string(), Some(peer.to_string()));
            let (bundle, default) = (name.clone(), PortSpec::default());
            lab.sw
                .add_port(bridge, PortSpec { of_port, name, bundle, patch_peer, ..default })
                .unwrap();
        }
        lab.sw.take_regions();
        flood(&mut lab, 6000, |_| 20, 3);
        let regions = lab.sw.take_regions();
        assert!(hits(&regions, "in_port=21") && hits(&regions, "in_port=2"));
    }
}
