//! Flows: changes, selections, statistics, removals, monitors; and the statistics of tables.

use crate::{GROUP_ANY, Instruction, Match, NO_BUFFER, OfPort, TABLE_ALL};

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
    /// True if a modify changes the cookie to `cookie` (in 1.0; not in 1.1 and later).
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

/// Flow formats a 1.0 connection may pick (NXT_SET_FLOW_FORMAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum FlowFormat {
    OpenFlow10,
    Nxm,
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
