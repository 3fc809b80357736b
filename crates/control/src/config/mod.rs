//! The configuration database: what it wants, and what is written back.
//!
//! [`Desired`] is the configuration as plain data, made from the replica by a pure function.
//! [`Status`] is what the daemon reports; only columns that differ from the replica are written.
//! [`OvsdbClient`] carries both over a connection that comes and goes, on a thread of its own
//! ([`Database`]).

mod client;
mod controller_conf;
mod database;
mod desired;
mod dummies;
mod export_conf;
mod form;
mod knobs;
mod mirror_conf;
mod notices;
mod qos;
mod rows;
mod status;
mod target;
mod timeouts;

pub use client::{Change, OvsdbClient};
pub use controller_conf::{ControllerConf, LocalAddress, queue_size};
pub use database::{DATABASE_THREAD, Database, Reports};
pub use desired::{
    BridgeConf, Conflict, Desired, FailMode, FlowTableConf, IfaceConf, LacpMode, PortConf,
    Remembered, VlanMode,
};
pub use export_conf::{IpfixConf, NetFlowConf, SflowConf};
pub use form::{parse_mac, parse_number, parse_sleeps};
pub use knobs::{Knob, Support, TABLES};
pub use mirror_conf::MirrorConf;
pub use notices::Notice;
pub use qos::{KnownQos, LINUX_TYPES, LinuxQos, Numbers, QUEUES_MAX, QosConf};
pub use status::{
    BridgeStatus, ControllerStatus, InterfaceStatus, PortStatus, RowUpdate, Status, SwitchStatus,
};
pub use target::{Target, TargetError};
pub use timeouts::Timeouts;

use ovsdb::SessionConfig;

/// The lock that one switch daemon holds on a database.
const LOCK: &str = "ovs_vswitchd";

/// What to monitor, under the lock that one switch daemon holds.
fn session_config() -> SessionConfig {
    let mut config = SessionConfig::new("Open_vSwitch");
    for (table, all) in knobs::TABLES {
        config = config.table(table, &knobs::columns(all));
        let reported = knobs::reported(all).map(str::to_owned).collect();
        config.quiet.insert((*table).to_owned(), reported);
    }
    config.lock = Some(LOCK.to_owned());
    config
}
