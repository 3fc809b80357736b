//! A connection, and what a packet learns about it.

use crate::machine::Peers;
use crate::tuple::Tuple;

/// Bits of `ct_state`, as in OpenFlow.
pub mod state {
    #![allow(missing_docs)]
    pub const NEW: u8 = 1;
    pub const EST: u8 = 2;
    pub const REL: u8 = 4;
    pub const RPL: u8 = 8;
    pub const INV: u8 = 0x10;
    pub const TRK: u8 = 0x20;
    pub const SNAT: u8 = 0x40;
    pub const DNAT: u8 = 0x80;
}

/// What a translation changes of the first packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Translation {
    /// The connection has no translation.
    #[default]
    None,
    /// The source address of the first packet is translated, possibly with its port.
    Source,
    /// The destination address of the first packet is translated, possibly with both ports.
    Destination,
}

impl Translation {
    /// What the connection's translation changes of packets in the reply direction.
    #[must_use]
    pub fn reversed(self) -> Translation {
        match self {
            Translation::None => Translation::None,
            Translation::Source => Translation::Destination,
            Translation::Destination => Translation::Source,
        }
    }
}

/// A copy of a stored connection, as it is at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conn {
    /// Tuple of the original direction: that of the first packet, before translation.
    pub orig: Tuple,
    /// Tuple of the reply direction: the reverse of the first packet's tuple after translation.
    pub reply: Tuple,
    /// The connection's translation.
    pub nat: Translation,
    /// State of the connection's two ends.
    pub peers: Peers,
    /// The connection's mark (`ct_mark`).
    pub mark: u32,
    /// The connection's label (`ct_label`).
    pub label: u128,
    /// Timeout policy of the `ct` that committed the connection; None: the default.
    pub policy: Option<u32>,
    /// The connection's helper (OVS: ALG).
    pub alg: Option<action::Alg>,
    /// Name of the connection that announced this one ([`crate::Store::name`]).
    pub parent: Option<u64>,
    /// Expiry, in milliseconds of the caller's clock.
    pub expires: u64,
}

/// What connection tracking says of a packet; its key has these as `ct` fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<R> {
    /// Bits of [`state`]; 0: not tracked, and the rest means nothing.
    pub state: u8,
    /// Zone of the last `ct`.
    pub zone: u16,
    /// The connection's mark.
    pub mark: u32,
    /// The connection's label.
    pub label: u128,
    /// The connection's tuple of the original direction; without a connection the packet's own.
    pub tuple: Option<Tuple>,
    /// The connection that the last `ct` found, and the packet's relation to it.
    pub conn: Option<PacketConn<R>>,
}

impl<R> Default for Meta<R> {
    fn default() -> Self {
        Meta { state: 0, zone: 0, mark: 0, label: 0, tuple: None, conn: None }
    }
}

/// A connection that an earlier `ct` found for the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketConn<R> {
    /// The connection.
    pub conn_ref: R,
    /// True if the packet has the reply direction.
    pub reply: bool,
    /// True if the packet is an ICMP error about the connection.
    pub related: bool,
}
