//! What the daemon reports to the database, and the difference to what is there.

use ovsdb::{Datum, Replica, Transaction, Uuid};
use std::collections::BTreeMap;

/// A map from text to text, such as `Interface.status`.
type StrMap = BTreeMap<String, String>;
/// Counters by name.
type Counters = BTreeMap<String, i64>;

/// Everything reported, by row. Rows that are not here stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The row of table `Open_vSwitch`.
    pub switch: SwitchStatus,
    /// Rows of table `Bridge`.
    pub bridges: BTreeMap<Uuid, BridgeStatus>,
    /// Rows of table `Port`.
    pub ports: BTreeMap<Uuid, PortStatus>,
    /// Rows of table `Interface`.
    pub interfaces: BTreeMap<Uuid, InterfaceStatus>,
    /// `Mirror.statistics` by row.
    pub mirrors: BTreeMap<Uuid, Counters>,
    /// Rows of table `Controller`.
    pub controllers: BTreeMap<Uuid, ControllerStatus>,
    /// `Datapath.capabilities` by row.
    pub datapaths: BTreeMap<Uuid, StrMap>,
}

/// Columns of table `Open_vSwitch`. A field that is `None` is not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchStatus {
    /// The configuration that is in effect: a `next_cfg` that has been applied. Written with or
    /// after all else, so that a client that waits for it sees the outcome.
    pub cur_cfg: Option<i64>,
    /// Whether DPDK is up.
    pub dpdk_initialized: Option<bool>,
    /// DPDK's version, `none` without it.
    pub dpdk_version: Option<String>,
    /// Types of interfaces that may be had.
    pub iface_types: Option<Vec<String>>,
    /// Types of datapaths that may be had.
    pub datapath_types: Option<Vec<String>>,
    /// System statistics.
    pub statistics: Option<StrMap>,
}

/// Columns of one row of table `Bridge`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeStatus {
    /// `datapath_id`, written as 16 hexadecimal digits.
    pub datapath_id: Option<u64>,
    /// `datapath_version`, `<built-in>` for a userspace datapath.
    pub datapath_version: String,
    /// `status`.
    pub status: StrMap,
    /// `rstp_status`.
    pub rstp_status: StrMap,
}

/// Columns of one row of table `Port`. A field that is `None` is not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStatus {
    /// `status`.
    pub status: Option<StrMap>,
    /// `statistics`.
    pub statistics: Option<Counters>,
    /// `rstp_status`.
    pub rstp_status: Option<StrMap>,
    /// `rstp_statistics`.
    pub rstp_statistics: Option<Counters>,
    /// `bond_active_slave`.
    pub bond_active: Option<String>,
    /// `trunks`, and `vlan_mode` unless that stays, where Auto Attach changes them.
    pub trunks: Option<(Vec<u16>, Option<&'static str>)>,
}

/// Columns of one row of table `Interface`. `None` empties a column, but for `statistics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStatus {
    /// OpenFlow port number, 65534 for LOCAL, -1 where the interface could not be had.
    pub ofport: Option<i64>,
    /// Why it could not be had.
    pub error: Option<String>,
    /// The address in use.
    pub mac_in_use: Option<[u8; 6]>,
    /// Bytes.
    pub mtu: Option<i64>,
    /// The kernel's index, 0 for a device that is not the kernel's.
    pub ifindex: Option<i64>,
    /// Up or down by configuration.
    pub admin_up: Option<bool>,
    /// Up or down in fact.
    pub link_up: Option<bool>,
    /// Bits per second.
    pub link_speed: Option<i64>,
    /// Full or half duplex.
    pub full_duplex: Option<bool>,
    /// Changes of the link.
    pub link_resets: Option<i64>,
    /// Whether LACP considers the link usable.
    pub lacp_current: Option<bool>,
    /// `bfd_status`; empty without a session.
    pub bfd: StrMap,
    /// The columns of CFM, empty ones without it.
    pub cfm: Columns,
    /// `status`, such as the driver's name.
    pub status: StrMap,
    /// Counters; `None` leaves those of the last time.
    pub statistics: Option<Counters>,
}

impl InterfaceStatus {
    /// The status of an interface that could not be had; an empty error is none.
    pub fn failed(error: impl Into<String>) -> Self {
        let error = Some(error.into()).filter(|e| !e.is_empty());
        Self { ofport: Some(-1), error, ..Self::default() }
    }
}

/// Columns of one row of table `Controller`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus {
    /// `is_connected`.
    pub is_connected: bool,
    /// `other`, `master` or `slave`; none while not connected.
    pub role: Option<String>,
    /// `state`, `sec_since_connect`, `sec_since_disconnect`, `last_error`.
    pub status: StrMap,
}

/// Columns by name.
pub type Columns = Vec<(&'static str, Datum)>;

fn opt<T>(columns: &mut Columns, name: &'static str, value: Option<T>, datum: impl Fn(T) -> Datum) {
    columns.extend(value.map(|value| (name, datum(value))));
}

fn choice(value: Option<bool>, yes: &str, no: &str) -> Datum {
    Datum::optional(value.map(|v| if v { yes } else { no }))
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl SwitchStatus {
    fn columns(&self) -> Columns {
        let mut columns = Columns::new();
        opt(&mut columns, "dpdk_initialized", self.dpdk_initialized, Datum::scalar);
        opt(&mut columns, "dpdk_version", self.dpdk_version.as_deref(), Datum::scalar);
        opt(&mut columns, "iface_types", self.iface_types.clone(), Datum::set);
        opt(&mut columns, "datapath_types", self.datapath_types.clone(), Datum::set);
        opt(&mut columns, "statistics", self.statistics.clone(), Datum::map);
        opt(&mut columns, "cur_cfg", self.cur_cfg, Datum::scalar);
        columns
    }
}

impl BridgeStatus {
    fn columns(&self) -> Columns {
        let id = self.datapath_id.map(|id| format!("{id:016x}"));
        vec![
            ("datapath_id", Datum::optional(id)),
            ("datapath_version", Datum::scalar(self.datapath_version.as_str())),
            ("status", Datum::map(self.status.clone())),
            ("rstp_status", Datum::map(self.rstp_status.clone())),
        ]
    }
}

impl PortStatus {
    fn columns(&self) -> Columns {
        let mut columns = Columns::new();
        opt(&mut columns, "status", self.status.clone(), Datum::map);
        opt(&mut columns, "statistics", self.statistics.clone(), Datum::map);
        opt(&mut columns, "rstp_status", self.rstp_status.clone(), Datum::map);
        opt(&mut columns, "rstp_statistics", self.rstp_statistics.clone(), Datum::map);
        let active = self.bond_active.clone().map(Some);
        opt(&mut columns, "bond_active_slave", active, Datum::optional);
        if let Some((trunks, mode)) = &self.trunks {
            columns.push(("trunks", Datum::set(trunks.iter().map(|vlan| i64::from(*vlan)))));
            opt(&mut columns, "vlan_mode", *mode, |mode| Datum::optional(Some(mode)));
        }
        columns
    }
}

impl InterfaceStatus {
    fn columns(&self) -> Columns {
        let mut columns = vec![
            ("ofport", Datum::optional(self.ofport)),
            ("error", Datum::optional(self.error.as_deref())),
            ("mac_in_use", Datum::optional(self.mac_in_use.map(mac_text))),
            ("mtu", Datum::optional(self.mtu)),
            ("ifindex", Datum::optional(self.ifindex)),
            ("admin_state", choice(self.admin_up, "up", "down")),
            ("link_state", choice(self.link_up, "up", "down")),
            ("link_speed", Datum::optional(self.link_speed)),
            ("duplex", choice(self.full_duplex, "full", "half")),
            ("link_resets", Datum::optional(self.link_resets)),
            ("lacp_current", Datum::optional(self.lacp_current)),
            ("bfd_status", Datum::map(self.bfd.clone())),
            ("status", Datum::map(self.status.clone())),
        ];
        columns.extend(self.cfm.iter().cloned());
        opt(&mut columns, "statistics", self.statistics.clone(), Datum::map);
        columns
    }
}

impl ControllerStatus {
    fn columns(&self) -> Columns {
        vec![
            ("is_connected", Datum::scalar(self.is_connected)),
            ("role", Datum::optional(self.role.as_deref())),
            ("status", Datum::map(self.status.clone())),
        ]
    }
}

/// Columns of one row that are to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowUpdate {
    /// The table.
    pub table: &'static str,
    /// The row.
    pub uuid: Uuid,
    /// The new values by column.
    pub columns: Vec<(String, Datum)>,
}

impl RowUpdate {
    /// Adds the change to a transaction.
    pub fn add_to(self, transaction: &mut Transaction) {
        transaction.update(self.table, self.uuid, self.columns);
    }
}

impl Status {
    /// The columns that differ from the replica. Rows and columns that do not exist are left out;
    /// the row of `Open_vSwitch` with `cur_cfg` comes last.
    pub fn diff(&self, db: &Replica) -> Vec<RowUpdate> {
        let mut updates = Vec::new();
        let mut add = |table, uuid, columns| updates.extend(row_diff(db, table, uuid, columns));
        self.bridges.iter().for_each(|(&uuid, s)| add("Bridge", uuid, s.columns()));
        self.ports.iter().for_each(|(&uuid, s)| add("Port", uuid, s.columns()));
        self.interfaces.iter().for_each(|(&uuid, s)| add("Interface", uuid, s.columns()));
        self.controllers.iter().for_each(|(&uuid, s)| add("Controller", uuid, s.columns()));
        for (&uuid, statistics) in &self.mirrors {
            add("Mirror", uuid, vec![("statistics", Datum::map(statistics.clone()))]);
        }
        for (&uuid, capabilities) in &self.datapaths {
            add("Datapath", uuid, vec![("capabilities", Datum::map(capabilities.clone()))]);
        }
        if let Some((uuid, _)) = db.singleton("Open_vSwitch") {
            add("Open_vSwitch", uuid, self.switch.columns());
        }
        updates
    }
}

impl Status {
    /// Adds newer rows. Statistics stay where there are no newer ones.
    pub fn add(&mut self, newer: Status) {
        let Status { switch, bridges, ports, interfaces, mirrors, controllers, datapaths } = newer;
        let statistics = self.switch.statistics.take();
        self.switch = SwitchStatus { statistics: switch.statistics.or(statistics), ..switch };
        self.bridges.extend(bridges);
        for (uuid, row) in ports {
            let old = self.ports.remove(&uuid).and_then(|old| old.trunks);
            let trunks = row.trunks.clone().or(old);
            self.ports.insert(uuid, PortStatus { trunks, ..row });
        }
        for (uuid, row) in interfaces {
            let old = self.interfaces.remove(&uuid).and_then(|old| old.statistics);
            let statistics = row.statistics.or(old);
            self.interfaces.insert(uuid, InterfaceStatus { statistics, ..row });
        }
        self.mirrors.extend(mirrors);
        self.controllers.extend(controllers);
        self.datapaths.extend(datapaths);
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        *self == Status::default()
    }

    /// Takes the rows of at most so many interfaces, and of as many ports; with the last of them
    /// the switch's row, which says what was applied. None: there are no rows.
    pub fn take_part(&mut self, most: usize) -> Option<Status> {
        if self.is_empty() {
            return None;
        }
        let (ports, more_ports) = first(&mut self.ports, most);
        let (interfaces, more_interfaces) = first(&mut self.interfaces, most);
        if !more_ports && !more_interfaces {
            return Some(Status { ports, interfaces, ..std::mem::take(self) });
        }
        Some(Status { ports, interfaces, ..Status::default() })
    }
}

/// Takes the first rows; true: there are more.
fn first<T>(rows: &mut BTreeMap<Uuid, T>, most: usize) -> (BTreeMap<Uuid, T>, bool) {
    match rows.keys().nth(most).copied() {
        Some(next) => {
            let rest = rows.split_off(&next);
            (std::mem::replace(rows, rest), true)
        }
        None => (std::mem::take(rows), false),
    }
}

fn row_diff(db: &Replica, table: &'static str, uuid: Uuid, wanted: Columns) -> Option<RowUpdate> {
    let row = db.row(table, uuid)?;
    let differs = |(name, value): &(&str, Datum)| row.get(name).is_some_and(|old| old != value);
    let columns: Vec<_> =
        wanted.into_iter().filter(differs).map(|(name, value)| (name.to_owned(), value)).collect();
    (!columns.is_empty()).then_some(RowUpdate { table, uuid, columns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovsdb::{Row, Schema};

    #[test]
    fn very_many_rows_are_taken_in_parts_and_what_was_applied_last() {
        let row = |n| InterfaceStatus { statistics: n, ..InterfaceStatus::default() };
        let counters = || Some(Counters::from([("rx_packets".into(), 1)]));
        let mut all = Status::default();
        let mut reported = Status::default();
        reported.interfaces.extend((0..2500).map(|i| (Uuid(i), row(counters()))));
        reported.ports.extend((0..10).map(|i| (Uuid(i), PortStatus::default())));
        reported.switch.cur_cfg = Some(7);
        all.add(reported.clone());
        let first = all.take_part(1000).expect("a part");
        assert_eq!((first.interfaces.len(), first.ports.len()), (1000, 10));
        assert_eq!(first.switch, SwitchStatus::default());
        // A newer report, without statistics, comes before the rest was written.
        reported.switch.cur_cfg = Some(8);
        reported.interfaces.values_mut().for_each(|i| i.statistics = None);
        all.add(reported);
        let parts: Vec<Status> = std::iter::from_fn(|| all.take_part(1000)).collect();
        let sizes: Vec<usize> = parts.iter().map(|part| part.interfaces.len()).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
        let applied: Vec<_> = parts.iter().map(|part| part.switch.cur_cfg).collect();
        assert_eq!(applied, [None, None, Some(8)]);
        let counted = parts.iter().flat_map(|part| part.interfaces.values());
        assert_eq!(counted.filter(|i| i.statistics.is_some()).count(), 1500);
    }

    fn database() -> Replica {
        let row = |columns: Vec<(&str, Datum)>| columns.into_iter().collect::<Row>();
        Replica::with_rows(
            Schema::default(),
            [
                ("Open_vSwitch".to_owned(), Uuid(1), row(vec![("cur_cfg", Datum::scalar(3))])),
                (
                    "Interface".to_owned(),
                    Uuid(2),
                    row(vec![
                        ("ofport", Datum::scalar(1)),
                        ("error", Datum::empty()),
                        ("mac_in_use", Datum::empty()),
                        ("statistics", Datum::map([("rx_packets", 5)])),
                    ]),
                ),
            ],
        )
    }

    #[test]
    fn only_differences_are_written_and_cur_cfg_last() {
        let mut status = Status::default();
        status.switch.cur_cfg = Some(4);
        let mac_in_use = Some([0x02, 0, 0, 0, 0, 0xff]);
        let interface = InterfaceStatus { ofport: Some(1), mac_in_use, ..Default::default() };
        status.interfaces.insert(Uuid(2), interface);
        status.interfaces.insert(Uuid(77), InterfaceStatus::failed("gone"));
        let updates = status.diff(&database());
        let column = |name: &str, value| vec![(name.to_owned(), value)];
        assert_eq!(
            updates,
            [
                RowUpdate {
                    table: "Interface",
                    uuid: Uuid(2),
                    columns: column("mac_in_use", Datum::scalar("02:00:00:00:00:ff"))
                },
                RowUpdate {
                    table: "Open_vSwitch",
                    uuid: Uuid(1),
                    columns: column("cur_cfg", Datum::scalar(4))
                },
            ]
        );
        status.switch.cur_cfg = Some(3);
        status.interfaces.clear();
        assert!(status.diff(&database()).is_empty());
    }

    #[test]
    fn failure_and_statistics_replace_what_was_there() {
        let mut status = Status::default();
        let mut failed = InterfaceStatus::failed("no such device");
        failed.statistics = Some(Counters::new());
        status.interfaces.insert(Uuid(2), failed);
        let updates = status.diff(&database());
        let names: Vec<_> = updates[0].columns.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["ofport", "error", "statistics"]);
        assert_eq!(updates[0].columns[0].1, Datum::scalar(-1));
    }
}
