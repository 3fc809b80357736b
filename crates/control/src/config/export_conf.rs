//! Tables `NetFlow`, `sFlow` and `IPFIX` as plain data.

use export::{ipfix, netflow, sflow};
use ovsdb::{Replica, Row};
use std::collections::BTreeMap;

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

/// IPFIX of a bridge, or of a collector set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpfixConf {
    /// `targets`.
    pub targets: Vec<String>,
    /// `sampling`: one packet of so many.
    pub sampling: u32,
    /// `obs_domain_id`.
    pub domain: u32,
    /// `obs_point_id`.
    pub point: u32,
    /// Not `other_config:enable-input-sampling=false`, and the same of output.
    pub input: bool,
    /// See `input`.
    pub output: bool,
    /// `other_config:enable-tunnel-sampling`; it is on by default for bridges.
    pub tunnels: bool,
    /// What its cache is like.
    pub settings: ipfix::IpfixSettings,
}

fn ipfix_row(row: &Row, tunnels: bool) -> IpfixConf {
    let number = |column| row.opt_int(column).and_then(|n| u32::try_from(n).ok());
    let other = row.str_map("other_config");
    let flag = |key: &str, default| other.get(key).map_or(default, |v| v == "true");
    IpfixConf {
        targets: targets(row),
        sampling: number("sampling").unwrap_or(sflow::SAMPLING_DEFAULT),
        domain: number("obs_domain_id").unwrap_or(0),
        point: number("obs_point_id").unwrap_or(0),
        input: flag("enable-input-sampling", true),
        output: flag("enable-output-sampling", true),
        tunnels: flag("enable-tunnel-sampling", tunnels),
        settings: ipfix::IpfixSettings {
            active_ms: u64::from(number("cache_active_timeout").unwrap_or(0)) * 1000,
            flows_max: number("cache_max_flows").unwrap_or(0),
            virtual_id: other.get("virtual_obs_id").cloned(),
        },
    }
}

/// `Bridge.ipfix`.
pub(super) fn ipfix(db: &Replica, bridge: &Row) -> Option<IpfixConf> {
    Some(ipfix_row(referred(db, bridge, "ipfix", "IPFIX")?, true))
}

/// The collector sets of a bridge that have collectors, by number.
pub(super) fn sets(db: &Replica, bridge: ovsdb::Uuid) -> BTreeMap<u32, IpfixConf> {
    let of_bridge = |row: &&Row| row.uuids("bridge").contains(&bridge);
    let all = db.rows("Flow_Sample_Collector_Set").map(|(_, row)| row).filter(of_bridge);
    let one = |row: &Row| {
        let id = u32::try_from(row.int("id")).ok()?;
        Some((id, ipfix_row(referred(db, row, "ipfix", "IPFIX")?, false)))
    };
    all.filter_map(one).collect()
}
