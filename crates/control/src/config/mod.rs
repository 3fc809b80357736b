//! The configuration database: what it wants, and what is written back.
//!
//! [`Desired`] is the configuration as plain data, made from the replica by a pure function.
//! [`Status`] is what the daemon reports; only columns that differ from the replica are written.
//! [`OvsdbClient`] carries both over a connection that comes and goes.

mod client;
mod desired;
mod status;
mod target;

pub use client::{Change, OvsdbClient};
pub use desired::{
    BridgeConf, Conflict, ControllerConf, Desired, FailMode, FlowTableConf, IfaceConf, LacpMode,
    PortConf, Remembered, VlanMode,
};
pub use status::{
    BridgeStatus, ControllerStatus, InterfaceStatus, PortStatus, RowUpdate, Status, SwitchStatus,
};
pub use target::{Target, TargetError};

use ovsdb::SessionConfig;

/// The lock that one switch daemon holds on a database.
const LOCK: &str = "ovs_vswitchd";

/// Tables and their columns, separated by blanks: those read for [`Desired`] and those written from
/// [`Status`].
const COLUMNS: &[(&str, &str)] = &[
    (
        "Open_vSwitch",
        "bridges cur_cfg datapath_types datapaths dpdk_initialized dpdk_version \
         iface_types manager_options next_cfg other_config ssl statistics",
    ),
    (
        "Bridge",
        "controller datapath_id datapath_type datapath_version external_ids fail_mode \
         flood_vlans flow_tables mcast_snooping_enable name other_config ports protocols \
         rstp_enable rstp_status status stp_enable",
    ),
    (
        "Port",
        "bond_active_slave bond_downdelay bond_mode bond_updelay cvlans external_ids \
         fake_bridge interfaces lacp mac name other_config protected statistics status \
         tag trunks vlan_mode",
    ),
    (
        "Interface",
        "admin_state duplex error external_ids ifindex ingress_policing_burst \
         ingress_policing_kpkts_burst ingress_policing_kpkts_rate ingress_policing_rate \
         lacp_current link_resets link_speed link_state mac mac_in_use mtu mtu_request \
         name ofport ofport_request options other_config statistics status type",
    ),
    (
        "Controller",
        "connection_mode controller_burst_limit controller_queue_size \
         controller_rate_limit enable_async_messages inactivity_probe is_connected \
         max_backoff other_config role status target type",
    ),
    ("Flow_Table", "flow_limit groups name overflow_policy prefixes"),
    ("Manager", "target"),
    ("Datapath", "capabilities datapath_version"),
    ("SSL", "bootstrap_ca_cert ca_cert certificate private_key"),
];

/// What to monitor, under the lock that one switch daemon holds.
fn session_config() -> SessionConfig {
    let mut config = SessionConfig::new("Open_vSwitch");
    for (table, columns) in COLUMNS {
        config = config.table(table, &columns.split_whitespace().collect::<Vec<_>>());
    }
    config.lock = Some(LOCK.to_owned());
    config
}
