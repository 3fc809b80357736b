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

mod action_text;
mod bridge;
mod change;
mod check;
mod conjunction;
mod counters;
mod events;
mod evict;
mod expire;
mod fields;
mod flow_mod;
mod group;
mod learn;
mod liveness;
mod mac_index;
mod mac_regions;
mod mac_table;
mod meter;
mod mirror;
mod packet_out;
mod stats;
mod switch;
mod table;
mod tlv;
mod trace;
mod translate;
mod tunnel;
mod types;
mod underlay;
mod view;
mod work;

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod learn_tests;
#[cfg(test)]
mod mirror_tests;
#[cfg(test)]
mod slices;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tlv_laws;

pub use action_text::{action_text, actions_text, instructions_text, parse_subfield};
pub use change::{BundleItem, Change, Items, Outcome};
pub use events::Event;
pub use flow_mod::{check_table, outputs_to, uses_group};
pub use mac_table::{MacEntry, MacStats};
pub use meter::METERS_MAX;
pub use mirror::{MIRRORS_MAX, MirrorSpec, MirrorTo};
pub use packet_out::StagedPacket;
pub use stats::Dump;
pub use switch::Switch;
pub use table::N_TABLES;
pub use trace::{Options, punt_text};
pub use translate::PacketInContext;
pub use tunnel::{
    Addresses, Local, Neighbour, Remote, Route, Routes, Solicitation, TunnelSpec, source_for,
};
pub use types::*;
