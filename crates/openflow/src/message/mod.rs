//! Messages, one form for all versions. A message that only one side sends is still complete here:
//! tests decode what the switch encodes.

use crate::{
    Action, Continuation, Instruction, Match, OfError, OfPort, Reason, Resume, TableFeaturesPart,
};

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

/// `OFPFC_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FlowModCommand {
    Add,
    Modify,
    ModifyStrict,
    Delete,
    DeleteStrict,
}

/// `OFPFF_*` bits, 1.3+ numbers.
#[allow(missing_docs)]
pub mod flow_flag {
    pub const SEND_FLOW_REM: u16 = 1;
    pub const CHECK_OVERLAP: u16 = 2;
    pub const RESET_COUNTS: u16 = 4;
    pub const NO_PKT_COUNTS: u16 = 8;
    pub const NO_BYT_COUNTS: u16 = 16;
}

/// No buffered packet.
pub const NO_BUFFER: u32 = 0xffff_ffff;
/// All tables (delete, statistics).
pub const TABLE_ALL: u8 = 0xff;
/// Any group.
pub const GROUP_ANY: u32 = 0xffff_ffff;

/// A flow-mod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FlowMod {
    pub command: FlowModCommand,
    pub table: u8,
    pub priority: u16,
    pub matching: Match,
    /// New cookie. For modify: None keeps the old one (1.0's all-ones cookie adds nothing).
    pub cookie: u64,
    /// Compared under `cookie_mask` for modify and delete.
    pub cookie_old: u64,
    pub cookie_mask: u64,
    /// Does a modify change the cookie to `cookie` (1.0: yes; 1.1+: no)?
    pub modify_cookie: bool,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    /// 1.4 importance.
    pub importance: u16,
    pub flags: u16,
    pub buffer_id: u32,
    pub out_port: OfPort,
    pub out_group: u32,
    pub instructions: Vec<Instruction>,
}

impl FlowMod {
    /// `command` for `matching` in `table`, the rest neutral: priority 0, no cookie, no time-out,
    /// no buffer, any output, no instruction.
    pub fn new(command: FlowModCommand, table: u8, matching: Match) -> Self {
        FlowMod {
            command,
            table,
            priority: 0,
            matching,
            cookie: 0,
            cookie_old: 0,
            cookie_mask: 0,
            modify_cookie: false,
            idle_timeout: 0,
            hard_timeout: 0,
            importance: 0,
            flags: 0,
            buffer_id: NO_BUFFER,
            out_port: crate::port::ANY,
            out_group: GROUP_ANY,
            instructions: Vec::new(),
        }
    }
}

/// Selects flows for statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FlowSelect {
    pub table: u8,
    pub out_port: OfPort,
    pub out_group: u32,
    pub cookie: u64,
    pub cookie_mask: u64,
    pub matching: Match,
}

/// All flows.
impl Default for FlowSelect {
    fn default() -> Self {
        FlowSelect {
            table: TABLE_ALL,
            out_port: crate::port::ANY,
            out_group: GROUP_ANY,
            cookie: 0,
            cookie_mask: 0,
            matching: Match::default(),
        }
    }
}

/// One flow in a flow-statistics reply. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FlowStats {
    pub table: u8,
    pub priority: u16,
    pub matching: Match,
    pub cookie: u64,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub importance: u16,
    pub flags: u16,
    pub duration_ns: u64,
    /// Since last use and last change, for Nicira/1.5 replies.
    pub idle_age: Option<u32>,
    pub hard_age: Option<u32>,
    pub packets: u64,
    pub bytes: u64,
    pub instructions: Vec<Instruction>,
}

/// Why a flow went (`OFPRR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum Removed {
    IdleTimeout = 0,
    HardTimeout = 1,
    Delete = 2,
    GroupDelete = 3,
    MeterDelete = 4,
    Eviction = 5,
}

/// A flow-removed message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FlowRemoved {
    pub stats: FlowStats,
    pub reason: Removed,
}

/// `OFPPC_*` bits (1.1+).
#[allow(missing_docs)]
pub mod port_config {
    pub const PORT_DOWN: u32 = 1;
    pub const NO_STP: u32 = 2;
    pub const NO_RECV: u32 = 4;
    pub const NO_RECV_STP: u32 = 8;
    pub const NO_FLOOD: u32 = 16;
    pub const NO_FWD: u32 = 32;
    pub const NO_PACKET_IN: u32 = 64;
}

/// `OFPPS_*` bits (1.1+).
#[allow(missing_docs)]
pub mod port_state {
    pub const LINK_DOWN: u32 = 1;
    pub const BLOCKED: u32 = 2;
    pub const LIVE: u32 = 4;
}

/// A port's description. Speeds in kbit/s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortDesc {
    pub port: OfPort,
    pub hw_addr: [u8; 6],
    pub name: String,
    pub config: u32,
    pub state: u32,
    pub curr: u32,
    pub advertised: u32,
    pub supported: u32,
    pub peer: u32,
    pub curr_speed: u32,
    pub max_speed: u32,
}

/// A port's counters; u64::MAX: not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortStats {
    pub port: OfPort,
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_frame_err: u64,
    pub rx_over_err: u64,
    pub rx_crc_err: u64,
    pub collisions: u64,
    pub duration_ns: u64,
    /// Counters with names of their own (1.4+).
    pub custom: Vec<(String, u64)>,
}

/// A queue of a port, in descriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Queue {
    pub port: OfPort,
    pub id: u32,
}

/// A queue's counters; u64::MAX: not kept. The duration is never known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QueueStats {
    pub queue: Queue,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    pub tx_errors: u64,
}

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

/// A bucket of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bucket {
    pub id: u32,
    pub weight: u16,
    pub watch_port: OfPort,
    pub watch_group: u32,
    pub actions: Vec<Action>,
}

/// Group types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum GroupType {
    All = 0,
    Select = 1,
    Indirect = 2,
    FastFailover = 3,
}

/// Group commands (1.5's insert and remove bucket included).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum GroupCommand {
    Add,
    Modify,
    Delete,
    AddOrMod,
    InsertBucket(u32),
    RemoveBucket(u32),
}

/// A group-mod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GroupMod {
    pub command: GroupCommand,
    pub kind: GroupType,
    pub id: u32,
    pub buckets: Vec<Bucket>,
    pub selection_method: String,
    pub selection_param: u64,
    pub selection_fields: Vec<flow::Field>,
}

/// A meter band.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Band {
    Drop { rate: u32, burst: u32 },
    DscpRemark { rate: u32, burst: u32, prec: u8 },
}

/// A meter-mod.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MeterMod {
    pub command: MeterCommand,
    pub id: u32,
    pub flags: u16,
    pub bands: Vec<Band>,
}

/// Meter commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum MeterCommand {
    Add,
    Modify,
    Delete,
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
}

/// Flags of a flow-monitor request.
#[allow(missing_docs)]
pub mod monitor_flag {
    pub const INITIAL: u16 = 1;
    pub const ADD: u16 = 2;
    pub const DELETE: u16 = 4;
    pub const MODIFY: u16 = 8;
    /// Updates have the actions.
    pub const ACTIONS: u16 = 16;
    /// Changes made on this connection come in full, not abbreviated.
    pub const OWN: u16 = 32;
}

/// A flow-monitor request (Nicira's; `ovs-ofctl monitor BR watch:`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MonitorRequest {
    pub id: u32,
    pub flags: u16,
    pub out_port: OfPort,
    /// 1.4+.
    pub out_group: u32,
    pub table: u8,
    pub matching: Match,
}

/// A flow-monitor event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MonitorUpdate {
    Added(FlowStats),
    Modified(FlowStats),
    Deleted(FlowStats, Removed),
    Abbrev { xid: u32 },
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

/// Flow formats a 1.0 connection may pick (NXT_SET_FLOW_FORMAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FlowFormat {
    OpenFlow10,
    Nxm,
}

/// A port-mod. `config`/`mask` are [`port_config`] bits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortMod {
    pub port: OfPort,
    pub hw_addr: [u8; 6],
    pub config: u32,
    pub mask: u32,
    pub advertise: u32,
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
    /// By index.
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
}

/// One table's statistics and description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct TableStats {
    pub table: u8,
    pub name: String,
    pub max_entries: u32,
    pub active: u32,
    pub lookups: u64,
    pub matched: u64,
    /// `OFPTC_*`: [`TableStats::EVICTION`], [`TableStats::VACANCY`].
    pub config: u32,
    /// The percentages of free places between which vacancy events come.
    pub vacancy: Option<[u8; 2]>,
}

impl TableStats {
    /// `OFPTC_EVICTION` (1.4+).
    pub const EVICTION: u32 = 4;
    /// `OFPTC_VACANCY_EVENTS` (1.4+).
    pub const VACANCY: u32 = 8;

    /// How much of the table is free, percent.
    pub fn free_percent(&self) -> u8 {
        let free = u64::from(self.max_entries.saturating_sub(self.active));
        (free * 100 / u64::from(self.max_entries.max(1))) as u8
    }
}

/// One group's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GroupStats {
    pub id: u32,
    pub ref_count: u32,
    pub packets: u64,
    pub bytes: u64,
    pub duration_ns: u64,
    /// (packets, bytes) per bucket.
    pub buckets: Vec<(u64, u64)>,
}

/// One meter's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MeterStats {
    pub id: u32,
    pub flow_count: u32,
    pub packets: u64,
    pub bytes: u64,
    pub duration_ns: u64,
    pub bands: Vec<(u64, u64)>,
}
