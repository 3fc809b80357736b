//! What the datapath does to a packet: operations, programs, decisions; and the contract between
//! the packet side and whoever decides ([`Pipeline`]).
//!
//! *Place*: flow row. *Does not know*: OpenFlow (a decision's origin is opaque to the datapath).
//!
//! A [`Program`] is a list of [`Op`]s, executed in order by the generic interpreter (the slow
//! twin); the datapath compiles the common combinations into 64-byte records.

#![forbid(unsafe_code)]

mod ct;
mod decision;
mod meter;
mod op;
mod text;
mod tunnel;

pub use ct::*;
pub use decision::*;
pub use meter::{
    BandConfig, BandKind, Counted, METER_BANDS_MAX, METER_TOUCH_MS, Meter, Verdict, remarked,
};
pub use op::*;
pub use text::{OpsText, ops_text, ops_text_with};
pub use tunnel::{Payload, TunnelKind, TunnelPush, erspan, gre, gtpu, vxlan};
