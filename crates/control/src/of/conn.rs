//! One connection's state as the protocol sees it.

use openflow::codec::{self, Dialect, ReplyTo};
use openflow::{AsyncConfig, MonitorRequest, Reason, Reply, Role, SwitchConfig};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::mpsc::UnboundedSender;

use super::bundle::Bundle;

/// Identifies a connection while the daemon lives.
pub type ConnId = u64;

/// Bytes that may wait for a peer that does not read; asynchronous messages beyond are dropped.
const ASYNC_BACKLOG: usize = 1 << 20;

/// Why the connection exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `<bridge>.mgmt`, or a passive controller: gets asynchronous messages only if it asks.
    Service,
    /// A controller of the database we connected to; the row's target.
    Controller(String),
}

/// A connection after its TCP or unix socket is up.
pub struct Conn {
    /// Name of the bridge.
    pub bridge: String,
    /// Why it exists.
    pub kind: Kind,
    /// Agreed version and dialect; None before the hello.
    pub dialect: Option<Dialect>,
    /// Bytes to the writer task.
    pub out: UnboundedSender<Vec<u8>>,
    /// Bytes given to the writer and not yet written.
    pub backlog: Rc<Cell<usize>>,
    /// Role.
    pub role: Role,
    /// Which asynchronous messages it wants.
    pub wants: AsyncConfig,
    /// Its controller id (Nicira).
    pub id: u16,
    /// Miss length and fragment handling as it set them.
    pub config: SwitchConfig,
    /// Flow monitors by id.
    pub monitors: BTreeMap<u32, MonitorRequest>,
    /// Open bundles.
    pub bundles: BTreeMap<u32, Bundle>,
    /// Packet-ins that were not sent because the peer did not read.
    pub dropped: u64,
}

impl Conn {
    /// A fresh connection.
    pub fn new(
        bridge: String,
        kind: Kind,
        out: UnboundedSender<Vec<u8>>,
        backlog: Rc<Cell<usize>>,
    ) -> Self {
        let miss_send_len = if matches!(kind, Kind::Service) { 0 } else { 128 };
        Conn {
            bridge,
            kind,
            dialect: None,
            out,
            backlog,
            role: Role::Equal,
            wants: default_wants(),
            id: 0,
            config: SwitchConfig {
                frag: openflow::FragHandling::Normal,
                miss_send_len,
                invalid_ttl_to_controller: false,
            },
            monitors: BTreeMap::new(),
            bundles: BTreeMap::new(),
            dropped: 0,
        }
    }

    /// Sends a reply to a request (`0` for what nobody asked for).
    pub fn reply(&mut self, to: impl Into<ReplyTo>, reply: &Reply) {
        let Some(dialect) = self.dialect else { return };
        for bytes in codec::encode(dialect, to, reply) {
            self.send(bytes);
        }
    }

    /// Sends an asynchronous message, unless the peer is not reading.
    pub fn notify(&mut self, message: &Reply) {
        if self.backlog.get() > ASYNC_BACKLOG {
            self.dropped += 1;
            return;
        }
        self.reply(0, message);
    }

    /// Hands bytes to the writer.
    pub fn send(&mut self, bytes: Vec<u8>) {
        self.backlog.set(self.backlog.get() + bytes.len());
        let _ = self.out.send(bytes);
    }

    /// Does it take asynchronous messages at all?
    fn listens(&self) -> bool {
        self.dialect.is_some() && !(self.kind == Kind::Service && self.config.miss_send_len == 0)
    }

    fn column(&self) -> usize {
        usize::from(self.role == Role::Secondary)
    }

    /// Wants packet-ins of this reason?
    pub fn wants_packet_in(&self, reason: Reason) -> bool {
        self.listens() && self.wants.packet_in[self.column()] & (1 << reason as u32) != 0
    }

    /// Wants port-status messages of this reason?
    pub fn wants_port_status(&self, reason: u8) -> bool {
        self.listens() && self.wants.port_status[self.column()] & (1 << reason) != 0
    }

    /// Wants flow-removed messages of this reason?
    pub fn wants_flow_removed(&self, reason: openflow::Removed) -> bool {
        self.listens() && self.wants.flow_removed[self.column()] & (1 << reason as u32) != 0
    }
}

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
