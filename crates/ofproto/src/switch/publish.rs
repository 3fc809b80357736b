//! Bridges and ports as packets see them, made anew when one of them changes.

use super::{Switch, mirrors};
use crate::bridge::Bridge;
use crate::published::{BridgeView, Bundle, PortView, PublishedState};
use crate::types::PortSpec;
use crate::work;
use openflow::OfPort;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

impl Switch {
    /// Bridges or ports changed. They are published before this thread reads them next
    /// ([`Switch::published`]), at the latest by [`Switch::take_regions`]: thousands of ports that
    /// are added one after the other are then published few times, as each time takes steps for
    /// every port.
    pub(crate) fn publish_later(&mut self) {
        self.unpublished.set(true);
        self.reach.forget();
    }

    /// What is published of bridges and ports, after all changes.
    pub(crate) fn published(&self) -> &PublishedState {
        self.publish_changes();
        self.shared.published.read(self.writer.pin())
    }

    /// Publishes bridges and ports, if they changed since they were published.
    pub(crate) fn publish_changes(&self) {
        if self.unpublished.take() {
            self.publish();
        }
    }

    fn publish(&self) {
        let mut published =
            PublishedState { timeouts: self.zone_timeouts.clone(), ..PublishedState::default() };
        let ends = self.patch_ends();
        for b in &self.bridges {
            let view = b.as_ref().map(|b| Arc::new(self.view_with(b, &ends)));
            for p in view.iter().flat_map(|v| &v.ports) {
                if p.spec.tunnel.is_some() {
                    let id = view.as_ref().map_or(0, |v| v.id);
                    published.tunnels.insert(id, &p.spec);
                } else if let (Some(dp), Some(b)) = (p.spec.dp_port, b) {
                    let at = usize::from(dp);
                    published.dp_ports.resize(published.dp_ports.len().max(at + 1), None);
                    published.dp_ports[at] = Some((b.id, p.spec.of_port));
                }
            }
            published.bridges.push(view);
        }
        let tables = self.bridges.iter().flatten().map(|b| &b.options.tlv);
        let kinds: BTreeSet<u32> = tables.flat_map(|t| t.kinds()).collect();
        published.options = kinds.into_iter().collect();
        self.shared.published.publish(published);
    }

    /// A bridge as packets see it.
    pub(crate) fn view(&self, b: &Bridge) -> BridgeView {
        self.view_with(b, &self.patch_ends())
    }

    fn view_with(&self, b: &Bridge, ends: &PatchEnds<'_>) -> BridgeView {
        let mut bundles: Vec<Bundle> = Vec::new();
        let mut by_name = HashMap::<&str, usize>::new();
        let ports = b.ports.values().map(|spec| {
            work::step();
            let new = bundles.len();
            let bundle = match spec.bundle.as_str() {
                "" => new,
                name => *by_name.entry(name).or_insert(new),
            };
            if bundle == new {
                let (vlan, protected) = (spec.vlan.clone(), spec.protected);
                let mirrors = Default::default();
                let bond = b.bonds.get(&spec.bundle).cloned();
                let (priority_tags, mcast) = (spec.priority_tags, spec.mcast);
                let ports = vec![];
                bundles.push(Bundle {
                    ports,
                    vlan,
                    protected,
                    priority_tags,
                    mcast,
                    mirrors,
                    bond,
                });
            }
            bundles[bundle].ports.push(spec.of_port);
            let counts = b.patch_counts.get(&spec.of_port).copied();
            let peer = peer(b, spec, ends);
            let plain = peer.is_none()
                && spec.tunnel.is_none()
                && spec.queue_dscp.is_empty()
                && spec.tree_state().forwards();
            PortView { bundle, peer, counts, plain, spec: spec.clone() }
        });
        let ports: Vec<PortView> = ports.collect();
        let mirrors = mirrors::view(b, &mut bundles, &by_name);
        BridgeView {
            id: b.id,
            name: b.name.clone(),
            config: b.config.clone(),
            ports,
            bundles,
            tables: b.tables.clone(),
            groups: b.groups.index.clone(),
            meters: b.meters.published.clone(),
            learned: b.learning.published.clone(),
            macs: b.mac_index.clone(),
            mcast: self.mcast.get(&b.id).map(|t| t.published.clone()),
            expired_wanted: b.expired_wanted.clone(),
            miss_base: b.miss_base,
            ports_credit: b.ports_credit,
            tlv: b.options.tlv.clone(),
            tun_masks: b.options.masks.as_slice().into(),
            mirrors,
        }
    }

    /// All patch ports by name; of several with one name the first.
    fn patch_ends(&self) -> PatchEnds<'_> {
        let mut ends = PatchEnds::new();
        for b in self.bridges.iter().flatten() {
            for p in b.ports.values().inspect(|_| work::step()).filter(|p| p.patch_peer.is_some()) {
                ends.entry(p.name.as_str()).or_insert((b.id, p));
            }
        }
        ends
    }
}

/// Patch ports and their bridges, by name.
type PatchEnds<'a> = HashMap<&'a str, (u32, &'a PortSpec)>;

/// The peer of a patch port: it must exist and name this port as its own peer.
fn peer(bridge: &Bridge, spec: &PortSpec, ends: &PatchEnds<'_>) -> Option<(u32, OfPort)> {
    let (id, peer) = ends.get(spec.patch_peer.as_deref()?)?;
    let back = peer.patch_peer.as_deref() == Some(&spec.name);
    (back && (*id, peer.of_port) != (bridge.id, spec.of_port)).then_some((*id, peer.of_port))
}
