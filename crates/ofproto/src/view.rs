//! What PMD threads see: the published picture of bridges, ports, groups.

use crate::mac_table::MacIndex;
use crate::table::Tables;
use crate::translate::Frozen;
use crate::types::{BridgeConfig, PortSpec, VlanMode};
use flow::PortNo;
use openflow::{Bucket, GroupType, OfPort};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use sync::{Domain, Published};

/// Everything a decision reads.
pub(crate) struct Shared {
    pub domain: Domain,
    pub world: Published<World>,
    /// The version of the flow tables that packets see.
    pub version: AtomicU64,
    pub frozen: Frozen,
}

/// Bridges and ports.
#[derive(Default)]
pub(crate) struct World {
    /// By `BridgeId`.
    pub bridges: Vec<Option<Arc<BridgeView>>>,
    /// By datapath port: bridge and OpenFlow port.
    pub dp_ports: Vec<Option<(u32, OfPort)>>,
}

impl World {
    pub fn bridge(&self, id: u32) -> Option<&BridgeView> {
        self.bridges.get(id as usize)?.as_deref()
    }

    pub fn by_dp_port(&self, port: PortNo) -> Option<(&BridgeView, OfPort)> {
        let (bridge, of_port) = (*self.dp_ports.get(usize::from(port))?)?;
        Some((self.bridge(bridge)?, of_port))
    }
}

pub(crate) type Groups = HashMap<u32, Arc<GroupView>>;

/// One bridge.
pub(crate) struct BridgeView {
    pub id: u32,
    pub name: String,
    pub config: BridgeConfig,
    /// Ascending by OpenFlow port.
    pub ports: Vec<PortView>,
    pub bundles: Vec<Bundle>,
    pub tables: Arc<Tables>,
    pub groups: Arc<Published<Groups>>,
    pub macs: Arc<MacIndex>,
    /// Credit id of a miss in table 0; the others follow.
    pub miss_base: u32,
}

impl BridgeView {
    #[inline]
    pub fn port(&self, of_port: OfPort) -> Option<&PortView> {
        let at = self.ports.binary_search_by_key(&of_port, |p| p.spec.of_port).ok()?;
        Some(&self.ports[at])
    }

    pub fn group(&self, id: u32) -> Option<&GroupView> {
        // SAFETY: resolve() runs on an online reader, everything else on the writer.
        unsafe { self.groups.read() }.get(&id).map(|g| &**g)
    }
}

/// A port.
pub(crate) struct PortView {
    pub spec: PortSpec,
    /// Index of its bundle.
    pub bundle: usize,
    /// Where a patch port leads to.
    pub peer: Option<(u32, OfPort)>,
    /// Credit id of what a patch port received; that of what it sent follows.
    pub counts: Option<u32>,
}

impl PortView {
    /// Can it carry packets now?
    pub fn live(&self) -> bool {
        use openflow::{port_config, port_state};
        self.spec.config & port_config::PORT_DOWN == 0
            && self.spec.state & port_state::LINK_DOWN == 0
    }
}

/// Interfaces that are one port to NORMAL.
pub(crate) struct Bundle {
    pub ports: Vec<OfPort>,
    pub vlan: VlanMode,
    pub protected: bool,
}

/// A group.
pub(crate) struct GroupView {
    pub kind: GroupType,
    pub buckets: Vec<BucketView>,
    /// Credit id of the whole group.
    pub credit: u32,
    pub selection_fields: Vec<flow::Field>,
}

/// A bucket and its credit id.
pub(crate) struct BucketView {
    pub bucket: Bucket,
    pub credit: u32,
}
