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
    /// Packets are not translated.
    #[default]
    None,
    /// Its source (and with it possibly the source port).
    Source,
    /// Its destination and ports.
    Destination,
}

impl Translation {
    /// What the same connection's translation changes of packets that answer.
    #[must_use]
    pub fn reversed(self) -> Translation {
        match self {
            Translation::None => Translation::None,
            Translation::Source => Translation::Destination,
            Translation::Destination => Translation::Source,
        }
    }
}

/// A connection that is kept, as it is at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conn {
    /// The tuple of the packet that began it.
    pub orig: Tuple,
    /// The tuple of packets that answer: the reverse of the first packet's as translated.
    pub reply: Tuple,
    /// What is translated.
    pub nat: Translation,
    /// How far it got.
    pub peers: Peers,
    /// Mark.
    pub mark: u32,
    /// Label.
    pub label: u128,
    /// The timeout policy that it was committed under; None: the default.
    pub policy: Option<u32>,
    /// Its helper.
    pub alg: Option<action::Alg>,
    /// The connection that announced it, as its store names it.
    pub parent: Option<u64>,
    /// Expiry, in milliseconds of the caller's clock.
    pub expires: u64,
}

/// What a packet carries of connection tracking; the key's fields.
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
    /// The connection's first tuple, or the packet's own while there is none.
    pub tuple: Option<Tuple>,
    /// The connection that the last `ct` found, and how the packet stands to it.
    pub conn: Option<Known<R>>,
}

impl<R> Default for Meta<R> {
    fn default() -> Self {
        Meta { state: 0, zone: 0, mark: 0, label: 0, tuple: None, conn: None }
    }
}

/// A connection that an earlier `ct` found for the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<R> {
    /// The name of the connection.
    pub at: R,
    /// True if the packet has the direction of answers.
    pub reply: bool,
    /// True if the packet is an ICMP error about the connection.
    pub related: bool,
}
