//! Messages to bytes and back: [`decode`] for requests, [`encode`] for replies.
//!
//! One file per group of messages; [`kinds`] has the type numbers, [`multipart`] the splitting.

use crate::{PacketInFormat, Version};

mod begun;
mod bundle;
mod config;
mod continuation_codec;
mod ct_flush;
mod decode;
mod encode;
mod experimenter;
mod flow_mod;
mod flow_stats;
mod group;
mod hello;
mod kinds;
mod lengths;
mod meter;
mod monitor;
mod multipart;
mod names;
mod oxs;
mod packet;
mod port;
mod queue;
mod table;
mod table_change;
mod table_features_codec;
mod tlv;

pub use decode::{DecodeError, ERROR_DATA, decode};
pub use encode::{encode, encode_part};
pub use hello::{agree, decode_hello, encode_hello, hello_failed, highest};
pub use kinds::{type_name, version};
pub use names::{has_more, headline};

/// Nicira's experimenter id.
pub(crate) const NX: u32 = 0x0000_2320;
/// The Open Networking Foundation's experimenter id.
pub(crate) const ONF: u32 = 0x4f4e_4600;
/// Netronome's experimenter id (group selection methods).
pub(crate) const NTR: u32 = 0x0000_154d;

/// What the two ends agreed on beyond the message itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The negotiated version.
    pub version: Version,
    /// 1.0 only: flow-removed messages use Nicira's extended match (NXT_SET_FLOW_FORMAT).
    pub nxm: bool,
    /// 1.0 only: the flow-mod's command has the table in its upper byte (NXT_FLOW_MOD_TABLE_ID).
    pub table_id: bool,
    /// The form of packet-in messages.
    pub packet_in: PacketInFormat,
}

impl From<Version> for Dialect {
    fn from(version: Version) -> Self {
        Dialect { version, nxm: false, table_id: false, packet_in: PacketInFormat::Standard }
    }
}

/// Which of several encodings a request came in; the reply goes back in the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// OpenFlow's own message.
    #[default]
    Standard,
    /// A Nicira experimenter message.
    Nicira,
    /// An ONF experimenter message.
    Onf,
    /// OpenFlow 1.5's short flow statistics (multipart type 17).
    FlowStats15,
}

/// Where a reply belongs: the request's transaction id and form. `0.into()` for asynchronous
/// messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyTo {
    /// Transaction id.
    pub xid: u32,
    /// Encoding of the request.
    pub form: Form,
}

impl From<u32> for ReplyTo {
    fn from(xid: u32) -> Self {
        ReplyTo { xid, form: Form::Standard }
    }
}
