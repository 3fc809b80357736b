//! Flow export: what is known of flows and of sampled packets, as datagrams for collectors.
//!
//! *Place*: protocols row, sans-IO. *Knows*: NetFlow version 5, sFlow version 5, IPFIX. *Does not
//! know*: sockets, clocks (time is passed in, in milliseconds), bridges, how packets are sampled.
//!
//! Invariants
//! - What is kept has a bound; what finds no place is counted.
//! - A walk over what is kept goes in pieces, of a length that the caller says.
#![forbid(unsafe_code)]

mod bytes;
pub mod ipfix;
pub mod netflow;
pub mod sflow;

/// What a flow had since it was last spoken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of whole frames.
    pub bytes: u64,
    /// When the last one came, ms.
    pub used_ms: u64,
}
