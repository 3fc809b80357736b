//! Bridges, ports and groups as PMD threads read them: published by the control side, read under
//! QSBR.

use crate::groups::history::GroupsAt;
use crate::groups::liveness::Groups;
use crate::mac_index::MacIndex;
use crate::mcast::members::McastView;
use crate::meter_table::Meters;
use crate::mirroring::{MirrorView, Mirrored};
use crate::tables::table::Tables;
use crate::tables::tlv::{Masks, TlvTable};
use crate::translate::failure::FailureSlot;
use crate::translate::frozen_store::States;
use crate::tunnel::{Tunnels, Underlay};
use crate::types::{BondSpec, BridgeConfig, McastPort, PortSpec, PriorityTags, VlanMode};
use action::Meter;
use flow::{Key, PortNo, at};
use openflow::OfPort;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Domain, Guard, Published};
use telemetry::Drop;

/// Everything that a decision reads.
pub(crate) struct Shared {
    pub domain: Domain,
    pub published: Published<PublishedState>,
    /// The version of the flow tables that packets see.
    pub version: AtomicU64,
    pub frozen: States,
    /// The key by which this daemon knows its own continuations again.
    pub continuations: RandomState,
    /// The underlay of tunnels.
    pub underlay: Published<Underlay>,
    /// A translation that failed, for the log.
    pub failures: FailureSlot,
}

impl Shared {
    /// The name, in continuations, of a bridge in which a packet that came in by a datapath port
    /// paused. A controller cannot make one up: what the packet causes is charged to that port.
    pub fn name_of(&self, bridge: u32, port: u32) -> [u8; 16] {
        let sealed = self.continuations.hash_one((bridge, port));
        (u128::from(sealed) << 64 | u128::from(bridge)).to_be_bytes()
    }

    /// The bridge of this name, for packets of this port; None: this daemon has none.
    pub fn bridge_of(&self, name: [u8; 16], port: u32) -> Option<u32> {
        let bridge = u32::try_from(u128::from_be_bytes(name) as u64).ok()?;
        (self.name_of(bridge, port) == name).then_some(bridge)
    }

    /// The version of the flow tables that packets see now.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

/// What a decision reads, with the guard for it.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub shared: &'a Shared,
    pub guard: Guard<'a>,
    pub published: &'a PublishedState,
}

impl<'a> View<'a> {
    /// The view of what is published now.
    #[inline]
    pub fn new(shared: &'a Shared, guard: Guard<'a>) -> Self {
        View { shared, guard, published: shared.published.read(guard) }
    }
}

/// All bridges and ports. It is published again when any of them changes.
#[derive(Default)]
pub(crate) struct PublishedState {
    /// Bridges, by `BridgeId`.
    pub bridges: Vec<Option<Arc<BridgeView>>>,
    /// Bridge and OpenFlow port, by datapath port.
    pub dp_ports: Vec<Option<(u32, OfPort)>>,
    pub tunnels: Tunnels,
    /// The timeout policies of zones that have one.
    pub timeouts: Arc<BTreeMap<u16, u32>>,
    /// Class and type of every option that is a field of some bridge, ascending.
    pub options: Arc<[u32]>,
}

impl PublishedState {
    pub fn bridge(&self, id: u32) -> Option<&BridgeView> {
        self.bridges.get(id as usize)?.as_deref()
    }

    /// The port with this kernel device's name: that of a bridge, or any other.
    pub fn device(&self, name: &str) -> Option<(&BridgeView, &PortView)> {
        let all = || self.bridges.iter().flatten().map(|b| &**b);
        let local = all().find(|b| b.name == name);
        let own = local.and_then(|b| Some((b, b.port(openflow::port::LOCAL)?)));
        own.or_else(|| {
            let named = |p: &&PortView| p.spec.name == name && p.spec.tunnel.is_none();
            all().find_map(|b| Some((b, b.ports.iter().find(named)?)))
        })
    }

    /// The bridge and OpenFlow port where a packet enters.
    pub fn entry(&self, key: &Key) -> Result<(&BridgeView, OfPort), Drop> {
        let port = key.u16(at::IN_PORT);
        if !self.tunnels.listening.contains_key(&port) {
            return self.by_dp_port(port).ok_or(Drop::NoPort);
        }
        let (bridge, of_port) = self.tunnels.receiver(key).ok_or(Drop::TunnelUnknown)?;
        Ok((self.bridge(bridge).ok_or(Drop::NoPort)?, of_port))
    }

    /// The bridge and OpenFlow port where a packet enters by a datapath port that is not of
    /// tunnels.
    #[inline]
    pub fn by_dp_port(&self, port: PortNo) -> Option<(&BridgeView, OfPort)> {
        let (bridge, of_port) = (*self.dp_ports.get(usize::from(port))?)?;
        Some((self.bridge(bridge)?, of_port))
    }
}

/// A bridge as packets see it.
pub(crate) struct BridgeView {
    pub id: u32,
    pub name: String,
    pub config: BridgeConfig,
    /// The ports, by ascending OpenFlow number.
    pub ports: Vec<PortView>,
    pub bundles: Vec<Bundle>,
    pub tables: Arc<Tables>,
    pub groups: Arc<Published<GroupsAt>>,
    pub meters: Arc<Published<Meters>>,
    /// Number of flows at places where learn actions have limits.
    pub learned: Arc<Published<crate::learned::Counts>>,
    pub macs: Arc<MacIndex>,
    /// Members of multicast groups, if the bridge snoops.
    pub mcast: Option<Arc<Published<McastView>>>,
    /// True: some controller wants packets whose TTL expired.
    pub expired_wanted: Arc<AtomicBool>,
    /// Credit id of a miss in table 0; those of the other tables follow.
    pub miss_base: u32,
    /// Credit id of decisions that depend on which ports the bridge has (`port_changes.rs`).
    pub ports_credit: u32,
    /// The Geneve options of the fields `tun_metadataN`.
    pub tlv: Arc<TlvTable>,
    /// Sets of masks under which flows match on those fields; a packet with options is looked up
    /// once for each.
    pub tun_masks: Box<[Masks]>,
    /// The bridge's mirrors, by the number of their bits; empty if it has none.
    pub mirrors: Box<[Option<MirrorView>]>,
}

impl BridgeView {
    #[inline]
    pub fn port(&self, of_port: OfPort) -> Option<&PortView> {
        let at = self.ports.binary_search_by_key(&of_port, |p| p.spec.of_port).ok()?;
        Some(&self.ports[at])
    }

    /// The meter of this number; None: it does not exist.
    pub fn meter<'g>(&'g self, guard: Guard<'g>, id: u32) -> Option<&'g Arc<Meter>> {
        self.meters.read(guard).get(&id)
    }

    /// The groups at a version.
    pub fn groups_at<'g>(&'g self, guard: Guard<'g>, version: u64) -> Option<&'g Groups> {
        let history = self.groups.read(guard);
        history.iter().find(|(since, _)| *since <= version).map(|(_, groups)| &**groups)
    }
}

/// A port as packets see it.
pub(crate) struct PortView {
    pub spec: PortSpec,
    /// Index of its bundle.
    pub bundle: usize,
    /// The bridge and port to which a patch port leads.
    pub peer: Option<(u32, OfPort)>,
    /// Credit id of what a patch or tunnel port received; that of what it sent is the next.
    pub counts: Option<u32>,
    /// True: one operation sends a packet there, whatever it is: the port is no patch or tunnel
    /// port, no spanning tree closes it, and none of its queues gives packets a DSCP.
    pub plain: bool,
}

impl PortView {
    /// True if a spanning tree lets the port forward, or it is in none.
    pub fn forwards(&self) -> bool {
        self.spec.tree_state().forwards()
    }

    /// True if the port is one end of a patch or tunnel.
    pub fn leads_elsewhere(&self) -> bool {
        self.spec.patch_peer.is_some() || self.spec.tunnel.is_some()
    }

    /// True if the port can carry packets now (`OFPPS_LIVE`).
    pub fn live(&self) -> bool {
        self.spec.live()
    }
}

/// A port of the database: one or more interfaces that are one port to NORMAL.
pub(crate) struct Bundle {
    pub ports: Vec<OfPort>,
    pub vlan: VlanMode,
    pub protected: bool,
    pub priority_tags: PriorityTags,
    pub mcast: McastPort,
    pub mirrors: Mirrored,
    /// The bond; None: the first interface that is live carries all packets.
    pub bond: Option<BondSpec>,
}
