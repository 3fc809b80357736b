//! The control side: sockets, reconciliation of desired to actual state, housekeeping, unixctl.
//!
//! Place: the only crate that sees both the switch half (`ofproto`) and the packet half
//! (`datapath`). It never touches a packet on its way.
//!
//! Invariants: one control thread runs a tokio `current_thread` runtime and owns all state here;
//! forking into the background happens in [`daemon`] before any thread exists.

mod address;
pub mod appctl;
mod bonds;
mod bridge_address;
mod budget;
mod closing;
pub mod config;
pub mod controllers;
mod ct_policies;
mod ct_timeouts;
mod ct_walk;
pub mod daemon;
mod device_changer;
mod device_changes;
mod dpdk_log;
mod engines;
mod export;
mod failed_translations;
mod housekeeping;
mod in_band;
mod links;
mod listener;
mod local_address;
mod mempools;
mod mirrors;
mod mtu;
mod oam;
pub mod of;
pub mod offload;
mod polling_log;
pub mod ports;
mod qos;
mod reconcile;
mod report;
mod run;
mod setting_log;
mod settings;
mod standby;
pub mod state;
pub mod tls;
mod trees;
mod tunnel_options;
mod tunnel_ports;
mod tunnels;
mod underlay;
pub mod unixctl;
mod userspace_tso;
mod vhost_async;
pub mod vlog;

pub use run::run;

/// The version of Open vSwitch whose place this daemon takes: tools and controllers compare it.
pub const OVS_VERSION: &str = "3.1.0";
