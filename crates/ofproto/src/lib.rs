//! Bridges, flow tables, groups, MAC learning, translation and trace.
//!
//! *Place*: switch row. *Knows*: what OpenFlow's messages and actions mean. *Does not know*: port
//! drivers, sockets, threads, clocks (time is passed in, in nanoseconds).
//!
//! The control side owns a [`Switch`] and is its only writer. PMD threads hold the
//! [`action::Pipeline`] it gives out and read what is published: bridges and ports
//! ([`sync::Published`]), flow tables ([`classifier::Classifier`]), groups, learned addresses.
//!
//! Invariants
//! - A packet sees the flow tables of one version: all of a bundle or nothing of it.
//! - A decision is valid for every packet that equals its packet under its mask, until a region of
//!   [`Switch::take_regions`] overlaps it.
//! - A credit id names the same flow, bucket or miss while any cached decision may use it.
#![forbid(unsafe_code)]

mod action_text;
mod bridge;
mod check;
mod events;
mod fields;
mod groups;
mod growth;
mod in_band;
mod learned;
mod mac_changes;
mod mac_index;
mod mac_table;
mod mcast;
mod meter_table;
mod mirroring;
mod outer_changes;
mod port_changes;
mod published;
mod rewritten;
mod shares;
mod switch;
mod tables;
#[cfg(test)]
mod tests;
mod trace;
mod transaction;
mod translate;
mod tunnel;
mod types;
mod victims;
mod work;

pub use action_text::parse::error::ActionTextError;
pub use action_text::parse::parse_actions;
pub use action_text::subfields::parse_subfield;
pub use action_text::{action_text, actions_text, instructions_text};
pub use events::{Event, StagedPacket};
pub use in_band::{BRIDGE_FLOWS_MAX, InBand, REMOTE_FLOWS_MAX};
pub use mac_table::{MacEntry, MacStats};
pub use mcast::members::{McastEntry, McastPlace};
pub use meter_table::METERS_MAX;
pub use mirroring::{MIRRORS_MAX, MirrorSpec, MirrorTo};
pub use switch::Switch;
pub use switch::flow_mod::all_that_flows_are;
pub use switch::flow_mod::check_table;
pub use switch::flow_search::FLOWS_TURN_MAX;
pub use switch::piece::Piece;
pub use switch::selecting::concerns_many;
pub use switch::stats::{Aggregate, Dump};
pub use tables::instructions::{outputs_to, uses_group};
pub use tables::table::N_TABLES;
pub use trace::{Options, TraceStyle};
pub use transaction::{BundleItem, Change, Items, Outcome};
pub use translate::failure::Failure;
pub use translate::{
    BfdContext, CfmContext, FlowExport, IpfixNote, LacpContext, LldpContext, McastContext,
    PacketInContext, SampleContext, Sampled, SetNote, SflowNote, TreeContext,
};
pub use tunnel::{
    Addresses, ErspanSpec, KernelRoutes, Local, Neighbour, PacketMode, Remote, Route, Routes,
    Solicitation, TunnelSpec, source_for,
};
pub use types::*;
