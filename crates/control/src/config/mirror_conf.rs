//! Table `Mirror` as plain data.

use ovsdb::{Replica, Row, Uuid};

/// One mirror of a bridge, as it is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorConf {
    /// The row of table `Mirror`.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// `select_all`: every port of the bridge, received and sent.
    pub all: bool,
    /// `select_src_port`, names of ports of whatever bridge.
    pub received: Vec<String>,
    /// `select_dst_port`: names of ports.
    pub sent: Vec<String>,
    /// `select_vlan`; empty for all.
    pub vlans: Vec<u16>,
    /// `output_port`: the name of the port.
    pub output_port: Option<String>,
    /// `output_vlan`.
    pub output_vlan: Option<u16>,
    /// `snaplen`, bytes; 0 for whole packets.
    pub snaplen: u16,
}

/// The mirrors of a bridge, by row.
pub(super) fn read(db: &Replica, bridge: &Row) -> Vec<MirrorConf> {
    let mut uuids = bridge.uuids("mirrors");
    uuids.sort();
    let rows = uuids.into_iter().filter_map(|uuid| Some((uuid, db.row("Mirror", uuid)?)));
    rows.map(|(uuid, row)| mirror(db, uuid, row)).collect()
}

fn mirror(db: &Replica, uuid: Uuid, row: &Row) -> MirrorConf {
    let names = |column: &str| {
        let ports = row.uuids(column).into_iter().filter_map(|port| db.row("Port", port));
        ports.map(|port| port.str("name").to_owned()).collect::<Vec<_>>()
    };
    let number = |column| row.opt_int(column).and_then(|n| u16::try_from(n).ok());
    let vlans = row.ints("select_vlan").into_iter().filter_map(|v| u16::try_from(v).ok());
    MirrorConf {
        uuid,
        name: row.str("name").to_owned(),
        all: row.bool("select_all"),
        received: names("select_src_port"),
        sent: names("select_dst_port"),
        vlans: vlans.collect(),
        output_port: names("output_port").pop(),
        output_vlan: number("output_vlan"),
        snaplen: number("snaplen").unwrap_or(0),
    }
}
