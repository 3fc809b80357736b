//! The configuration as plain data. Reading it never fails: what is missing has its default, and
//! what contradicts itself is left out and returned as a [`Conflict`].

use super::controller_conf::{self, ControllerConf};
use super::notices::{self, Notice};
use super::qos::{KnownQos, PortQos, QosConf, QosReader};
use super::rows::{millis, number, rows, str_uuid_map};
use super::timeouts::{self, Timeouts};
use crate::oam::lldp::LldpConf;
use crate::tls::{Authority, Identity};
use ovsdb::{Replica, Row, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// OpenFlow's reserved port numbers start here.
const OFPP_MAX: u16 = 0xff00;

/// A map from text to text, such as `other_config`.
pub type StrMap = BTreeMap<String, String>;

/// Everything the database wants of the switch. Two that are equal need no reconciliation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The row of table `Open_vSwitch`.
    pub uuid: Uuid,
    /// Serial number of this configuration, to be acknowledged in `cur_cfg`.
    pub next_cfg: i64,
    /// `Open_vSwitch.other_config`.
    pub other_config: StrMap,
    /// Bridges, by name.
    pub bridges: Vec<BridgeConf>,
    /// `Manager.target`s of those that are reached in-band; ovsdb-server talks to them, bridges
    /// let them through.
    pub managers: Vec<String>,
    /// Rows of table `Datapath` by datapath type.
    pub datapaths: BTreeMap<String, Uuid>,
    /// Timeouts of connections, of zones that have their own.
    pub zone_timeouts: BTreeMap<u16, Timeouts>,
    /// The row of table `SSL`.
    pub ssl: Option<Identity>,
    /// Interfaces that cannot be had.
    pub conflicts: Vec<Conflict>,
    /// What is set and has no effect.
    pub notices: BTreeSet<Notice>,
}

/// An interface that is left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The row of table `Interface`.
    pub interface: Uuid,
    /// The text for its `error` column.
    pub error: String,
}

/// What a bridge does while it has no controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// Learns addresses on its own.
    #[default]
    Standalone,
    /// Forwards by its flow tables only.
    Secure,
}

/// One bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeConf {
    /// The row of table `Bridge`.
    pub uuid: Uuid,
    /// Its name, that of the LOCAL port too.
    pub name: String,
    /// `system` where the column is empty.
    pub datapath_type: String,
    /// `fail_mode`.
    pub fail_mode: FailMode,
    /// OpenFlow versions such as `OpenFlow13`; empty for the default.
    pub protocols: Vec<String>,
    /// `other_config`, with `datapath-id`, `hwaddr`, `disable-in-band`, `mac-aging-time` and more.
    pub other_config: StrMap,
    /// `external_ids`.
    pub external_ids: StrMap,
    /// Controllers, by row.
    pub controllers: Vec<ControllerConf>,
    /// Ports, by name.
    pub ports: Vec<PortConf>,
    /// Settings of OpenFlow tables by number.
    pub flow_tables: BTreeMap<u8, FlowTableConf>,
    /// VLANs on which nothing is learned.
    pub flood_vlans: Vec<u16>,
    /// Mirrors, by row.
    pub mirrors: Vec<super::MirrorConf>,
    /// `netflow`.
    pub netflow: Option<super::NetFlowConf>,
    /// `sflow`.
    pub sflow: Option<super::SflowConf>,
    /// `ipfix`.
    pub ipfix: Option<super::IpfixConf>,
    /// Rows of `Flow_Sample_Collector_Set`, by `id`.
    pub sets: BTreeMap<u32, super::IpfixConf>,
    /// `stp_enable`.
    pub stp: bool,
    /// `rstp_enable`.
    pub rstp: bool,
    /// `mcast_snooping_enable`.
    pub mcast_snooping: bool,
}

/// Settings of one OpenFlow table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTableConf {
    /// `name`.
    pub name: Option<String>,
    /// Most flows, none for no limit.
    pub flow_limit: Option<u32>,
    /// Whether a full table evicts rather than refuses.
    pub evict: bool,
    /// Fields that group flows for fair eviction.
    pub groups: Vec<String>,
    /// Fields to match by prefix.
    pub prefixes: Vec<String>,
}

/// How a port treats VLANs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VlanMode {
    /// Carries tagged packets of its trunks.
    #[default]
    Trunk,
    /// Carries one VLAN untagged.
    Access,
    /// A trunk whose native VLAN leaves tagged.
    NativeTagged,
    /// A trunk whose native VLAN leaves untagged.
    NativeUntagged,
    /// Carries whole tagged packets in an outer VLAN.
    Dot1qTunnel,
}

/// How a bond speaks LACP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LacpMode {
    /// The bond does not speak LACP.
    #[default]
    Off,
    /// The bond begins.
    Active,
    /// The bond answers only.
    Passive,
}

/// One port: an interface, or a bond of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortConf {
    /// The row of table `Port`.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// The VLAN of an access, native or tunnel port.
    pub tag: Option<u16>,
    /// The VLANs carried; empty for all.
    pub trunks: Vec<u16>,
    /// Customer VLANs of a tunnel port; empty for all.
    pub cvlans: Vec<u16>,
    /// The mode as set, or that which follows from `tag`.
    pub vlan_mode: VlanMode,
    /// `other_config`.
    pub other_config: StrMap,
    /// `mac`.
    pub mac: Option<String>,
    /// Protected ports do not send to each other.
    pub protected: bool,
    /// `bond_mode`, such as `active-backup`; the default where several interfaces set none.
    pub bond_mode: Option<String>,
    /// Time a link must be up before it is used.
    pub bond_updelay: Duration,
    /// Time a link must be down before it is left.
    pub bond_downdelay: Duration,
    /// `lacp`.
    pub lacp: LacpMode,
    /// Interfaces, by name; at least one.
    pub interfaces: Vec<IfaceConf>,
}

/// A number of the last run. It is a wish, no configuration, so all of them are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered(pub Option<u16>);

impl PartialEq for Remembered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Remembered {}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IfaceConf {
    /// The row of table `Interface`.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// `type`, with `system` for an empty one and `internal` for the bridge's own port.
    pub kind: String,
    /// `options`.
    pub options: StrMap,
    /// `mtu_request`, bytes.
    pub mtu_request: Option<u32>,
    /// `mac`, the address to set.
    pub mac: Option<String>,
    /// `ofport_request`.
    pub ofport_request: Option<u16>,
    /// The `ofport` that the database still has: where none is requested, the interface keeps this
    /// one over a restart, so that flows which name it stay right.
    pub last_ofport: Remembered,
    /// `other_config`, with `pmd-rxq-affinity` and more.
    pub other_config: StrMap,
    /// `external_ids`.
    pub external_ids: StrMap,
    /// `bfd`.
    pub bfd: StrMap,
    /// `cfm_mpid`.
    pub cfm_mpid: Option<i64>,
    /// `lldp`, with what the bridge's `auto_attach` says; None: it is not enabled.
    pub lldp: Option<LldpConf>,
    /// `ingress_policing_rate` and `_burst`, in kbit/s and kbit; zero for none.
    pub policing_kbits: (u32, u32),
    /// `ingress_policing_kpkts_rate` and `_burst`, in thousands of packets; zero for none.
    pub policing_kpkts: (u32, u32),
    /// `qos` of its port.
    pub qos: Option<Arc<QosConf>>,
    /// `Queue.dscp` of that QoS, by queue.
    pub queue_dscp: Arc<BTreeMap<u32, u8>>,
}

impl Desired {
    /// Reads the configuration; `None` where the database has not been initialized. `known`: QoS
    /// rows as the last look saw them.
    pub fn read(db: &Replica, known: &mut KnownQos) -> Option<Self> {
        let (uuid, root) = db.singleton("Open_vSwitch")?;
        let qos = QosReader::new(db, known);
        let mut reader = Reader { db, qos, seen: BTreeSet::new(), conflicts: Vec::new() };
        let bridges = reader.bridges(root);
        reader.qos.end();
        Some(Self {
            uuid,
            next_cfg: root.int("next_cfg"),
            other_config: root.str_map("other_config"),
            bridges,
            managers: rows(db, "Manager", root, "manager_options")
                .filter(|(_, row)| row.str("connection_mode") != "out-of-band")
                .map(|(_, row)| row.str("target").to_owned())
                .collect(),
            datapaths: str_uuid_map(root, "datapaths"),
            zone_timeouts: timeouts::read(db, root),
            ssl: rows(db, "SSL", root, "ssl").next().map(|(_, row)| ssl(row)),
            conflicts: reader.conflicts,
            notices: notices::read(db, root),
        })
    }

    /// The bridge of this name.
    pub fn bridge(&self, name: &str) -> Option<&BridgeConf> {
        self.bridges.iter().find(|bridge| bridge.name == name)
    }

    /// Time between two writes of statistics: `other_config:stats-update-interval`, at least 5 s.
    pub fn stats_interval(&self) -> Duration {
        let asked = self.other_config.get("stats-update-interval").and_then(|v| v.parse().ok());
        Duration::from_millis(asked.unwrap_or(0u64).max(5000))
    }
}

impl BridgeConf {
    /// The address asked for by `other_config:hwaddr`, if it is one.
    pub fn hwaddr(&self) -> Option<&str> {
        self.other_config.get("hwaddr").map(String::as_str)
    }

    /// The datapath id asked for by `other_config:datapath-id`, if it is one.
    pub fn datapath_id(&self) -> Option<u64> {
        super::form::parse_datapath_id(self.other_config.get("datapath-id")?)
    }

    /// All interfaces of all ports.
    pub fn interfaces(&self) -> impl Iterator<Item = &IfaceConf> {
        self.ports.iter().flat_map(|port| &port.interfaces)
    }
}

fn ssl(row: &Row) -> Identity {
    Identity {
        private_key: Some(row.str("private_key").into()),
        certificate: Some(row.str("certificate").into()),
        authority: Authority::named(row.str("ca_cert"), row.bool("bootstrap_ca_cert")),
    }
}

fn vlans(row: &Row, column: &str) -> Vec<u16> {
    row.ints(column).into_iter().filter_map(vlan).collect()
}

fn vlan(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|&v| v < 4096)
}

/// A number that an interface other than LOCAL may have.
fn port_number(row: &Row, column: &str) -> Option<u16> {
    let number = row.opt_int(column).and_then(|n| u16::try_from(n).ok());
    number.filter(|n| (1..OFPP_MAX).contains(n))
}

fn vlan_mode(row: &Row, tag: Option<u16>) -> VlanMode {
    match row.opt_str("vlan_mode") {
        Some("trunk") => VlanMode::Trunk,
        Some("access") => VlanMode::Access,
        Some("native-tagged") => VlanMode::NativeTagged,
        Some("native-untagged") => VlanMode::NativeUntagged,
        Some("dot1q-tunnel") => VlanMode::Dot1qTunnel,
        _ if tag.is_some() => VlanMode::Access,
        _ => VlanMode::Trunk,
    }
}

fn flow_table(row: &Row) -> FlowTableConf {
    FlowTableConf {
        name: row.opt_str("name").map(str::to_owned),
        flow_limit: number(row, "flow_limit"),
        evict: row.str("overflow_policy") == "evict",
        groups: row.strs("groups"),
        prefixes: row.strs("prefixes"),
    }
}

fn interface(uuid: Uuid, row: &Row, bridge: &str) -> IfaceConf {
    let name = row.str("name");
    let kind = match row.str("type") {
        _ if name == bridge => "internal",
        "" => "system",
        other => other,
    };
    let clamped = |column| row.opt_int(column).map_or(0, |n| n.clamp(0, u32::MAX.into()) as u32);
    let pair = |a, b| (clamped(a), clamped(b));
    IfaceConf {
        uuid,
        name: name.to_owned(),
        kind: kind.to_owned(),
        options: row.str_map("options"),
        mtu_request: number(row, "mtu_request"),
        mac: row.opt_str("mac").map(str::to_owned),
        ofport_request: port_number(row, "ofport_request"),
        last_ofport: Remembered(port_number(row, "ofport")),
        other_config: row.str_map("other_config"),
        external_ids: row.str_map("external_ids"),
        bfd: row.str_map("bfd"),
        cfm_mpid: row.opt_int("cfm_mpid"),
        lldp: LldpConf::wanted(row),
        policing_kbits: pair("ingress_policing_rate", "ingress_policing_burst"),
        policing_kpkts: pair("ingress_policing_kpkts_rate", "ingress_policing_kpkts_burst"),
        qos: None,
        queue_dscp: Arc::default(),
    }
}

struct Reader<'a> {
    db: &'a Replica,
    qos: QosReader<'a>,
    /// Names of interfaces that exist already, which are names of the machine.
    seen: BTreeSet<String>,
    conflicts: Vec<Conflict>,
}

impl Reader<'_> {
    fn bridges(&mut self, root: &Row) -> Vec<BridgeConf> {
        let mut found: Vec<_> = rows(self.db, "Bridge", root, "bridges").collect();
        found.sort_by_key(|(_, row)| row.str("name"));
        // The name becomes part of files' names.
        found.retain(|(_, row)| {
            let name = row.str("name");
            let good = !name.contains(['/', '\\']);
            if !good {
                crate::vlog::warn!("bridge", "ignoring bridge with invalid name '{name}'");
            }
            good
        });
        found.into_iter().map(|(uuid, row)| self.bridge(uuid, row)).collect()
    }

    fn bridge(&mut self, uuid: Uuid, row: &Row) -> BridgeConf {
        let name = row.str("name").to_owned();
        let flow_tables = row.int_uuid_map("flow_tables").into_iter().filter_map(|(id, table)| {
            Some((u8::try_from(id).ok()?, flow_table(self.db.row("Flow_Table", table)?)))
        });
        let other_config = row.str_map("other_config");
        BridgeConf {
            uuid,
            datapath_type: Some(row.str("datapath_type"))
                .filter(|t| !t.is_empty())
                .unwrap_or("system")
                .to_owned(),
            fail_mode: match row.str("fail_mode") {
                "secure" => FailMode::Secure,
                _ => FailMode::Standalone,
            },
            protocols: row.strs("protocols"),
            external_ids: row.str_map("external_ids"),
            controllers: rows(self.db, "Controller", row, "controller")
                .map(|(uuid, row)| controller_conf::read(uuid, row, &other_config))
                .collect(),
            other_config,
            flow_tables: flow_tables.collect(),
            flood_vlans: vlans(row, "flood_vlans"),
            mirrors: super::mirror_conf::read(self.db, row),
            netflow: super::export_conf::netflow(self.db, row),
            sflow: super::export_conf::sflow(self.db, row),
            ipfix: super::export_conf::ipfix(self.db, row),
            sets: super::export_conf::sets(self.db, uuid),
            stp: row.bool("stp_enable"),
            rstp: row.bool("rstp_enable"),
            mcast_snooping: row.bool("mcast_snooping_enable"),
            ports: self.ports(row, &name),
            name,
        }
    }

    fn ports(&mut self, bridge: &Row, bridge_name: &str) -> Vec<PortConf> {
        let mut found: Vec<_> = rows(self.db, "Port", bridge, "ports").collect();
        found.sort_by_key(|(_, row)| row.str("name"));
        let ports = found.into_iter().map(|(uuid, row)| self.port(uuid, row, bridge_name));
        let mut ports: Vec<_> = ports.filter(|port| !port.interfaces.is_empty()).collect();
        let auto_attach = rows(self.db, "AutoAttach", bridge, "auto_attach").next();
        let all = ports.iter_mut().flat_map(|port| &mut port.interfaces);
        for lldp in all.filter_map(|iface| iface.lldp.as_mut()) {
            *lldp = LldpConf::of_bridge(auto_attach.map(|(_, row)| row));
        }
        ports
    }

    fn port(&mut self, uuid: Uuid, row: &Row, bridge: &str) -> PortConf {
        let tag = row.opt_int("tag").and_then(vlan);
        PortConf {
            uuid,
            name: row.str("name").to_owned(),
            tag,
            trunks: vlans(row, "trunks"),
            cvlans: vlans(row, "cvlans"),
            vlan_mode: vlan_mode(row, tag),
            other_config: row.str_map("other_config"),
            mac: row.opt_str("mac").map(str::to_owned),
            protected: row.bool("protected"),
            bond_mode: row.opt_str("bond_mode").map(str::to_owned),
            bond_updelay: millis(row, "bond_updelay", 0),
            bond_downdelay: millis(row, "bond_downdelay", 0),
            lacp: match row.str("lacp") {
                "active" => LacpMode::Active,
                "passive" => LacpMode::Passive,
                _ => LacpMode::Off,
            },
            interfaces: self.interfaces(row, bridge),
        }
    }

    fn interfaces(&mut self, port: &Row, bridge: &str) -> Vec<IfaceConf> {
        let mut found: Vec<_> = rows(self.db, "Interface", port, "interfaces").collect();
        found.sort_by_key(|(_, row)| row.str("name"));
        let mut kept = Vec::new();
        let qos = self.qos.read(port);
        for (uuid, row) in found {
            let PortQos { conf, dscp } = qos.clone();
            let conf = IfaceConf { qos: conf, queue_dscp: dscp, ..interface(uuid, row, bridge) };
            if self.seen.insert(conf.name.clone()) {
                kept.push(conf);
            } else {
                let error = format!("{} is already in use by another interface", conf.name);
                self.conflicts.push(Conflict { interface: uuid, error });
            }
        }
        kept
    }
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
