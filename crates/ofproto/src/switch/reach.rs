//! By which datapath ports packets come to a bridge. Only their decisions may depend on it: a
//! change of one bridge, which its controller may make as often as it likes, has no packet of
//! other bridges decided about again.
//!
//! Decisions whose encapsulated packets went through the bridge are found by their effects
//! (`outer_changes.rs`).

use super::Switch;
use crate::published::PublishedState;
use crate::types::{BridgeId, PortSpec};
use crate::work;
use action::{PortSet, Region};
use flow::{NO_PORT, origin_port};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The ports by which packets come to bridges, as far as they were asked for since bridges and
/// ports were last published.
#[derive(Default)]
pub(crate) struct Reach(BTreeMap<u32, Arc<PortSet>>);

impl Reach {
    /// Bridges and ports are published anew.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

impl Switch {
    /// The ports by which packets come to a bridge: its own, and those of bridges to which patch
    /// ports lead from there. Tunnels' packets all come in by one port. Packets that controllers
    /// sent have input ports, too.
    pub(crate) fn ports_to(&mut self, bridge: u32) -> Arc<PortSet> {
        if let Some(ports) = self.reach.0.get(&bridge) {
            return ports.clone();
        }
        let published = self.published();
        let joined = joined(published, [bridge]);
        let views = joined.iter().filter_map(|id| published.bridge(*id));
        let own = views.flat_map(|b| &b.ports).filter_map(|p| p.spec.dp_port);
        let origins = joined.iter().map(|id| origin_port(*id as usize));
        let ports: Arc<PortSet> = Arc::new(own.chain(origins).chain([NO_PORT]).collect());
        self.reach.0.insert(bridge, ports.clone());
        ports
    }

    /// Decisions about packets of this region may have changed, as far as a bridge made them.
    pub(crate) fn region_of(&mut self, bridge: u32, region: Region) {
        let ports = self.ports_to(bridge);
        self.outbox.region(region.from_ports(&ports));
    }

    /// All that was decided may have changed.
    pub(crate) fn all_changed(&mut self) {
        self.outbox.reconfigured = true;
        self.outbox.region(Region::ALL);
    }

    /// A port became another one, was added (`old` is None) or removed (`new` is None): decisions
    /// that depend on it may have changed.
    pub(crate) fn port_changed(
        &mut self,
        bridge: BridgeId,
        old: Option<&PortSpec>,
        new: Option<&PortSpec>,
    ) {
        let both = || old.into_iter().chain(new);
        if both().all(|p| self.is_apart(bridge, p)) {
            self.outbox.reconfigured = true;
            both().for_each(|p| self.port_concerns(bridge.0, p));
        } else if old.zip(new).is_some_and(|(old, new)| new.is_where(old)) {
            self.bridge_changed(bridge.0);
        } else {
            self.all_changed();
        }
    }

    /// True if no other port's packets depend on this one, but those of decisions that
    /// [`Switch::port_concerns`] names: it is no patch or tunnel port, its port of the database has
    /// no other interface, and nothing is mirrored.
    fn is_apart(&self, bridge: BridgeId, port: &PortSpec) -> bool {
        let Ok(b) = self.bridge(bridge) else { return false };
        let other = |p: &&PortSpec| p.of_port != port.of_port && p.bundle == port.bundle;
        let mut ports = b.ports.values().inspect(|_| work::step());
        port.patch_peer.is_none()
            && port.tunnel.is_none()
            && !b.bonds.contains_key(&port.bundle)
            && b.mirrors.placed.iter().all(Option::is_none)
            && (port.bundle.is_empty() || ports.find(other).is_none())
    }

    /// Decisions about packets that come in by a port may have changed, and those that depend on
    /// it otherwise (`port_changes.rs`).
    pub(crate) fn port_concerns(&mut self, bridge: u32, port: &PortSpec) {
        let Ok(b) = self.bridge(BridgeId(bridge)) else { return };
        let (credit, changes) = (b.ports_credit, &mut self.outbox.ports);
        changes.credits.insert(credit);
        changes.devices.insert(port.name.clone());
        if let Some(no) = port.dp_port {
            changes.ports.insert(no);
            self.outbox.region(Region::ALL.from_ports(&Arc::new([no].into_iter().collect())));
        }
    }

    /// True if since the last call packets of a bridge, or of all, have to be decided about anew,
    /// for other reasons than flows and groups.
    pub fn take_reconfigured(&mut self) -> bool {
        std::mem::take(&mut self.outbox.reconfigured)
    }

    /// All that a bridge decided may have changed.
    pub(crate) fn bridge_changed(&mut self, bridge: u32) {
        self.outbox.reconfigured = true;
        self.outbox.outer.bridge(bridge);
        self.region_of(bridge, Region::ALL);
    }
}

/// Bridges, and those that patch ports lead to from there.
pub(crate) fn joined(
    published: &PublishedState,
    from: impl IntoIterator<Item = u32>,
) -> BTreeSet<u32> {
    let mut left: Vec<u32> = from.into_iter().collect();
    let mut met = BTreeSet::new();
    while let Some(id) = left.pop() {
        if met.insert(id)
            && let Some(bridge) = published.bridge(id)
        {
            left.extend(bridge.ports.iter().filter_map(|p| Some(p.peer?.0)));
        }
    }
    met
}
