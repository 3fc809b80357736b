//! Table `NetFlow` as plain data.

use export::netflow;
use ovsdb::{Replica, Row};

/// NetFlow of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetFlowConf {
    /// `targets`.
    pub targets: Vec<String>,
    /// Everything else.
    pub settings: netflow::Settings,
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
    let settings = netflow::Settings {
        engine_type: number("engine_type"),
        engine_id: number("engine_id"),
        add_id_to_interface: row.bool("add_id_to_interface"),
        active_ms: netflow::Settings::active_ms(row.int("active_timeout")),
    };
    Some(NetFlowConf { targets: targets(row), settings })
}
