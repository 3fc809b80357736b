//! What the control side says about bridges and ports.

use flow::PortNo;
use openflow::{FragHandling, OfPort, Subfield};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A bridge of a [`crate::Switch`]; never reused while the switch lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BridgeId(pub(crate) u32);

impl BridgeId {
    /// A dense index, for tables of the caller.
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
    /// Only what the flow table says.
    Secure,
}

/// A bridge's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeConfig {
    /// Datapath id.
    pub dpid: u64,
    /// MAC address of the bridge (its LOCAL port).
    pub mac: [u8; 6],
    /// Without controller.
    pub fail_mode: FailMode,
    /// Learned addresses are forgotten after this many seconds (`mac-aging-time`).
    pub mac_aging_s: u32,
    /// At most this many learned addresses (`mac-table-size`).
    pub mac_table_size: usize,
    /// Forward frames to reserved multicast addresses (`forward-bpdu`).
    pub forward_bpdu: bool,
    /// VLANs in which nothing is learned and everything floods (`flood_vlans`).
    pub flood_vlans: Vec<u16>,
    /// Packets that no flow matches go to controllers: what OpenFlow 1.0 to 1.2 connections expect.
    pub miss_to_controller: bool,
    /// What becomes of packets that no flow of a table matches, where a controller of OpenFlow 1.1
    /// or 1.2 has said so; of other tables `miss_to_controller` says it.
    pub misses: BTreeMap<u8, TableMiss>,
    /// What happens to IP fragments before table 0.
    pub frag: FragHandling,
    /// All controllers have been away for too long: everything is NORMAL, whatever the flows say.
    pub fail_open: bool,
    /// Flows are being restored: packets are dropped, whatever the flows say (`flow-restore-wait`).
    pub restoring: bool,
    /// Names and limits of tables that have some.
    pub tables: BTreeMap<u8, TableConfig>,
    /// Some: multicast goes where its members are (`mcast_snooping_enable`).
    pub mcast: Option<McastConfig>,
    /// What is reported its packets to collectors.
    pub export: ExportConfig,
    /// Flows may have actions for ovs-vswitchd's own tests (`--enable-dummy`).
    pub test_actions: bool,
}

/// What is reported a bridge's packets to collectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportConfig {
    /// NetFlow: decisions tell flows of IPv4 apart.
    pub netflow: bool,
    /// sFlow: packets are sampled as they come in.
    pub sflow: Option<SflowSampling>,
    /// IPFIX: packets are sampled as they come in, or go out.
    pub ipfix: Option<IpfixSampling>,
    /// Collector sets for which flows may sample packets.
    pub sets: Arc<BTreeSet<u32>>,
}

/// How a bridge's packets are sampled for IPFIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpfixSampling {
    /// One packet of `2^32 / chance` is.
    pub chance: u32,
    /// As they come in.
    pub input: bool,
    /// As they go out.
    pub output: bool,
}

/// How a bridge's packets are sampled for sFlow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SflowSampling {
    /// One packet of `2^32 / chance` is.
    pub chance: u32,
    /// Bytes of it that are looked at.
    pub header_bytes: u16,
}

/// How a bridge snoops for members of multicast groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastConfig {
    /// A member that is not heard of for this many seconds has left (`mcast-snooping-aging-time`).
    pub aging_s: u32,
    /// At most this many groups (`mcast-snooping-table-size`).
    pub table_size: usize,
    /// Groups without members are for all (`mcast-snooping-disable-flood-unregistered`).
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
    /// All multicast (`mcast-snooping-flood`).
    pub flood: bool,
    /// What members report (`mcast-snooping-flood-reports`).
    pub flood_reports: bool,
}

/// `OFPTC_TABLE_MISS_*` of OpenFlow 1.1 and 1.2 (OpenFlow 1.2, section A.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TableMiss {
    /// To the controllers.
    Controller = 0,
    /// To the next table; behind the last one to the controllers.
    Continue = 1,
    /// Nowhere.
    Drop = 2,
}

impl TableMiss {
    /// As the bits of `ofp_table_mod.config` say; None for 3, which means that nothing is said.
    pub fn from_bits(bits: u32) -> Option<TableMiss> {
        match bits {
            0 => Some(TableMiss::Controller),
            1 => Some(TableMiss::Continue),
            2 => Some(TableMiss::Drop),
            _ => None,
        }
    }
}

/// What the control side says about one flow table (database table `Flow_Table`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableConfig {
    /// Empty: it has none.
    pub name: String,
    /// More flows than this are refused, unless the table evicts.
    pub limit: Option<u32>,
    /// A new flow takes the place of one that has a timeout.
    pub evict: bool,
    /// Flows that differ in these bits are evicted fairly.
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
            restoring: false,
            tables: BTreeMap::new(),
            mcast: None,
            export: ExportConfig::default(),
            test_actions: false,
        }
    }
}

/// A set of VLAN ids.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet([u64; 64]);

impl VlanSet {
    /// No VLAN.
    pub const NONE: VlanSet = VlanSet([0; 64]);
    /// Every VLAN, and untagged (0).
    pub const ALL: VlanSet = VlanSet([u64::MAX; 64]);

    /// Adds a VLAN; ids above 4095 are ignored.
    pub fn insert(&mut self, vid: u16) {
        if let Some(w) = self.0.get_mut(usize::from(vid / 64)) {
            *w |= 1 << (vid % 64);
        }
    }

    /// Is the VLAN in the set?
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
    /// Tagged frames of these VLANs, and untagged ones if 0 is in the set.
    Trunk(Arc<VlanSet>),
    /// Trunk; untagged frames belong to `tag`, which leaves with a tag.
    NativeTagged {
        /// The native VLAN.
        tag: u16,
        /// The others.
        trunks: Arc<VlanSet>,
    },
    /// Trunk; untagged frames belong to `tag`, which leaves without a tag.
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
        /// Inner VLANs that are let in.
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
    /// Port (bundle) name: interfaces with the same one are one port to NORMAL.
    pub bundle: String,
    /// Where packets come and go. None: a patch port, or one that does not work now.
    pub dp_port: Option<PortNo>,
    /// Hardware address.
    pub hw_addr: [u8; 6],
    /// VLANs, for NORMAL.
    pub vlan: VlanMode,
    /// Name of the patch port this one leads to.
    pub patch_peer: Option<String>,
    /// A tunnel; `dp_port` is then that of all tunnels with the same UDP port.
    pub tunnel: Option<crate::tunnel::TunnelSpec>,
    /// [`openflow::port_config`] bits.
    pub config: u32,
    /// [`openflow::port_state`] bits.
    pub state: u32,
    /// Current features (`OFPPF_*`).
    pub curr: u32,
    /// Current and highest speed, kbit/s.
    pub curr_speed: u32,
    /// Highest speed, kbit/s.
    pub max_speed: u32,
    /// NORMAL does not forward between protected ports.
    pub protected: bool,
    /// Which packets without a VLAN leave by NORMAL with a tag for their priority.
    pub priority_tags: PriorityTags,
    /// What it gets if the bridge snoops.
    pub mcast: McastPort,
    /// The switch itself takes these packets.
    pub bfd: Option<BfdFilter>,
    /// Some: it is an interface of a port that speaks LACP.
    pub lacp: Option<LacpPort>,
    /// Its link is up, and yet a protocol (BFD) says that nothing comes through.
    pub faulty: bool,
}

/// Tags that name no VLAN (`other_config:priority-tags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PriorityTags {
    /// None leaves.
    #[default]
    Never,
    /// They leave if they say a priority.
    IfNonzero,
    /// They always leave.
    Always,
}

/// Open at first; whoever has a copy may close it, which holds at once for cached decisions. Two
/// are equal if they are copies.
#[derive(Clone, Debug)]
pub struct Gate(pub(crate) Arc<AtomicBool>);

impl Gate {
    /// Does it let packets through?
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Opens or closes it.
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

/// Which packets are a port's BFD session's (`Interface.bfd`): those to UDP port 3784 over IPv4,
/// and of these only those that all of this fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BfdFilter {
    /// They are handed over, else dropped as `punt_rate`.
    pub gate: Gate,
    /// Their Ethernet destination.
    pub dst_mac: Option<[u8; 6]>,
    /// Their IPv4 destination.
    pub dst_ip: Option<Ipv4Addr>,
    /// They came through a tunnel with key 0, or through none.
    pub key_zero: bool,
}

/// An interface of a port that speaks LACP: the switch itself takes packets of Slow Protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LacpPort {
    /// They are handed over, else dropped as `punt_rate`.
    pub gate: Gate,
    /// LACP says that the link may carry other packets.
    pub carries: bool,
}

impl PortSpec {
    /// Can it carry packets now?
    pub fn live(&self) -> bool {
        use openflow::{port_config, port_state};
        let down = self.config & port_config::PORT_DOWN | self.state & port_state::LINK_DOWN;
        down == 0 && !self.faulty && self.lacp.as_ref().is_none_or(|l| l.carries)
    }

    /// Are the two the same for all packets that no bond, group or bundle action handles? These
    /// alone ask whether a port is live; a link's speed is for controllers.
    pub(crate) fn differs_in_link_only(&self, other: &PortSpec) -> bool {
        use openflow::port_config::PORT_DOWN;
        let PortSpec { state, curr, curr_speed, max_speed, faulty, .. } = *self;
        let config = other.config & !PORT_DOWN | self.config & PORT_DOWN;
        let link = PortSpec { state, curr, curr_speed, max_speed, faulty, config, ..other.clone() };
        *self == link
    }
}

/// Which of a bond's interfaces packets leave and enter by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BondSpec {
    /// Where packets to the bond go.
    pub output: BondOutput,
    /// What NORMAL takes from each interface; nothing from those that are not named.
    pub admits: BTreeMap<OfPort, BondAdmission>,
    /// NORMAL drops packets whose source address is known behind another port, gratuitous ARP
    /// excepted: they left by one interface and came back by another (`balance-slb`).
    pub drops_moved: bool,
}

/// Where packets to a bond go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondOutput {
    /// Nowhere: no interface is enabled.
    #[default]
    Nowhere,
    /// To one interface.
    Member(OfPort),
    /// To the datapath's number of the bond, which spreads them.
    Spread(PortNo),
}

/// What NORMAL takes from an interface of a bond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondAdmission {
    /// Nothing.
    #[default]
    Nothing,
    /// Packets to one station.
    Unicast,
    /// All packets.
    All,
}

/// What a caller of [`crate::Switch`] did wrong (never a peer's fault).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The bridge does not exist (any more).
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
    /// Only 1..0xff00 and LOCAL number a port.
    #[error("port number {0:#x} is not valid")]
    BadPort(OfPort),
    /// Another OpenFlow port has this datapath port.
    #[error("datapath port {0} is in use")]
    DpPortInUse(PortNo),
}
