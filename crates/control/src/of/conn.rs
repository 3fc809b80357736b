//! One connection's state as the protocol sees it.

use openflow::codec::{self, Dialect, ReplyTo};
use openflow::{
    AsyncConfig, MonitorRequest, MultipartReply, Reason, Reply, Role, SwitchConfig, Version,
};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tokio::sync::mpsc::UnboundedSender;

use super::account;
use super::encoded::Encoded;
use super::flow_mod_log;
use super::io::Backlog;
use super::message_text;
use super::open_bundles::OpenBundles;
use super::snoops::Snoops;
use super::table_features;
use crate::vlog;

/// Identifies a connection while the daemon lives.
pub type ConnId = u64;

/// Bytes that may wait for a peer that does not read; packet-ins beyond are dropped. Other messages
/// that the peer did not ask for cannot be left out without the peer's picture of the switch
/// becoming wrong: beyond [`account::CONNECTION_BYTES_MAX`] the peer goes.
const ASYNC_BACKLOG_BYTES_MAX: usize = 1 << 20;

/// `OFP_DEFAULT_MISS_SEND_LEN`.
const MISS_SEND_LEN: u16 = 128;

/// Why the connection exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `<bridge>.mgmt`: gets asynchronous messages only if it asks.
    Service,
    /// A controller of the database: the row's target, whether we connect to it, and whether the
    /// row says that it is a primary one, which gets asynchronous messages unasked
    /// (`Controller.type`).
    Row {
        /// `Controller.target`.
        target: String,
        /// We connect to it (`tcp:`, `unix:`), rather than it to us (`ptcp:`, `punix:`).
        active: bool,
        /// True for a controller proper, false for a service (`Controller.type`).
        primary: bool,
    },
}

impl Kind {
    /// The target of the database row that the connection belongs to.
    pub fn target(&self) -> Option<&str> {
        match self {
            Kind::Service => None,
            Kind::Row { target, .. } => Some(target),
        }
    }

    /// True if the connection is one with a controller, and not a service connection.
    pub fn is_controller(&self) -> bool {
        matches!(self, Kind::Row { primary: true, .. })
    }
}

/// Packet-ins that wait for the writer.
#[derive(Default)]
struct PacketIns {
    /// Bytes of all kinds that the writer was given so far.
    given: u64,
    /// For each, how much of that was there when it was.
    ends: VecDeque<u64>,
}

impl PacketIns {
    /// Notes that the last bytes that were given are of a packet-in.
    fn push(&mut self) {
        self.ends.push_back(self.given);
    }

    /// How many wait, if this many bytes do.
    fn waiting(&mut self, backlog: usize) -> usize {
        let written = self.given.saturating_sub(backlog as u64);
        while self.ends.pop_front_if(|end| *end <= written).is_some() {}
        self.ends.len()
    }
}

/// A connection after its TCP or unix socket is up.
pub struct Conn {
    /// Name of the bridge.
    pub bridge: String,
    /// Why it exists.
    pub kind: Kind,
    /// What module `vconn` calls it in the log, as far as it is known.
    pub vconn: String,
    /// Agreed version and dialect; None before the hello.
    pub dialect: Option<Dialect>,
    /// Bytes to the writer task.
    pub out: UnboundedSender<Vec<u8>>,
    /// What was given to the writer and is not written yet.
    pub backlog: Rc<Backlog>,
    packet_ins: PacketIns,
    /// Role.
    pub role: Role,
    /// The asynchronous messages that the peer wants.
    pub wants: AsyncConfig,
    /// Its controller id (Nicira).
    pub id: u16,
    /// Miss length and fragment handling as it set them.
    pub config: SwitchConfig,
    /// Flow monitors by id.
    pub monitors: BTreeMap<u32, MonitorRequest>,
    /// Open bundles.
    pub bundles: OpenBundles,
    /// Bytes that a reply in parts keeps of what it has not said yet.
    pub dump_bytes: usize,
    /// A table features request that has not come whole yet.
    pub table_features: Option<table_features::Pending>,
    /// What went wrong on it.
    pub counts: account::Counts,
    /// Its flow-mods, for the log.
    pub flow_mods: flow_mod_log::FlowMods,
    /// Readers of the bridge's `.snoop` socket, which get copies of a controller's messages.
    pub snoops: Snoops,
    /// Dropped with the connection, which ends the task that serves it.
    pub open: tokio::sync::oneshot::Sender<()>,
}

impl Conn {
    /// A fresh connection.
    pub fn new(
        bridge: String,
        kind: Kind,
        out: UnboundedSender<Vec<u8>>,
        backlog: Rc<Backlog>,
        open: tokio::sync::oneshot::Sender<()>,
    ) -> Self {
        let miss_send_len = if kind.is_controller() { MISS_SEND_LEN } else { 0 };
        Conn {
            bridge,
            kind,
            vconn: String::new(),
            dialect: None,
            out,
            backlog,
            packet_ins: PacketIns::default(),
            role: Role::Equal,
            wants: default_wants(),
            id: 0,
            config: SwitchConfig {
                frag: openflow::FragHandling::Normal,
                miss_send_len,
                invalid_ttl_to_controller: false,
            },
            monitors: BTreeMap::new(),
            bundles: OpenBundles::default(),
            dump_bytes: 0,
            table_features: None,
            counts: Default::default(),
            flow_mods: Default::default(),
            snoops: Snoops::default(),
            open,
        }
    }

    /// Its name in the log.
    pub fn name(&self, id: ConnId) -> String {
        format!("{}<->{}", self.bridge, self.vconn_name(id))
    }

    /// Its name in the log of its messages, as ovs-vswitchd makes it: `unix#5`,
    /// `tcp:10.0.0.1:6653`.
    pub fn vconn_name(&self, id: ConnId) -> String {
        match &self.kind {
            Kind::Service => format!("unix#{id}"),
            Kind::Row { target, active: true, .. } => target.clone(),
            Kind::Row { target, .. } => {
                format!("{}#{id}", target.strip_prefix('p').unwrap_or(target))
            }
        }
    }

    /// Sends a reply to a request; `0` for asynchronous messages.
    pub fn reply(&mut self, to: impl Into<ReplyTo>, reply: &Reply) {
        let Some(dialect) = self.dialect else { return };
        self.send_all(codec::encode(dialect, to, reply), || {
            message_text::reply(reply, dialect.version)
        });
    }

    /// Sends messages; `text` makes what the first says, for the log.
    pub fn send_all(&mut self, messages: Vec<Vec<u8>>, text: impl Fn() -> String) {
        for (i, bytes) in messages.into_iter().enumerate() {
            self.send_as(bytes, || if i == 0 { text() } else { String::new() });
        }
    }

    /// Sends a piece of a multipart reply; `more`: others follow.
    pub fn reply_part(&mut self, to: ReplyTo, part: &MultipartReply, more: bool) {
        let Some(dialect) = self.dialect else { return };
        let (messages, left_out) = codec::encode_part(dialect, to, part, more);
        self.send_all(messages, || message_text::part(part, dialect.version));
        if left_out > 0 {
            // In ovs-vswitchd's words: only flows have so many actions.
            vlog::warn!(
                "ofp_flow",
                "Flow exceeded the maximum flow statistics reply size and was excluded from the \
                 response set"
            );
        }
    }

    /// Bytes that are kept for it.
    pub fn held(&self) -> usize {
        let monitors = self.monitors.len() * size_of::<MonitorRequest>();
        let tables = self.table_features.as_ref().map_or(0, table_features::Pending::held);
        let kept = self.bundles.held() + monitors + tables + self.dump_bytes;
        account::CONNECTION_BYTES_MIN + self.backlog.bytes() + kept
    }

    /// Sends an asynchronous message.
    pub fn notify(&mut self, message: &Reply) {
        self.reply(0, message);
    }

    /// Sends an asynchronous message that other connections get, too.
    pub fn notify_with(&mut self, message: &mut Encoded<'_>) {
        let Some(dialect) = self.dialect else { return };
        let messages = message.of(dialect).to_vec();
        self.send_all(messages, || message_text::reply(message.message(), dialect.version));
    }

    /// Sends a packet-in. False: it is dropped, as the peer does not read and has this many to
    /// read already, or more bytes than may wait.
    pub fn send_packet_in(&mut self, message: &Reply, waiting_max: u32) -> bool {
        let waiting = self.packet_ins.waiting(self.backlog.bytes());
        let is_full = self.backlog.is_stalled() && waiting >= waiting_max as usize;
        if is_full || self.backlog.bytes() > ASYNC_BACKLOG_BYTES_MAX {
            self.counts.packet_ins_dropped += 1;
            return false;
        }
        self.reply(0, message);
        self.packet_ins.push();
        true
    }

    /// Hands bytes to the writer.
    pub fn send(&mut self, bytes: Vec<u8>) {
        self.send_as(bytes, String::new);
    }

    /// As [`Conn::send`]; `text` makes what the message says, for the log.
    fn send_as(&mut self, bytes: Vec<u8>, text: impl Fn() -> String) {
        if message_text::is_logged() {
            message_text::log_sent(&self.vconn, &bytes, text);
        }
        if self.kind.is_controller() {
            self.snoops.copy(&self.bridge, &bytes);
        }
        let n = bytes.len();
        if self.out.send(bytes).is_ok() {
            self.backlog.add(n);
            self.packet_ins.given += n as u64;
        }
    }

    /// True if the connection takes asynchronous messages at all.
    fn listens(&self) -> bool {
        self.dialect.is_some() && (self.kind.is_controller() || self.config.miss_send_len != 0)
    }

    /// The version agreed on.
    pub fn version(&self) -> Option<Version> {
        self.dialect.map(|d| d.version)
    }

    /// True if the connection expects packet-ins for packets that no flow matches, as versions
    /// before 1.3 do.
    pub fn wants_misses(&self) -> bool {
        self.id == 0
            && self.version().is_some_and(|v| v < Version::V13)
            && self.wants_packet_in(Reason::TableMiss)
    }

    /// Takes over the connection's switch configuration (OFPT_SET_CONFIG).
    pub fn configure(&mut self, config: SwitchConfig) {
        self.config = config;
        if self.version().is_some_and(|v| v < Version::V13) {
            let bit = 1 << Reason::InvalidTtl as u32;
            match config.invalid_ttl_to_controller {
                true => self.wants.packet_in[0] |= bit,
                false => self.wants.packet_in[0] &= !bit,
            }
        }
    }

    /// Sets which asynchronous messages it wants: those of the properties that were given. Who sets
    /// that wants some.
    pub fn configure_async(&mut self, wants: &AsyncConfig, given: u16) {
        let mut theirs = *wants;
        let theirs = lists(&mut theirs);
        let mine = lists(&mut self.wants);
        for (i, (mine, theirs)) in mine.into_iter().zip(theirs).enumerate() {
            // Even properties are for the secondary role.
            for (column, property) in [(0, 2 * i + 1), (1, 2 * i)] {
                if given & 1 << property != 0 {
                    mine[column] = theirs[column];
                }
            }
        }
        if self.config.miss_send_len == 0 {
            self.config.miss_send_len = MISS_SEND_LEN;
        }
    }

    fn column(&self) -> usize {
        usize::from(self.role == Role::Secondary)
    }

    /// True if the connection wants packet-ins of this reason.
    pub fn wants_packet_in(&self, reason: Reason) -> bool {
        self.listens() && self.wants.packet_in[self.column()] & (1 << reason as u32) != 0
    }

    /// True if the connection wants port-status messages of this reason.
    pub fn wants_port_status(&self, reason: u8) -> bool {
        self.listens() && self.wants.port_status[self.column()] & (1 << reason) != 0
    }

    /// True if it wants other controllers' group-mods forwarded (`OFPRFR_GROUP_MOD`).
    pub fn wants_group_mods(&self) -> bool {
        self.listens() && self.wants.requestforward[self.column()] & 1 != 0
    }

    /// True if it wants table-status messages when a table's vacancy fell (or, `more`, rose).
    pub fn wants_vacancy(&self, more: bool) -> bool {
        let reason = if more { 4 } else { 3 };
        self.listens()
            && self.version() >= Some(Version::V14)
            && self.wants.table_status[self.column()] & (1 << reason) != 0
    }

    /// What a change of a flow costs this connection, in comparisons with a monitor: one for each
    /// monitor, and two for a message that the flow is gone.
    pub fn watches(&self) -> usize {
        let notified = self.listens() && self.wants.flow_removed[self.column()] != 0;
        self.monitors.len() + 2 * usize::from(notified)
    }

    /// True if the connection wants flow-removed messages of this reason.
    pub fn wants_flow_removed(&self, reason: openflow::Removed) -> bool {
        self.listens() && self.wants.flow_removed[self.column()] & (1 << reason as u32) != 0
    }
}

/// The masks in the order of 1.4's properties.
fn lists(c: &mut AsyncConfig) -> [&mut [u32; 2]; 6] {
    [
        &mut c.packet_in,
        &mut c.port_status,
        &mut c.flow_removed,
        &mut c.role_status,
        &mut c.table_status,
        &mut c.requestforward,
    ]
}

/// A connection that wants no asynchronous messages (`Controller.enable_async_messages` is false).
pub const NO_WANTS: AsyncConfig = AsyncConfig {
    packet_in: [0; 2],
    port_status: [0; 2],
    flow_removed: [0; 2],
    role_status: [0; 2],
    table_status: [0; 2],
    requestforward: [0; 2],
};

/// The specification's defaults: a secondary gets port status only.
fn default_wants() -> AsyncConfig {
    let packet_in = 1 << Reason::TableMiss as u32
        | 1 << Reason::Action as u32
        | 1 << Reason::ActionSet as u32
        | 1 << Reason::Group as u32
        | 1 << Reason::PacketOut as u32;
    AsyncConfig {
        packet_in: [packet_in, 0],
        port_status: [0b111, 0b111],
        flow_removed: [0b11_1111, 0],
        role_status: [0, 0],
        table_status: [0, 0],
        requestforward: [0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of::change::slice_flows;
    use openflow::codec::Dialect;

    /// A controller's connection, and what it is sent.
    fn connected(version: Version) -> (Conn, tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>) {
        let kind = Kind::Row { target: "ptcp:".into(), active: false, primary: true };
        let (out, sent) = tokio::sync::mpsc::unbounded_channel();
        let (open, _) = tokio::sync::oneshot::channel();
        let mut conn = Conn::new("br0".into(), kind, out, Rc::default(), open);
        conn.dialect = Some(Dialect::from(version));
        (conn, sent)
    }

    #[test]
    fn a_message_for_many_connections_is_encoded_once_for_each_version() {
        let group = openflow::GroupMod {
            command: openflow::GroupCommand::Add,
            kind: openflow::GroupType::All,
            id: 1,
            buckets: Vec::new(),
            selection_method: String::new(),
            selection_param: 0,
            selection_fields: Vec::new(),
        };
        let reply = Reply::RequestForward { xid: 7, group };
        let mut message = Encoded::new(&reply);
        for version in [Version::V14, Version::V15, Version::V14].repeat(100) {
            let (mut conn, mut sent) = connected(version);
            conn.notify_with(&mut message);
            let alone = codec::encode(version, 0, &reply);
            assert_eq!(Some(sent.try_recv().unwrap()), alone.into_iter().next());
        }
        assert_eq!(message.encodings(), 2);
    }

    #[test]
    fn a_slice_of_flows_that_go_causes_few_messages_however_many_connections_want_them() {
        let conn = || connected(Version::V13).0;
        for connections in [1, 3, 100, 512] {
            let all: Vec<Conn> = (0..connections).map(|_| conn()).collect();
            let flows = slice_flows(all.iter().map(Conn::watches).sum());
            assert!(flows > 0 && flows * connections <= 8192, "{connections}: {flows} flows");
        }
        let secondary = Conn { role: Role::Secondary, ..conn() };
        assert_eq!(secondary.watches(), 0, "it is not notified");
    }
}
