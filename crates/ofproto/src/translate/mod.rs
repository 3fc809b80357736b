//! From a packet to a decision: tables, actions, groups, patch ports, one after the other.
//!
//! The state of a translation is explicit ([`xlate::Xlate`]); each kind of step has a file.

mod actions;
mod bond;
mod buckets;
mod budget;
mod choose;
mod commit;
mod ct;
pub(crate) mod effects;
mod encap;
mod export;
pub(crate) mod frozen;
mod learn;
mod length;
mod mirror;
mod multicast;
mod normal;
mod output;
mod own;
pub(crate) mod pipe;
pub(crate) mod plain;
mod recirc;
mod sample;
mod set;
mod special;
mod tunnel;
mod tunnel_options;
pub(crate) mod xlate;

pub use effects::{
    BfdContext, FlowExport, IpfixNote, LacpContext, McastContext, PacketInContext, SampleContext,
    Sampled, SetNote, SflowNote,
};
