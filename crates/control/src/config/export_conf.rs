//! Tables `NetFlow` and `sFlow` as plain data.

use export::{netflow, sflow};
use ovsdb::{Replica, Row};

/// NetFlow of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetFlowConf {
    /// `targets`.
    pub targets: Vec<String>,
    /// Everything else.
    pub settings: netflow::NetFlowSettings,
}

/// The row that a column of a bridge refers to.
fn referred<'a>(db: &'a Replica, bridge: &Row, column: &str, table: &str) -> Option<&'a Row> {
    bridge.uuids(column).into_iter().find_map(|uuid| db.row(table, uuid))
}

fn targets(row: &Row) -> Vec<String> {
    let mut targets = row.strs("targets");
    targets.sort();
    targets
}

/// `Bridge.netflow`.
pub(super) fn netflow(db: &Replica, bridge: &Row) -> Option<NetFlowConf> {
    let row = referred(db, bridge, "netflow", "NetFlow")?;
    let number = |column| row.opt_int(column).unwrap_or(0) as u8;
    let settings = netflow::NetFlowSettings {
        engine_type: number("engine_type"),
        engine_id: number("engine_id"),
        add_id_to_interface: row.bool("add_id_to_interface"),
        active_ms: netflow::NetFlowSettings::active_ms(row.int("active_timeout")),
    };
    Some(NetFlowConf { targets: targets(row), settings })
}

/// sFlow of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SflowConf {
    /// `targets`.
    pub targets: Vec<String>,
    /// `agent`: a device or an address.
    pub agent: Option<String>,
    /// `sampling`: one packet of so many; 0: none.
    pub sampling: u32,
    /// `polling`, seconds.
    pub polling_s: u32,
    /// `header`, bytes.
    pub header_bytes: u16,
}

/// `Bridge.sflow`.
pub(super) fn sflow(db: &Replica, bridge: &Row) -> Option<SflowConf> {
    let row = referred(db, bridge, "sflow", "sFlow")?;
    let number = |column| row.opt_int(column).and_then(|n| u32::try_from(n).ok());
    let header = number("header").and_then(|n| u16::try_from(n).ok());
    Some(SflowConf {
        targets: targets(row),
        agent: row.opt_str("agent").map(str::to_owned),
        sampling: number("sampling").unwrap_or(sflow::SAMPLING_DEFAULT),
        polling_s: number("polling").unwrap_or(sflow::POLLING_DEFAULT_S),
        header_bytes: header.unwrap_or(sflow::HEADER_DEFAULT_BYTES),
    })
}
