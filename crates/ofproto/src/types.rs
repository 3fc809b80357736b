//! The configuration of bridges and ports, as the control side gives it.

use flow::PortNo;
use openflow::{FragHandling, OfPort, Subfield};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Identity of a bridge of a [`crate::Switch`]; never used again while the switch lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BridgeId(pub(crate) u32);

impl BridgeId {
    /// A dense index, for the caller's own tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a bridge does without a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailMode {
    /// Forward as a learning switch.
    #[default]
    Standalone,
    /// Forward only as the flows say.
    Secure,
}

/// A bridge's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeConfig {
    /// Datapath id.
    pub dpid: u64,
    /// MAC address of the bridge, and of its LOCAL port.
    pub mac: [u8; 6],
    /// What the bridge does without a controller.
    pub fail_mode: FailMode,
    /// Seconds after which learned addresses are removed (`mac-aging-time`).
    pub mac_aging_s: u32,
    /// Learned addresses, at most (`mac-table-size`).
    pub mac_table_size: usize,
    /// Forward frames to reserved multicast addresses (`forward-bpdu`).
    pub forward_bpdu: bool,
    /// VLANs in which nothing is learned and everything floods (`flood_vlans`).
    pub flood_vlans: Vec<u16>,
    /// True: packets that match no flow are sent to controllers, as OpenFlow 1.0 to 1.2 connections
    /// expect.
    pub miss_to_controller: bool,
    /// What happens to packets that match no flow of a table, for tables for which a controller of
    /// OpenFlow 1.1 or 1.2 has configured that; for others, `miss_to_controller` applies.
    pub misses: BTreeMap<u8, TableMiss>,
    /// What happens to IP fragments before table 0.
    pub frag: FragHandling,
    /// True: all controllers have been away for too long, so every packet is NORMAL, whatever the
    /// flows say.
    pub fail_open: bool,
    /// True: the bridge has hidden flows of in-band control, and replies of DHCP servers go to
    /// LOCAL in addition. [`crate::Switch::set_in_band`] sets it.
    pub in_band: bool,
    /// True: flows are being restored, so packets are dropped, whatever the flows say
    /// (`flow-restore-wait`).
    pub restoring: bool,
    /// Names and limits of tables that have any.
    pub tables: BTreeMap<u8, TableConfig>,
    /// Some: multicast is sent to members of its groups (`mcast_snooping_enable`).
    pub mcast: Option<McastConfig>,
    /// Some: ports have states of a spanning tree, and BPDUs are the switch's own (`stp_enable`,
    /// `rstp_enable`).
    pub tree: Option<TreeProtocol>,
    /// What is exported of its packets to collectors.
    pub export: ExportConfig,
    /// True: flows may have actions for ovs-vswitchd's own tests (`--enable-dummy`).
    pub test_actions: bool,
}

/// What is exported of a bridge's packets to collectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportConfig {
    /// NetFlow: decisions are about one IPv4 flow each.
    pub netflow: bool,
    /// sFlow: packets are sampled as they come in.
    pub sflow: Option<SflowSampling>,
    /// IPFIX: packets are sampled as they come in, or are sent.
    pub ipfix: Option<IpfixSampling>,
    /// Collector sets for which flows may sample packets.
    pub sets: Arc<BTreeSet<u32>>,
}

/// How a bridge's packets are sampled for IPFIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpfixSampling {
    /// A packet is sampled with probability `chance / 2^32`.
    pub chance: u32,
    /// True: packets are sampled as they come in.
    pub input: bool,
    /// True: packets are sampled as they are sent.
    pub output: bool,
}

/// How a bridge's packets are sampled for sFlow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SflowSampling {
    /// A packet is sampled with probability `chance / 2^32`.
    pub chance: u32,
    /// Bytes of a sampled packet that are exported.
    pub header_bytes: u16,
}

/// How a bridge snoops multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastConfig {
    /// Seconds without a report after which a member is removed (`mcast-snooping-aging-time`).
    pub aging_s: u32,
    /// Groups, at most (`mcast-snooping-table-size`).
    pub table_size: usize,
    /// True: packets to groups without members are flooded
    /// (`mcast-snooping-disable-flood-unregistered`).
    pub flood_unregistered: bool,
}

impl Default for McastConfig {
    fn default() -> Self {
        McastConfig { aging_s: 300, table_size: 2048, flood_unregistered: true }
    }
}

/// What a port gets in a bridge that snoops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McastPort {
    /// True: all multicast (`mcast-snooping-flood`).
    pub flood: bool,
    /// True: members' reports (`mcast-snooping-flood-reports`).
    pub flood_reports: bool,
}

/// What happens to packets that match no flow of a table: `OFPTC_TABLE_MISS_*` of OpenFlow 1.1 and
/// 1.2 (OpenFlow 1.2, section A.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TableMiss {
    /// Missed packets are sent to controllers.
    Controller = 0,
    /// Missed packets continue in the next table; behind the last one they go to controllers.
    Continue = 1,
    /// Missed packets are dropped.
    Drop = 2,
}

impl TableMiss {
    /// Reads the bits of `ofp_table_mod.config`; None for 3, which means "not configured".
    pub fn from_bits(bits: u32) -> Option<TableMiss> {
        match bits {
            0 => Some(TableMiss::Controller),
            1 => Some(TableMiss::Continue),
            2 => Some(TableMiss::Drop),
            _ => None,
        }
    }
}

/// The configuration of one flow table (database table `Flow_Table`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableConfig {
    /// The table's name; empty: none.
    pub name: String,
    /// Flows, at most: more are refused, unless the table evicts.
    pub limit: Option<u32>,
    /// True: a new flow replaces one that has a timeout, if the table is full.
    pub evict: bool,
    /// Subfields by which flows are grouped for eviction: groups are evicted from fairly.
    pub groups: Vec<Subfield>,
}

impl Default for BridgeConfig {
    fn default() -> Self {
        BridgeConfig {
            dpid: 0,
            mac: [0; 6],
            fail_mode: FailMode::default(),
            mac_aging_s: 300,
            mac_table_size: 8192,
            forward_bpdu: false,
            flood_vlans: Vec::new(),
            miss_to_controller: false,
            misses: BTreeMap::new(),
            frag: FragHandling::Normal,
            fail_open: false,
            in_band: false,
            restoring: false,
            tables: BTreeMap::new(),
            mcast: None,
            tree: None,
            export: ExportConfig::default(),
            test_actions: false,
        }
    }
}

/// How bridges agree on a spanning tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeProtocol {
    /// IEEE 802.1D-1998.
    Stp,
    /// IEEE 802.1D-2004.
    Rstp,
}

impl TreeProtocol {
    /// Its name in traces.
    pub fn name(self) -> &'static str {
        match self {
            TreeProtocol::Stp => "STP",
            TreeProtocol::Rstp => "RSTP",
        }
    }
}

/// What a spanning tree has a port do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TreeState {
    /// The port takes no part: it learns and forwards.
    #[default]
    Disabled,
    /// The port neither learns nor forwards, and sends no BPDUs (STP).
    Blocking,
    /// The port neither learns nor forwards.
    Listening,
    /// The port learns addresses.
    Learning,
    /// The port learns and forwards.
    Forwarding,
}

impl TreeState {
    /// True if the port forwards.
    pub fn forwards(self) -> bool {
        matches!(self, TreeState::Disabled | TreeState::Forwarding)
    }

    /// True if the port teaches addresses and flows.
    pub fn learns(self) -> bool {
        self.forwards() || self == TreeState::Learning
    }

    /// The state in port descriptions of OpenFlow 1.0.
    pub(crate) fn of_bits(self) -> u32 {
        use openflow::port_state;
        match self {
            TreeState::Disabled => 0,
            TreeState::Blocking => port_state::STP_BLOCK,
            TreeState::Listening => port_state::STP_LISTEN,
            TreeState::Learning => port_state::STP_LEARN,
            TreeState::Forwarding => port_state::STP_FORWARD,
        }
    }
}

/// A port of a spanning tree: the switch itself takes its BPDUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreePort {
    /// Open: BPDUs are punted; closed: they are dropped as `punt_rate`.
    pub gate: Gate,
    /// What the port does.
    pub state: TreeState,
}

/// A set of VLAN ids.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet([u64; 64]);

impl VlanSet {
    /// The empty set.
    pub const NONE: VlanSet = VlanSet([0; 64]);
    /// Every VLAN, and untagged packets (0).
    pub const ALL: VlanSet = VlanSet([u64::MAX; 64]);

    /// Adds a VLAN; ids above 4095 are ignored.
    pub fn insert(&mut self, vid: u16) {
        if let Some(w) = self.0.get_mut(usize::from(vid / 64)) {
            *w |= 1 << (vid % 64);
        }
    }

    /// True if the VLAN is in the set.
    #[inline]
    pub fn contains(&self, vid: u16) -> bool {
        self.0.get(usize::from(vid / 64)).is_some_and(|w| w >> (vid % 64) & 1 != 0)
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..4096).filter(|v| self.contains(*v))
    }
}

impl FromIterator<u16> for VlanSet {
    fn from_iter<I: IntoIterator<Item = u16>>(vids: I) -> Self {
        let mut out = VlanSet::NONE;
        vids.into_iter().for_each(|v| out.insert(v));
        out
    }
}

impl std::fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self == VlanSet::ALL {
            true => f.write_str("all"),
            false => f.debug_set().entries(self.iter()).finish(),
        }
    }
}

/// How NORMAL treats VLAN tags on a port (`Port.vlan_mode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanMode {
    /// Untagged frames belong to the VLAN; tagged ones are dropped.
    Access(u16),
    /// Tagged frames of these VLANs, and untagged frames if 0 is in the set.
    Trunk(Arc<VlanSet>),
    /// As a trunk; untagged frames belong to VLAN `tag`, whose frames leave with a tag.
    NativeTagged {
        /// The native VLAN.
        tag: u16,
        /// The others.
        trunks: Arc<VlanSet>,
    },
    /// As a trunk; untagged frames belong to VLAN `tag`, whose frames leave without a tag.
    NativeUntagged {
        /// The native VLAN.
        tag: u16,
        /// The others.
        trunks: Arc<VlanSet>,
    },
    /// Every frame, tagged or not, gets the outer tag `tag`.
    Dot1qTunnel {
        /// The outer VLAN.
        tag: u16,
        /// Inner VLANs that are accepted.
        cvlans: Arc<VlanSet>,
        /// The outer tag's Ethertype.
        ethertype: u16,
    },
}

impl Default for VlanMode {
    fn default() -> Self {
        VlanMode::Trunk(Arc::new(VlanSet::ALL))
    }
}

/// A port of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// OpenFlow number ([`openflow::port::LOCAL`] for the bridge's own).
    pub of_port: OfPort,
    /// Interface name.
    pub name: String,
    /// Name of the port (bundle) in the database: interfaces with the same one are one port to
    /// NORMAL.
    pub bundle: String,
    /// The datapath port. None: a patch port, or a port that does not work now.
    pub dp_port: Option<PortNo>,
    /// Hardware address.
    pub hw_addr: [u8; 6],
    /// VLANs, for NORMAL.
    pub vlan: VlanMode,
    /// Name of the peer of a patch port.
    pub patch_peer: Option<String>,
    /// The configuration of a tunnel; `dp_port` is then that of all tunnels on the same UDP port.
    pub tunnel: Option<crate::tunnel::TunnelSpec>,
    /// [`openflow::port_config`] bits.
    pub config: u32,
    /// [`openflow::port_state`] bits.
    pub state: u32,
    /// Current, advertised and supported features (`OFPPF_*`).
    pub features: [u32; 3],
    /// Current and highest speed, kbit/s.
    pub speeds: [u32; 2],
    /// DSCP that IP packets of a queue get.
    pub queue_dscp: Arc<BTreeMap<u32, u8>>,
    /// NORMAL does not forward between protected ports.
    pub protected: bool,
    /// Which packets without a VLAN get a tag for their priority when NORMAL sends them.
    pub priority_tags: PriorityTags,
    /// What the port gets if the bridge snoops.
    pub mcast: McastPort,
    /// The packets about the path behind the port that the switch itself takes.
    pub oam: OamFilters,
    /// Some: the interface belongs to a port that speaks LACP.
    pub lacp: Option<LacpPort>,
    /// Some: the port takes part in the bridge's spanning tree.
    pub tree: Option<TreePort>,
    /// True: the link is up, but a protocol (BFD, CFM) reports that nothing gets through.
    pub faulty: bool,
}

/// When packets are sent with a tag that has a priority but no VLAN (`other_config:priority-tags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PriorityTags {
    /// Packets are never sent so.
    #[default]
    Never,
    /// If the priority is not zero.
    IfNonzero,
    /// Always.
    Always,
}

/// A switch that copies share, open at first. Opening or closing a copy affects existing megaflows
/// at once. Two gates are equal if they are copies of each other.
#[derive(Clone, Debug)]
pub struct Gate(pub(crate) Arc<AtomicBool>);

impl Gate {
    /// True if packets may pass.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Opens or closes the gate.
    pub fn set(&self, open: bool) {
        self.0.store(open, Ordering::Relaxed);
    }
}

impl Default for Gate {
    fn default() -> Self {
        Gate(Arc::new(AtomicBool::new(true)))
    }
}

impl PartialEq for Gate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Gate {}

/// The packets of a port's BFD session (`Interface.bfd`): those to UDP port 3784 over IPv4 that
/// meet all of this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BfdFilter {
    /// Open: they are punted; closed: they are dropped as `punt_rate`.
    pub gate: Gate,
    /// Their Ethernet destination; None: any.
    pub dst_mac: Option<[u8; 6]>,
    /// Their IPv4 destination; None: any.
    pub dst_ip: Option<Ipv4Addr>,
    /// True: only packets from a tunnel with key 0, or from no tunnel.
    pub key_zero: bool,
}

/// The packets of a port's CFM (`Interface.cfm_mpid`): continuity check messages (IEEE 802.1ag).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CfmFilter {
    /// Open: they are punted; closed: they are dropped as `punt_rate`.
    pub gate: Gate,
    /// True: those to the address of OVS's extended mode instead of the standard's.
    pub extended: bool,
    /// True: only packets from a tunnel with key 0, or from no tunnel.
    pub key_zero: bool,
}

/// The packets of operations, administration and maintenance, and of neighbours, that the switch
/// takes on a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OamFilters {
    /// Which packets of BFD are the switch's own.
    pub bfd: Option<BfdFilter>,
    /// Which packets of CFM are the switch's own.
    pub cfm: Option<CfmFilter>,
    /// The gate of LLDP frames. Open: they are punted; closed: they are dropped as `punt_rate`.
    pub lldp: Option<Gate>,
}

/// An interface of a port that speaks LACP: the switch itself takes packets of Slow Protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LacpPort {
    /// Open: LACP packets are punted; closed: they are dropped as `punt_rate`.
    pub gate: Gate,
    /// True: LACP allows other packets on the link.
    pub carries: bool,
}

impl PortSpec {
    /// What the spanning tree has the port do.
    pub fn tree_state(&self) -> TreeState {
        self.tree.as_ref().map(|t| t.state).unwrap_or_default()
    }

    /// True if the port can carry packets now.
    pub fn live(&self) -> bool {
        use openflow::{port_config, port_state};
        let down = self.config & port_config::PORT_DOWN | self.state & port_state::LINK_DOWN;
        down == 0 && !self.faulty && self.lacp.as_ref().is_none_or(|l| l.carries)
    }

    /// True if packets come to this port, and go on from it, as with the other one: only its own
    /// bridge decides otherwise.
    pub(crate) fn is_where(&self, other: &PortSpec) -> bool {
        self.name == other.name
            && self.dp_port == other.dp_port
            && self.patch_peer == other.patch_peer
            && self.tunnel == other.tunnel
    }

    /// True if the two are equal for all packets that no bond, group or bundle action handles. Only
    /// those depend on whether a port is live; a link's speed is for controllers.
    pub(crate) fn differs_in_link_only(&self, other: &PortSpec) -> bool {
        use openflow::port_config::PORT_DOWN;
        let PortSpec { state, features, speeds, faulty, .. } = *self;
        let config = other.config & !PORT_DOWN | self.config & PORT_DOWN;
        let link = PortSpec { state, features, speeds, faulty, config, ..other.clone() };
        *self == link
    }
}

/// How a bond chooses the interface by which packets leave, and on which interfaces they may come
/// in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BondSpec {
    /// Where packets to the bond are sent.
    pub output: BondOutput,
    /// What NORMAL accepts on each interface; nothing on interfaces that are not named.
    pub admits: BTreeMap<OfPort, BondAdmission>,
    /// True: NORMAL drops packets whose source address is known behind another port, except
    /// gratuitous ARP: they left by one interface of the bond and came back by another
    /// (`balance-slb`).
    pub drops_moved: bool,
}

/// Where packets to a bond are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondOutput {
    /// Nowhere: no interface is enabled.
    #[default]
    Nowhere,
    /// Packets leave by one interface.
    Member(OfPort),
    /// Packets go to the datapath's number of the bond, which spreads them over its members.
    Spread(PortNo),
}

/// What NORMAL accepts on an interface of a bond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondAdmission {
    /// No packet is accepted.
    #[default]
    Nothing,
    /// Packets to one station.
    Unicast,
    /// All packets.
    All,
}

/// An error of the caller of [`crate::Switch`], never of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The bridge does not exist.
    #[error("no such bridge")]
    NoBridge,
    /// Another bridge has this name.
    #[error("bridge {0} exists")]
    BridgeExists(String),
    /// The bridge has no such port.
    #[error("no port {0}")]
    NoPort(OfPort),
    /// The number is in use in this bridge.
    #[error("port number {0} is in use")]
    PortInUse(OfPort),
    /// Port numbers are 1..0xff00, and LOCAL.
    #[error("port number {0:#x} is not valid")]
    BadPort(OfPort),
    /// Another OpenFlow port has this datapath port.
    #[error("datapath port {0} is in use")]
    DpPortInUse(PortNo),
}
