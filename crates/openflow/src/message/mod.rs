//! Messages, one form for all versions. A message that only one side sends is still complete here:
//! tests decode what the switch encodes.

mod flow_messages;
mod group_messages;
mod port_messages;

pub use flow_messages::*;
pub use group_messages::*;
pub use port_messages::*;

use crate::{
    Action, Continuation, Match, OfError, OfPort, Reason, Resume, TableFeaturesPart, packet_type,
};
use flow::at;

/// A protocol version's wire number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Version {
    V10 = 1,
    V11 = 2,
    V12 = 3,
    V13 = 4,
    V14 = 5,
    V15 = 6,
}

/// No buffered packet.
pub const NO_BUFFER: u32 = 0xffff_ffff;
/// All tables (delete, statistics).
pub const TABLE_ALL: u8 = 0xff;
/// Any group.
pub const GROUP_ANY: u32 = 0xffff_ffff;

/// A packet to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PacketIn {
    pub buffer_id: u32,
    /// Length of the whole packet; `data` may be shorter.
    pub total_len: u16,
    pub reason: Reason,
    pub table: u8,
    pub cookie: u64,
    /// Pipeline fields to report (in_port, tunnel, registers, metadata, packet mark).
    pub matching: Match,
    pub data: Vec<u8>,
    /// Nicira packet-in 2 only.
    pub userdata: Vec<u8>,
    pub continuation: Option<Box<Continuation>>,
}

/// A packet from a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PacketOut {
    pub buffer_id: u32,
    /// Pipeline fields (1.5 gives a match; older ones in_port only), in `at::OF_IN_PORT` and
    /// others.
    pub matching: Match,
    pub actions: Vec<Action>,
    pub data: Vec<u8>,
}

impl PacketOut {
    /// As packets are in memory: one without an Ethernet header gets one without addresses.
    pub fn in_memory(mut self) -> PacketOut {
        if let Some(ethertype) = packet_type::ethertype(self.matching.key.u32(at::PACKET_TYPE)) {
            self.data.splice(..0, [[0; 12].as_slice(), &ethertype.to_be_bytes()].concat());
        }
        self
    }
}

/// A bundle step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum BundleStep {
    OpenRequest,
    OpenReply,
    CloseRequest,
    CloseReply,
    CommitRequest,
    CommitReply,
    DiscardRequest,
    DiscardReply,
}

/// Controller roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum Role {
    NoChange = 0,
    Equal = 1,
    Primary = 2,
    Secondary = 3,
}

/// Whether the reply's flows are wanted with more fields than the version has is up to the codec.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MultipartRequest {
    Desc,
    Flow(FlowSelect),
    Aggregate(FlowSelect),
    Table,
    PortStats(OfPort),
    PortDesc(OfPort),
    QueueStats { port: OfPort, queue: u32 },
    QueueDesc { port: OfPort, queue: u32 },
    GroupStats(u32),
    GroupDesc(u32),
    GroupFeatures,
    MeterStats(u32),
    MeterConfig(u32),
    MeterFeatures,
    TableFeatures(TableFeaturesPart),
    TableDesc,
    FlowMonitor(Vec<MonitorRequest>),
    IpfixBridge,
    IpfixFlow,
}

/// Switch configuration (`OFPC_*` fragment handling and miss_send_len).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SwitchConfig {
    pub frag: FragHandling,
    pub miss_send_len: u16,
    /// OFPC_INVALID_TTL_TO_CONTROLLER: 1.1 and 1.2, and 1.0 as an extension.
    pub invalid_ttl_to_controller: bool,
}

/// Fragment handling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum FragHandling {
    Normal = 0,
    Drop = 1,
    Reassemble = 2,
    NxMatch = 3,
}

/// Which asynchronous messages a connection wants: bit `1 << reason`, [primary or equal,
/// secondary].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AsyncConfig {
    pub packet_in: [u32; 2],
    pub port_status: [u32; 2],
    pub flow_removed: [u32; 2],
    pub role_status: [u32; 2],
    pub table_status: [u32; 2],
    pub requestforward: [u32; 2],
}

/// `ovs-ofctl set-packet-in-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PacketInFormat {
    Standard,
    Nxt,
    Nxt2,
}

/// A decoded request to the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request {
    /// The versions the peer offers, as a bitmap `1 << wire version`.
    Hello {
        versions: u32,
    },
    Error {
        kind: u16,
        code: u16,
        data: Vec<u8>,
    },
    EchoRequest(Vec<u8>),
    EchoReply(Vec<u8>),
    Features,
    GetConfig,
    SetConfig(SwitchConfig),
    PacketOut(PacketOut),
    FlowMod(FlowMod),
    GroupMod(GroupMod),
    PortMod(PortMod),
    MeterMod(MeterMod),
    TableMod {
        table: u8,
        config: u32,
        /// 1.4+: down and up, percent.
        vacancy: Option<[u8; 2]>,
    },
    Multipart(MultipartRequest),
    Barrier,
    QueueGetConfig {
        port: OfPort,
    },
    Role {
        role: Role,
        generation: Option<u64>,
    },
    GetAsync,
    /// `given`: which properties were there, bit `1 << type` as 1.4 numbers them (even: secondary);
    /// others stay.
    SetAsync {
        wants: AsyncConfig,
        given: u16,
    },
    BundleControl {
        id: u32,
        step: BundleStep,
        flags: u16,
    },
    /// The embedded message keeps its own bytes for error replies.
    BundleAdd {
        id: u32,
        flags: u16,
        xid: u32,
        inner: Box<Request>,
    },
    // Nicira
    SetPacketInFormat(PacketInFormat),
    SetFlowFormat(FlowFormat),
    /// NXT_FLOW_MOD_TABLE_ID: the table is in the upper byte of 1.0's command.
    FlowModTableId(bool),
    SetControllerId(u16),
    /// NXT_FLOW_AGE: nothing is to be done.
    FlowAge,
    /// Cancels a flow monitor.
    MonitorCancel(u32),
    /// NXT_TLV_TABLE_REQUEST.
    TlvTable,
    TlvTableMod(TlvTableMod),
    /// NXT_CT_FLUSH_ZONE, NXT_CT_FLUSH.
    CtFlush(CtFlush),
    /// NXT_RESUME.
    Resume(Box<Resume>),
}

/// Connections that are to end: those that agree with all that is said here; nothing is said: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtFlush {
    /// Zone.
    pub zone: Option<u16>,
    /// IP protocol.
    pub proto: Option<u8>,
    /// The tuple of the first packet.
    pub orig: CtTuple,
    /// The tuple of answers.
    pub reply: CtTuple,
}

/// What is said of a tuple.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CtTuple {
    pub src: Option<std::net::IpAddr>,
    pub dst: Option<std::net::IpAddr>,
    pub sport: Option<u16>,
    pub dport: Option<u16>,
    pub icmp_id: Option<u16>,
    pub icmp_type: Option<u8>,
    pub icmp_code: Option<u8>,
}

/// A reply or asynchronous message from the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reply {
    Hello,
    EchoRequest(Vec<u8>),
    EchoReply(Vec<u8>),
    /// `data`: the beginning of the offending message.
    Error {
        error: OfError,
        data: Vec<u8>,
    },
    Features {
        dpid: u64,
        n_buffers: u32,
        n_tables: u8,
        ports: Vec<PortDesc>,
    },
    Config(SwitchConfig),
    PacketIn(PacketIn),
    FlowRemoved(FlowRemoved),
    PortStatus {
        reason: u8,
        desc: PortDesc,
    },
    Barrier,
    Role {
        role: Role,
        generation: u64,
    },
    /// 1.4+; reason: 0 another controller became primary, 1 configuration, 2 experimenter.
    RoleStatus {
        role: Role,
        reason: u8,
        generation: u64,
    },
    Async(AsyncConfig),
    /// 1.4+: a table has fewer free places than the lower threshold, or (`more`) more than the
    /// upper one again.
    TableStatus {
        more: bool,
        table: TableStats,
    },
    /// Another controller's group-mod, under its transaction id; an extension before 1.4.
    RequestForward {
        xid: u32,
        group: GroupMod,
    },
    BundleControl {
        id: u32,
        step: BundleStep,
        flags: u16,
    },
    QueueConfig {
        port: OfPort,
        queues: Vec<Queue>,
    },
    Multipart(MultipartReply),
    MonitorUpdate(Vec<MonitorUpdate>),
    /// The bytes that all options together may have, how many fields there are, and which option
    /// each is.
    TlvTable {
        space: u32,
        fields: u16,
        maps: Vec<TlvMap>,
    },
}

/// Which option of a tunnel's header (Geneve, RFC 8926 section 3.5) a field `tun_metadataN` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlvMap {
    /// Option class.
    pub class: u16,
    /// Option type; the uppermost bit says that who does not know it must drop the packet.
    pub kind: u8,
    /// Bytes of its value: a multiple of 4, at most 124.
    pub len: u8,
    /// The field's number.
    pub index: u16,
}

/// A change of the table of options (NXT_TLV_TABLE_MOD); all of it happens or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TlvTableMod {
    Add(Vec<TlvMap>),
    /// Deletes mappings by their index.
    Delete(Vec<TlvMap>),
    Clear,
}

/// Multipart replies; the codec splits long ones into several messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MultipartReply {
    Desc {
        manufacturer: String,
        hardware: String,
        software: String,
        serial: String,
        datapath: String,
    },
    Flow(Vec<FlowStats>),
    Aggregate {
        packets: u64,
        bytes: u64,
        flows: u32,
    },
    Table(Vec<TableStats>),
    TableFeatures(Vec<TableStats>),
    TableDesc(Vec<TableStats>),
    PortStats(Vec<PortStats>),
    PortDesc(Vec<PortDesc>),
    QueueStats(Vec<QueueStats>),
    QueueDesc(Vec<Queue>),
    GroupStats(Vec<GroupStats>),
    GroupDesc(Vec<GroupMod>),
    GroupFeatures {
        types: u32,
        capabilities: u32,
        max_groups: [u32; 4],
        actions: [u32; 4],
    },
    MeterStats(Vec<MeterStats>),
    MeterConfig(Vec<MeterMod>),
    MeterFeatures {
        max_meters: u32,
        band_types: u32,
        capabilities: u32,
        max_bands: u8,
        max_color: u8,
    },
    FlowMonitor(Vec<MonitorUpdate>),
    IpfixBridge(IpfixStats),
    /// Statistics of each collector set.
    IpfixFlow(Vec<IpfixStats>),
}

/// What an exporter of IPFIX has done (`NXST_IPFIX_BRIDGE`, `NXST_IPFIX_FLOW`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IpfixStats {
    pub flows: u64,
    pub current_flows: u64,
    pub packets: u64,
    pub ipv4: u64,
    pub ipv6: u64,
    pub errors: u64,
    pub ipv4_errors: u64,
    pub ipv6_errors: u64,
    pub sent: u64,
    pub failed: u64,
    /// Its collector set; 0 for the bridge's own.
    pub set: u32,
}
